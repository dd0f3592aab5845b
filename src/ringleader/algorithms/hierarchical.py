"""Two levels: inside each host, and between hosts. Each by any algorithm of the registry; hosts may be uneven.

All_reduce, and the collectives that have a root; all_gather and reduce_scatter are in `rails`. In the costs, `I` stands
for what the part inside the largest host costs, and `O` for the part between the hosts, each by its own formula.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

import numpy as np

from ringleader.algorithms import references
from ringleader.algorithms.layout import Hosts, Nodes, groups, sizes
from ringleader.algorithms.levels import (
    Indices,
    Table,
    assemble,
    busiest,
    common,
    copies,
    cut,
    loads,
    part,
    part_rows,
    two_level_limit,
)
from ringleader.algorithms.parameter import Of
from ringleader.algorithms.registry import Terms, algorithm
from ringleader.schedule import Schedule

__all__ = ["all_reduce_leader", "all_reduce_sharded", "broadcast", "reduce"]

ScatterInside = Annotated[str, Of("reduce_scatter"), "the reduce_scatter inside a host; its mirror image gathers"]
ReduceAndBack = Annotated[str, Of("reduce"), "the reduce inside a host; its mirror image broadcasts"]
AllReduceBetween = Annotated[str, Of("all_reduce"), "the all_reduce between the hosts"]
ReduceInside = Annotated[str, Of("reduce"), "the reduce inside a host"]
ReduceBetween = Annotated[str, Of("reduce"), "the reduce between the leaders"]
BroadcastInside = Annotated[str, Of("broadcast"), "the broadcast inside a host"]
BroadcastBetween = Annotated[str, Of("broadcast"), "the broadcast between the leaders"]


# ---------------------------------------------------------------- all_reduce, sharded


def _firsts(size: int, pieces: int) -> Indices:
    """First piece of the shard of each of a host's ranks, and the end; shape (size + 1,)."""
    return -(-np.arange(size + 1) * pieces // size)


def _shards(layout: Hosts) -> tuple[int, Indices, Indices]:
    """(pieces, bounds, owner): pieces of the data between two neighbouring bounds have one owner in each host.

    `owner` is its place within the host, shape (shards, hosts).
    """
    pieces = common(layout)
    firsts = [_firsts(size, pieces) for size in layout]
    bounds = np.unique(np.concatenate(firsts))
    owner = np.stack([np.searchsorted(first, bounds[:-1], side="right") - 1 for first in firsts], axis=1)
    return pieces, bounds, owner


def _finer(across: Schedule, inside: Iterable[Schedule]) -> int:
    """Chunks in a piece: so many that the part between the hosts can be cut evenly, and those inside nearly so."""
    wanted = common([across.chunks, *(schedule.chunks_per_block for schedule in inside)])
    return wanted // across.chunks * across.chunks


@functools.lru_cache(maxsize=256)
def _sharded_terms(n: int, hosts: Hosts, inner: str, outer: str, nodes: Nodes) -> Terms:
    layout = sizes(n, hosts, nodes)
    pieces, across = common(layout), part("all_reduce", outer, len(layout), False)
    kinds = {size: part("reduce_scatter", inner, size, True) for size in set(layout)}
    finer = _finer(across, kinds.values())
    scatter = []
    for size, schedule in kinds.items():
        places = cut(_firsts(size, pieces) * finer, schedule.chunks_per_block)
        scatter.append(loads(schedule, np.diff(places) / places[-1]))
    share = np.array([np.diff(_firsts(size, pieces)).max() / pieces for size in layout])
    between = loads(across) * share[:, None]
    volume = busiest(scatter) + busiest([between]) + busiest(one[..., ::-1] for one in scatter)
    steps = 2 * max(schedule.steps for schedule in kinds.values()) + across.steps
    rows = {size: part_rows("reduce_scatter", inner, size, True) for size in kinds}
    shards = len(_shards(layout)[1]) - 1
    between_rows = shards * part_rows("all_reduce", outer, len(layout), False)
    return Terms(steps, volume, 2 * sum(rows[size] for size in layout) + between_rows)


@algorithm(
    "hierarchical",
    "all_reduce",
    summary="reduce_scatter inside each host, all_reduce of every shard between hosts, all_gather inside",
    reference=references.BLUECONNECT,
    cost="(2 I + O) a + (2 I + O/s) Mb",
    closed=_sharded_terms,
    aliases=("hierarchical_sharded",),
    limit=two_level_limit("reduce_scatter", "all_reduce"),
)
def all_reduce_sharded(
    n: int,
    hosts: Hosts = (),
    inner: ScatterInside = "direct",
    outer: AllReduceBetween = "ring",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level all-reduce in which every rank takes part in the traffic between hosts, with its own shard.

    Shards of hosts of different sizes have different bounds. The data is cut finely enough for all of them; wherever
    the owner changes in any host, a new all_reduce between the hosts begins.
    """
    members = groups(n, hosts, nodes)
    pieces, bounds, owner = _shards(tuple(len(group) for group in members))
    across = part("all_reduce", outer, len(members), False)
    ranks = np.stack([group[owner[:, host]] for host, group in enumerate(members)], axis=1)
    scatter = {size: part("reduce_scatter", inner, size, True) for size in {len(group) for group in members}}
    finer = _finer(across, scatter.values())

    def inside(gather: bool) -> Iterator[Table]:
        for size, schedule in scatter.items():
            same = np.stack([group for group in members if len(group) == size])
            places = cut(_firsts(size, pieces) * finer, schedule.chunks_per_block)
            everywhere = np.broadcast_to(places, (len(same), len(places)))
            yield copies(schedule.reversed() if gather else schedule, same, everywhere)

    shards = np.stack([cut(shard, across.chunks) for shard in np.stack([bounds[:-1], bounds[1:]], 1) * finer])
    between = copies(across, ranks, shards)
    return assemble("all_reduce", n, pieces * finer, [inside(False), [between], inside(True)])


# ---------------------------------------------------------------- one leader per host

Part: TypeAlias = tuple[str, str]  # collective, spec


def _two_levels(n: int, root: int, hosts: Hosts, nodes: Nodes, inner: Part, outer: Part) -> tuple[int, Table, Table]:
    """(chunks, transfers inside the hosts, transfers between their leaders).

    The root leads its host, in the others the lowest rank does.
    """
    members = groups(n, hosts, nodes)
    place = [int(np.searchsorted(group, root)) if root in group else 0 for group in members]
    home = next(host for host, group in enumerate(members) if root in group)
    rooted = outer[0] in ("broadcast", "reduce")
    across = part(*outer, len(members), False, home if rooted else 0)
    alike = dict.fromkeys((len(group), first) for group, first in zip(members, place, strict=True))
    kinds = {(size, first): part(*inner, size, True, first) for size, first in alike}
    chunks = common([across.chunks, *(schedule.chunks for schedule in kinds.values())])
    within = []
    for kind, schedule in kinds.items():
        same = np.stack([group for group, first in zip(members, place, strict=True) if (len(group), first) == kind])
        bounds = cut([0, chunks], schedule.chunks)
        within.append(copies(schedule, same, np.broadcast_to(bounds, (len(same), len(bounds)))))
    leaders = np.array([group[first] for group, first in zip(members, place, strict=True)])
    return chunks, np.concatenate(within), copies(across, leaders, cut([0, chunks], across.chunks))


@algorithm(
    "hierarchical_leader",
    "all_reduce",
    summary="reduce to a leader in each host, all_reduce between the leaders, broadcast inside",
    reference=references.ZHU,
    cost="(2 I + O) a + (2 I + O) Mb",
    limit=two_level_limit("reduce", "all_reduce"),
)
def all_reduce_leader(
    n: int,
    hosts: Hosts = (),
    inner: ReduceAndBack = "linear",
    outer: AllReduceBetween = "recursive_doubling",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level all-reduce with the fewest messages between hosts: only one rank of each sends any."""
    chunks, within, between = _two_levels(n, 0, hosts, nodes, ("reduce", inner), ("all_reduce", outer))
    up = Schedule("reduce", n, chunks, within)
    return assemble("all_reduce", n, chunks, [[up.table.copy()], [between], [up.reversed().table.copy()]])


@algorithm(
    "hierarchical",
    "reduce",
    summary="reduce to a leader in each host, then from the leaders to the root",
    reference=references.KARONIS,
    cost="(I + O) a + (I + O) Mb",
    limit=two_level_limit("reduce", "reduce"),
)
def reduce(
    n: int,
    root: int = 0,
    hosts: Hosts = (),
    inner: ReduceInside = "linear",
    outer: ReduceBetween = "binomial",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level reduce: the data of a host crosses the network once. The root is the leader of its host."""
    chunks, within, between = _two_levels(n, root, hosts, nodes, ("reduce", inner), ("reduce", outer))
    return assemble("reduce", n, chunks, [[within], [between]], root)


@algorithm(
    "hierarchical",
    "broadcast",
    summary="from the root to a leader in each host, then inside the hosts",
    reference=references.KARONIS,
    cost="(O + I) a + (O + I) Mb",
    limit=two_level_limit("broadcast", "broadcast"),
)
def broadcast(
    n: int,
    root: int = 0,
    hosts: Hosts = (),
    inner: BroadcastInside = "linear",
    outer: BroadcastBetween = "binomial",
    nodes: Nodes = None,
) -> Schedule:
    """Two-level broadcast: the data crosses the network once per host. The root is the leader of its host."""
    chunks, within, between = _two_levels(n, root, hosts, nodes, ("broadcast", inner), ("broadcast", outer))
    return assemble("broadcast", n, chunks, [[between], [within]], root)
