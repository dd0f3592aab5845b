"""`Schedule`, the table of transfers that every collective algorithm is written as, and `Builder`, which makes one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import ScheduleError
from ringleader.schedule.types import TRANSFER_DTYPE, Buffer, Collective

__all__ = ["Builder", "Schedule", "describe_transfer"]


def describe_transfer(row: np.void, index: int | None = None) -> str:
    """One transfer as readable text.

    Parameters
    ----------
    row
        An element of a schedule's table.
    index
        Its place in the table, shown in front if given.

    Examples
    --------
    >>> b = Builder("all_reduce", n=2, chunks=4)
    >>> b.send(3, src=0, src_chunk=1, dst=1, count=2, reduce=True)
    >>> describe_transfer(b.build().table[0], 0)
    'transfer 0 (step 3: rank 0 data[1:3] -> reduce into rank 1 data[1:3], channel 0)'
    """

    def place(rank: int, buffer: int, chunk: int, count: int) -> str:
        known = buffer in Buffer._value2member_map_
        name = Buffer(buffer).name.lower() if known else f"buffer {buffer}"
        return f"rank {rank} {name}[{chunk}]" if count == 1 else f"rank {rank} {name}[{chunk}:{chunk + count}]"

    count = int(row["count"])
    source = place(int(row["src_rank"]), int(row["src_buffer"]), int(row["src_chunk"]), count)
    target = place(int(row["dst_rank"]), int(row["dst_buffer"]), int(row["dst_chunk"]), count)
    arrow = "-> reduce into" if row["reduce"] else "->"
    head = "transfer" if index is None else f"transfer {index}"
    return f"{head} (step {row['step']}: {source} {arrow} {target}, channel {row['channel']})"


class Schedule:
    """A collective algorithm as plain data: a table of transfers between chunks of ranks.

    Within a step all transfers read the state *before* the step; a later step sees it. Several reduces into one chunk
    in one step are combined with its content by a left fold in the order of each operand's lowest contributing rank.
    See docs/schedule.md. A schedule does not change; operations return new ones.

    Parameters
    ----------
    collective
        What the schedule does, e.g. ``"all_reduce"``.
    n
        Number of ranks.
    chunks
        Number C of chunks that the data is divided into; a multiple of `blocks`.
    table
        Array of `TRANSFER_DTYPE`, shape (transfers,). It is copied if it is not in order of steps or is writable.
    root
        The root rank of rooted collectives.
    name
        For messages and drawings; two schedules that differ only in it are equal.

    Raises
    ------
    ScheduleError
        If the arguments are not of these kinds. The rules about the table's content are `spec.check_spec`'s.

    Examples
    --------
    >>> b = Builder("all_reduce", n=2, chunks=1)
    >>> b.send(0, src=[0, 1], src_chunk=0, dst=[1, 0], reduce=True)
    >>> b.build(name="exchange")
    <Schedule 'exchange': all_reduce, n=2, chunks=1, steps=1, transfers=2, channels=1>
    """

    __slots__ = ("__dict__", "chunks", "collective", "n", "name", "root", "table")

    collective: Collective
    n: int
    chunks: int
    table: NDArray[np.void]
    root: int
    name: str

    def __init__(
        self,
        collective: Collective | str,
        n: int,
        chunks: int,
        table: NDArray[np.void],
        root: int = 0,
        name: str = "",
    ) -> None:
        checked = Collective.parse(collective)
        for what, value, least in (("n", n, 1), ("chunks", chunks, 1), ("root", root, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**31:
                raise ScheduleError(f"{what} is {value!r}; expected an integer from {least} to 2^31 - 1")
        if not isinstance(table, np.ndarray) or table.dtype != TRANSFER_DTYPE or table.ndim != 1:
            raise ScheduleError(
                "table must be a one-dimensional array of ringleader.schedule.TRANSFER_DTYPE; use Builder to make one"
            )
        steps = table["step"]
        if len(table) > 1 and bool(np.any(steps[1:] < steps[:-1])):
            table = table[np.argsort(steps, kind="stable")]
        elif table.flags.writeable or not table.flags.c_contiguous:
            table = table.copy()
        table.flags.writeable = False
        assign = object.__setattr__
        assign(self, "collective", checked)
        assign(self, "n", int(n))
        assign(self, "chunks", int(chunks))
        assign(self, "table", table)
        assign(self, "root", int(root))
        assign(self, "name", name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Schedule cannot be changed; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Schedule cannot be changed; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return Schedule, (str(self.collective), self.n, self.chunks, np.array(self.table), self.root, self.name)

    @classmethod
    def empty(cls, collective: Collective | str, n: int, chunks: int, root: int = 0) -> Schedule:
        """A schedule without transfers: what one rank alone needs, and the neutral element of `|`."""
        return cls(collective, n, chunks, np.empty(0, TRANSFER_DTYPE), root)

    # ------------------------------------------------------------------ what it is

    @property
    def blocks(self) -> int:
        """Number B of equal blocks that the data is divided into: 1, or `n` for collectives with a block per rank."""
        return self.n if self.collective.blocked else 1

    @property
    def chunks_per_block(self) -> int:
        """Chunks in one block, C / B.

        Raises
        ------
        ScheduleError
            If C is not a multiple of B, as in a fragment that is yet to be composed.
        """
        if self.chunks % self.blocks:
            raise ScheduleError(f"{self!r}: {self.chunks} chunks cannot be divided into {self.blocks} equal blocks")
        return self.chunks // self.blocks

    @cached_property
    def steps(self) -> int:
        """Number of steps: the last transfer's step + 1."""
        return int(self.table["step"][-1]) + 1 if len(self.table) else 0

    @property
    def transfers(self) -> int:
        """Number of transfers."""
        return len(self.table)

    @cached_property
    def channels(self) -> int:
        """Number of channels: the highest one used + 1."""
        return int(self.table["channel"].max()) + 1 if len(self.table) else 0

    @cached_property
    def scratch_chunks(self) -> int:
        """Number of scratch chunks a rank may need: the highest one used + 1."""
        most = 0
        for end in ("src", "dst"):
            used = self.table[self.table[f"{end}_buffer"] == Buffer.SCRATCH]
            if len(used):
                most = max(most, int((used[f"{end}_chunk"].astype(np.int64) + used["count"]).max()))
        return most

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that tell schedules apart (BLAKE2b of everything but the name)."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(struct.pack("<4q", self.collective.code, self.n, self.chunks, self.root))
        digest.update(np.ascontiguousarray(self.table).view(np.uint8).data)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        mine = (self.collective, self.n, self.chunks, self.root, len(self.table))
        theirs = (other.collective, other.n, other.chunks, other.root, len(other.table))
        return mine == theirs and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return int(self.fingerprint[:15], 16)

    def __len__(self) -> int:
        return len(self.table)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        root = f", root={self.root}" if self.collective.rooted else ""
        return (
            f"<Schedule{name}: {self.collective}, n={self.n}, chunks={self.chunks}{root}, "
            f"steps={self.steps}, transfers={self.transfers}, channels={self.channels}>"
        )

    def describe(self, index: int) -> str:
        """Transfer `index` of the table as readable text."""
        return describe_transfer(self.table[index], index)

    # ------------------------------------------------------------------ algebra (algebra.py)

    def __rshift__(self, other: Schedule) -> Schedule:
        """`a >> b`: a, then b. See `algebra.then`."""
        return algebra.then(self, other)

    def __or__(self, other: Schedule) -> Schedule:
        """`a | b`: side by side, in the same steps. See `algebra.beside`."""
        return algebra.beside(self, other)

    def on(
        self,
        ranks: ArrayLike | None = None,
        chunks: ArrayLike | None = None,
        n: int | None = None,
        total_chunks: int | None = None,
    ) -> Schedule:
        """Relabel ranks and chunks, into a bigger schedule if `n` or `total_chunks` says so. See `algebra.relabel`."""
        return algebra.relabel(self, ranks, chunks, n, total_chunks)

    def reversed(self) -> Schedule:
        """The mirror image, e.g. the all_gather of a reduce_scatter. See `algebra.mirror`."""
        return algebra.mirror(self)

    def split(self, k: int, rank_orders: Sequence[ArrayLike] | None = None) -> Schedule:
        """`k` copies on k slices of every chunk, each on a channel of its own. See `algebra.split`."""
        return algebra.split(self, k, rank_orders)

    def pipelined(self, k: int) -> Schedule:
        """`k` segments per chunk, each one step behind the one before. See `algebra.pipeline`."""
        return algebra.pipeline(self, k)

    def as_collective(self, collective: Collective | str, root: int | None = None) -> Schedule:
        """The same table under another collective; the root is kept if both have one, unless given."""
        wanted = Collective.parse(collective)
        kept = self.root if wanted.rooted and self.collective.rooted else 0
        return Schedule(wanted, self.n, self.chunks, self.table, kept if root is None else root, self.name)

    def with_root(self, root: int) -> Schedule:
        """The same algorithm for another root: all ranks (and their blocks) are rotated. See `algebra.rotate_to`."""
        return algebra.rotate_to(self, root)

    def with_name(self, name: str) -> Schedule:
        """The same schedule under another name."""
        return Schedule(self.collective, self.n, self.chunks, self.table, self.root, name)


