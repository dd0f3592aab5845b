"""All operations of the torch.distributed backend against expected values, on four ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operations_support import (
    check_all_gather_in_place,
    check_all_reduce,
    check_all_to_all,
    check_copies,
    check_not_contiguous,
    check_reduce_and_scaling,
    check_reduce_scatter,
    same,
)
from torch_support import TORCH, Ranks, joined, timed_barrier

import ringleader as rl


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(4)
    yield group
    group.close()


# ------------------------------------------------------------------------------------------------------- messages


def check_messages(path: str) -> None:
    with joined(path) as (rank, n):
        following, previous = (rank + 1) % n, (rank - 1) % n
        for size in (0, 1, 1000, 300_000):
            out, got = torch.arange(float(size)) + rank, torch.empty(size)
            works = [dist.isend(out, following), dist.irecv(got, previous)]
            for work in works:
                work.wait()
            same(got, torch.arange(float(size)) + previous)
        # tags, received in the other order
        if rank == 0:
            for tag in (5, 9):
                dist.send(torch.tensor([float(tag)]), 1, tag=tag)
        elif rank == 1:
            for tag in (9, 5):
                got = torch.empty(1)
                dist.recv(got, 0, tag=tag)
                same(got, torch.tensor([float(tag)]))
        # from any rank
        if rank == 0:
            seen = set()
            for _ in range(n - 1):
                got = torch.empty(2, dtype=torch.bfloat16).expand(2)
                source = dist.recv(got)
                same(got, torch.full((2,), float(source), dtype=torch.bfloat16))
                seen.add(source)
            assert seen == set(range(1, n))
        else:
            dist.send(torch.full((2,), float(rank), dtype=torch.bfloat16), 0)
        dist.barrier()  # or rank 0 might take a further message for one of those
        out, got = torch.full((4, 2), float(rank)).T, torch.zeros(4, 2).T
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, got, previous), dist.P2POp(dist.isend, out, following)]
        ):
            work.wait()
        same(got.contiguous(), torch.full((2, 4), float(previous)))
        mine = torch.arange(3.0) + rank
        got = torch.empty(3)
        works = [dist.isend(mine, rank), dist.irecv(got, rank)]  # to itself
        for work in works:
            work.wait()
        same(got, mine)


def check_message_sizes(path: str) -> list[str]:
    with joined(path) as (rank, _):
        texts = []
        for size in (2, 6):  # too short, too long
            if rank == 0:
                dist.send(torch.zeros(size), 1)
            elif rank == 1:
                try:
                    dist.recv(torch.empty(4), 0)
                except rl.errors.MismatchError as error:
                    assert isinstance(error, dist.DistBackendError)
                    texts.append(str(error))
                else:
                    texts.append("no error")
        return texts


# --------------------------------------------------------------------------------------------------- forms of calls


def check_coalesced(path: str) -> None:
    with joined(path) as (rank, n):
        group = dist.distributed_c10d._get_default_group()
        tensors = [torch.full((k,), float(rank + k)) for k in (1, 5, 0)] + [torch.full((3,), rank, dtype=torch.int32)]
        work = group.allreduce_coalesced(tensors)
        assert work.wait() and work.is_success()
        for tensor, k in zip(tensors[:3], (1, 5, 0), strict=True):
            same(tensor, torch.full((k,), float(6 + n * k)))
        same(tensors[3], torch.full((3,), 6, dtype=torch.int32))
        a, b = torch.full((2,), float(rank)), torch.ones(3)
        with dist._coalescing_manager():
            dist.all_reduce(a)
            dist.all_reduce(b)
        same(a, torch.full((2,), 6.0))
        same(b, torch.full((3,), float(n)))
        ins = [torch.full((2,), float(rank)), torch.full((1,), float(10 * rank))]
        outs = [torch.empty(2 * n), torch.empty(n)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for out, x in zip(outs, ins, strict=True):
                dist.all_gather_into_tensor(out, x)
        manager.wait()
        same(outs[1], torch.arange(n) * 10.0)
        same(outs[0], torch.arange(float(n)).repeat_interleave(2))
        pieces = [torch.empty(2), torch.empty(1)]
        with dist._coalescing_manager():
            for piece, x in zip(pieces, outs, strict=True):
                dist.reduce_scatter_tensor(piece, x)
        same(pieces[0], torch.full((2,), float(rank * n)))
        same(pieces[1], torch.full((1,), 10.0 * rank * n))
        x = torch.full((2,), float(rank))
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.broadcast(x, 3, async_op=True)
        manager.wait()
        same(x, torch.full((2,), 3.0))
        rows = [[torch.empty(2), torch.empty(1)] for _ in range(n)]
        dist.all_gather_coalesced(rows, ins)
        for r in range(n):
            same(rows[r][0], torch.full((2,), float(r)))
            same(rows[r][1], torch.full((1,), 10.0 * r))


def check_short_forms(path: str) -> None:
    """torch's overloads of the group's methods, with tensors and values in place of lists and options."""
    with joined(path) as (rank, n):
        group, limit = dist.distributed_c10d._get_default_group(), timedelta(seconds=15)
        mine = torch.full((2,), float(rank))
        x = mine.clone()
        group.allreduce(x, dist.ReduceOp.MAX, limit).wait()
        same(x, torch.full((2,), n - 1.0))
        x = mine.clone()
        group.broadcast(x, 2).wait()
        same(x, torch.full((2,), 2.0))
        x = mine.clone()
        group.reduce(x, 1, dist.ReduceOp.SUM, limit).wait()
        same(x, torch.full((2,), 6.0) if rank == 1 else mine)
        rows = [torch.empty(2) for _ in range(n)]
        group.allgather(rows, mine, limit).wait()
        same(torch.stack(rows), torch.arange(float(n)).view(n, 1).expand(n, 2).contiguous())
        group.gather(rows if rank == 0 else [], mine, 0).wait()
        out = torch.empty(2)
        group.scatter(out, [row + 1 for row in rows] if rank == 3 else [], 3).wait()
        same(out, mine + 1)
        group.reduce_scatter(out, rows, dist.ReduceOp.SUM, limit).wait()
        same(out, mine * n)
        group.barrier(timeout=limit).wait()
        group.barrier(limit).wait()
        before = group._get_sequence_number_for_group()
        keywords(group, rank, n, limit)
        assert group._get_sequence_number_for_group() > before
        work = group.allreduce([mine.clone()])
        assert work.result()[0].tolist() == [6.0, 6.0] and work.is_completed() and work.exception() is None
        future = group.allreduce([mine.T.clone()]).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
        same(doubled.wait(), torch.full((2,), 13.0))
        failed = future.then(lambda done: 1 / 0)
        try:
            failed.wait()
        except ZeroDivisionError:
            pass
        else:
            raise AssertionError("the callback's error was lost")


def keywords(group: Any, rank: int, n: int, limit: timedelta) -> None:
    """The same by the names that torch has for the arguments."""
    mine, total = torch.full((2,), float(rank)), torch.full((2,), n * (n - 1) / 2)
    x = mine.clone()
    group.allreduce(tensor=x, op=dist.ReduceOp.SUM, timeout=limit).wait()
    same(x, total)
    x = mine.clone()
    group.reduce(x, root=1, op=dist.ReduceOp.SUM, timeout=limit).wait()
    same(x, total if rank == 1 else mine)
    group.broadcast(tensor=x, root=1, timeout=limit).wait()
    same(x, total)
    rows = [torch.empty(2) for _ in range(n)]
    group.allgather(output_tensors=[rows], input_tensors=[mine]).wait()
    same(rows[-1], torch.full((2,), n - 1.0))
    group.gather(output_tensors=rows if rank == 0 else [], input_tensor=mine * 2, root=0).wait()
    group.scatter(output_tensor=x, input_tensors=rows if rank == 0 else [], root=0).wait()
    same(x, mine * 2)
    group.reduce_scatter(output_tensors=x, input_tensor=[mine + r for r in range(n)], op=dist.ReduceOp.SUM).wait()
    same(x, total + n * rank)
    group.alltoall(rows, [mine] * n, timeout=limit).wait()
    group.alltoall_base(output=x[:1].repeat(n), input=mine[:1].repeat(n), output_split_sizes=[], input_split_sizes=[])
    group.reduce_scatter_single(outputTensor=x, inputTensor=torch.ones(2 * n), opts=None).wait()
    same(x, torch.full((2,), float(n)))
    sent = group.send([mine], dstRank=(rank + 1) % n, tag=5)
    group.recv([x], srcRank=(rank - 1) % n, tag=5).wait()
    sent.wait()
    same(x, torch.full((2,), float((rank - 1) % n)))


def check_objects(path: str) -> None:
    with joined(path) as (rank, n):
        mine = {"rank": rank, "text": "ä" * rank, "tensor": torch.full((rank,), 1.0)}
        everything: list[Any] = [None] * n
        dist.all_gather_object(everything, mine)
        assert [x["rank"] for x in everything] == list(range(n)) and everything[2]["text"] == "ää"
        objects: list[Any] = [mine, [1, 2]] if rank == 1 else [None, None]
        dist.broadcast_object_list(objects, src=1)
        assert objects[0]["rank"] == 1 and objects[1] == [1, 2]
        gathered: list[Any] | None = [None] * n if rank == 0 else None
        dist.gather_object(mine, gathered)
        assert rank or [x["rank"] for x in gathered] == list(range(n))
        got: list[Any] = [None]
        dist.scatter_object_list(got, [f"for {r}" for r in range(n)] if rank == 3 else None, src=3)
        assert got == [f"for {rank}"]


def check_functional(path: str) -> None:
    import torch.distributed._functional_collectives as functional

    with joined(path) as (rank, n):
        group = dist.group.WORLD
        x = torch.arange(n * 2.0) + rank
        same(functional.all_reduce(x, "sum", group).clone(), torch.arange(n * 2.0) * n + 6)
        same(
            functional.all_gather_tensor(x, 0, group).clone(), torch.cat([torch.arange(n * 2.0) + r for r in range(n)])
        )
        same(functional.reduce_scatter_tensor(x, "avg", 0, group).clone(), torch.arange(n * 2.0).view(n, 2)[rank] + 1.5)
        same(functional.broadcast(x, 1, group).clone(), torch.arange(n * 2.0) + 1)
        y = functional.all_to_all_single(x, None, None, group).clone()
        same(y, torch.cat([(torch.arange(n * 2.0) + r).view(n, 2)[rank] for r in range(n)]))
        a, b = functional.all_reduce_coalesced([x, x.double()], "max", group)
        same(a.clone(), torch.arange(n * 2.0) + n - 1)
        same(b.clone(), (torch.arange(n * 2.0) + n - 1).double())
        if TORCH >= (2, 7):  # torch 2.6 has no derivative of it
            leaf = torch.ones(3, requires_grad=True)
            functional.all_reduce(leaf * (rank + 1), "sum", group).sum().backward()
            assert leaf.grad is not None


def check_sparse(path: str) -> None:
    with joined(path) as (rank, _):
        for count in (rank, 0, 3):
            rows = torch.tensor([(rank + k) % 5 for k in range(count)], dtype=torch.int64)
            values = torch.arange(count * 2.0).view(count, 2) + rank + 1
            x = torch.sparse_coo_tensor(rows.view(1, -1), values, (6, 2))
            dense = x.to_dense()
            dist.all_reduce(dense)
            dist.all_reduce(x)
            same(x.to_dense(), dense)


def check_groups(path: str) -> list[str]:
    with joined(path) as (rank, n):
        members = [[0, 1], [2, 3], [3, 0], [2]]
        groups = [dist.new_group(ranks) for ranks in members]
        for _ in range(3):
            for ranks, group in zip(members, groups, strict=True):
                if rank in ranks:
                    x = torch.tensor([float(rank)])
                    dist.all_reduce(x, dist.ReduceOp.AVG, group=group)
                    same(x, torch.tensor([sum(ranks) / len(ranks)]))
                    dist.barrier(group)
            x = torch.ones(2)
            dist.all_reduce(x)
            same(x, torch.full((2,), float(n)))
        if rank in (3, 0):
            got = [torch.empty(1) for _ in range(2)]
            dist.all_gather(got, torch.tensor([float(rank)]), group=groups[2])
            same(torch.cat(got), torch.tensor([0.0, 3.0]))  # torch sorts the ranks
            x = torch.tensor([float(rank)])
            dist.broadcast(x, src=3, group=groups[2])
            same(x, torch.tensor([3.0]))
        names = [str(g.communicator) for g in groups if isinstance(g, dist.ProcessGroup)]
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mesh["inner"].get_group())
        same(x, torch.tensor([1.0 if rank < 2 else 5.0]))
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mesh["outer"].get_group())
        same(x, torch.tensor([2.0 if rank % 2 == 0 else 4.0]))
        # Last: torch 2.14 names later groups differently on the ranks that were in this one, over Gloo as well.
        local = dist.new_group([0, 2], use_local_synchronization=True) if rank in (0, 2) else None
        if local is not None:
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=local)
            same(x, torch.tensor([2.0]))
            dist.destroy_process_group(local)
        return names


def check_barrier_and_names(path: str) -> tuple[float, float]:
    """When this rank came to a barrier and when it could go on; rank 1 is late."""
    with joined(path) as (rank, n):
        dist.barrier()
        assert dist.barrier(async_op=True).wait()
        if rank == 1:
            time.sleep(0.5)
        came = time.monotonic()
        timed_barrier(30)
        left = time.monotonic()
        group = dist.distributed_c10d._get_default_group()
        assert dist.get_backend() == "ringleader" and group.name() == "ringleader"
        assert (group.rank(), group.size()) == (rank, n) == (dist.get_rank(), dist.get_world_size())
        assert isinstance(group, dist.ProcessGroup) and group._device_types == [torch.device("cpu")]
        assert group.communicator.state == "live"
        return came, left


@pytest.mark.parametrize(
    "check",
    [
        check_all_reduce,
        check_reduce_and_scaling,
        check_reduce_scatter,
        check_not_contiguous,
        check_copies,
        check_all_gather_in_place,
        check_all_to_all,
        check_messages,
        check_coalesced,
        check_short_forms,
        check_objects,
        check_functional,
        check_sparse,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_operation(ranks: Ranks, check: Any) -> None:
    ranks.run(check)


def test_message_sizes_are_compared(ranks: Ranks) -> None:
    short, long = ranks.run(check_message_sizes)[1]
    assert "sent 8 bytes" in short and "16 bytes" in short and "torch.float32" in short
    assert "24" in long and "16" in long


def test_groups(ranks: Ranks) -> None:
    names = ranks.run(check_groups)
    assert "global ranks [0, 3]" in names[3][-1] and "rank 1 of 2" in names[3][-1]


def test_barrier_waits_for_the_last(ranks: Ranks) -> None:
    times = ranks.run(check_barrier_and_names)  # one clock: the ranks are on one host
    assert max(came for came, _ in times) <= min(left for _, left in times)
