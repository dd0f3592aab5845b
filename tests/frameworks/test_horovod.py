"""Horovod's interface: every operation over real processes, and training against one process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch_support import Ranks, data, place

import ringleader as rl
import ringleader.horovod.torch as hvd
from ringleader import compress, errors
from ringleader.horovod.common import exceptions

SIZE = 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(SIZE)
    yield group
    group.close()


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init(rank=0, size=1)
    yield
    hvd.shutdown()


def operations(_: str) -> dict[str, Any]:
    hvd.init()
    hvd.init()  # again it does nothing
    r, n = hvd.rank(), hvd.size()
    x = data(r, (5, 3), torch.float32)
    own = x.clone()
    seen: dict[str, Any] = {"place": (r, n, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())}
    seen["sum"] = hvd.allreduce(x, op=hvd.Sum)
    seen["average"] = hvd.allreduce(x)
    seen["scaled"] = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4)
    seen["fp16"] = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
    seen["onebit"] = hvd.allreduce(x, op=hvd.Sum, compression=compress.OneBit(), name="x")
    seen["max"] = hvd.allreduce(x.to(torch.int64), op=hvd.Max)
    seen["kept"] = torch.equal(x, own)
    seen["gathered"] = hvd.allgather(data(r, (r, 2), torch.int32))
    seen["broadcast"] = hvd.broadcast(x, root_rank=1)
    mixed = [x.clone(), x[:, 0].double(), x.clone().mul_(2)]
    handle = hvd.grouped_allreduce_async_(mixed, op=hvd.Sum)
    seen["all_to_all"] = hvd.alltoall(torch.arange(n * 2) + 10 * r)
    seen["uneven"] = hvd.alltoall(torch.arange(r + 1) + 10 * r, splits=[0] * (n - 1) + [r + 1])
    seen["part"] = hvd.reducescatter(x, op=hvd.Sum)
    seen["grouped"] = hvd.synchronize(handle)
    assert hvd.poll(handle)
    seen["in place"] = torch.equal(mixed[0], seen["sum"])
    seen["object"] = hvd.broadcast_object({"from": r} if r == 2 else None, root_rank=2)
    seen["objects"] = hvd.allgather_object("x" * r)
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    return seen


@pytest.mark.slow
def test_operations(ranks: Ranks) -> None:
    own = [data(r, (5, 3), torch.float32) for r in range(SIZE)]
    total = sum(own, torch.zeros(5, 3))
    for r, seen in enumerate(ranks.run(operations)):
        assert seen["place"] == (r, SIZE, r, SIZE, 0, 1)
        assert seen["kept"] and seen["in place"]
        assert torch.equal(seen["sum"], total) and torch.equal(seen["fp16"], total)
        assert torch.allclose(seen["average"], total / SIZE)
        assert torch.equal(seen["scaled"], 2 * total)
        assert not torch.equal(seen["onebit"], total) and bool((seen["onebit"] > 0).all())
        assert torch.equal(seen["max"], torch.stack(own).amax(0).long())
        assert torch.equal(seen["gathered"], torch.cat([data(s, (s, 2), torch.int32) for s in range(SIZE)]))
        assert torch.equal(seen["broadcast"], own[1])
        assert torch.equal(seen["all_to_all"], torch.cat([torch.tensor([2 * r, 2 * r + 1]) + 10 * s for s in range(3)]))
        received, counts = seen["uneven"]
        assert counts.tolist() == ([1, 2, 3] if r == SIZE - 1 else [0, 0, 0])
        assert received.tolist() == ([0, 10, 11, 20, 21, 22] if r == SIZE - 1 else [])
        assert torch.equal(seen["part"], total[[slice(0, 2), slice(2, 4), slice(4, 5)][r]])
        assert torch.equal(seen["grouped"][0], total) and torch.equal(seen["grouped"][2], 2 * total)
        assert seen["grouped"][1].dtype is torch.float64 and torch.equal(seen["grouped"][1], total[:, 0].double())
        assert seen["object"] == {"from": 2} and seen["objects"] == ["", "x", "xx"]


def sets(_: str) -> tuple[bool, list[float], bool]:
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    x = torch.full((2,), float(hvd.rank() + 1))
    if pair.included():
        hvd.allreduce_(x, op=hvd.Sum, process_set=pair)
        x += hvd.broadcast(torch.tensor([float(hvd.rank())]), root_rank=2, process_set=pair)
    total = hvd.allreduce(x, op=hvd.Sum)
    removed = hvd.remove_process_set(pair) and not hvd.remove_process_set(pair)
    hvd.shutdown()
    return pair.included(), total.tolist(), removed


def test_process_sets(ranks: Ranks) -> None:
    for seen in ranks.run(sets):
        assert seen == (False, [14.0, 14.0], True)  # (1 + 3 + 2) twice, and 2 from the process that is not in it


class Net(torch.nn.Module):
    """With a parameter that only some processes use, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.second = torch.nn.Linear(8, 1)
        self.some = torch.nn.Parameter(torch.ones(1))
        self.idle = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, some: bool) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return y + self.some if some else y


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(97 * step + rank))


