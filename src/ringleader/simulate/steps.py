"""A schedule as the simulator sees it: which rank sends how much to which in each step, and how often that repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.algorithms import build, check, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Schedule

__all__ = ["Step", "Steps"]


@dataclass(frozen=True)
class Step:
    """What happens in one step; arrays of shape (transfers,), a row for each pair of ranks.

    Attributes
    ----------
    src, dst
        Ranks.
    share
        Fraction of the whole data.
    combined
        Fraction of the whole data that the destination combines with its own.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    share: NDArray[np.float64]
    combined: NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """The steps of a schedule in order, equal neighbours once with their number.

    Attributes
    ----------
    n
        Ranks.
    runs
        (step, how often it is repeated).
    name
        Of the algorithm.
    """

    n: int
    runs: tuple[tuple[Step, int], ...]
    name: str

    def __iter__(self) -> Iterator[tuple[Step, int]]:
        return iter(self.runs)

    @property
    def count(self) -> int:
        """Number of steps."""
        return sum(repeats for _, repeats in self.runs)

    @classmethod
    def of(cls, schedule: Schedule) -> Steps:
        """The steps of any schedule.

        Examples
        --------
        >>> ring = Steps.of(build("all_reduce", "ring", 4))
        >>> ring.count, [repeats for _, repeats in ring]
        (6, [3, 3])
        """
        table, n = schedule.table, schedule.n
        bounds = np.searchsorted(table["step"], np.arange(schedule.steps + 1))
        runs: list[tuple[Step, int]] = []
        last = b""
        for first, end in itertools.pairwise(bounds):
            rows = table[first:end]
            pair = rows["src_rank"].astype(np.int64) * n + rows["dst_rank"]
            order = np.argsort(pair, kind="stable")
            pair, starts = np.unique(pair[order], return_index=True)
            counts = rows["count"][order].astype(np.int64)
            reduced = np.where(rows["reduce"][order] != 0, counts, 0)
            if not len(pair):
                continue
            moved, combined = np.add.reduceat(counts, starts), np.add.reduceat(reduced, starts)
            key = pair.tobytes() + moved.tobytes() + combined.tobytes()
            if key == last:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
                continue
            last = key
            step = Step(pair // n, pair % n, moved / schedule.chunks, combined / schedule.chunks)
            runs.append((step, 1))
        return cls(n, tuple(runs), schedule.name)

    @classmethod
    def named(cls, collective: str, spec: str, n: int, root: int = 0, nodes: tuple[int, ...] | None = None) -> Steps:
        """The steps of an algorithm, also where its schedule is too large to build and is known to repeat one step.

        Raises
        ------
        InvalidArgument
            As `ringleader.algorithms.build` raises it.
        """
        entry, parameters = parse_spec(collective, spec)
        plain = {key: value for key, value in parameters.items() if value != entry.defaults[key]}
        known = _REPEATING.get((str(collective), entry.name)) if not plain else None
        if known is not None and n > 1:
            check_root = n if Collective(collective).rooted else 1
            if not 0 <= root < check_root:
                check(collective, spec, n, root)
            return cls(n, known(n), entry.name)
        return cls.of(build(collective, spec, n, root, nodes))


def _around(n: int, combines: bool) -> Step:
    """Each rank passes one of n blocks on to the next."""
    ranks = np.arange(n)
    share = np.full(n, 1 / n)
    order = np.argsort(ranks * n + (ranks + 1) % n, kind="stable")
    return Step(ranks[order], ((ranks + 1) % n)[order], share, share if combines else np.zeros(n))


# Schedules of n^2 transfers and more, whose steps are all alike: 33 million rows at 4096 ranks. Tests hold these to
# `Steps.of` wherever a schedule can be built.
_REPEATING: Mapping[tuple[str, str], Callable[[int], tuple[tuple[Step, int], ...]]] = {
    ("all_reduce", "ring"): lambda n: ((_around(n, True), n - 1), (_around(n, False), n - 1)),
    ("reduce_scatter", "ring"): lambda n: ((_around(n, True), n - 1),),
    ("all_gather", "ring"): lambda n: ((_around(n, False), n - 1),),
}


def checked(steps: Steps, size: int) -> Steps:
    """The same, if it fits a placement of `size` ranks."""
    if steps.n != size:
        raise InvalidArgument(
            f"the schedule is for {steps.n} ranks, and {size} are placed; build it for {size}, or place {steps.n}"
        )
    return steps
