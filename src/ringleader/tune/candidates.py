"""Which algorithms are worth trying for a request: what can run, by the cost model and what was measured nearby."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ringleader.algorithms import build, canonical, check, get, name_of, names
from ringleader.errors import InvalidArgument
from ringleader.tune.cost import predict
from ringleader.tune.model import Model
from ringleader.tune.rules import layout_of
from ringleader.tune.trials import Trial

__all__ = ["Experience", "distinct", "possible", "ranked"]

_SEGMENTS = (2, 4, 8)
_SMALLEST_SEGMENT = 16 << 10  # bytes: finer pieces cost more than their overlap gains, everywhere
_OF_ONE_NAME = 2
# How far what was measured reaches: factors of e^1 in size and in ranks.
_REACH_BYTES = math.log(64)
_REACH_RANKS = math.log(1.6)
_DOUBT = 0.3  # weight of "the model is right"


def possible(collective: str, nbytes: int, nodes: Sequence[int]) -> list[Trial]:
    """Everything that can run: each algorithm, in a few segments where it has them, by push and by pull.

    Examples
    --------
    >>> [trial.name for trial in possible("barrier", 1, [0, 1])]
    ['direct (push)', 'dissemination (push)', 'tree (push)']
    """
    n = len(nodes)
    protocols = ("push", "pull") if len(set(nodes)) < n else ("push",)
    found = []
    # Of algorithms that are the same here, the first stays: the plain one, not the general one with these parameters.
    for name in sorted(names(collective), key=lambda name: _plainness(collective, name)):
        specs = [name]
        if "segments" in get(collective, name).defaults:
            specs += [f"{name}:segments={k}" for k in _SEGMENTS if nbytes // n // k >= _SMALLEST_SEGMENT]
        for spec in specs:
            try:
                check(collective, spec, n, nodes=nodes)
            except InvalidArgument:
                continue
            found += [Trial(collective, canonical(collective, spec), protocol, nbytes) for protocol in protocols]
    return found


def _plainness(collective: str, name: str) -> tuple[bool, int, str]:
    entry = get(collective, name)
    return entry.needs_layout, len(entry.parameters), name


@functools.lru_cache(maxsize=4096)
def _content(collective: str, algorithm: str, protocol: str, nodes: tuple[int, ...]) -> tuple[str, str]:
    """Equal for trials that run the same: with few ranks many algorithms are one, and not all have copies to push."""
    schedule = build(collective, algorithm, len(nodes), nodes=nodes)
    table, place = schedule.table, np.asarray(nodes)
    copies = (table["reduce"] == 0) & (place[table["src_rank"]] == place[table["dst_rank"]])
    return schedule.fingerprint, protocol if bool(copies.any()) else ""


def distinct(trials: Sequence[Trial], nodes: Sequence[int]) -> list[Trial]:
    """The trials without those that run the same as an earlier one.

    Examples
    --------
    >>> alike = [Trial("all_reduce", name, "push", 8) for name in ("one_shot", "recursive_doubling", "ring")]
    >>> [trial.algorithm for trial in distinct(alike, [0, 0])]
    ['one_shot', 'ring']
    """
    place = tuple(nodes)
    kept: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        content = _content(trial.collective, trial.algorithm, trial.protocol, place)
        kept.setdefault((trial.collective, trial.nbytes, *content), trial)
    return list(kept.values())


@dataclass
class Experience:
    """What was measured so far, against the model: near a measured request its predictions are better.

    Examples
    --------
    >>> from ringleader.tune.model import DEFAULT
    >>> known = Experience(DEFAULT)
    >>> ring = Trial("all_reduce", "ring", "push", 4096)
    >>> before = known.expect(ring, [0, 1])
    >>> known.learn(ring, [0, 1], before * 4)
    >>> known.expect(ring, [0, 1]) / before > 2
    True
    """

    model: Model
    _seen: dict[tuple[str, str, str, str], list[tuple[float, float, float]]] = field(default_factory=dict)

    def learn(self, trial: Trial, nodes: Sequence[int], seconds: float) -> None:
        """Remember a measurement."""
        ratio = math.log(seconds / self._predicted(trial, nodes))
        place = (math.log(max(trial.nbytes, 1)), math.log(len(nodes)), ratio)
        self._seen.setdefault(self._key(trial, nodes), []).append(place)

    def expect(self, trial: Trial, nodes: Sequence[int]) -> float:
        """Seconds that a trial is expected to take."""
        size, ranks = math.log(max(trial.nbytes, 1)), math.log(len(nodes))
        total, weights = 0.0, _DOUBT
        for its_size, its_ranks, ratio in self._seen.get(self._key(trial, nodes), ()):
            far = ((size - its_size) / _REACH_BYTES) ** 2 + ((ranks - its_ranks) / _REACH_RANKS) ** 2
            weight = math.exp(-far * 4)
            total, weights = total + weight * ratio, weights + weight
        return self._predicted(trial, nodes) * math.exp(total / weights)

    def _predicted(self, trial: Trial, nodes: Sequence[int]) -> float:
        cost = predict(trial.collective, trial.algorithm, trial.nbytes, len(nodes), nodes, trial.protocol, self.model)
        return max(cost.seconds, 1e-9)

    @staticmethod
    def _key(trial: Trial, nodes: Sequence[int]) -> tuple[str, str, str, str]:
        return layout_of(tuple(nodes)), trial.collective, name_of(trial.algorithm), trial.protocol


def ranked(
    experience: Experience, collective: str, nbytes: int, nodes: Sequence[int], among: Sequence[Trial] = ()
) -> list[tuple[Trial, float]]:
    """The possible trials with the seconds expected of them, the shortest first, at most two of a name and protocol.

    Parameters
    ----------
    among
        Trials that are in any case among them (they may be segmented otherwise).
    """
    trials = distinct([*among, *possible(collective, nbytes, nodes)], nodes)
    expected = sorted(((trial, experience.expect(trial, nodes)) for trial in trials), key=lambda pair: pair[1])
    counts: dict[tuple[str, str], int] = {}
    kept = []
    for trial, seconds in expected:
        name = (name_of(trial.algorithm), trial.protocol)
        counts[name] = counts.get(name, 0) + 1
        if counts[name] <= _OF_ONE_NAME or trial in among:
            kept.append((trial, seconds))
    return kept