def loss_of(model: Net, step: int, rank: int) -> torch.Tensor:
    return (model(batch(step, rank), rank == 1) - 1).square().mean()


def train(_: str, compression: Any, passes: int, groups: int) -> tuple[list[torch.Tensor], list[Any]]:
    torch.manual_seed(place()[0])  # different starts
    hvd.init()
    model = Net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if hvd.rank() == 0:
        optimizer.param_groups[0]["lr"] = 0.05
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression, backward_passes_per_step=passes, num_groups=groups
    )
    assert isinstance(optimizer, torch.optim.SGD)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(6):
        for micro in range(passes):
            loss_of(model, 10 * step + micro, hvd.rank()).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    weights = [p.detach() for p in model.parameters()]
    equal = hvd.allgather_object([w.tolist() for w in weights])
    hvd.shutdown()
    return weights, equal


@pytest.mark.parametrize(("passes", "groups"), [(1, 0), (1, 6), (2, 2)])
def test_training_equals_one_process_with_all_the_data(ranks: Ranks, passes: int, groups: int) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(6):
        for micro in range(passes):
            losses = [loss_of(model, 10 * step + micro, r) for r in range(SIZE)]
            (torch.stack(losses).sum() / SIZE).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    for weights, equal in ranks.run(train, hvd.Compression.none, passes, groups):
        assert all(e == equal[0] for e in equal)
        for w, p in zip(weights, model.parameters(), strict=True):
            assert torch.allclose(w, p, atol=1e-6)


