"""The flight recorder's memory and files, read. What they are made of: native/core/recorder.hpp.

Files may have been left by a process that was killed, or come from another machine, so nothing in them is trusted: a
record that is torn or makes no sense is left out, and a file of another format is refused by name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import InvalidArgument
from ringleader.runtime.dtypes import DTYPE_NAMES, op_name
from ringleader.runtime.wire import WIRE_CODES
from ringleader.schedule import Collective

__all__ = ["SUFFIX", "Operation", "Recording", "parse", "read_recordings"]

SUFFIX = ".flight"

_MAGIC = b"RFLIGHT1"
# magic; sizes of header, record, description; capacity; size of strings; rank, size, pid; time of day; two readings of
# both clocks; numbers of operations and messages; bytes of strings, end; host, group, cause
_HEADER = struct.Struct("<8s5I3iqQQQQQQII64s512s1024s")
_INFO = struct.Struct("<QQQdi4B6q2B2xI40s")
_RECORD = struct.Struct(f"<Q{_INFO.size}sQQQQII")
_LENGTH = struct.Struct("<I")

_KINDS = {**{each.code: each.value for each in Collective}, 100: "send", 101: "recv"}
_STATES = {1: "queued", 2: "running", 3: "done", 4: "failed"}
_ROOTED = {each.code for each in (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)}
_ENDS = ("live", "failed", "closed")
_WIRES = {code: name for name, code in WIRE_CODES.items()}
_NO_SHAPE = 255


@dataclass(frozen=True)
class Operation:
    """One collective or message, as one rank called it.

    Attributes
    ----------
    number
        Collectives of a communicator are numbered from 1, equally on all ranks; messages on their own.
    kind
        The collective's name, ``"send"`` or ``"recv"``.
    dtype, shape, count
        Element type, shape (None: not told), and elements, per block where a collective has blocks; messages: bytes.
    op, root, algorithm, wire
        Operator, root or None, algorithm with parameters and protocol, wire format; ``""`` where there is none.
    identity
        A hash of algorithm, protocol and schedule.
    peer, tag
        Of messages; peer -1: any rank.
    site
        Where the program called it, ``"file:line in function"``; ``""``: it was over before it was worth finding out.
    state
        ``"running"``, ``"done"`` or ``"failed"``.
    queued, begun, ended
        Seconds since 1970; None: not, not yet, or not known.
    """

    number: int
    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    count: int
    op: str
    root: int | None
    algorithm: str
    identity: int
    wire: str
    peer: int | None
    tag: int | None
    site: str
    state: str
    queued: float | None
    begun: float | None
    ended: float | None

    @property
    def collective(self) -> bool:
        """Whether all ranks take part, which a message's sender and receiver do alone."""
        return self.peer is None

    def text(self) -> str:
        """In words: ``"all_reduce #12 of float32 (2, 3), sum"``."""
        if self.peer is not None:
            whom = "any rank" if self.peer < 0 else f"rank {self.peer}"
            way = "to" if self.kind == "send" else "from"
            return f"{self.kind} #{self.number} {way} {whom}, tag {self.tag}, {self.count} bytes"
        if self.kind == "barrier":
            return f"barrier #{self.number}"
        number = f"{self.count} element" + ("" if self.count == 1 else "s")
        shape = f"{self.shape}" if self.shape is not None else number
        more = [self.op] if self.op else []
        if self.root is not None:
            more.append(f"root {self.root}")
        return ", ".join([f"{self.kind} #{self.number} of {self.dtype} {shape}", *more])


@dataclass(frozen=True)
class Recording:
    """What one rank has recorded of one communicator.

    Attributes
    ----------
    rank, size
        In the communicator.
    members
        Ranks of the job, by rank of the communicator.
    job, group
        Equal for all ranks of one start; the communicator's name.
    host, pid
        The process.
    end, cause
        ``"live"``, ``"failed"`` or ``"closed"`` when it was read or the process ended, and why it failed.
    read
        The last moment that the recording knows of, seconds since 1970.
    operations, messages
        The last ones, in the order in which they were begun.
    """

    rank: int
    size: int
    members: tuple[int, ...]
    job: str
    group: str
    host: str
    pid: int
    end: str
    cause: str
    read: float
    operations: tuple[Operation, ...]
    messages: tuple[Operation, ...]

    @property
    def name(self) -> str:
        """``"rank 2 (host b, pid 42)"``, as in error messages."""
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _ranks(text: str, size: int) -> tuple[int, ...]:
    """Members from ``"0-3,8"``."""
    ranks: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            ranks += range(int(first), min(int(last or first), int(first) + size) + 1)
    except ValueError:
        ranks = []
    return tuple(ranks) if len(ranks) == size else tuple(range(size))


