"""CUDA and ROCm devices, by torch's streams and events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch

from ringleader import errors
from ringleader.runtime.config import logger

__all__ = ["CudaDevice"]

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of the process

_log = logger("COLL")


class CudaDevice:
    """One GPU.

    Parameters
    ----------
    device
        ``torch.device("cuda", index)``.

    References
    ----------
    CUDA Runtime API, "Memory Management": cudaHostRegister.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        streams: list[Any] = [torch.cuda.Stream(device) for _ in range(4)]  # type: ignore[no-untyped-call]
        self.down, self.up, self.lane, self.back = streams
        self._registers = True

    def current(self) -> Any:
        """The calling thread's current stream."""
        return torch.cuda.current_stream(self._device)

    def scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, `stream` is the current one, and its device the current device."""
        return torch.cuda.stream(stream)

    def enqueue(self, stream: Any, work: Callable[[], object]) -> None:
        """Launch `work` in `stream`. It must not wait for the device."""
        with torch.cuda.stream(stream):
            work()

    def record(self, stream: Any) -> torch.cuda.Event:
        """An event at the present end of `stream`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Let `stream` wait for the event, on the device."""
        stream.wait_event(event)

    def uses(self, x: torch.Tensor, stream: Any) -> None:
        """Keep the memory of `x` from being given away before `stream` is done with it."""
        if x.is_cuda:  # tensors of the host may be beside it in a call; they have no streams
            x.record_stream(stream)

    def refuse_capture(self) -> None:
        """Raise InvalidArgument while a CUDA graph is being captured: the host has a part in every collective."""
        if torch.cuda.is_current_stream_capturing():
            raise errors.InvalidArgument(
                "a collective of the backend 'ringleader' was called while a CUDA graph is being captured; its data "
                "passes through the host, which a graph cannot replay: call it outside of the capture"
            )

    def register(self, memory: torch.Tensor) -> bool:
        """Pin this host memory in place, so that copies to and from it are asynchronous and need no bounce buffer."""
        if not self._registers:
            return False
        with torch.cuda.device(self._device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE))
            if code == 0:
                return True
            self._registers = False
            _log.warning(
                "cudaHostRegister of %d bytes failed with error %d; tensors are staged through torch's pinned memory, "
                "which costs one more copy on the host",
                memory.nbytes,
                code,
            )
            with suppress(RuntimeError):  # the error stays behind, and the next kernel would be blamed: let this one be
                torch.ones(1, device=self._device)
        return False

    def unregister(self, ptr: int) -> None:
        """Unpin what `register` has pinned."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(ptr)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Bytes from torch's allocator of pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
