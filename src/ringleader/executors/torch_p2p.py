"""The same schedules by point-to-point messages of torch.distributed, over any backend and device.

Each step of the schedule is one ``batch_isend_irecv``; reductions are torch operators on this rank's own device, in the
order that the schedule says, so the result has the same bits as that of every other executor.

On a GPU all of it is enqueued in the current stream: over NCCL ``work.wait()`` makes that stream wait, not the host;
torch's allocator knows which stream uses what is made here. Only a barrier, and the comparison of the ranks'
calls, block the host.
"""

# ruff: noqa: E402 - what need_torch says comes before what torch would say
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from ringleader._lazy import need_torch

need_torch(__name__)

import torch
import torch.distributed as dist

from ringleader.errors import InvalidArgument, MismatchError, RingleaderError, UnsupportedType
from ringleader.executors.p2p import Message, Operand, Step, share_of
from ringleader.schedule import Buffer, Collective, Schedule, verify

if TYPE_CHECKING:
    from ringleader.runtime.dtypes import ReduceOp

__all__ = ["OPS", "run"]

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # 16-bit floating point is folded in 32 bits
_INTEGER = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_BOOL = frozenset({torch.bool})

OPS: dict[str, frozenset[torch.dtype]] = {
    "sum": _INTEGER | _FLOATING | _COMPLEX | _BOOL,
    "prod": _INTEGER | _FLOATING | _COMPLEX | _BOOL,
    "min": _INTEGER | _FLOATING | _BOOL,
    "max": _INTEGER | _FLOATING | _BOOL,
    "avg": _INTEGER | _FLOATING | _COMPLEX,
    "premul_sum": _FLOATING | _COMPLEX,
    "band": _INTEGER | _BOOL,
    "bor": _INTEGER | _BOOL,
    "bxor": _INTEGER | _BOOL,
}
"""The operators, and the types that each is for. Any type can be moved."""

_BOOL_OPS = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "premul_sum": torch.add, "prod": torch.mul, "min": torch.minimum,
    "max": torch.maximum, "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
}  # fmt: skip
_IN_PLACE = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST)
_AT_ROOT = (Collective.REDUCE, Collective.GATHER)


def run(
    schedule: Schedule,
    tensor: torch.Tensor | None,
    group: dist.ProcessGroup | None = None,
    op: ReduceOp | str = "sum",
    *,
    out: torch.Tensor | None = None,
    check: bool = True,
) -> torch.Tensor | None:
    """Run a schedule on this rank's tensor; every rank of the group must call it.

    Parameters
    ----------
    schedule
        Any schedule for as many ranks as the group has, equal on all of them. It is proved the first time.
    tensor
        This rank's data, contiguous, on a device that the group's backend can send from. all_reduce and broadcast, and
        reduce at its root, work on it in place: any shape. all_gather and gather take ``count`` elements, the others
        ``n * count``. None away from the root of a scatter, and in a barrier.
    group
        Default: all ranks.
    op
        Reduction: a name of `OPS`, or what `ringleader.premul_sum` returns.
    out
        Where the result of the other collectives goes; default: a new flat tensor. A scatter needs it away from the
        root.
    check
        Before anything moves, compare what the ranks ask for (one small all-gather), so that a contradiction is an
        error on all of them. Without it, ranks that disagree hang or compute nonsense.

    Returns
    -------
    torch.Tensor or None
        The result; None in a barrier, and away from the root of reduce and gather.

    Raises
    ------
    InvalidArgument
        A schedule for another number of ranks, or a tensor of the wrong kind or size. On all ranks.
    MismatchError
        The ranks differ in schedule, size, type or operation. On all ranks.
    UnsupportedType
        The reduction is not offered for the type.
    VerificationError
        The schedule does not do what its collective promises.

    Examples
    --------
    >>> import tempfile, torch, torch.distributed as dist
    >>> import ringleader as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    ...     rl.torch.run(rl.algorithms.build("all_reduce", "ring", 1), torch.tensor([1.0, 2.0]))
    ...     dist.destroy_process_group()
    tensor([1., 2.])
    """
    rank = dist.get_rank(group)
    call = _described(schedule, tensor, out, dist.get_world_size(group), rank, op)
    device = _device_for(group, tensor if tensor is not None else out)
    with _current(device):
        if check:
            calls: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(calls, call, group)
            _agree(calls)
        elif call.problem is not None:
            raise call.problem
        else:
            _connect(group, device)
        _proved(schedule)
        return _Run(schedule, rank, group, tensor, out, call.op, device).result()


