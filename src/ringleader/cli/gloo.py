"""torch's Gloo backend as a contestant, set up in the same processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ringleader.cli.exchange import exchange
from ringleader.cli.operands import Operands
from ringleader.cli.patterns import Kind, require_torch, torch_view
from ringleader.errors import InvalidArgument
from ringleader.runtime.communicator import Communicator
from ringleader.schedule import Collective

__all__ = ["GLOO_DTYPES", "Gloo", "check_gloo", "gloo_in_place"]

GLOO_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


def check_gloo(collective: str, dtype: str, op: str) -> None:
    """Refuse what Gloo does not offer.

    Raises
    ------
    InvalidArgument
        Names what it offers.
    """
    if dtype not in GLOO_DTYPES:
        raise InvalidArgument(f"Gloo does not offer {dtype}; expected one of {', '.join(GLOO_DTYPES)}")
    if Collective(collective).reduces and collective != "barrier" and op not in _OPS:
        raise InvalidArgument(f"Gloo does not offer the reduction {op}; expected one of {', '.join(_OPS)}")


def gloo_in_place(collective: str) -> bool:
    """Whether torch's call works in place: the way of Ringleader that it is compared with."""
    return collective in ("all_reduce", "reduce", "broadcast")


class Gloo:
    """A Gloo group of the same ranks, which meet through `comm`."""

    def __init__(self, comm: Communicator) -> None:
        require_torch()
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._dist: Any = dist
        self._rank, self._size = comm.rank, comm.size
        hosts = exchange(comm, socket.gethostname())
        if len(set(hosts)) == 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        known = exchange(comm, os.environ.get("MASTER_ADDR", hosts[0]))[0]  # how others reach the host of rank 0
        host = "127.0.0.1" if len(set(hosts)) == 1 else known
        serving = self._store(host, 0) if comm.rank == 0 else None
        port = exchange(comm, serving.port if serving is not None else 0)[0]
        store = serving if serving is not None else self._store(host, port)
        limit = timedelta(seconds=comm.timeout)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=limit)

    def _store(self, host: str, port: int) -> Any:
        serves = self._rank == 0
        return self._dist.TCPStore(host, port, self._size, serves, wait_for_workers=False)

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    def starter(self, collective: Collective, kind: Kind, given: Operands, op: str, root: int) -> Callable[[bool], Any]:
        """A function that runs the collective, or with True starts it and returns what to wait for."""
        dist, n, rank = self._dist, self._size, self._rank
        x = None if given.x is None else torch_view(kind, given.x)
        out = None if given.out is None else torch_view(kind, given.out)
        reduction = getattr(dist.ReduceOp, _OPS.get(op, "SUM"))
        # Renamed in torch 2.13; the old names warn.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        starters: dict[Collective, Callable[[bool], Any]] = {
            Collective.ALL_REDUCE: lambda later: dist.all_reduce(x, reduction, async_op=later),
            Collective.REDUCE: lambda later: dist.reduce(x, root, reduction, async_op=later),
            Collective.BROADCAST: lambda later: dist.broadcast(x, root, async_op=later),
            Collective.ALL_GATHER: lambda later: all_gather(out, x, async_op=later),
            Collective.REDUCE_SCATTER: lambda later: reduce_scatter(out, x, reduction, async_op=later),
            Collective.ALL_TO_ALL: lambda later: dist.all_to_all_single(out, x, async_op=later),
            Collective.BARRIER: lambda later: dist.barrier(async_op=later),
        }
        if collective is Collective.GATHER:
            blocks = None if out is None else list(out.chunk(n))
            return lambda later: dist.gather(x, blocks if rank == root else None, root, async_op=later)
        if collective is Collective.SCATTER:
            blocks = None if x is None else list(x.chunk(n))
            return lambda later: dist.scatter(out, blocks if rank == root else None, root, async_op=later)
        return starters[collective]