def parse(data: bytes, what: str = "the recording") -> Recording:
    """Read what a recorder has written.

    Parameters
    ----------
    data
        A whole file, or what `_core.Communicator.recorded` returns.
    what
        What to call it in errors.

    Raises
    ------
    InvalidArgument
        If it is not one, or of another version.
    """
    if not data.startswith(_MAGIC) or len(data) < _HEADER.size:
        raise InvalidArgument(
            f"{what} is no recording of the flight recorder: it begins with {data[:8]!r}, expected {_MAGIC!r}"
        )
    (
        _, header, record, info, capacity, strings, rank, size, pid, offset, first_ticks, first_ns, last_ticks, last_ns,
        _, _, used, end, host, group, cause,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    expected = header + 2 * capacity * record + strings
    if (record, info) != (_RECORD.size, _INFO.size) or len(data) != expected or rank not in range(size):
        raise InvalidArgument(
            f"{what} is damaged, or of another version: {len(data)} bytes with records of {record} and rank {rank} of "
            f"{size}; expected {expected} bytes with records of {_RECORD.size}"
        )
    rate = (last_ns - first_ns) / (last_ticks - first_ticks) if last_ticks > first_ticks else 1.0

    def when(ticks: int) -> float | None:
        return None if ticks == 0 else (offset + last_ns + (ticks - last_ticks) * rate) * 1e-9

    texts = data[expected - strings : expected - strings + min(used, strings)]

    def site(number: int) -> str:
        if not 0 < number <= len(texts) - _LENGTH.size:
            return ""
        (length,) = _LENGTH.unpack_from(texts, number - 1)
        return texts[number - 1 + _LENGTH.size : number - 1 + _LENGTH.size + length].decode(errors="replace")

    def records(first: int) -> Iterator[Operation]:
        for at in range(first, first + capacity * record, record):
            version, raw, _, queued, begun, ended, place, state = _RECORD.unpack_from(data, at)
            (
                sequence, count, identity, _, root, kind, dtype, op, ndim, *shape, wire, _, _, algorithm
            ) = _INFO.unpack(raw)  # fmt: skip
            if version != sequence + 1 or kind not in _KINDS or state not in _STATES:
                continue  # empty, or torn
            message = kind >= 100
            yield Operation(
                number=sequence,
                kind=_KINDS[kind],
                dtype=DTYPE_NAMES[dtype] if dtype < len(DTYPE_NAMES) else f"type {dtype}",
                shape=None if ndim == _NO_SHAPE else tuple(shape[:ndim]),
                count=count,
                op=op_name(op),
                root=root if kind in _ROOTED else None,
                algorithm=_text(algorithm),
                identity=identity,
                wire=_WIRES.get(wire, "") if wire else "",
                peer=root if message else None,
                tag=shape[0] if message else None,
                site=site(place),
                state=_STATES[state],
                queued=when(queued),
                begun=when(begun),
                ended=when(ended),
            )

    job, name, members = (*_text(group).split("\n"), "", "", "")[:3]
    return Recording(
        rank=rank,
        size=size,
        members=_ranks(members, size),
        job=job,
        group=name,
        host=_text(host),
        pid=pid,
        end=_ENDS[end] if end < len(_ENDS) else "live",
        cause=_text(cause) if end == 1 else "",
        read=(offset + last_ns) * 1e-9,
        operations=tuple(sorted(records(header), key=lambda each: each.number)),
        messages=tuple(sorted(records(header + capacity * record), key=lambda each: each.number)),
    )


def read_recordings(folder: str | Path) -> list[Recording]:
    """All recordings in a folder (``RINGLEADER_RECORDER_DIR``), of running processes too.

    Raises
    ------
    InvalidArgument
        If there is no such folder, none in it, or one that is damaged.
    """
    where = Path(folder)
    if not where.is_dir():
        raise InvalidArgument(f"{str(where)!r} is no folder; expected the one that RINGLEADER_RECORDER_DIR named")
    files = sorted(where.glob(f"*{SUFFIX}"))
    if not files:
        raise InvalidArgument(
            f"no recordings (*{SUFFIX}) in {str(where)!r}; set RINGLEADER_RECORDER_DIR to it before the job starts"
        )
    return [parse(_read(path), str(path)) for path in files]


def _read(path: Path) -> bytes:
    """A file, without the records that were changed while it was read."""
    first, second = bytearray(path.read_bytes()), path.read_bytes()
    if first == second or len(first) != len(second) or len(first) < _HEADER.size:
        return bytes(first)
    header, record, capacity = (_HEADER.unpack_from(first)[i] for i in (1, 2, 4))
    for at in range(header, min(header + 2 * capacity * record, len(first)), max(record, 8)):
        if first[at : at + 8] != second[at : at + 8]:
            first[at : at + 8] = bytes(8)
    return bytes(first)
