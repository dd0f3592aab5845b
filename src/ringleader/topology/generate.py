"""Topologies made to order: hosts of well-known kinds, and networks of any hosts.

Hosts are `dgx_a100`, `hgx_h100`, `hgx_b200`, `pcie_box` and `cpu_host`. Networks take a host and repeat it:
`ethernet_racks`, `fat_tree`, `rail_optimized`, `dragonfly`; `torus` joins chips directly, and `wan` joins whole sites.
All bandwidths are bytes per second each way, latencies seconds one way; the defaults are line rates that the makers
state, not measurements.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.topology.model import Kind, LinkKind, Topology, pcie_bandwidth

__all__ = [
    "cpu_host", "dgx_a100", "dragonfly", "ethernet_racks", "fat_tree", "hgx_b200", "hgx_h100", "make", "network_of",
    "pcie_box", "presets", "rail_optimized", "torus", "wan",
]  # fmt: skip

GIGABIT = 125e6
"""Bytes per second of one Gbit/s."""

_PCIE4, _PCIE5 = pcie_bandwidth(16e9, 16), pcie_bandwidth(32e9, 16)
_SWITCH_LATENCY = 500e-9
_CABLE_LATENCY = 200e-9


def cpu_host(
    sockets: int = 2, cores: int = 32, nics: int = 1, speed: float = 25 * GIGABIT, smp: float = 41.6e9
) -> Topology:
    """A host without GPUs; one rank per socket.

    Parameters
    ----------
    sockets, cores
        NUMA nodes, and cores of each.
    nics, speed
        Network ports, on the sockets in turn, and bytes per second of each (default 25 Gbit/s).
    smp
        Bytes per second between two sockets (default: two links of 10.4 GT/s).

    Examples
    --------
    >>> cpu_host(sockets=1)
    <Topology 'CPU host': 1 host, 1 numa, 1 nic, 1 port, 3 links>
    """
    t = _host("CPU host", _positive("sockets", sockets), _positive("cores", cores), smp)
    for i in range(_positive("nics", nics, least=0)):
        _nic(t, f"host/cpu{i % sockets}", i, speed, _PCIE4)
    return t.place(node.id for node in t.of(Kind.NUMA))


def dgx_a100(nics: int = 8) -> Topology:
    """NVIDIA DGX A100: 8 GPUs on NVSwitch (12 NVLink3 each), a PCIe 4 switch for 2 GPUs and 2 adapters of 200 Gbit/s.

    References
    ----------
    NVIDIA, "DGX A100 System Architecture", 2020.
    """
    return _nvswitch_box("DGX A100", "80", 12, 25e9, _PCIE4, 200 * GIGABIT, nics, gpus_per_switch=2, cores=64)


def hgx_h100(nics: int = 8) -> Topology:
    """NVIDIA HGX/DGX H100: 8 GPUs on NVSwitch (18 NVLink4 each), per GPU a PCIe 5 switch and an adapter of 400 Gbit/s.

    References
    ----------
    NVIDIA, "DGX H100 System Architecture", 2022.
    """
    return _nvswitch_box("HGX H100", "90", 18, 25e9, _PCIE5, 400 * GIGABIT, nics, gpus_per_switch=1, cores=56)


def hgx_b200(nics: int = 8) -> Topology:
    """NVIDIA HGX/DGX B200: as `hgx_h100`, with NVLink5 (18 per GPU, 50 GB/s each way).

    References
    ----------
    NVIDIA, "DGX B200" datasheet, 2024.
    """
    return _nvswitch_box("HGX B200", "100", 18, 50e9, _PCIE5, 400 * GIGABIT, nics, gpus_per_switch=1, cores=56)


def pcie_box(
    gpus: int = 8, sockets: int = 2, gpus_per_switch: int = 4, nics: int = 1, speed: float = 100 * GIGABIT,
    lane_rate: float = 16e9,
) -> Topology:  # fmt: skip
    """A host whose GPUs have PCIe only.

    Parameters
    ----------
    gpus, sockets
        GPUs, spread evenly over the sockets in order.
    gpus_per_switch
        GPUs of one PCIe switch; 0: each hangs directly on its socket.
    nics, speed
        Network ports, on the sockets in turn, bytes per second of each.
    lane_rate
        Transfers per second and lane; each device has 16 lanes.

    Examples
    --------
    >>> t = pcie_box(gpus=4, sockets=2, gpus_per_switch=2)
    >>> str(t.distance(t.ranks[0], t.ranks[1])), str(t.distance(t.ranks[0], t.ranks[3]))
    ('PIX', 'SYS')
    """
    _positive("gpus", gpus)
    t = _host("PCIe box", _positive("sockets", sockets), 32, 41.6e9)
    rate = pcie_bandwidth(lane_rate, 16)
    per_socket = math.ceil(gpus / sockets)
    for i in range(gpus):
        numa = f"host/cpu{i // per_socket}"
        parent = numa
        if gpus_per_switch:
            parent = f"{numa}/switch{i % per_socket // gpus_per_switch}"
            if parent not in t:
                t.add(parent, Kind.PCI, parent=numa, address=f"{i:04x}:01:00.0", bandwidth=rate)
        t.add(
            f"host/gpu{i}", Kind.GPU, parent=parent, index=i, name=f"GPU{i}", address=f"{i:04x}:10:00.0", bandwidth=rate
        )
    for i in range(_positive("nics", nics, least=0)):
        _nic(t, f"host/cpu{i % sockets}", i, speed, rate)
    return t.place(f"host/gpu{i}" for i in range(gpus))


def _nvswitch_box(
    name: str, sm: str, lanes: int, lane: float, pcie: float, speed: float, nics: int, gpus_per_switch: int, cores: int
) -> Topology:
    t = _host(name, 2, cores, 41.6e9)
    nvswitch = t.add("host/nvswitch", Kind.NVSWITCH, parent="host", name="NVSwitch")
    switches = 8 // gpus_per_switch
    for i in range(8):
        numa, switch = f"host/cpu{i // 4}", f"host/switch{i // gpus_per_switch}"
        if switch not in t:
            t.add(switch, Kind.PCI, parent=numa, address=f"{i:04x}:01:00.0", bandwidth=pcie)
        gpu = t.add(
            f"host/gpu{i}", Kind.GPU, parent=switch, index=i, name=f"GPU{i}", address=f"{i:04x}:10:00.0",
            bandwidth=pcie, facts={"gpu.sm": sm, "gpu.gdr": "1"},
        )  # fmt: skip
        t.connect(gpu, nvswitch, LinkKind.NVLINK, bandwidth=lanes * lane, count=lanes)
    for i in range(_positive("nics", nics, least=0)):
        _nic(t, f"host/switch{i * switches // nics}", i, speed, pcie)
    return t.place(f"host/gpu{i}" for i in range(8))


def _host(name: str, sockets: int, cores: int, smp: float) -> Topology:
    t = Topology(name)
    t.add("host", Kind.HOST, name=name)
    for i in range(sockets):
        t.add(f"host/cpu{i}", Kind.NUMA, parent="host", numa=i, index=i, cpus=range(i * cores, (i + 1) * cores))
        for j in range(i):
            t.connect(f"host/cpu{j}", f"host/cpu{i}", LinkKind.SMP, bandwidth=smp)
    return t


def _nic(t: Topology, parent: str, index: int, speed: float, pcie: float) -> None:
    nic = t.add(f"host/nic{index}", Kind.NIC, parent=parent, address=f"{index:04x}:20:00.0", bandwidth=pcie)
    t.add(f"{nic}/port", Kind.PORT, parent=nic, name=f"nic{index}", index=index, speed=speed, bandwidth=speed)


# ----------------------------------------------------------------------------------------------------------- networks


def ethernet_racks(
    host: Topology, hosts: int, *, per_rack: int = 16, uplink: float = 100 * GIGABIT, latency: float = _SWITCH_LATENCY
) -> Topology:
    """Racks with one switch each, joined by one core switch.

    Parameters
    ----------
    host
        What each host is.
    hosts, per_rack
        How many there are, and in each rack.
    uplink
        Bytes per second between a rack's switch and the core; below the sum of the rack's ports it is oversubscribed.
    latency
        Seconds that a switch takes.

    Examples
    --------
    >>> t = ethernet_racks(cpu_host(), 4, per_rack=2)
    >>> len(t.ranks), t.distance(t.ranks[0], t.ranks[-1]).hops > t.distance(t.ranks[0], t.ranks[2]).hops
    (8, True)
    """
    t = Topology(f"{hosts} x {host.name}, racks of {per_rack}")
    copies = _copies(t, host, hosts)
    racks = math.ceil(hosts / _positive("per_rack", per_rack))
    core = t.add("core", Kind.SWITCH, name="core") if racks > 1 else None
    for r in range(racks):
        rack = t.add(f"rack{r}", Kind.SWITCH, name=f"rack {r}")
        for ports in copies[r * per_rack : (r + 1) * per_rack]:
            _plug(t, ports, rack, latency)
        if core is not None:
            t.connect(rack, core, LinkKind.NETWORK, bandwidth=uplink, latency=latency)
    return t


def fat_tree(
    host: Topology, hosts: int, *, radix: int = 32, oversubscription: float = 1.0, latency: float = _SWITCH_LATENCY
) -> Topology:
    """A tree of switches with as many links up as down: two levels, or three where one leaf's spines do not reach all.

    Parameters
    ----------
    radix
        Ports of a switch; half of a leaf's are for hosts.
    oversubscription
        Bandwidth down over bandwidth up of a leaf: 1 is non-blocking, 4 means a quarter of the bandwidth upwards.

    References
    ----------
    Leiserson, "Fat-Trees: Universal Networks for Hardware-Efficient Supercomputing", 1985.
    Al-Fares et al., "A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008.

    Examples
    --------
    >>> t = fat_tree(cpu_host(nics=1), 8, radix=4)
    >>> len(t.of(Kind.SWITCH)), t.distance(t.ranks[0], t.ranks[-1]).bandwidth == 25 * 125e6
    (6, True)
    """
    if radix < 2 or radix % 2:
        raise InvalidArgument(f"radix is {radix}; expected an even number of ports from 2")
    if not oversubscription > 0:
        raise InvalidArgument(f"oversubscription is {oversubscription}; expected more than 0; 1 is none")
    t = Topology(f"{hosts} x {host.name}, fat tree")
    copies = _copies(t, host, hosts)
    down = radix // 2
    ports = [port for own in copies for port in own]
    leaves = math.ceil(len(ports) / down)
    for leaf in range(leaves):
        switch = t.add(f"leaf{leaf}", Kind.SWITCH, name=f"leaf {leaf}")
        _plug(t, ports[leaf * down : (leaf + 1) * down], switch, latency)
    if leaves == 1:
        return t
    rate = max((t[port].speed or 0.0) for port in ports) / oversubscription or None
    pods = [range(p, min(p + down, leaves)) for p in range(0, leaves, down)] if leaves > radix else [range(leaves)]
    if len(pods) > radix:
        raise InvalidArgument(
            f"{len(ports)} ports are more than three levels of switches of radix {radix} join ({radix**3 // 4}); "
            "take a larger radix"
        )
    for p, pod in enumerate(pods):
        spines = [t.add(f"spine{p}.{s}", Kind.SWITCH, name=f"spine {p}.{s}") for s in range(down)]
        for leaf in pod:
            for spine in spines:
                t.connect(f"leaf{leaf}", spine, LinkKind.NETWORK, bandwidth=rate, latency=latency)
    if len(pods) > 1:
        for group in range(down):  # the cores of one group join the spines of one number
            for c in range(down):
                core = t.add(f"core{group}.{c}", Kind.SWITCH, name=f"core {group}.{c}")
                for p in range(len(pods)):
                    t.connect(f"spine{p}.{group}", core, LinkKind.NETWORK, bandwidth=rate, latency=latency)
    return t


def rail_optimized(
    host: Topology, hosts: int, *, per_pod: int = 32, oversubscription: float = 1.0, latency: float = _SWITCH_LATENCY
) -> Topology:
    """Port i of every host of a pod on rail switch i; spines join the rails of all pods.

    References
    ----------
    NVIDIA, "DGX SuperPOD Reference Architecture"; Wang et al., "Rail-only", arXiv 2307.12169.

    Examples
    --------
    >>> t = rail_optimized(hgx_h100(), 2)
    >>> len(t.of(Kind.SWITCH)), len(t.ranks)
    (9, 16)
    """
    t = Topology(f"{hosts} x {host.name}, rails")
    copies = _copies(t, host, hosts)
    rails = max(map(len, copies))
    speed = max(port.speed or 0.0 for port in t.of(Kind.PORT))
    spine = t.add("spine", Kind.SWITCH, name="spine")
    for pod in range(math.ceil(hosts / _positive("per_pod", per_pod))):
        own = copies[pod * per_pod : (pod + 1) * per_pod]
        for rail in range(rails):
            switch = t.add(f"pod{pod}/rail{rail}", Kind.SWITCH, name=f"rail {pod}.{rail}")
            plugged = [ports[rail] for ports in own if rail < len(ports)]
            _plug(t, plugged, switch, latency)
            rate = speed * len(plugged) / oversubscription or None
            t.connect(switch, spine, LinkKind.NETWORK, bandwidth=rate, latency=latency)
    return t


def dragonfly(
    host: Topology, hosts: int, *, per_router: int = 4, routers: int = 8, link: float = 200 * GIGABIT,
    latency: float = _SWITCH_LATENCY,
) -> Topology:  # fmt: skip
    """Groups of routers that are all joined to each other, and one link between any two groups.

    Parameters
    ----------
    per_router, routers
        Hosts of a router, and routers of a group.
    link
        Bytes per second between two routers.

    References
    ----------
    Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008.

    Examples
    --------
    >>> t = dragonfly(cpu_host(), 8, per_router=2, routers=2)
    >>> len(t.of(Kind.SWITCH))
    4
    """
    t = Topology(f"{hosts} x {host.name}, dragonfly")
    copies = _copies(t, host, hosts)
    size = _positive("per_router", per_router) * _positive("routers", routers)
    groups = math.ceil(hosts / size)
    for g in range(groups):
        own = [t.add(f"group{g}/router{r}", Kind.SWITCH, name=f"router {g}.{r}") for r in range(routers)]
        for r, router in enumerate(own):
            first = g * size + r * per_router
            for ports in copies[first : first + per_router]:
                _plug(t, ports, router, latency)
            for other in own[:r]:
                t.connect(router, other, LinkKind.NETWORK, bandwidth=link, latency=latency)
        for other_group in range(g):
            ends = (f"group{g}/router{other_group % routers}", f"group{other_group}/router{g % routers}")
            t.connect(*ends, LinkKind.NETWORK, bandwidth=link, latency=latency)
    return t


def torus(sides: Sequence[int], *, link: float = 50e9, latency: float = 1e-6) -> Topology:
    """Chips in a grid that closes upon itself in each dimension, as in a TPU pod. The last side runs fastest.

    Parameters
    ----------
    sides
        Chips along each dimension, one to three of them.
    link
        Bytes per second between neighbours each way.

    References
    ----------
    Jouppi et al., "TPU v4", ISCA 2023.

    Examples
    --------
    >>> t = torus([4, 4])
    >>> len(t.ranks), t.distance(t.ranks[0], t.ranks[15]).hops
    (16, 2)
    """
    if not 1 <= len(sides) <= 3 or any(side < 1 for side in sides):
        raise InvalidArgument(f"sides of a torus are {list(sides)}; expected one to three numbers from 1")
    t = Topology("torus " + "x".join(map(str, sides)))
    places: list[tuple[int, ...]] = [()]
    for side in sides:
        places = [(*place, i) for place in places for i in range(side)]
    ids = {place: "chip" + ".".join(map(str, place)) for place in places}
    for index, place in enumerate(places):
        t.add(ids[place], Kind.GPU, index=index, name=ids[place], forwards=True)
    for place in places:
        for d, side in enumerate(sides):
            after = (*place[:d], (place[d] + 1) % side, *place[d + 1 :])
            if side > 1 and not (side == 2 and place[d] == 1):
                t.connect(ids[place], ids[after], LinkKind.NETWORK, bandwidth=link, latency=latency)
    return t.place(ids.values())


def wan(sites: Sequence[Topology], *, bandwidth: float = 1.25e9, latency: float = 20e-3) -> Topology:
    """Sites joined by one line each to a common exchange; ranks are numbered site by site.

    Parameters
    ----------
    sites
        Each with a network of its own (its core, or first switch, gets the line), or a single host (its first port).
    bandwidth, latency
        Of a line: bytes per second each way, seconds one way to the exchange.

    Examples
    --------
    >>> t = wan([ethernet_racks(cpu_host(), 2), cpu_host()])
    >>> len(t.ranks), t.distance(t.ranks[0], t.ranks[-1]).latency > 0.04
    (6, True)
    """
    t = Topology(f"{len(sites)} sites")
    exchange = t.add("exchange", Kind.SWITCH, name="exchange")
    ranks: list[str] = []
    for number, site in enumerate(sites):
        ids = t.include(site, f"site{number}/")
        ranks += [ids[rank] for rank in site.ranks]
        gates = site.of(Kind.SWITCH) or site.of(Kind.PORT)
        if not gates:
            raise InvalidArgument(f"site {number} ({site.name}) has neither a network switch nor a port to join it by")
        gate = next((node for node in gates if node.id in ("core", "spine")), gates[0])
        t.connect(ids[gate.id], exchange, LinkKind.NETWORK, bandwidth=bandwidth, latency=latency)
    return t.place(ranks)


def _copies(t: Topology, host: Topology, hosts: int) -> list[list[str]]:
    """`hosts` copies of a host in `t`, ranks placed one host after another; each copy's ports."""
    ports: list[list[str]] = []
    ranks: list[str] = []
    for number in range(_positive("hosts", hosts)):
        ids = t.include(host, f"{number}/")
        own = [ids[port.id] for port in host.of(Kind.PORT)]
        if not own:
            raise InvalidArgument(f"{host.name} has no network port; a network needs hosts that have one (nics=1)")
        ports.append(own)
        ranks += [ids[rank] for rank in host.ranks]
    t.place(ranks)
    return ports


