"""What a job runs on: devices, what connects them, and which rank is where.

Devices form a tree (a host holds NUMA nodes, those hold PCI host bridges, switches and devices); links join any two of
them. What is not known is None and stays so: neither a NUMA node nor a bandwidth is ever guessed here.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringleader._names import did_you_mean
from ringleader.errors import InvalidArgument

if TYPE_CHECKING:
    import networkx

__all__ = [
    "Distance", "Kind", "Link", "LinkKind", "Node", "PathClass", "Topology", "lane_bandwidth", "pcie_bandwidth",
]  # fmt: skip


class Kind(str, enum.Enum):
    """What a node is."""

    HOST = "host"
    NUMA = "numa"
    """A NUMA node: cores and their memory (``cpu`` in NCCL's files)."""
    BRIDGE = "bridge"
    """A PCI host bridge, where it is known; NCCL's files do not show them."""
    PCI = "pci"
    """A PCI switch, or a PCI device that is none of the following."""
    GPU = "gpu"
    NIC = "nic"
    """A network adapter."""
    PORT = "port"
    """A port of a network adapter (``net`` in NCCL's files)."""
    NVSWITCH = "nvswitch"
    """The NVLink switches of a host, as one."""
    SWITCH = "switch"
    """A network switch."""

    def __str__(self) -> str:
        return self.value


class LinkKind(str, enum.Enum):
    """What a link is."""

    INTERNAL = "internal"
    """Within one chip or one host's board: a host and its NUMA nodes, a NUMA node and its host bridges."""
    SMP = "smp"
    """Between the NUMA nodes of a host: UPI, Infinity Fabric, X-Bus."""
    PCIE = "pcie"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    """AMD's link between GPUs."""
    C2C = "c2c"
    """NVLink between a GPU and its CPU."""
    NETWORK = "network"

    def __str__(self) -> str:
        return self.value


# The lower, the rather taken: a route stays on the links made for it, and within a host if it can.
_HOP_COST: Mapping[LinkKind, int] = {
    LinkKind.NVLINK: 1, LinkKind.XGMI: 1, LinkKind.C2C: 2, LinkKind.PCIE: 4, LinkKind.INTERNAL: 8, LinkKind.SMP: 16,
    LinkKind.NETWORK: 64,
}  # fmt: skip


class PathClass(enum.IntEnum):
    """How far two devices are from one another, nearest first: the classes of ``nvidia-smi topo -m``."""

    X = 0
    """The same device."""
    NV = 1
    """NVLink or xGMI, directly or through the host's NVLink switches."""
    PIX = 2
    """At most one PCI switch."""
    PXB = 3
    """Several PCI switches, no host bridge."""
    PHB = 4
    """A PCI host bridge."""
    NODE = 5
    """Host bridges of one NUMA node."""
    SYS = 6
    """The interconnect between NUMA nodes."""
    NET = 7
    """Another host."""
    UNKNOWN = 8
    """The same host, but a NUMA node is not known."""


@dataclass(frozen=True)
class Node:
    """A device, or what holds devices.

    Attributes
    ----------
    id
        Unique in its topology.
    parent
        `id` of what holds it; None for hosts, network switches and whatever else stands alone.
    name
        What people call it: ``GPU0``, ``mlx5_0``; empty if nobody does.
    index
        Number among its like in the host (a GPU's device number), None if unknown.
    numa
        For a NUMA node its number, None if unknown.
    address
        PCI address, lower case, or empty.
    speed
        For a port, bytes per second each way; None if unknown.
    cpus
        For a NUMA node, its logical CPUs; empty if unknown.
    forwards
        Whether a route may lead through it. A GPU does not forward for others; a chip of a torus does.
    facts
        Everything else that a file or the system says of it, as text.
    """

    id: str
    kind: Kind
    parent: str | None = None
    name: str = ""
    index: int | None = None
    numa: int | None = None
    address: str = ""
    speed: float | None = None
    cpus: tuple[int, ...] = ()
    forwards: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """A connection of two nodes.

    Attributes
    ----------
    bandwidth
        Bytes per second in each direction (of all `count` lanes together); None if unknown.
    latency
        Seconds one way; None if unknown.
    count
        Links bonded into this one.
    duplex
        Whether both directions have the full bandwidth at the same time.
    """

    a: str
    b: str
    kind: LinkKind
    bandwidth: float | None = None
    latency: float | None = None
    count: int = 1
    duplex: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)

    def other(self, node: str) -> str:
        """The node at the other end."""
        return self.b if node == self.a else self.a


