"""Sums in 16-bit types, and the same bits everywhere, every time."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from robustness_support import LONG, Workers, names_for, part, world

import ringleader as rl

N = 8
ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = np.dtype(ml_dtypes.bfloat16)
# These combine all contributions to an element at one place: in float32, rounded once. Over a network the others
# combine message by message, and round each time.
ONE_FOLD: dict[str, dict[str, tuple[str | None, ...]]] = {
    "shm": {
        "all_reduce": ("one_shot", "two_shot", "allgather_reduce", "linear"),
        "reduce_scatter": ("direct",),
        "reduce": ("linear", "two_shot"),
    },
    "tcp": {"all_reduce": ("one_shot", "allgather_reduce")},
}


@pytest.fixture(scope="module", params=["shm", "tcp"])
def eight(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


# ------------------------------------------------------------------------------------------------------ 16-bit sums


def _sixteen_bits(algorithms: dict[str, tuple[str | None, ...]]) -> list[str]:
    comm, wrong = world(), []
    n, rank = comm.size, comm.rank
    # At `large`, numbers of the type are 2 apart: one that is rounded after each of seven additions of 1 stays there.
    for dtype, large, exact in ((BF16, 256, 264), (np.dtype("f2"), 2048, 2056)):
        for where in (0, n - 2):
            for count in (1, 3000, 40_000):
                mine = np.full(count, large if rank == where else 1, dtype)
                for collective, names in algorithms.items():
                    x = np.tile(mine, n) if collective == "reduce_scatter" else mine.copy()
                    for name in names:
                        got = getattr(comm, collective)(x.copy(), algorithm=name)
                        if got is not None and not (got.astype("f8") == exact).all():
                            wrong.append(f"{collective} {name} {dtype} of {count}, large on {where}: {got[0]}")
    return wrong


def test_16_bit_sums_are_rounded_once_by_default_on_one_host() -> None:
    with rl.WorkerGroup(N, transport="shm") as group:
        default = {"all_reduce": (None,), "reduce": (None,), "reduce_scatter": (None,)}
        assert group.run(_sixteen_bits, default, timeout=150) == [[]] * N


def test_16_bit_sums_are_rounded_once_by_algorithms_that_fold_at_one_place(eight: Workers) -> None:
    assert eight.run(_sixteen_bits, ONE_FOLD[eight.transport]) == [[]] * N


def _float16_mean() -> Any:
    comm = world()
    pair = part([0, 1])
    whole = comm.all_reduce(np.full(9, 65504, "f2"), "avg", algorithm="one_shot").tolist()
    return whole, None if pair is None else pair.all_reduce(np.full(9, 40000, "f2"), "avg").tolist()


def test_a_mean_of_large_float16_values_does_not_overflow(eight: Workers) -> None:
    for rank, (whole, two) in enumerate(eight.run(_float16_mean)):
        assert whole == [65504.0] * 9
        assert two == ([40000.0] * 9 if rank < 2 else None)


# --------------------------------------------------------------------------------------------------------- same bits

COUNTS = (5, 1003)
LARGE = 150_001  # more than one window


def _hashes(calls: int, large: bool) -> dict[str, str]:
    """For each group size, algorithm, type and count: the digest of the result, or a complaint."""
    comm, seen = world(timeout=250), {}  # the last rank waits for the only group that it is in
    kinds = (np.dtype("f4"), np.dtype("f2"), BF16)
    for n in range(2, comm.size + 1):
        group = part(range(n))
        if group is None:
            continue
        requests = [(c, name) for c in ("all_reduce", "reduce_scatter") for name in names_for(c, n)]
        for turn, (collective, name) in enumerate(requests, 10 * n):
            counts = (*COUNTS, LARGE) if large and turn % 9 == 0 else COUNTS
            for count in counts:
                for dtype in kinds if count == COUNTS[1] else kinds[turn % 3 :][:1]:
                    size = count * n if collective == "reduce_scatter" else count
                    values = np.random.default_rng(1000 * n + group.rank).standard_normal(size) * 10.0 ** (turn % 5)
                    results = set()
                    for call in range(calls if count != LARGE else 2):
                        # Elsewhere in memory each time: results may not depend on the alignment.
                        base = np.empty(size + 16, dtype)
                        x = base[call % 16 :][:size]
                        x[:] = values.astype(dtype)
                        got = getattr(group, collective)(x, algorithm=name)
                        results.add(hashlib.sha256(got.tobytes()).hexdigest()[:16])
                    key = f"{n} {collective} {name} {dtype} {count}"
                    seen[key] = results.pop() if len(results) == 1 else f"{len(results)} results"
    return seen


def _burn(stop: Any) -> None:
    while not stop.is_set():
        sum(range(10_000))


def _compare(launches: list[list[dict[str, str]]]) -> None:
    whole: dict[str, str] = {}
    for launch in launches:
        for rank, seen in enumerate(launch):
            for key, digest in seen.items():
                assert "results" not in digest, f"{key}: {digest} on rank {rank}"
                name = key if "all_reduce" in key else f"{key}, rank {rank}"
                assert whole.setdefault(name, digest) == digest, f"{name}: another result, rank {rank}"
    assert len(whole) > 200


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_same_bits_on_all_ranks_in_all_calls_and_launches_also_under_load(transport: str) -> None:
    context = multiprocessing.get_context("spawn")
    launches, calls = [], 50 if LONG else 4
    for launch in range(5 if LONG else 2):
        stop = context.Event()
        burner = context.Process(target=_burn, args=(stop,))
        if launch == 1:
            burner.start()
        try:
            with rl.WorkerGroup(N, transport=transport) as group:
                launches.append(group.run(_hashes, calls, True, timeout=600 if LONG else 250))
        finally:
            stop.set()
            if launch == 1:
                burner.join(20)
    _compare(launches)


def _cancelling() -> dict[str, list[tuple[float, ...]]]:
    four, seen = part([0, 1, 2, 3]), {}
    if four is None:
        return {}
    values = [1e8, 1.0, -1e8, 1.0]
    for name in names_for("all_reduce", 4):
        results = [
            tuple(four.all_reduce(np.full(9, values[four.rank], np.float32), algorithm=name).tolist())
            for _ in range(50)
        ]
        seen[name] = sorted(set(results))
    return seen


def test_cancelling_values_give_one_result(eight: Workers) -> None:
    ranks = eight.run(_cancelling)[:4]
    for name, results in ranks[0].items():
        assert len(results) == 1, (name, results)
        # The order of combination, and so the value, may depend on the place in the vector.
        assert set(results[0]) <= {0.0, 1.0, 2.0}, (name, results)
        assert all(rank[name] == results for rank in ranks), name
    assert len(ranks[0]) >= 8


def _back_to_back() -> list[str]:
    """Every call's data are new, and nobody waits in between but in the calls."""
    comm, wrong = world(), []
    four = part([0, 1, 2, 3])
    for group in (comm, four):
        if group is None:
            continue
        n, base = group.size, sum(range(group.size))
        for name in names_for("all_reduce", n):
            registered = group.empty(40, np.float64)
            for i in range(60):
                x = registered if i % 4 == 1 else np.empty(40)
                x[:] = np.arange(40) + i * 100 + group.rank
                if i % 7 == group.rank:
                    time.sleep(0.0005)
                if not (group.all_reduce(x, algorithm=name) == n * (np.arange(40) + i * 100) + base).all():
                    wrong.append(f"{name} over {n}, call {i}")
    return wrong


def test_back_to_back_calls_never_see_the_data_of_the_call_before(eight: Workers) -> None:
    assert eight.run(_back_to_back) == [[]] * N
