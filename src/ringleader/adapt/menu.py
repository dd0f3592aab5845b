"""What there is to choose from: candidates for a size, agreed by all ranks, and what measured bandwidths suggest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringleader.adapt.formats import Format
from ringleader.adapt.loads import Candidate, Load, load_of
from ringleader.adapt.policy import Policy
from ringleader.algorithms.orders import bandwidth_shares, bottleneck, ring_order
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.watched import unseen
from ringleader.tune.candidates import Experience, ranked
from ringleader.tune.model import Model

__all__ = ["Menu", "agreed", "suggested"]

_BEST = 3  # algorithms by the model, at each of these bandwidths (bytes per second)
_RATES = (1.2e9, 1.2e8, 1.2e7)
_PARTS = 16
# Segments let a slow line be used both ways at once; each part of the data has a message of its own in each of them.
_SEGMENTS, _SMALLEST_PIECE = 16, 32 << 10
_BETTER_ORDER = 1.2  # the slowest link of another order must be so much faster


@dataclass
class Menu:
    """The candidates for one size.

    Attributes
    ----------
    candidates, loads
        Those that are always there.
    uneven
        The rates by which the others were made; None: there are none.
    """

    candidates: tuple[Candidate, ...]
    loads: tuple[Load, ...]
    nbytes: int
    nodes: tuple[int, ...]
    model: Model
    uneven: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    _seen: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)  # by the latest measurement

    def refresh(self, policy: Policy) -> bool:
        """Offer shares and ring orders that fit the lines as they are now; whether that changed anything."""
        if len(set(self.nodes)) < len(self.nodes) or len(self.nodes) < 3:
            return False  # ranks of a node share its line
        uneven, order = policy.estimates.uneven(), _order(policy)
        seen, self._seen = self._seen, (uneven, order)
        if (uneven, order) == (self.uneven, self.order) or seen != (uneven, order):
            return False  # nothing new, or not for long enough
        self.uneven, self.order = uneven, order
        specs = []
        if uneven is not None:
            shares = "+".join(map(str, bandwidth_shares(uneven, _PARTS)))
            pieces = self.nbytes // _PARTS // _SMALLEST_PIECE
            specs = [
                f"unequal_two_shot:shares={shares}" + f":segments={k}" * (k > 1)
                for k in sorted({1, min(_SEGMENTS, max(1, pieces))})
            ]
        if order is not None:
            specs.append("ring:order=" + "+".join(map(str, order)))
        formats = {each.format.name: each for each in self.candidates if each.format.compressor is None}
        fresh = [(replace(each, algorithm=spec)) for each in formats.values() for spec in specs]
        static = len(self.candidates)
        kept = [
            index
            for index, each in enumerate(policy.candidates)
            if index < static or index == policy.current or each in fresh
        ]
        there = {policy.candidates[index].name for index in kept}
        policy.replace(kept, [(each, self._load(each)) for each in fresh if each.name not in there])
        return True

    def _load(self, candidate: Candidate) -> Load:
        """What else it takes is taken from a candidate of the same format: equal on all ranks, unlike the model's."""
        load = load_of(candidate, self.nbytes, self.nodes, self.model)
        alike = [i for i, each in enumerate(self.candidates) if each.format.name == candidate.format.name]
        return replace(load, rest=self.loads[alike[0]].rest)


def _order(policy: Policy) -> tuple[int, ...] | None:
    """A ring order that avoids slow links, if there are some and all links are known; in whole Mbit/s, so that rounding
    does not tell ranks apart."""
    lines, links = policy.estimates.lines(), policy.estimates.links
    n = len(lines)
    if n < 4 or len(links) < n * (n - 1):
        return None
    matrix = np.zeros((n, n))
    for (src, dst), rate in links.items():
        matrix[src, dst] = int(min(rate, lines[src], lines[dst]) * 8e-6)
    order = ring_order(matrix)
    better = bottleneck(matrix, order) > _BETTER_ORDER * bottleneck(matrix, range(n))
    return order if better else None


def suggested(nbytes: int, nodes: Sequence[int], model: Model, first: str) -> list[str]:
    """Algorithms that may be the fastest for a size, on fast networks and on slow ones.

    Parameters
    ----------
    first
        The one that would run otherwise.

    Examples
    --------
    >>> from ringleader.tune.model import DEFAULT
    >>> "ring" in suggested(64 << 20, range(4), DEFAULT, "ring")
    True
    """
    found = [first]
    for rate in _RATES if len(set(nodes)) > 1 else _RATES[:1]:
        there = replace(model, parameters=replace(model.parameters, wire_byte=1 / rate))
        trials = [trial for trial, _ in ranked(Experience(there), "all_reduce", nbytes, nodes)]
        names = list(dict.fromkeys(t.algorithm for t in trials if not t.algorithm.startswith("unequal_two_shot")))
        found += names[:_BEST]
    return list(dict.fromkeys(found))


def agreed(comm: Communicator, nbytes: int, formats: Sequence[Format]) -> Menu:
    """The candidates for a size, as rank 0 sees them. A collective operation."""
    model = comm.planner.model
    told = b""
    if comm.rank == 0:
        first = comm.explain("all_reduce", nbytes).choice.algorithm
        specs = suggested(nbytes, comm.nodes, model, first)
        pairs = [
            (place, spec) for place, each in enumerate(formats) for spec in (specs if each.compressor is None else [""])
        ]
        rests = [
            load_of(Candidate(formats[place], spec, place), nbytes, comm.nodes, model).rest for place, spec in pairs
        ]
        told = json.dumps([(*pair, rest) for pair, rest in zip(pairs, rests, strict=True)]).encode()
    length = np.array([len(told)])
    with unseen(comm, 1):
        comm.broadcast(length)
    text = np.frombuffer(told, np.uint8).copy() if comm.rank == 0 else np.empty(int(length[0]), np.uint8)
    with unseen(comm, 1):
        comm.broadcast(text)
    rows = json.loads(text.tobytes())
    candidates = tuple(Candidate(formats[place], spec, place) for place, spec, _ in rows)
    loads = tuple(
        replace(load_of(candidate, nbytes, comm.nodes, model), rest=row[2])
        for candidate, row in zip(candidates, rows, strict=True)
    )
    return Menu(candidates, loads, nbytes, comm.nodes, model)