def _plug(t: Topology, ports: Sequence[str], switch: str, latency: float) -> None:
    for port in ports:
        t.connect(port, switch, LinkKind.NETWORK, bandwidth=t[port].speed, latency=latency + _CABLE_LATENCY)


def _positive(what: str, value: int, least: int = 1) -> int:
    if value < least:
        raise InvalidArgument(f"{what} is {value}; expected {least} or more")
    return value


_HOSTS: dict[str, Callable[..., Topology]] = {
    "cpu-host": cpu_host, "dgx-a100": dgx_a100, "hgx-h100": hgx_h100, "hgx-b200": hgx_b200, "pcie-box": pcie_box,
}  # fmt: skip
_NETWORKS: dict[str, Callable[..., Topology]] = {
    "ethernet-racks": ethernet_racks, "fat-tree": fat_tree, "rail-optimized": rail_optimized, "dragonfly": dragonfly,
}  # fmt: skip


def presets() -> list[str]:
    """The names that `make` knows: hosts, networks of hosts, and ``torus``."""
    return [*_HOSTS, *_NETWORKS, "torus"]


def network_of(spec: str) -> Callable[[Topology, int], Topology]:
    """What makes a network of a host and their number, by its name and parameters.

    Raises
    ------
    InvalidArgument
        There is no such network or parameter.

    Examples
    --------
    >>> network_of("fat-tree:oversubscription=4")(cpu_host(), 3).name
    '3 x CPU host, fat tree'
    """
    name, given = _taken_apart(spec)
    if name not in _NETWORKS:
        raise InvalidArgument(unknown("network", name, _NETWORKS))
    values = _values(spec, _NETWORKS[name], given)
    return lambda host, hosts: _NETWORKS[name](host, hosts=hosts, **values)


