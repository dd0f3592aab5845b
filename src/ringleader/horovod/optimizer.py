"""`DistributedOptimizer`: an optimizer whose gradients are averaged while the backward pass goes on."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ringleader import errors
from ringleader.horovod import operations
from ringleader.horovod.compression import Compression
from ringleader.horovod.operations import Average, Handle, Sum
from ringleader.horovod.session import ProcessSet, global_process_set, lane_of
from ringleader.runtime.dtypes import ReduceOp

__all__ = ["DistributedOptimizer"]

_FUSION_THRESHOLD = 16 << 20


class _Group:
    """Parameters whose gradients travel together."""

    def __init__(self, number: int, parameters: list[torch.Tensor]) -> None:
        self.number = number
        self.parameters = parameters
        self.missing = len(parameters)
        self.handle: Handle[list[torch.Tensor]] | None = None
        self.afterwards: list[Callable[[], None]] = []
        """What gives sparse gradients their results, once `handle` is done."""


def _grouped(parameters: Sequence[torch.Tensor], groups: int | list[list[torch.Tensor]], limit: int) -> list[_Group]:
    """From the last parameter to the first, as their gradients become ready; one type and device in a group."""
    if isinstance(groups, list):
        return _as_told(parameters, groups)
    most = -(-len(parameters) // groups) if groups else len(parameters)
    made: list[list[torch.Tensor]] = []
    nbytes = 0
    for p in reversed(parameters):
        size = p.numel() * p.element_size()
        fits = made and len(made[-1]) < most and (groups or nbytes + size <= limit)
        if not fits or (made[-1][0].dtype, made[-1][0].device) != (p.dtype, p.device):
            made.append([])
            nbytes = 0
        made[-1].append(p)
        nbytes += size
    return [_Group(number, each) for number, each in enumerate(made)]


def _as_told(parameters: Sequence[torch.Tensor], groups: list[list[torch.Tensor]]) -> list[_Group]:
    """The caller's groups, in the order in which their last gradients become ready; the other parameters alone."""
    of = {id(p): i for i, group in enumerate(groups) for p in group}
    made: dict[int, list[torch.Tensor]] = {}
    for p in parameters:
        made.setdefault(of.get(id(p), -1 - id(p)), []).append(p)
    # A group is whole when its first parameter is ready, and gradients become ready from the last to the first.
    place = {id(p): i for i, p in enumerate(parameters)}
    ordered = sorted(made.values(), key=lambda group: -place[id(group[0])])
    return [_Group(number, each) for number, each in enumerate(ordered)]


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else x * factor


