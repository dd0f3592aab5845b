"""Schedules as MSCCL algorithm XML.

Every GPU has a thread block for each peer that it sends to and for each that it receives from, by channel, and one for
what it does alone; so no send ever stands in the way of a receive. What a step must not overtake it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from ringleader._names import unknown
from ringleader.errors import ScheduleError
from ringleader.schedule import Buffer, Collective, Schedule, check_spec
from ringleader.schedule.replay import Places, initial

__all__ = ["MAX_BLOCKS", "MAX_CHANNELS", "MAX_COUNT", "MAX_PEERS", "MAX_STEPS", "PROTOCOLS", "dumps"]

# What MSCCL's executor can hold (its own constants).
MAX_STEPS = 256
"""Steps of a thread block."""
MAX_BLOCKS = 216
"""Thread blocks of a GPU."""
MAX_PEERS = 32
"""Thread blocks of a GPU that send on one channel, and as many that receive."""
MAX_CHANNELS = 32
MAX_COUNT = 71
"""Chunks that one step moves."""
PROTOCOLS = ("Simple", "LL", "LL128")

_NAMES = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "alltoall",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
    Collective.GATHER: "gather",
    Collective.SCATTER: "scatter",
}
_INTO_OUTPUT = (Collective.ALL_GATHER, Collective.GATHER)

Chunks = tuple[str, int]  # buffer i, o or s, and first chunk


def dumps(
    schedule: Schedule,
    name: str = "",
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> str:
    """Write a schedule as an MSCCL algorithm.

    Parameters
    ----------
    schedule
        Any valid one, but for barriers, which MSCCL does not have.
    name
        Default: the schedule's.
    protocol
        NCCL's protocol: ``"Simple"``, ``"LL"`` or ``"LL128"``.
    min_bytes, max_bytes
        The sizes that MSCCL's scheduler is to use it for.

    Raises
    ------
    ScheduleError
        The schedule breaks a rule, or is beyond one of MSCCL's limits; the message names it.

    Examples
    --------
    >>> from ringleader.algorithms import build
    >>> from ringleader.schedule.formats import msccl
    >>> ring = build("all_reduce", "ring", 4)
    >>> msccl.loads(dumps(ring)) == ring
    True
    """
    if protocol not in PROTOCOLS:
        raise ScheduleError(unknown("protocol", protocol, PROTOCOLS))
    if schedule.collective not in _NAMES:
        raise ScheduleError(f"{schedule!r}: MSCCL has no {schedule.collective}")
    check_spec(schedule)
    writer = _Writer(schedule)
    writer.run()
    _check_limits(schedule, writer.gpus)
    in_place = schedule.collective is not Collective.ALL_TO_ALL
    lines = [
        f'<algo name={quoteattr(name or schedule.name or "schedule")} proto="{protocol}" '
        f'nchannels="{max(schedule.channels, 1)}" nchunksperloop="{schedule.chunks}" ngpus="{schedule.n}" '
        f'coll="{_NAMES[schedule.collective]}" inplace="{int(in_place)}" outofplace="{int(not in_place)}" '
        f'minBytes="{min_bytes}" maxBytes="{max_bytes}"' + (f' root="{schedule.root}"' if schedule.root else "") + ">",
        *(line for rank, gpu in enumerate(writer.gpus) for line in _gpu_lines(schedule, rank, gpu)),
        "</algo>",
    ]
    return "\n".join(lines) + "\n"


@dataclass
class _Step:
    type: str
    src: Chunks
    dst: Chunks
    count: int
    waits: list[tuple[int, int]]  # (thread block, its step in `steps`)
    awaited: bool = False


@dataclass
class _Block:
    send: int
    recv: int
    channel: int
    steps: list[_Step] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)  # thread block -> its last step that is known to be over


@dataclass
class _Gpu:
    """Thread blocks of a GPU, and who wrote and read each chunk last: (thread block, step)."""

    blocks: list[_Block] = field(default_factory=list)
    number: dict[tuple[str, int, int], int] = field(default_factory=dict)
    written: dict[Chunks, tuple[int, int]] = field(default_factory=dict)
    read: dict[Chunks, list[tuple[int, int]]] = field(default_factory=dict)
    scratch: int = 0

    def block(self, kind: str, peer: int, channel: int) -> int:
        key = (kind, peer, channel)
        if key not in self.number:
            self.number[key] = len(self.blocks)
            self.blocks.append(_Block(peer if kind == "send" else -1, peer if kind == "receive" else -1, channel))
        return self.number[key]

    def add(self, block: int, kind: str, src: Chunks, dst: Chunks, count: int) -> None:
        """A step, with what it has to wait for: earlier accesses to its chunks by other thread blocks."""
        reads = _span(src, count) if kind in ("s", "cpy", "re") else []
        writes = _span(dst, count) if kind != "s" else []
        if kind in ("re", "rrc"):
            reads = [*reads, *writes]
        earlier = [self.written[chunk] for chunk in (*reads, *writes) if chunk in self.written]
        earlier += [access for chunk in writes for access in self.read.get(chunk, ())]
        owner = self.blocks[block]
        latest: dict[int, int] = {}
        for other, step in earlier:
            if other != block and step > owner.seen.get(other, -1):
                latest[other] = max(step, latest.get(other, -1))
        owner.seen.update(latest)
        for other, step in latest.items():
            self.blocks[other].steps[step].awaited = True
        me = (block, len(owner.steps))
        owner.steps.append(_Step(kind, src, dst, count, sorted(latest.items())))
        for chunk in reads:
            self.read.setdefault(chunk, []).append(me)
        for chunk in writes:
            self.written[chunk] = me
            self.read.pop(chunk, None)
        for buffer, first in (src, dst):
            if buffer == "s":
                self.scratch = max(self.scratch, first + count)


def _span(first: Chunks, count: int) -> list[Chunks]:
    return [(first[0], first[1] + i) for i in range(count)]


class _Writer:
    """Goes through a schedule step by step."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.gpus = [_Gpu() for _ in range(schedule.n)]
        self.places = Places(schedule)
        self.filled = np.zeros(self.places.total, bool)
        self.filled[initial(schedule, self.places)[0]] = True
        # An all_to_all's data is work space: it comes before the schedule's own scratch.
        self.work_space = schedule.chunks if schedule.collective is Collective.ALL_TO_ALL else 0

    def run(self) -> None:
        """Sends first, which read the state before the step; then what GPUs do alone; then what arrives."""
        table = self.schedule.table
        starts = np.flatnonzero(np.diff(table["step"], prepend=-1))
        for start, end in pairwise([*starts, len(table)]):
            rows = [row for whole in table[start:end] for row in self._small(whole)]
            local = [row for row in rows if row["src_rank"] == row["dst_rank"]]
            messages = [row for row in rows if row["src_rank"] != row["dst_rank"]]
            for row in messages:
                gpu, peer = self.gpus[int(row["src_rank"])], int(row["dst_rank"])
                block = gpu.block("send", peer, int(row["channel"]))
                gpu.add(block, "s", self._chunks(row, "src"), self._chunks(row, "dst"), _count(row))
            self._local(local)
            for row in messages:
                gpu, peer = self.gpus[int(row["dst_rank"])], int(row["src_rank"])
                block, target = gpu.block("receive", peer, int(row["channel"])), self._chunks(row, "dst")
                if self._arrives(row):
                    gpu.add(block, "rrc", target, target, _count(row))
                else:
                    gpu.add(block, "r", self._chunks(row, "src"), target, _count(row))

    def _local(self, rows: list[np.void]) -> None:
        """Copies and reduces within GPUs. What another of them overwrites is put aside first."""
        written = {
            (int(row["dst_rank"]), *chunk) for row in rows for chunk in _span(self._chunks(row, "dst"), _count(row))
        }
        aside: dict[int, int] = {}
        sources = []
        for row in rows:
            rank, source = int(row["src_rank"]), self._chunks(row, "src")
            if any((rank, *chunk) in written for chunk in _span(source, _count(row))):
                shift = aside.get(rank, 0)
                aside[rank] = shift + _count(row)
                room = ("s", self.work_space + self.schedule.scratch_chunks + shift)
                gpu = self.gpus[rank]
                gpu.add(gpu.block("alone", -1, 0), "cpy", source, room, _count(row))
                source = room
            sources.append(source)
        for row, source in zip(rows, sources, strict=True):
            gpu = self.gpus[int(row["src_rank"])]
            kind = "re" if self._arrives(row) else "cpy"
            gpu.add(gpu.block("alone", -1, 0), kind, source, self._chunks(row, "dst"), _count(row))

    def _small(self, row: np.void) -> Iterator[np.void]:
        """A transfer as several of at most `MAX_COUNT` chunks.

        Reduces into chunks that are empty are cut into single chunks: of several, the first is a copy.
        """
        whole = not row["reduce"] or bool(self.filled[self._targets(row)].all())
        most = MAX_COUNT if whole else 1
        for start in range(0, _count(row), most):
            part = row.copy()
            part["src_chunk"] += start
            part["dst_chunk"] += start
            part["count"] = min(most, _count(row) - start)
            yield part

    def _arrives(self, row: np.void) -> bool:
        """Note that a transfer's destination is filled; True if it is combined with what is there."""
        places = self._targets(row)
        combined = bool(row["reduce"]) and bool(self.filled[places].all())
        self.filled[places] = True
        return combined

    def _targets(self, row: np.void) -> NDArray[np.int64]:
        chunks = np.arange(int(row["dst_chunk"]), int(row["dst_chunk"]) + _count(row))
        return self.places.of(np.full(len(chunks), row["dst_rank"]), int(row["dst_buffer"]), chunks)

    def _chunks(self, row: np.void, end: str) -> Chunks:
        buffer, chunk = int(row[f"{end}_buffer"]), int(row[f"{end}_chunk"])
        if buffer == Buffer.SCRATCH:
            return "s", self.work_space + chunk
        if buffer == Buffer.DATA:
            if self.work_space:
                return "s", chunk
            return "o" if self.schedule.collective in _INTO_OUTPUT else "i", chunk
        return "i" if buffer == Buffer.INPUT else "o", chunk


