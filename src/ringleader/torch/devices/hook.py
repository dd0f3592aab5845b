"""Two-level collectives for a program: on any tensors, or under DistributedDataParallel."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ringleader import errors
from ringleader.torch.devices.hierarchy import Hierarchy
from ringleader.torch.process_group import ProcessGroupRingleader

__all__ = ["hierarchical", "hierarchical_hook"]


def hierarchical(
    group: Any = None, *, inside: Any = "auto", hosts: Sequence[int] | None = None, segment: int = 4 << 20
) -> Hierarchy:
    """Collectives with another backend inside each host, and the engine with its wire formats between hosts.

    Every rank of the group must call it, with the same `hosts` and `segment`. To let *all* collectives of a process
    group go this way, give ``inside`` to `init_process_group` instead, see docs/gpu.md.

    Parameters
    ----------
    group
        A process group of the backend "ringleader"; default: all ranks.
    inside
        ``"nccl"``, ``"gloo"``, ``"auto"`` (NCCL where the process has a GPU, else Gloo), or a process group that was
        made of the ranks of this rank's host, in their order.
    hosts
        A number for each rank, equal for those of one host; default: the ranks that share memory are a host.
    segment
        Bytes: of a large tensor each rank brings as many at a time to the other hosts.

    Returns
    -------
    Hierarchy
        With `all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `barrier` and `close`.

    Raises
    ------
    InvalidArgument
        Another backend, a wrong number of `hosts`, or an `inside` that does not fit.

    References
    ----------
    M. Cho et al., "BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous Network Hierarchy", MLSys
    2019.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    >>> levels = hierarchical(inside="gloo")
    >>> x = torch.tensor([2.0, 4.0])
    >>> levels.all_reduce(x, dist.ReduceOp.AVG)
    >>> x
    tensor([2., 4.])
    >>> levels.close()
    >>> dist.destroy_process_group()
    """
    given = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(given, ProcessGroupRingleader):
        name = (
            dist.get_backend(group) if group is None or isinstance(group, dist.ProcessGroup) else type(group).__name__
        )
        raise errors.InvalidArgument(
            f"group has backend {name!r}; expected a process group of the backend 'ringleader'"
        )
    if isinstance(segment, bool) or not isinstance(segment, int) or segment < 1:
        raise errors.InvalidArgument(f"segment is {segment!r}; expected a number of bytes, 1 or more")
    return Hierarchy(given.communicator, given.get_group_store(), inside, hosts, segment)


def hierarchical_hook(
    hierarchy: Hierarchy,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: averages each bucket in two levels.

    Parameters
    ----------
    hierarchy
        What `hierarchical` returned; the state that is given to ``register_comm_hook``.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> from torch import nn
    >>> dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    >>> levels, model = hierarchical(inside="gloo"), nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    >>> model.register_comm_hook(levels, hierarchical_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.module.bias.grad
    tensor([1., 1.])
    >>> levels.close()
    >>> dist.destroy_process_group()
    """
    x = bucket.buffer()
    work = hierarchy.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    work.outputs = x
    future: torch.futures.Future[torch.Tensor] = work.get_future()
    return future