class _Averaging:
    """What `DistributedOptimizer` mixes into the class of the optimizer that it is given.

    Invariant: groups start in their order on every process, whatever the order in which gradients become ready; so
    all processes start the same operations in the same order. What is left at `synchronize` starts there, with zeros
    for gradients that this process does not have. A process outside the process set starts nothing.
    """

    param_groups: list[dict[str, Any]]

    def _prepare(
        self, options: dict[str, Any], names: dict[torch.Tensor, str], groups: int | list[list[torch.Tensor]]
    ) -> None:
        self._options = options
        self.backward_passes_per_step: int = options.pop("passes")
        self._sparse_as_dense: bool = options.pop("sparse_as_dense")
        limit = int(os.environ.get("HOROVOD_FUSION_THRESHOLD", _FUSION_THRESHOLD))
        self._parameter_names = names
        self._grouping = (groups, limit)
        self._hooks: list[Any] = []
        self._sparse: dict[int, int] = {}
        """Parameters whose gradients have been sparse, and in how many dimensions."""
        self._regroup()

    def _regroup(self) -> None:
        members: ProcessSet = self._options["process_set"] or global_process_set
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._groups = _grouped(parameters, *self._grouping) if members.included() else []
        self._next = 0
        self._skip = False
        self._synchronized = False
        self._left = {id(p): self.backward_passes_per_step for p in parameters}
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(group))  # type: ignore[no-untyped-call]
            for group in self._groups
            for p in group.parameters
        ]

    def _hook(self, group: _Group) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            self._synchronized = False
            self._left[id(parameter)] -= 1
            if self._left[id(parameter)] < 0:
                raise errors.InvalidArgument(
                    f"{self._parameter_names.get(parameter, 'a parameter')} got more than "
                    f"{self.backward_passes_per_step} gradients before step(); "
                    "expected backward_passes_per_step to be the number of backward passes per step"
                )
            if self._left[id(parameter)] == 0:
                group.missing -= 1
                self._start_full()

        return ready

    def _start_full(self) -> None:
        while self._next < len(self._groups) and self._groups[self._next].missing == 0:
            self._start(self._groups[self._next])

    def _start(self, group: _Group) -> None:
        dense = []
        for p in group.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
                if id(p) in self._sparse:
                    p.grad = p.grad.to_sparse(self._sparse[id(p)])
            if p.grad.layout is torch.strided:
                dense.append(p.grad)
            elif self._sparse_as_dense:
                dense.append(p.grad.to_dense())
                group.afterwards.append(self._as_sparse(p, dense[-1]))
            else:
                self._sparse[id(p)] = p.grad.sparse_dim()
                group.afterwards.append(self._gathered(p))
        name = f"gradients {group.number}"
        group.handle = operations.grouped_allreduce_async_(dense, name=name, **self._options)
        self._next += 1

    def _as_sparse(self, p: torch.Tensor, total: torch.Tensor) -> Callable[[], None]:
        """Optimizers for sparse gradients take no others, so the sum is sparse again."""
        assert p.grad is not None
        self._sparse[id(p)] = dims = p.grad.sparse_dim()

        def finish() -> None:
            p.grad = total.to_sparse(dims)

        return finish

    def _gathered(self, p: torch.Tensor) -> Callable[[], None]:
        assert p.grad is not None
        name = self._parameter_names.get(p)
        before = _scaled(p.grad, self._options.get("prescale_factor", 1.0))
        wait = operations.sparse_allreduce_async(before, name, self._options["op"], self._options["process_set"])

        def finish() -> None:
            p.grad = _scaled(wait(), self._options.get("postscale_factor", 1.0))

        return finish

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Average after so many backward passes from now on; on all processes, between two steps."""
        if passes < 1:
            raise errors.InvalidArgument(f"passes is {passes}; expected at least 1")
        self.backward_passes_per_step = passes
        self._left = dict.fromkeys(self._left, passes)

    def load_state_dict(self, *arguments: Any, **named: Any) -> None:
        """The optimizer's own, between two steps."""
        self._forget()
        self._skip = self._synchronized = False
        super().load_state_dict(*arguments, **named)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The optimizer's own; its parameters are averaged from now on. On all processes, between two steps."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self._regroup()

    def synchronize(self) -> None:
        """Wait until all gradients are averaged, to look at them before ``step()``, which then does not average again.

        Raises
        ------
        RingleaderError
            An operation failed.
        """
        while self._next < len(self._groups):
            self._start(self._groups[self._next])
        try:
            for group in self._groups:
                if group.handle is not None:
                    operations.synchronize(group.handle)
                for finish in group.afterwards:
                    finish()
            self._synchronized = True
        finally:
            self._forget()

    def _forget(self) -> None:
        self._next = 0
        self._left = dict.fromkeys(self._left, self.backward_passes_per_step)
        for group in self._groups:
            group.handle, group.missing, group.afterwards = None, len(group.parameters), []

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, ``step()`` does not wait."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: Any = None) -> Any:
        """Average what is not averaged yet, then the optimizer's own step; with a closure whenever that was called."""
        if closure is not None and not self._skip:

            def averaged() -> Any:
                loss = closure()
                self.synchronize()
                return loss

            return super().step(averaged)  # type: ignore[misc]
        if not self._skip and self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(). "
                "Horovod averages a second time here; Ringleader takes the gradients as they are",
                stacklevel=2,
            )
        elif not self._skip:
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """The optimizer's own.

        Raises
        ------
        InvalidArgument
            Gradients are on their way: call ``step()`` or `synchronize` first.
        """
        if any(group.handle is not None for group in self._groups):
            raise errors.InvalidArgument("zero_grad() while gradients are being averaged; call step() or synchronize()")
        super().zero_grad(*arguments, **named)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet | None = None,
) -> Any:
    """An optimizer like the given one that averages gradients over all processes before each step.

    Parameters
    ----------
    optimizer
        The result is of a subclass of its class, and takes over its parameters and state.
    named_parameters
        Names for error messages.
    compression
        As for `allreduce`; compressors of `ringleader.compress` keep their memory by group.
    backward_passes_per_step
        Gradients are averaged after so many backward passes.
    op
        `Average` or `Sum`.
    gradient_predivide_factor
        Averages divide by it before the sum, and by the rest after.
    num_groups
        Number of groups of gradients that travel together; 0 fills groups up to HOROVOD_FUSION_THRESHOLD bytes
        (16 MiB if not set).
    groups
        The same, or the groups themselves: lists of parameters. What is in none of them travels alone.
    sparse_as_dense
        Sparse gradients are reduced as dense ones, and are sparse again after. Else indices and values are gathered.
    process_set
        Processes that average. The optimizers of others step for themselves.

    Raises
    ------
    InvalidArgument
        Names that occur twice or miss a parameter, or a number that makes no sense.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> hvd.shutdown()
    """
    if op not in (Average, Sum):
        raise errors.InvalidArgument(f"op is {op!r}; expected Average or Sum for gradients")
    if backward_passes_per_step < 1 or num_groups < 0:
        raise errors.InvalidArgument(
            f"backward_passes_per_step is {backward_passes_per_step} and num_groups {num_groups}; "
            "expected at least 1 and 0"
        )
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise errors.InvalidArgument("gradient_predivide_factor works with op=Average only")
    names = _checked_names(optimizer, named_parameters)
    chosen = _checked_groups(num_groups if groups is None else groups)
    members = process_set or global_process_set
    options = {
        "op": op,
        "compression": compression,
        "process_set": process_set,
        "passes": backward_passes_per_step,
        "sparse_as_dense": sparse_as_dense,
    }
    if gradient_predivide_factor != 1.0 and members.included():
        size = lane_of(process_set).comm.size
        options |= {
            "op": Sum,
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor / size,
        }
    kind = type(optimizer)
    made: Any = type(kind.__name__, (_Averaging, kind), {})
    distributed = made.__new__(made)
    distributed.__dict__.update(optimizer.__dict__)
    # A scheduler puts the plain optimizer's own step there, which would go past the averaging.
    distributed.__dict__.pop("step", None)
    distributed._prepare(options, names, chosen)
    return distributed


