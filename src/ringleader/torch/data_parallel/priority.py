"""Gradients that are still on their way when the next forward pass begins: front layers first.

The backward pass starts partitions in the planned order and ends without waiting for them. An optimizer step that is
asked for meanwhile is noted; a module's parameters are stepped just before its next forward pass uses them, when their
gradients are there.

Invariant: a parameter is read by the model only after its step. Optimizers step each parameter by itself, so the result
is that of stepping all at once, bit for bit.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.overlap import PriorityPlan
from ringleader.torch.data_parallel import errors
from ringleader.torch.data_parallel.buckets import Slot
from ringleader.torch.data_parallel.transport import Reduction, Transport

__all__ = ["PartitionedGradients", "make_no_hook"]

_execution_engine: Any = torch.autograd.Variable._execution_engine


class _Flight:
    """The partitions of one round: started in order, by whichever thread makes that possible.

    Parameters
    ----------
    plan
        Its tensors are numbers of gradients.
    reductions
        One a partition.
    """

    def __init__(self, plan: PriorityPlan, reductions: Sequence[Reduction], tensors: int) -> None:
        self._launcher = plan.launcher()
        self._reductions = reductions
        self._pieces = [0] * tensors
        self._partitions = plan.partitions
        for part in plan.partitions:
            for tensor in part.tensors:
                self._pieces[tensor] += 1
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def ready(self, tensor: int, started: queue.SimpleQueue[Any]) -> None:
        """A gradient is complete."""
        with self._changed:
            self._start(self._launcher.ready(tensor), started)

    def _start(self, numbers: list[int], started: queue.SimpleQueue[Any]) -> None:
        for number in numbers:
            self._reductions[number].start()
            started.put((self, number))

    def land(self, number: int, started: queue.SimpleQueue[Any]) -> None:
        """Wait for a partition that was started; on the thread that does nothing else."""
        try:
            self._reductions[number].wait()
            with self._changed:
                for tensor in self._partitions[number].tensors:
                    self._pieces[tensor] -= 1
                self._start(self._launcher.done(number), started)
                self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def wait(self, tensors: Iterable[int]) -> None:
        """Wait for these gradients. Raises the error of a reduction that failed."""
        with self._changed:
            for tensor in tensors:
                while self._pieces[tensor] and self._error is None:
                    self._changed.wait()
            if self._error is not None:
                raise self._error


def _watch(started: queue.SimpleQueue[Any]) -> None:
    while (entry := started.get()) is not None:
        flight, number = entry
        flight.land(number, started)
        del entry, flight


class PartitionedGradients:
    """The gradients of a model in partitions.

    Parameters
    ----------
    slots
        Its parameters, all of one type.
    order
        For each tensor of the plan the index of its parameter.
    users
        For each module of the model: the parameters that its forward pass uses, and whose step it has to wait for.

    Attributes
    ----------
    deferred
        There is an optimizer that makes its steps through this. Without, backward passes wait for their gradients.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        transport: Transport,
        plan: PriorityPlan,
        order: Sequence[int],
        users: dict[nn.Module, list[int]],
        average: bool,
    ) -> None:
        self.slots, self.plan, self.enabled, self.deferred = tuple(slots), plan, True, False
        self.rank = transport.rank
        self._tensor_of = {index: tensor for tensor, index in enumerate(order)}
        self._views, self._reductions = self._lay_out(transport, order, average)
        self._flight: _Flight | None = None
        self._open = False
        self._left: set[int] = set()  # gradients that this backward pass has not completed
        self._late: set[int] = set()  # parameters whose step is due
        self._optimizer: Any = None
        self._options: list[dict[str, Any]] = []
        self._clear: bool | None = None  # after its step a gradient is set to None (True), to zero (False), or kept
        self._started: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_watch, args=(self._started,), name="ringleader-partitions", daemon=True).start()
        weakref.finalize(self, self._started.put, None)
        self._handles: list[Any] = [
            slot.parameter.register_post_accumulate_grad_hook(_GradientHook(self, slot.index))  # type: ignore[no-untyped-call]
            for slot in slots
        ]
        self._handles += [module.register_forward_pre_hook(_UseHook(self, used)) for module, used in users.items()]

    def _lay_out(
        self, transport: Transport, order: Sequence[int], average: bool
    ) -> tuple[dict[int, Tensor], list[Reduction]]:
        """One flat tensor, in which every partition is a contiguous range."""
        first = self.slots[0].parameter
        item = first.element_size()
        flat = transport.empty(sum(slot.parameter.numel() for slot in self.slots), first.dtype, first.device)
        flat.zero_()
        views: dict[int, Tensor] = {}
        for index in order:
            if not self.slots[index].parameter.numel():  # in no partition
                views[index] = flat[:0].view(self.slots[index].parameter.shape)
        reductions, at = [], 0
        for part in self.plan.partitions:
            begin = at
            for piece in part.pieces:
                parameter = self.slots[order[piece.tensor]].parameter
                if piece.start == 0:
                    dense = torch.empty_like(parameter, device="meta")
                    views[order[piece.tensor]] = flat[at : at + parameter.numel()].as_strided(
                        parameter.shape, dense.stride()
                    )
                at += (piece.stop - piece.start) // item
            reductions.append(transport.reduction(flat[begin:at], average))
        return views, reductions

    # --------------------------------------------------------------------------------------------- backward

    def arrived(self, index: int) -> None:
        """A gradient is complete."""
        if not self.enabled:
            return
        if not self._open:
            self._begin()
        slot, view = self.slots[index], self._views[index]
        if index not in self._left:
            raise errors.ready_twice(slot.name, self.rank)
        self._left.discard(index)
        self._pack(slot, view)
        assert self._flight is not None
        self._flight.ready(self._tensor_of[index], self._started)

    def settle(self, _gradient: object = None) -> None:
        """A backward pass begins, which adds to gradients: none may be in flight. A hook, so it must return None."""
        if not self._open:  # a hook on a second output comes in the middle of a pass
            self.finish()

    def _begin(self) -> None:
        self.finish()
        self._flight = _Flight(self.plan, self._reductions, len(self.slots))
        self._left = set(self._views)
        self._open = True
        _execution_engine.queue_callback(self._end)

    @torch.no_grad()
    def _pack(self, slot: Slot, view: Tensor) -> None:
        grad = slot.parameter.grad
        if grad is view:
            return
        if grad is None:
            view.zero_()
        else:
            view.copy_(grad)
            slot.parameter.grad = view

    def _end(self) -> None:
        """The backward pass is over: nothing is waited for, if an optimizer knows about it."""
        left, self._left, self._open = sorted(self._left), set(), False
        assert self._flight is not None
        for index in left:
            self._pack(self.slots[index], self._views[index])
            self._flight.ready(self._tensor_of[index], self._started)
        if not self.deferred:
            self.finish()
        if left:
            raise errors.without_gradient([self.slots[index].name for index in left], len(left), self.rank)

    def prepare(self, sync: bool) -> None:
        """Before a forward pass: whether the backward pass after it is to reduce."""
        if self._open:  # an exception ended the backward pass
            left, self._left, self._open = self._left, set(), False
            assert self._flight is not None
            for index in left:
                self._pack(self.slots[index], self._views[index])
                self._flight.ready(self._tensor_of[index], self._started)
        self.enabled = sync

    # --------------------------------------------------------------------------------------------- steps

    @property
    def in_flight(self) -> bool:
        """Whether there may be gradients that are not reduced, or steps that are due."""
        return self._flight is not None

    def step(self, optimizer: Any, options: list[dict[str, Any]]) -> None:
        """Note that all parameters are to be stepped with these options of `optimizer`'s groups."""
        if self._late:  # of an earlier call, or of another optimizer
            self.finish()
            optimizer.step_only([slot.parameter for slot in self.slots], options)
            return
        self._optimizer, self._options, self._late = optimizer, options, set(self._views)

    def clear(self, set_to_none: bool) -> bool:
        """Note that gradients are to go after their step. False if no step is due; then they are here."""
        if self._late:
            self._clear = set_to_none
            return True
        self.finish()
        return False

    def use(self, indices: Iterable[int]) -> None:
        """These parameters are about to be used: step them if that is due."""
        due = [index for index in indices if index in self._late]
        if not due or self._flight is None:
            return
        self._flight.wait(self._tensor_of[index] for index in due)
        self._late.difference_update(due)
        parameters = [self.slots[index].parameter for index in due]
        self._optimizer.step_only(parameters, self._options)
        if self._clear is not None:
            for parameter in parameters:
                if self._clear:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def finish(self) -> None:
        """Wait for all gradients, and do all steps that are due."""
        if self._flight is None:
            return
        try:
            self.use(sorted(self._late))
            self._flight.wait(range(len(self.slots)))
        finally:
            self._flight, self._clear = None, None
            self._late = set()


class _GradientHook:
    """Holds its owner weakly: a parameter that outlives the model does not keep it."""

    def __init__(self, owner: PartitionedGradients, index: int) -> None:
        self._owner, self._index = weakref.ref(owner), index

    def __call__(self, _: Tensor) -> None:
        owner = self._owner()
        if owner is not None:
            owner.arrived(self._index)


def _no_hook(*_: object) -> None:
    """What a copy of a hook does: the copied module has no gradients on their way."""


def make_no_hook() -> Any:
    """A hook that does nothing."""
    return _no_hook


class _UseHook:
    def __init__(self, owner: PartitionedGradients, indices: list[int]) -> None:
        self._owner, self._indices = weakref.ref(owner), indices

    def __call__(self, *_: object) -> None:
        owner = self._owner()
        if owner is not None and owner._late:
            owner.use(self._indices)

    def __reduce__(self) -> Any:
        return make_no_hook, ()
