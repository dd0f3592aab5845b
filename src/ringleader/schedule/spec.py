"""The rules that a schedule's table keeps: one list, each rule a small function whose docstring is the rule.

`check_spec` is about form only (what the native core may rely on when it reads a table); that a schedule does what its
collective promises is for `verify` to prove.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ScheduleError
from ringleader.schedule.algebra import expand
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Buffer, Collective

__all__ = ["MAX_MOVES", "RULES", "Finding", "check_spec", "find_violation"]

MAX_MOVES = 1 << 27
"""Most chunks that a schedule may move in all (sum of `count`), and most chunks that all its ranks may hold."""


class Finding(NamedTuple):
    """A broken rule: the offending transfer's place in the table (None: the schedule itself), and what is wrong."""

    row: int | None
    detail: str


Rule = Callable[[Schedule], Finding | None]

RULES: list[Rule] = []
"""All rules, in the order in which they are tried; later ones rely on earlier ones."""


def _rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def find_violation(schedule: Schedule) -> tuple[Rule, Finding] | None:
    """The first rule that the schedule breaks and the first place where it does, or None."""
    for rule in RULES:
        finding = rule(schedule)
        if finding is not None:
            return rule, finding
    return None


def check_spec(schedule: Schedule) -> None:
    """Raise unless the schedule keeps every rule.

    Raises
    ------
    ScheduleError
        Naming the first offending transfer (its place in the table and its content), the rule and what breaks it.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("all_reduce", n=2, chunks=1)
    >>> b.send(0, src=0, src_chunk=0, dst=2, reduce=True)
    >>> check_spec(b.build())
    Traceback (most recent call last):
    ...
    ringleader.errors.ScheduleError: transfer 0 (step 0: rank 0 data[0] -> reduce into rank 2 data[0], channel 0): \
dst_rank is 2; expected 0 to 1. Rule: ranks lie between 0 and n - 1.
    """
    found = find_violation(schedule)
    if found is None:
        return
    rule, finding = found
    where = repr(schedule) if finding.row is None else schedule.describe(finding.row)
    sentence = " ".join((rule.__doc__ or "").split())
    raise ScheduleError(f"{where}: {finding.detail}. Rule: {sentence[0].lower()}{sentence[1:]}")


def _first(bad: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(bad)) if bool(bad.any()) else None


def _range(schedule: Schedule, field: str, low: int, high: int) -> Finding | None:
    values = schedule.table[field]
    if not len(values) or (int(values.min()) >= low and int(values.max()) <= high):
        return None
    index = int(np.argmax((values < low) | (values > high)))
    return Finding(index, f"{field} is {values[index]}; expected {low} to {high}")


@_rule
def _root_exists(schedule: Schedule) -> Finding | None:
    """The root is one of the ranks, and 0 where the collective has none."""
    most = schedule.n - 1 if schedule.collective.rooted else 0
    return None if schedule.root <= most else Finding(None, f"root is {schedule.root}; expected 0 to {most}")


@_rule
def _blocks_divide(schedule: Schedule) -> Finding | None:
    """The number of chunks is a multiple of the number of blocks."""
    if schedule.chunks % schedule.blocks == 0:
        return None
    return Finding(None, f"{schedule.chunks} chunks cannot be divided into {schedule.blocks} blocks")


@_rule
def _barrier_has_one_chunk(schedule: Schedule) -> Finding | None:
    """A barrier has one chunk."""
    if schedule.collective is not Collective.BARRIER or schedule.chunks == 1:
        return None
    return Finding(None, f"it has {schedule.chunks} chunks")


@_rule
def _steps_from_zero(schedule: Schedule) -> Finding | None:
    """Steps are numbered from 0."""
    return _range(schedule, "step", 0, np.iinfo(np.int32).max)


@_rule
def _channels_from_zero(schedule: Schedule) -> Finding | None:
    """Channels are numbered from 0."""
    return _range(schedule, "channel", 0, np.iinfo(np.int16).max)


@_rule
def _ranks_exist(schedule: Schedule) -> Finding | None:
    """Ranks lie between 0 and n - 1."""
    return _range(schedule, "src_rank", 0, schedule.n - 1) or _range(schedule, "dst_rank", 0, schedule.n - 1)


@_rule
def _counts_are_positive(schedule: Schedule) -> Finding | None:
    """A transfer moves at least one chunk."""
    return _range(schedule, "count", 1, np.iinfo(np.int32).max)


@_rule
def _reduce_is_a_flag(schedule: Schedule) -> Finding | None:
    """The field reduce is 0 or 1, and 1 only in collectives that reduce."""
    return _range(schedule, "reduce", 0, int(schedule.collective.reduces))


@_rule
def _buffers_exist(schedule: Schedule) -> Finding | None:
    """Buffers are data and scratch, and in an all_to_all also input and output."""
    for end in ("src_buffer", "dst_buffer"):
        finding = _range(schedule, end, 0, int(Buffer.SCRATCH))
        if finding is None and schedule.collective is not Collective.ALL_TO_ALL:
            buffers = schedule.table[end]
            index = _first((buffers == Buffer.INPUT) | (buffers == Buffer.OUTPUT))
            if index is not None:
                name = Buffer(int(buffers[index])).name.lower()
                finding = Finding(index, f"{end} is {name}, which {schedule.collective} does not have")
        if finding is not None:
            return finding
    return None


