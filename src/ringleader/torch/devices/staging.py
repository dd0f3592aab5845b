"""Tensors of devices in the arguments of a collective, and the host memory that stands for them.

A call's tensors are replaced by host tensors; inputs are copied down before it starts, outputs up when it is complete.
Which argument is what follows from its name, which is the same in all methods of `Collectives`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ringleader import errors
from ringleader.torch.devices.device import Device, Event, device_of
from ringleader.torch.devices.memory import HostBuffers
from ringleader.torch.futures import tensors_in

__all__ = ["IN", "OUT", "Twins", "arguments_of", "roles_of", "root_of", "single_device"]

IN, OUT = 1, 2

_BY_NAME = {"tensors": IN | OUT, "x": IN | OUT, "outputs": OUT, "output": OUT, "inputs": IN, "input": IN}
_BY_METHOD = {"send": IN, "recv": OUT, "recv_anysource": OUT}

Method = Callable[..., Any]


_signatures: dict[Method, inspect.Signature] = {}


def arguments_of(method: Method, group: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names, without the group and without those that are not given."""
    signature = _signatures.get(method)
    if signature is None:
        signature = _signatures[method] = inspect.signature(method)
    bound = dict(signature.bind(group, *args, **kwargs).arguments)
    del bound["self"]
    return bound


def root_of(arguments: Mapping[str, Any]) -> int:
    """The root of a broadcast or reduce, in either form of the call."""
    opts = arguments.get("opts")
    return int(opts) if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def roles_of(name: str, arguments: Mapping[str, Any], rank: int) -> dict[str, int]:
    """For each argument that holds tensors whether it is read, written or both, on this rank."""
    roles = {key: _BY_METHOD.get(name, role) for key, role in _BY_NAME.items() if key in arguments}
    if name == "broadcast":
        roles["tensors"] = IN if root_of(arguments) == rank else OUT
    elif name == "reduce":
        roles["tensors"] = IN | OUT if root_of(arguments) == rank else IN
    return roles


def single_device(arguments: Mapping[str, Any]) -> Device | None:
    """The device of a call's tensors; None if they are on the host.

    Raises
    ------
    InvalidArgument
        They are on several, or on one that no `Device` is known for.
    """
    found: Device | None = None
    first: Tensor | None = None
    for key in _BY_NAME:
        for x in tensors_in(arguments.get(key)):
            device = device_of(x)
            if device is None and not x.is_cpu:
                raise errors.UnsupportedType(
                    f"{key} has a tensor on {x.device}; the backend moves tensors of the CPU and of CUDA devices; for "
                    "another kind of device see ringleader.torch.devices.register_device"
                )
            if first is None:
                first, found = x, device
            elif device is not found:
                raise errors.InvalidArgument(
                    f"{key} has a tensor on {x.device}, another on {first.device}; expected all of a call on one device"
                )
    return found


class _Twin:
    """A device tensor, what stands for it on the host, and on the device where it is not contiguous."""

    def __init__(self, x: Tensor, host: Tensor, role: int) -> None:
        # Of a sparse tensor detach() shares the elements, but not their number: it is written to itself.
        self.x, self.host, self.role = x.detach() if x.layout is torch.strided else x, host, role
        self.packed: Tensor | None = None

    def pack(self, device: Device) -> None:
        """Make the device's contiguous copy, empty: copies between host and device are then single ones."""
        x = self.x
        if x.layout is torch.strided and not (x.is_contiguous() and not x.is_neg() and not x.is_conj()):
            self.packed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            for stream in (device.down, device.up):
                device.uses(self.packed, stream)

    @property
    def flat(self) -> Tensor:
        """The device's memory to copy from and to."""
        return (self.x if self.packed is None else self.packed).view(-1)  # of a contiguous tensor: never a copy


