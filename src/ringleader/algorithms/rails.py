"""Two levels for collectives with a block per rank: blocks travel between hosts along *rails*, then inside the hosts.

Rail i joins the i-th rank of each host, a host with fewer ranks taking part with its i-th modulo their number. So every
block enters each host once, and all ranks of a host share the work. Gather and scatter, which have one root, go
through one leader per host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ringleader.algorithms import references
from ringleader.algorithms.hierarchical import Part
from ringleader.algorithms.layout import Hosts, Nodes, groups, sizes
from ringleader.algorithms.levels import (
    Indices,
    Loads,
    Table,
    assemble,
    busiest,
    common,
    copies,
    loads,
    part,
    two_level_limit,
)
from ringleader.algorithms.parameter import Of
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Schedule

__all__ = ["all_gather", "gather", "reduce_scatter", "scatter"]

AllGatherInside = Annotated[str, Of("all_gather"), "the all_gather inside a host"]
AllGatherBetween = Annotated[str, Of("all_gather"), "the all_gather along a rail"]
ReduceScatterInside = Annotated[str, Of("reduce_scatter"), "the reduce_scatter inside a host"]
ReduceScatterBetween = Annotated[str, Of("reduce_scatter"), "the reduce_scatter along a rail"]
GatherInside = Annotated[str, Of("gather"), "the gather inside a host"]
GatherBetween = Annotated[str, Of("gather"), "the gather between the leaders"]
ScatterInside = Annotated[str, Of("scatter"), "the scatter inside a host"]
ScatterBetween = Annotated[str, Of("scatter"), "the scatter between the leaders"]


def _moves(schedule: Schedule) -> int:
    """Transfers of the schedule when each moves one chunk."""
    return int(schedule.table["count"].sum())


def _padded(members: Sequence[Indices]) -> Indices:
    """The ranks of each host as a row, filled up with -1."""
    width = max(map(len, members))
    return np.stack([np.pad(group, (0, width - len(group)), constant_values=-1) for group in members])


def _ranges(blocks: Indices, per_block: int, finer: int) -> tuple[Indices, Indices]:
    """(first, end) of the chunks of each copy of a part whose i-th block is the block `blocks[copy, i]`; -1 is none.

    The part has `per_block` chunks in a block, the whole schedule `finer`.
    """
    edge = np.arange(per_block + 1) * finer // per_block
    first = blocks[..., None] * finer + edge[:-1]
    end = np.where(blocks[..., None] < 0, first, blocks[..., None] * finer + edge[1:])
    return first.reshape(len(blocks), -1), end.reshape(len(blocks), -1)


# ---------------------------------------------------------------- all_gather, reduce_scatter


def _inside_blocks(table: Indices, size: int) -> Indices:
    """Blocks that the ranks of a host of `size` bring along from all rails: rows of one block per rank, -1 for none."""
    hosts, width = table.shape
    turns = -(-width // size)
    padded = np.pad(table, ((0, 0), (0, turns * size - width)), constant_values=-1)
    rows = padded.reshape(hosts * turns, size)
    return rows[(rows >= 0).any(axis=1)]


def _rails(n: int, hosts: Hosts, nodes: Nodes, inner: Part, outer: Part) -> tuple[int, list[Table], Table]:
    """(chunks per block, transfers inside each host, transfers along the rails)."""
    members = groups(n, hosts, nodes)
    blocks = _padded(members)
    across = part(*outer, len(members), False)
    within = {size: part(*inner, size, True) for size in {len(group) for group in members}}
    finer = common([across.chunks_per_block, *(schedule.chunks_per_block for schedule in within.values())])
    rails = np.arange(blocks.shape[1])
    ranks = np.stack([group[rails % len(group)] for group in members], axis=1)
    tables = []
    for group in members:
        schedule = within[len(group)]
        rows = _inside_blocks(blocks, len(group))
        everybody = np.broadcast_to(group, (len(rows), len(group)))
        tables.append(copies(schedule, everybody, *_ranges(rows, schedule.chunks_per_block, finer)))
    return finer, tables, copies(across, ranks, *_ranges(blocks.T, across.chunks_per_block, finer))


@functools.lru_cache(maxsize=256)
def _rails_volume(n: int, hosts: Hosts, nodes: Nodes, inner: Part, outer: Part) -> float:
    members = groups(n, hosts, nodes)
    blocks = _padded(members)
    across = part(*outer, len(members), False)
    between = [np.zeros((2, len(group), across.steps)) for group in members]
    for index, rail in enumerate(blocks.T):
        one = loads(across, np.repeat((rail >= 0) / n, across.chunks_per_block) / across.chunks_per_block)
        for host, group in enumerate(members):
            between[host][:, index % len(group)] += one[:, host]
    return busiest(between) + busiest(_inside_loads(blocks, inner, {len(group) for group in members}, n))


def _inside_loads(blocks: Indices, inner: Part, layout: set[int], n: int) -> Iterator[Loads]:
    for size in layout:
        schedule = part(*inner, size, True)
        held: NDArray[np.float64] = (_inside_blocks(blocks, size) >= 0).sum(axis=0) / n
        yield loads(schedule, np.repeat(held, schedule.chunks_per_block) / schedule.chunks_per_block)


def _rails_terms(collective: str) -> Callable[..., Terms]:
    def terms(n: int, hosts: Hosts, inner: str, outer: str, nodes: Nodes) -> Terms:
        layout = sizes(n, hosts, nodes)
        inside = {size: part(collective, inner, size, True) for size in set(layout)}
        between = part(collective, outer, len(layout), False)
        rows = {size: sum(-(-other // size) for other in layout) * _moves(inside[size]) for size in inside}
        transfers = sum(rows[size] for size in layout) + max(layout) * _moves(between)
        steps = max(schedule.steps for schedule in inside.values()) + between.steps
        return Terms(steps, _rails_volume(n, hosts, nodes, (collective, inner), (collective, outer)), transfers)

    return terms


@algorithm(
    "hierarchical",
    "all_gather",
    summary="all_gather of every rail between the hosts, then all_gather inside each host",
    reference=references.KARONIS,
    cost="(O + I) a + (O/s + I) Mb",
    closed=_rails_terms("all_gather"),
    limit=two_level_limit("all_gather", "all_gather"),
)
def all_gather(
    n: int,
    hosts: Hosts = (),
    inner: AllGatherInside = "direct",
    outer: AllGatherBetween = "ring",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level all-gather: every block crosses the network once for each host, and all ranks of a host receive."""
    finer, within, between = _rails(n, hosts, nodes, ("all_gather", inner), ("all_gather", outer))
    return assemble("all_gather", n, n * finer, [[between], within])


