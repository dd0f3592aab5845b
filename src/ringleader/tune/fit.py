"""Fits the cost model to measurements: non-negative least squares of relative errors, then corrections by size.

Which rank is the slowest in a step depends on the parameters (see `cost.features`), so fitting and finding the slowest
ranks alternate a few times. Everything here is arithmetic: the same observations give the same model on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.tune.cost import Work, features, footprint
from ringleader.tune.model import DECADES, Model, Parameters

__all__ = ["Errors", "Observation", "errors", "fit", "nonnegative_least_squares"]

_ROUNDS = 6
_PRIOR = 2.0  # observations that say "no correction" in every decade
_LARGEST_CORRECTION = 20.0


@dataclass(frozen=True)
class Observation:
    """One measurement.

    Attributes
    ----------
    work
        What was run, see `cost.work_of`.
    layout
        ``shm``, ``net`` or ``mixed``.
    nbytes
        Bytes of the whole data.
    seconds
        How long it took.
    """

    work: Work
    layout: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Errors:
    """How far predictions are off: median and 90th percentile of max(p/m, m/p) - 1 over `points` measurements."""

    median: float
    p90: float
    points: int

    def __str__(self) -> str:
        return f"median {self.median:.0%}, 90% of them within {self.p90:.0%} ({self.points} points)"


def nonnegative_least_squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 with the least ``|a @ x - b|``.

    Parameters
    ----------
    a, b
        Shapes (m, k) and (m,).

    References
    ----------
    C. L. Lawson, R. J. Hanson: Solving Least Squares Problems, 1974, chapter 23.

    Examples
    --------
    >>> nonnegative_least_squares(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    scale = np.sqrt((a * a).sum(axis=0))
    scale[scale == 0] = 1.0
    a = a / scale
    size = a.shape[1]
    x = np.zeros(size)
    free = np.zeros(size, bool)
    tolerance = 1e-10 * max(float(np.abs(a.T @ b).max(initial=0.0)), 1e-300)
    for _ in range(10 * size):
        gradient = np.where(free, -np.inf, a.T @ (b - a @ x))
        if free.all() or gradient.max() <= tolerance:
            break
        free[int(np.argmax(gradient))] = True
        while True:
            best = np.zeros(size)
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            negative = free & (best <= 0)
            if not negative.any():
                break
            # As far towards the best as no component becomes negative; the one that stops us is bound to 0.
            step = float((x[negative] / (x[negative] - best[negative])).min())
            x = x + step * (best - x)
            free &= x > 1e-14
            x[~free] = 0.0
        x = best
    result: NDArray[np.float64] = x / scale
    return result


def fit(observations: Sequence[Observation], start: Model) -> Model:
    """The model that fits best, beginning with `start`, of which it keeps slot, cores and source.

    Parameters that no observation depends on keep their value of `start`.

    Raises
    ------
    InvalidArgument
        There are no observations, or one took no time.
    """
    if not observations or min(o.seconds for o in observations) <= 0:
        raise InvalidArgument(f"cannot fit {len(observations)} observations; expected some, each longer than 0 s")
    times = np.array([o.seconds for o in observations])
    model = replace(start, corrections={})
    for _ in range(_ROUNDS):
        counted = np.array([features(o.work, o.nbytes, model) for o in observations])
        seen = counted.any(axis=0)
        known = counted[:, ~seen] @ np.array(model.parameters.values())[~seen]
        values = np.array(start.parameters.values())
        values[seen] = nonnegative_least_squares(counted[:, seen] / times[:, None], (times - known) / times)
        mixed = 0.5 * values + 0.5 * np.array(model.parameters.values())  # else the slowest ranks may alternate
        model = replace(model, parameters=Parameters(*map(float, mixed)))
    counted = np.array([features(o.work, o.nbytes, model) for o in observations])
    seen = counted.any(axis=0)
    values = np.array(model.parameters.values())
    values[seen] = nonnegative_least_squares(counted[:, seen] / times[:, None], np.ones(len(times)))
    model = replace(model, parameters=Parameters(*map(float, values)))
    return replace(model, corrections=_corrections(observations, model))


def _corrections(observations: Sequence[Observation], model: Model) -> dict[str, tuple[float, ...]]:
    """Per layout and decade the factor that is missing: a mean of logarithms, in which near sizes count more."""
    result = {}
    for layout in sorted({o.layout for o in observations}):
        mine = [o for o in observations if o.layout == layout]
        place = np.log10([max(footprint(o.work.nodes, o.nbytes, model), 1) for o in mine])
        missing = np.log([o.seconds / max(_plain(o, model), 1e-12) for o in mine])
        factors = []
        for decade in range(DECADES):
            weight = np.maximum(1.0 - np.abs(np.clip(place, 0, DECADES - 1) - decade), 0.0)
            log = float((weight * missing).sum() / (weight.sum() + _PRIOR))
            factors.append(float(np.clip(np.exp(log), 1 / _LARGEST_CORRECTION, _LARGEST_CORRECTION)))
        result[layout] = tuple(factors)
    return result


def _plain(observation: Observation, model: Model) -> float:
    return float(features(observation.work, observation.nbytes, model) @ model.parameters.values())


def _correction(observation: Observation, model: Model) -> float:
    return model.correction(observation.layout, footprint(observation.work.nodes, observation.nbytes, model))


def errors(observations: Sequence[Observation], model: Model) -> Errors:
    """How far the model is off; observations that it was not fitted to say what it is worth.

    Raises
    ------
    InvalidArgument
        There are no observations.
    """
    if not observations:
        raise InvalidArgument("no observations to compare the model with; expected at least one")
    ratios = np.array([_plain(o, model) * _correction(o, model) / o.seconds for o in observations])
    off = np.maximum(ratios, 1 / np.maximum(ratios, 1e-12)) - 1.0
    return Errors(float(np.median(off)), float(np.percentile(off, 90)), len(observations))
