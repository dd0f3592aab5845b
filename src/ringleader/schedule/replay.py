"""Replay of a schedule on symbols instead of numbers: which contributions does each chunk end with, in what order?

A *location* is one chunk of one buffer of one rank. Each holds a row of 64-bit columns:

- LOW, the lowest contributing rank: the order of the operands of a fold;
- WEIGHT, how many contributions, with repetition, saturating; 0 means that the location is empty;
- MIX, the value under an operation that is commutative but not associative: two chunks have the same MIX (but for
  a chance of about 2^-60) exactly if their contributions were combined in the same association, so that floating-point
  results are bitwise identical;
- in fingerprint mode DRAWS columns: the sum of random elements, one for each contribution, of the field of integers
  modulo the prime 2^61 - 1. A wrong set of at most n contributions has the right sum with probability 2^-61 in each
  draw (its difference is a linear form that is not zero). WEIGHT makes sure that there are no more than that.
- in exact mode ORIGIN, the chunk that the contributions come from (MIXED if not one), and beside the row how often each
  rank contributes. A barrier, where contributions may repeat, has the set of contributing ranks instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.schedule.algebra import expand
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Buffer, Collective

__all__ = ["DRAWS", "Places", "Replay", "Required", "initial", "required"]

DRAWS = 2
PRIME = np.uint64((1 << 61) - 1)
LOW, WEIGHT, MIX, EXTRA = 0, 1, 2, 3  # columns; EXTRA is ORIGIN in exact mode, the first draw in fingerprint mode
NOBODY = np.uint64(1 << 40)  # LOW of an empty location
MANY = np.uint64(1 << 40)  # WEIGHT stops here; above every number of ranks
MIXED = np.uint64(1 << 40)  # ORIGIN of contributions from different chunks

U64 = NDArray[np.uint64]
Index = NDArray[np.int64]
Counts = NDArray[np.unsignedinteger]


class Places:
    """Numbers of locations: rank by rank, and within a rank buffer by buffer."""

    def __init__(self, schedule: Schedule) -> None:
        chunks = schedule.chunks
        ends = chunks if schedule.collective is Collective.ALL_TO_ALL else 0
        sizes = np.array([chunks, ends, ends, schedule.scratch_chunks], np.int64)
        self.starts = np.cumsum(sizes) - sizes
        self.width = int(sizes.sum())
        self.total = self.width * schedule.n

    def of(self, rank: Index, buffer: Index | int, chunk: Index) -> Index:
        """Location of each (rank, buffer, chunk); arguments are broadcast together."""
        result: Index = np.asarray(rank, np.int64) * self.width + self.starts[buffer] + chunk
        return result

    def text(self, place: int) -> str:
        """A location in words."""
        rank, rest = divmod(int(place), self.width)
        buffer = int(np.searchsorted(self.starts, rest, side="right")) - 1
        return f"rank {rank} {Buffer(buffer).name.lower()}[{rest - int(self.starts[buffer])}]"


class Required(NamedTuple):
    """What must be where at the end: arrays of one length."""

    place: Index
    rank: Index  # whose contribution; -1 = everybody's
    chunk: Index  # of which chunk


def initial(schedule: Schedule, places: Places) -> tuple[Index, Index, Index]:
    """Locations that are valid at the start, with the rank and the chunk that each is a contribution of."""
    n, m, collective = schedule.n, schedule.chunks_per_block, schedule.collective
    rank, chunk = (array.reshape(-1) for array in np.indices((n, schedule.chunks)))
    if collective in (Collective.BROADCAST, Collective.SCATTER):
        keep = rank == schedule.root
    elif collective in (Collective.ALL_GATHER, Collective.GATHER):
        keep = chunk // m == rank
    else:
        keep = np.ones(len(rank), bool)
    buffer = Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
    rank, chunk = rank[keep], chunk[keep]
    return places.of(rank, buffer, chunk), rank, chunk


def required(schedule: Schedule, places: Places) -> Required:
    """What the collective promises; the table in docs/schedule.md."""
    n, m, collective = schedule.n, schedule.chunks_per_block, schedule.collective
    rank, chunk = (array.reshape(-1) for array in np.indices((n, schedule.chunks)))
    if collective in (Collective.REDUCE, Collective.GATHER):
        keep = rank == schedule.root
    elif collective in (Collective.REDUCE_SCATTER, Collective.SCATTER):
        keep = chunk // m == rank
    else:
        keep = np.ones(len(rank), bool)
    rank, chunk = rank[keep], chunk[keep]
    if collective is Collective.ALL_TO_ALL:
        source, origin = chunk // m, rank * m + chunk % m
        return Required(places.of(rank, Buffer.OUTPUT, chunk), source, origin)
    if collective.reduces:
        source = np.full(len(rank), -1)
    elif collective in (Collective.ALL_GATHER, Collective.GATHER):
        source = chunk // m
    else:
        source = np.full(len(rank), schedule.root)
    return Required(places.of(rank, Buffer.DATA, chunk), source, chunk)


class Replay:
    """Runs a schedule (which keeps the spec) on symbols; `missing` are the transfers that read an empty chunk."""

    def __init__(self, schedule: Schedule, exact: bool, seed: int) -> None:
        self.schedule = schedule
        self.places = Places(schedule)
        self.exact = exact or schedule.collective is Collective.BARRIER
        self.missing: list[int] = []
        rng = np.random.default_rng(seed)
        place, rank, chunk = initial(schedule, self.places)
        columns = EXTRA + 1 if self.exact else EXTRA + DRAWS
        self.rows: U64 = np.zeros((self.places.total, columns), np.uint64)
        self.rows[:, LOW] = NOBODY
        self.rows[place, LOW] = rank
        self.rows[place, WEIGHT] = 1
        self.rows[place, MIX] = rng.integers(0, 1 << 64, len(place), np.uint64)
        self.counts: Counts | None = None
        self.symbols: U64 | None = None
        if not self.exact:
            self.symbols = np.zeros((schedule.n, schedule.chunks, DRAWS), np.uint64)
            self.symbols[rank, chunk] = rng.integers(0, int(PRIME), (len(place), DRAWS), np.uint64)
            self.rows[place, EXTRA:] = self.symbols[rank, chunk]
        elif schedule.collective is Collective.BARRIER:
            self.counts = np.zeros((self.places.total, (schedule.n + 63) // 64), np.uint64)
            self.counts[place, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
        else:
            self.counts = np.zeros((self.places.total, schedule.n), np.uint32)
            self.counts[place, rank] = 1
            self.rows[place, EXTRA] = chunk
        self._run()

    def _run(self) -> None:
        moves, origin = expand(self.schedule.table)
        if not len(moves):
            return
        source = self.places.of(moves["src_rank"], moves["src_buffer"], moves["src_chunk"])
        target = self.places.of(moves["dst_rank"], moves["dst_buffer"], moves["dst_chunk"])
        reduce = moves["reduce"].astype(bool)
        changes = np.diff(moves["step"], prepend=-1) != 0
        starts = np.flatnonzero(changes)
        reducing = np.add.reduceat(reduce, starts, dtype=np.int64)
        # Steps in which several transfers write one location need the general fold.
        step = np.cumsum(changes) - 1
        keys = np.sort(step * self.places.total + target)
        crowded = np.zeros(len(starts), bool)
        crowded[keys[1:][keys[1:] == keys[:-1]] // self.places.total] = True
        for i, (start, end) in enumerate(zip(starts, [*starts[1:], len(moves)], strict=True)):
            src, dst = source[start:end], target[start:end]
            rows, counts = self._take(src)
            empty = rows[:, WEIGHT] == 0
            if empty.any():
                self.missing.extend(int(index) for index in np.unique(origin[start:end][empty]))
            if reducing[i] == 0:
                self._put(dst, rows, counts)
                continue
            adds = reduce[start:end] & ~empty
            whole = bool(adds.all())
            to, new, add = (dst, rows, counts) if whole else (dst[adds], rows[adds], _at(counts, adds))
            if crowded[i]:
                to, new, add = self._fold(to, new, add)
            else:
                own, mine = self._take(to)
                new, add = self._combine(own, mine, new, add)
            self._put(to, new, add)
            if not whole:
                copies = ~reduce[start:end]
                self._put(dst[copies], rows[copies], _at(counts, copies))

    def _take(self, place: Index) -> tuple[U64, Counts | None]:
        return self.rows.take(place, axis=0), None if self.counts is None else self.counts.take(place, axis=0)

    def _put(self, place: Index, rows: U64, counts: Counts | None) -> None:
        self.rows[place] = rows
        if self.counts is not None and counts is not None:
            self.counts[place] = counts

    def _combine(self, a: U64, a_counts: Counts | None, b: U64, b_counts: Counts | None) -> tuple[U64, Counts | None]:
        """a with b, which is not empty, combined; row by row."""
        result = a + b
        np.minimum(a[:, LOW], b[:, LOW], out=result[:, LOW])
        np.minimum(result[:, WEIGHT], MANY, out=result[:, WEIGHT])
        result[:, MIX] = _mix(result[:, MIX])
        if self.exact:
            result[:, EXTRA] = np.where(a[:, EXTRA] == b[:, EXTRA], a[:, EXTRA], MIXED)
        else:
            sums = result[:, EXTRA:]
            # Both are below the prime. Where the sum is, subtracting it wraps round to something huge.
            result[:, EXTRA:] = np.minimum(sums, sums - PRIME)
        empty = a[:, WEIGHT] == 0
        if empty.any():
            result[empty] = b[empty]
        if a_counts is None or b_counts is None:
            return result, None
        return result, a_counts | b_counts if self.schedule.collective is Collective.BARRIER else a_counts + b_counts

    def _fold(self, place: Index, rows: U64, counts: Counts | None) -> tuple[Index, U64, Counts | None]:
        """Left fold of everything that is reduced into each location, its own content included."""
        targets = np.unique(place)
        own, mine = self._take(targets)
        there = own[:, WEIGHT] > 0
        place = np.concatenate([targets[there], place])
        rows = np.concatenate([own[there], rows])
        if counts is not None and mine is not None:
            counts = np.concatenate([mine[there], counts])
        order = np.lexsort((rows[:, LOW], place))
        place, rows, counts = place[order], rows[order], _at(counts, order)
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        sizes = np.diff(starts, append=len(place))
        result, total = rows[starts], _at(counts, starts)
        for k in range(1, int(sizes.max(initial=1))):
            longer = np.flatnonzero(sizes > k)
            at = starts[longer] + k
            result[longer], part = self._combine(result[longer], _at(total, longer), rows[at], _at(counts, at))
            if total is not None and part is not None:
                total[longer] = part
        return place[starts], result, total


def _at(counts: Counts | None, index: NDArray[np.generic]) -> Counts | None:
    return None if counts is None else counts[index]


def _mix(sums: U64) -> U64:
    """A bijection of 64-bit integers that scatters them (the finaliser of SplitMix64)."""
    z: U64 = sums + np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
