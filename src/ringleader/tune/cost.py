"""The cost model: what a schedule costs, step by step, along the busiest rank.

A step takes as long as its slowest rank: its waiting (a hop within the node, a hop between nodes), its processor work
(instructions, copies, reductions, messages) and its bytes on the wire. Ranks that share a core add up: a node's step
takes at least its work over its cores, and the cores change hands. An operation whose staged data does not fit into its
slot runs in windows, each with all steps of its own. So the time is linear in `Parameters`, which `fit` makes use of.

References
----------
R. W. Hockney: The communication challenge for MPP, Parallel Computing 20(3), 1994. A. Alexandrov, M. F. Ionescu,
K. E. Schauser, C. Scheiman: LogGP: incorporating long messages into the LogP model, SPAA 1995.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.algorithms import build, parse_spec
from ringleader.schedule import Schedule
from ringleader.schedule.types import Buffer
from ringleader.tune.model import DEFAULT, Model, Parameters

__all__ = ["Cost", "Work", "features", "footprint", "predict", "work_of"]

# A larger schedule is costed by its closed formula: reading millions of transfers takes longer than a choice may.
_MOST_CELLS = 1 << 18  # steps x ranks
_MOST_TRANSFERS = 1 << 17
_FEW_CELLS = 1 << 9

_COLUMN = {name: index for index, name in enumerate(Parameters.names())}
# What repeats in every window; bytes are divided among the windows.
_PER_WINDOW = np.array(
    [name not in ("call", "push_byte", "pull_byte", "reduce_byte", "net_byte", "wire_byte") for name in _COLUMN]
)
_WAITING = ("shm_hop", "net_hop")


@dataclass(frozen=True)
class Cost:
    """A prediction: number of steps, bytes through the busiest rank, seconds."""

    steps: float
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What each rank does in each step of a schedule, for data of one byte; see `work_of`.

    Attributes
    ----------
    per_rank
        Parameter to its amounts, shape (steps, n); bytes are fractions of the whole data.
    nodes
        Node of each rank.
    staged
        Fraction of the whole data that the busiest rank has in its staging slot.
    """

    per_rank: dict[str, NDArray[np.float64]]
    nodes: tuple[int, ...]
    staged: float


