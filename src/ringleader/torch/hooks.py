"""Communication hooks for DistributedDataParallel that compress gradients.

>>> import torch.distributed as dist
>>> from torch import nn
>>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
>>> model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
>>> hook = topk(ratio=0.01).register(model)
>>> model(torch.ones(1, 64)).sum().backward()
>>> model.module.weight.grad.sum().item()
4096.0
>>> dist.destroy_process_group()
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringleader import adapt, compress, errors
from ringleader.compress.base import Compressor, log
from ringleader.compress.policy import LEAST_ELEMENTS, Policy
from ringleader.torch.futures import WorkFuture
from ringleader.torch.process_group import ProcessGroupRingleader
from ringleader.torch.state import arrays_to_tensors, tensors_to_arrays
from ringleader.torch.vectors import average_as_they_are, exact_type, joined, reduce_compressed, spread

__all__ = [
    "AdaptiveHook",
    "CompressionHook",
    "adaptive",
    "bf16",
    "compressed",
    "dgc",
    "fp16",
    "int4",
    "int8",
    "natural",
    "onebit",
    "powersgd",
    "qsgd",
    "randomk",
    "topk",
]

# DDP arranges its buckets anew after the first step. A layout from a checkpoint is kept for so many steps.
_PATIENCE = 3

Layout = tuple[str, ...]


class CompressionHook:
    """Averages gradients with a compressor; for one model. Made by the functions of this module.

    Gradients of vectors and of small parameters are sent as they are, unless a `Policy` says otherwise. The first step
    is not compressed: after it DDP arranges its buckets anew, and what a compressor remembers belongs to an
    arrangement. A state that was loaded has an arrangement of its own, which is kept while DDP comes back to it:
    training goes on with the same bits as without the interruption. If DDP does not (another ``bucket_cap_mb``), memory
    starts anew, with one line in the log.

    Works with ``no_sync``, the join context, unused parameters and half-precision gradients. Reductions run beside the
    backward pass, on a communicator of their own.

    Parameters
    ----------
    compression
        Any compressor of `ringleader.compress`, or a `Policy` that has one for each parameter.
    least_elements, vectors
        See `Policy`; for a compressor.
    warmup_steps
        So many steps at the start are not compressed. `onebit` needs it: 15% to 25% of the training, as in 1-bit Adam.
    """

    def __init__(
        self,
        compression: Compressor | Policy,
        least_elements: int = LEAST_ELEMENTS,
        vectors: bool = False,
        warmup_steps: int = 0,
    ) -> None:
        if warmup_steps < 0:
            raise errors.InvalidArgument(f"warmup_steps is {warmup_steps!r}; expected an integer from 0")
        self.warmup_steps = warmup_steps
        self.policy = Policy.of(compression, least_elements, vectors)
        self._group: Any = None
        self._names: dict[int, str] = {}
        self._layout: dict[int, Layout] = {}
        self._loaded_for = 0  # steps for which a loaded layout is still kept
        self._step = 0
        self._waiting: list[tuple[Any, dict[str, torch.Tensor], WorkFuture]] = []

    def register(self, model: DistributedDataParallel) -> "CompressionHook":
        """Make this the communication hook of a model. Once: a hook has the memory of one model.

        Raises
        ------
        InvalidArgument
            No DDP model, another backend than "ringleader", or the hook has a model already.
        RuntimeError
            From torch: the model has a hook already.
        """
        if not isinstance(model, DistributedDataParallel):
            raise errors.InvalidArgument(f"model is a {type(model).__name__}; expected a DistributedDataParallel")
        group: Any = model.process_group
        if not isinstance(group, ProcessGroupRingleader):
            name = dist.get_backend(group)
            raise errors.InvalidArgument(f"the model's process group has backend {name!r}; expected 'ringleader'")
        if self._group is not None:
            raise errors.InvalidArgument("the hook is registered with a model already; make one for each model")
        model.register_comm_hook(self, _run)
        self._group = group
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        return self

    # ------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What the compressor remembers, on this rank; of tensors and plain values. Save it on every rank."""
        return {
            "policy": arrays_to_tensors(self.policy.state_dict()),
            "layout": {index: list(names) for index, names in self._layout.items()},
            "step": self._step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, also of a run with another number of ranks or other buckets."""
        self.policy.load_state_dict(tensors_to_arrays(state["policy"]))
        self._layout = {int(index): tuple(names) for index, names in state["layout"].items()}
        self._step = int(state["step"])
        self._loaded_for = _PATIENCE if self._layout else 0

    # ------------------------------------------------------------------------------------------- steps

    def reduce(self, bucket: Any) -> WorkFuture:
        """What DDP calls with each bucket, in the same order on all ranks: a future of its averaged buffer."""
        gradients = {
            self._names[id(parameter)]: gradient
            for parameter, gradient in zip(bucket.parameters(), _gradients(bucket), strict=True)
        }
        index, names = bucket.index(), tuple(gradients)
        if self._step and not self._loaded_for and self._layout.get(index, names) != names:
            self._start_anew()
        if self._step and not self._loaded_for:
            self._layout.setdefault(index, names)
        future = WorkFuture(self._group._callback_thread)
        self._waiting.append((bucket.buffer(), gradients, future))
        # A loaded layout may need gradients of several buckets for one of its own: then all wait for the last.
        kept = bool(self._loaded_for) and self._layout.get(index) != names
        work: Sequence[tuple[str, dict[str, torch.Tensor]]] = ()
        finished: list[tuple[Any, WorkFuture]] = []
        if not kept and len(self._waiting) == 1:
            work, finished = [(str(index), gradients)], [(bucket.buffer(), future)]
            self._waiting.clear()
        elif bucket.is_last():
            work, finished = self._regroup(), [(buffer, each) for buffer, _, each in self._waiting]
            self._waiting.clear()
        if finished:
            self._later(work, finished, compressed=self._step >= max(1, self.warmup_steps))
        if bucket.is_last():
            self._step += 1
            self._loaded_for = max(0, self._loaded_for - 1)
        return future

    def _regroup(self) -> list[tuple[str, dict[str, torch.Tensor]]]:
        """The waiting gradients by the layout; those that are not in it on their own."""
        waiting = {name: gradient for _, gradients, _ in self._waiting for name, gradient in gradients.items()}
        work = []
        for index, names in self._layout.items():
            if names and all(name in waiting for name in names):
                work.append((str(index), {name: waiting.pop(name) for name in names}))
        if waiting:
            work.append(("rest", waiting))
        return work

    def _start_anew(self) -> None:
        log.warning(
            "gradient buckets are arranged in another way than before: what %s remembers starts anew",
            " and ".join(type(each).__name__ for each in self.policy.compressors()),
        )
        self._layout = {}
        for each in self.policy.compressors():
            if isinstance(each, compress.ErrorFeedback):
                each.forget()

    def _later(
        self,
        work: Sequence[tuple[str, dict[str, torch.Tensor]]],
        finished: list[tuple[Any, WorkFuture]],
        compressed: bool,
    ) -> None:
        """Reduce on the group's callback thread, which has a communicator of its own; then complete the futures."""
        ready: torch.futures.Future[None] = torch.futures.Future()
        ready.set_result(None)

        def run(_: Any) -> None:
            try:
                for key, gradients in work:
                    self._average(key, gradients, compressed)
            except Exception as error:
                for _, future in finished:
                    future.fail(error)
            else:
                for buffer, future in finished:
                    future.set_result(buffer)

        self._group._callback_thread.chain(ready, run)

    def _average(self, key: str, gradients: dict[str, torch.Tensor], compressed: bool) -> None:
        """Replace gradients by their means over all ranks."""
        comm = self._group._channel().comm
        together: dict[int, tuple[Compressor | None, list[torch.Tensor]]] = {}
        for name, x in gradients.items():
            chosen = self.policy.choose(name, x.shape) if compressed else None
            together.setdefault(id(chosen), (chosen, []))[1].append(x)
        for chosen, tensors in together.values():
            if chosen is None:
                average_as_they_are(comm, tensors)
                continue
            reduce_compressed(comm, tensors, True, chosen, key)


class _Several(Policy):
    """The compressors that an adaptive hook may use: which one, the network decides."""

    def __init__(self, compressors: Sequence[Compressor]) -> None:
        self._several = list(compressors)

    def compressors(self) -> list[Compressor]:
        return self._several


class AdaptiveHook(CompressionHook):
    """Averages gradients by what the network allows, see `ringleader.adapt.AdaptiveAllReduce`; for one model.

    The first step is done without: after it DDP arranges its buckets anew. `history` and `explain` of
    ``hook.reduction`` tell what was chosen and why. All ranks choose the same. A checkpoint holds what the compressors
    among the policies remember; the network is measured anew.

    Parameters
    ----------
    policies, accuracy_budget
        What may be used beside float32; None: nothing that loses anything.
    """

    def __init__(self, policies: Sequence[Any] | None = None, accuracy_budget: float | None = None) -> None:
        formats = adapt.allowed(policies, accuracy_budget)  # refuses what is wrong before anything runs
        super().__init__(_Several([each.compressor for each in formats if each.compressor is not None]))
        self._wanted = (policies, accuracy_budget)
        self.reduction: adapt.AdaptiveAllReduce | None = None

    def reduce(self, bucket: Any) -> WorkFuture:
        """See `CompressionHook.reduce`."""
        if self.reduction is not None:
            self.reduction.marks.flush()
        return super().reduce(bucket)

    def _average(self, key: str, gradients: dict[str, torch.Tensor], compressed: bool) -> None:
        comm = self._group._channel().comm
        tensors = list(gradients.values())
        if not compressed or exact_type(tensors[0]) is not torch.float32:
            average_as_they_are(comm, tensors)
            return
        vector = joined(tensors, torch.float32)
        if self.reduction is None:
            self.reduction = adapt.AdaptiveAllReduce(comm, *self._wanted)
        for each in self.policy.compressors():
            each.set_shapes(key, [tuple(x.shape) for x in tensors])
        self.reduction(vector.numpy(), "avg", key=key)
        spread(tensors, vector)


def _run(state: CompressionHook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The communication hook. torch looks at the annotations themselves: this module must not make them strings."""
    return state.reduce(bucket)


def _gradients(bucket: Any) -> list[torch.Tensor]:
    """Parts of the bucket's buffer. A complex gradient is one of real numbers there, of which torch gives half only."""
    parameters, buffer = bucket.parameters(), bucket.buffer()
    if not parameters[0].is_complex():  # a bucket has one type
        return list(bucket.gradients())
    parts = torch.split(buffer, [2 * p.numel() for p in parameters])
    return [part.view(*p.shape, 2) for p, part in zip(parameters, parts, strict=True)]


# ------------------------------------------------------------------------------------------------- by name


def compressed(
    compression: Compressor | Policy,
    least_elements: int = LEAST_ELEMENTS,
    vectors: bool = False,
    warmup_steps: int = 0,
) -> CompressionHook:
    """A hook with any compressor, also one of your own, or with a `Policy`.

    Examples
    --------
    >>> compressed(compress.ErrorFeedback(compress.Int4())).policy.least_elements
    1024
    """
    return CompressionHook(compression, least_elements, vectors, warmup_steps)


def adaptive(policies: Sequence[Any] | None = None, accuracy_budget: float | None = None) -> AdaptiveHook:
    """What fits the network as it is, see `ringleader.adapt.AdaptiveAllReduce`.

    Examples
    --------
    >>> adaptive(["bf16", compress.ErrorFeedback(compress.OneBit())]).reduction is None
    True
    """
    return AdaptiveHook(policies, accuracy_budget)


def fp16() -> CompressionHook:
    """Half precision, scaled before the sum; all parameters."""
    return CompressionHook(compress.FP16(), 0, vectors=True)


def bf16() -> CompressionHook:
    """bfloat16, scaled before the sum; all parameters."""
    return CompressionHook(compress.BF16(), 0, vectors=True)


def _remembering(compressor: Compressor, error_feedback: bool, warmup_steps: int = 0) -> CompressionHook:
    chosen = compress.ErrorFeedback(compressor) if error_feedback else compressor
    return CompressionHook(chosen, warmup_steps=warmup_steps)


def topk(
    ratio: float = 0.01, selection: str = "exact", warmup_steps: int = 0, error_feedback: bool = True
) -> CompressionHook:
    """The largest elements, see `ringleader.compress.TopK`."""
    return _remembering(compress.TopK(ratio, None, selection, warmup_steps), error_feedback)


def dgc(ratio: float = 0.001, momentum: float = 0.9, warmup_steps: int = 0) -> CompressionHook:
    """Deep Gradient Compression, see `ringleader.compress.DGC`; the optimiser must have no momentum of its own.

    All parameters, because what is sent as it is would have no momentum.
    """
    return CompressionHook(compress.DGC(ratio, momentum, warmup_steps), 0, vectors=True)


def randomk(ratio: float = 0.01, seed: int = 0, error_feedback: bool = True) -> CompressionHook:
    """Random elements, see `ringleader.compress.RandomK`."""
    return _remembering(compress.RandomK(ratio, seed=seed, unbiased=not error_feedback), error_feedback)


def onebit(error_feedback: bool = True, warmup_steps: int = 0) -> CompressionHook:
    """Signs, see `ringleader.compress.OneBit`; the first `warmup_steps` steps are not compressed."""
    return _remembering(compress.OneBit(), error_feedback, warmup_steps)


def int8(error_feedback: bool = True) -> CompressionHook:
    """8-bit integers, see `ringleader.compress.Int8`."""
    return _remembering(compress.Int8(), error_feedback)


def int4(error_feedback: bool = True) -> CompressionHook:
    """4-bit integers, see `ringleader.compress.Int4`."""
    return _remembering(compress.Int4(), error_feedback)


def qsgd(bits: int = 8, norm: str = "max", seed: int = 0, error_feedback: bool = False) -> CompressionHook:
    """Integers rounded at random, see `ringleader.compress.QSGD`."""
    return _remembering(compress.QSGD(bits, norm, seed), error_feedback)


def natural(seed: int = 0, error_feedback: bool = False) -> CompressionHook:
    """Powers of two, see `ringleader.compress.Natural`."""
    return _remembering(compress.Natural(seed), error_feedback)


def powersgd(
    rank: int = 4, warm_start: bool = True, seed: int = 0, error_feedback: bool = True, warmup_steps: int = 0
) -> CompressionHook:
    """Low-rank factors of each parameter's gradient, see `ringleader.compress.PowerSGD`.

    The first `warmup_steps` steps are not compressed.
    """
    return _remembering(compress.PowerSGD(rank, warm_start, seed), error_feedback, warmup_steps)
