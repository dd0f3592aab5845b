"""DataParallel in the hands of a program: what it may do with gradients, state and copies, and what goes wrong."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data_parallel_support import Branches, batch, loss_of, small, worst
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_support import Ranks, joined

from ringleader import _core, errors
from ringleader.torch import DataParallel


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


def mean(x: Tensor) -> Tensor:
    """Over all ranks, for comparison."""
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


# --------------------------------------------------------------------------------------------------- gradients


def own_gradients(path: str) -> list[float]:
    """Gradients that the program replaces or removes between passes, several passes after one forward pass."""
    with joined(path) as (rank, _):
        model = DataParallel(small(), overlap="fixed")
        first, last = model.module[0].weight, model.module[2].weight
        x = batch(0, rank)
        twin = small()
        twin(x).sum().backward()
        single = [p.grad.clone() for p in twin.parameters()]  # type: ignore[union-attr]
        seen = []
        model(x).sum().backward()
        model.zero_grad(set_to_none=True)
        first.grad = torch.full_like(first, float(rank))  # a tensor of the program's own
        last.grad = None
        y = model(x).sum()
        y.backward(retain_graph=True)
        seen.append(float((first.grad - mean(single[0] + rank)).abs().max()))
        seen.append(float((last.grad - mean(single[2])).abs().max()))
        y.backward()  # what is there is averaged, and the mean of the new ones added
        seen.append(float((last.grad - 2 * mean(single[2])).abs().max()))
        return seen


def test_programs_may_replace_gradients_and_go_backward_twice(ranks: Ranks) -> None:
    for differences in ranks.run(own_gradients):
        assert max(differences) < 1e-5


def in_place(path: str) -> tuple[bool, bool, int]:
    """Whether gradients are in registered memory, stay there, and how many bytes a step stages."""
    with joined(path):
        model = DataParallel(nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 8)), overlap="fixed")
        for _ in range(3):
            model(torch.randn(4, 200)).sum().backward()
            model.zero_grad(set_to_none=False)
        weight = model.module[0].weight
        at = weight.grad.data_ptr()
        staged = model.reducer.transport.comm.counters()["bytes_staged_in"]
        model(torch.randn(4, 200)).sum().backward()
        staged = model.reducer.transport.comm.counters()["bytes_staged_in"] - staged
        return _core.arena_contains(at, weight.nbytes), weight.grad.data_ptr() == at, staged


def test_gradients_are_parts_of_registered_memory(ranks: Ranks) -> None:
    for registered, stays, staged in ranks.run(in_place):
        assert registered and stays
        assert staged == 0


def gradient_penalty(path: str) -> float:
    """A loss that contains gradients of the model's output: double backward."""

    def loss(model: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        penalty: Tensor = slope.pow(2).sum()
        return penalty

    with joined(path) as (rank, _):
        model = DataParallel(small(), bucket_cap_mb=0.0003, overlap="fixed")
        twin = small()
        worst_of = 0.0
        for step in range(3):
            model.zero_grad()
            twin.zero_grad()
            loss(model, batch(step, rank)).backward()
            loss(twin, batch(step, rank)).backward()
            expected = [mean(torch.zeros_like(p) if p.grad is None else p.grad) for p in twin.parameters()]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
            worst_of = max(worst_of, worst(grads, expected))
        return worst_of


def test_gradient_penalty(ranks: Ranks) -> None:
    assert max(ranks.run(gradient_penalty)) < 1e-5


def mixed_types(path: str) -> list[bool]:
    with joined(path) as (rank, size):
        model = small().double()
        model[2].to(torch.bfloat16)
        model.register_parameter("scale", nn.Parameter(torch.ones(5)))
        wrapped = DataParallel(model, bucket_cap_mb=0.001)
        seen = []
        for _ in range(12):  # before and after a plan is there
            wrapped.zero_grad()
            y = wrapped.module[2](wrapped.module[0](torch.ones(1, 8, dtype=torch.float64) * rank).bfloat16())
            (y.sum() + (model.scale * (rank + 1)).sum()).backward()
            seen.append(torch.equal(model.scale.grad, torch.full((5,), (size + 1) / 2)))
            seen.append(model[0].weight.grad.dtype is torch.float64 and model[2].weight.grad.dtype is torch.bfloat16)
            seen.append(torch.equal(model[2].bias.grad, torch.ones(4, dtype=torch.bfloat16)))
        return seen


def test_mixed_types(ranks: Ranks) -> None:
    for seen in ranks.run(mixed_types):
        assert all(seen)


# ------------------------------------------------------------------------------------------- buffers, uneven inputs


def buffers(path: str) -> tuple[float, bool]:
    with joined(path) as (rank, _):
        torch.manual_seed(rank)
        model = DataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(5)))
        for step in range(3):
            model(batch(step, rank)).sum().backward()
        running = model.module[1].running_mean.clone()
        with torch.no_grad():
            model(batch(9, rank))
        model(batch(4, rank))  # the buffers are those of the first rank when this begins
        first = running.clone()
        dist.broadcast(first, 0)
        count = int(model.module[1].num_batches_tracked)
        return float((running - first).abs().max()), count == 5


