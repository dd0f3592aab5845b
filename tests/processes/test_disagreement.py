"""Ranks that disagree about an operation get an error that shows both sides: never a hang, never a wrong number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.compress import (
    BF16,
    DGC,
    FP16,
    QSGD,
    Compressor,
    ErrorFeedback,
    Int4,
    Int8,
    Keyed,
    OneBit,
    PowerSGD,
    RandomK,
    TopK,
)
from ringleader.compress.pieces import Pieces
from ringleader.runtime.compressed import all_reduce_pieces, reduce_scatter_vector

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


# ---------------------------------------------------------------- compressed calls, whose encodings have equal sizes


Codec = Compressor | Keyed


class Own(Compressor):
    """A user's, who says what must be the same."""

    compression_ratio = 1.0

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def parameters(self) -> dict[str, object]:
        return {"factor": self.factor}

    def compress(self, x: Any, key: str = "") -> Any:
        return FP16().compress(x, key)

    def decompress(self, payload: Any, out: Any = None) -> Any:
        return FP16().decompress(payload, out)


# name: (operator and compressor of all ranks but the last, those of the last, what the messages must show of both)
COMPRESSED: dict[str, tuple[tuple[str, Callable[[], Codec]], tuple[str, Callable[[], Codec]], tuple[str, str]]] = {
    "operator": (("sum", Int8), ("avg", Int8), ("op sum", "op avg")),
    "operator-of-casts": (("sum", FP16), ("avg", FP16), ("op sum", "op avg")),
    "class": (
        ("sum", lambda: ErrorFeedback(FP16())),
        ("sum", lambda: ErrorFeedback(BF16())),
        ("ErrorFeedback(compressor=FP16(", "ErrorFeedback(compressor=BF16("),
    ),
    "norm": (("sum", lambda: QSGD(4)), ("sum", lambda: QSGD(4, norm="l2")), ("'qsgd4'", "'qsgd4_l2'")),
    "feedback": (
        ("avg", Int4),
        ("avg", lambda: ErrorFeedback(Int4())),
        ("compression Int4(", "compression ErrorFeedb"),
    ),
    "selection": (
        ("sum", lambda: TopK(k=20)),
        ("sum", lambda: TopK(k=20, selection="sampled")),
        ("'exact'", "'sampled'"),
    ),
    "unbiased": (
        ("sum", lambda: RandomK(k=20)),
        ("sum", lambda: RandomK(k=20, unbiased=True)),
        ("unbiased=False", "unbiased=True"),
    ),
    "warm-start": (
        ("avg", lambda: PowerSGD(2)),
        ("avg", lambda: PowerSGD(2, warm_start=False)),
        ("warm_start=True", "warm_start=False"),
    ),
    "momentum": (("avg", lambda: DGC(0.01)), ("avg", lambda: DGC(0.01, 0.5)), ("momentum=0.9", "momentum=0.5")),
    "name": (("sum", lambda: OneBit().at("a")), ("sum", lambda: OneBit().at("b")), ("of 'a'", "of 'b'")),
    "users-own": (("sum", lambda: Own(1)), ("sum", lambda: Own(2.5)), ("Own(factor=1)", "Own(factor=2.5)")),
}


def _reduced(comm: X, way: str, op: str, codec: Codec) -> Any:
    """What a call leaves in the array in which the result is to be."""
    x = np.full((30, 40), comm.rank + 1, np.float32)
    try:
        if way == "reduce_scatter":
            compressor, key = (codec.compressor, codec.key) if isinstance(codec, Keyed) else (codec, "")
            return reduce_scatter_vector(comm, x.reshape(-1), op == "avg", compressor, key)
        if way == "pieces":  # as the hooks of torch do
            compressor, key = (codec.compressor, codec.key) if isinstance(codec, Keyed) else (codec, "")
            all_reduce_pieces(comm, Pieces(list(x)), op == "avg", compressor, key)
        elif way == "async":
            comm.all_reduce(x, op, compression=codec, async_op=True).wait()
        else:
            comm.all_reduce(x, op, compression=codec)
    except rl.errors.RingleaderError:
        assert (x == comm.rank + 1).all(), "something was written"
        raise
    return x


