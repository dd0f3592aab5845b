"""Random all_reduces, right by construction and odd in every other way: verified, executed, lowered and proved."""

from __future__ import annotations

import itertools
import random

import pytest
from test_schedule_samples import I64, SUM, expected, random_inputs, run, same

from ringleader.schedule import Builder, Schedule, verify

try:
    from ringleader import _core

    LOWERS = hasattr(_core, "lower")
except ImportError:
    LOWERS = False

Place = tuple[int, str, int]  # rank, buffer, chunk


class RandomAllReduce:
    """Everybody keeps a copy of its data in scratch; then noise; then a random tree for each chunk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.n, self.chunks = self.rng.randint(2, 6), self.rng.randint(1, 3)
        self.builder = Builder("all_reduce", self.n, self.chunks)
        self.held = {self.place(rank, 0, chunk): {rank} for rank in range(self.n) for chunk in range(self.chunks)}
        self.step = 0

    def place(self, rank: int, slot: int, chunk: int) -> Place:
        """Slot 0 is data; slot 1, never overwritten, the copy of it; others are for noise."""
        return (rank, "data", chunk) if slot == 0 else (rank, "scratch", (slot - 1) * self.chunks + chunk)

    def send(self, step: int, source: Place, target: Place, reduce: bool) -> None:
        (src, src_buffer, src_chunk), (dst, dst_buffer, dst_chunk) = source, target
        channel = self.rng.randrange(2)
        self.builder.send(step, src, src_chunk, dst, dst_chunk, 1, reduce, channel, src_buffer, dst_buffer)

    def build(self) -> Schedule:
        for rank in range(self.n):
            for chunk in range(self.chunks):
                self.send(0, self.place(rank, 0, chunk), self.place(rank, 1, chunk), reduce=False)
                self.held[self.place(rank, 1, chunk)] = {rank}
        self.step = 1
        for _ in range(self.rng.randint(0, 5)):
            self.noise()
        for chunk in range(self.chunks):
            self.tree(chunk)
        return self.builder.build()

    def noise(self) -> None:
        """One step of random copies and reduces of what is there, each contribution at most once."""
        written: dict[Place, bool] = {}
        after: dict[Place, set[int]] = {}
        for _ in range(self.rng.randint(1, 2 * self.n)):
            chunk = self.rng.randrange(self.chunks)
            source = self.rng.choice([place for place in self.held if place[2] % self.chunks == chunk])
            target = self.place(self.rng.randrange(self.n), self.rng.choice([0, 2, 3]), chunk)
            reduce = self.rng.random() < 0.6
            if source == target or (target in written and not (reduce and written[target])):
                continue
            before = after.get(target, self.held.get(target, set())) if reduce else set()
            if before & self.held[source]:
                continue
            written[target], after[target] = reduce, before | self.held[source]
            self.send(self.step, source, target, reduce)
        self.held |= after
        self.step += self.rng.randint(1, 2)

    def tree(self, chunk: int) -> None:
        step, root = self.step, self.rng.randrange(self.n)
        self.send(step, self.place(root, 1, chunk), self.place(root, 0, chunk), reduce=False)
        for group in self.groups(root):
            step += 1
            for rank in group:
                self.send(step, self.place(rank, 1, chunk), self.place(root, 0, chunk), reduce=True)
        have = [root]
        for group in self.groups(root):
            step += 1
            for rank, source in [(rank, self.rng.choice(have)) for rank in group]:
                self.send(step, self.place(source, 0, chunk), self.place(rank, 0, chunk), reduce=False)
            have += group

    def groups(self, root: int) -> list[list[int]]:
        """All ranks but the root, in random order, in random groups."""
        others = [rank for rank in range(self.n) if rank != root]
        self.rng.shuffle(others)
        cuts = sorted({0, len(others), *(self.rng.randrange(len(others)) for _ in range(2))})
        return [others[a:b] for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize("block", range(4))
def test_random_schedules(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        schedule = RandomAllReduce(seed).build()
        for mode in ("exact", "fingerprint"):
            verify(schedule, mode=mode, lowered=False).raise_if_failed()
        inputs = random_inputs(schedule, 7, seed)
        assert same(run(schedule, inputs, I64, SUM, native=False), expected(schedule, inputs)), seed


@pytest.mark.skipif(not LOWERS, reason="the native core is not built: lowering cannot be checked")
@pytest.mark.parametrize("block", range(4))
def test_random_schedules_lowered(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        schedule = RandomAllReduce(seed).build()
        verify(schedule, seed=seed).raise_if_failed()
        nodes = [random.Random(seed).randrange(3) for _ in range(schedule.n)]
        verify(schedule, nodes=nodes, seed=seed).raise_if_failed()