def test_buffers_follow_the_first_rank(ranks: Ranks) -> None:
    results = ranks.run(buffers)
    assert results[0][0] == 0.0 < results[1][0]
    assert all(counted for _, counted in results)


def uneven(path: str, by_all: bool) -> float:
    """Ranks with 2, 3 and 4 steps, compared with torch's DDP."""

    def run(wrap: Any, **options: Any) -> list[Tensor]:
        torch.manual_seed(4)
        model = wrap(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(5)), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            with model.join(divide_by_initial_world_size=by_all):
                for step in range(2 + rank):
                    optimizer.zero_grad()
                    model(batch(10 * epoch + step, rank)).pow(2).mean().backward()
                    optimizer.step()
        values = [x.detach().clone().float() for x in model.module.state_dict().values()]
        del model, optimizer  # Gloo's group must outlive it
        return values

    with joined(path) as (rank, _):
        gloo = dist.new_group(backend="gloo")
        return worst(run(DataParallel, bucket_cap_mb=0.0001), run(DistributedDataParallel, process_group=gloo))


@pytest.mark.parametrize("by_all", [True, False])
def test_uneven_inputs_as_in_ddp(ranks: Ranks, by_all: bool) -> None:
    assert max(ranks.run(uneven, by_all)) < 1e-6


# ------------------------------------------------------------------------------------------------ state and copies


def state(path: str) -> list[bool]:
    with joined(path) as (rank, _):
        net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(5))
        model = DataParallel(net)
        model(batch(0, rank)).sum().backward()
        saved = model.state_dict()
        prefixed = DistributedDataParallel(copy.deepcopy(net)).state_dict()
        seen = [list(saved) == list(net.state_dict())]
        other = DataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(5)))
        for source in (saved, prefixed):
            with torch.no_grad():
                for p in other.parameters():
                    p.zero_()
            other.load_state_dict(source)
            seen.append(
                all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), source.values(), strict=True))
            )
        with pytest.raises(RuntimeError, match=r'Missing key.*"0\.weight"'):
            other.load_state_dict({"module.0.bias": torch.zeros(4)})
        holder = nn.ModuleDict({"net": model})
        seen.append("net.0.weight" in holder.state_dict())
        holder.load_state_dict(holder.state_dict())
        holder.load_state_dict({f"net.{key}": value for key, value in prefixed.items()})
        net.note = "of the model's own"  # type: ignore[assignment]
        seen.append(model.note == net.note and model.module is net)
        return seen


def test_state_without_a_prefix(ranks: Ranks) -> None:
    for seen in ranks.run(state):
        assert all(seen), seen


def copies(path: str, overlap: str) -> list[float]:
    with joined(path) as (rank, _):
        model = DataParallel(small(), overlap=overlap)  # type: ignore[arg-type]
        for step in range(10):
            model(batch(step, rank)).sum().backward()
        twin = copy.deepcopy(model)
        memory = io.BytesIO()
        torch.save(model, memory)
        memory.seek(0)
        loaded = torch.load(memory, weights_only=False)
        differences = []
        for other in (model, twin, loaded):
            other.zero_grad()
            other(batch(1, rank)).sum().backward()
            differences.append(worst([p.grad for p in other.parameters()], [p.grad for p in model.parameters()]))
        assert twin.module[0].weight is not model.module[0].weight
        return differences


@pytest.mark.parametrize("overlap", ["plan", "priority"])
def test_copies_train_on(ranks: Ranks, overlap: str) -> None:
    for differences in ranks.run(copies, overlap):
        assert max(differences) < 1e-6


def subgroups(path: str) -> list[float]:
    with joined(path) as (rank, _):
        pair, _alone = dist.new_group([0, 2]), dist.new_group([1])
        if rank == 1:
            return [2.0]
        model = DataParallel(nn.Linear(1, 1, bias=False), pair)
        model(torch.tensor([[2.0 * rank]])).sum().backward()
        return model.module.weight.grad.flatten().tolist()


def test_subgroups(ranks: Ranks) -> None:
    assert ranks.run(subgroups) == [[2.0]] * 3


# ------------------------------------------------------------------------------------------------------ failures


