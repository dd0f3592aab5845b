"""Wire formats among processes: equal bits on every rank, error bounds, bytes sent, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.algorithms import names

N = 4
FORMATS = ("bf16", "f16", "int8", "onebit")
# The largest error of one rounding, relative to the largest magnitude of the block (docs/wire.md).
UNIT = {"bf16": 2.0**-8, "f16": 2.0**-11, "int8": 1 / 127, "onebit": 4 / 3}
_comm: rl.Communicator | None = None


def world() -> rl.Communicator:
    """This process's communicator; in a "mixed" group ranks 0 and 1 share memory, 2 and 3 are on their own."""
    global _comm
    if _comm is None or _comm.state != "live":
        import os

        layout = os.environ["TEST_LAYOUT"]
        rank = int(os.environ["RINGLEADER_RANK"])
        transport = {"shm": "shm", "tcp": "tcp", "mixed": "auto" if rank < 2 else "tcp"}[layout]
        _comm = rl.init(timeout=60, transport=transport)
        nodes = {"shm": (0, 0, 0, 0), "tcp": (0, 1, 2, 3), "mixed": (0, 0, 1, 2)}[layout]
        assert _comm.nodes == nodes, _comm.nodes
    return _comm


@pytest.fixture(scope="module", params=["tcp", "mixed"])
def group(request: pytest.FixtureRequest) -> Iterator[rl.WorkerGroup]:
    workers = rl.WorkerGroup(N, env={"TEST_LAYOUT": request.param})
    yield workers
    workers.close(force=True)


@pytest.fixture(scope="module")
def shm_group() -> Iterator[rl.WorkerGroup]:
    workers = rl.WorkerGroup(N, env={"TEST_LAYOUT": "shm"})
    yield workers
    workers.close(force=True)


