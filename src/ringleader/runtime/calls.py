"""From the arguments of a collective to a `Call`: everything is checked here, before the first byte is sent.

Each function turns user arrays into memory the engine can work on (`arrays`), decides shapes, and asks the planner
for a plan. A `Call` can then be run once or, by a persistent operation, any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ringleader import _core, errors
from ringleader.runtime import arrays, dtypes
from ringleader.runtime.arrays import Buffer
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.plans import Choice, Planned, Request
from ringleader.schedule import Collective

__all__ = ["Call", "Group", "Plans"]


class Plans(Protocol):
    """Where a call gets its plan: `plans.Planner`, or what stands before it."""

    def plan(self, request: Request) -> Planned: ...  # noqa: D102


class Group(Protocol):
    """What a call needs to know of its communicator."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def planner(self) -> Plans: ...  # noqa: D102


class Call:
    """A collective ready to run: plan, addresses, what to copy before and after, and the result.

    `distance`: input and output may share memory if the output begins exactly so many bytes after the input, because
    they then agree in what they have in common; None if they may not.
    """

    __slots__ = ("choice", "distance", "in_ptr", "keep", "loads", "out_ptr", "plan", "result", "stores")

    def __init__(self, plan: _core.Plan, choice: Choice, result: Any, distance: int | None = None) -> None:
        self.plan = plan
        self.choice = choice
        self.distance = distance
        self.in_ptr = 0
        self.out_ptr = 0
        self.result = result
        self.keep: tuple[Any, ...] = ()
        self.loads: tuple[Callable[[], object], ...] = ()
        self.stores: tuple[_core.StridedCopy, ...] = ()

    def read(self, buffer: Buffer | None) -> Call:
        """Take the input from `buffer`."""
        if buffer is not None:
            self.in_ptr = buffer.ptr
            self.keep += buffer.keep
            if buffer.load is not None:
                self.loads += (buffer.load,)
        return self

    def write(self, buffer: Buffer | None) -> Call:
        """Put the output into `buffer`."""
        if buffer is not None:
            self.out_ptr = buffer.ptr
            self.keep += buffer.keep
            if buffer.store is not None:
                self.stores += (buffer.store,)
        return self

    def run(self, timeout: float) -> Any:
        """Run to the end on the calling thread and return the result."""
        for load in self.loads:
            load()
        self.plan.run(self.in_ptr, self.out_ptr, timeout)
        for store in self.stores:
            store()
        return self.result

    def start(self, timeout: float) -> _core.Work:
        """Start: the inputs are read, where they need copies; `stores` are made when the operation completes."""
        for load in self.loads:
            load()
        return self.plan.start(self.in_ptr, self.out_ptr, timeout, self.keep, self.stores)


def check_root(group: Group, root: int) -> int:
    """The rank `root`, checked."""
    if isinstance(root, bool) or not isinstance(root, int):
        raise errors.InvalidArgument(f"root is {root!r}; expected a rank, an integer from 0 to {group.size - 1}")
    if not 0 <= root < group.size:
        raise errors.InvalidArgument(f"root {root} is no rank of this communicator; expected 0 to {group.size - 1}")
    return root


def _plan(
    group: Group,
    collective: Collective,
    buffer: Buffer,
    result: Any,
    *,
    count: int,
    shape: tuple[int, ...] | None,
    op: ReduceOp | None = None,
    root: int = 0,
    algorithm: str | None = None,
    wire: str | None = None,
    distance: int | None = None,
) -> Call:
    if op is not None:
        dtypes.check_supported(buffer.code, buffer.dtype_name, op)
    request = Request(collective, count, buffer.code, buffer.itemsize, op, root, algorithm, shape, wire)
    planned = group.planner.plan(request)
    return Call(planned.plan, planned.choice, result, distance)


def _same_type(source: Buffer, target: Buffer) -> None:
    same = source.code == target.code and (source.code != dtypes.BYTES or source.dtype_name == target.dtype_name)
    if not same:
        raise errors.InvalidArgument(f"out has type {target.dtype_name}; expected the input's type {source.dtype_name}")


def _check_count(what: str, buffer: Buffer, count: int, meaning: str) -> None:
    if buffer.count != count:
        unit = "bytes" if buffer.code == dtypes.BYTES else "elements"
        raise errors.InvalidArgument(
            f"{what} has {buffer.count} {unit} (shape {buffer.shape}); expected {count}: {meaning}"
        )