def _count(row: np.void) -> int:
    return int(row["count"])


def _expanded(block: _Block) -> list[_Step]:
    """The steps as they are written: of several waits all but the last are steps of their own that do nothing else."""
    return [step for step in block.steps for _ in range(max(len(step.waits), 1))]


def _check_limits(schedule: Schedule, gpus: list[_Gpu]) -> None:
    def refuse(what: str, found: int, most: int) -> None:
        if found > most:
            raise ScheduleError(f"{schedule!r}: {what} is {found}; MSCCL takes at most {most}")

    refuse("the number of channels", schedule.channels, MAX_CHANNELS)
    for rank, gpu in enumerate(gpus):
        refuse(f"the number of thread blocks of GPU {rank}", len(gpu.blocks), MAX_BLOCKS)
        for kind in ("send", "receive"):
            channels = [channel for (what, _, channel) in gpu.number if what == kind]
            most = max((channels.count(channel) for channel in set(channels)), default=0)
            refuse(f"the number of peers that GPU {rank} has to {kind} on one channel", most, MAX_PEERS)
        for block in gpu.blocks:
            refuse(f"the number of steps of a thread block of GPU {rank}", len(_expanded(block)), MAX_STEPS)


def _gpu_lines(schedule: Schedule, rank: int, gpu: _Gpu) -> Iterator[str]:
    chunks = schedule.chunks
    inputs = 0 if schedule.collective in _INTO_OUTPUT else chunks
    outputs = chunks if schedule.collective in (*_INTO_OUTPUT, Collective.ALL_TO_ALL) else 0
    yield f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{gpu.scratch}">'
    # Where each step is once steps that only wait are written out.
    last: list[list[int]] = []
    for block in gpu.blocks:
        last.append((np.cumsum([max(len(step.waits), 1) for step in block.steps]) - 1).tolist())
    for number, block in enumerate(gpu.blocks):
        yield f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">'
        index = 0
        for step in block.steps:
            waits = [(other, last[other][at]) for other, at in step.waits] or [(-1, -1)]
            for other, at in waits[:-1]:
                yield _step_line(index, "nop", ("i", -1), ("o", -1), 0, other, at, False)
                index += 1
            yield _step_line(index, step.type, step.src, step.dst, step.count, *waits[-1], step.awaited)
            index += 1
        yield "    </tb>"
    yield "  </gpu>"


def _step_line(
    index: int, kind: str, src: Chunks, dst: Chunks, count: int, block: int, step: int, awaited: bool
) -> str:
    ends = f'srcbuf="{src[0]}" srcoff="{src[1]}" dstbuf="{dst[0]}" dstoff="{dst[1]}" cnt="{count}"'
    waits = f'depid="{block}" deps="{step}" hasdep="{int(awaited)}"'
    return f'      <step s="{index}" type="{kind}" {ends} {waits}/>'
