"""How a flat piece of gradients gets reduced: on a communicator of Ringleader's, or through torch's own process groups.

A group of the backend "ringleader" gives each model a communicator of its own. So what the program itself does on its
group in hooks, or between the parts of a step, never gets in between the model's operations on some ranks only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ringleader import _core, errors
from ringleader.runtime import calls
from ringleader.runtime.dtypes import ReduceOp
from ringleader.torch.errors import torch_error
from ringleader.torch.process_group import ProcessGroupRingleader

__all__ = ["CommunicatorTransport", "GroupTransport", "Reduction", "Transport", "transport_for"]


class Reduction(Protocol):
    """A reduction in place of one flat tensor, as often as it is wanted. At most one is in flight."""

    def start(self) -> None:
        """Begin; the tensor must be left alone until `wait` returns."""

    def wait(self) -> None:
        """Wait for what `start` began. Raises its error."""

    def run(self) -> None:
        """The same as both, on the calling thread where that is possible."""


class Transport(ABC):
    """What a model needs of a group.

    Attributes
    ----------
    rank, size
        Place in the group, and its size.
    group
        torch's process group.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    @abstractmethod
    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a flat tensor, where it is reduced with the fewest copies."""

    @abstractmethod
    def reduction(self, flat: Tensor, average: bool) -> Reduction:
        """The mean or the sum over all ranks, in place."""

    @abstractmethod
    def maximum(self, x: Tensor) -> None:
        """The largest of each element over all ranks, in place."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int = 0) -> None:
        """Copy a contiguous tensor of rank `root` of the group to all others."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Fail the operations of the other ranks, where the backend can."""


class _PlanReduction:
    """A native plan on fixed memory: starting it is one call."""

    __slots__ = ("_call", "_plan", "_ptr", "_work")

    def __init__(self, call: calls.Call) -> None:
        self._call = call  # keeps the memory
        self._plan: _core.Plan = call.plan
        self._ptr = call.in_ptr
        self._work: _core.Work | None = None

    def start(self) -> None:
        try:
            self._work = self._plan.start(self._ptr, self._ptr, 0, self._call.keep)
        except errors.RingleaderError as error:
            raise torch_error(error) from None

    def wait(self) -> None:
        if self._work is None:
            return
        try:
            self._work.wait()
        except errors.RingleaderError as error:
            self._work = None
            raise torch_error(error) from None
        self._work = None  # not before: an interrupted wait is repeated

    def run(self) -> None:
        try:
            self._plan.run(self._ptr, self._ptr)
        except errors.RingleaderError as error:
            raise torch_error(error) from None


class CommunicatorTransport(Transport):
    """Over a communicator of the model's own, made of a process group of the backend "ringleader"."""

    def __init__(self, group: ProcessGroupRingleader) -> None:
        super().__init__(group)
        self._side = group.make_side("data parallel")
        self.comm = self._side.comm

    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: D102
        itemsize = torch.empty((), dtype=dtype).element_size()
        return torch.from_numpy(self.comm.empty(max(1, elements) * itemsize, np.uint8)).view(dtype)[:elements]

    def reduction(self, flat: Tensor, average: bool) -> Reduction:  # noqa: D102
        op = ReduceOp.AVG if average else ReduceOp.SUM
        return _PlanReduction(calls.all_reduce(self.comm, flat, op, None, None))

    def maximum(self, x: Tensor) -> None:  # noqa: D102
        self._try(lambda: self.comm.all_reduce(x, "max"))

    def broadcast(self, x: Tensor, root: int = 0) -> None:  # noqa: D102
        self._try(lambda: self.comm.broadcast(x, root))

    def abandon(self, reason: str) -> None:  # noqa: D102
        self.comm.abort(reason)

    @staticmethod
    def _try(operation: Any) -> None:
        try:
            operation()
        except errors.RingleaderError as error:
            raise torch_error(error) from None


class _GroupReduction:
    """An all-reduce of torch.distributed. The sum is divided here: not every backend has AVG."""

    __slots__ = ("_divisor", "_flat", "_group", "_work")

    def __init__(self, flat: Tensor, group: Any, divisor: int) -> None:
        self._flat = flat
        self._group = group
        self._divisor = divisor
        self._work: Any = None

    def start(self) -> None:
        self._work = dist.all_reduce(self._flat, group=self._group, async_op=True)

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.wait()
            if self._divisor != 1:
                self._flat.div_(self._divisor)

    def run(self) -> None:
        self.start()
        self.wait()


class GroupTransport(Transport):
    """Through torch.distributed, over any backend: for comparison, and where a model is on a GPU."""

    def empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: D102
        return torch.empty(elements, dtype=dtype, device=device)

    def reduction(self, flat: Tensor, average: bool) -> Reduction:  # noqa: D102
        return _GroupReduction(flat, self.group, self.size if average else 1)

    def maximum(self, x: Tensor) -> None:  # noqa: D102
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)

    def broadcast(self, x: Tensor, root: int = 0) -> None:  # noqa: D102
        dist.broadcast(x, dist.get_global_rank(self.group, root), group=self.group)

    def abandon(self, reason: str) -> None:
        """Gloo has nothing of the kind; its operations end when this process does, or by their limits."""


def transport_for(group: Any, device: torch.device) -> Transport:
    """The transport for gradients on `device` in a process group.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> type(transport_for(dist.group.WORLD, torch.device("cpu"))).__name__
    'GroupTransport'
    >>> dist.destroy_process_group()
    """
    if isinstance(group, ProcessGroupRingleader) and device.type == "cpu":
        return CommunicatorTransport(group)
    return GroupTransport(group)
