"""The cost model, its fit, races, the tuner and its table, on machines that are made up: nothing here is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.algorithms import build, names
from ringleader.errors import InvalidArgument
from ringleader.tune import select, table
from ringleader.tune.candidates import Experience, distinct, possible, ranked
from ringleader.tune.cost import features, predict, work_of
from ringleader.tune.fit import Errors, Observation, errors, fit, nonnegative_least_squares
from ringleader.tune.model import DECADES, DEFAULT, Model, Parameters
from ringleader.tune.place import Place
from ringleader.tune.race import race, winner
from ringleader.tune.rules import Range, Rule, RuleSet
from ringleader.tune.table import Table
from ringleader.tune.trials import TASKS, Trial, schedule_of, tasks, work
from ringleader.tune.tuner import Settings, Tuner, rules_of

# A machine unlike the built-in model: slow hops, expensive pulls, a network with a bandwidth of its own.
TRUE = Model(
    Parameters(
        call=2e-6, window=4e-6, shm_hop=1.1e-6, shm_op=0.2e-6, push_byte=2e-10, pull_byte=6e-10, reduce_byte=1e-10,
        net_hop=25e-6, net_message=2e-6, net_byte=1e-10, wire_byte=8e-10, switch=7e-6, net_switch=15e-6,
    ),
    cores=2,
    one_host=True,
)  # fmt: skip


@dataclass
class Sampled:
    blocks: list[list[float]]
    elapsed: float


@dataclass
class MadeUp:
    """A machine that behaves as a model, with noise; every measurement takes as long as it would, on `now`.

    `noise` is the spread of a block; one block in ten is disturbed, by a factor of up to 4. `secret` is by how much
    schedules differ from the model.
    """

    model: Model = TRUE
    noise: float = 0.0
    secret: float = 1.0
    now: float = 0.0
    place: Place | None = None
    measured: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def open(self, place: Place) -> None:
        self.place = place
        self.now += 0.05

    def true(self, trial: Trial, nodes: Sequence[int]) -> float:
        """Seconds that it takes, with what no model knows: a factor of its own for each schedule."""
        seconds = float(features(work(trial, nodes), trial.nbytes, self.model) @ self.model.parameters.values())
        content = int(schedule_of(trial, len(nodes), nodes).fingerprint, 16)
        return seconds * self.secret ** (2 * (content % 1000) / 999 - 1)

    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Sampled:
        assert self.place is not None
        rows, began = [], self.now
        for trial in trials:
            true = self.true(trial, self.place.nodes)
            factors = np.exp(self.random.normal(0, self.noise, blocks)) if self.noise else np.ones(blocks)
            if self.noise:
                factors *= np.where(self.random.random(blocks) < 0.1, self.random.uniform(1, 4, blocks), 1.0)
            rows.append((true * factors).tolist())
            self.now += 5 * true + blocks * (true + max(seconds, true))
            self.measured += 1
        return Sampled(rows, self.now - began)


def _observations(machine: MadeUp) -> list[Observation]:
    found = []
    for place in (Place.local(2, "shm"), Place.local(6, "shm"), Place.local(2, "tcp"), Place.local(6, "tcp")):
        machine.open(place)
        trials = tasks(place.nodes, 1 << 24)
        trials += [Trial("all_reduce", name, "push", size) for name in ("one_shot", "ring") for size in (64, 1 << 20)]
        for trial, blocks in zip(trials, machine.measure(trials, 0.002, 4).blocks, strict=True):
            found.append(Observation(work(trial, place.nodes), place.layout, trial.nbytes, float(np.median(blocks))))
    return found


# ------------------------------------------------------------------------------------------------ cost


def test_costs_are_counted_along_the_busiest_rank() -> None:
    ring = work_of(build("all_reduce", "ring", 4), [0, 0, 0, 0])
    assert ring.per_rank["reduce_byte"].sum(axis=0).tolist() == [0.75] * 4
    assert ring.per_rank["push_byte"].sum(axis=0).tolist() == [0.75] * 4
    assert ring.per_rank["net_message"].sum() == 0
    remote = work_of(build("all_reduce", "ring", 4), [0, 1, 2, 3])
    assert remote.per_rank["wire_byte"].sum(axis=0).tolist() == [1.5] * 4
    assert remote.per_rank["shm_op"].sum() == 0
    # Of two hosts, only the ranks at the seams use the network.
    seams = work_of(build("all_reduce", "ring", 4), [0, 0, 1, 1])
    assert seams.per_rank["wire_byte"].sum(axis=0).tolist() == [1.5] * 4
    assert seams.per_rank["net_byte"].sum() == pytest.approx(remote.per_rank["net_byte"].sum() / 2)


def test_pull_is_done_by_the_destination() -> None:
    pulled = work_of(build("broadcast", "linear", 3), [0, 0, 0], push=False)
    assert pulled.per_rank["pull_byte"].tolist() == [[0.0, 1.0, 1.0]]


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("layout", ["shm", "net", "mixed"])
def test_costs_grow_with_size_and_are_finite(collective: str, layout: str) -> None:
    for name in names(collective):
        costs = []
        for nbytes in (0, 8, 1 << 10, 1 << 20, 1 << 28):
            try:
                costs.append(predict(collective, name, nbytes, 6, layout, model=TRUE).seconds)
            except InvalidArgument:  # not for so many ranks
                return
        assert costs == sorted(costs)
        assert 0 < costs[0] < costs[-1] < 1e4


def test_ranks_that_share_cores_cost_more() -> None:
    few = predict("all_reduce", "one_shot", 8, 8, "shm", model=replace(TRUE, cores=8)).seconds
    crowded = predict("all_reduce", "one_shot", 8, 8, "shm", model=TRUE).seconds
    assert crowded >= few + 3 * TRUE.parameters.switch


def test_nodes_of_one_host_share_its_cores() -> None:
    apart = predict("all_reduce", "one_shot", 8, 8, "net", model=replace(TRUE, one_host=False)).seconds
    together = predict("all_reduce", "one_shot", 8, 8, "net", model=TRUE).seconds
    assert together >= apart + 2 * TRUE.parameters.net_switch


def test_staged_data_runs_in_windows() -> None:
    columns = Parameters.names()
    ring = work_of(build("all_reduce", "ring", 2), [0, 0])
    counted = features(ring, 4 * TRUE.slot_bytes, TRUE)
    assert counted[columns.index("window")] == 3
    assert counted[columns.index("shm_hop")] == 4 * 2


def test_a_large_world_is_costed_by_formula() -> None:
    for layout in ("shm", "net"):
        assert 0 < predict("all_reduce", "rabenseifner", 1 << 20, 4096, layout).seconds < 10


# ------------------------------------------------------------------------------------------------ fit


@given(st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_least_squares_are_optimal_and_not_negative(columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(columns + 3, columns)), random.normal(size=columns + 3)
    x = nonnegative_least_squares(a, b)
    assert (x >= 0).all()
    gradient = a.T @ (a @ x - b)  # at the optimum: 0 where x > 0, else not negative (Karush, Kuhn, Tucker)
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-8
    assert gradient[x == 0].min(initial=0) > -1e-8


def test_the_fit_finds_the_parameters() -> None:
    found = fit(_observations(MadeUp()), replace(DEFAULT, cores=2, one_host=True))
    for name in Parameters.names():
        if name != "window":  # tasks are too few to tell it from the bytes exactly
            assert getattr(found.parameters, name) == pytest.approx(getattr(TRUE.parameters, name), rel=0.15), name


def test_the_fit_survives_noise() -> None:
    found = fit(_observations(MadeUp(noise=0.1)), replace(DEFAULT, cores=2, one_host=True))
    off = errors(_observations(MadeUp()), found)
    assert off.median < 0.1
    assert off.p90 < 0.35


def test_what_the_model_misses_is_corrected_by_size() -> None:
    machine = MadeUp()
    seen = [replace(o, seconds=o.seconds * (3.0 if o.nbytes > 10**5 else 1.0)) for o in _observations(machine)]
    found = fit(seen, replace(DEFAULT, cores=2, one_host=True))
    uncorrected = replace(found, corrections={})
    assert errors(seen, found).median < errors(seen, uncorrected).median + 1e-9
    assert all(len(factors) == DECADES for factors in found.corrections.values())


def test_a_fit_needs_observations() -> None:
    with pytest.raises(InvalidArgument, match="0 observations"):
        fit([], DEFAULT)
    with pytest.raises(InvalidArgument, match="at least one"):
        errors([], DEFAULT)


# ------------------------------------------------------------------------------------------------ trials, races


@pytest.mark.parametrize("nodes", [(0, 0), (0, 1), (0, 0, 1, 1)])
def test_tasks_are_for_every_kind_of_link(nodes: tuple[int, ...]) -> None:
    found = tasks(nodes, 1 << 20)
    assert {trial.algorithm for trial in found} == set(TASKS)
    kinds = {nodes[trial.ends[0]] == nodes[trial.ends[1]] for trial in found if trial.algorithm != "rotate"}
    assert len(kinds) == min(len(set(nodes)), 2) + (len(nodes) > len(set(nodes)) > 1) - (len(set(nodes)) > 1)
    for trial in found:
        assert schedule_of(trial, len(nodes)).steps >= 1


def test_trials_that_run_the_same_are_measured_once() -> None:
    trials = possible("all_reduce", 64, [0, 0])
    left = distinct(trials, [0, 0])
    assert 2 <= len(left) < len(trials)
    assert {trial.protocol for trial in left if trial.algorithm == "one_shot"} == {"push"}


def test_experience_corrects_what_is_expected_nearby() -> None:
    known = Experience(TRUE)
    here, far = Trial("all_reduce", "ring", "push", 1 << 20), Trial("all_reduce", "ring", "push", 8)
    before = [known.expect(trial, [0] * 4) for trial in (here, far)]
    known.learn(here, [0] * 4, before[0] * 3)
    assert known.expect(here, [0] * 4) > 2 * before[0]
    assert known.expect(far, [0] * 4) < 1.2 * before[1]


@pytest.mark.parametrize("seed", range(20))
def test_a_race_is_won_by_the_fastest_despite_noise(seed: int) -> None:
    machine = MadeUp(noise=0.15, random=np.random.default_rng(seed))
    place = Place.local(4, "shm")
    machine.open(place)
    trials = distinct(possible("all_reduce", 1 << 16, place.nodes), place.nodes)
    outcome = race(machine.measure, trials, trials[-1:], 0.002, 4, 3)
    best = min(machine.true(trial, place.nodes) for trial in trials)
    assert machine.true(outcome.winner, place.nodes) <= 1.12 * best


def test_bad_luck_alone_does_not_replace_an_incumbent() -> None:
    old, new = Trial("broadcast", "linear", "pull", 8), Trial("broadcast", "binomial", "push", 8)
    rounds = iter([{old: 900.0, new: 1.2}, {old: 1.0, new: 1.2}])

    def measure(trials: Sequence[Trial], seconds: float, blocks: int) -> Sampled:
        times = next(rounds)
        return Sampled([[times[trial]] * blocks for trial in trials], 0.0)

    outcome = race(measure, [old, new], [old], 0.002, 4, 3)
    assert outcome.winner == old
    assert outcome.times == {old: 1.0, new: 1.2}


def test_an_incumbent_is_not_replaced_for_noise() -> None:
    old, new = Trial("broadcast", "linear", "pull", 8), Trial("broadcast", "binomial", "push", 8)
    alike = {old: [[1.0, 1.1, 1.01]], new: [[0.99, 1.0, 1.02]]}
    assert winner(alike, [old]) == old
    assert winner(alike, []) == new
    clearly = {old: [[1.0, 1.1, 1.0]], new: [[0.8, 0.9, 0.85]]}
    assert winner(clearly, [old]) == new
    once = {old: [[1.0, 1.0, 1.0]], new: [[0.2, 1.1, 0.9]]}  # ahead in two of three blocks
    assert winner(once, [old]) == new
    assert winner({old: [[1.0, 1.0, 1.0]], new: [[0.2, 1.1, 1.2]]}, [old]) == old


# ------------------------------------------------------------------------------------------------ the tuner


def _settings(budget: float, *places: Place) -> Settings:
    return Settings(places, budget, (8, 1 << 10, 1 << 15, 1 << 20), ("all_reduce", "broadcast"), cores=2)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "allowed"), [(0.0, 1.15), (0.1, 1.25)])
def test_the_tuner_finds_what_is_fastest(noise: float, allowed: float) -> None:
    machine = MadeUp(noise=noise, secret=1.3)
    places = [Place.local(n, transport) for transport in ("shm", "tcp") for n in (2, 4, 5)]
    tuning = Tuner(machine, _settings(60.0, *places), clock=lambda: machine.now).run()
    regrets = []
    for point in tuning.points:
        assert point.times
        everything = possible(point.collective, point.nbytes, point.place.nodes)
        best = min(machine.true(trial, point.place.nodes) for trial in everything)
        regrets.append(machine.true(point.chosen, point.place.nodes) / best)
    assert np.median(regrets) <= 1.02
    assert max(regrets) <= allowed
    assert tuning.errors.median < 0.6


def test_the_tuner_keeps_to_its_budget() -> None:
    machine = MadeUp(model=replace(TRUE, parameters=replace(TRUE.parameters, push_byte=4e-8, reduce_byte=4e-8)))
    places = [Place.local(n, "shm") for n in (2, 3, 4)]
    tuning = Tuner(machine, _settings(2.0, *places), clock=lambda: machine.now).run()
    assert machine.now < 3.0
    asked = {(point.place, point.collective, point.nbytes) for point in tuning.points}
    sizes = _settings(2.0, *places).sizes
    assert sum(nbytes in sizes for _, _, nbytes in asked) == 3 * 2 * 4  # every request has a choice, measured or not
    assert any(point.times for point in tuning.points)


@dataclass
class Steep(MadeUp):
    """A machine on which everything but a ring is much slower beyond 24 KiB, and the ring before."""

    def true(self, trial: Trial, nodes: Sequence[int]) -> float:
        slow = (trial.nbytes > 24 << 10) is not trial.algorithm.startswith("ring")
        return (3e-4 if slow else 1e-4) * (1 + trial.nbytes / (1 << 20))


def test_where_the_choice_changes_is_found_more_closely() -> None:
    machine = Steep()
    settings = Settings((Place.local(4, "tcp"),), 60.0, (8, 1 << 13, 1 << 16, 1 << 20), ("all_reduce",), cores=2)
    tuning = Tuner(machine, settings, clock=lambda: machine.now).run()
    rules = rules_of(tuning.points, "tuned")
    # The half way between two sizes, 22.6 KiB, was measured, and the next one: 38 KiB. 29 KiB lie between these.
    for nbytes, ring in ((20 << 10, False), (30 << 10, True), (1 << 16, True)):
        choice = select("all_reduce", nbytes, 4, [0, 1, 2, 3], 4, env={}, rules=[rules])
        assert choice.algorithm.startswith("ring") is ring, nbytes
    assert len(tuning.points) == 4 + 2


def test_what_was_not_measured_is_chosen_by_what_is_expected() -> None:
    machine = MadeUp()
    places = [Place.local(n, "tcp") for n in range(2, 9)]
    tuning = Tuner(machine, _settings(1.2, *places), clock=lambda: machine.now).run()
    unmeasured = [point for point in tuning.points if not point.times]
    assert unmeasured
    regrets = []
    for point in unmeasured:
        everything = possible(point.collective, point.nbytes, point.place.nodes)
        best = min(machine.true(trial, point.place.nodes) for trial in everything)
        regrets.append(machine.true(point.chosen, point.place.nodes) / best)
    assert np.median(regrets) < 1.1


def test_the_choice_by_rules_is_what_was_found() -> None:
    machine = MadeUp()
    places = [Place.local(3, "shm"), Place.local(3, "tcp"), Place((0, 0, 1, 1), "shm+tcp", hosts=2)]
    tuning = Tuner(machine, _settings(60.0, *places), clock=lambda: machine.now).run()
    rules = rules_of(tuning.points, "tuned")
    for point in tuning.points:
        nodes = point.place.nodes
        choice = select(point.collective, point.nbytes, len(nodes), nodes, 4, env={}, rules=[rules])
        assert choice.algorithm == point.chosen.algorithm
        assert choice.protocol == point.chosen.protocol
    # Other layouts are not concerned.
    for nodes in ((0, 0), (0, 0, 1), (0, 0, 0, 1), (0, 1, 2, 3)):
        assert not rules.concerns(nodes)


# ------------------------------------------------------------------------------------------------ the table


def _table() -> Table:
    rules = RuleSet((Rule("all_reduce", ranks=Range(2, 4), nbytes=Range(0, 99), algorithm="ring"),), "t")
    model = replace(TRUE, corrections={"shm": (1.5,) * DECADES}, one_host=False, source="t")
    return Table(
        {"cpu": "made up", "cores": 2}, model, Errors(0.1, 0.2, 30), {"1:tcp": rules}, "2026-01-31T12:00:00+00:00"
    )


def test_a_table_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    table.save(_table(), path)
    assert table.dumps(table.load(path)) == table.dumps(_table())
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]
    assert table.loads(table.dumps(_table()), "t") == _table()


def test_rules_of_an_older_table_stay_where_there_are_no_new_ones() -> None:
    newer = RuleSet((Rule("broadcast", ranks=Range(2, 4), algorithm="chain"),), "t")
    other = RuleSet((Rule("reduce", algorithm="chain"),), "t")
    old = replace(_table(), rules={"1:tcp": _table().rules["1:tcp"], "2:ucx": other})
    merged = table.merge(replace(_table(), rules={"1:tcp": newer}), old)
    assert [rule.collective for rule in merged.rules["1:tcp"].rules] == ["broadcast", "all_reduce"]
    assert merged.rules["2:ucx"].rules == other.rules
    elsewhere = replace(old, fingerprint={"cpu": "another"})
    assert table.merge(replace(_table(), rules={"1:tcp": newer}), elsewhere).rules == {"1:tcp": newer}
    again = RuleSet((Rule("all_reduce", ranks=Range(2, 4), algorithm="linear"),), "t")
    assert table.merge(replace(_table(), rules={"1:tcp": again}), old).rules["1:tcp"].rules == again.rules


def _leaves(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [path, *(leaf for key, value in items for leaf in _leaves(value, (*path, key)))]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from([1e999, -1e999, 2**70, "ring", "9" * 300]),
)  # fmt: skip


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_table_is_an_error_that_names_the_file(data: st.DataObject) -> None:
    raw = json.loads(table.dumps(_table()))
    *place, last = data.draw(st.sampled_from(_leaves(raw)[1:]))
    target = raw
    for key in place:
        target = target[key]
    if isinstance(target, dict) and data.draw(st.booleans()):
        del target[last]
    else:
        target[last] = data.draw(JUNK)
    _loads_or_names(json.dumps(raw))


@given(st.one_of(st.text(), st.integers(0, 3000).map(lambda cut: table.dumps(_table())[:cut])))
@settings(max_examples=200, deadline=None)
def test_anything_else_is_an_error_that_names_the_file(text: str) -> None:
    _loads_or_names(text)


def _loads_or_names(text: str) -> None:
    try:
        found = table.loads(text, "my.json")
    except InvalidArgument as error:
        assert "my.json" in str(error)
        assert len(str(error)) < 2000
    else:
        table.loads(table.dumps(found), "again")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "9" * 100_000, "[NaN]", " " * (5 << 20)])
def test_a_hostile_table_costs_nothing(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"my\.json"):
        table.loads(text, "my.json")


def test_a_table_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", Path("/dev/zero")):
        with pytest.raises(InvalidArgument, match=str(path)):
            table.load(path)


def test_ranked_has_no_name_too_often() -> None:
    found = ranked(Experience(DEFAULT), "all_reduce", 1 << 26, [0, 1, 2, 3])
    counts: dict[str, int] = {}
    for trial, _ in found:
        name = trial.algorithm.partition(":")[0]
        counts[name] = counts.get(name, 0) + 1
    assert max(counts.values()) == 2
    assert [seconds for _, seconds in found] == sorted(seconds for _, seconds in found)
