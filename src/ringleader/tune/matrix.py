"""The whole table of predictions for a job: every algorithm and protocol of every collective, by size.

It is what RINGLEADER_DEBUG=INFO prints at the start with RINGLEADER_DEBUG_SUBSYS=TUNE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ringleader.algorithms import COLLECTIVES, name_of, names
from ringleader.tune.cost import predict
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.rules import PROTOCOLS, RuleSet, Situation, layout_of
from ringleader.tune.select import problem, select

__all__ = ["SIZES", "matrix"]

SIZES: tuple[int, ...] = tuple(8 * 10**decade for decade in range(8))
"""Bytes of the columns: a number of float64 in each decade."""


def matrix(
    nodes: Sequence[int],
    *,
    env: Mapping[str, str] | None = None,
    rules: Sequence[RuleSet] = (),
    model: Model = DEFAULT,
    collectives: Iterable[str] = COLLECTIVES,
    itemsize: int = 4,
) -> str:
    """Latency and bandwidth of everything that could run, as a table.

    Parameters
    ----------
    nodes
        Node of every rank.
    env, rules, model
        As in `select`.
    collectives
        For which.

    Returns
    -------
    str
        Per collective one row for each algorithm and protocol: predicted microseconds, and GB/s (10^9 bytes of the
        whole data per second) at each of `SIZES`. ``*`` is before what would be chosen; ``-`` where it cannot run.

    Examples
    --------
    >>> for line in matrix([0, 0], env={}, collectives=["barrier"]).splitlines()[:2]:
    ...     print(line[:60].rstrip())
    2 ranks on 1 node (shm), model built-in: us (GB/s); * is cho
    barrier                                      0 B
    """
    place = tuple(nodes)
    n, count = len(place), len(set(place))
    lines = [
        f"{n} ranks on {count} node{'s' if count > 1 else ''} ({layout_of(place)}), model {model.source}: us (GB/s); "
        "* is chosen"
    ]
    for collective in collectives:
        sizes = SIZES if collective != "barrier" else (0,)
        lines.append(f"{collective:32}" + "".join(f"{_size(nbytes):>16}" for nbytes in sizes))
        chosen = [select(collective, nbytes, n, place, itemsize, env=env, rules=rules, model=model) for nbytes in sizes]
        for name in names(collective):
            for protocol in PROTOCOLS:
                cells = []
                for nbytes, choice in zip(sizes, chosen, strict=True):
                    mine = (name_of(choice.algorithm), choice.protocol) == (name, protocol)
                    spec = choice.algorithm if mine else name
                    cells.append(_cell(Situation(collective, nbytes, place, itemsize), spec, protocol, model, mine))
                lines.append(f"  {name:25}{protocol:5}" + "".join(cells))
    return "\n".join(lines)


def _cell(situation: Situation, spec: str, protocol: str, model: Model, chosen: bool) -> str:
    if problem(situation, spec):
        return f"{'-':>16}"
    cost = predict(situation.collective, spec, situation.nbytes, situation.n, situation.nodes, protocol, model)
    us = cost.seconds * 1e6
    text = f"{us:.{0 if us >= 1000 else 1}f} ({situation.nbytes / max(cost.seconds, 1e-12) / 1e9:.2f})"
    return f"{'*' + text if chosen else text:>16}"


def _size(nbytes: int) -> str:
    for unit, name in ((10**6, "MB"), (10**3, "kB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"