@dataclass(frozen=True)
class Distance:
    """What lies between two nodes, see `Topology.distance`.

    Attributes
    ----------
    path
        The class of the path.
    links
        For `PathClass.NV` the number of bonded links, else 0.
    hops
        Links on the route.
    bandwidth
        Bytes per second of the narrowest link whose bandwidth is known; None if none is.
    latency
        Sum of the known latencies, seconds.
    """

    path: PathClass
    links: int
    hops: int
    bandwidth: float | None
    latency: float

    def __str__(self) -> str:
        return f"NV{self.links}" if self.path is PathClass.NV else self.path.name


class Topology:
    """Nodes, links, and the ranks placed on them.

    Parameters
    ----------
    name
        What drawings and messages call it.

    Examples
    --------
    >>> t = Topology("two GPUs")
    >>> host = t.add("h", Kind.HOST)
    >>> cpu = t.add("h/cpu", Kind.NUMA, parent=host, numa=0)
    >>> switch = t.add("h/switch", Kind.PCI, parent=cpu, bandwidth=32e9)
    >>> for i in range(2):
    ...     _ = t.add(f"h/gpu{i}", Kind.GPU, parent=switch, index=i, bandwidth=32e9)
    >>> str(t.distance("h/gpu0", "h/gpu1")), t.distance("h/gpu0", "h/cpu").hops
    ('PIX', 2)
    >>> t.place(["h/gpu0", "h/gpu1"]).ranks
    ('h/gpu0', 'h/gpu1')
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.notes: list[str] = []
        """What could not be found out, for people."""
        self.ranks: tuple[str, ...] = ()
        """Per rank, the node that it runs on (a GPU, or a NUMA node)."""
        self._nodes: dict[str, Node] = {}
        self._links: list[Link] = []
        self._children: dict[str | None, list[str]] = {}
        self._incident: dict[str, list[Link]] = {}

    # ------------------------------------------------------------------------------------------------------- building

    def add(
        self,
        id: str,
        kind: Kind,
        *,
        parent: str | None = None,
        bandwidth: float | None = None,
        latency: float | None = None,
        name: str = "",
        index: int | None = None,
        numa: int | None = None,
        address: str = "",
        speed: float | None = None,
        cpus: Sequence[int] = (),
        forwards: bool | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> str:
        """Add a node; one with a parent is linked to it with `bandwidth` (bytes/s each way) and `latency` (seconds).

        Returns
        -------
        str
            Its id.

        Raises
        ------
        InvalidArgument
            The id is taken, or the parent is not there.
        """
        if id in self._nodes:
            raise InvalidArgument(f"node {id!r} is there already, a {self._nodes[id].kind}; ids are unique")
        node = Node(
            id, Kind(kind), parent, name, index, numa, address.lower(), _rate(speed, f"speed of {id!r}"), tuple(cpus),
            kind is not Kind.GPU if forwards is None else forwards, dict(facts or {}),
        )  # fmt: skip
        if parent is not None:
            above = self[parent]
            inside = above.kind in (Kind.HOST, Kind.BRIDGE) or node.kind in (Kind.NUMA, Kind.BRIDGE, Kind.PORT)
            link = LinkKind.INTERNAL if inside and node.kind is not Kind.PCI else LinkKind.PCIE
            self._nodes[id] = node
            self.connect(parent, id, link, bandwidth=bandwidth, latency=latency)
        self._nodes[id] = node
        self._children.setdefault(parent, []).append(id)
        self._changed()
        return id

    def update(self, id: str, *, index: int, name: str) -> None:
        """Give a node that is there another number and name."""
        self._nodes[id] = replace(self[id], index=index, name=name)
        self._changed()

    def connect(
        self,
        a: str,
        b: str,
        kind: LinkKind,
        *,
        bandwidth: float | None = None,
        latency: float | None = None,
        count: int = 1,
        duplex: bool = True,
        facts: Mapping[str, str] | None = None,
    ) -> Link:
        """Link two nodes; the arguments are those of `Link`.

        Raises
        ------
        InvalidArgument
            A node is not there, both are the same, or a number is out of range: bandwidths are above 0.
        """
        for node in (a, b):
            self[node]
        if a == b:
            raise InvalidArgument(f"a link from {a!r} to itself; expected two nodes")
        if latency is not None and not 0 <= latency < float("inf"):
            raise InvalidArgument(
                f"latency {latency} s of the link {a!r} - {b!r}; expected 0 or more, or None if unknown"
            )
        if count < 1:
            raise InvalidArgument(f"count {count} of the link {a!r} - {b!r}; expected 1 or more")
        rate = _rate(bandwidth, f"bandwidth of the link {a!r} - {b!r}")
        link = Link(a, b, LinkKind(kind), rate, latency, count, duplex, dict(facts or {}))
        self._links.append(link)
        for node in (a, b):
            self._incident.setdefault(node, []).append(link)
        self._changed()
        return link

    def include(self, other: Topology, prefix: str = "") -> dict[str, str]:
        """Add all of another topology, with `prefix` before its ids; its ranks are not taken over.

        Returns
        -------
        dict
            Old id to new id.
        """
        ids = {id: prefix + id for id in other._nodes}
        for node in other:
            moved = replace(node, id=ids[node.id], parent=None if node.parent is None else ids[node.parent])
            if moved.id in self._nodes:
                raise InvalidArgument(f"node {moved.id!r} is there already; include with another prefix")
            self._nodes[moved.id] = moved
            self._children.setdefault(moved.parent, []).append(moved.id)
        for link in other.links:
            moved_link = replace(link, a=ids[link.a], b=ids[link.b])
            self._links.append(moved_link)
            for end in (moved_link.a, moved_link.b):
                self._incident.setdefault(end, []).append(moved_link)
        self._changed()
        return ids

    def with_port_speed(self, speed: float) -> Topology:
        """A copy whose network ports, and what is plugged into them, carry `speed` bytes per second.

        Raises
        ------
        InvalidArgument
            There are no ports, or the speed is not above 0.

        Examples
        --------
        >>> from ringleader.topology import generate
        >>> host = generate.cpu_host(nics=1).with_port_speed(5e9)
        >>> [port.speed for port in host.of(Kind.PORT)]
        [5000000000.0]
        """
        ports = {node.id for node in self.of(Kind.PORT)}
        if not ports:
            raise InvalidArgument(f"{self.name!r} has no network port to give a speed of {speed:g} bytes per second to")
        rate = _rate(speed, "speed of a port")
        changed, copy = Topology(), Topology(self.name)
        changed._nodes = {id: replace(n, speed=rate) if id in ports else n for id, n in self._nodes.items()}
        changed._links = [replace(k, bandwidth=rate) if ports & {k.a, k.b} else k for k in self._links]
        copy.include(changed)
        copy.notes = list(self.notes)
        return copy.place(self.ranks)

    def place(self, nodes: Iterable[str]) -> Topology:
        """Put rank 0, 1, ... on these nodes; returns the topology itself.

        Raises
        ------
        InvalidArgument
            A node is not there.
        """
        ranks = tuple(nodes)
        for node in ranks:
            self[node]
        self.ranks = ranks
        return self

    def _changed(self) -> None:
        self.__dict__.pop("graph", None)
        self.__dict__.pop("source", None)

    # --------------------------------------------------------------------------------------------------------- asking

    def __getitem__(self, id: str) -> Node:
        try:
            return self._nodes[id]
        except KeyError:
            near = did_you_mean(id, self._nodes)
            raise InvalidArgument(
                f"no node {id!r} among the {len(self._nodes)} of topology {self.name!r}{near}"
            ) from None

    def __contains__(self, id: object) -> bool:
        return id in self._nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        counts = {kind: sum(node.kind is kind for node in self) for kind in Kind}
        held = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"<Topology {self.name!r}: {held or 'empty'}, {len(self._links)} links>"

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, those to parents included."""
        return tuple(self._links)

    def links_of(self, id: str) -> tuple[Link, ...]:
        """The links of one node."""
        return tuple(self._incident.get(self[id].id, ()))

    def of(self, kind: Kind, inside: str | None = None) -> list[Node]:
        """Nodes of a kind, all or those inside another node, in the order in which they were added."""
        if inside is None:
            return [node for node in self if node.kind is kind]
        return [node for node in self.below(inside) if node.kind is kind]

    def children(self, id: str | None = None) -> list[Node]:
        """What a node holds directly; None: what nobody holds."""
        return [self._nodes[child] for child in self._children.get(id, ())]

    def below(self, id: str) -> Iterator[Node]:
        """What a node holds, at any depth, each before what it holds itself."""
        waiting = list(reversed(self.children(id)))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(self.children(node.id)))

    def above(self, id: str) -> Iterator[Node]:
        """What holds a node, the nearest first."""
        parent = self[id].parent
        while parent is not None:
            node = self._nodes[parent]
            yield node
            parent = node.parent

    def holder(self, id: str, kind: Kind) -> Node | None:
        """The node itself or the nearest one above it that is of this kind."""
        node = self[id]
        return node if node.kind is kind else next((n for n in self.above(id) if n.kind is kind), None)

    @functools.cached_property
    def graph(self) -> networkx.MultiGraph[str]:
        """The nodes and links for NetworkX: node attribute ``node``, edge attributes ``link`` and ``cost``."""
        import networkx

        graph: networkx.MultiGraph[str] = networkx.MultiGraph(name=self.name)
        graph.add_nodes_from((node.id, {"node": node}) for node in self)
        graph.add_edges_from((k.a, k.b, {"link": k, "cost": _HOP_COST[k.kind]}) for k in self._links)
        return graph

    def route(self, a: str, b: str) -> list[Link]:
        """The links from one node to another: the fewest and nearest, through nodes that forward.

        Raises
        ------
        InvalidArgument
            A node is not there, or nothing connects the two.
        """
        import networkx

        ends = (self[a].id, self[b].id)
        passable = {node.id for node in self if node.forwards} | set(ends)
        try:
            path = networkx.dijkstra_path(self.graph.subgraph(passable), a, b, weight="cost")
        except networkx.NetworkXNoPath:
            raise InvalidArgument(f"nothing connects {a!r} and {b!r}; `connect` them, or a switch to both") from None
        return [self._best(x, y) for x, y in itertools.pairwise(path)]

    def _best(self, a: str, b: str) -> Link:
        between = [link for link in self._incident[a] if link.other(a) == b]
        return min(between, key=lambda link: (_HOP_COST[link.kind], -(link.bandwidth or 0.0)))

    def distance(self, a: str, b: str) -> Distance:
        """How far two nodes are from one another.

        Raises
        ------
        InvalidArgument
            A node is not there, or nothing connects the two.
        """
        if a == b:
            return Distance(PathClass.X, 0, 0, None, 0.0)
        route = self.route(a, b)
        known = [link.bandwidth for link in route if link.bandwidth is not None]
        path, links = self.path_class(a, b)
        latency = sum(link.latency or 0.0 for link in route)
        return Distance(path, links, len(route), min(known, default=None), latency)

    def path_class(self, a: str, b: str) -> tuple[PathClass, int]:
        """The class of the path between two nodes, and for `PathClass.NV` the number of bonded links."""
        if a == b:
            return PathClass.X, 0
        bonded = self._bonded(a, b)
        if bonded:
            return PathClass.NV, bonded
        up_a, up_b = ([self[id], *self.above(id)] for id in (a, b))
        common = {node.id for node in up_a} & {node.id for node in up_b}
        joint = next((node for node in up_a if node.id in common), None)
        if joint is None or joint.kind not in (Kind.HOST, Kind.NUMA, Kind.BRIDGE, Kind.PCI, Kind.NIC, Kind.GPU):
            return PathClass.NET, 0
        if joint.kind is Kind.HOST:
            numas = [next((n for n in up if n.kind is Kind.NUMA), None) for up in (up_a, up_b)]
            known = all(n is not None and n.numa is not None for n in numas)
            return (PathClass.SYS if known else PathClass.UNKNOWN), 0
        if joint.kind is Kind.NUMA:
            bridges = [[n for n in up if n.kind is Kind.BRIDGE] for up in (up_a, up_b)]
            return (PathClass.NODE if all(bridges) else PathClass.PHB), 0
        if joint.kind is Kind.BRIDGE:
            return PathClass.PHB, 0
        switches = {n.id for up in (up_a, up_b) for n in _until(up, joint.id)} - {a, b}
        passed = sum(self._nodes[id].kind is Kind.PCI for id in switches)
        return (PathClass.PIX if passed <= 1 else PathClass.PXB), 0

    def _bonded(self, a: str, b: str) -> int:
        """NVLinks or xGMI links between two nodes, directly or through one NVLink switch."""
        special = (LinkKind.NVLINK, LinkKind.XGMI, LinkKind.C2C)
        own = [link for link in self._incident.get(a, ()) if link.kind in special]
        direct = sum(link.count for link in own if link.other(a) == b)
        if direct:
            return direct
        through = 0
        for link in own:
            middle = self._nodes[link.other(a)]
            if middle.kind is Kind.NVSWITCH:
                far = [k.count for k in self._incident[middle.id] if k.other(middle.id) == b and k.kind in special]
                through += min(link.count, sum(far))
        return through