def other_models(path: str) -> list[str]:
    told = []
    with joined(path) as (rank, _):
        for wrong in (nn.Linear(8, 4 + (rank == 2)), nn.Sequential(nn.Linear(8, 4), *[nn.Linear(2, 2)] * (rank != 0))):
            with pytest.raises(errors.MismatchError) as caught:
                DataParallel(wrong)
            told.append(str(caught.value))
        with pytest.raises(errors.InvalidArgument, match="requires_grad"):
            DataParallel(nn.Tanh())
        with pytest.raises(errors.InvalidArgument, match="sparse=False"):
            DataParallel(nn.Embedding(4, 4, sparse=True))
        with pytest.raises(errors.InvalidArgument, match=r"valid: .*fixed"):
            DataParallel(small(), overlap="sometimes")  # type: ignore[arg-type]
    return told


def test_models_that_differ_are_refused_on_all_ranks(ranks: Ranks) -> None:
    for shape, number in ranks.run(other_models):
        assert "rank 2 of the group" in shape and "(5, 8)" in shape and "(4, 8)" in shape
        assert "ranks 1, 2" in number and "1.weight" in number


def missing(path: str) -> tuple[list[str], float]:
    """A rank whose passes leave out a parameter, in the first step and in a later one; the others go on."""
    told = []
    with joined(path) as (rank, size):
        model = DataParallel(Branches(), bucket_cap_mb=0.003, overlap="fixed")
        for step in range(4):
            use = not (rank == 1 and step in (0, 2))
            model.zero_grad()
            try:
                loss_of(model, batch(step, rank), use).backward()
            except RuntimeError as error:
                told.append(str(error))
        grads = [p.grad.clone() for p in model.parameters()]
        twin = Branches()
        twin.load_state_dict(model.state_dict())
        for r in range(size):
            (loss_of(twin, batch(3, r)) / size).backward()
        return told, worst(grads, [p.grad for p in twin.parameters()])  # type: ignore[misc]


def test_a_parameter_without_gradient_is_named(ranks: Ranks) -> None:
    results = ranks.run(missing)
    for _, difference in results:
        assert difference < 1e-6
    assert [len(told) for told, _ in results] == [0, 2, 0]
    for text in results[1][0]:
        assert "rank 1" in text and "branch.weight" in text and "branch.bias" in text
        assert "head" not in text and "find_unused_parameters=True" in text


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, fail: bool) -> Tensor:
        y: Tensor = self.first(x)
        if fail:
            y.register_hook(_raise)
        return self.last(y)  # type: ignore[no-any-return]


def _raise(_: Tensor) -> None:
    raise ValueError("from the program's hook")


def caught(path: str) -> tuple[int, list[float]]:
    """A rank that catches an error of its own in a backward pass, and goes on."""
    with joined(path) as (rank, _):
        model = DataParallel(Fragile(), bucket_cap_mb=0.0001, overlap="fixed")
        failures = 0
        for step in range(3):
            model.zero_grad()
            try:
                model(batch(step, rank), fail=rank == 2 and step == 1).sum().backward()
            except ValueError:
                failures += 1
        return failures, [float(p.grad.double().sum()) for p in model.parameters()]


def test_a_rank_that_catches_its_error_stays_in_step(ranks: Ranks) -> None:
    results = ranks.run(caught)
    assert [failures for failures, _ in results] == [0, 0, 1]
    assert results[0][1] == results[1][1] == results[2][1]


# ------------------------------------------------------------------------------------------------------ compiled


def test_compiled_models() -> None:
    """The model compiled within the wrapper, and the wrapper compiled."""
    dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    try:
        nets = [small() for _ in range(3)]
        inside = DataParallel(torch.compile(nets[1], backend="aot_eager"), overlap="fixed", bucket_cap_mb=0.0003)  # type: ignore[arg-type]
        outside = torch.compile(DataParallel(nets[2], overlap="fixed", bucket_cap_mb=0.0003), backend="aot_eager")
        for model in (nets[0], inside, outside):
            for step in range(2):
                model.zero_grad()  # type: ignore[union-attr]
                model(batch(step, 0)).sum().backward()
        first, *others = [[p.grad for p in net.parameters()] for net in nets]
        assert all(worst(grads, first) < 1e-6 for grads in others)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()


def test_a_wrapper_that_goes_takes_its_hooks_along() -> None:
    dist.init_process_group("ringleader", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Linear(4, 4)
        first = DataParallel(net, overlap="fixed")
        gone = weakref.ref(first.reducer)
        del first
        gc.collect()
        assert gone() is None
        assert not net.weight._post_accumulate_grad_hooks
        second = DataParallel(net, overlap="fixed")
        second(torch.ones(1, 4)).sum().backward()
        assert net.weight.grad is not None and net.weight.grad.tolist() == [[1.0] * 4] * 4
        assert len(net.weight._post_accumulate_grad_hooks) == 1
    finally:
        dist.destroy_process_group()
