"""Buckets whose gradients are compressed on their way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ringleader.compress import Compressor, ErrorFeedback, Policy
from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.runtime.communicator import Communicator
from ringleader.torch.data_parallel.buckets import Bucket
from ringleader.torch.data_parallel.transport import CommunicatorTransport, Transport
from ringleader.torch.errors import torch_error
from ringleader.torch.state import arrays_to_tensors, tensors_to_arrays
from ringleader.torch.vectors import reduce_compressed

__all__ = ["Compression"]


class _Part:
    """Gradients of a bucket that go together: with one compressor, or with none."""

    def __init__(self, key: str, compressor: Compressor | None, views: list[Tensor]) -> None:
        self.key, self.compressor, self.views = key, compressor, views
        if compressor is not None:
            return
        sizes = [view.numel() for view in views]
        self._vector = torch.zeros(sum(sizes), dtype=views[0].dtype)
        pieces = torch.split(self._vector, sizes)
        self._pieces = [piece.view(view.shape) for piece, view in zip(pieces, views, strict=True)]

    @torch.no_grad()
    def reduce(self, comm: Communicator, average: bool) -> None:
        """Replace the gradients by their mean or sum over all ranks."""
        if self.compressor is not None:
            reduce_compressed(comm, self.views, average, self.compressor, self.key)
            return
        torch._foreach_copy_(self._pieces, self.views)
        comm.all_reduce(self._vector, "avg" if average else "sum")
        torch._foreach_copy_(self.views, self._pieces)


class _Reduction:
    """A bucket's; beside the backward pass on a thread of the model's."""

    def __init__(self, parts: Sequence[_Part], comm: Communicator, average: bool, thread: ThreadPoolExecutor) -> None:
        self._parts, self._comm, self._average, self._thread = parts, comm, average, thread
        self._future: Future[None] | None = None

    def _reduce(self) -> None:
        try:
            for part in self._parts:
                part.reduce(self._comm, self._average)
        except RingleaderError as error:
            raise torch_error(error) from None

    def start(self) -> None:
        self._future = self._thread.submit(self._reduce)

    def wait(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def run(self) -> None:
        self.start()  # what was started before is on that thread, too
        self.wait()


class Compression:
    """Compresses a model's gradients.

    What compressors remember of gradients belongs to an arrangement in buckets: it starts anew when that changes.

    Parameters
    ----------
    compression
        A compressor for all that has two or more dimensions and 1024 elements, or a policy.
    """

    def __init__(self, compression: Compressor | Policy, transport: Transport, average: bool) -> None:
        if not isinstance(compression, Compressor | Policy):
            raise InvalidArgument(
                f"compression is {compression!r}; expected a compressor or a Policy of ringleader.compress"
            )
        if not isinstance(transport, CommunicatorTransport):
            raise InvalidArgument(
                "compression needs a process group of the backend 'ringleader' and gradients on the CPU"
            )
        self.policy = Policy.of(compression)
        self._comm, self._average = transport.comm, average
        self._thread = ThreadPoolExecutor(1, "ringleader-compression")
        self._layout: list[list[str]] = []

    def attach(self, buckets: Sequence[Bucket]) -> None:
        """Let these buckets be compressed."""
        layout = [[slot.name for slot in bucket.slots] for bucket in buckets]
        if layout != self._layout:
            for each in self.policy.compressors():
                if isinstance(each, ErrorFeedback):
                    each.forget()
        self._layout = layout
        for number, bucket in enumerate(buckets):
            bucket.reduction = _Reduction(self._parts(number, bucket), self._comm, self._average, self._thread)

    def _parts(self, number: int, bucket: Bucket) -> list[_Part]:
        together: dict[int, tuple[Compressor | None, list[Tensor]]] = {}
        for slot, view in zip(bucket.slots, bucket.views, strict=True):
            chosen = self.policy.choose(slot.name, slot.parameter.shape) if view.is_floating_point() else None
            together.setdefault(id(chosen), (chosen, []))[1].append(view)
        return [_Part(str(number), chosen, views) for chosen, views in together.values()]

    def state_dict(self) -> dict[str, Any]:
        """What compressors remember on this rank, and of which arrangement."""
        return {"policy": arrays_to_tensors(self.policy.state_dict()), "layout": self._layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; its buckets have to be installed after this."""
        self.policy.load_state_dict(tensors_to_arrays(state["policy"]))
        self._layout = [list(names) for names in state["layout"]]
