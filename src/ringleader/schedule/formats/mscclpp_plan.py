"""MSCCL++ execution plans (JSON) as they are written: operations of thread blocks, read safely, each with its path."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ringleader.errors import ScheduleError
from ringleader.schedule import Collective
from ringleader.schedule.formats.buffers import Memory, buffer_size, memory_of
from ringleader.schedule.formats.msccl_program import COLLECTIVES, MAX_CHUNKS, MAX_GPUS, MAX_MOVES, MAX_STEPS

__all__ = [
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "MAX_SIGNALS",
    "MAX_TEXT",
    "SIGNALS",
    "WAITS",
    "Channel",
    "Operation",
    "Plan",
    "fail",
    "parse",
]

MAX_TEXT = 1 << 22
"""Longest text that is read, in bytes: 4 MiB."""
MAX_CONTAINERS = 1 << 17
"""Most arrays and objects."""
MAX_DEPTH = 16
"""How deep they may be nested."""
MAX_SIGNALS = 1 << 16
"""Most channels, and most uses of channels by operations."""

# Operations that move data -> (most sources, most destinations).
_MOVES = {
    "copy": (1, 1),
    "put": (1, 64),
    "get": (1, 1),
    "re": (64, 1),
    "rre": (64, 1),
    "res": (64, 64),
    "rres": (64, 64),
}
SIGNALS = ("signal", "rlxsignal")
WAITS = ("wait", "rlxwait")
_IDLE = ("nop", "flush")
_KNOWN = (*_MOVES, *SIGNALS, *WAITS, *_IDLE, "barrier")


@dataclass(frozen=True)
class _Shape:
    collective: Collective
    n: int
    chunks: int
    root: int
    in_place: bool


class Channel(NamedTuple):
    """What a signal travels on: between two GPUs, by type, its number among those of the pair."""

    source: int
    target: int
    type: str
    number: int


@dataclass(slots=True)
class Operation:
    """One operation: its place in the text, what it reads and writes, and the signals it gives or takes."""

    path: str
    name: str
    rank: int
    block: int
    sources: list[list[Memory]]
    targets: list[list[Memory]]
    channels: list[Channel]
    barrier: tuple[int, int] | None = None  # its number and how many thread blocks it is for


def fail(source: str, path: str, what: str) -> NoReturn:
    """Raise the error of this reader: the place, then what is wrong there."""
    raise ScheduleError(f"{source}: {path}: {what}")


def parse(text: str | bytes, source: str) -> Any:
    """The JSON as Python objects, if it is not nested deeply."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        if text.count("{") + text.count("[") > MAX_CONTAINERS:
            fail(source, "$", f"there are more than {MAX_CONTAINERS} arrays and objects")
        depth = 0
        for bracket in re.finditer(r"[\[\]{}]", text):  # in strings too: no name of a plan has any
            depth += 1 if bracket[0] in "[{" else -1
            if depth > MAX_DEPTH:
                fail(source, "$", f"arrays and objects are nested more than {MAX_DEPTH} deep")
        return json.loads(text)
    except UnicodeDecodeError as error:
        fail(source, "$", f"the text is not UTF-8: {error}")
    except json.JSONDecodeError as error:
        fail(source, "$", f"the text is not JSON: {error}")
    except (ValueError, RecursionError) as error:
        if isinstance(error, ScheduleError):
            raise
        fail(source, "$", f"the text cannot be read: {error}")


# -------------------------------------------------------------------------------------------------- from JSON to a plan


class Plan:
    """A plan's operations, thread block by thread block; everything is checked when it is made."""

    def __init__(self, document: Any, source: str) -> None:
        self.source = source
        self.operations: list[Operation] = []
        self.moved = self.signals = 0
        top = self._is(document, dict, "$")
        gpus = self._member(top, "gpus", list, "$")
        n = len(gpus)
        if not 1 <= n <= MAX_GPUS:
            self.fail("$.gpus", f"it has {n} elements; expected 1 to {MAX_GPUS}")
        self.name = str(self._member(top, "name", str, "$", ""))[:200]
        coll = self._member(top, "collective", str, "$")
        if coll not in COLLECTIVES:
            self.fail("$.collective", f"{coll[:40]!r} cannot be expressed; those that can are {', '.join(COLLECTIVES)}")
        self.gpus = [self._is(gpu, dict, f"$.gpus[{rank}]") for rank, gpu in enumerate(gpus)]
        for rank in range(n):
            if self._integer(self.gpus[rank], "id", 0, n - 1, f"$.gpus[{rank}]") != rank:
                self.fail(f"$.gpus[{rank}].id", f"expected {rank}")
        self.limits = [
            {b: self._integer(gpu, f"{word}_chunks", 0, MAX_CHUNKS, f"$.gpus[{rank}]")
             for b, word in (("i", "input"), ("o", "output"), ("s", "scratch"))}
            for rank, gpu in enumerate(self.gpus)
        ]  # fmt: skip
        in_place = self._member(top, "inplace", bool, "$", False)
        self.shape = self._shape(COLLECTIVES[coll], n, in_place)
        self.channels = [self._channels(rank) for rank in range(n)]
        for rank, gpu in enumerate(self.gpus):
            blocks = self._member(gpu, "threadblocks", list, f"$.gpus[{rank}]")
            for block, content in enumerate(blocks):
                self._block(rank, block, self._is(content, dict, f"$.gpus[{rank}].threadblocks[{block}]"))

    def _shape(self, collective: Collective, n: int, in_place: bool) -> _Shape:
        short_input = collective in (Collective.ALL_GATHER, Collective.GATHER)
        chunks = max(limits["o" if short_input else "i"] for limits in self.limits)
        if not chunks and short_input:
            chunks = n * max(limits["i"] for limits in self.limits)
        if not chunks or (collective.blocked and chunks % n):
            self.fail("$.gpus", f"the whole data has {chunks} chunks; expected a multiple of the {n} blocks, above 0")
        return _Shape(collective, n, chunks, 0, in_place)

    def fail(self, path: str, what: str) -> NoReturn:
        """See `fail`."""
        fail(self.source, path, what)

    def _is(self, value: Any, kind: type, path: str) -> Any:
        names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
        if not isinstance(value, kind):
            shown = (
                repr(value)
                if not isinstance(value, dict | list)
                else "an object"
                if isinstance(value, dict)
                else "an array"
            )
            raise ScheduleError(f"{self.source}: {path} is {shown[:40]}; expected {names[kind]}")
        return value

    def _member(self, value: dict[str, Any], name: str, kind: type, path: str, default: Any = None) -> Any:
        if name not in value and default is not None:
            return default
        if name not in value:
            self.fail(path, f"member {name} is missing")
        return self._is(value[name], kind, f"{path}.{name}")

    def _integer(self, value: dict[str, Any], name: str, low: int, high: int, path: str) -> int:
        found = value.get(name)
        if type(found) is not int or not low <= found <= high:
            self.fail(f"{path}.{name}", f"it is {str(found)[:40]}; expected an integer from {low} to {high}")
        return found

    def _integers(self, value: dict[str, Any], name: str, high: int, path: str) -> list[int]:
        found = self._member(value, name, list, path)
        for index, item in enumerate(found):
            if type(item) is not int or not 0 <= item <= high:
                self.fail(f"{path}.{name}[{index}]", f"it is {str(item)[:40]}; expected an integer from 0 to {high}")
        return list(found)

    def _count_signals(self, count: int, path: str) -> None:
        self.signals += count
        if self.signals > MAX_SIGNALS:
            self.fail(path, f"there are more than {MAX_SIGNALS} channels and uses of them together")

    def _channels(self, rank: int) -> dict[str, list[tuple[int, int]]]:
        """For each type the channels of a GPU: the peer, and the channel's number among those of the pair."""
        path = f"$.gpus[{rank}].channels"
        result: dict[str, list[tuple[int, int]]] = {}
        for index, channel in enumerate(self._member(self.gpus[rank], "channels", list, f"$.gpus[{rank}]", [])):
            here = f"{path}[{index}]"
            self._is(channel, dict, here)
            kind = self._member(channel, "channel_type", str, here)
            if kind == "switch":
                self.fail(here, "switch channels (reductions within the switch) cannot be expressed as transfers")
            if kind not in ("memory", "port"):
                self.fail(f"{here}.channel_type", f"it is {kind[:40]!r}; expected memory or port")
            counted: dict[int, int] = {}
            peers = self._integers(channel, "connected_to", self.shape.n - 1, here)
            self._count_signals(len(peers), here)
            for peer in peers:
                number = counted.get(peer, 0)
                counted[peer] = number + 1
                result.setdefault(kind, []).append((peer, number))
        return result

    def _block(self, rank: int, block: int, content: dict[str, Any]) -> None:
        path = f"$.gpus[{rank}].threadblocks[{block}]"
        own: dict[str, list[int]] = {}
        for index, entry in enumerate(self._member(content, "channels", list, path, [])):
            here = f"{path}.channels[{index}]"
            kind = self._member(self._is(entry, dict, here), "channel_type", str, here)
            known = len(self.channels[rank].get(kind, ()))
            own.setdefault(kind, []).extend(self._integers(entry, "channel_ids", known - 1, here))
        remote: list[int] = []
        buffers = self._member(self.gpus[rank], "remote_buffers", list, f"$.gpus[{rank}]", [])
        for index, entry in enumerate(self._member(content, "remote_buffer_refs", list, path, [])):
            here = f"{path}.remote_buffer_refs[{index}]"
            remote += self._integers(self._is(entry, dict, here), "remote_buffer_ids", len(buffers) - 1, here)
        for index, operation in enumerate(self._member(content, "ops", list, path)):
            here = f"{path}.ops[{index}]"
            self._operation(self._is(operation, dict, here), here, rank, block, own, remote)

    def _operation(
        self, value: dict[str, Any], path: str, rank: int, block: int, own: dict[str, list[int]], remote: list[int]
    ) -> None:
        name = self._member(value, "name", str, path)
        if name not in _KNOWN:
            self.fail(path, f"operation {name[:40]!r} cannot be expressed; those that can are {', '.join(_KNOWN)}")
        if len(self.operations) >= MAX_STEPS:
            self.fail(path, f"there are more than {MAX_STEPS} operations")
        made = Operation(path, name, rank, block, [], [], [])
        if name in (*SIGNALS, *WAITS):
            kind = self._member(value, "channel_type", str, path)
            used = self._integers(value, "channel_ids", len(own.get(kind, ())) - 1, path)
            self._count_signals(len(used), path)
            for index in used:
                peer, number = self.channels[rank][kind][own[kind][index]]
                ends = (rank, peer) if name in SIGNALS else (peer, rank)
                made.channels.append(Channel(*ends, kind, number))
        elif name == "barrier":
            count = self._integer(value, "num_threadblocks", 1, MAX_STEPS, path)
            made.barrier = (self._integer(value, "barrier_id", 0, MAX_STEPS, path), count)
        elif name in _MOVES:
            if value.get("reduce_op", "sum") != "sum":
                self.fail(
                    f"{path}.reduce_op",
                    f"it is {value['reduce_op']!r}; a schedule leaves the operator to the call: sum",
                )
            made.sources = self._ranges(value, "src_buff", path, rank, remote, _MOVES[name][0])
            made.targets = self._ranges(value, "dst_buff", path, rank, remote, _MOVES[name][1])
            sizes = {len(chunks) for chunks in made.sources + made.targets}
            if len(sizes) != 1:
                self.fail(path, f"its ranges have {', '.join(map(str, sorted(sizes)))} chunks; expected equal numbers")
            if len(made.sources) > 1 and not self.shape.collective.reduces:
                self.fail(path, f"it combines {len(made.sources)} sources, but {self.shape.collective} reduces nothing")
        self.operations.append(made)

    def _ranges(
        self, value: dict[str, Any], name: str, path: str, rank: int, remote: list[int], most: int
    ) -> list[list[Memory]]:
        found = self._member(value, name, list, path)
        if not 1 <= len(found) <= most:
            self.fail(f"{path}.{name}", f"it has {len(found)} elements; expected 1 to {most}")
        result = []
        for index, entry in enumerate(found):
            here = f"{path}.{name}[{index}]"
            self._is(entry, dict, here)
            owner, buffer = rank, entry.get("type")
            if "buffer_id" in entry:
                which = remote[self._integer(entry, "buffer_id", 0, len(remote) - 1, here)]
                path_there = f"$.gpus[{rank}].remote_buffers[{which}]"
                there = self._is(self.gpus[rank]["remote_buffers"][which], dict, path_there)
                owner = self._integer(there, "rank", 0, self.shape.n - 1, path_there)
                buffer = there.get("type")
            if buffer not in ("i", "o", "s"):
                self.fail(here, f"its buffer is {str(buffer)[:40]!r}; expected i, o or s")
            size = buffer_size(self.shape, buffer)
            limit = self.limits[owner][buffer] if size is None else min(size, max(self.limits[owner][buffer], 0))
            first, count = (
                self._integer(entry, "index", 0, MAX_CHUNKS, here),
                self._integer(entry, "size", 1, MAX_CHUNKS, here),
            )
            if first + count > limit:
                self.fail(here, f"chunks {first} to {first + count - 1} of {buffer}, of which GPU {owner} has {limit}")
            self.moved += count
            if self.moved > MAX_MOVES:
                self.fail(here, f"the operations move more than {MAX_MOVES} chunks together")
            result.append([memory_of(self.shape, owner, buffer, first + i) for i in range(count)])
        return result