def data(rank: int, count: int, kind: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a rank contributes; different on every rank and for every element."""
    random = np.random.default_rng([rank, count])
    x = random.standard_normal(count).astype(np.float32)
    if kind == "outliers":  # one huge element in many blocks of tiny ones
        x *= np.float32(1e-3)
        x[rank::97] *= np.float32(1e6)
    elif kind == "alternating":  # cancels almost completely
        x = np.where((np.arange(count) + rank) % 2 == 0, 1, -1).astype(np.float32) * (1 + x * np.float32(1e-3))
    elif kind == "scales":
        x *= np.exp2(random.integers(-30, 12, count)).astype(np.float32)
    return x


# ---------------------------------------------------------------- all-reduce


def reduce_all(cases: list[tuple[str, str, str, int]]) -> list[bytes]:
    comm, results = world(), []
    for wire, algorithm, kind, count in cases:
        x = data(comm.rank, count, kind)
        comm.all_reduce(x, wire={"inter": wire}, algorithm=algorithm)
        assert comm.last_choice is not None
        assert comm.last_choice.wire == wire
        results.append(x.tobytes())
    return results


@pytest.mark.parametrize("algorithm", names("all_reduce"))
def test_all_ranks_get_the_same_bits_within_the_bound(group: rl.WorkerGroup, algorithm: str) -> None:
    kinds = ("normal", "outliers", "alternating", "scales")
    cases = [(wire, algorithm, kind, count) for wire in FORMATS for kind in kinds for count in (1, 131, 5003)]
    by_rank = group.run(reduce_all, cases, timeout=150)
    for i, (wire, _, kind, count) in enumerate(cases):
        assert all(results[i] == by_rank[0][i] for results in by_rank), cases[i]
        if wire == "onebit":
            continue  # its bound says nothing of sums
        got = np.frombuffer(by_rank[0][i], np.float32).astype(np.float64)
        inputs = np.stack([data(rank, count, kind) for rank in range(N)]).astype(np.float64)
        magnitude = np.abs(inputs)
        if wire == "int8":  # blocks depend on the algorithm: the largest magnitude of all bounds every block's
            magnitude = np.broadcast_to(magnitude.max(axis=1, keepdims=True), magnitude.shape)
        least = {"f16": 2.0**-25, "int8": 2.0**-127, "bf16": 0}[wire]
        bound = ((1 + UNIT[wire]) ** N * (1 + 2.0**-24) ** N - 1) * magnitude.sum(axis=0) + 2 * N * least
        assert (np.abs(got - inputs.sum(axis=0)) <= bound).all(), cases[i]


def reduce_integers(wire: str) -> list[float]:
    comm = world()
    x = (np.arange(1000) % 16 + comm.rank).astype(np.float32)
    return [float(v) for v in comm.all_reduce(x, wire=wire)]


@pytest.mark.parametrize("wire", ["bf16", "f16"])
def test_what_the_format_holds_is_exact(group: rl.WorkerGroup, wire: str) -> None:
    want = [float(4 * (i % 16) + 6) for i in range(1000)]
    assert group.run(reduce_integers, wire, timeout=150) == [want] * N


def reduce_special(wire: str) -> list[bytes]:
    comm = world()
    x = np.full(1000, 1.0, np.float32)
    if comm.rank == 1:
        x[5], x[700] = np.nan, np.inf
    if comm.rank == 2:
        x[701] = -np.inf
    return [comm.all_reduce(x, wire=wire).tobytes()]


@pytest.mark.parametrize("wire", FORMATS)
def test_nan_and_infinity_do_not_get_lost(group: rl.WorkerGroup, wire: str) -> None:
    results = [np.frombuffer(r[0], np.float32) for r in group.run(reduce_special, wire, timeout=150)]
    for result in results:
        assert np.isnan(result[5])
        assert not np.isfinite(result[700])
        assert not np.isfinite(result[701])
        assert np.isfinite(result[300:400]).all()  # more than a block away
        assert np.array_equal(
            result.view(np.uint32)[np.isfinite(result)], results[0].view(np.uint32)[np.isfinite(result)]
        )
        assert np.array_equal(np.isnan(result), np.isnan(results[0]))


def reduce_zeros(wire: str) -> bool:
    comm = world()
    return not comm.all_reduce(np.zeros(300, np.float32), wire=wire).any()


@pytest.mark.parametrize("wire", FORMATS)
def test_zeros_stay_zeros(group: rl.WorkerGroup, wire: str) -> None:
    assert group.run(reduce_zeros, wire, timeout=150) == [True] * N


def other_ways(wire: str) -> list[bytes]:
    """The same all-reduce synchronously, asynchronously, persistent, out of place, strided."""
    comm, count = world(), 2003
    x = data(comm.rank, count, "normal")
    results = [comm.all_reduce(x.copy(), "avg", wire=wire) for _ in range(2)]
    results.append(comm.all_reduce(x.copy(), "avg", wire=wire, async_op=True).wait())
    results.append(comm.all_reduce_init(x.copy(), "avg", wire=wire)())
    results.append(comm.all_reduce(x, "avg", wire=wire, out=np.empty_like(x)))
    assert np.array_equal(x, data(comm.rank, count, "normal"))
    wide = np.zeros((count, 2), np.float32)
    wide[:, 0] = x
    results.append(comm.all_reduce(wide[:, 0], "avg", wire=wire).copy())
    registered = comm.empty(count)
    registered[:] = x
    results.append(comm.all_reduce(registered, "avg", wire=wire).copy())
    return [r.tobytes() for r in results]


def test_all_ways_to_call_agree(group: rl.WorkerGroup) -> None:
    by_rank = group.run(other_ways, "int8", timeout=150)
    assert {result for results in by_rank for result in results} == {by_rank[0][0]}


def feed_back(wire: str, algorithm: str) -> list[list[bytes]]:
    """Error feedback: what was sent by this rank, and the result, for a few steps."""
    comm, count = world(), 70_001  # more than a window
    error, steps = np.zeros(count, np.float32), []
    for _ in range(3):
        gradient = data(comm.rank, count, "normal") + error
        sent = rl.round_to_wire(gradient, wire)
        error = gradient - sent
        steps.append([sent.tobytes(), comm.all_reduce(sent.copy(), wire=wire, algorithm=algorithm).tobytes()])
    return steps


@pytest.mark.parametrize("algorithm", ["allgather_reduce", "one_shot"])
@pytest.mark.parametrize("wire", ["int8", "onebit"])
def test_error_feedback_loses_nothing_more(group: rl.WorkerGroup, wire: str, algorithm: str) -> None:
    by_rank = group.run(feed_back, wire, algorithm, timeout=150)
    for step in range(3):
        sent = [np.frombuffer(by_rank[rank][step][0], np.float32) for rank in range(N)]
        want = ((sent[0] + sent[1]) + sent[2]) + sent[3]
        for rank in range(N):
            assert np.array_equal(np.frombuffer(by_rank[rank][step][1], np.float32), want), (step, rank)


def bytes_sent(wire: str, count: int) -> int:
    comm = world()
    x = data(comm.rank, count, "normal")
    before = comm.counters()["bytes_sent_net"]
    comm.all_reduce(x, wire=wire, algorithm="ring")
    return comm.counters()["bytes_sent_net"] - before


def test_fewer_bytes_are_sent(group: rl.WorkerGroup) -> None:
    plain = group.run(bytes_sent, "f32", 1 << 20, timeout=150)[3]
    for wire, ratio in {"bf16": 1.99, "f16": 1.99, "int8": 3.9, "onebit": 20}.items():
        assert plain / group.run(bytes_sent, wire, 1 << 20, timeout=150)[3] >= ratio, wire


# ---------------------------------------------------------------- the other collectives


def others(wire: str, algorithm: dict[str, str]) -> dict[str, bytes]:
    comm, count = world(), 389
    mine = data(comm.rank, count, "normal")
    blocks = data(comm.rank, N * count, "normal")
    last = comm.size - 1
    out: dict[str, Any] = {}

    def using(name: str) -> dict[str, Any]:
        return {"wire": wire, "algorithm": algorithm.get(name)}

    out["broadcast"] = comm.broadcast(mine.copy(), last, **using("broadcast"))
    out["all_gather"] = comm.all_gather(mine, **using("all_gather"))
    out["reduce"] = comm.reduce(mine if comm.rank != 1 else mine.copy(), 1, **using("reduce"))
    out["reduce_scatter"] = comm.reduce_scatter(blocks, **using("reduce_scatter"))
    out["gather"] = comm.gather(mine, last, **using("gather"))
    own = np.empty(count, np.float32)
    out["scatter"] = comm.scatter(blocks if comm.rank == 2 else None, 2, own, **using("scatter"))
    out["all_to_all"] = comm.all_to_all(blocks, **using("all_to_all"))
    assert np.array_equal(mine, data(comm.rank, count, "normal"))  # inputs are left as they are
    assert np.array_equal(blocks, data(comm.rank, N * count, "normal"))
    return {name: b"" if value is None else value.tobytes() for name, value in out.items()}


def expected(name: str, rank: int) -> np.ndarray[Any, Any] | None:
    count = 389
    mine = np.stack([data(r, count, "normal") for r in range(N)]).astype(np.float64)
    blocks = np.stack([data(r, N * count, "normal").reshape(N, count) for r in range(N)]).astype(np.float64)
    return {
        "broadcast": mine[N - 1],
        "all_gather": mine,
        "reduce": mine.sum(axis=0) if rank == 1 else None,
        "reduce_scatter": blocks[:, rank].sum(axis=0),
        "gather": mine if rank == N - 1 else None,
        "scatter": blocks[2, rank],
        "all_to_all": blocks[:, rank],
    }[name]


OTHERS = ("broadcast", "all_gather", "reduce", "reduce_scatter", "gather", "scatter", "all_to_all")


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_other_collectives(group: rl.WorkerGroup, wire: str) -> None:
    rounds = max(len(names(name)) for name in OTHERS)
    for k in range(rounds):  # every algorithm of each
        algorithm = {name: names(name)[k % len(names(name))] for name in OTHERS}
        by_rank = group.run(others, wire, algorithm, timeout=150)
        for name in OTHERS:
            for rank in range(N):
                want = expected(name, rank)
                if want is None:
                    assert by_rank[rank][name] == b""
                    continue
                got = np.frombuffer(by_rank[rank][name], np.float32).astype(np.float64)
                assert np.abs(got - want.ravel()).max() <= ((1 + UNIT[wire]) ** N - 1) * N * 5, (name, algorithm[name])
            if name in ("broadcast", "all_gather"):
                assert len({by_rank[rank][name] for rank in range(N)}) == 1, algorithm[name]
                assert (
                    by_rank[N - 1][name] != np.asarray(expected(name, 0), np.float32).tobytes()
                )  # something was rounded


# ---------------------------------------------------------------- choosing


def choices() -> list[tuple[str, str]]:
    comm = world()
    x = np.ones(10, np.float32)
    seen: list[tuple[str, str]] = []

    def note(what: str) -> None:
        assert comm.last_choice is not None
        seen.append((what, comm.last_choice.wire))

    comm.all_reduce(x)
    note("all_reduce")
    comm.all_reduce(x, wire="f32")
    note("asked for f32")
    comm.all_reduce(x, wire="int8")
    note("asked for int8")
    assert "int8 between nodes" in str(comm.last_choice)
    comm.all_reduce(np.ones(10))
    note("float64")
    comm.broadcast(x)
    note("broadcast")
    seen.append(("explain", str(comm.explain("all_reduce", 1 << 20)).splitlines()[0].partition(":")[0][-19:]))
    return seen


def test_the_setting_is_for_reductions_of_float32() -> None:
    with rl.WorkerGroup(N, env={"TEST_LAYOUT": "tcp", "RINGLEADER_WIRE": "bf16"}) as workers:
        assert (
            workers.run(choices, timeout=150)
            == [
                [
                    ("all_reduce", "bf16"),
                    ("asked for f32", "f32"),
                    ("asked for int8", "int8"),
                    ("float64", "f32"),
                    ("broadcast", "f32"),
                    ("explain", ", bf16 between nodes"[-19:]),
                ]
            ]
            * N
        )


def shared_memory_only() -> bool:
    comm = world()
    x = data(comm.rank, 1000, "normal")
    y = comm.all_reduce(x.copy(), wire={"inter": "onebit"})
    assert comm.last_choice is not None
    assert comm.last_choice.wire == "f32"
    return np.array_equal(y, comm.all_reduce(x.copy()))


def test_no_effect_within_a_node(shm_group: rl.WorkerGroup) -> None:
    assert shm_group.run(shared_memory_only, timeout=150) == [True] * N


def refused() -> list[str]:
    comm = world()
    texts = []
    for x, wire in (
        (np.ones(3, np.float32), "fp8"),
        (np.ones(3, np.float32), {"intra": "bf16"}),
        (np.ones(3, np.float32), 8),
        (np.ones(3), "bf16"),
    ):
        with pytest.raises((rl.errors.InvalidArgument, rl.errors.UnsupportedType)) as caught:
            comm.all_reduce(x, wire=wire)  # type: ignore[arg-type]
        texts.append(str(caught.value))
    comm.barrier()
    return texts


def test_wrong_arguments_are_refused_before_anything_is_sent(group: rl.WorkerGroup) -> None:
    texts = group.run(refused, timeout=150)[0]
    assert "f32, bf16, f16, int8, onebit" in texts[0]
    assert "'inter'" in texts[1]
    assert "f32, bf16, f16, int8, onebit" in texts[2]
    assert "float32" in texts[3]


def disagree() -> str:
    comm = world()
    try:
        comm.all_reduce(np.ones(100, np.float32), wire="bf16" if comm.rank == 0 else "int8")
    except rl.errors.MismatchError as error:
        return str(error)
    return "no error"


def test_ranks_that_disagree_are_told_both_formats() -> None:
    with rl.WorkerGroup(N, env={"TEST_LAYOUT": "mixed"}) as workers:
        for text in workers.run(disagree, timeout=150):
            assert "wire bf16" in text, text
            assert "wire int8" in text, text
