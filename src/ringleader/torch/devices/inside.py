"""The ranks of one host: another backend of torch (NCCL, Gloo), and the steps that hierarchical collectives need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from ringleader import errors
from ringleader._names import unknown
from ringleader.torch.devices.device import Device, device_of, kinds
from ringleader.torch.devices.host import HostDevice

__all__ = ["KINDS", "Inside", "make_backend"]

_HOST = HostDevice()

KINDS = ("auto", "nccl", "gloo")

# The Gloo of torch 2.6 adds in a reduce-scatter, whatever the operator is.
_GLOO_ADDS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)


def make_backend(kind: str, store: Any, local: int, size: int, seconds: float) -> tuple[Any, str]:
    """A backend of torch for the ranks of a host, and the kind of device whose tensors it moves.

    Parameters
    ----------
    kind
        ``"nccl"``, ``"gloo"``, or ``"auto"``: NCCL where this process has a GPU, else Gloo.
    store
        torch's store, prefixed for this host.
    local, size
        This rank's number on its host, and how many there are.

    Raises
    ------
    InvalidArgument
        An unknown kind, or NCCL where torch has none.
    """
    if kind not in KINDS:
        raise errors.InvalidArgument(unknown("backend inside hosts", kind, KINDS, more=", or a process group"))
    gpu = "cuda" in kinds() and torch.cuda.is_available() and dist.is_nccl_available()
    if kind == "nccl" and not gpu:
        raise errors.InvalidArgument(
            "inside is 'nccl', but this process has no GPU that torch can use, or a torch without NCCL; use 'gloo'"
        )
    limit = timedelta(seconds=seconds)
    if kind == "gloo" or not gpu:
        return dist.ProcessGroupGloo(store, local, size, timeout=limit), "cpu"
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, local, size, options), "cuda"


class Inside:
    """A host's part of hierarchical collectives.

    Works are waited for on the calling thread's current stream, as torch does it: over NCCL the host goes on.

    Parameters
    ----------
    backend
        Any backend or process group of torch over the ranks of this host, in their order; None for a host of one rank.
    kind
        The type of device whose tensors it moves.
    local, size
        This rank's number on its host, and how many there are.
    rails
        Into how many parts data is cut, see `Layout`.
    owned
        Whether `close` ends the backend.
    """

    def __init__(self, backend: Any, kind: str, local: int, size: int, rails: int, owned: bool = True) -> None:
        self.backend, self.kind, self._owned = backend, kind, owned
        self.local, self.size, self.rails = local, size, rails
        self._home: torch.device | None = torch.device("cpu") if kind == "cpu" else None
        # Copies from a device are enqueued one segment ahead. On the CPU that would mean to wait for it.
        self.ahead = 0 if kind == "cpu" else 1

    def home(self) -> torch.device:
        """Where tensors of other places are copied: of several devices the one that is current at the first call."""
        if self._home is None:
            self._home = torch.empty(0, device=self.kind).device
        return self._home

    def place(self, x: Tensor) -> Tensor:
        """The tensor where the backend can move it: itself, or a copy."""
        return x if x.device.type == self.kind else x.to(self.home())

    def device_at(self, where: torch.device) -> Device:
        """The device for streams and events of tensors at a place; tensors of the CPU have none.

        Raises
        ------
        UnsupportedType
            None is known.
        """
        if where.type == "cpu":
            return _HOST
        device = device_of(torch.empty(0, device=where))
        if device is None:
            raise errors.UnsupportedType(
                f"a hierarchical collective on {where}, for which no device is known; see "
                "ringleader.torch.devices.register_device"
            )
        return device

    def all_reduce(self, x: Tensor, op: Any) -> Callable[[], None]:
        """Start to reduce in place, everywhere; call what it returns to wait."""
        if self.size == 1:
            return _nothing
        opts = c10d.AllreduceOptions()
        opts.reduceOp = op
        return _waiting([self.backend.allreduce([x], opts)])

    def reduce_parts(self, x: Tensor, part: Tensor | None, op: Any) -> Callable[[], None]:
        """Start to reduce `x`, whose j-th part goes to `part` on the j-th rank. Destroys `x`."""
        parts = x.view(self.rails, -1)
        if self.size == 1:
            assert part is not None
            part.copy_(parts[0])
            return _nothing
        if self.size == self.rails and not (_GLOO_ADDS and self.kind == "cpu"):
            opts = c10d.ReduceScatterOptions()
            opts.reduceOp = op
            return _waiting([self.backend._reduce_scatter_base(part, x, opts)])
        works = []
        for root, row in enumerate(parts):
            options = c10d.ReduceOptions()
            options.reduceOp, options.rootRank = op, root
            works.append(self.backend.reduce([row], options))
        return _waiting(works, lambda: part.copy_(parts[self.local]) if part is not None else None)

    def share_parts(self, x: Tensor, part: Tensor | None) -> Callable[[], None]:
        """Start to fill `x` on all ranks, the j-th part of it from the j-th rank's `part`."""
        parts = x.view(self.rails, -1)
        if (part is not None and self.size != self.rails) or self.size == 1:
            assert part is not None
            parts[self.local].copy_(part)
        if self.size == 1:
            return _nothing
        if self.size == self.rails:
            return _waiting([self.backend._allgather_base(x, part, c10d.AllgatherOptions())])
        return _waiting([self._broadcast(row, root) for root, row in enumerate(parts)])

    def broadcast(self, x: Tensor, root: int) -> Callable[[], None]:
        """Start to copy the tensor of rank `root` of this host into those of the others."""
        return _nothing if self.size == 1 else _waiting([self._broadcast(x, root)])

    def all_gather(self, out: Tensor, x: Tensor) -> Callable[[], None]:
        """Start to gather the ranks' tensors in the rows of `out`."""
        if self.size == 1:
            out.view(-1).copy_(x.view(-1))
            return _nothing
        return _waiting([self.backend._allgather_base(out.view(-1), x, c10d.AllgatherOptions())])

    def _broadcast(self, x: Tensor, root: int) -> Any:
        opts = c10d.BroadcastOptions()
        opts.rootRank = root
        return self.backend.broadcast([x], opts)

    def abort(self) -> None:
        """Let the others of the host not wait for this rank, as far as the backend can do that."""
        with suppress(Exception):  # Gloo cannot; its own time limit ends the wait there
            self.backend.abort()

    def close(self) -> None:
        """Leave."""
        backend, self.backend = self.backend, None
        if backend is not None and self._owned:
            with suppress(Exception):
                backend.shutdown()


def _nothing() -> None:
    """Nothing to wait for."""


def _waiting(works: list[Any], after: Callable[[], object] = _nothing) -> Callable[[], None]:
    def wait() -> None:
        for work in works:
            work.wait()
        after()

    return wait
