"""The tuner: measures within a budget, fits the cost model, and finds the rules that are fastest on this machine.

1. Tasks (see `trials`) in a few worlds; the model is fitted to them.
2. Races: for each world, collective and size the best candidates by the model are measured against each other and the
   built-in choice. What is measured improves what is expected nearby (see `candidates.Experience`). The most important
   come first; for what no time is left, the expectation decides, if its advantage is large. Where the choice changes
   from one size to the next, and the wrong one would cost much, both are raced between them.
3. A check: the model, fitted to everything so far, against measurements it has not seen.

Nothing here knows processes: `Worlds` opens places and measures, and the clock is given, so tests can do without both.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ringleader.schedule import Collective
from ringleader.tune.candidates import Experience, distinct, possible, ranked
from ringleader.tune.cost import features
from ringleader.tune.fit import Errors, Observation, errors, fit
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.place import Place
from ringleader.tune.race import Sample, estimate, race
from ringleader.tune.rules import Range, Rule, RuleSet
from ringleader.tune.select import select
from ringleader.tune.trials import Trial, tasks, work

__all__ = ["COLLECTIVES", "SIZES", "Checked", "Point", "Settings", "Tuner", "Tuning", "Worlds", "rules_of"]

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 128, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")

_SHARE_OF_TASKS, _SHARE_OF_EDGES, _SHARE_OF_CHECK = 0.15, 0.1, 0.1
_COSTLY = 1.1  # times the best: where either of two choices takes so long, it matters where the one ends
_HALVINGS = 2  # of the factor between two sizes
_BLOCK = 2e-3  # seconds
_SMALL = 64 * KIB  # tasks of so many bytes take next to nothing anywhere
_TASK_BLOCKS, _BLOCKS, _ROUNDS = 4, 4, 3
_MOST_TIMES_BLOCKS = 3  # where there is time
_MOST_CANDIDATES, _CANDIDATES, _FEWEST_CANDIDATES = 16, 6, 2
_CONVINCING = 0.3  # gain that an expectation alone must promise: the model errs by as much
_OVERHEAD = 3e-3  # seconds of a measurement besides its iterations


class Worlds(Protocol):
    """Opens places and measures in the one that is open."""

    def open(self, place: Place) -> None: ...  # noqa: D102
    def measure(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Sample: ...  # noqa: D102


@dataclass(frozen=True)
class Settings:
    """What to tune. `budget` is in seconds, `cores` those that the ranks of a node share."""

    places: tuple[Place, ...]
    budget: float = 120.0
    sizes: tuple[int, ...] = SIZES
    collectives: tuple[str, ...] = COLLECTIVES
    cores: int = 1


@dataclass(frozen=True)
class Point:
    """A request and what was found for it.

    Attributes
    ----------
    chosen, built_in
        What is fastest, and what would have been chosen.
    times
        Seconds of what was measured; empty: nothing was, an expectation decided.
    """

    place: Place
    collective: str
    nbytes: int
    chosen: Trial
    built_in: Trial
    times: dict[Trial, float]


@dataclass(frozen=True)
class Checked:
    """A measurement that the model had not seen, and its prediction (seconds)."""

    place: Place
    trial: Trial
    measured: float
    predicted: float


@dataclass(frozen=True)
class Tuning:
    """The result. `errors` are those of `checked`."""

    model: Model
    errors: Errors
    points: tuple[Point, ...]
    checked: tuple[Checked, ...]
    seconds: float


@dataclass
class Tuner:
    """Runs a tuning.

    Attributes
    ----------
    worlds
        Where to measure.
    settings
        What.
    progress
        Called with the share of the budget that is used, and what is being done.
    clock
        Seconds, only growing.
    """

    worlds: Worlds
    settings: Settings
    progress: Callable[[float, str], None] = lambda share, text: None
    clock: Callable[[], float] = time.monotonic
    _observations: list[Observation] = field(default_factory=list)
    _open: Place | None = None

    def run(self) -> Tuning:
        """Measure, fit, choose and check."""
        self._began = self.clock()
        one_host = all(place.hosts == 1 for place in self.settings.places)
        model = replace(DEFAULT, cores=self.settings.cores, one_host=one_host, source="tuned")
        model = self._tasks(model)
        experience = Experience(model)
        points = self._edges(experience, self._races(experience))
        model = fit(self._observations, model)
        checked = self._check(model)
        seen = [Observation(work(c.trial, c.place.nodes), c.place.layout, c.trial.nbytes, c.measured) for c in checked]
        return Tuning(model, errors(seen, model), tuple(points), tuple(checked), self.clock() - self._began)

    @property
    def _used(self) -> float:
        return self.clock() - self._began

    def _go(self, place: Place) -> None:
        if place != self._open:
            self.worlds.open(place)
            self._open = place

    def _observe(self, place: Place, trial: Trial, seconds: float) -> None:
        self._observations.append(Observation(work(trial, place.nodes), place.layout, trial.nbytes, seconds))

    # -------------------------------------------------------------------------------------------- tasks

    def _tasks(self, model: Model) -> Model:
        """Measure the building blocks where ranks have cores of their own, and what changes where they have not.

        The small ones come first; how long the large ones take is expected from them.
        """
        limit, largest = self.settings.budget * _SHARE_OF_TASKS, max(self.settings.sizes)
        places = _for_tasks(self.settings.places, self.settings.cores)
        for place in places:
            if self._used < limit or not self._observations:
                self._measure_tasks(place, _tasks_of(place, min(_SMALL, largest), self.settings.cores))
        model = fit(self._observations, model)
        for number, place in enumerate(places):
            share = (limit - self._used) / (len(places) - number)
            trials = []
            for trial in _tasks_of(place, largest, self.settings.cores):
                seconds = float(features(work(trial, place.nodes), trial.nbytes, model) @ model.parameters.values())
                share -= _price([(trial, seconds)]) if trial.nbytes > _SMALL else 0.0
                if trial.nbytes > _SMALL and share > 0:
                    trials.append(trial)
            self._measure_tasks(place, trials)
        return fit(self._observations, model)

    def _measure_tasks(self, place: Place, trials: Sequence[Trial]) -> None:
        if not trials:
            return
        self._go(place)
        self.progress(self._used / self.settings.budget, f"tasks, {place}")
        sample = self.worlds.measure(trials, _BLOCK, _TASK_BLOCKS)
        for trial, blocks in zip(trials, sample.blocks, strict=True):
            self._observe(place, trial, estimate([blocks]))

    # -------------------------------------------------------------------------------------------- races

    def _races(self, experience: Experience) -> list[Point]:
        """Measure what there is time for, the most important first; decide the rest by what is expected."""
        points: dict[tuple[Place, str, int], Point] = {}
        queue = list(_by_importance(self.settings))
        for done, (place, collective, nbytes) in enumerate(queue):
            left = self.settings.budget * (1 - _SHARE_OF_EDGES - _SHARE_OF_CHECK) - self._used
            self.progress(self._used / self.settings.budget, f"{collective}, {place}, {nbytes} bytes")
            near = _nearest(points, place, collective, nbytes)
            choices = [] if near is None else [near]
            found = self._race(experience, place, collective, nbytes, choices, left, left / (len(queue) - done))
            if found is not None:
                points[place, collective, nbytes] = found
        for place, collective, nbytes in queue:
            if (place, collective, nbytes) not in points:
                near = _nearest(points, place, collective, nbytes)
                points[place, collective, nbytes] = _expected(experience, place, collective, nbytes, near)
        return [points[key] for key in sorted(points, key=lambda key: queue.index(key))]

    def _race(
        self,
        experience: Experience,
        place: Place,
        collective: str,
        nbytes: int,
        choices: Sequence[Trial],
        left: float,
        fair: float,
    ) -> Point | None:
        """Measure the best candidates; None if there is no time. `left` seconds in all, `fair` of them for this one.

        `choices` are those of sizes nearby: besides the built-in one they are preferred unless clearly slower.
        """
        built_in = _built_in(place, collective, nbytes)
        incumbents = [built_in, *choices]
        field = ranked(experience, collective, nbytes, place.nodes, incumbents)
        size = min(_MOST_CANDIDATES, len(field))
        while size > _FEWEST_CANDIDATES and _price(field[:size]) > (1 if size > _CANDIDATES else 3) * fair:
            size -= 1
        if _price(field[:size]) > min(left, 12 * fair):
            return None
        trials = distinct([*incumbents, *(trial for trial, _ in field[:size])], place.nodes)
        self._go(place)
        blocks = _BLOCKS * min(max(int(fair / _price(field[:size])), 1), _MOST_TIMES_BLOCKS)
        outcome = race(self.worlds.measure, trials, incumbents, _BLOCK, blocks, _ROUNDS)
        for trial, seconds in outcome.times.items():
            experience.learn(trial, place.nodes, seconds)
            if _joint(collective):
                self._observe(place, trial, seconds)
        return Point(place, collective, nbytes, outcome.winner, built_in, outcome.times)

    # -------------------------------------------------------------------------------------------- edges

    def _edges(self, experience: Experience, points: Sequence[Point]) -> list[Point]:
        """The points, and more between those where the choice changes: the rule for each reaches half way to the next.

        An algorithm that is best up to some size can be much slower right beyond it, as where its messages no longer
        fit a buffer; so that size has to be known better than by a factor of two.
        """
        found = list(points)
        for _ in range(_HALVINGS):
            rows: dict[tuple[Place, str], list[Point]] = {}
            for point in sorted(found, key=lambda p: p.nbytes):
                rows.setdefault((point.place, point.collective), []).append(point)
            for row in rows.values():
                pairs = itertools.pairwise(row)
                found += filter(None, (self._between(experience, below, above) for below, above in pairs))
        return found

    def _between(self, experience: Experience, below: Point, above: Point) -> Point | None:
        """A race in the middle, of both choices among others; None if that is not worth it, or there is no time."""
        nbytes = int((below.nbytes * above.nbytes) ** 0.5) // 4 * 4
        if _same(below.chosen, above.chosen) or _loss(below, above) < _COSTLY or nbytes <= below.nbytes:
            return None
        left = self.settings.budget * (1 - _SHARE_OF_CHECK) - self._used
        able = possible(below.collective, nbytes, below.place.nodes)
        choices = [trial for point in (below, above) if (trial := replace(point.chosen, nbytes=nbytes)) in able]
        return self._race(experience, below.place, below.collective, nbytes, choices, left, left / 12)

    # -------------------------------------------------------------------------------------------- check

    def _check(self, model: Model) -> list[Checked]:
        """Measure what the model has not seen: sizes between those of the races, algorithms at random."""
        random = np.random.default_rng(len(self._observations))
        checked: list[Checked] = []
        sizes = self.settings.sizes
        between = [int((a * b) ** 0.5) // 4 * 4 or 4 for a, b in itertools.pairwise(sizes)] or list(sizes)
        joint = [name for name in self.settings.collectives if _joint(name)] or list(self.settings.collectives)
        experience = Experience(model)
        while not checked or (self._used < self.settings.budget and len(checked) < 200):
            place = self.settings.places[int(random.integers(len(self.settings.places)))]
            nbytes = between[int(random.integers(len(between)))]
            collective = joint[int(random.integers(len(joint)))]
            choices = ranked(experience, collective, nbytes, place.nodes)
            trial, seconds = choices[int(random.integers(max(len(choices) // 2, 1)))]
            if seconds * 8 > self.settings.budget - self._used and checked:
                break
            self._go(place)
            self.progress(min(self._used / self.settings.budget, 1.0), f"check, {place}")
            sample = self.worlds.measure([trial], _BLOCK, _TASK_BLOCKS)
            checked.append(Checked(place, trial, estimate([sample.blocks[0]]), seconds))
        return checked


# ------------------------------------------------------------------------------------------------ what to measure


def _for_tasks(places: Sequence[Place], cores: int) -> list[Place]:
    """Per transport the smallest world, one with a few ranks per core, and the largest."""
    found: list[Place] = []
    for transport in dict.fromkeys(place.transport for place in places):
        mine = sorted((place for place in places if place.transport == transport), key=lambda place: place.ranks)
        crowded = [place for place in mine if place.ranks > cores]
        found += dict.fromkeys([mine[0], *crowded[:1], mine[-1]])
    return found


def _tasks_of(place: Place, largest: int, cores: int) -> list[Trial]:
    """Tasks, and two algorithms as they are. Where ranks share cores, pairs would measure the others' waiting."""
    crowded = place.hosts == 1 and place.ranks > cores
    trials = [t for t in tasks(place.nodes, largest) if not crowded or t.algorithm == "rotate"]
    whole = itertools.product(("one_shot", "ring"), (8, 64 * KIB, MIB, 16 * MIB))
    return trials + [Trial("all_reduce", name, "push", nbytes) for name, nbytes in whole if nbytes <= largest]


