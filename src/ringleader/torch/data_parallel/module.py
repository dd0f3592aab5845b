"""The module that wraps a model."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from ringleader import errors
from ringleader._names import unknown
from ringleader.compress import Compressor, Policy
from ringleader.overlap import BucketPlan, PriorityPlan
from ringleader.torch.data_parallel import layout
from ringleader.torch.data_parallel.buckets import Slot
from ringleader.torch.data_parallel.buffers import BufferSync
from ringleader.torch.data_parallel.compressed import Compression
from ringleader.torch.data_parallel.graph import differentiable, reachable
from ringleader.torch.data_parallel.joining import JoiningMixin
from ringleader.torch.data_parallel.optimizers import make_optimizer
from ringleader.torch.data_parallel.planning import FixedBuckets, PlannedBuckets, measure_cost
from ringleader.torch.data_parallel.prioritizing import PrioritizedPartitions
from ringleader.torch.data_parallel.priority import PartitionedGradients
from ringleader.torch.data_parallel.reducer import Options, Reducer
from ringleader.torch.data_parallel.start import broadcast_from_first, verify_alike
from ringleader.torch.data_parallel.state import StateMixin, accept_plain_names
from ringleader.torch.data_parallel.transport import Transport, transport_for

__all__ = ["DataParallel", "Overlap"]

Overlap = Literal["plan", "priority", "fixed", "off"]
_OVERLAPS = ("plan", "priority", "fixed", "off")

_MAY_BE_SPARSE = (nn.Embedding, nn.EmbeddingBag)

_current_graph_task = torch._C._current_graph_task_id


def _nothing() -> None:
    """What follows a round of a wrapper that is gone."""


class DataParallel(StateMixin, nn.Module, JoiningMixin):
    """Data parallel training of a model: after ``backward()``, gradients are the mean over all ranks.

    Takes the place of `torch.nn.parallel.DistributedDataParallel` and of its arguments that concern the training.
    Gradients are collected in buckets in memory that the ranks of a host reach without a copy; a bucket is sent
    when its last gradient is there, on a communicator of the model's own.

    Parameters
    ----------
    module
        The model. Its parameters and buffers must be alike on all ranks in name, shape, type and strides; they are
        given the values of the group's first rank.
    process_group
        Default: all ranks. Of the backend "ringleader"; with any other the gradients go through torch's own
        all-reduce.
    bucket_cap_mb
        MiB of a bucket (the first has 1); a bucket is closed by the gradient that brings it to so many.
    find_unused_parameters
        After each forward pass the graph is searched for parameters that it does not use. A parameter that no rank
        uses keeps its gradient, or has none; one that some ranks use gets the mean with zeros for the others.
    broadcast_buffers
        Before each forward pass with gradients that are to be reduced, buffers get the first rank's values.
    gradient_as_bucket_view
        ``grad`` is a part of a bucket. False: it stays a tensor of its own, for the price of two copies.
    static_graph
        Every step uses the same parameters equally often. The first step learns which and how often.
    overlap
        "plan": the first steps are recorded, then the buckets are chosen that leave the least communication exposed;
        see `plan`. "fixed": buckets of `bucket_cap_mb`. Both are sent while the backward pass goes on. "off": at its
        end. "priority": while the next forward pass goes on as well, see `optimizer`.
    average
        False: gradients are the sum over all ranks.
    compression
        A compressor of `ringleader.compress`, for parameters with two or more dimensions and 1024 elements, or a
        policy. What it remembers is in `communication_state_dict`.

    Raises
    ------
    MismatchError
        The models differ; names the ranks and the first difference.
    InvalidArgument
        An argument that is not understood, or a model without parameters that have gradients.

    Notes
    -----
    What a forward pass within `no_sync` computes is not reduced, but added to what is there. Several backward passes
    after one forward pass each reduce what is there by then. In state dictionaries names have no prefix.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12), 2020.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> from ringleader.torch import DataParallel
    >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = DataParallel(nn.Linear(2, 1))
    >>> model(torch.tensor([[3.0, 4.0]])).sum().backward()
    >>> model.weight.grad
    tensor([[3., 4.]])
    >>> list(model.state_dict())
    ['weight', 'bias']
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        *,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        overlap: Overlap = "plan",
        average: bool = True,
        compression: Compressor | Policy | None = None,
    ) -> None:
        nn.Module.__init__(self)
        JoiningMixin.__init__(self)
        if overlap not in _OVERLAPS:
            raise errors.InvalidArgument(unknown("overlap", overlap, _OVERLAPS))
        if not bucket_cap_mb > 0:
            raise errors.InvalidArgument(f"bucket_cap_mb is {bucket_cap_mb}; expected MiB, more than 0")
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        if overlap == "priority" and (find_unused_parameters or static_graph or compression is not None):
            raise errors.InvalidArgument(
                "overlap='priority' needs models that use every parameter once a step, and sends gradients as they "
                "are; expected neither find_unused_parameters nor static_graph nor compression"
            )
        self._compressor = compression
        self._options = Options(
            find_unused_parameters and not static_graph,
            static_graph,
            gradient_as_bucket_view,
            average,
            overlap == "off",
        )
        self._overlap = overlap
        self._cap_bytes = max(1, int(min(bucket_cap_mb, 1 << 40) * (1 << 20)))  # also infinity
        self._sync = True
        self._defer = False
        self._group: Any = None
        self._reducer: Reducer | None = None
        self._buckets: FixedBuckets | PlannedBuckets | None = None
        accept_plain_names(self)
        self._start(dist.group.WORLD if process_group is None else process_group)

    # --------------------------------------------------------------------------------------------- start

    def _start(self, group: Any) -> None:
        """Compare the models, give all the same values, make the buckets; collective."""
        if group is None:
            raise errors.InvalidArgument("there is no process group; call torch.distributed.init_process_group() first")
        ignored = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))
        parameters = [(n, p) for n, p in self.module.named_parameters() if n not in ignored]
        buffers = [(n, b) for n, b in self.module.named_buffers() if n not in ignored]
        slots = [Slot(i, n, p) for i, (n, p) in enumerate((n, p) for n, p in parameters if p.requires_grad)]
        if not slots:
            raise errors.InvalidArgument(
                f"no parameter of {type(self.module).__name__} has a gradient; expected at least one with requires_grad"
            )
        sparse = [
            n or type(m).__name__ for n, m in self.module.named_modules() if isinstance(m, _MAY_BE_SPARSE) and m.sparse
        ]
        if sparse:
            raise errors.InvalidArgument(
                f"{', '.join(sparse)} has sparse gradients, which do not fit into buckets; make it with sparse=False, "
                "or use torch's DistributedDataParallel"
            )
        verify_alike([*parameters, *buffers], group)
        self._group = group
        self._transport: Transport = transport_for(group, slots[0].parameter.device)
        self._buffers_sync = BufferSync(self.module, [n for n, _ in buffers], self._transport)
        self._parameters_sync = [p for _, p in parameters]
        broadcast_from_first(self.current_state(), self._transport)
        self._index_of = {id(slot.parameter): slot.index for slot in slots}
        order = [slot.index for slot in reversed(slots)]
        compression = None
        if self._compressor is not None:
            compression = Compression(self._compressor, self._transport, self._options.average)
        assignment = layout.fixed(slots, order, self._cap_bytes)
        reducer = Reducer(slots, self._transport, self._options, assignment, compression)
        if self._overlap in ("plan", "priority"):
            total = sum(slot.parameter.nbytes for slot in slots)
            cost, conditions = measure_cost(self._transport, total, slots[0].parameter.device)
            if self._overlap == "plan":
                self._buckets = PlannedBuckets(reducer, cost, conditions)
            else:
                self._buckets = PrioritizedPartitions(reducer, self.module, cost, conditions)
        else:
            self._buckets = FixedBuckets(reducer, self._cap_bytes)
        # The hooks live as long as the model's parameters; this wrapper may go before, and takes them along.
        after_round = weakref.WeakMethod(self._after_round)
        reducer.on_round = lambda: (after_round() or _nothing)()
        weakref.finalize(self, reducer.close).atexit = False
        self._reducer = reducer

    @property
    def process_group(self) -> Any:
        """The group of the ranks that train this model together."""
        return self._group

    @property
    def reducer(self) -> Reducer:
        """What reduces the gradients."""
        if self._reducer is None:
            self._start(dist.group.WORLD)
        assert self._reducer is not None
        return self._reducer

    # --------------------------------------------------------------------------------------------- steps

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The model's forward pass; with gradients also what comes before and after, see the class."""
        partitioned = self._partitioned()
        if not torch.is_grad_enabled() or _current_graph_task() != -1:  # or one repeated within a backward pass
            if partitioned is not None:
                partitioned.finish()
            return self.module(*inputs, **kwargs)
        reducer = self.reducer
        reducer.prepare(self._sync)
        if partitioned is not None:
            partitioned.prepare(self._sync)
            if not self.training:  # then layers may take short cuts, past the hooks of their parts
                partitioned.finish()
        if self._join_config.enable:
            self._before_joint_step()
        if self._sync:
            self.sync_buffers()
        recorder = self._buckets.recorder if isinstance(self._buckets, PrioritizedPartitions) else None
        if recorder is not None:
            recorder.begin()
        outputs = self.module(*inputs, **kwargs)
        if recorder is not None:
            recorder.end()
        if not self._sync and partitioned is None:
            return outputs
        starts = differentiable(outputs)
        for x in starts:
            x.register_hook(reducer.begin if partitioned is None else partitioned.settle)  # type: ignore[no-untyped-call]
        if partitioned is not None and not starts:
            partitioned.finish()
        if partitioned is None and self._options.find_unused:
            reducer.reach(reachable(starts, self._index_of))
        return outputs

    def _after_round(self) -> None:
        if self._buckets is not None and not self._join_config.enable:  # a rank that has joined could not take part
            self._buckets.after_round()
        partitioned = self._partitioned()
        if partitioned is not None:
            partitioned.deferred = self._defer

    def _partitioned(self) -> PartitionedGradients | None:
        return self._buckets.gradients if isinstance(self._buckets, PrioritizedPartitions) else None

    def optimizer(self, kind: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
        """An optimizer of the model's parameters, which with ``overlap="priority"`` steps each as its gradient arrives.

        The backward pass then returns while gradients are on their way, front layers first; ``step()`` only notes that
        a step is due, with the learning rates of that moment; before a module is called in the next forward pass its
        parameters are stepped. The result is the same, bit for bit, as stepping after everything has arrived.

        Look at gradients (to clip them, say) or parameters in between only after `synchronize`. A module that uses a
        parameter of another one must not be called before that one. Without an optimizer made here, backward passes
        wait for their gradients.

        Parameters
        ----------
        kind
            Its class, which must step each parameter independently of the others, as nearly all do.
        options
            Its arguments.

        Examples
        --------
        >>> import torch.distributed as dist
        >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DataParallel(nn.Linear(2, 1, bias=False), overlap="priority")
        >>> optimizer = model.optimizer(torch.optim.SGD, lr=0.5)
        >>> with torch.no_grad():
        ...     _ = model.weight.zero_()
        >>> for _ in range(10):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 2)).sum().backward()
        ...     optimizer.step()
        >>> model.synchronize()
        >>> model.weight.tolist()
        [[-5.0, -5.0]]
        >>> dist.destroy_process_group()
        """
        if self._overlap != "priority":
            return kind(self.module.parameters(), **options)
        self._defer = True
        return make_optimizer(kind, self.module.parameters(), options, self._partitioned)

    def synchronize(self) -> None:
        """Wait for gradients that are on their way, and make the steps that are due."""
        partitioned = self._partitioned()
        if partitioned is not None:
            partitioned.finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients; after their step, where one is due."""
        partitioned = self._partitioned()
        if partitioned is None or not partitioned.clear(set_to_none):
            super().zero_grad(set_to_none)

    def plan(self) -> BucketPlan | PriorityPlan | None:
        """What was planned, with a ``table()``, and buckets with a ``picture(path)``; None as long as there is no plan.

        Examples
        --------
        >>> import torch.distributed as dist
        >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
        >>> for _ in range(10):
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> sorted(name for bucket in model.plan().buckets for name in bucket)
        [0, 1, 2, 3]
        >>> dist.destroy_process_group()
        """
        return None if self._buckets is None else self._buckets.plan

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it gradients are only accumulated; the first step after it reduces the sum.

        The forward pass has to be within it.

        Examples
        --------
        >>> import torch.distributed as dist
        >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DataParallel(nn.Linear(2, 1, bias=False))
        >>> with model.no_sync():
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> model.weight.grad
        tensor([[2., 2.]])
        >>> dist.destroy_process_group()
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def sync_buffers(self, active: bool = True) -> None:
        """Give buffers the values of the first rank (while ranks join: of the last that has data); collective."""
        if not self._buffers_sync or not self.broadcast_buffers:
            return
        root = self.highest_rank(active) if self._join_config.enable else 0
        self._buffers_sync.broadcast(root)

    def current_state(self) -> list[torch.Tensor]:
        """Parameters and buffers that the ranks have alike."""
        return [*self._parameters_sync, *self._buffers_sync.current()]

    # --------------------------------------------------------------------------------------------- as the model itself

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):
                raise
            return getattr(super().__getattr__("module"), name)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process: the copy finds the default group with its first step."""
        self.synchronize()
        kept = dict(self.__dict__)
        for name in ("_reducer", "_transport", "_buffers_sync", "_index_of", "_parameters_sync", "_group", "_buckets"):
            kept.pop(name, None)
        kept["_load_state_dict_pre_hooks"] = type(self._load_state_dict_pre_hooks)()
        return kept

    def __setstate__(self, kept: dict[str, Any]) -> None:
        super().__setstate__(kept)  # type: ignore[no-untyped-call]
        self._group = self._reducer = self._buckets = None
        accept_plain_names(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        """A copy of the model, wrapped for the same group; all ranks that go on training it must have copied it."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        twin._group = self._group
        return twin
