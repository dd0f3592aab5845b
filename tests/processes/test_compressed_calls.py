"""Compressed all-reduce as a call: beside the caller, after failures, only where it pays, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from compress_support import PLAIN, WITH_MEMORY, EveryThird, equal_state, gradient, same_bits

import ringleader as rl
from ringleader import errors
from ringleader.compress import BF16, FP16, ErrorFeedback, Int8, OneBit, PowerSGD, RandomK, TopK
from ringleader.runtime.compressed import all_reduce_vector, pays

_comm: rl.Communicator | None = None


def world() -> rl.Communicator:
    """This process's communicator, over sockets."""
    global _comm
    if _comm is None or _comm.state != "live":
        _comm = rl.init(timeout=60)
    return _comm


@pytest.fixture(scope="module")
def pair() -> Iterator[rl.WorkerGroup]:
    workers = rl.WorkerGroup(2, transport="tcp")
    yield workers
    workers.close(force=True)


@pytest.fixture(scope="module")
def trio() -> Iterator[rl.WorkerGroup]:
    workers = rl.WorkerGroup(3, transport="tcp")
    yield workers
    workers.close(force=True)


# ---------------------------------------------------------------- async_op


def beside() -> list[str]:
    """Names of those whose results beside the caller, with other collectives between, have other bits."""
    comm, wrong = world(), []
    for name, make in WITH_MEMORY.items():
        straight, codec = make(), make()
        for step in range(3):
            xs = [gradient(777 + i, step, comm.rank) for i in range(3)]
            want = [comm.all_reduce(x.copy(), "avg", compression=straight.at(str(i))) for i, x in enumerate(xs)]
            works = [comm.all_reduce(x, "avg", compression=codec.at(str(i)), async_op=True) for i, x in enumerate(xs)]
            between = comm.all_reduce(np.full(5, comm.rank + 1.0))
            if not (between == comm.size * (comm.size + 1) / 2).all():
                wrong.append(f"{name}: another collective")
            got = [work.wait(timeout=30) for work in works]
            if not all(work.is_completed() and work.exception() is None for work in works):
                wrong.append(f"{name}: states")
            if not all(a is x and same_bits(a, b) for a, b, x in zip(got, want, xs, strict=True)):
                wrong.append(name)
        # A call that waits comes after those that were started.
        x, y = gradient(50, 9, comm.rank), gradient(50, 9, comm.rank)
        comm.all_reduce(y, "sum", compression=straight.at("last"))
        comm.all_reduce(y, "sum", compression=straight.at("last"))
        work = comm.all_reduce(x, "sum", compression=codec.at("last"), async_op=True)
        work.result()
        comm.all_reduce(x, "sum", compression=codec.at("last"))
        if not same_bits(x, y) or not equal_state(straight.state_dict(), codec.state_dict()):
            wrong.append(f"{name}: order")
    return wrong


def test_beside_the_caller_gives_the_same_bits(trio: rl.WorkerGroup) -> None:
    assert trio.run(beside, timeout=150) == [[]] * 3


def counted() -> tuple[int, bool]:
    comm, x = world(), gradient(100_000, 0, world().rank)
    comm.all_reduce(x, compression=FP16(), async_op=True).wait()
    before = comm.counters()["bytes_sent_net"]
    work = comm.all_reduce(x, compression=FP16(), async_op=True)
    return work.wait().size and comm.counters()["bytes_sent_net"] - before, work.result() is x


def test_what_is_sent_beside_the_caller_is_counted(pair: rl.WorkerGroup) -> None:
    for sent, same in pair.run(counted):
        assert 200_000 <= sent < 210_000
        assert same


def late() -> list[str]:
    """The error of a call whose peer does not come, given to the one who waits; the end while one is in flight."""
    comm, texts = world().split(0), []
    assert comm is not None
    x = gradient(1000, 0, comm.rank)
    comm.all_reduce(x, compression=OneBit(), async_op=True).wait()
    if comm.rank == 0:
        work = comm.all_reduce(x, compression=OneBit(), async_op=True, timeout=0.3)
        try:
            work.wait()
        except errors.CollectiveTimeout as error:
            texts.append(str(error))
        assert isinstance(work.exception(), errors.CollectiveTimeout)
    comm.barrier()  # the communicator of the others is alive
    comm.close()
    return texts


def test_an_error_beside_the_caller_is_raised_by_wait(pair: rl.WorkerGroup) -> None:
    first, second = pair.run(late)
    assert len(first) == 1
    assert second == []


# ---------------------------------------------------------------- failures


def repeated() -> list[str]:
    """Names of those for which a step that failed and was done again, with new ranks, has other bits."""
    comm, wrong = world().split(0), []
    assert comm is not None
    codecs = {name: make() for name, make in {**PLAIN, **WITH_MEMORY}.items()}
    codecs |= {f"{name} with memory": make() for name, make in WITH_MEMORY.items()}
    straight = {name: make() for name, make in {**PLAIN, **WITH_MEMORY}.items()}
    straight |= {f"{name} with memory": make() for name, make in WITH_MEMORY.items()}
    for name in codecs:
        for each in (codecs[name], straight[name]):
            comm.all_reduce(gradient(700, 0, comm.rank), "avg", compression=each.at("w"))
    if comm.rank == 0:
        try:  # the others do not come
            comm.all_reduce(gradient(700, 1, 0), "avg", compression=codecs["onebit with memory"].at("w"), timeout=0.3)
            wrong.append("did not fail")
        except errors.CollectiveTimeout:
            pass
    world().barrier()
    # Each fails after it has compressed, at its first exchange.
    comm.abort("a failure for the test")
    for name, codec in codecs.items():
        before, x = codec.state_dict(), gradient(700, 1, comm.rank)
        try:
            all_reduce_vector(comm, x, True, codec, "w", out=x)
            wrong.append(f"{name} did not fail")
        except errors.AbortedError:
            pass
        if not equal_state(before, codec.state_dict()) or not same_bits(x, gradient(700, 1, comm.rank)):
            wrong.append(f"{name}: memory")
    again = comm.shrink()
    for name in codecs:
        for step in (1, 2):
            a, b = (gradient(700, step, again.rank) for _ in range(2))
            again.all_reduce(a, "avg", compression=codecs[name].at("w"))
            again.all_reduce(b, "avg", compression=straight[name].at("w"))
            if not same_bits(a, b):
                wrong.append(name)
    again.close()
    return wrong