def _by_importance(settings: Settings) -> Iterator[tuple[Place, str, int]]:
    """Powers of two before other numbers of ranks, and of the collectives the first before the others."""
    worlds = sorted(settings.places, key=lambda place: (place.ranks & (place.ranks - 1) != 0, place.ranks))
    even = [place for place in worlds if place.ranks & (place.ranks - 1) == 0]
    odd = [place for place in worlds if place not in even]
    first, others = settings.collectives[:1], settings.collectives[1:]
    for places, collectives in ((even, first), (odd, first), (even, others), (odd, others)):
        for place in places:
            yield from ((place, collective, nbytes) for collective in collectives for nbytes in settings.sizes)


def _joint(collective: str) -> bool:
    """Whether all ranks wait for all. Else, called again and again, some run ahead: what is measured is no latency."""
    return not Collective(collective).rooted


def _price(field: Sequence[tuple[Trial, float]]) -> float:
    """About how many seconds a race takes."""
    rounds = 1 + 0.5 * (_ROUNDS - 1)
    runs = sum(5 * seconds + rounds * _BLOCKS * (max(_BLOCK, seconds) + seconds) for _, seconds in field)
    return runs + rounds * _OVERHEAD


def _built_in(place: Place, collective: str, nbytes: int) -> Trial:
    choice = select(collective, nbytes, place.ranks, place.nodes, 4, env={})
    return Trial(collective, choice.algorithm, choice.protocol, nbytes)


