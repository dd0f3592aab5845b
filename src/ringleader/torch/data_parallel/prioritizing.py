"""From recorded rounds to partitions by priority."""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from ringleader.overlap import Conditions, CostCurve, PriorityPlan, Recording, plan_priority
from ringleader.torch.data_parallel.planning import PlannedBuckets
from ringleader.torch.data_parallel.priority import PartitionedGradients, make_no_hook
from ringleader.torch.data_parallel.reducer import Reducer

__all__ = ["ForwardRecorder", "PrioritizedPartitions"]


class ForwardRecorder:
    """Notes when each module of a model is first called in a forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.first: dict[nn.Module, float] = {}
        self.began = self.length = 0.0
        self._handles = [module.register_forward_pre_hook(_CalledHook(self)) for module in model.modules()]

    def begin(self) -> None:
        """A forward pass begins."""
        self.first.clear()
        self.began = perf_counter()

    def end(self) -> None:
        """It is over."""
        self.length = perf_counter() - self.began

    def called(self, module: nn.Module) -> None:
        """A module is called."""
        self.first.setdefault(module, perf_counter() - self.began)

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


class _CalledHook:
    def __init__(self, recorder: ForwardRecorder) -> None:
        self._recorder = recorder

    def __call__(self, module: nn.Module, _: Any) -> None:
        self._recorder.called(module)

    def __reduce__(self) -> Any:  # copies of the model are not recorded
        return make_no_hook, ()


class PrioritizedPartitions(PlannedBuckets):
    """Records rounds as for planned buckets, with all sent at the end; then partitions take the place of buckets."""

    def __init__(self, reducer: Reducer, model: nn.Module, cost: CostCurve, conditions: Conditions) -> None:
        super().__init__(reducer, cost, conditions)
        self._model = model
        self._conditions = conditions
        self.recorder: ForwardRecorder | None = ForwardRecorder(model)
        weakref.finalize(self, self.recorder.close).atexit = False
        self.gradients: PartitionedGradients | None = None

    @property
    def plan(self) -> PriorityPlan | None:  # type: ignore[override]
        """The partitions and their order."""
        return None if self.gradients is None else self.gradients.plan

    def _recording(self) -> Recording:
        assert self.recorder is not None
        plain = super()._recording()
        needed = np.zeros(len(self._reducer.slots))
        for module, indices in self._users().items():
            for index in indices:
                when = self.recorder.first[module]
                needed[index] = min(needed[index], when) if needed[index] else when
        return Recording(plain.ready, plain.backward_end, needed, self.recorder.length, plain.sent, plain.quiet)

    def _users(self) -> dict[nn.Module, list[int]]:
        """Which called module uses which parameters: its own, and those of parts of it that are not called themselves.

        (An attention layer, say, passes the weights of its output layer to a function.)
        """
        assert self.recorder is not None
        index_of = {id(slot.parameter): slot.index for slot in self._reducer.slots}
        called = self.recorder.first
        modules = dict(self._model.named_modules(remove_duplicate=False))
        users: dict[nn.Module, list[int]] = {}
        for name, module in modules.items():
            parts = name.split(".") if name else []
            own = [index_of[id(p)] for p in module.parameters(recurse=False) if id(p) in index_of]
            while own and modules[".".join(parts)] not in called and parts:
                parts.pop()
            if own:
                users.setdefault(modules[".".join(parts)], []).extend(own)
        return users

    def _adopt(self) -> None:
        reducer = self._reducer
        plan = self.planner.plan
        assert plan is not None and self.recorder is not None
        partitions = plan_priority(
            plan.timeline, self.planner.cost, self._conditions.overhead, gap=self._conditions.overhead
        )
        users = self._users()
        self.recorder.close()
        self.recorder = None
        reducer.release()
        self.gradients = PartitionedGradients(
            reducer.slots,
            self._transport,
            partitions,
            [int(i) for i in self.planner.order],
            users,
            reducer.options.average,
        )
