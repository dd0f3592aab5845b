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

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Buffer, Collective

__all__ = ["DRAWS", "Places", "Replay", "Required", "blocks_of_ranks", "initial", "required"]

DRAWS = 2
PRIME = np.uint64((1 << 61) - 1)
LOW, WEIGHT, MIX, EXTRA = 0, 1, 2, 3  # columns; EXTRA is ORIGIN in exact mode, the first draw in fingerprint mode
NOBODY = np.uint64(1 << 40)  # LOW of an empty location
MANY = np.uint64(1 << 40)  # WEIGHT stops here; above every number of ranks
MIXED = np.uint64(1 << 40)  # ORIGIN of contributions from different chunks
PIECE = 1 << 18  # chunks moved at once: what is at hand for them fits the caches

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


def blocks_of_ranks(schedule: Schedule) -> Iterator[range]:
    """All ranks, so many at a time that their chunks fit the caches."""
    together = max(1, PIECE // schedule.chunks)
    for first in range(0, schedule.n, together):
        yield range(first, min(first + together, schedule.n))


def initial(schedule: Schedule, places: Places, ranks: range | None = None) -> tuple[Index, Index, Index]:
    """Locations of these ranks (or all) that are valid at the start, and the rank and chunk they are contributions of.

    In ascending order.
    """
    ranks = range(schedule.n) if ranks is None else ranks
    m, collective = schedule.chunks_per_block, schedule.collective
    rank, chunk = (array.reshape(-1) for array in np.indices((len(ranks), schedule.chunks)))
    rank += ranks.start
    if collective in (Collective.BROADCAST, Collective.SCATTER):
        keep = rank == schedule.root
    elif collective in (Collective.ALL_GATHER, Collective.GATHER):
        keep = chunk // m == rank
    else:
        keep = np.ones(len(rank), bool)
    buffer = Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
    rank, chunk = rank[keep], chunk[keep]
    return places.of(rank, buffer, chunk), rank, chunk


def required(schedule: Schedule, places: Places, ranks: range | None = None) -> Required:
    """What the collective promises these ranks, or all; the table in docs/schedule.md."""
    ranks = range(schedule.n) if ranks is None else ranks
    m, collective = schedule.chunks_per_block, schedule.collective
    rank, chunk = (array.reshape(-1) for array in np.indices((len(ranks), schedule.chunks)))
    rank += ranks.start
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
        columns = EXTRA + 1 if self.exact else EXTRA + DRAWS
        self.rows: U64 = np.zeros((self.places.total, columns), np.uint64)
        self.rows[:, LOW] = NOBODY
        self.counts: Counts | None = None
        self.symbols: U64 | None = None  # drawn for each rank and chunk, where they are looked for one by one
        self.sums: U64 = np.zeros((schedule.chunks, DRAWS), np.uint64)  # of all contributions to each chunk
        if not self.exact and not schedule.collective.reduces:
            self.symbols = np.zeros((schedule.n, schedule.chunks, DRAWS), np.uint64)
        elif schedule.collective is Collective.BARRIER:
            self.counts = np.zeros((self.places.total, (schedule.n + 63) // 64), np.uint64)
        elif self.exact:
            self.counts = np.zeros((self.places.total, schedule.n), np.uint32)
        rng = np.random.default_rng(seed)
        for ranks in blocks_of_ranks(schedule):
            self._fill(rng, *initial(schedule, self.places, ranks))
        self._run()

    def _fill(self, rng: np.random.Generator, place: Index, rank: Index, chunk: Index) -> None:
        """Put single contributions into some locations."""
        if not len(place):
            return
        # A slice, if they lie side by side, is much quicker.
        side_by_side = int(place[-1] - place[0]) == len(place) - 1
        where = slice(int(place[0]), int(place[-1]) + 1) if side_by_side else place
        self.rows[where, LOW] = rank
        self.rows[where, WEIGHT] = 1
        self.rows[where, MIX] = rng.integers(0, 1 << 64, len(place), np.uint64)
        if self.counts is None:
            drawn = rng.integers(0, int(PRIME), (len(place), DRAWS), np.uint64)
            self.rows[where, EXTRA:] = drawn
            if self.symbols is not None:
                self.symbols[rank, chunk] = drawn
                return
            for row in drawn.reshape(-1, self.schedule.chunks, DRAWS):  # a reduction's ranks have all chunks
                sums = self.sums + row
                self.sums = np.minimum(sums, sums - PRIME)
        elif self.schedule.collective is Collective.BARRIER:
            self.counts[place, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
        else:
            self.counts[place, rank] = 1
            self.rows[place, EXTRA] = chunk

    def _run(self) -> None:
        table = self.schedule.table
        if not len(table):
            return
        starts = np.flatnonzero(np.diff(table["step"], prepend=-1))
        moves = np.add.reduceat(table["count"], starts, dtype=np.int64)
        ends = np.append(starts[1:], len(table))
        batch = (np.cumsum(moves) - 1) // PIECE
        batch[moves > PIECE] = -1  # on its own: it may have to be cut
        firsts = np.flatnonzero((np.diff(batch, prepend=-2) != 0) | (batch < 0))
        for first, last in zip(firsts, np.append(firsts[1:], len(starts)) - 1, strict=True):
            rows = np.arange(starts[first], ends[last])
            if last > first or not self._cut(rows, int(moves[first])):
                spans = table[rows]
                self._steps(rows, spans["src_chunk"], spans["dst_chunk"], spans["count"])

    def _cut(self, rows: Index, moves: int) -> bool:
        """Run a large step piece by piece, each some of the chunks; False if it cannot be cut or need not be.

        With one block and no scratch both ends of a transfer are the same chunk, so what happens to one chunk does not
        depend on the others, and a piece may write before the next one reads. Small pieces stay in the caches, and
        their memory is used again and again.
        """
        pieces = -(-moves // PIECE)
        if pieces == 1 or self.schedule.blocks > 1 or self.schedule.scratch_chunks or len(rows) * pieces > moves:
            return False
        table = self.schedule.table[rows]
        first = table["src_chunk"]
        end = first + table["count"]
        edges = np.linspace(0, self.schedule.chunks, pieces + 1).astype(np.int32)
        for low, high in itertools.pairwise(edges):
            lows, highs = np.maximum(first, low), np.minimum(end, high)
            some = lows < highs
            if some.any():
                self._steps(rows[some], lows[some], lows[some], (highs - lows)[some])
        return True

    def _steps(self, rows: Index, src_chunk: Index, dst_chunk: Index, count: Index) -> None:
        """Run steps: transfers of the table, from and to these chunks."""
        table = self.schedule.table[rows]
        # The chunks of a transfer lie side by side at both ends.
        source = self.places.of(table["src_rank"], table["src_buffer"], src_chunk)
        target = self.places.of(table["dst_rank"], table["dst_buffer"], dst_chunk)
        reduce, steps = table["reduce"].astype(bool), table["step"]
        if int(count.max()) > 1:
            before = np.cumsum(count, dtype=np.int64) - count
            offset = np.arange(int(count.sum())) - np.repeat(before, count)
            source, target = np.repeat(source, count) + offset, np.repeat(target, count) + offset
            reduce, steps, rows = np.repeat(reduce, count), np.repeat(steps, count), np.repeat(rows, count)
        changes = np.diff(steps, prepend=-1) != 0
        starts = np.flatnonzero(changes)
        reducing = np.add.reduceat(reduce, starts, dtype=np.int64)
        # Steps in which several transfers write one location need the general fold.
        step = np.cumsum(changes) - 1
        keys = np.sort(step * self.places.total + target)
        crowded = np.zeros(len(starts), bool)
        crowded[keys[1:][keys[1:] == keys[:-1]] // self.places.total] = True
        for i, (start, end) in enumerate(zip(starts, [*starts[1:], len(steps)], strict=True)):
            part = slice(start, end)
            self._step(rows[part], source[part], target[part], reduce[part], bool(reducing[i]), bool(crowded[i]))

    def _step(
        self, rows_of: Index, src: Index, dst: Index, reduce: NDArray[np.bool_], reducing: bool, crowded: bool
    ) -> None:
        """Run (a piece of) one step: all reads before all writes."""
        rows, counts = self._take(src)
        empty = rows[:, WEIGHT] == 0
        if empty.any():
            self.missing.extend(int(index) for index in np.unique(rows_of[empty]))
        if not reducing:
            self._put(dst, rows, counts)
            return
        adds = reduce & ~empty
        whole = bool(adds.all())
        to, new, add = (dst, rows, counts) if whole else (dst[adds], rows[adds], _at(counts, adds))
        if crowded:
            to, new, add = self._fold(to, new, add)
        else:
            own, mine = self._take(to)
            new, add = self._combine(own, mine, new, add)
        self._put(to, new, add)
        if not whole:
            copies = ~reduce
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
        # Nothing is empty here, so LOW is a rank.
        order = np.argsort(place * self.schedule.n + rows[:, LOW].astype(np.int64), kind="stable")
        place, rows, counts = place[order], rows[order], _at(counts, order)
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        sizes = np.diff(starts, append=len(place))
        result, total = rows[starts], _at(counts, starts)
        fewest = int(sizes.min(initial=len(place)))
        for k in range(1, int(sizes.max(initial=1))):
            if k < fewest:  # all have one more
                result, total = self._combine(result, total, rows[starts + k], _at(counts, starts + k))
                continue
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