def _nearest(points: dict[tuple[Place, str, int], Point], place: Place, collective: str, nbytes: int) -> Trial | None:
    """What won the race at the nearest size of the same place, if it can run at this size."""
    sizes = [
        size
        for (its_place, its, size), point in points.items()
        if (its_place, its) == (place, collective) and point.times
    ]
    if not sizes:
        return None
    nearest = min(sizes, key=lambda size: max(size / nbytes, nbytes / size))
    trial = replace(points[place, collective, nearest].chosen, nbytes=nbytes)
    return trial if trial in possible(collective, nbytes, place.nodes) else None


def _loss(below: Point, above: Point) -> float:
    """How many times the best either choice takes where the other one is best; 1 if that was not measured."""
    losses = [1.0]
    for here, there in ((below, above), (above, below)):
        other = here.times.get(replace(there.chosen, nbytes=here.nbytes))
        if other is not None and here.chosen in here.times:
            losses.append(other / here.times[here.chosen])
    return max(losses)


def _expected(experience: Experience, place: Place, collective: str, nbytes: int, near: Trial | None) -> Point:
    """The choice where nothing was measured: what was best nearby, unless another one promises much more."""
    built_in = _built_in(place, collective, nbytes)
    incumbent = near or built_in
    best, seconds = ranked(experience, collective, nbytes, place.nodes, [incumbent])[0]
    gains = seconds < (1 - _CONVINCING) * experience.expect(incumbent, place.nodes)
    return Point(place, collective, nbytes, best if gains else incumbent, built_in, {})


