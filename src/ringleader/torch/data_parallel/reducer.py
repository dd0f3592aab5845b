"""Rounds: from the first gradient of a backward pass to the last averaged one.

A round opens when the backward pass reaches the model (a hook on its outputs, or else the first parameter's), and
closes in a callback that autograd calls at the end of the pass. In between, hooks count the gradients of each bucket
down, and full buckets are sent.

Invariant: every round sends every bucket, once, in the order of `Reducer.buckets`, on every rank. It holds whatever
order autograd works in, whichever parameters are unused and whatever fails: the closing sends what is not full, with
zeros for what has no gradient, before an error is raised; and a round that an exception left open is closed by the next
forward pass.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ringleader.torch.data_parallel import errors
from ringleader.torch.data_parallel.buckets import EARLY_BYTES, IDLE, NEVER, Bucket, Slot, make_bucket
from ringleader.torch.data_parallel.compressed import Compression
from ringleader.torch.data_parallel.transport import Transport

__all__ = ["Options", "Reducer"]

_execution_engine: Any = torch.autograd.Variable._execution_engine


@dataclass(frozen=True)
class Options:
    """How gradients are reduced; see `DataParallel`."""

    find_unused: bool = False
    static_graph: bool = False
    as_views: bool = True
    average: bool = True
    at_the_end: bool = False


class Reducer:
    """The gradients of one model.

    Parameters
    ----------
    slots
        Its parameters that have gradients, in registration order.
    assignment
        The buckets, as indices of parameters, in the order of sending. Equal on all ranks.
    compression
        Of the gradients.

    Attributes
    ----------
    enabled
        Whether gradients of the next backward pass are reduced.
    at_the_end
        Nothing is sent before the end of the backward pass.
    recording
        Whether `fired` and `times` are kept: which gradients came in this round, in their order, and when.
    began, ended, closed
        When the round began, when its backward pass ended, and when the gradients were reduced.
    sent
        Bytes and seconds of the reductions in this round that nothing else was beside.
    on_round
        Called after each round, on every rank alike.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        transport: Transport,
        options: Options,
        assignment: Sequence[Sequence[int]],
        compression: Compression | None = None,
    ) -> None:
        self.slots = tuple(slots)
        self.compression = compression
        self.transport = transport
        self.options = options
        self.rank = transport.rank
        self.enabled = True
        self.open = False
        self.at_the_end = options.at_the_end
        self.recording = True
        self.fired: list[int] = []
        self.times: list[float] = []
        self.began = self.ended = self.closed = 0.0
        self.sent: list[tuple[int, float]] = []
        self.on_round: Callable[[], None] | None = None
        self.scale: float | None = None
        self.buckets: list[Bucket] = []
        self._handles: list[Any] = []
        # Autograd has a thread per device, and the buckets of all devices share one order.
        self._lock = threading.RLock()
        self._next = 0  # the first bucket that is not packed
        self._started = 0  # buckets before this one are in flight
        self._absent: list[int] = []
        self._reachable: set[int] | None = None
        self._counts: Counter[int] | None = None  # a static graph's: how often each parameter's hook fires
        self._used: bytearray | None = None  # a static graph's: 1 where any rank uses the parameter
        self.install(assignment)

    # --------------------------------------------------------------------------------------------- buckets

    def install(self, assignment: Sequence[Sequence[int]]) -> None:
        """Put the gradients into these buckets; between rounds, on all ranks at the same point."""
        old = {
            slot.index: view for bucket in self.buckets for slot, view in zip(bucket.slots, bucket.views, strict=True)
        }
        buckets = [
            make_bucket([self.slots[i] for i in indices], self.transport, self.options.average, self._arrived)
            for indices in assignment
        ]
        if self.compression is not None:
            self.compression.attach(buckets)
        with torch.no_grad():
            for bucket in buckets:
                for slot, view in zip(bucket.slots, bucket.views, strict=True):
                    grad = slot.parameter.grad
                    if grad is not None and grad is old.get(slot.index):
                        view.copy_(grad)
                        slot.parameter.grad = view
        self.buckets = buckets
        self._set_totals()
        self.set_hooks(self.recording)
        self._rest()

    def _set_totals(self) -> None:
        counts = self._counts
        for bucket in self.buckets:
            bucket.total = len(bucket.slots) if counts is None else sum(counts[slot.index] for slot in bucket.slots)

    def set_hooks(self, recording: bool) -> None:
        """Register the hooks that only count, or those that also record."""
        self.close()
        self.recording = recording
        for bucket in self.buckets:
            for slot, view in zip(bucket.slots, bucket.views, strict=True):
                early = self.options.as_views and slot.parameter.nbytes >= EARLY_BYTES
                hook = functools.partial(bucket.take, view) if early else bucket.fire
                if recording:
                    hook = functools.partial(self._recorded, slot.index, hook)
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def release(self) -> None:
        """Let go of the buckets' memory; gradients that are views keep theirs."""
        self.close()
        self.buckets = []

    # --------------------------------------------------------------------------------------------- opening

    def prepare(self, sync: bool) -> None:
        """Before a forward pass: whether the backward pass after it is to reduce."""
        if self.open:
            self._close_left_open()
        if sync != self.enabled:
            self.enabled = sync
            self._rest()

    def reach(self, indices: Iterable[int]) -> None:
        """After a forward pass: its backward pass will reach these parameters."""
        self._reachable = (self._reachable or set()).union(indices)

    def begin(self, _gradient: object = None) -> None:
        """Open a round; a hook on the model's outputs, so it must return None."""
        with self._lock:
            if not self.open and self.enabled:
                self._open()

    def _open(self) -> None:
        self.open = True
        self._next = self._started = 0
        self._absent = []
        self.fired.clear()
        self.times.clear()
        self.began = perf_counter()
        learning = self._learning
        unused = set() if self._reachable is None else set(range(len(self.slots))) - self._reachable
        for bucket in self.buckets:
            left = bucket.total
            if unused:
                left -= sum(slot.index in unused for slot in bucket.slots)
            bucket.start = left
            bucket.full = left == 0
            bucket.pending = NEVER if learning else left or IDLE
        _execution_engine.queue_callback(self._finish)

    @property
    def _learning(self) -> bool:
        """In the first round of a static graph nothing is known yet, so all is sent at its end."""
        return self.options.static_graph and self._counts is None

    # --------------------------------------------------------------------------------------------- in the pass

    def _recorded(self, index: int, hook: Callable[[Tensor], None], parameter: Tensor) -> None:
        if not self.open and self.enabled:
            self.begin()
        self.fired.append(index)
        self.times.append(perf_counter())
        hook(parameter)

    def _arrived(self, bucket: Bucket, parameter: Tensor) -> None:
        """`bucket`'s count is down."""
        with self._lock:
            self._count(bucket, parameter)

    def _count(self, bucket: Bucket, parameter: Tensor) -> None:
        if not self.open:
            if not self.enabled:
                bucket.pending = NEVER
                return
            self.begin()  # the count was IDLE's, this gradient is the first
            bucket.pending -= 1
            if bucket.pending:
                return
        if bucket.full:
            name = next(slot.name for slot in bucket.slots if slot.parameter is parameter)
            raise errors.ready_twice(name, self.rank)
        bucket.full = True
        bucket.pending = IDLE  # one more would be one too many
        self._send_full()

    def _send_full(self) -> None:
        """Send the buckets that are full and whose predecessors are sent; the last one waits for the end of the pass.

        It could hide behind almost nothing, and what runs on the thread that waits for it saves two changes of threads.
        """
        last = len(self.buckets) - 1
        while self._next <= last and self.buckets[self._next].full:
            bucket = self.buckets[self._next]
            self._pack(bucket)
            self._next += 1
            if self._next <= last and not self.at_the_end:
                bucket.reduction.start()
                self._started = self._next

    def _pack(self, bucket: Bucket) -> None:
        self._absent += bucket.pack(not self.options.as_views)

    # --------------------------------------------------------------------------------------------- closing

    def _finish(self) -> None:
        """At the end of the backward pass: send the rest and wait for all of it."""
        if not self.open:
            return
        error = None
        try:
            if not self._touched():  # autograd.grad went through the model, but no gradient was accumulated
                return
            error = self._missing()
            self._complete()
            if self._learning:
                self._counts = Counter(self.fired)
                self._set_totals()
        finally:
            self.open = False
            self._reachable = None
            self._rest()
        self._after_round()
        if error is not None:
            raise error

    def _complete(self) -> None:
        """Send what is not sent, and wait for all."""
        self.ended = perf_counter()
        try:
            self._reduce_rest()
        except BaseException:
            self._await_started()
            raise
        self._settle_unused()
        self.closed = perf_counter()

    def _after_round(self) -> None:
        if self.on_round is not None:
            self.on_round()

    def _touched(self) -> bool:
        if self._next or self.fired:
            return True
        return any(bucket.start and (bucket.full or bucket.pending < bucket.start) for bucket in self.buckets)

    def _missing(self) -> RuntimeError | None:
        """The error for gradients that did not come, if they should have."""
        if self.options.find_unused or self._learning:
            return None
        late = [bucket for bucket in self.buckets if not bucket.full]
        missing = sum(bucket.pending for bucket in late)
        if not missing:
            return None
        slots = [slot for bucket in late for slot in bucket.slots]
        candidates = [slot.name for slot in slots if slot.parameter.grad is None]
        if self.recording:
            fired = Counter(self.fired)
            expected = self._counts or Counter(slot.index for slot in slots)
            candidates = [slot.name for slot in slots if fired[slot.index] < expected[slot.index]]
        if len(candidates) < missing:  # gradients of earlier passes hide which they are
            candidates = [slot.name for slot in slots]
        describe = errors.changed_graph if self.options.static_graph else errors.without_gradient
        return describe(candidates, missing, self.rank)

    def _reduce_rest(self) -> None:
        while self._next < len(self.buckets):
            self._pack(self.buckets[self._next])
            self._next += 1
        self.sent.clear()
        alone = self._started == 0
        before = perf_counter()
        for bucket in self.buckets[self._started :]:
            bucket.reduction.run()  # after all that is in flight
            now = perf_counter()
            if alone:
                self.sent.append((bucket.nbytes, now - before))
            alone, before = True, now
        for bucket in self.buckets[: self._started]:
            bucket.reduction.wait()
        self._started = 0
        for bucket in self.buckets:
            if self.scale is not None:
                bucket.flat.mul_(self.scale)
            if not self.options.as_views:
                bucket.unpack()

    def _await_started(self) -> None:
        """After a failure: no memory is left to an operation in flight, into which the next round would write."""
        for bucket in self.buckets[: self._started]:
            with contextlib.suppress(Exception):  # the first error is the one that is told
                bucket.reduction.wait()
        self._started = 0

    def _settle_unused(self) -> None:
        """Give parameters without a gradient of their own the others' one, where any rank has one."""
        used = self._used_anywhere()
        if not (self._absent and used):
            return
        absent = set(self._absent)
        for bucket in self.buckets:
            for slot, view in zip(bucket.slots, bucket.views, strict=True):
                if slot.index in absent and used[slot.index]:
                    slot.parameter.grad = view if self.options.as_views else view.clone()

    def _used_anywhere(self) -> bytearray | None:
        """1 where any rank uses the parameter, None if that does not matter.

        A collective: of a static graph in the first round, whichever ranks have data in it, else in every one.
        """
        if not (self.options.find_unused or self.options.static_graph):
            return None
        if self._used is not None:
            return self._used
        mask = torch.ones(len(self.slots), dtype=torch.uint8)
        mask[self._absent] = 0
        device = self.slots[0].parameter.device
        mask = mask.to(device)
        self.transport.maximum(mask)
        used = bytearray(mask.tolist())
        if self.options.static_graph:
            self._used = used
        return used

    def _rest(self) -> None:
        """No round: the next hook opens one, or is ignored."""
        pending = IDLE if self.enabled else NEVER
        for bucket in self.buckets:
            bucket.pending = pending
            bucket.full = False

    def _close_left_open(self) -> None:
        """An exception, which the program has seen, ended the backward pass: send the rest, so all stay in step."""
        try:
            self._complete()
        finally:
            self.open = False
            self._reachable = None
            self._rest()
        self._after_round()

    # --------------------------------------------------------------------------------------------- without a pass

    def shadow(self) -> None:
        """Take part in a round of the others with zeros, for a rank that has no more data."""
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.reduction.run()
        self._absent = list(range(len(self.slots)))
        self._used_anywhere()
