"""Reductions and copies of the torch.distributed backend against expected values; a check runs on all ranks."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch_support import data, joined

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
COPIED = [*TYPES, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = [(7,), (), (0,), (3, 5), (1, 0, 2), (33, 129)]


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype is b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype not in TYPES:  # those without arithmetic
        a, b = a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    assert torch.equal(a, b), f"\n{a}\n{b}"


# ------------------------------------------------------------------------------------------------------ reductions


def fold(op: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    dtype = parts[0].dtype
    if dtype is torch.bool:
        combine = (
            torch.logical_or if op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BOR) else torch.logical_and
        )
        return reduce(combine, parts)
    functions = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.AVG: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    total = reduce(functions[op], parts)
    if op == dist.ReduceOp.AVG:
        total = torch.div(
            total, len(parts), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc"
        )
    return total.to(dtype)


def offered(dtype: torch.dtype) -> list[Any]:
    op = dist.ReduceOp
    if dtype is torch.bool:
        return [op.SUM, op.MAX, op.MIN, op.PRODUCT, op.BOR, op.BAND]
    if dtype.is_complex:
        return [op.SUM, op.AVG]
    if dtype.is_floating_point:
        return [op.SUM, op.AVG, op.MIN, op.MAX, op.PRODUCT]
    return [op.SUM, op.AVG, op.MIN, op.MAX, op.PRODUCT, op.BAND, op.BOR, op.BXOR]


def check_all_reduce(path: str) -> None:
    with joined(path) as (rank, n):
        for dtype in TYPES:
            for shape in SHAPES:
                for op in offered(dtype):
                    parts = [data(r, shape, dtype) for r in range(n)]
                    x, y = parts[rank].clone(), parts[rank].clone()
                    dist.all_reduce(x, op)
                    work = dist.all_reduce(y, op, async_op=True)
                    work.wait()
                    same(x, fold(op, parts))
                    same(y, x)


def check_reduce_and_scaling(path: str) -> None:
    with joined(path) as (rank, n):
        for root in range(n):
            parts = [data(r, (5, 3), torch.float32, root) for r in range(n)]
            x = parts[rank].clone()
            dist.reduce(x, root, dist.ReduceOp.AVG)
            same(x, fold(dist.ReduceOp.AVG, parts) if rank == root else parts[rank])
        x = torch.full((3,), float(rank + 1))
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        same(x, torch.full((3,), 5.0))
        x = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
        dist.distributed_c10d._get_default_group().allreduce([x]).wait()
        same(x, torch.tensor([10 + 20j, 30 - 10j]))
        y = (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj()
        dist.distributed_c10d._get_default_group().allreduce(y).wait()
        same(y.resolve_conj(), torch.tensor([10 - 20j, 30 + 10j]))


def check_reduce_scatter(path: str) -> None:
    with joined(path) as (rank, n):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            parts = [data(r, (n, 3, 2), dtype) for r in range(n)]
            expected = fold(dist.ReduceOp.SUM, parts)
            out = torch.empty((3, 2), dtype=dtype)
            dist.reduce_scatter_tensor(out, parts[rank])
            same(out, expected[rank])
            dist.reduce_scatter(out, list(parts[rank].clone().unbind()), dist.ReduceOp.MAX)
            same(out, fold(dist.ReduceOp.MAX, parts)[rank])
            dist.reduce_scatter(out, [block.clone() for block in parts[rank]])
            same(out, expected[rank])
            columns = torch.empty((2, 3), dtype=dtype).T  # not contiguous
            dist.reduce_scatter_tensor(columns, parts[rank].clone())
            same(columns.contiguous(), expected[rank])
            for _ in range(2):  # in place, on the short way too
                x = parts[rank].clone()
                dist.reduce_scatter_tensor(x[rank], x, dist.ReduceOp.SUM)
                same(x[rank], expected[rank])
            uneven = [data(rank, (r + 1,), dtype, r) for r in range(n)]
            out = torch.empty(rank + 1, dtype=dtype)
            dist.reduce_scatter(out, uneven)
            same(out, fold(dist.ReduceOp.SUM, [data(r, (rank + 1,), dtype, rank) for r in range(n)]))
        x = torch.arange(n * 2.0) * (rank + 1)
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, x, dist.ReduceOp.AVG)
        same(out, torch.arange(n * 2.0).view(n, 2)[rank] * 2.5)


def check_not_contiguous(path: str) -> None:
    with joined(path) as (rank, n):
        x = torch.arange(12).reshape(3, 4) + 100 * rank
        expected = x.clone()
        expected[:, 1] = torch.tensor([1, 5, 9]) * n + 600
        dist.all_reduce(x[:, 1])
        same(x, expected)
        y = torch.arange(6.0).reshape(2, 3).T + rank
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        same(y.contiguous(), torch.arange(6.0).reshape(2, 3).T.contiguous() * n + 6)
        image = (torch.arange(24.0).reshape(1, 2, 3, 4) * (rank + 1)).contiguous(memory_format=torch.channels_last)
        dist.broadcast(image, 2)
        same(image.contiguous(), torch.arange(24.0).reshape(1, 2, 3, 4) * 3)
        z = torch.zeros(3, requires_grad=True)
        dist.broadcast(z, 0)
        leaf = torch.full((2, 3), float(rank), requires_grad=True)
        dist.all_reduce(leaf.T)
        same(leaf.detach(), torch.full((2, 3), 6.0))


# --------------------------------------------------------------------------------------------------------- copies


def check_copies(path: str) -> None:
    with joined(path) as (rank, n):
        for dtype in COPIED:
            for shape in SHAPES:
                parts = [data(r, shape, dtype) for r in range(n)]
                x = parts[rank].clone()
                dist.broadcast(x, 1)
                same(x, parts[1])
                got = [torch.empty_like(x) for _ in range(n)]
                dist.all_gather(got, parts[rank])
                for r in range(n):
                    same(got[r], parts[r])
                block = torch.empty((n, *shape), dtype=dtype)
                dist.all_gather(list(block), parts[rank])
                for r in range(n):
                    same(block[r], parts[r])
                flat = torch.empty((n, *shape), dtype=dtype)
                dist.all_gather_into_tensor(flat.view(-1), parts[rank].view(-1))
                same(flat.view(-1).view(block.shape), block)
                root = 2
                dist.gather(parts[rank], got if rank == root else None, dst=root)
                if rank == root:
                    for r in range(n):
                        same(got[r], parts[r])
                out = torch.empty_like(x)
                dist.scatter(out, parts if rank == root else None, src=root)
                same(out, parts[rank])


def check_all_gather_in_place(path: str) -> None:
    with joined(path) as (rank, n):
        for _ in range(3):
            whole = torch.zeros(n, 5)
            whole[rank] = torch.arange(5.0) + 10 * rank
            dist.all_gather_into_tensor(whole, whole[rank])
            same(whole, torch.arange(5.0) + 10 * torch.arange(n).view(n, 1))
        sizes = [torch.empty(r + 2) for r in range(n)]
        dist.all_gather(sizes, torch.full((rank + 2,), float(rank)))
        for r in range(n):
            same(sizes[r], torch.full((r + 2,), float(r)))


def check_all_to_all(path: str) -> None:
    with joined(path) as (rank, n):
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
            x = torch.arange(n * 3).add(100 * rank).remainder(50).to(dtype)
            y = torch.empty_like(x)
            dist.all_to_all_single(y, x)
            all_x = torch.stack([torch.arange(n * 3).add(100 * r).remainder(50) for r in range(n)]).to(dtype)
            same(
                y.view(n, 3),
                all_x.view(torch.uint8 if x.element_size() == 1 else dtype)
                .view(n, n, 3)[:, rank]
                .contiguous()
                .view(dtype),
            )
        # rank s sends (s + 2 d) mod 4 rows to rank d; some send nothing
        rows = [[(s + 2 * d) % 4 for d in range(n)] for s in range(n)]
        source = [torch.arange(sum(rows[s]) * 2.0).view(-1, 2) + 1000 * s for s in range(n)]
        out_rows = [rows[s][rank] for s in range(n)]
        out = torch.empty(sum(out_rows), 2)
        dist.all_to_all_single(out, source[rank], out_rows, rows[rank])
        same(out, torch.cat([source[s].split(rows[s])[rank] for s in range(n)]))
        work = dist.all_to_all_single(torch.empty_like(out), source[rank], out_rows, rows[rank], async_op=True)
        assert work.wait()
        outs = [torch.empty(out_rows[s], 2) for s in range(n)]
        dist.all_to_all(outs, list(source[rank].split(rows[rank])))
        same(torch.cat(outs), out)
        nothing = [torch.empty(0) for _ in range(n)]
        dist.all_to_all(nothing, [torch.empty(0) for _ in range(n)])
        dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3))