def work_of(schedule: Schedule, nodes: Sequence[int], push: bool = True) -> Work:
    """Count what the ranks do.

    Parameters
    ----------
    schedule
        Any valid one.
    nodes
        Node of each rank, shape (n,).
    push
        Copies within a node are done by their source, else by their destination.

    Examples
    --------
    >>> work = work_of(build("broadcast", "linear", 3), [0, 0, 0])
    >>> work.per_rank["push_byte"].tolist(), work.per_rank["shm_op"].tolist()
    ([[2.0, 0.0, 0.0]], [[2.0, 0.0, 0.0]])
    """
    table, n = schedule.table, schedule.n
    place = np.asarray(nodes)
    steps = schedule.steps
    step, src, dst = (table[name].astype(np.int64) for name in ("step", "src_rank", "dst_rank"))
    share = table["count"] / schedule.chunks
    reduces = table["reduce"] != 0
    remote = place[src] != place[dst]
    local, other = ~remote, src != dst

    def count(
        rank: NDArray[np.int64], which: NDArray[np.bool_], weight: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        cells = step[which] * n + rank[which]
        weights = None if weight is None else weight[which]
        return np.bincount(cells, weights, minlength=steps * n).reshape(steps, n).astype(float)

    executor = np.where(reduces | (not push), dst, src)
    sent, received = count(src, remote, share), count(dst, remote, share)
    copies = local & ~reduces
    touched = local & other
    per_rank = {
        "shm_hop": np.minimum(count(src, touched, None) + count(dst, touched, None), 1.0),
        "shm_op": count(executor, local, None),
        "push_byte" if push else "pull_byte": count(executor, copies, share),
        "reduce_byte": count(dst, reduces, share),
        "net_hop": np.minimum(count(dst, remote, None), 1.0),
        "net_message": count(src, remote, None) + count(dst, remote, None),
        "net_byte": sent + received,
        "wire_byte": np.maximum(sent, received),
    }
    return Work(per_rank, tuple(int(node) for node in nodes), _staged(schedule, touched))


def _staged(schedule: Schedule, touched: NDArray[np.bool_]) -> float:
    """Fraction of the data of the rank with most chunks that peers of its node touch, or that are scratch."""
    table = schedule.table
    starts, counts = [], []
    for end, which in (("src", touched), ("dst", touched)):
        rows = table[which | (table[f"{end}_buffer"] == Buffer.SCRATCH)]
        owner = rows[f"{end}_rank"].astype(np.int64) * len(Buffer) + rows[f"{end}_buffer"]
        starts.append(owner << 32 | rows[f"{end}_chunk"])
        counts.append(rows["count"].astype(np.int64))
    start, count = np.concatenate(starts), np.concatenate(counts)
    if not len(start):
        return 0.0
    # The length of the union of intervals: in order of their starts, each adds what lies beyond all ends before it.
    order = np.argsort(start)
    start, ends = start[order], (start + count)[order]
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
    chunks = np.maximum(ends - np.maximum(start, before), 0)
    return float(np.bincount((start >> 32) // len(Buffer), chunks).max()) / schedule.chunks


def features(work: Work, nbytes: int, model: Model) -> NDArray[np.float64]:
    """How often each parameter counts: the time without correction is their product, ``features @ values``.

    Which rank is the slowest in a step depends on the parameters, so `model` decides.

    Returns
    -------
    numpy.ndarray
        Shape (len(Parameters.names()),).
    """
    values = dict(zip(Parameters.names(), model.parameters.values(), strict=True))
    windows = max(1.0, float(np.ceil(work.staged * nbytes / model.slot_bytes)))
    amounts = {
        name: amount * (nbytes if not _PER_WINDOW[_COLUMN[name]] else windows) for name, amount in work.per_rank.items()
    }
    total = np.zeros(len(_COLUMN))
    total[_COLUMN["call"]] = 1.0
    total[_COLUMN["window"]] = windows - 1.0
    steps = len(next(iter(amounts.values())))
    if not steps:
        return total
    # The slowest rank of each step, if every rank had a core of its own.
    alone = np.zeros_like(amounts["net_hop"])
    for name, amount in amounts.items():
        alone += values[name] * amount
    slowest = np.argmax(alone, axis=1)
    rows = np.arange(steps)
    best = np.zeros((steps, len(_COLUMN)))
    for name, amount in amounts.items():
        best[rows, _COLUMN[name]] = amount[rows, slowest]
    times = alone[rows, slowest]
    for members in _sharing(work.nodes, model):
        if len(members) <= model.cores:
            continue
        crowded = _crowded(amounts, members, model.cores, windows)
        took = crowded @ model.parameters.values()
        later = took > times
        best[later], times[later] = crowded[later], took[later]
    counted: NDArray[np.float64] = total + best.sum(axis=0)
    return counted


def _sharing(nodes: tuple[int, ...], model: Model) -> list[list[int]]:
    """Ranks that share cores: those of a node, or all."""
    if model.one_host:
        return [list(range(len(nodes)))]
    groups: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault(node, []).append(rank)
    return list(groups.values())


def footprint(nodes: tuple[int, ...], nbytes: float, model: Model) -> float:
    """Bytes of data of all ranks that share a machine: what its caches have to hold; corrections go by it."""
    return nbytes * max(map(len, _sharing(nodes, model)))


def _crowded(
    amounts: dict[str, NDArray[np.float64]], members: list[int], cores: int, windows: float
) -> NDArray[np.float64]:
    """Per step, what counts where a node's ranks share its cores: their work together, and the changes of hands."""
    steps = len(next(iter(amounts.values())))
    result = np.zeros((steps, len(_COLUMN)))
    for name, amount in amounts.items():
        mine = amount[:, members]
        result[:, _COLUMN[name]] = mine.max(axis=1) if name in _WAITING else mine.sum(axis=1) / cores
    talking = amounts["net_message"][:, members] > 0
    working = np.any([amount[:, members] > 0 for amount in amounts.values()], axis=0) & ~talking
    for name, busy in (("switch", working), ("net_switch", talking)):
        result[:, _COLUMN[name]] = np.maximum(busy.sum(axis=1) / cores - 1.0, 0.0) * windows
    return result


@functools.lru_cache(maxsize=2048)  # small ones only: a tuner asks for the same hundreds again and again
def _cached_work(collective: str, spec: str, n: int, nodes: tuple[int, ...], push: bool) -> Work:
    return work_of(build(collective, spec, n, nodes=nodes), nodes, push)


def predict(
    collective: str,
    spec: str,
    nbytes: int,
    n: int,
    layout: str | Sequence[int],
    protocol: str = "push",
    model: Model = DEFAULT,
) -> Cost:
    """Predict what an algorithm costs over n ranks.

    Parameters
    ----------
    collective, spec
        As in `ringleader.algorithms.build`.
    nbytes
        Bytes of the whole data, all blocks together.
    layout
        Node of each rank; or ``shm`` (one node), ``net`` (a node each), ``mixed`` (two nodes, the first half and the
        second).
    protocol
        ``push`` or ``pull``: who copies within a node.
    model
        What things cost.

    Raises
    ------
    InvalidArgument
        Unknown name or parameter.

    Examples
    --------
    >>> cost = predict("all_reduce", "ring", 4096, n=4, layout="net")
    >>> cost.steps, cost.nbytes
    (6, 6144.0)
    >>> predict("all_reduce", "ring", 8, 4, "shm").seconds < predict("all_reduce", "ring", 8, 4, "net").seconds
    True
    """
    entry, parameters = parse_spec(collective, spec)
    nodes = _nodes_of(layout, n)
    steps, volume, transfers = entry.terms(n, parameters, nodes)
    if n == 1:
        return Cost(steps, 0.0, model.parameters.call)
    if transfers <= _MOST_TRANSFERS and steps * n <= _MOST_CELLS:
        count = _cached_work if steps * n <= _FEW_CELLS else _cached_work.__wrapped__
        work = count(str(collective), spec, n, nodes, protocol != "pull")
        counted = features(work, nbytes, model)
    else:
        counted = _closed(steps, volume * nbytes, nodes, model)
    seconds = float(counted @ model.parameters.values()) * model.correction(
        _name_of(nodes), footprint(nodes, nbytes, model)
    )
    return Cost(steps, volume * nbytes, seconds)


def _nodes_of(layout: str | Sequence[int], n: int) -> tuple[int, ...]:
    if not isinstance(layout, str):
        return tuple(layout)
    return {"shm": (0,) * n, "net": tuple(range(n)), "mixed": tuple(int(r >= n // 2) for r in range(n))}[layout]


def _name_of(nodes: Sequence[int]) -> str:
    distinct = len(set(nodes))
    return "shm" if distinct == 1 else "net" if distinct == len(nodes) else "mixed"


def _closed(steps: float, volume: float, nodes: tuple[int, ...], model: Model) -> NDArray[np.float64]:
    """The same from the algorithm's formula alone, each step as slow as the slowest link of the layout."""
    result = np.zeros(len(_COLUMN))
    result[_COLUMN["call"]] = 1.0
    names = (
        {"shm_hop": steps, "shm_op": steps, "push_byte": volume, "reduce_byte": volume / 2}
        if len(set(nodes)) == 1
        else {"net_hop": steps, "net_message": 2 * steps, "net_byte": 2 * volume, "wire_byte": volume}
    )
    crowd = footprint(nodes, 1, model) / model.cores
    for name, amount in names.items():
        result[_COLUMN[name]] = amount * (1.0 if name in _WAITING else max(crowd, 1.0))
    result[_COLUMN["switch" if len(set(nodes)) == 1 else "net_switch"]] = steps * max(crowd - 1.0, 0.0)
    return result