def _rate(rate: float | None, what: str) -> float | None:
    if rate is not None and not 0 < rate < float("inf"):
        raise InvalidArgument(f"{what} is {rate} bytes/s; expected more than 0, or None if it is unknown")
    return rate


def _until(up: Sequence[Node], joint: str) -> Iterator[Node]:
    for node in up:
        yield node
        if node.id == joint:
            return


# GT/s of a lane to what is left of it by the line code: 8b/10b, 128b/130b, and FLIT mode (242 of 256 bytes).
_CODES = ((5.1, 8 / 10), (33.0, 128 / 130), (float("inf"), 242 / 256))


def pcie_bandwidth(transfers: float, lanes: int) -> float:
    """What a PCI Express link carries each way, line code subtracted, packet headers not.

    Parameters
    ----------
    transfers
        Transfers per second and lane: 16e9 for "16 GT/s".
    lanes
        Width.

    Returns
    -------
    float
        Bytes per second.

    References
    ----------
    PCI Express Base Specification 6.0, chapter 4.

    Examples
    --------
    >>> round(pcie_bandwidth(16e9, 16) / 1e9, 1)
    31.5
    """
    code = next(share for most, share in _CODES if transfers <= most * 1e9)
    return transfers * code * lanes / 8


# Line rate of one link each way, as the makers state it: NVLink by compute capability (9.0: 90), xGMI by GPU name.
_NVLINK = ((100, 50e9), (90, 25e9), (86, 14.0625e9), (80, 25e9), (70, 25e9), (60, 20e9))
_XGMI = {"942": 64e9, "950": 76.8e9, "90a": 50e9, "910": 50e9, "908": 46e9, "906": 46e9}


def lane_bandwidth(gpu: Node, kind: LinkKind) -> float | None:
    """Bytes per second each way of one NVLink or xGMI link of this GPU; None if its facts do not tell what GPU it is.

    Examples
    --------
    >>> lane_bandwidth(Node("gpu", Kind.GPU, facts={"gpu.sm": "90"}), LinkKind.NVLINK)
    25000000000.0
    """
    if kind is LinkKind.XGMI:
        return _XGMI.get(gpu.facts.get("gpu.gcn", "").removeprefix("gfx"))
    text = gpu.facts.get("gpu.sm", "")
    capability = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    return next((rate for least, rate in _NVLINK if capability >= least), None)