def habits(_: str) -> dict[str, list[float]]:
    """Weights after one step of 1 by what programs do differently; gradients are the rank's number + 1."""
    hvd.init()
    found = {}
    for habit in ("scheduler before", "synchronize before", "closure"):
        x = torch.nn.Parameter(torch.zeros(2))
        plain = torch.optim.SGD([x], lr=1.0)
        if habit == "scheduler before":
            torch.optim.lr_scheduler.StepLR(plain, 4)
        optimizer = hvd.DistributedOptimizer(plain, [("x", x)], op=hvd.Sum)

        def closure(x: Any = x, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (x * (hvd.rank() + 1.0)).sum()
            loss.backward()
            return loss

        if habit == "closure":
            assert optimizer.step(closure) == 0.0
        else:
            closure()
            if habit == "synchronize before":
                optimizer.synchronize()
            optimizer.step()
        found[habit] = x.tolist()
        optimizer.zero_grad()
    y = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [y]})
    (x * (hvd.rank() + 1.0) + y * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    found["parameters later"] = y.tolist()
    hvd.shutdown()
    return found


def test_programs_have_different_habits(ranks: Ranks) -> None:
    for found in ranks.run(habits):
        assert found == {habit: [-6.0, -6.0] for habit in found} and len(found) == 4


def test_training_with_a_compressor_keeps_processes_equal_and_near(ranks: Ranks) -> None:
    ((near, _), *_) = ranks.run(train, hvd.Compression.none, 1, 1)
    ((weights, equal), *_) = ranks.run(train, compress.ErrorFeedback(compress.Int8()), 1, 1)
    assert all(e == equal[0] for e in equal)
    off = max(float((a - b).abs().max()) for a, b in zip(weights, near, strict=True))
    assert 0 < off < 0.02


def other_order(_: str) -> str:
    hvd.init(timeout=20)
    sizes = (3, 4) if hvd.rank() == 0 else (4, 3)
    handles = [hvd.allreduce_async(torch.ones(size), name=f"x{size}") for size in sizes]
    try:
        for handle in handles:
            hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        assert isinstance(error, errors.RingleaderError)
        return type(error).__name__
    finally:
        hvd.shutdown()
    return "no error"


def test_another_order_is_an_error_on_all_and_no_hang(ranks: Ranks) -> None:
    seen = ranks.run(other_order)
    assert "MismatchError" in seen and "no error" not in seen


@pytest.mark.usefixtures("alone")
def test_wrong_arguments_are_named() -> None:
    x = torch.ones(4)
    with pytest.raises(rl.errors.InvalidArgument, match="adasum"):
        hvd.allreduce(x, op=hvd.Adasum)
    with pytest.raises(rl.errors.InvalidArgument, match="both given"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    with pytest.raises(rl.errors.InvalidArgument, match=r"root_rank is 3; expected one of \[0\]"):
        hvd.broadcast(x, root_rank=3)
    with pytest.raises(rl.errors.InvalidArgument, match=r"splits are \[3\]"):
        hvd.alltoall(x, splits=[3])
    with pytest.raises(rl.errors.UnsupportedType, match="sparse"):
        hvd.allreduce_(x.to_sparse())
    known = hvd.add_process_set([0])
    with pytest.raises(rl.errors.InvalidArgument, match=r"\[0\] is registered already"):
        hvd.add_process_set(known)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(rl.errors.InvalidArgument, match="a more than once"):
        hvd.DistributedOptimizer(optimizer, [("a", model.weight), ("a", model.bias)])
    with pytest.raises(rl.errors.InvalidArgument, match="1 of the optimizer's parameters"):
        hvd.DistributedOptimizer(optimizer, [("a", model.weight)])
    distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(rl.errors.InvalidArgument, match="zero_grad"):
        distributed.zero_grad()
    with pytest.raises(rl.errors.InvalidArgument, match="more than 1 gradients"):
        model(torch.ones(1, 2)).sum().backward()
    distributed.step()
    distributed.zero_grad()


def test_before_init_it_says_so() -> None:
    for kind in (rl.errors.ClosedError, ValueError):
        with pytest.raises(kind, match=r"call init\(\)"):
            hvd.rank()


def disagreements(_: str) -> list[tuple[bool, bool]]:
    """What all processes see at once, and after which they go on."""
    hvd.init(timeout=20)
    r = hvd.rank()
    kinds = [torch.float32, torch.int32, torch.float32]
    calls: list[Callable[[], Any]] = [
        lambda: hvd.allgather(torch.ones(2, dtype=kinds[r])),
        lambda: hvd.grouped_allgather([torch.ones(2), torch.ones(2, 3 - r)]),
        lambda: hvd.alltoall(torch.ones(SIZE, *([6, 1] if r else [3, 2]))),
        lambda: hvd.broadcast(torch.ones(2), root_rank=min(r, 1)),
        lambda: hvd.broadcast_(torch.ones(2, dtype=kinds[r]), root_rank=0),
        lambda: hvd.broadcast(torch.ones(*([2, 3] if r else [3, 2])), root_rank=0),
    ]
    seen = []
    for call in calls:
        try:
            call()
            seen.append((False, False))
        except hvd.HorovodInternalError as error:
            seen.append((isinstance(error, errors.MismatchError), bool(hvd.allreduce(torch.ones(1), op=hvd.Sum) == 3)))
    hvd.shutdown()
    return seen


def test_disagreement_about_shapes_types_and_roots_is_an_error_on_all(ranks: Ranks) -> None:
    for seen in ranks.run(disagreements):
        assert seen == [(True, True)] * 6


def test_errors_are_horovods_too_and_travel_between_processes() -> None:
    for kind in (errors.PeerLost, errors.CollectiveTimeout, errors.OutOfMemory, errors.MismatchError):
        error = exceptions.failure(kind("why", [3]))
        again = pickle.loads(pickle.dumps(error))
        for each in (error, again):
            assert isinstance(each, hvd.HorovodInternalError) and isinstance(each, kind)
            assert str(each) == "why" and each.ranks == (3,)
    wrong = errors.InvalidArgument("no")
    assert exceptions.failure(wrong) is wrong
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync
    assert isinstance(exceptions.HorovodVersionMismatchError("torch", "1", "2"), ImportError)


def test_names_of_horovod() -> None:
    built = [hvd.mpi_built, hvd.gloo_built, hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built]
    assert not any(f() for f in [*built, hvd.rocm_built, hvd.mpi_enabled, hvd.gloo_enabled])
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()
    for name in ("join", "elastic", "start_timeline"):
        with pytest.raises(AttributeError, match=rf"no {name} \(docs/horovod.md\)"):
            getattr(hvd, name)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def more_sets(_: str) -> None:
    hvd.init(comm=list(range(SIZE)), process_sets="dynamic")
    r = hvd.rank()
    assert (hvd.global_process_set.ranks, hvd.global_process_set.process_set_id) == ([0, 1, 2], 0)
    pair = hvd.ProcessSet(range(0, SIZE, 2))
    assert (pair.process_set_id, pair.rank(), pair.size()) == (None, None, None)
    hvd.add_process_set(pair)
    assert pair.process_set_id and pair.size() == 2 and pair.included() == (r != 1)
    assert r == 1 or pair.rank() == r // 2
    with pytest.raises(ValueError, match="registered already"):
        hvd.add_process_set([2, 0])
    with pytest.raises(ValueError, match="expected the ranks"):
        hvd.ProcessSet(["a"])  # type: ignore[list-item]
    if r == 1:
        with pytest.raises(errors.ClosedError, match="called by one of its members"):
            hvd.allreduce(torch.ones(1), process_set=pair)
    assert hvd.remove_process_set(pair) and pair.process_set_id is None
    hvd.shutdown()
    with pytest.raises(ValueError, match="ProcessSet for a part"):
        hvd.init([0, 1])
    assert not hvd.is_initialized()


def test_process_sets_answer_as_horovods(ranks: Ranks) -> None:
    ranks.run(more_sets)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 3, sparse=True)
        self.out = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.embedding(x)).square().mean()
        return y