def make(spec: str) -> Topology:
    """A topology by name, with parameters of its function after a colon.

    Parameters
    ----------
    spec
        A host (``pcie-box:gpus=4,sockets=1``), a network with the name of its host and their number
        (``fat-tree:host=hgx-h100,hosts=64,radix=64``), or ``torus:sides=4x4x4``.

    Raises
    ------
    InvalidArgument
        There is no such name or parameter, or a value is not a number of its kind.

    Examples
    --------
    >>> make("pcie-box:gpus=4").name, len(make("fat-tree:host=cpu-host,hosts=8").ranks)
    ('PCIe box', 16)
    """
    name, given = _taken_apart(spec)
    if name == "torus":
        sides = given.pop("sides", "")
        if not all(side.isdigit() for side in sides.split("x")):
            raise InvalidArgument(
                f"{spec!r}: sides is {sides!r}; expected chips along each dimension, as in sides=4x4x4"
            )
        return torus([int(side) for side in sides.split("x")], **_values(spec, torus, given))
    if name in _NETWORKS:
        host = given.pop("host", "cpu-host")
        if host not in _HOSTS:
            raise InvalidArgument(f"{spec!r}: " + unknown("host", host, _HOSTS))
        return _NETWORKS[name](_HOSTS[host](), **_values(spec, _NETWORKS[name], {"hosts": "2", **given}))
    if name not in _HOSTS:
        raise InvalidArgument(unknown("topology", name, presets()))
    return _HOSTS[name](**_values(spec, _HOSTS[name], given))


def _taken_apart(spec: str) -> tuple[str, dict[str, str]]:
    name, _, rest = spec.strip().partition(":")
    name = name.strip().lower().replace("_", "-")
    given: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidArgument(f"{spec!r}: {word!r} is no parameter; expected name=value, as in hosts=8")
        given[key.strip().replace("-", "_")] = value.strip()
    return name, given


def _values(spec: str, function: Callable[..., Topology], given: Mapping[str, str]) -> dict[str, int | float]:
    parameters = {
        key: {"int": int, "float": float}[str(parameter.annotation)]
        for key, parameter in inspect.signature(function).parameters.items()
        if str(parameter.annotation) in ("int", "float")
    }
    values: dict[str, int | float] = {}
    for key, text in given.items():
        if key not in parameters:
            raise InvalidArgument(f"{spec!r}: " + unknown("parameter", key, parameters))
        try:
            values[key] = parameters[key](text)
        except ValueError:
            kind = "a whole number" if parameters[key] is int else "a number"
            raise InvalidArgument(f"{spec!r}: {key} is {text!r}; expected {kind}") from None
    return values