def _separate_input(source: Buffer, target: Buffer, distance: int | None = None) -> None:
    """If input and output share memory, and not as `distance` allows (see `Call`), read the input from a copy."""
    in_place = distance is not None and target.ptr - source.ptr == distance
    if source.load is None and not in_place and source.overlaps(target):
        copy = arrays.new_like(source.obj, arrays.user_shape(source.obj))
        own, obj = arrays.target(copy), source.obj
        source.ptr, source.keep = own.ptr, (*source.keep, copy)
        source.load = lambda: arrays.copy(copy, obj)


def _divide(shape: tuple[int, ...], n: int, what: str) -> tuple[int, ...]:
    """Shape of one rank's block of an array that holds n blocks.

    An array of two or more dimensions whose first is n loses it; else the first dimension is divided by n.
    """
    if len(shape) >= 2 and shape[0] == n:
        return shape[1:]
    if shape and shape[0] % n == 0:
        return (shape[0] // n, *shape[1:])
    raise errors.InvalidArgument(
        f"{what} of shape {shape} cannot be divided into {n} equal blocks, one per rank: its first dimension must be "
        f"a multiple of {n}"
    )


def _blocks(buffer: Buffer, n: int, what: str) -> int:
    if buffer.elements % n:
        raise errors.InvalidArgument(
            f"{what} of shape {buffer.shape} has {buffer.elements} elements, which cannot be divided into {n} "
            "equal blocks, one per rank"
        )
    return buffer.count // n


def all_reduce(
    group: Group, x: Any, op: ReduceOp | str, out: Any, algorithm: str | None, wire: str | None = None
) -> Call:
    """Prepare an all-reduce of `x`."""
    operator = dtypes.parse_op(op)
    if out is None or out is x:
        source = target = arrays.target(x, "x (reduced in place)")
        result = x
    else:
        source, target, result = arrays.source(x), arrays.target(out, "out"), out
        _same_type(source, target)
        _check_count("out", target, source.count, "as many as the input")
        _separate_input(source, target, 0)
    call = _plan(
        group,
        Collective.ALL_REDUCE,
        source,
        result,
        distance=0,
        count=source.count,
        shape=source.shape,
        op=operator,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def reduce(
    group: Group, x: Any, root: int, op: ReduceOp | str, out: Any, algorithm: str | None, wire: str | None = None
) -> Call:
    """Prepare a reduce of `x` to `root`."""
    operator = dtypes.parse_op(op)
    check_root(group, root)
    target = None
    if group.rank != root:
        if out is not None:
            raise errors.InvalidArgument(
                f"out is given on rank {group.rank}, but only the root, rank {root}, gets a result"
            )
        source, result = arrays.source(x), None
    elif out is None or out is x:
        source = target = arrays.target(x, "x (reduced in place at the root)")
        result = x
    else:
        source, target, result = arrays.source(x), arrays.target(out, "out"), out
        _same_type(source, target)
        _check_count("out", target, source.count, "as many as the input")
        _separate_input(source, target, 0)
    call = _plan(
        group,
        Collective.REDUCE,
        source,
        result,
        distance=0,
        count=source.count,
        shape=source.shape,
        op=operator,
        root=root,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def broadcast(group: Group, x: Any, root: int, algorithm: str | None, wire: str | None = None) -> Call:
    """Prepare a broadcast of the root's `x` into everybody's `x`."""
    check_root(group, root)
    if group.rank == root and wire not in (None, "f32"):
        source = arrays.target(x, "x (rounded to the wire format, so that all ranks hold the same)")
    elif group.rank == root:
        source = arrays.source(x)
        source.store = None  # the root's array does not change
        if source.load is None and arrays.is_read_only(x):
            copy = arrays.new_like(x, arrays.user_shape(x))
            source.ptr, source.keep = arrays.target(copy).ptr, (x, copy)
            source.load = lambda: arrays.copy(copy, x)
    else:
        source = arrays.target(x, "x (receives the root's elements)")
        source.load = None
    call = _plan(
        group,
        Collective.BROADCAST,
        source,
        x,
        count=source.count,
        shape=source.shape,
        root=root,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(source)


def all_gather(group: Group, x: Any, out: Any, algorithm: str | None, wire: str | None = None) -> Call:
    """Prepare an all-gather of every rank's `x`."""
    source = arrays.source(x)
    if out is None:
        out = arrays.new_like(x, (group.size, *arrays.user_shape(x)))
    target = arrays.target(out, "out")
    _same_type(source, target)
    _check_count(
        "out", target, source.count * group.size, f"the input's {source.count} from each of {group.size} ranks"
    )
    distance = -group.rank * source.nbytes  # the input is this rank's block of the output
    _separate_input(source, target, distance)
    call = _plan(
        group,
        Collective.ALL_GATHER,
        source,
        out,
        distance=distance,
        count=source.count,
        shape=source.shape,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def reduce_scatter(
    group: Group, x: Any, out: Any, op: ReduceOp | str, algorithm: str | None, wire: str | None = None
) -> Call:
    """Prepare a reduce-scatter of `x`, which holds one block per rank."""
    operator = dtypes.parse_op(op)
    source = arrays.source(x)
    if out is None:
        out = arrays.new_like(x, _divide(arrays.user_shape(x), group.size, "x"))
    target = arrays.target(out, "out")
    _same_type(source, target)
    count = _blocks(source, group.size, "x")
    _check_count("out", target, count, f"one of the input's {group.size} blocks")
    distance = group.rank * target.nbytes  # the output is this rank's block of the input
    _separate_input(source, target, distance)
    call = _plan(
        group,
        Collective.REDUCE_SCATTER,
        source,
        out,
        distance=distance,
        count=count,
        shape=source.shape,
        op=operator,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def gather(group: Group, x: Any, root: int, out: Any, algorithm: str | None, wire: str | None = None) -> Call:
    """Prepare a gather of every rank's `x` at the root."""
    check_root(group, root)
    source, target = arrays.source(x), None
    distance = -root * source.nbytes  # the root's input is its block of the output
    if group.rank == root:
        if out is None:
            out = arrays.new_like(x, (group.size, *arrays.user_shape(x)))
        target = arrays.target(out, "out")
        _same_type(source, target)
        _check_count(
            "out", target, source.count * group.size, f"the input's {source.count} from each of {group.size} ranks"
        )
        _separate_input(source, target, distance)
    elif out is not None:
        raise errors.InvalidArgument(
            f"out is given on rank {group.rank}, but only the root, rank {root}, gets a result"
        )
    call = _plan(
        group,
        Collective.GATHER,
        source,
        out,
        distance=distance,
        count=source.count,
        shape=source.shape,
        root=root,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def scatter(group: Group, x: Any, root: int, out: Any, algorithm: str | None, wire: str | None = None) -> Call:
    """Prepare a scatter of the root's `x`, which holds one block per rank."""
    check_root(group, root)
    source = None
    if group.rank == root:
        if x is None:
            raise errors.InvalidArgument("x is None on the root; the root must give the array to scatter")
        source = arrays.source(x)
        if out is None:
            out = arrays.new_like(x, _divide(arrays.user_shape(x), group.size, "x"))
    elif x is not None:
        raise errors.InvalidArgument(
            f"x is given on rank {group.rank}, but only the root, rank {root}, scatters; pass None"
        )
    elif out is None:
        raise errors.InvalidArgument("out is None; every rank but the root must give an array for its block")
    target = arrays.target(out, "out")
    distance = root * target.nbytes  # the root's output is its block of the input
    if source is not None:
        _same_type(source, target)
        _check_count("out", target, _blocks(source, group.size, "x"), f"one of the input's {group.size} blocks")
        _separate_input(source, target, distance)
    # Only the root knows the shape of the whole, so shapes are not compared; counts and types are.
    call = _plan(
        group,
        Collective.SCATTER,
        target,
        out,
        distance=distance,
        count=target.count,
        shape=None,
        root=root,
        algorithm=algorithm,
        wire=wire,
    )
    return call.read(source).write(target)


def all_to_all(group: Group, x: Any, out: Any, algorithm: str | None, wire: str | None = None) -> Call:
    """Prepare an all-to-all of `x`, which holds one block per rank."""
    source = arrays.source(x)
    count = _blocks(source, group.size, "x")
    if out is None:
        out = arrays.new_like(x, arrays.user_shape(x))
    target = arrays.target(out, "out")
    _same_type(source, target)
    _check_count("out", target, source.count, "as many as the input")
    _separate_input(source, target)
    call = _plan(
        group, Collective.ALL_TO_ALL, source, out, count=count, shape=source.shape, algorithm=algorithm, wire=wire
    )
    return call.read(source).write(target)


def barrier(group: Group, algorithm: str | None) -> Call:
    """Prepare a barrier: a reduction of one byte."""
    token = arrays.target(np.zeros(1, np.uint8))
    call = _plan(group, Collective.BARRIER, token, None, count=1, shape=None, op=ReduceOp.BOR, algorithm=algorithm)
    return call.read(token).write(token)