class Twins:
    """Host tensors in place of a call's device tensors.

    Parameters
    ----------
    device
        Where all its device tensors are.
    buffers
        Where host memory comes from.
    """

    def __init__(self, device: Device, buffers: HostBuffers) -> None:
        self._device, self._buffers = device, buffers
        self._twins: dict[int, _Twin] = {}
        self._taken: list[Tensor] = []
        self._back: dict[int, Tensor] = {}

    # -------------------------------------------------------------------------------------------- replacing

    def replace(self, value: Any, role: int) -> Any:
        """The same value, lists copied, with host tensors in it."""
        if isinstance(value, Tensor):
            return self._host_of([value], role)[0]
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(x, Tensor) for x in value):
                return self._host_of(value, role)
            return [self.replace(each, role) for each in value]
        return value

    def _host_of(self, tensors: Sequence[Tensor], role: int) -> list[Tensor]:
        """Host tensors for those of one list. If all are of one type they follow one another, and are one block."""
        alike = len({x.dtype for x in tensors}) == 1 and all(x.layout is torch.strided for x in tensors)
        groups = [tensors] if alike else [[x] for x in tensors]
        found = []
        for group in groups:
            missing = {id(x): x for x in group if id(x) not in self._twins}
            for x, host in zip(missing.values(), self._memory(list(missing.values())), strict=True):
                twin = self._twins[id(x)] = _Twin(x, host, 0)
                twin.pack(self._device)
                self._back[id(host)] = x
            for x in group:
                twin = self._twins[id(x)]
                twin.role |= role
                found.append(twin.host)
        return found

    def _memory(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if tensors and tensors[0].layout is not torch.strided:
            return [x.detach().to("cpu", copy=True) for x in tensors]  # sparse: blocks, as its size is known only there
        sizes = [x.numel() * x.element_size() for x in tensors]
        if not sum(sizes):
            return [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
        buffer = self._buffers.take(sum(sizes))
        self._taken.append(buffer)
        block = buffer[: sum(sizes)].view(tensors[0].dtype)
        pieces = torch.split(block, [x.numel() for x in tensors])
        return [piece.view(x.shape) for piece, x in zip(pieces, tensors, strict=True)]

    def restore(self, value: Any) -> Any:
        """The same value, with the device tensors back in place of the host's."""
        if isinstance(value, Tensor):
            return self._back.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return [self.restore(each) for each in value]
        return value

    @property
    def where(self) -> list[torch.device]:
        """The accelerators on which the tensors are, for torch's futures."""
        found = {twin.x.device for twin in self._twins.values()}
        return sorted((device for device in found if device.type != "cpu"), key=str)

    # ---------------------------------------------------------------------------------------------- copying

    def begin(self) -> None:
        """Let the side streams come after what the program has done so far on its own stream."""
        device = self._device
        device.refuse_capture()
        now = device.record(device.current())
        for stream in (device.down, device.up):
            device.wait(stream, now)
        for twin in self._twins.values():
            for stream in (device.down, device.up):
                device.uses(twin.x, stream)

    def down(self) -> Event:
        """Enqueue the copies of all inputs to the host; the event is after them."""
        for twin in self._twins.values():
            if twin.role & IN:
                self.pack_down(twin)
                if twin.x.layout is torch.strided:
                    self.copy_down(twin, 0, twin.x.numel())
        return self._device.record(self._device.down)

    def up(self) -> Event:
        """Enqueue the copies of all outputs to the device; the event is after them."""
        for twin in self._twins.values():
            if twin.role & OUT:
                if twin.x.layout is torch.strided:
                    self.copy_up(twin, 0, twin.x.numel())
                    self.unpack_up(twin)
                else:
                    self._enqueue_up(_copier(twin.x, twin.host))
        return self._device.record(self._device.up)

    def only(self) -> _Twin:
        """The one twin of a call on one tensor."""
        (twin,) = self._twins.values()
        return twin

    def pack_down(self, twin: _Twin) -> None:
        """Enqueue the copy into the contiguous one, if there is one."""
        if twin.packed is not None:
            self._device.enqueue(self._device.down, _copier(twin.packed, twin.x))

    def unpack_up(self, twin: _Twin) -> None:
        """Enqueue the copy out of the contiguous one, if there is one."""
        if twin.packed is not None:
            self._enqueue_up(_copier(twin.x, twin.packed))

    def copy_down(self, twin: _Twin, start: int, end: int) -> None:
        """Enqueue the copy of elements to the host."""
        if start < end:
            work = _copier(twin.host.view(-1)[start:end], twin.flat[start:end])
            self._device.enqueue(self._device.down, work)

    def copy_up(self, twin: _Twin, start: int, end: int) -> None:
        """Enqueue the copy of elements to the device."""
        if start < end:
            self._enqueue_up(_copier(twin.flat[start:end], twin.host.view(-1)[start:end]))

    def _enqueue_up(self, work: Callable[[], object]) -> None:
        self._device.enqueue(self._device.up, work)

    def finish(self, arrivals: Sequence[Event]) -> None:
        """Give the host memory back; the device reads from it until the events."""
        for buffer in self._taken:
            self._buffers.give(buffer, arrivals)
        self._taken = []


def _copier(target: Tensor, source: Tensor) -> Callable[[], object]:
    def copy() -> None:
        # Also in a sparse tensor that is somebody's gradient; and by a thread that is not in the program's mode.
        with torch.inference_mode(target.is_inference()), torch.no_grad():
            target.copy_(source, non_blocking=True)

    return copy
