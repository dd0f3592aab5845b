"""The policy of adaptive all-reduce, with a simulated network in the place of measurements."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from ringleader.adapt.arrivals import Arrivals
from ringleader.adapt.estimates import Estimates, Row, rows_of
from ringleader.adapt.formats import allowed
from ringleader.adapt.loads import Candidate, Load, load_of
from ringleader.adapt.menu import Menu, suggested
from ringleader.adapt.policy import Policy, Settings
from ringleader.algorithms.registry import parse_spec
from ringleader.errors import InvalidArgument
from ringleader.tune.model import DEFAULT

N = 4
NBYTES = 4 << 20
GBIT = 1.25e8  # bytes per second


@dataclass
class World:
    """A group whose lines have known rates; `policies` are those of its ranks, which must agree."""

    budget: float | None = 0.01
    compute: float = 0.07
    noise: float = 0.0
    seed: int = 1
    rates: list[float] = field(default_factory=lambda: [GBIT] * N)
    measured: bool = True  # whether calls tell the bandwidth
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        formats = allowed(None, self.budget)
        specs = suggested(NBYTES, range(N), DEFAULT, "ring")
        candidates = [Candidate(each, spec, place) for place, each in enumerate(formats) for spec in specs]
        loads = [load_of(each, NBYTES, range(N), DEFAULT) for each in candidates]
        self.menus = [Menu(tuple(candidates), tuple(loads), NBYTES, tuple(range(N)), DEFAULT) for _ in range(2)]
        self.policies = [
            Policy(list(candidates), list(loads), Estimates.initial(N, 1.2e9), self.settings) for _ in range(2)
        ]
        self.used: list[str] = []

    def true_seconds(self, load: Load) -> float:
        noise = 1 + self.noise * self.random.uniform(-1, 1)
        return (Estimates(list(self.rates), list(self.rates)).wire_seconds(load) + 2 * load.rest + 1e-3) * noise

    def call(self, hiccup: float = 0.0, busy: int = -1) -> str:
        """One call of all ranks; the name of the format it used."""
        policy = self.policies[0]
        load = policy.loads[policy.current]
        name = policy.candidates[policy.current].format.name
        seconds = self.true_seconds(load) + hiccup
        late = [self.random.uniform(0, 1e-3) for _ in range(N)]
        rows = []
        for rank in range(N):
            seen = [
                0.0 if other == rank or not self.measured
                else min(self.rates[rank], self.rates[other]) / load.fan * (1 + self.noise * self.random.uniform(-1, 1))
                for other in range(N)
            ]  # fmt: skip
            rate = self.rates[rank] if self.measured else 0.0
            if rank == busy:  # it had no processor while data came
                seen, rate = [each / 20 for each in seen], rate / 20
            rows.append(Row(seconds + max(late) - late[rank], 1e-3, self.compute, rate, tuple(seen)))
        for policy, menu in zip(self.policies, self.menus, strict=True):
            policy.learn(rows)
            menu.refresh(policy)
            policy.choose()
        first, second = self.policies
        assert first.current == second.current
        assert [c.name for c in first.candidates] == [c.name for c in second.candidates]
        self.used.append(name)
        return name

    def calls(self, times: int) -> list[str]:
        return [self.call() for _ in range(times)]

    @property
    def format(self) -> str:
        policy = self.policies[0]
        return policy.candidates[policy.current].format.name

    @property
    def algorithm(self) -> str:
        policy = self.policies[0]
        return policy.candidates[policy.current].algorithm


def test_what_is_hidden_stays_exact_and_a_slow_network_gets_fewer_bytes_within_five_calls() -> None:
    world = World()
    world.calls(20)
    assert set(world.used) == {"f32"}  # 57 ms beside 70 ms of computing: nothing lossy is worth it
    world.rates = [GBIT / 10] * N
    after = world.calls(6)
    assert after[-1] == "int8"
    assert len([each for each in after if each != "int8"]) <= 2
    world.calls(20)
    world.rates = [GBIT] * N
    after = world.calls(6)
    assert after[5] == "f32"


def test_without_overlap_fewer_bytes_win_and_tolerance_says_how_much_a_better_format_may_cost() -> None:
    assert World(compute=0.0).calls(30)[-1] == "int8"
    patient = World(compute=0.0, settings=Settings(tolerance=5.0))
    assert set(patient.calls(30)) == {"f32"}


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_make_it_flap(seed: int) -> None:
    world = World(noise=0.15, seed=seed)
    world.calls(200)
    assert world.format == "f32"
    assert sum(a != b for a, b in zip(world.used, world.used[1:], strict=False)) <= 2


def test_one_slow_call_on_a_good_network_changes_nothing() -> None:
    world = World()
    world.calls(20)
    world.call(hiccup=0.3)
    assert set(world.calls(10)) == {"f32"}
    world.call(hiccup=0.3, busy=2)  # and that rank's line looks slow
    assert set(world.calls(10)) == {"f32"}


def test_it_follows_a_slow_decline_with_few_changes() -> None:
    world = World(noise=0.05)
    world.calls(10)
    for step in range(120):
        world.rates = [GBIT * 0.98**step] * N
        world.call()
    changes = sum(a != b for a, b in zip(world.used, world.used[1:], strict=False))
    assert world.used[-1] != "f32"
    assert 1 <= changes <= 8


def test_nothing_lossy_is_used_that_was_not_allowed() -> None:
    for budget, most in ((None, {"f32"}), (0.0, {"f32"}), (0.001, {"f32", "f16"}), (0.005, {"f32", "f16", "bf16"})):
        world = World(budget=budget, noise=0.3)
        for _ in range(100):
            if world.random.random() < 0.1:
                world.rates = [GBIT * 10 ** world.random.uniform(-2, 0)] * N
            world.call()
        assert set(world.used) <= most
        assert budget is None or budget == 0.0 or len(set(world.used)) > 1


@pytest.mark.parametrize("seed", range(5))
def test_ranks_with_the_same_numbers_agree_whatever_they_are(seed: int) -> None:
    world = World(noise=0.8, seed=seed, compute=0.01)
    for _ in range(150):
        if world.random.random() < 0.15:
            world.rates = [GBIT * 10 ** world.random.uniform(-2, 1) for _ in range(N)]
        world.measured = world.random.random() < 0.7
        world.call()  # compares the policies
    assert len(set(world.used)) > 1


def test_a_faster_network_shows_in_the_time_of_calls_that_measure_no_bandwidth() -> None:
    world = World()
    world.rates = [GBIT / 10] * N
    world.calls(20)
    assert world.format == "int8"
    world.measured = False
    world.rates = [GBIT] * N
    assert world.calls(10)[-1] in ("f32", "f16", "bf16")
    assert world.policies[0].estimates.age >= 9


def test_a_format_that_disappointed_is_left_alone_for_longer_each_time() -> None:
    world = World()
    world.rates = [GBIT / 10] * N
    world.calls(20)
    tried = []
    for _ in range(150):  # bursts that look ten times faster than the line is
        policy = world.policies[0]
        if world.format == "int8":
            for each in world.policies:
                each.estimates.into = each.estimates.out = [GBIT] * N
                each.estimates.links.clear()
            world.measured = False
        else:
            world.measured = True
        if policy.candidates[policy.current].format.name != "int8":
            tried.append(policy.calls)
        world.call()
    starts = [b for a, b in zip([-9, *tried], tried, strict=False) if b - a > 1]
    gaps = [b - a for a, b in pairwise(starts)]
    assert len(starts) < 20
    assert gaps == sorted(gaps) or max(gaps) >= 4 * min(gaps)


def test_one_slow_host_gets_a_smaller_share() -> None:
    world = World(budget=None, compute=0.0)
    world.calls(12)
    assert not world.algorithm.startswith("unequal")
    world.rates = [GBIT, GBIT / 5, GBIT, GBIT]
    world.calls(20)
    assert world.algorithm.startswith("unequal_two_shot:shares=")
    _, values = parse_spec("all_reduce", world.algorithm)
    assert values["segments"] > 1  # else the slow line would be used one way at a time
    assert values["shares"][1] == min(values["shares"])
    world.rates = [GBIT] * N
    world.calls(20)
    assert not world.algorithm.startswith("unequal")


def test_slow_links_are_left_out_of_the_ring() -> None:
    slow = {(0, 1), (1, 0), (2, 3), (3, 2)}
    policy = World(budget=None).policies[0]
    menu = World(budget=None).menus[0]
    policy.estimates.into, policy.estimates.out = [GBIT] * N, [GBIT] * N
    policy.estimates.links = {
        (a, b): GBIT / 10 if (a, b) in slow else GBIT for a in range(N) for b in range(N) if a != b
    }
    assert not menu.refresh(policy)  # seen once
    assert menu.refresh(policy)
    assert any(each.algorithm == "ring:order=0+2+1+3" for each in policy.candidates)
    times = {each.algorithm: policy.seconds(i) for i, each in enumerate(policy.candidates)}
    assert times["ring:order=0+2+1+3"] < times["ring"]


def test_rows_survive_the_exchange() -> None:
    row = Row(1.0, 2.0, 3.0, 4.0, (5.0, 6.0))
    assert rows_of([row.values()]) == [row]


def test_arrivals_name_who_comes_last() -> None:
    seen = Arrivals(3)
    for late in (0.1, 0.2, 0.3):
        seen.add([1.0, 1.0 - late, 0.99])
    assert seen.worst().rank == 1
    assert seen.worst().last == 3
    assert seen.worst().mean_late == pytest.approx(0.2)
    assert "3 calls" in str(seen)


@pytest.mark.parametrize(
    ("policies", "budget", "says"),
    [
        ("bf16", None, "expected a list"),
        (["bf17"], None, "did you mean 'bf16'\\? Valid: f32"),
        ([3], None, "compressor"),
        (["int8"], 0.001, "accuracy_budget is 0.001"),
        (["int8", "int8"], None, "each format once"),
        (None, -1.0, "0 or more"),
    ],
)
def test_wrong_permissions_are_refused(policies: object, budget: float | None, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        allowed(policies, budget)  # type: ignore[arg-type]
