"""Which links the bytes between two ranks cross, and what each link carries."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.topology.model import _HOP_COST, Kind, Link, LinkKind, Topology

__all__ = ["Fabric", "Medium"]


class Medium(enum.IntEnum):
    """What the slowest kind of thing is on a way between two ranks; protocols cost differently on each."""

    MEMORY = 0
    """The same NUMA node or device."""
    LINK = 1
    """Links made for it: NVLink, xGMI, the chips of a torus."""
    BUS = 2
    """PCIe and the interconnect of sockets."""
    NETWORK = 3
    """Adapters and switches."""


class Fabric:
    """The directed links of a topology, and routes between the ranks placed on it.

    A route stays within the host if both ends are there. Between hosts each rank uses the port nearest to it (ranks
    that are equally near to several take them in turn), and takes the cheapest way through the network. Of several
    equal ways the destination's number decides, as D-mod-k routing does: shifts then share no link.

    Parameters
    ----------
    topology
        Nodes and links.
    placement
        The node of each rank; default: `Topology.ranks`.

    Raises
    ------
    InvalidArgument
        No rank is placed, or a node is not there.

    References
    ----------
    Zahavi, "Fat-Trees Routing and Node Ordering Providing Contention Free Traffic for MPI Global Collectives", 2011.
    """

    def __init__(self, topology: Topology, placement: Sequence[str] | None = None) -> None:
        self.topology = topology
        self.ranks = tuple(topology.ranks if placement is None else placement)
        if not self.ranks:
            raise InvalidArgument(f"topology {topology.name!r} has no ranks; give placement=, or call Topology.place")
        for node in self.ranks:
            topology[node]
        self._ids = {node.id: number for number, node in enumerate(topology)}
        self._names = list(self._ids)
        self._links: list[Link] = list(topology.links)
        self._around: list[list[tuple[int, int, int]]] = [[] for _ in self._names]  # neighbour, directed link, cost
        self._direct: list[dict[int, list[tuple[int, int, int]]]] = [{} for _ in self._names]  # the same by neighbour
        self._forwards = [node.forwards for node in topology]
        self._host = _hosts(topology, self._ids)
        capacity, latency = [], []
        for number, link in enumerate(self._links):
            a, b, cost = self._ids[link.a], self._ids[link.b], _HOP_COST[link.kind]
            forth, back = 2 * number, 2 * number + (1 if link.duplex else 0)
            for end, row in ((a, (b, forth, cost)), (b, (a, back, cost))):
                self._around[end].append(row)
                self._direct[end].setdefault(row[0], []).append(row)
            capacity += [np.inf if link.bandwidth is None else link.bandwidth] * 2
            latency += [link.latency or 0.0] * 2
        self._least = [min((cost for _, _, cost in around), default=0) for around in self._around]
        # What ranks of one node exchange, its source copies: a link more for each rank; costs tell its capacity.
        self._copies = len(capacity)
        self.capacity: NDArray[np.float64] = np.array(capacity + [1.0] * self.size)
        """Bytes per second of each directed link; infinite where it is not known, 1 for a rank's copies."""
        self.latency: NDArray[np.float64] = np.array(latency + [0.0] * self.size)
        """Seconds of each directed link."""
        self._routes: dict[tuple[int, int], tuple[tuple[int, ...], Medium]] = {}
        # Ways within hosts of one shape are found once: as places in the host's own list of links, and directions.
        self._shape, self._place, self._own = self._shapes()
        self._ordinal = {link: place for own in self._own.values() for place, link in enumerate(own)}
        self._inside: dict[tuple[int, int, int], tuple[tuple[int, int], ...] | None] = {}
        self._outside: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
        self._ports = self._nearest_ports()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The host of each rank, numbered from 0; a rank without a host is its own."""
        numbers: dict[int, int] = {}
        places = [self._ids[node] for node in self.ranks]
        return tuple(numbers.setdefault(self._host[p] if self._host[p] >= 0 else ~p, len(numbers)) for p in places)

    def name(self, link: int) -> str:
        """A directed link for people: ``a -> b``, or ``copies of rank 3``."""
        if link >= self._copies:
            return f"copies of rank {link - self._copies}"
        found = self._links[link // 2]
        if not found.duplex:
            return f"{found.a} - {found.b}"
        return f"{found.b} -> {found.a}" if link % 2 else f"{found.a} -> {found.b}"

    def route(self, src: int, dst: int) -> tuple[tuple[int, ...], Medium]:
        """The directed links from one rank to another, and the slowest medium among them.

        Raises
        ------
        InvalidArgument
            Nothing connects the two; names them.
        """
        found = self._routes.get((src, dst))
        if found is None:
            links = self._find(src, dst)
            found = self._routes[src, dst] = (links, self._medium(links))
        return found

    def crosses(self, src: int, dst: int, kinds: Iterable[Kind]) -> bool:
        """Whether a node of these kinds is on the route from one rank to another."""
        ends = {end for link in self.route(src, dst)[0] if link < self._copies for end in self._ends(link)}
        return any(self.topology[end].kind in kinds for end in ends)

    def _ends(self, link: int) -> tuple[str, str]:
        found = self._links[link // 2]
        return found.a, found.b

    def unknown(self, links: Iterable[int]) -> list[str]:
        """Names of those links whose bandwidth is not known."""
        return [self.name(link) for link in links if np.isinf(self.capacity[link])]

    # -------------------------------------------------------------------------------------------------------- finding

    def _shapes(self) -> tuple[dict[int, int], list[int], dict[int, list[int]]]:
        """Host to the number of its shape, node to its place in its host, host to the links within it."""
        nodes: dict[int, list[tuple[object, ...]]] = {}
        place: list[int] = []
        for number, node in enumerate(self.topology):
            own = nodes.setdefault(self._host[number], [])
            place.append(len(own))
            own.append((node.kind, node.forwards))
        links: dict[int, list[int]] = {}
        joints: dict[int, list[tuple[object, ...]]] = {}
        for number, link in enumerate(self._links):
            a, b = self._ids[link.a], self._ids[link.b]
            if self._host[a] == self._host[b]:
                links.setdefault(self._host[a], []).append(number)
                joints.setdefault(self._host[a], []).append((place[a], place[b], link.kind, link.duplex))
        numbers: dict[tuple[object, ...], int] = {}
        shape = {
            host: numbers.setdefault((tuple(own), tuple(joints.get(host, ()))), len(numbers))
            for host, own in nodes.items()
        }
        return shape, place, links

    def _find(self, src: int, dst: int) -> tuple[int, ...]:
        a, b = (self._ids[self.ranks[rank]] for rank in (src, dst))
        if a == b:
            return (self._copies + src,)
        if self._host[a] == self._host[b] >= 0:
            inside = self._within(a, b)
            if inside is not None:
                return inside
        ends = self._ports.get(src, a), self._ports.get(dst, b)
        parts = [self._within(a, ends[0]) if a != ends[0] else (), self._through(*ends, dst),
                 self._within(ends[1], b) if b != ends[1] else ()]  # fmt: skip
        if any(part is None for part in parts):
            raise InvalidArgument(
                f"nothing connects rank {src} ({self.ranks[src]}) and rank {dst} ({self.ranks[dst]}) in topology "
                f"{self.topology.name!r}; connect them, or a switch to both"
            )
        return tuple(link for part in parts if part is not None for link in part)

    def _within(self, a: int, b: int) -> tuple[int, ...] | None:
        """The cheapest way within the host of `a`."""
        host = self._host[a]
        key = (self._shape[host], self._place[a], self._place[b])
        if key not in self._inside:
            before = self._search(a, b, lambda node: self._host[node] == host)
            way = None if before is None else self._walk(before, a, b, 0)
            self._inside[key] = None if way is None else tuple((self._ordinal[x // 2], x % 2) for x in way)
        found = self._inside[key]
        return None if found is None else tuple(2 * self._own[host][place] + side for place, side in found)

    def _through(self, a: int, b: int, dst: int) -> tuple[int, ...] | None:
        """The cheapest way through the network, of equal ones that of the destination."""
        if a == b:
            return ()
        # Of ports with one plug, the way between what they are plugged into is kept: many ports share it.
        (first, a_in), (last, b_out) = self._plug(a), self._plug(b)
        if first == last and first not in (a, b):
            return (a_in, b_out ^ 1 if self._duplex(b_out) else b_out)
        key = (first, last)
        if key not in self._outside:
            ends = (self._host[first], self._host[last])
            before = self._search(first, last, lambda node: self._host[node] < 0 or self._host[node] in ends)
            self._outside[key] = {} if before is None else before
        before = self._outside[key]
        if not before:
            return None
        way = self._walk(before, first, last, dst)
        head = (a_in,) if first != a else ()
        tail = (b_out ^ 1 if self._duplex(b_out) else b_out,) if last != b else ()
        return (*head, *way, *tail)

    def _duplex(self, link: int) -> bool:
        return self._links[link // 2].duplex

    def _plug(self, node: int) -> tuple[int, int]:
        """The only network switch that a port is plugged into, and the link there; else the node itself."""
        plugs = [(other, link) for other, link, _ in self._around[node] if self._host[other] < 0]
        return plugs[0] if self._host[node] >= 0 and len(plugs) == 1 else (node, -1)

    def _search(self, a: int, b: int, passable: Callable[[int], bool]) -> dict[int, list[tuple[int, int]]] | None:
        """Dijkstra's search; for each node on a cheapest way the (node, link)s before it. None: there is no way."""
        cost = {a: 0}
        before: dict[int, list[tuple[int, int]]] = {}
        waiting = [(0, a)]
        while waiting:
            so_far, node = heapq.heappop(waiting)
            limit = cost.get(b)
            if limit is not None and so_far >= limit:
                break
            if so_far > cost[node] or (node != a and not self._forwards[node]):
                continue
            around = self._around[node]
            if limit is not None and so_far + self._least[node] >= limit:
                around = self._direct[node].get(b, [])  # nothing else can be on a way as cheap
            for other, link, price in around:
                total = so_far + price
                if other != b and not passable(other):
                    continue
                if total < cost.get(other, total + 1):
                    cost[other] = total
                    before[other] = [(node, link)]
                    heapq.heappush(waiting, (total, other))
                elif total == cost[other] and (node, link) not in before[other]:
                    before[other].append((node, link))
        if b not in before:
            return None
        ways: dict[int, list[tuple[int, int]]] = {}
        left = [b]
        while left:
            node = left.pop()
            if node != a and node not in ways:
                ways[node] = before[node]
                left.extend(previous for previous, _ in before[node])
        return ways

    @staticmethod
    def _walk(before: Mapping[int, list[tuple[int, int]]], a: int, b: int, choice: int) -> tuple[int, ...]:
        way: list[int] = []
        node = b
        while node != a:
            ways = before[node]
            node, link = ways[choice % len(ways)]
            way.append(link)
        return tuple(reversed(way))

    def _nearest_ports(self) -> dict[int, int]:
        """Rank to the port that it uses between hosts."""
        ports: dict[int, list[int]] = {}
        for node in self.topology.of(Kind.PORT):
            number = self._ids[node.id]
            ports.setdefault(self._host[number], []).append(number)
        chosen: dict[int, int] = {}
        turn: dict[tuple[int, ...], int] = {}
        near: dict[int, list[int]] = {}
        for rank, name in enumerate(self.ranks):
            number = self._ids[name]
            own = ports.get(self._host[number])
            if not own or self._host[number] < 0:
                continue
            if number not in near:
                ways = [(self._cost(self._within(number, port)), port) for port in own]
                best = min(cost for cost, _ in ways)
                near[number] = [port for cost, port in ways if cost == best]
            equal = near[number]
            place = turn[tuple(equal)] = turn.get(tuple(equal), -1) + 1
            chosen[rank] = equal[place % len(equal)]
        return chosen

    def _cost(self, links: tuple[int, ...] | None) -> float:
        return float("inf") if links is None else sum(_HOP_COST[self._links[link // 2].kind] for link in links)

    def _medium(self, links: Sequence[int]) -> Medium:
        worst = Medium.MEMORY
        for link in links:
            if link >= self._copies:
                continue
            found = self._links[link // 2]
            if found.kind is LinkKind.NETWORK:
                ends = {self.topology[found.a].kind, self.topology[found.b].kind}
                worst = max(worst, Medium.LINK if ends == {Kind.GPU} else Medium.NETWORK)
            elif found.kind in (LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C):
                worst = max(worst, Medium.LINK)
            else:
                worst = max(worst, Medium.BUS)
        return worst


def _hosts(topology: Topology, ids: Mapping[str, int]) -> list[int]:
    """Per node the number of the host that holds it, -1 if none does."""
    found: list[int] = []
    for node in topology:  # what holds a node was added before it
        if node.kind is Kind.HOST:
            found.append(ids[node.id])
        else:
            found.append(-1 if node.parent is None else found[ids[node.parent]])
    return found
