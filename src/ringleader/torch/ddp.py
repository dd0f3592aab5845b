"""DistributedDataParallel with its gradients in registered memory.

DDP allocates its buckets itself; its communication hook is where Python sees one. There its storage is moved, once, at
a moment when nobody uses it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ringleader import errors
from ringleader.torch import registered
from ringleader.torch.process_group import ProcessGroupRingleader

__all__ = ["register_ddp"]


def register_ddp(model: DistributedDataParallel) -> DistributedDataParallel:
    """Let a DDP model keep its gradient buckets in memory that the ranks of a host reach without a copy.

    Call it on every rank (or on some: each rank's memory is its own affair) after DDP is made and before the first
    backward pass. It takes the place of DDP's communication hook: gradients are averaged, as without it. Where memory
    cannot be registered - /dev/shm has no room for a bucket at the moment of its move - the bucket stays as it is.

    Parameters
    ----------
    model
        A `DistributedDataParallel` whose process group is of the backend "ringleader".

    Returns
    -------
    DistributedDataParallel
        The same.

    Raises
    ------
    InvalidArgument
        Another kind of model or of group.
    RuntimeError
        From torch: the model has a communication hook already.

    Notes
    -----
    With ``gradient_as_bucket_view=True`` the gradients are views of the buckets. A NumPy array made of one before its
    bucket was first reduced would keep the old address; none exists unless made in a hook of the first backward pass.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12), 2020.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> from torch import nn
    >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = register_ddp(nn.parallel.DistributedDataParallel(nn.Linear(200, 200)))
    >>> model(torch.ones(1, 200)).sum().backward()
    >>> model.module.bias.grad.sum().item()
    200.0
    >>> dist.destroy_process_group()
    """
    if not isinstance(model, DistributedDataParallel):
        raise errors.InvalidArgument(f"model is a {type(model).__name__}; expected a DistributedDataParallel")
    group: Any = model.process_group
    if not isinstance(group, ProcessGroupRingleader):
        name = dist.get_backend(group)
        raise errors.InvalidArgument(f"the model's process group has backend {name!r}; expected 'ringleader'")
    model.register_comm_hook(group, _average)
    return model


def _average(
    group: ProcessGroupRingleader,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook. torch looks at the annotations themselves: this module must not make them strings."""
    x = bucket.buffer()
    registered.move(x, group.communicator.local_size)
    return group.average(x).get_future()