@algorithm(
    "hierarchical",
    "reduce_scatter",
    summary="reduce_scatter inside each host, then reduce_scatter of every rail between the hosts",
    reference=references.KARONIS,
    cost="(I + O) a + (I + O/s) Mb",
    closed=_rails_terms("reduce_scatter"),
    limit=two_level_limit("reduce_scatter", "reduce_scatter"),
)
def reduce_scatter(
    n: int,
    hosts: Hosts = (),
    inner: ReduceScatterInside = "direct",
    outer: ReduceScatterBetween = "ring",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level reduce-scatter: the contributions of a host to a block cross the network as one."""
    finer, within, between = _rails(n, hosts, nodes, ("reduce_scatter", inner), ("reduce_scatter", outer))
    return assemble("reduce_scatter", n, n * finer, [within, [between]])


# ---------------------------------------------------------------- gather, scatter


def _through_leaders(
    n: int, root: int, hosts: Hosts, nodes: Nodes, inner: Part, outer: Part
) -> tuple[int, list[Table], Table]:
    """(chunks per block, transfers inside each host, transfers between the leaders); the root leads its host."""
    members = groups(n, hosts, nodes)
    blocks = _padded(members)
    home = next(host for host, group in enumerate(members) if root in group)
    place = [int(np.searchsorted(group, root)) if host == home else 0 for host, group in enumerate(members)]
    across = part(*outer, len(members), False, home)
    within = [part(*inner, len(group), True, first) for group, first in zip(members, place, strict=True)]
    finer = common([across.chunks_per_block, *(schedule.chunks_per_block for schedule in within)])
    tables = [
        copies(schedule, group, *_ranges(group[None, :], schedule.chunks_per_block, finer))
        for schedule, group in zip(within, members, strict=True)
    ]
    leaders = np.array([group[first] for group, first in zip(members, place, strict=True)])
    ranks = np.broadcast_to(leaders, (blocks.shape[1], len(leaders)))
    return finer, tables, copies(across, ranks, *_ranges(blocks.T, across.chunks_per_block, finer))


@algorithm(
    "hierarchical",
    "gather",
    summary="gather to a leader in each host, then from the leaders to the root",
    reference=references.KARONIS,
    cost="(I + O) a + (I/H + O) Mb",
    limit=two_level_limit("gather", "gather"),
)
def gather(
    n: int,
    root: int = 0,
    hosts: Hosts = (),
    inner: GatherInside = "linear",
    outer: GatherBetween = "binomial",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level gather: one message from each host."""
    finer, within, between = _through_leaders(n, root, hosts, nodes, ("gather", inner), ("gather", outer))
    return assemble("gather", n, n * finer, [within, [between]], root)


@algorithm(
    "hierarchical",
    "scatter",
    summary="from the root to a leader in each host, then inside the hosts",
    reference=references.KARONIS,
    cost="(O + I) a + (O + I/H) Mb",
    limit=two_level_limit("scatter", "scatter"),
)
def scatter(
    n: int,
    root: int = 0,
    hosts: Hosts = (),
    inner: ScatterInside = "linear",
    outer: ScatterBetween = "binomial",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level scatter: one message to each host."""
    finer, within, between = _through_leaders(n, root, hosts, nodes, ("scatter", inner), ("scatter", outer))
    return assemble("scatter", n, n * finer, [[between], within], root)