def test_a_failed_call_can_be_repeated(trio: rl.WorkerGroup) -> None:
    assert trio.run(repeated, timeout=150) == [[]] * 3


def out_of_step(name: str) -> Any:
    """Rank 0 is a step ahead, as after a failure that it did not see."""
    comm = world()
    codec: Any = {"randomk": lambda: RandomK(ratio=0.1), "warm-up": lambda: TopK(ratio=0.01, warmup_steps=5)}[name]()
    if comm.rank == 0:
        codec.compress(np.ones(1000, np.float32), "w")
    return [comm.all_reduce(np.ones(1000, np.float32), "sum", compression=codec.at("w")) for _ in range(3)]


@pytest.mark.parametrize("name", ["randomk", "warm-up"])
def test_ranks_agree_on_the_step(trio: rl.WorkerGroup, name: str) -> None:
    for results in trio.run(out_of_step, name):
        for x in results:
            assert set(np.unique(x)) == {0, 3}, "all ranks take the same places"


# ---------------------------------------------------------------- users' own, and when compression does not pay


class OnlyIfItPays(EveryThird):
    always_compressed = False

    def __init__(self, seconds_per_byte: float) -> None:
        super().__init__()
        self.seconds_per_byte = seconds_per_byte


def seeded(kind: str) -> str:
    comm = world()
    codec = RandomK(k=3, seed=comm.rank) if kind == "RandomK" else PowerSGD(seed=comm.rank)
    try:
        comm.all_reduce(gradient(100, 0, comm.rank), "avg", compression=codec)
    except errors.InvalidArgument as error:
        return str(error)
    return "nothing was wrong"


@pytest.mark.parametrize("kind", ["RandomK", "PowerSGD"])
def test_seeds_that_differ_are_refused_by_all(pair: rl.WorkerGroup, kind: str) -> None:
    for rank, text in enumerate(pair.run(seeded, kind)):
        assert f"seeds of the ranks' {kind} differ (this rank has {rank})" in text


def adaptive() -> list[bool]:
    comm, exact = world(), []
    for speed in (1e-12, 1.0):
        x = gradient(3_000_000, 0, comm.rank)
        plain = comm.all_reduce(x.copy(), "avg")
        exact.append(same_bits(plain, comm.all_reduce(x, "avg", compression=OnlyIfItPays(speed))))
    return exact


def test_not_always_compressed_means_where_it_pays(pair: rl.WorkerGroup) -> None:
    assert pair.run(adaptive) == [[False, True]] * 2


def by_size() -> list[list[bool]]:
    """Of a built-in compressor, with memory, for growing arrays; and whether what was sent is exact."""
    comm, found = world(), []
    for elements in (10, 1000, 100_000, 3_000_000):
        codec = ErrorFeedback(OneBit())
        codec.compressor.always_compressed = False
        x = gradient(elements, 0, comm.rank)
        want = comm.all_reduce(x.copy(), "avg")
        compresses = pays(comm, codec, elements)
        exact = same_bits(want, comm.all_reduce(x, "avg", compression=codec))
        found.append([compresses, exact, bool(codec.error("", elements).any())])
    return found


def test_small_arrays_do_not_pay(pair: rl.WorkerGroup) -> None:
    for found in pair.run(by_size):
        assert [compresses for compresses, _, _ in found] == sorted(compresses for compresses, _, _ in found)
        assert found[0][0] is False
        assert found[-1][0] is True
        for compresses, exact, remembers in found:
            assert exact == (not compresses)
            assert remembers == compresses


# ---------------------------------------------------------------- what is refused


def wrong() -> list[str]:
    comm, texts = world(), []
    x = np.ones(4, np.float32)
    for call in (
        lambda: comm.all_reduce(x, "max", compression=FP16()),
        lambda: comm.all_reduce(x, compression="fp16"),
        lambda: comm.all_reduce(x, compression=FP16(), wire="bf16"),
        lambda: comm.all_reduce(np.ones(4, np.int32), compression=FP16(), async_op=True),
        lambda: comm.all_reduce(x, out=np.ones(5, np.float32), compression=FP16()),
    ):
        try:
            call()
        except errors.RingleaderError as error:
            texts.append(str(error))
    return texts


def test_wrong_calls_are_refused_before_anything_is_sent(pair: rl.WorkerGroup) -> None:
    for texts in pair.run(wrong):
        assert len(texts) == 5
        wanted = ("'sum' or 'avg'", "expected a compressor", "cannot be combined", "int32", "out has shape (5,)")
        assert all(part in text for part, text in zip(wanted, texts, strict=True)), texts


def test_one_rank_gets_its_input_back() -> None:
    with rl.init(rank=0, size=1) as comm:
        x = gradient(100, 0)
        for make in (*PLAIN.values(), Int8, BF16):
            assert same_bits(x, comm.all_reduce(x.copy(), compression=make()))
            assert same_bits(x, comm.all_reduce(x.copy(), compression=make(), async_op=True).wait())
