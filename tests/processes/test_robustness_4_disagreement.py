"""Four ranks of which one disagrees: all get an error that shows what differs (two ranks: test_disagreement.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import Event
from robustness_support import Workers

import ringleader as rl

N = 4
ODD = 2


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


# name: (what the odd rank does, what the others do), as (operation, arguments)
CASES: dict[str, Any] = {
    "shape": (("all_reduce", np.ones((200, 2560), "f4")), ("all_reduce", np.ones((100, 2560), "f4"))),
    "one element": (("all_reduce", np.ones(2)), ("all_reduce", np.ones(1))),
    "equal bytes": (("all_reduce", np.ones(8, "f4")), ("all_reduce", np.ones(16, "f2"))),
    "reshaped": (("all_reduce", np.ones((2, 3))), ("all_reduce", np.ones((3, 2)))),
    "operator": (("all_reduce", np.ones(9), "max"), ("all_reduce", np.ones(9), "sum")),
    "root": (("reduce", np.ones(9), 1), ("reduce", np.ones(9), 0)),
    "operation": (("broadcast", np.ones(9)), ("all_reduce", np.ones(9))),
    "blocks": (("reduce_scatter", np.ones(8)), ("reduce_scatter", np.ones(16))),
    "gather": (("all_gather", np.ones(3)), ("all_gather", np.ones(3, "i8"))),
}


def _disagree(name: str, mode: bool) -> tuple[str, str, str]:
    comm = rl.init(timeout=60)
    operation, *arguments = CASES[name][0 if comm.rank == ODD else 1]
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        comm.all_reduce(np.ones(5))  # a rank may still be in this one when the others are at odds already
        result = getattr(comm, operation)(*arguments, async_op=mode)
        if mode:
            result.wait()
        comm.barrier()  # where nobody waits for the odd rank, it shows here at the latest
    except rl.errors.RingleaderError as error:
        try:
            comm.barrier()
        except rl.errors.AbortedError as later:
            return type(error).__name__, str(error), str(later)
        return type(error).__name__, str(error), "went on"
    finally:
        comm.close()
    return "no error", "", ""


@pytest.mark.parametrize("name", CASES)
def test_one_of_four_disagrees(four: Workers, name: str) -> None:
    got = four.run(_disagree, name, len(name) % 2 == 0, timeout=150)
    kinds = [kind for kind, *_ in got]
    assert set(kinds) <= {"MismatchError", "AbortedError"}, got
    assert "MismatchError" in kinds, got
    for _, text, later in got:
        assert "went on" not in later
        # The first cause, on every rank: two operations, each with the rank that runs it.
        assert f"rank {ODD}" in text, got
        assert text.count("#") >= 2, got


def _one_skips(how: str) -> tuple[str, str]:
    comm = rl.init(timeout=60)
    try:
        for i in range(3):
            if comm.rank == ODD and i == 1 and how == "skips":
                continue
            comm.all_reduce(np.ones(3 + i))
            if comm.rank == ODD and i == 1 and how == "repeats":
                comm.all_reduce(np.ones(3 + i))
        comm.barrier()
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        comm.close()
    return "no error", ""


@pytest.mark.parametrize("how", ["skips", "repeats"])
def test_one_of_four_skips_or_repeats_a_call(four: Workers, how: str) -> None:
    got = four.run(_one_skips, how, timeout=150)
    for kind, text in got:
        assert kind in ("MismatchError", "AbortedError"), got
        # Per rank: the number of the call, operation, shape and type.
        assert f"rank {ODD}" in text and "all_reduce #" in text and "float64" in text, got


def _one_never_comes(folder: str) -> Any:
    comm = rl.init(timeout=60)
    gave_up = {rank: Event(folder, rank) for rank in range(comm.size) if rank != ODD}
    comm.barrier()
    if comm.rank == ODD:
        assert all(event.wait() for event in gave_up.values())
        comm.close()
        return None
    comm.timeout = 2
    try:
        comm.all_reduce(np.ones((3, 4)))
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        gave_up[comm.rank].set()
        comm.close()
    return "no error", ""


def test_who_never_comes_is_named_with_operation_shape_and_type(four: Workers, tmp_path: Path) -> None:
    got = four.run(_one_never_comes, str(tmp_path), timeout=150)
    for kind, text in (g for g in got if g is not None):
        assert kind in ("CollectiveTimeout", "AbortedError"), got
        assert f"rank {ODD}" in text and "all_reduce #" in text and "(3, 4)" in text and "float64" in text, got