# ------------------------------------------------------------------------------------------------------------- devices

_connected: weakref.WeakSet[Any] = weakref.WeakSet()


def _device_for(group: dist.ProcessGroup | None, tensor: torch.Tensor | None) -> torch.device:
    """Where messages are: where the tensor is; for a barrier, which has none, where the backend can send from."""
    if tensor is not None:
        return tensor.device
    kinds = [each.type for each in (group or dist.distributed_c10d._get_default_group())._device_types]
    if not kinds or "cpu" in kinds:
        return torch.device("cpu")
    return torch.empty(0, device=kinds[0]).device


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """The device as the current one: collectives of objects use that one, whatever the tensors of the call."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _connect(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Let all ranks do something together, once per group.

    NCCL connects a group in its first operation, which therefore must be one of all its ranks; in a step of a schedule
    some ranks may have nothing to do.
    """
    pg = group or dist.distributed_c10d._get_default_group()
    if device.type != "cpu" and pg not in _connected:
        dist.all_reduce(torch.zeros(1, dtype=torch.uint8, device=device), group=group)
        _connected.add(pg)


@functools.lru_cache(maxsize=256)
def _proved(schedule: Schedule) -> None:
    verify(schedule).raise_if_failed()


# ----------------------------------------------------------------------------------------------------------- agreement


class _Call(NamedTuple):
    """One rank's call. `size` (of a block) and `dtype` are None where the rank gives no tensor."""

    schedule: str
    fingerprint: str
    size: int | None
    dtype: torch.dtype | None
    op: ReduceOp | None
    problem: RingleaderError | None


def _described(
    schedule: Schedule, tensor: torch.Tensor | None, out: torch.Tensor | None, size: int, rank: int, op: ReduceOp | str
) -> _Call:
    """This rank's call, or what is wrong with it."""
    from ringleader.runtime.dtypes import parse_op

    count = dtype = operation = problem = None
    try:
        if schedule.n != size:
            raise InvalidArgument(f"{schedule!r} is for {schedule.n} ranks; the group has {size}")
        if schedule.collective.reduces and schedule.collective is not Collective.BARRIER:
            operation = parse_op(op)
        count, dtype = _checked(schedule, tensor, out, rank)
        if operation is not None and dtype is not None and dtype not in OPS[operation.name]:
            known = ", ".join(sorted(str(known) for known in OPS[operation.name]))
            raise UnsupportedType(f"{operation.name} is not offered for {dtype}; it is for {known}")
    except RingleaderError as error:
        problem = error
    return _Call(f"{schedule!r} with root {schedule.root}", schedule.fingerprint, count, dtype, operation, problem)


def _checked(
    schedule: Schedule, tensor: torch.Tensor | None, out: torch.Tensor | None, rank: int
) -> tuple[int | None, torch.dtype | None]:
    """Elements in one block (in the whole vector, if it is one block) and their type."""
    collective, n = schedule.collective, schedule.n
    if collective is Collective.BARRIER:
        return None, None
    idle = collective is Collective.SCATTER and rank != schedule.root
    if tensor is None and not idle:
        raise InvalidArgument(f"{collective} needs a tensor on this rank; got None")
    if idle and out is None:
        raise InvalidArgument("scatter needs out on ranks that are not the root; got None")
    model = out if tensor is None else tensor
    assert model is not None
    for name, given in (("tensor", tensor), ("out", out)):
        if given is None:
            continue
        if not given.is_contiguous() or given.dtype != model.dtype or given.device != model.device:
            raise InvalidArgument(
                f"{collective}: {name} is {given.dtype} on {given.device} with strides {given.stride()}; expected a "
                f"contiguous tensor of {model.dtype} on {model.device}"
            )
    if tensor is None:
        return model.numel(), model.dtype
    if collective not in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL, Collective.SCATTER):
        return tensor.numel(), tensor.dtype
    if tensor.numel() % n:
        raise InvalidArgument(f"{tensor.numel()} elements cannot be divided among ranks; give a multiple of {n}")
    return tensor.numel() // n, tensor.dtype