def _disagree_compressed(name: str, way: str, warm: bool) -> tuple[str, str]:
    comm, (usual, other, _) = rl.init(timeout=60), COMPRESSED[name]
    try:
        for _ in range(2 * warm):  # all ranks have called both: nothing is new
            for op, make in (usual, other):
                _reduced(comm, way, op, make())
        op, make = other if comm.rank == comm.size - 1 else usual
        _reduced(comm, way, op, make())
        comm.barrier()
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        comm.close()
    return "no error", ""


@pytest.fixture(scope="module", params=["shm", "tcp"])
def trio(request: pytest.FixtureRequest) -> Iterator[rl.WorkerGroup]:
    with rl.WorkerGroup(3, transport=request.param) as workers:
        yield workers


def _check_compressed(workers: rl.WorkerGroup, name: str, way: str, warm: bool) -> None:
    for kind, text in workers.run(_disagree_compressed, name, way, warm, timeout=150):
        assert kind == "MismatchError", text
        for part in (*COMPRESSED[name][2], "rank 0", f"rank {workers.size - 1}"):
            assert part in text, text


@pytest.mark.parametrize("warm", [False, True], ids=["at-first", "later"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_calls_that_differ(pair: Pair, name: str, warm: bool) -> None:
    _check_compressed(pair, name, "all_reduce", warm)


@pytest.mark.parametrize("warm", [False, True], ids=["at-first", "later"])
@pytest.mark.parametrize("name", ["operator", "class", "name", "momentum"])
@pytest.mark.parametrize("way", ["all_reduce", "async", "pieces", "reduce_scatter"])
def test_compressed_calls_that_differ_in_every_way(trio: rl.WorkerGroup, way: str, name: str, warm: bool) -> None:
    _check_compressed(trio, name, way, warm)


def _late() -> tuple[str, str, str]:
    """The last rank comes when the others have found out; and again."""
    comm, texts = rl.init(timeout=60), []
    if comm.rank == 2:
        time.sleep(1)
    for _ in range(2):
        try:
            comm.all_reduce(_f4(100), compression=ErrorFeedback(OneBit() if comm.rank == 0 else Int4()))
            texts.append("no error")
        except rl.errors.RingleaderError as error:
            texts += [f"{type(error).__name__}: {error}"]
    state = comm.state
    comm.close()
    return texts[0], texts[1], state


def test_who_comes_late_to_a_disagreement_is_told(trio: rl.WorkerGroup) -> None:
    for first, second, state in trio.run(_late, timeout=150):
        assert first.startswith("MismatchError")
        assert "OneBit(" in first
        assert "Int4(" in first
        assert second.startswith("AbortedError")
        assert state == "aborted"


def _alike() -> list[float]:
    """Differences that mean nothing: classes of numbers, seeds of random rounding."""
    comm, found = rl.init(timeout=60), []
    one = comm.rank == 0
    pairs = [
        (TopK(ratio=1), TopK(ratio=1.0)),
        (TopK(ratio=0.5, warmup_steps=np.int64(3)), TopK(ratio=np.float64(0.5), warmup_steps=3)),
        (QSGD(8, seed=1), QSGD(8, seed=2)),
        (PowerSGD(1, warm_start=False), PowerSGD(1, warm_start=np.bool_(False))),  # type: ignore[arg-type]
        (Int8().at("w"), Int8().at(np.str_("w"))),
        (FP16(), FP16().at("")),
    ]
    for first, second in pairs:
        found.append(float(comm.all_reduce(_f4(4), "sum", compression=first if one else second).sum()))
    comm.close()
    return found


def test_compressed_calls_that_are_alike(pair: Pair) -> None:
    for found in pair.run(_alike, timeout=150):
        assert found == [8, 4, 8, 8, 8, 8]


def _compressed_or_not() -> tuple[str, str]:
    """A plain call is no compressed one, also where the same number of bytes travels."""
    comm = rl.init(timeout=60)
    try:
        comm.all_reduce(_f4(100), compression=FP16() if comm.rank == 0 else None)
    except rl.errors.RingleaderError as error:
        return type(error).__name__, str(error)
    finally:
        comm.close()
    return "no error", ""


def test_a_compressed_call_meets_a_plain_one(pair: Pair) -> None:
    got = pair.run(_compressed_or_not, timeout=150)
    assert {kind for kind, _ in got} <= {"MismatchError", "AbortedError"}
    assert "compression FP16(" in got[0][1]
