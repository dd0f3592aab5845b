"""Finding the fastest of some trials without measuring the slow ones for long, and without believing in noise.

All are measured in alternating blocks. After each round those that are clearly slower are left out. In the end a
challenger replaces the incumbent (what would be chosen anyway) only if it wins by more than the noise: otherwise two
equally fast algorithms would alternate from size to size, and from one tuning to the next.

References
----------
Z. Karnin, T. Koren, O. Somekh: Almost optimal exploration in multi-armed bandits, ICML 2013 (sequential halving).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ringleader.tune.trials import Trial

__all__ = ["MARGIN", "Measurer", "Outcome", "Sample", "estimate", "race", "winner"]

MARGIN = 0.03
"""A challenger must be so much faster, as a share of the incumbent's time."""

_CLEARLY = 1.15  # slower by this, even in its fastest block: left out
_KEPT = 0.5  # share of the field that goes into the next round, if more are left than `_FEW`
_FEW = 3
_AGREE = 2 / 3  # share of the blocks in which a challenger must be ahead; half of them if it gains much
_LARGE = 0.1


class Sample(Protocol):
    """What a measurement gives: see `ringleader.cli.contest.Times`."""

    @property
    def blocks(self) -> Sequence[Sequence[float]]: ...  # noqa: D102
    @property
    def elapsed(self) -> float: ...  # noqa: D102


class Measurer(Protocol):
    """Measures trials, `seconds` for each of `blocks` blocks of each, alternating."""

    def __call__(self, trials: Sequence[Trial], seconds: float, blocks: int) -> Sample: ...  # noqa: D102


@dataclass(frozen=True)
class Outcome:
    """Of a race.

    Attributes
    ----------
    winner
        The trial to choose.
    times
        Seconds of every trial, as far as it was measured.
    elapsed
        Seconds that the race took.
    """

    winner: Trial
    times: dict[Trial, float]
    elapsed: float


def estimate(rounds: Sequence[Sequence[float]]) -> float:
    """A trial's time from its blocks, round by round: the least of the rounds' medians.

    Others who use the machine only ever add time, and often for longer than a round.

    Examples
    --------
    >>> estimate([[5.0, 9.0, 5.2], [5.1, 5.0, 5.3]])
    5.1
    """
    return min(statistics.median(blocks) for blocks in rounds)


def winner(rounds: dict[Trial, list[list[float]]], incumbents: Sequence[Trial]) -> Trial:
    """The fastest trial, or the first of the incumbents that it does not beat by more than the noise.

    Parameters
    ----------
    rounds
        Of each trial that was measured to the end, its blocks of each round; blocks of equal place were measured
        together.
    """
    best = min(rounds, key=lambda trial: estimate(rounds[trial]))
    for incumbent in incumbents:
        if incumbent in rounds and not _beats(rounds[best], rounds[incumbent]):
            return incumbent
    return best


def _beats(challenger: Sequence[Sequence[float]], incumbent: Sequence[Sequence[float]]) -> bool:
    pairs = [
        pair for ours, theirs in zip(challenger, incumbent, strict=True) for pair in zip(ours, theirs, strict=True)
    ]
    ahead = sum(ours < theirs for ours, theirs in pairs) / len(pairs)
    gain = 1 - estimate(challenger) / estimate(incumbent)
    return gain > MARGIN and ahead >= (_AGREE if gain < _LARGE else 0.5)


def race(
    measure: Measurer, trials: Sequence[Trial], incumbents: Sequence[Trial], seconds: float, blocks: int, rounds: int
) -> Outcome:
    """Find the fastest.

    Parameters
    ----------
    incumbents
        Some of the trials: preferred in this order unless they are clearly slower.
    seconds, blocks
        See `Measurer`; of each round.
    rounds
        How many at most; it ends when one is left.
    """
    field = list(trials)
    measured: dict[Trial, list[list[float]]] = {trial: [] for trial in field}
    elapsed = 0.0
    for number in range(rounds):
        sample = measure(field, seconds, blocks)
        elapsed += sample.elapsed
        for trial, row in zip(field, sample.blocks, strict=True):
            measured[trial].append(list(row))
        if number < rounds - 1:
            field = _remaining(field, measured)
            if len(field) == 1:
                break
    finalists = {trial: measured[trial] for trial in field}
    best = winner(finalists, incumbents)
    if incumbents and incumbents[0] not in finalists:
        # It was out early, which bad luck can do: who takes its place has to beat it at another time as well.
        duel = [best, incumbents[0]]
        sample = measure(duel, seconds, blocks)
        elapsed += sample.elapsed
        together = len(measured[incumbents[0]])  # rounds in which both were measured
        again = {
            trial: [*measured[trial][:together], list(row)] for trial, row in zip(duel, sample.blocks, strict=True)
        }
        best = winner(again, incumbents)
        for trial in duel:
            measured[trial].append(again[trial][-1])
    times = {trial: estimate(rows) for trial, rows in measured.items()}
    return Outcome(best, times, elapsed)


def _remaining(field: Sequence[Trial], measured: dict[Trial, list[list[float]]]) -> list[Trial]:
    """Those that may still win, by their fastest blocks: who was disturbed in some is not out for that."""
    fastest = {trial: min(min(blocks) for blocks in measured[trial]) for trial in field}
    ordered = sorted(field, key=lambda trial: fastest[trial])
    limit = _CLEARLY * min(estimate(measured[trial]) for trial in field)
    alive = [trial for trial in ordered if fastest[trial] <= limit]
    return alive[: max(_FEW, int(len(ordered) * _KEPT))]