def _checked_groups(groups: Any) -> int | list[list[torch.Tensor]]:
    if isinstance(groups, int):
        if groups < 0:
            raise errors.InvalidArgument(f"groups is {groups}; expected a number from 0 or lists of parameters")
        return groups
    found = [list(group) for group in groups]
    members = [p for group in found for p in group]
    if not all(isinstance(p, torch.Tensor) for p in members):
        raise errors.InvalidArgument("groups hold something that is no tensor; expected lists of parameters")
    if len({id(p) for p in members}) < len(members):
        raise errors.InvalidArgument("groups hold a parameter twice; expected each in one group")
    return found


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    if named_parameters is None:
        return {
            p: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise errors.InvalidArgument("named_parameters holds no (name, parameter) pairs; expected named_parameters()")
    words = [name for name, _ in pairs]
    twice = sorted({name for name in words if words.count(name) > 1})
    if twice:
        raise errors.InvalidArgument(f"named_parameters has {', '.join(twice)} more than once; expected each name once")
    names = {p: name for name, p in pairs}
    missing = sum(p not in names for group in optimizer.param_groups for p in group["params"])
    if missing:
        raise errors.InvalidArgument(
            f"{missing} of the optimizer's parameters are not in named_parameters; expected model.named_parameters()"
        )
    return names
