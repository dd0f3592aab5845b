"""Hand-built schedules for the tests of this room, and the proof by the reference executor that they are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ringleader.executors import run
from ringleader.schedule import Buffer, Builder, Collective, Schedule

I64, SUM = 7, 0


def ring_reduce_scatter(n: int) -> Schedule:
    b = Builder("reduce_scatter", n, chunks=n)
    step, rank = np.ogrid[: n - 1, :n]
    b.send(step, src=rank, src_chunk=(rank - step - 1) % n, dst=(rank + 1) % n, reduce=True)
    return b.build("ring")


def ring(n: int) -> Schedule:
    half = ring_reduce_scatter(n)
    return half >> half.reversed()


def binomial_broadcast(n: int, root: int = 0) -> Schedule:
    b = Builder("broadcast", n, chunks=1)
    step, reach = 0, 1
    while reach < n:
        for rank in range(min(reach, n - reach)):
            b.send(step, src=rank, src_chunk=0, dst=rank + reach)
        step, reach = step + 1, 2 * reach
    return b.build("binomial").with_root(root)


def tree(n: int) -> Schedule:
    half = binomial_broadcast(n)
    return half.reversed() >> half


def doubling(n: int) -> Schedule:
    """Recursive doubling; n is a power of two."""
    b = Builder("all_reduce", n, chunks=1)
    rank = np.arange(n)
    for step in range(n.bit_length() - 1):
        b.send(step, src=rank, src_chunk=0, dst=rank ^ (1 << step), reduce=True)
    return b.build("doubling")


def one_shot(n: int) -> Schedule:
    b = Builder("all_reduce", n, chunks=1)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    b.send(0, src=src, src_chunk=0, dst=dst, reduce=True)
    return b.build("one-shot")


def two_shot(n: int) -> Schedule:
    b = Builder("reduce_scatter", n, chunks=n)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    b.send(0, src=src, src_chunk=dst, dst=dst, reduce=True)
    half = b.build("two-shot")
    return half >> half.reversed()


def through_scratch(n: int) -> Schedule:
    """Everybody sends its vector into scratch of rank 0, which adds one after the other and sends the sum back."""
    b = Builder("all_reduce", n, chunks=2)
    for rank in range(1, n):
        b.send(0, src=rank, src_chunk=0, dst=0, dst_chunk=2 * rank - 2, count=2, dst_buffer="scratch")
        b.send(rank, src=0, src_chunk=2 * rank - 2, dst=0, dst_chunk=0, count=2, reduce=True, src_buffer="scratch")
        b.send(n, src=0, src_chunk=0, dst=rank, count=2)
    return b.build("through scratch")


def linear_gather(n: int, root: int = 0) -> Schedule:
    b = Builder("gather", n, chunks=2 * n, root=root)
    others = np.delete(np.arange(n), root)
    b.send(0, src=others, src_chunk=2 * others, dst=root, count=2)
    return b.build("linear")


def direct_all_to_all(n: int) -> Schedule:
    b = Builder("all_to_all", n, chunks=n)
    shift, rank = np.ogrid[:n, :n]
    to = (rank + shift) % n
    b.send(shift, src=rank, src_chunk=to, dst=to, dst_chunk=rank, src_buffer="input", dst_buffer="output")
    return b.build("direct")


def dissemination(n: int) -> Schedule:
    b = Builder("barrier", n, chunks=1)
    rank = np.arange(n)
    for step in range((n - 1).bit_length()):
        b.send(step, src=rank, src_chunk=0, dst=(rank + (1 << step)) % n, reduce=True)
    return b.build("dissemination")


SAMPLES: dict[str, Callable[[], Schedule]] = {
    "ring": lambda: ring(4),
    "ring of three, two channels": lambda: ring(3).split(2, [[0, 1, 2], [2, 1, 0]]),
    "pipelined ring": lambda: ring(3).pipelined(2),
    "tree": lambda: tree(5),
    "doubling": lambda: doubling(4),
    "one-shot": lambda: one_shot(4),
    "two-shot": lambda: two_shot(4),
    "through scratch": lambda: through_scratch(3),
    "reduce_scatter": lambda: ring_reduce_scatter(4),
    "all_gather": lambda: ring_reduce_scatter(4).reversed(),
    "broadcast": lambda: binomial_broadcast(6, root=2),
    "reduce": lambda: binomial_broadcast(6, root=2).reversed(),
    "gather": lambda: linear_gather(4, root=1),
    "scatter": lambda: linear_gather(4, root=1).reversed(),
    "all_to_all": lambda: direct_all_to_all(4),
}


def random_inputs(schedule: Schedule, count: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Data that differs in every element; sums of different sets of it differ (but for a chance of 2^-60)."""
    rng = np.random.default_rng(seed)
    collective = schedule.collective
    blocks = {Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL}
    size = count * schedule.n if collective in blocks else count
    return [rng.integers(-(1 << 62), 1 << 62, size) for _ in range(schedule.n)]


def expected(schedule: Schedule, inputs: list[NDArray[np.int64]]) -> list[NDArray[np.int64] | None]:
    """What the collective promises, computed without a schedule."""
    n, root, collective = schedule.n, schedule.root, schedule.collective
    total = np.sum(inputs, axis=0)
    count = len(inputs[0]) // n
    own = [slice(rank * count, (rank + 1) * count) for rank in range(n)]
    if collective is Collective.ALL_REDUCE:
        return [total] * n
    if collective is Collective.REDUCE:
        return [total if rank == root else None for rank in range(n)]
    if collective is Collective.REDUCE_SCATTER:
        return [total[own[rank]] for rank in range(n)]
    if collective is Collective.BROADCAST:
        return [inputs[root]] * n
    if collective is Collective.SCATTER:
        return [inputs[root][own[rank]] for rank in range(n)]
    if collective is Collective.ALL_TO_ALL:
        return [np.concatenate([inputs[source][own[rank]] for source in range(n)]) for rank in range(n)]
    everything = np.concatenate(inputs)
    return [everything if collective is Collective.ALL_GATHER or rank == root else None for rank in range(n)]


def same(got: list[NDArray[np.int64] | None], want: list[NDArray[np.int64] | None]) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 16])
def test_reference_executor_gives_what_the_collective_promises(name: str, count: int) -> None:
    schedule = SAMPLES[name]()
    inputs = random_inputs(schedule, count)
    kept = [array.copy() for array in inputs]
    assert same(run(schedule, inputs, I64, SUM, native=False), expected(schedule, inputs))
    assert same(inputs, kept)


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("make", [ring, tree, one_shot, two_shot, through_scratch, direct_all_to_all])
def test_every_number_of_ranks(make: Callable[[int], Schedule], n: int) -> None:
    schedule = make(n)
    inputs = random_inputs(schedule, 13, seed=n)
    assert same(run(schedule, inputs, I64, SUM, native=False), expected(schedule, inputs))


def test_scratch_is_used() -> None:
    assert through_scratch(3).scratch_chunks == 4
    assert set(np.unique(through_scratch(3).table["src_buffer"])) == {Buffer.DATA, Buffer.SCRATCH}
