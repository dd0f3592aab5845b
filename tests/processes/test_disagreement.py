"""Ranks that disagree about an operation get an error that shows both sides: never a hang, never a wrong number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ringleader as rl

X = rl.Communicator


def _f4(*shape: int) -> Any:
    return np.ones(shape, "f4")


# name: (call of rank 0, call of rank 1, what the message must show of both)
CASES: dict[str, tuple[Callable[[X], Any], Callable[[X], Any], tuple[str, ...]]] = {
    "length": (
        lambda c: c.all_reduce(_f4(100, 2560)),
        lambda c: c.all_reduce(_f4(200, 2560)),
        ("100, 2560", "200, 2560"),
    ),
    "one-element": (lambda c: c.all_reduce(_f4(1)), lambda c: c.all_reduce(_f4(2)), ("1 element", "2 elements")),
    "shape": (lambda c: c.all_reduce(_f4(2, 3)), lambda c: c.all_reduce(_f4(3, 2)), ("(2, 3)", "(3, 2)")),
    "type": (
        lambda c: c.all_reduce(_f4(8)),
        lambda c: c.all_reduce(np.ones(16, "f2")),
        ("float32", "float16"),
    ),
    "type-of-one-size": (
        lambda c: c.all_reduce(_f4(8)),
        lambda c: c.all_reduce(np.ones(8, "i4")),
        ("float32", "int32"),
    ),
    "root": (lambda c: c.broadcast(_f4(4), root=0), lambda c: c.broadcast(_f4(4), root=1), ("root 0", "root 1")),
    "root-of-reduce": (lambda c: c.reduce(_f4(4), root=0), lambda c: c.reduce(_f4(4), root=1), ("root 0", "root 1")),
    "operator": (lambda c: c.all_reduce(_f4(4), "sum"), lambda c: c.all_reduce(_f4(4), "max"), ("sum", "max")),
    "factor": (
        lambda c: c.all_reduce(_f4(4), rl.premul_sum(0.5)),
        lambda c: c.all_reduce(_f4(4), rl.premul_sum(0.25)),
        ("0.5", "0.25"),
    ),
    "collective": (lambda c: c.broadcast(_f4(4)), lambda c: c.all_reduce(_f4(4)), ("broadcast", "all_reduce")),
    "gathered-size": (lambda c: c.all_gather(_f4(4)), lambda c: c.all_gather(_f4(5)), ("(4,)", "(5,)")),
    "algorithm": (
        lambda c: c.all_reduce(_f4(4), algorithm="ring"),
        lambda c: c.all_reduce(_f4(4), algorithm="two_shot"),
        ("algorithm",),
    ),
    "large": (
        lambda c: c.all_reduce(_f4(3_000_000)),
        lambda c: c.all_reduce(_f4(3_000_001)),
        ("3000000", "3000001"),
    ),
    "barrier": (lambda c: c.barrier(), lambda c: c.all_reduce(_f4(4)), ("barrier", "all_reduce")),
    "async": (
        lambda c: c.all_reduce(_f4(4), async_op=True).wait(),
        lambda c: c.all_reduce(_f4(5), async_op=True).wait(),
        ("(4,)", "(5,)"),
    ),
}


def _disagree(name: str) -> tuple[str, str, str, list[int]]:
    comm = rl.init(timeout=60)
    comm.all_reduce(np.ones(5))  # the disagreement is not the first operation
    try:
        CASES[name][comm.rank](comm)
        # Where data go one way only (both call themselves the root of a broadcast), nobody waits for the other, so the
        # disagreement comes to light with the next operation at the latest.
        comm.all_reduce(np.ones(6))
    except rl.errors.RingleaderError as error:
        with pytest.raises(rl.errors.AbortedError):
            comm.all_reduce(np.ones(5))
        return type(error).__name__, str(error), comm.state, list(error.ranks)
    finally:
        comm.close()
    return "no error", "", "", []


def _skip(extra: bool) -> tuple[str, str]:
    """Rank 0 leaves out one of three calls (or makes one more): the next ones meet calls of another kind."""
    comm = rl.init(timeout=60)
    try:
        if not (comm.rank == 0 and not extra):
            comm.all_reduce(np.ones(3))
        if comm.rank == 0 and extra:
            comm.all_reduce(np.ones(3))
        comm.broadcast(np.ones(7), root=1)
        comm.barrier()
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        comm.close()
    return "no error", ""


def _last_one_only() -> tuple[str, str]:
    """Rank 0 makes one call more at the end, and nobody comes."""
    comm = rl.init(timeout=60)
    comm.all_reduce(np.ones(3))
    comm.timeout = 4
    try:
        if comm.rank == 0:
            comm.all_reduce(np.ones(3))
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        comm.close()
    return "no error", ""


class Pair(rl.WorkerGroup):
    """Two ranks over one transport."""

    def __init__(self, transport: str) -> None:
        super().__init__(2, transport=transport)
        self.transport = transport


@pytest.fixture(scope="module", params=["shm", "tcp", pytest.param("ucx", marks=pytest.mark.ucx)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(request.param) as workers:
        yield workers


@pytest.mark.parametrize("name", CASES)
def test_disagreement_is_an_error_on_all_ranks(pair: Pair, name: str) -> None:
    got = pair.run(_disagree, name, timeout=150)
    kinds = {kind for kind, *_ in got}
    assert kinds <= {"MismatchError", "AbortedError"}
    assert "MismatchError" in kinds
    for kind, text, state, _ in got:
        assert state == "aborted"
        # Over the network a rank that waits for nobody may be an operation ahead: then the text shows that.
        one_way = pair.transport != "shm" and name in ("root", "collective")
        for part in ("#2", "runs") if one_way else CASES[name][2]:
            assert part in text, (kind, text)
        assert "rank 0" in text
        assert "rank 1" in text


@pytest.mark.parametrize("extra", [False, True], ids=["skipped", "extra"])
def test_another_sequence_of_calls(pair: Pair, extra: bool) -> None:
    for kind, text in pair.run(_skip, extra, timeout=150):
        assert kind in ("MismatchError", "AbortedError")
        assert "all_reduce #" in text
        assert "broadcast #" in text or "barrier #" in text  # which call meets which depends on who is first


def test_a_call_that_nobody_else_makes(pair: Pair) -> None:
    got = pair.run(_last_one_only, timeout=150)
    assert got[0][0] in ("PeerLost", "CollectiveTimeout")
    assert "rank 1" in got[0][1]
    assert "all_reduce" in got[0][1]
    assert got[1] == ("no error", "")