# ------------------------------------------------------------------------------------------------ rules


def rules_of(points: Sequence[Point], source: str) -> RuleSet:
    """Rules that choose what was found: each reaches half way, by ratio, to the next size with another choice.

    Parameters
    ----------
    points
        Of places with the same number of hosts.
    source
        Name of the set.
    """
    rules: list[Rule] = []
    rows: dict[tuple[str, tuple[int, ...], str], list[Point]] = {}
    for point in sorted(points, key=lambda p: p.nbytes):
        rows.setdefault((point.place.layout, point.place.nodes, point.collective), []).append(point)
    for row in rows.values():
        low = 0
        for number, point in enumerate(row):
            following = row[number + 1] if number + 1 < len(row) else None
            if following is not None and _same(following.chosen, point.chosen):
                continue
            nbytes = Range(low) if following is None else Range(low, int((point.nbytes * following.nbytes) ** 0.5))
            rules.append(_rule(point, nbytes))
            low = nbytes.high + 1
    return RuleSet(tuple(rules), source)


def _same(one: Trial, other: Trial) -> bool:
    return (one.algorithm, one.protocol) == (other.algorithm, other.protocol)


def _rule(point: Point, nbytes: Range) -> Rule:
    place = point.place
    counts = [place.nodes.count(node) for node in dict.fromkeys(place.nodes)]
    mixed = place.layout == "mixed"
    return Rule(
        point.collective,
        layouts=(place.layout,),
        ranks=Range(place.ranks, place.ranks),
        nodes=Range(len(counts), len(counts)) if mixed else Range(),
        ranks_per_node=Range(min(counts), max(counts)) if mixed else Range(),
        nbytes=nbytes,
        algorithm=point.chosen.algorithm,
        protocol=point.chosen.protocol,
    )
