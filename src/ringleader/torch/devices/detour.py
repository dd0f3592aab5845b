"""The way of a process group's operations where a rank may have device tensors: staged, in order, in segments.

Invariant: which native operations run, and on how many elements, depends only on what is alike on all ranks: the call
itself, and what the ranks told one another when the group was formed. Where tensors are is each rank's own affair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ringleader import errors
from ringleader.runtime.arrays import tensor_copy
from ringleader.runtime.config import Config
from ringleader.torch.devices.device import Device, Event, kinds
from ringleader.torch.devices.hierarchy import Hierarchy
from ringleader.torch.devices.memory import buffers_of
from ringleader.torch.devices.pump import Pump, pumping
from ringleader.torch.devices.staging import IN, OUT, Twins, arguments_of, roles_of, single_device
from ringleader.torch.devices.two_levels import offer
from ringleader.torch.devices.work import LaterWork, device_error
from ringleader.torch.futures import callback_owner, tensors_in
from ringleader.torch.tensors import direct
from ringleader.torch.work import CompositeWork, RingleaderWork

__all__ = ["SEGMENTED", "Detour", "detour_for", "facts"]

SEGMENTED: Final = frozenset({"allreduce", "average", "broadcast", "reduce"})
"""Operations on each element by itself: one tensor may be cut anywhere."""

_lock = threading.Lock()


def facts(config: Config) -> list[int]:
    """What a rank tells the others when the group is formed, see `detour_for`."""
    return [bool(kinds()), config.device_segment, config.inside != "off"]


def detour_for(group: Any, config: Config, hosts: Sequence[int] | None, told: Sequence[Sequence[int]]) -> Detour | None:
    """The group's detour; None where no rank has devices, and no other backend is inside. Every rank calls it.

    Parameters
    ----------
    group
        A `ProcessGroupRingleader`.
    config
        This rank's settings. Of the ranks' sizes of segments the group uses the least.
    hosts
        See `Hierarchy`.
    told
        The `facts` of all ranks. They came when the group was formed, not by an operation on it: who has formed it may
        leave or abort it at once, and the others must form it all the same.
    """
    comm = group.communicator
    without = [rank for rank, (_, _, inside) in enumerate(told) if not inside]
    if 0 < len(without) < comm.size:
        raise errors.InvalidArgument(
            f"inside (RINGLEADER_INSIDE) is off on ranks {without} and on elsewhere; give it on all ranks or on none"
        )
    segment = min(segment for _, segment, _ in told)
    hierarchy = None
    if not without and len(set(comm.nodes if hosts is None else hosts)) < comm.size:
        hierarchy = Hierarchy(comm, group._store, config.inside, hosts, segment)
    return Detour(group, segment, hierarchy) if any(device for device, _, _ in told) or hierarchy is not None else None


class _Step(NamedTuple):
    """A native operation of a staged one: when its memory is ready, how to start it, how to bring what it leaves."""

    ready: Event | None
    start: Callable[[], RingleaderWork]
    bring: Callable[[], Event] | None


class Detour:
    """Decides for each operation how it is run. Made by `detour_for`.

    Parameters
    ----------
    group
        A `ProcessGroupRingleader`, some of whose ranks have devices.
    segment
        Most bytes of a segment.
    hierarchy
        Where another backend is inside the hosts.
    """

    def __init__(self, group: Any, segment: int, hierarchy: Hierarchy | None = None) -> None:
        self._group, self.segment, self.hierarchy = group, segment, hierarchy
        self._pumps: dict[str | None, Pump] = {}

    def call(self, method: Callable[..., Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a method of the group: at once, or by a pump."""
        group = self._group
        if pumping():
            return method(group, *args, **kwargs)
        arguments = arguments_of(method, group, args, kwargs)
        # Not in callbacks: they run beside the program's own calls, and the hierarchy has one order only.
        if self.hierarchy is not None and callback_owner() is None:
            work = offer(self.hierarchy, name, arguments)
            if work is not None:
                return group._hold(work)
        device = single_device(arguments)
        pieces = self._pieces(name, arguments)
        pump = self._pump()
        if device is not None:
            return self._staged(device, method, name, arguments, pieces, pump)
        if not pump.busy:
            return self._direct(method, arguments, pieces)
        work = LaterWork(None)
        work.outputs = _results(arguments)

        def start() -> Iterator[RingleaderWork]:
            inner = self._direct(method, _asynchronous(arguments), pieces)
            work.outputs = inner.outputs
            yield inner

        group._hold(work)
        pump.put(lambda: work.begin(start))
        return work

    def _pump(self) -> Pump:
        """That of the communicator which the calling thread uses."""
        owner = callback_owner()
        pump = self._pumps.get(owner)
        if pump is None:
            with _lock:
                pump = self._pumps.setdefault(owner, Pump(f"pump-{self._group.getGroupName()}", owner))
        return pump

    def abort(self) -> None:
        """Fail what is in flight in the hierarchy's groups."""
        if self.hierarchy is not None:
            self.hierarchy.abort("abort() was called")

    def _abandon(self, reason: str) -> None:
        for channel in self._group._channels():
            channel.comm.abort(f"rank {self._group._rank}'s device failed: {reason}")

    def close(self) -> None:
        """End the pumps, after what they were given, for a second each at most, and leave the hierarchy's groups."""
        if self.hierarchy is not None:
            self.hierarchy.close()
        for pump in list(self._pumps.values()):
            pump.close()

    # -------------------------------------------------------------------------------------------- segments

    def _pieces(self, name: str, arguments: dict[str, Any]) -> list[tuple[int, int]]:
        """First and last element of each segment; empty where the operation is not cut."""
        if name not in SEGMENTED:
            return []
        x = _only(arguments)
        if x is None or x.layout is not torch.strided or x.numel() * x.element_size() <= self.segment:
            return []
        step = max(1, self.segment // x.element_size())
        return [(start, min(start + step, x.numel())) for start in range(0, x.numel(), step)]

    def _direct(self, method: Callable[..., Any], arguments: dict[str, Any], pieces: list[tuple[int, int]]) -> Any:
        """Tensors of the host, of which other ranks may have theirs on devices: in the same segments."""
        group = self._group
        x = _only(arguments)
        if not pieces or x is None:
            return method(group, **arguments)
        x = x.detach()
        flat = (x if direct(x) else x.resolve_conj().resolve_neg().contiguous()).view(-1)
        works = [method(group, **_with(arguments, flat[start:end])) for start, end in pieces]
        if direct(x):
            return group._hold(CompositeWork(works, _in_place(arguments)))
        natives = [native for work in works for native in work.natives()]
        copies = (tensor_copy(flat.data_ptr(), x),)
        joined = group._channel().comm._core.join(natives, (x, flat), copies)
        return group._hold(RingleaderWork(joined, _in_place(arguments)))

    # ---------------------------------------------------------------------------------------------- staging

    def _staged(
        self,
        device: Device,
        method: Callable[..., Any],
        name: str,
        arguments: dict[str, Any],
        pieces: list[tuple[int, int]],
        pump: Pump,
    ) -> Any:
        twins = Twins(device, buffers_of(device))
        roles = roles_of(name, arguments, self._group._rank)
        hosts = {key: twins.replace(arguments[key], role) for key, role in roles.items()}
        replaced = _asynchronous({**arguments, **hosts})
        finish: Callable[[], None] = lambda: self._finish(work, device, twins, bool(pieces))  # noqa: E731
        work = LaterWork(device, finish, twins.where, self._abandon)
        work.outputs = _results(arguments)
        twins.begin()
        if pieces:
            steps = self._cut(device, twins, method, replaced, pieces)
        else:
            steps = [_Step(twins.down(), lambda: method(self._group, **replaced), twins.up)]

        def start() -> Iterator[RingleaderWork]:
            for step in steps:
                if step.ready is not None:
                    step.ready.synchronize()
                inner = step.start()
                work.outputs = _in_place(arguments) if pieces else twins.restore(inner.outputs)
                yield _brought(inner, step.bring, work.arrivals)

        self._group._hold(work)
        pump.put(lambda: work.begin(start))
        return work

    def _cut(
        self,
        device: Device,
        twins: Twins,
        method: Callable[..., Any],
        replaced: dict[str, Any],
        pieces: list[tuple[int, int]],
    ) -> list[_Step]:
        """Each segment by itself: while one is reduced, the next comes down and the one before goes up."""
        twin = twins.only()
        host = twin.host.view(-1)

        def starter(start: int, end: int) -> Callable[[], RingleaderWork]:
            return lambda: method(self._group, **_with(replaced, host[start:end]))

        def bringer(start: int, end: int) -> Callable[[], Event]:
            def bring() -> Event:
                twins.copy_up(twin, start, end)
                return device.record(device.up)

            return bring

        reads, writes = twin.role & IN, twin.role & OUT
        if reads:
            twins.pack_down(twin)
        steps = []
        for start, end in pieces:
            if reads:
                twins.copy_down(twin, start, end)
            ready = device.record(device.down) if reads else None
            steps.append(_Step(ready, starter(start, end), bringer(start, end) if writes else None))
        return steps

    def _finish(self, work: LaterWork, device: Device, twins: Twins, cut: bool) -> None:
        """All operations are complete, and their copies enqueued."""
        if cut and (twin := twins.only()).packed is not None and twin.role & OUT:
            twins.unpack_up(twin)
            work.arrivals.append(device.record(device.up))
        twins.finish(list(work.arrivals))


def _brought(inner: RingleaderWork, bring: Callable[[], Event] | None, arrivals: list[Event]) -> RingleaderWork:
    """The same work, complete when its results are on their way up."""
    if bring is None:
        return inner

    def store() -> None:
        try:
            arrivals.append(bring())
        except Exception as error:
            raise device_error(error) from error

    brought = CompositeWork([inner], [], store)
    brought.get_future()  # so that the copy is enqueued when the operation is complete, whoever waits when
    return brought


def _only(arguments: dict[str, Any]) -> Tensor | None:
    """The tensor of an operation on one tensor."""
    found = arguments.get("tensors", arguments.get("x"))
    if isinstance(found, Tensor):
        return found
    return found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else None


def _in_place(arguments: dict[str, Any]) -> Any:
    """What the work of an operation on one tensor has for its result."""
    return arguments["tensors"] if "tensors" in arguments else arguments["x"]


def _with(arguments: dict[str, Any], piece: Tensor) -> dict[str, Any]:
    """The arguments with a piece of the tensor in its place."""
    key = "tensors" if "tensors" in arguments else "x"
    return {**arguments, key: piece if isinstance(arguments[key], Tensor) else [piece]}


def _asynchronous(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that does not run on the calling thread: a pump waits for nobody."""
    if hasattr(arguments.get("opts"), "asyncOp"):
        arguments["opts"].asyncOp = True
    return arguments


def _results(arguments: dict[str, Any]) -> list[Tensor]:
    """The tensors that will hold the result, until the operation says in which form."""
    return [x for key in ("outputs", "output", "tensors", "x") for x in tensors_in(arguments.get(key))]