_FIELDS = TRANSFER_DTYPE.names or ()
_LIMITS = {name: np.iinfo(TRANSFER_DTYPE[name]) for name in _FIELDS}


class Builder:
    """Collects transfers and makes a `Schedule` of them.

    Examples
    --------
    A ring reduce-scatter is two lines: in step s rank r passes chunk r - s - 1 on to its right.

    >>> n = 4
    >>> b = Builder("reduce_scatter", n, chunks=n)
    >>> step, rank = np.ogrid[: n - 1, :n]
    >>> b.send(step, src=rank, src_chunk=(rank - step - 1) % n, dst=(rank + 1) % n, reduce=True)
    >>> b.build(name="ring")
    <Schedule 'ring': reduce_scatter, n=4, chunks=4, steps=3, transfers=12, channels=1>
    """

    def __init__(self, collective: Collective | str, n: int, chunks: int, root: int = 0) -> None:
        self._empty = Schedule.empty(collective, n, chunks, root)
        self._parts: list[NDArray[np.void]] = []
        self._rows: list[tuple[int, ...]] = []  # single transfers that are not in _parts yet

    @property
    def n(self) -> int:
        """Number of ranks."""
        return self._empty.n

    @property
    def chunks(self) -> int:
        """Number of chunks of the data."""
        return self._empty.chunks

    def send(
        self,
        step: ArrayLike,
        src: ArrayLike,
        src_chunk: ArrayLike,
        dst: ArrayLike,
        dst_chunk: ArrayLike | None = None,
        count: ArrayLike = 1,
        reduce: ArrayLike = False,
        channel: ArrayLike = 0,
        src_buffer: Buffer | int | str = "data",
        dst_buffer: Buffer | int | str = "data",
    ) -> None:
        """Add one transfer, or many: arrays are broadcast together and added in row-major order.

        Parameters
        ----------
        step
            When it happens, from 0.
        src, src_chunk, src_buffer
            Rank, first chunk and buffer that are read.
        dst, dst_chunk, dst_buffer
            Rank, first chunk (default: `src_chunk`) and buffer that are written.
        count
            Number of consecutive chunks.
        reduce
            Combine into the destination instead of replacing it.
        channel
            Independent lane; transfers of one pair of ranks and one channel keep their order.

        Raises
        ------
        ScheduleError
            If a value is not an integer or does not fit the table, or the shapes cannot be broadcast together.
        """
        if dst_chunk is None:
            dst_chunk = src_chunk
        values = (step, src, src_chunk, dst, dst_chunk, count, channel)
        buffers = (int(Buffer.parse(src_buffer)), int(Buffer.parse(dst_buffer)))
        if all(type(value) is int for value in values) and isinstance(reduce, bool | int):
            row = (*values, *buffers, int(bool(reduce)))
            for name, number in zip(_FIELDS, row, strict=True):
                if not _LIMITS[name].min <= number <= _LIMITS[name].max:
                    raise ScheduleError(f"{name} is {number}; the table holds up to {_LIMITS[name].max}")
            self._rows.append(row)
            return
        self._flush()
        columns = [_column(name, value) for name, value in zip(_FIELDS[:7], values, strict=True)]
        columns.append(np.asarray(reduce).astype(bool))
        try:
            shaped = np.broadcast_arrays(*columns)
        except ValueError:
            shapes = ", ".join(
                f"{name} {column.shape}" for name, column in zip((*_FIELDS[:7], "reduce"), columns, strict=True)
            )
            raise ScheduleError(f"shapes cannot be broadcast together: {shapes}") from None
        part = np.empty(shaped[0].size, TRANSFER_DTYPE)
        for name, column in zip((*_FIELDS[:7], "reduce"), shaped, strict=True):
            part[name] = column.reshape(-1)
        part["src_buffer"], part["dst_buffer"] = buffers
        self._parts.append(part)

    def build(self, name: str = "") -> Schedule:
        """The schedule of all transfers so far; within a step they keep the order in which they were added."""
        self._flush()
        table = np.concatenate(self._parts) if self._parts else self._empty.table
        table.flags.writeable = False
        base = self._empty
        return Schedule(base.collective, base.n, base.chunks, table, base.root, name)

    def _flush(self) -> None:
        if self._rows:
            self._parts.append(np.array(self._rows, TRANSFER_DTYPE))
            self._rows = []


def _column(name: str, value: ArrayLike) -> NDArray[np.integer]:
    """`value` as an array of integers that the table's field `name` can hold."""
    column: NDArray[np.integer] = np.asarray(value)
    if column.size == 0 and column.dtype.kind == "f":  # np.asarray([]) is float64
        column = column.astype(np.int64)
    if column.dtype.kind not in "iu":
        raise ScheduleError(f"{name} must be integers, not {column.dtype}")
    if column.size:
        low, high = int(column.min()), int(column.max())
        if low < _LIMITS[name].min or high > _LIMITS[name].max:
            raise ScheduleError(f"{name} runs from {low} to {high}; the table holds up to {_LIMITS[name].max}")
    return column


from ringleader.schedule import algebra  # noqa: E402  (algebra makes Schedules: the import must come after the class)
