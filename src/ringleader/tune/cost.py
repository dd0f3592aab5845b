"""The alpha-beta model: time = steps x latency + volume x bytes / bandwidth (Hockney 1994).

It compares algorithms where no rule decides. The constants are orders of magnitude, not measurements of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringleader.algorithms import parse_spec

__all__ = ["LINKS", "Cost", "Link", "predict"]


@dataclass(frozen=True)
class Link:
    """What it takes to cross a link: seconds per message, and seconds per byte."""

    alpha: float
    beta: float


# A mixed layout is as slow as its network.
LINKS: Mapping[str, Link] = {
    "shm": Link(alpha=0.5e-6, beta=1 / 8e9),
    "net": Link(alpha=20e-6, beta=1 / 1.2e9),
    "mixed": Link(alpha=20e-6, beta=1 / 1.2e9),
}


@dataclass(frozen=True)
class Cost:
    """A prediction: number of steps, bytes through the busiest rank, seconds."""

    steps: float
    nbytes: float
    seconds: float


def predict(collective: str, spec: str, nbytes: int, n: int, layout: str) -> Cost:
    """Predict what an algorithm costs over n ranks.

    Parameters
    ----------
    collective, spec
        As in `ringleader.algorithms.build`.
    nbytes
        Bytes of the whole data, all blocks together.
    layout
        ``shm``, ``net`` or ``mixed``.

    Examples
    --------
    >>> cost = predict("all_reduce", "ring", 4096, n=4, layout="net")
    >>> cost.steps, cost.nbytes
    (6, 6144.0)
    """
    entry, parameters = parse_spec(collective, spec)
    steps, volume = entry.terms(n, parameters)
    link = LINKS[layout]
    return Cost(steps, volume * nbytes, steps * link.alpha + volume * nbytes * link.beta)