def _agree(calls: list[_Call]) -> None:
    """Raise the same error on all ranks unless all calls are fine and fit together."""
    for rank, call in enumerate(calls):
        if call.problem is not None:
            raise type(call.problem)(f"rank {rank}: {call.problem}", [rank])
    for what in ("fingerprint", "op", "dtype", "size"):
        given = [(rank, call) for rank, call in enumerate(calls) if getattr(call, what) is not None]
        for rank, call in given[1:]:
            first, other = given[0]
            if getattr(call, what) != getattr(other, what):
                shown = "schedule" if what == "fingerprint" else what
                raise MismatchError(
                    f"{shown} is {getattr(other, shown)} on rank {first}, but {getattr(call, shown)} on rank {rank}; "
                    f"all ranks must give the same",
                    [rank],
                )


# ------------------------------------------------------------------------------------------------------------- one run


class _Run:
    """One call on one rank. A chunk's state is a tensor that a step may replace; none is changed in place."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        group: dist.ProcessGroup | None,
        tensor: torch.Tensor | None,
        out: torch.Tensor | None,
        op: ReduceOp | None,
        device: torch.device,
    ) -> None:
        self.schedule, self.rank, self.group, self.tensor, self.out = schedule, rank, group, tensor, out
        model = tensor if tensor is not None else out
        self.dtype, self.device = torch.uint8 if model is None else model.dtype, device
        name = "" if op is None else op.name
        self.op = _BOOL_OPS.get(name, name) if self.dtype is torch.bool else name
        self.factor = 1.0 if op is None else op.factor
        # A barrier's messages are one byte: there are none of zero bytes.
        self.count = 1 if model is None else _checked(schedule, tensor, out, rank)[0] or 0
        m = schedule.chunks_per_block
        size, longer = divmod(self.count, m)
        self.sizes = [size + (index < longer) for index in range(m)]  # by index within the block
        self.chunks: dict[tuple[int, int], torch.Tensor] = {}
        self._load()
        for step in share_of(schedule, rank).steps:
            self._step(step)

    def _pieces(self, vector: torch.Tensor, block: bool) -> list[tuple[int, torch.Tensor]]:
        """The chunks of a vector of all blocks, or of this rank's block alone."""
        m, blocks = len(self.sizes), 1 if block else self.schedule.blocks
        return list(enumerate(_split(vector, self.sizes * blocks), self.rank * m if block else 0))

    def _load(self) -> None:
        collective = self.schedule.collective
        if collective is Collective.BARRIER:
            self.chunks[Buffer.DATA, 0] = torch.zeros(1, dtype=torch.uint8, device=self.device)
        elif collective not in (Collective.BROADCAST, Collective.SCATTER) or self.rank == self.schedule.root:
            assert self.tensor is not None
            buffer = Buffer.INPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
            block = collective in (Collective.ALL_GATHER, Collective.GATHER)
            flat = _flat(self.tensor)
            if self.schedule.n == 1 and self.op == "premul_sum":  # no fold will multiply the only contribution
                flat = self._fold([flat], [True], False)
            for chunk, piece in self._pieces(flat, block):
                self.chunks[buffer, chunk] = piece

    def _step(self, step: Step) -> None:
        """All messages at once, then all writes, from the state before the step."""
        received = [
            torch.empty(sum(self.sizes[k] for k in message.classes), dtype=self.dtype, device=self.device)
            for message in step.receives
        ]
        operations = [self._operation(dist.isend, self._packed(message), message) for message in step.sends]
        operations += [
            self._operation(dist.irecv, buffer, message)
            for buffer, message in zip(received, step.receives, strict=True)
        ]
        if operations := [operation for operation in operations if operation.tensor.numel()]:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        pieces = [
            _split(buffer, [self.sizes[k] for k in message.classes])
            for buffer, message in zip(received, step.receives, strict=True)
        ]

        def value(operand: Operand) -> torch.Tensor:
            return self.chunks[operand[1:]] if operand.message < 0 else pieces[operand.message][operand.chunk]

        new = {}
        for write in step.writes:
            values = [value(operand) for operand in write.operands]
            alone = len(values) == 1 or self.schedule.collective is Collective.BARRIER
            result = values[0] if alone else self._fold(values, list(write.raw), write.complete)
            new[write.buffer, write.chunk] = result
        self.chunks.update(new)

    def _packed(self, message: Message) -> torch.Tensor:
        chunks = range(message.chunk, message.chunk + len(message.classes))
        values = [self.chunks[message.buffer, chunk] for chunk in chunks]
        return values[0] if len(values) == 1 else torch.cat(values)

    def _operation(self, function: Any, data: torch.Tensor, message: Message) -> dist.P2POp:
        """A message is bytes, so a backend needs to know nothing of the type."""
        peer = message.peer if self.group is None else dist.get_global_rank(self.group, message.peer)
        return dist.P2POp(function, data.view(torch.uint8), peer, self.group)

    def _fold(self, values: list[torch.Tensor], raw: list[bool], complete: bool) -> torch.Tensor:
        """The left fold; 16-bit floating point in 32 bits, rounded once."""
        wide = [value.to(_WIDE.get(self.dtype, self.dtype)) for value in values]
        if self.op == "premul_sum":
            wide = [value * self.factor if flag else value for value, flag in zip(wide, raw, strict=True)]
        result = wide[0]
        for operand in wide[1:]:
            result = _COMBINE[self.op](result, operand)
        if complete and self.op == "avg":
            result = _divided(result, self.schedule.n)
        return result.to(self.dtype)

    def result(self) -> torch.Tensor | None:
        """This rank's result, in the memory where the caller wants it."""
        collective = self.schedule.collective
        if collective is Collective.BARRIER and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        if collective is Collective.BARRIER or (collective in _AT_ROOT and self.rank != self.schedule.root):
            return None
        block = collective in (Collective.REDUCE_SCATTER, Collective.SCATTER)
        total = self.count * (1 if block else self.schedule.blocks)
        target = self.out
        if target is None:
            target = (
                self.tensor if collective in _IN_PLACE else torch.empty(total, dtype=self.dtype, device=self.device)
            )
        assert target is not None
        if target.numel() != total:
            raise InvalidArgument(f"{collective}: out has {target.numel()} elements; expected {total}")
        buffer = Buffer.OUTPUT if collective is Collective.ALL_TO_ALL else Buffer.DATA
        # A chunk may still be a view of the tensor that is written here: all are collected first.
        chunks = [self.chunks[buffer, chunk] for chunk, _ in self._pieces(_flat(target), block)]
        _flat(target).copy_(torch.cat(chunks))
        return target


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's elements; where there is only one, `view` would keep a stride of 0, which has no bytes."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _split(vector: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
    pieces: tuple[torch.Tensor, ...] = torch.split(vector, sizes)
    return pieces


def _divided(total: torch.Tensor, n: int) -> torch.Tensor:
    """The average: integers toward zero, complex numbers by components."""
    if total.is_complex():
        return torch.view_as_complex(torch.view_as_real(total) / n)
    return total / n if total.is_floating_point() else total.div(n, rounding_mode="trunc")