def words(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, 10, (2 + rank,), generator=torch.Generator().manual_seed(10 * step + rank))


def train_sparse(_: str, as_dense: bool, factor: float) -> list[torch.Tensor]:
    hvd.init()
    torch.manual_seed(0)
    model = Words()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        model.named_parameters(),
        gradient_predivide_factor=factor,
        groups=[[model.out.weight, model.embedding.weight]],
        sparse_as_dense=as_dense,
    )
    for step in range(4):
        if step != 2 or hvd.rank() != 1:  # a process without a gradient
            model(words(step, hvd.rank())).backward()
        optimizer.step()
        assert model.embedding.weight.grad is not None and model.embedding.weight.grad.is_sparse
        optimizer.zero_grad()
    hvd.shutdown()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(("as_dense", "factor"), [(False, 1.0), (True, 1.0), (False, 2.0)])
def test_sparse_gradients_are_averaged(ranks: Ranks, as_dense: bool, factor: float) -> None:
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        present = [r for r in range(SIZE) if step != 2 or r != 1]
        (torch.stack([model(words(step, r)) for r in present]).sum() / SIZE).backward()
        optimizer.step()
        optimizer.zero_grad()
    for weights in ranks.run(train_sparse, as_dense, factor):
        for w, p in zip(weights, model.parameters(), strict=True):
            assert torch.allclose(w, p, atol=1e-6)


def one_set_trains(_: str) -> list[float]:
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    x = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([x], lr=1.0), op=hvd.Sum, process_set=pair, backward_passes_per_step=3
    )
    assert list(optimizer._parameter_names.values()) == ["allreduce.noname.0.0"]
    optimizer.set_backward_passes_per_step(1)
    (x * (hvd.rank() + 1.0)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"called without optimizer.skip_synchronize\(\)"):
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    parts = [torch.full((2,), float(hvd.rank())), torch.full((1,), 7.0 - hvd.rank())]
    hvd.broadcast_parameters(parts, root_rank=1)
    hvd.shutdown()
    return [x.item(), *torch.cat(parts).tolist()]


def test_an_optimizer_of_a_process_set(ranks: Ranks) -> None:
    for r, seen in enumerate(ranks.run(one_set_trains)):
        assert seen == [-2.0 if r == 1 else -4.0, 1.0, 1.0, 6.0]


def normalize(_: str) -> list[torch.Tensor]:
    hvd.init()
    model = hvd.SyncBatchNorm(2)
    x = samples(hvd.rank()).requires_grad_()
    (model(x) ** 3).sum().backward()
    frozen = model.eval()(x).detach()
    hvd.shutdown()
    assert x.grad is not None and model.weight.grad is not None
    assert model.running_mean is not None and model.running_var is not None
    return [x.grad, model.weight.grad, model.running_mean, model.running_var, frozen]


def samples(rank: int) -> torch.Tensor:
    return torch.randn(2 + rank, 2, 3, generator=torch.Generator().manual_seed(rank)) + 5.0


def test_batch_norm_of_all_processes(ranks: Ranks) -> None:
    model = torch.nn.BatchNorm1d(2)
    x = torch.cat([samples(r) for r in range(SIZE)]).requires_grad_()
    (model(x) ** 3).sum().backward()
    assert x.grad is not None and model.weight.grad is not None
    frozen = model.eval()(x).split([2, 3, 4])
    found = ranks.run(normalize)
    total = torch.stack([own[1] for own in found]).sum(0)
    assert torch.allclose(total, model.weight.grad, rtol=1e-3, atol=1e-3)
    for r, (gradient, _, mean, variance, after) in enumerate(found):
        assert torch.allclose(gradient, x.grad.split([2, 3, 4])[r], rtol=1e-3, atol=1e-3)
        assert torch.allclose(mean, model.running_mean) and torch.allclose(variance, model.running_var, rtol=1e-4)
        assert torch.allclose(after, frozen[r], rtol=1e-4)
