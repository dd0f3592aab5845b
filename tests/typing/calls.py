"""Typical calls and the types of their results, checked by mypy and (based)pyright, both strict; nothing here is run.

`make typecheck` does so. A result that became Any would fail: `assert_type` wants exactly the type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import ringleader as rl
from ringleader.compress import FP16, ErrorFeedback, TopK

Floats = NDArray[np.float32]


def collectives(comm: rl.Communicator, x: Floats, y: Floats, t: torch.Tensor, u: torch.Tensor) -> None:
    assert_type(comm.all_reduce(x), Floats)
    assert_type(comm.all_reduce(x, "avg", algorithm="ring", wire="bf16", timeout=3), Floats)
    assert_type(comm.all_reduce(x, rl.ReduceOp.MAX, out=y), Floats)
    assert_type(comm.all_reduce(t), torch.Tensor)
    assert_type(comm.all_reduce(t, op=rl.premul_sum(0.5), out=u), torch.Tensor)
    assert_type(comm.all_reduce(x, async_op=True), rl.Work)
    assert_type(comm.all_reduce(t, out=u, async_op=True), rl.Work)
    assert_type(comm.all_reduce(x, "avg", compression=FP16()), Floats)
    assert_type(comm.all_reduce(x, "avg", compression=ErrorFeedback(TopK(k=1)).at("w")), Floats)
    assert_type(comm.all_reduce(x, "avg", compression=FP16(), async_op=True), rl.Work)

    assert_type(comm.reduce(x, 0), Floats | None)
    assert_type(comm.reduce(t, root=1, op="max", out=u), torch.Tensor | None)
    assert_type(comm.reduce(x, 0, async_op=True), rl.Work)

    assert_type(comm.broadcast(x), Floats)
    assert_type(comm.broadcast(t, root=1), torch.Tensor)
    assert_type(comm.broadcast(t, async_op=True), rl.Work)

    assert_type(comm.all_gather(x), Floats)
    assert_type(comm.all_gather(t), torch.Tensor)
    assert_type(comm.all_gather(x, y), Floats)
    assert_type(comm.all_gather(t, out=u), torch.Tensor)
    assert_type(comm.all_gather(bytearray(8)), NDArray[Any])
    assert_type(comm.all_gather(x, async_op=True), rl.Work)
    assert_type(comm.all_gather(x, y, async_op=True), rl.Work)

    assert_type(comm.reduce_scatter(x), Floats)
    assert_type(comm.reduce_scatter(t, op="avg"), torch.Tensor)
    assert_type(comm.reduce_scatter(x, y, "max"), Floats)
    assert_type(comm.reduce_scatter(x, async_op=True), rl.Work)

    assert_type(comm.gather(x), Floats | None)
    assert_type(comm.gather(t, 1), torch.Tensor | None)
    assert_type(comm.gather(x, 0, y), Floats | None)
    assert_type(comm.gather(x, out=y), Floats | None)
    assert_type(comm.gather(x, async_op=True), rl.Work)

    assert_type(comm.scatter(x), Floats)
    assert_type(comm.scatter(t), torch.Tensor)
    assert_type(comm.scatter(None, 0, y), Floats)
    assert_type(comm.scatter(None, out=u), torch.Tensor)
    assert_type(comm.scatter(x, async_op=True), rl.Work)

    assert_type(comm.all_to_all(x), Floats)
    assert_type(comm.all_to_all(t), torch.Tensor)
    assert_type(comm.all_to_all(x, y), Floats)
    assert_type(comm.all_to_all(t, async_op=True), rl.Work)

    assert_type(comm.barrier(async_op=True), rl.Work)
    comm.barrier(5)


def shapes(comm: rl.Communicator) -> None:
    """What a call returns has its own shape: that of a new array says nothing of the given one's."""
    x = np.ones(4)
    assert_type(comm.all_reduce(x).dtype, np.dtype[np.float64])
    assert_type(comm.all_gather(x), NDArray[np.float64])
    assert_type(comm.empty((2, 3)), NDArray[Any])


def others(comm: rl.Communicator, x: Floats, t: torch.Tensor) -> None:
    assert_type(comm.all_reduce_init(x), rl.PersistentOperation)
    assert_type(comm.all_reduce_init(x).start(), rl.Work)
    assert_type(comm.barrier_init(), rl.PersistentOperation)
    assert_type(comm.isend(x, 1), rl.Work)
    assert_type(comm.irecv(x, rl.ANY_SOURCE), rl.Work)
    assert_type(comm.split(0), rl.Communicator | None)
    assert_type(comm.shrink(), rl.Communicator)
    assert_type(rl.round_to_wire(x, "bf16"), Floats)
    assert_type(rl.round_to_wire(t, "fp16"), torch.Tensor)
    assert_type(rl.init(), rl.Communicator)
    reduce = rl.adapt.AdaptiveAllReduce(comm, policies=["bf16"])
    assert_type(reduce(x, "avg"), Floats)
    assert_type(reduce(t, out=t), torch.Tensor)
    assert_type(reduce(x, async_op=True), rl.adapt.AdaptiveWork)


def job(n: int) -> float:
    with rl.init() as comm:
        return float(n + comm.rank)


def modules(x: Floats, t: torch.Tensor) -> None:
    """Modules that are imported when first used are known without an import of their own."""
    assert_type(rl.spawn(job, 2, 3), list[float])
    schedule = rl.algorithms.build("all_reduce", "ring", 4)
    assert_type(schedule, rl.schedule.Schedule)
    assert_type(rl.schedule.formats.msccl.dumps(schedule), str)
    assert_type(rl.schedule.formats.msccl.load("ring.xml"), rl.schedule.Schedule)
    assert_type(rl.tune.load("mine.json"), rl.tune.RuleSet)
    assert_type(rl.horovod.torch.allreduce(t), torch.Tensor)
    assert_type(rl.horovod.torch.size(), int)
    assert_type(rl.torch.hooks.fp16(), rl.torch.hooks.CompressionHook)
    assert_type(rl.overlap.CostCurve.affine(1e-4, 1e-9), rl.overlap.CostCurve)