@_rule
def _chunks_exist(schedule: Schedule) -> Finding | None:
    """A transfer's chunks lie between 0 and C - 1 at both ends; scratch has as many as are used."""
    table = schedule.table
    for end in ("src", "dst"):
        first = table[f"{end}_chunk"]
        past = (first.astype(np.int64) + table["count"] > schedule.chunks) & (table[f"{end}_buffer"] != Buffer.SCRATCH)
        index = _first((first < 0) | past)
        if index is not None:
            last = int(first[index]) + int(table["count"][index]) - 1
            span = f"{first[index]}" if last == first[index] else f"{first[index]} to {last}"
            return Finding(index, f"{end}_chunk is {span}; expected 0 to {schedule.chunks - 1}")
    return None


@_rule
def _bounded(schedule: Schedule) -> Finding | None:
    """A schedule moves at most 2^27 chunks, and its ranks hold at most as many."""
    moves = int(schedule.table["count"].clip(0).sum(dtype=np.int64))
    held = schedule.n * (3 * schedule.chunks if schedule.collective is Collective.ALL_TO_ALL else schedule.chunks)
    held += schedule.n * schedule.scratch_chunks
    for what, value in (("moves", moves), ("holds", held)):
        if value > MAX_MOVES:
            return Finding(None, f"it {what} {value} chunks")
    return None


@_rule
def _ends_do_not_overlap(schedule: Schedule) -> Finding | None:
    """A transfer within one rank and buffer has different, not overlapping, chunks at its ends."""
    table = schedule.table
    local = (table["src_rank"] == table["dst_rank"]) & (table["src_buffer"] == table["dst_buffer"])
    if not bool(local.any()):
        return None
    apart = np.abs(table["src_chunk"].astype(np.int64) - table["dst_chunk"])
    index = _first(local & (apart < table["count"]))
    return None if index is None else Finding(index, "its source and destination overlap")


@_rule
def _sizes_agree(schedule: Schedule) -> Finding | None:
    """Both ends of a transfer have the same index within their block, so that their sizes agree for every count."""
    m = schedule.chunks_per_block
    table = schedule.table
    if m == 1 or not len(table):
        return None
    scratch = (table["src_buffer"] == Buffer.SCRATCH) | (table["dst_buffer"] == Buffer.SCRATCH)
    index = _first(~scratch & ((table["src_chunk"] - table["dst_chunk"]) % m != 0))
    if index is not None:
        row = table[index]
        ends = f"{row['src_chunk'] % m} at the source and {row['dst_chunk'] % m} at the destination"
        return Finding(index, f"the index within the block is {ends}")
    return _scratch_sizes_agree(schedule) if bool(scratch.any()) else None


def _scratch_sizes_agree(schedule: Schedule) -> Finding | None:
    """A scratch chunk takes the index of what is written to it, and keeps it throughout the schedule."""
    moves, origin = expand(schedule.table)
    m, width = schedule.chunks_per_block, schedule.scratch_chunks
    ends = {}
    for end in ("src", "dst"):
        scratch = moves[f"{end}_buffer"] == Buffer.SCRATCH
        place = moves[f"{end}_rank"].astype(np.int64) * width + moves[f"{end}_chunk"]
        ends[end] = (scratch, np.where(scratch, place, 0), moves[f"{end}_chunk"] % m)
    (src_scratch, src_place, src_index), (dst_scratch, dst_place, dst_index) = ends["src"], ends["dst"]
    known = np.full(schedule.n * width, -1, np.int64)
    written = ~src_scratch & dst_scratch
    known[dst_place[written]] = src_index[written]
    # What is copied from scratch to scratch takes its index along: follow it until nothing new is learnt.
    onward = src_scratch & dst_scratch
    while bool(onward.any()):
        new = onward & (known[src_place] >= 0) & (known[dst_place] < 0)
        if not bool(new.any()):
            break
        known[dst_place[new]] = known[src_place[new]]
    src = np.where(src_scratch, known[src_place], src_index)
    dst = np.where(dst_scratch, known[dst_place], dst_index)
    row = _first((src != dst) & (src >= 0) & (dst >= 0))
    if row is None:
        return None
    return Finding(int(origin[row]), f"the index within the block is {src[row]} and {dst[row]}, one end being scratch")


@_rule
def _writes_do_not_collide(schedule: Schedule) -> Finding | None:
    """Within one step a chunk is written by one copy or by reduces, never by two copies or by both."""
    table = schedule.table
    if not len(table):
        return None
    # A transfer writes an interval of locations, of one rank and buffer. With one range of numbers for each step (of
    # steps without gaps, so that nothing overflows: 2^27 transfers, 2^29 locations) two transfers collide if their
    # intervals overlap and one of them copies.
    shift = np.int64(max(schedule.chunks, schedule.scratch_chunks))
    step = np.cumsum(np.diff(table["step"], prepend=table["step"][:1]) != 0)
    place = (table["dst_rank"].astype(np.int64) * 4 + table["dst_buffer"]) * shift + table["dst_chunk"]
    first = step * (np.int64(schedule.n) * 4 * shift) + place
    order = np.argsort(first, kind="stable")
    starts, copies = first[order], table["reduce"][order] == 0
    ends = starts + table["count"][order]
    # Does anything before it in this order, or a copy before it, reach beyond its start? What comes earlier in the
    # order starts earlier, so that is where they overlap.
    reach, copied = np.maximum.accumulate(ends), np.maximum.accumulate(np.where(copies, ends, 0))
    collided = np.zeros(len(table), bool)
    collided[1:] = (starts[1:] < copied[:-1]) | (copies[1:] & (starts[1:] < reach[:-1]))
    at = _first(collided)
    if at is None:
        return None
    before = order[:at][ends[:at] > starts[at]]
    if not copies[at]:
        before = before[table["reduce"][before] == 0]
    one, other = sorted((int(before.min()), int(order[at])))
    return Finding(other, f"it writes the same chunk as {schedule.describe(one)}")
