"""Compressed gradients for FSDP2 (``fully_shard``): its reduce-scatter sends compressed shards.

>>> import torch.distributed as dist
>>> from ringleader.compress import ErrorFeedback, OneBit
>>> from torch import nn
>>> from torch.distributed.fsdp import fully_shard
>>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
>>> model = fully_shard(nn.Linear(64, 64))
>>> compression = compress_gradients(model, ErrorFeedback(OneBit()))
>>> model(torch.ones(1, 64)).sum().backward()
>>> dist.destroy_process_group()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ringleader import errors
from ringleader.compress.base import Compressor
from ringleader.compress.policy import LEAST_ELEMENTS, Policy
from ringleader.runtime.compressed import check_scatters, reduce_scatter_vector
from ringleader.runtime.dtypes import ReduceOp
from ringleader.torch.collectives import reduce_op
from ringleader.torch.process_group import ProcessGroupRingleader
from ringleader.torch.state import arrays_to_tensors, tensors_to_arrays

__all__ = ["ShardedCompression", "compress_gradients"]


class ShardedCompression:
    """What compresses the gradients of one FSDP2 model. Made by `compress_gradients`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def state_dict(self) -> dict[str, Any]:
        """What the compressors remember, on this rank; of tensors and plain values. Save it on every rank."""
        return {"policy": arrays_to_tensors(self.policy.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. With another number of ranks memory starts anew where sizes differ."""
        self.policy.load_state_dict(tensors_to_arrays(state["policy"]))


class _ReduceScatter:
    """FSDP2's reduce-scatter of one module's parameters, one buffer for all of them."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name, self.policy = name, policy

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for the input or the output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Fill the output; done when it returns."""
        compressor = self.policy.choose(self.name, (input_tensor.numel(), 1))
        if compressor is None:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        if not isinstance(group, ProcessGroupRingleader):
            raise errors.InvalidArgument(
                f"module {self.name!r} reduces its gradients in a group of backend {dist.get_backend(group)!r}; "
                "expected 'ringleader'"
            )
        operator, factor = reduce_op(op), 1.0
        if operator.name == "premul_sum":  # what set_gradient_divide_factor asks for
            operator, factor = ReduceOp.SUM, operator.factor
        if operator not in (ReduceOp.SUM, ReduceOp.AVG):
            raise errors.InvalidArgument(f"op is {op}; compressed gradients can be reduced with SUM or AVG")
        x = input_tensor.detach().to("cpu", torch.float32).reshape(-1).numpy()
        shard = reduce_scatter_vector(group._channel().comm, x, operator is ReduceOp.AVG, compressor, self.name)
        output_tensor.detach().view(-1).copy_(torch.from_numpy(shard))
        if factor != 1.0:
            output_tensor.detach().mul_(factor)
        return None


def compress_gradients(
    model: nn.Module, compression: Compressor | Policy, least_elements: int = LEAST_ELEMENTS
) -> ShardedCompression:
    """Compress the gradients that FSDP2 reduces and scatters; call it after ``fully_shard``, with the outermost module.

    The unit is a module to which ``fully_shard`` was applied: all its parameters travel in one buffer, so a `Policy`
    is asked with the names of such modules. In hybrid sharding only the reduce-scatter is compressed.

    Parameters
    ----------
    model
        In which there is at least one FSDP2 module.
    compression
        A compressor that works on shards: any but `PowerSGD`. Error feedback takes memory for the whole gradient of
        every module on each rank (and once more in a step), which FSDP otherwise saves.
    least_elements
        Modules with fewer parameters, all together, are not compressed.

    Raises
    ------
    InvalidArgument
        No FSDP2 module, a compressor that needs whole matrices, or a torch that does not let the reduce-scatter be
        replaced.

    Examples
    --------
    >>> from ringleader.compress import FP16
    >>> compress_gradients(nn.Linear(2, 2), FP16())
    Traceback (most recent call last):
    ringleader.errors.InvalidArgument: model, a Linear, has no module to which fully_shard was applied; ...
    """
    policy = Policy.of(compression, least_elements, vectors=True)
    for each in policy.compressors():
        check_scatters(each)
    modules = [
        (name, module) for name, module in model.named_modules() if hasattr(module, "set_reshard_after_backward")
    ]
    if not modules:
        raise errors.InvalidArgument(
            f"model, a {type(model).__name__}, has no module to which fully_shard was applied; call fully_shard first "
            "(for DistributedDataParallel see ringleader.torch.hooks)"
        )
    for name, module in modules:
        replace = getattr(module, "set_custom_reduce_scatter", None)
        if replace is None:
            raise errors.InvalidArgument(
                f"torch {torch.__version__} does not let FSDP's reduce-scatter be replaced; expected a release "
                "whose FSDPModule has set_custom_reduce_scatter, as 2.13 has"
            )
        replace(_ReduceScatter(name, policy))
    return ShardedCompression(policy)
