"""Drawings of a topology: a tree and tables as text, and as SVG a host's boxes or a network's levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from ringleader.errors import InvalidArgument
from ringleader.topology.model import Kind, LinkKind, Node, Topology

__all__ = ["draw_svg", "draw_tree", "rate_text"]

MAX_HOSTS = 512
"""Most hosts that `draw_svg` draws."""

_FILL = {
    Kind.HOST: "#ffffff", Kind.NUMA: "#f1f5f9", Kind.BRIDGE: "#e2e8f0", Kind.PCI: "#dbeafe", Kind.GPU: "#bbf7d0",
    Kind.NIC: "#fed7aa", Kind.NVSWITCH: "#bbf7d0", Kind.SWITCH: "#ddd6fe",
}  # fmt: skip
_BOX, _GAP, _TITLE = 74, 10, 18


def rate_text(rate: float | None) -> str:
    """Bytes per second for people: ``31.5 GB/s``; empty if unknown.

    Examples
    --------
    >>> rate_text(31.508e9), rate_text(None)
    ('31.5 GB/s', '')
    """
    if rate is None:
        return ""
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def draw_tree(topology: Topology) -> str:
    """What holds what, a line each, with bandwidths where they are known.

    Examples
    --------
    >>> from ringleader.topology import generate
    >>> print(draw_tree(generate.cpu_host(sockets=1)))
    CPU host
    └─ NUMA 0: CPUs 0-31, rank 0
       └─ NIC 0000:20:00.0, 31.5 GB/s
          └─ port nic0, 3.12 GB/s
    """
    lines: list[str] = []
    ranks = {node: rank for rank, node in enumerate(topology.ranks)}

    def show(node: Node, before: str, own: str) -> None:
        lines.append(before + own + _line(topology, node, ranks))
        inner = topology.children(node.id)
        below = before + {"": "", "├─ ": "│  ", "└─ ": "   "}[own]
        for child in inner:
            show(child, below, "└─ " if child is inner[-1] else "├─ ")

    for node in topology.children():
        show(node, "", "")
    return "\n".join(lines)


def _line(topology: Topology, node: Node, ranks: dict[str, int]) -> str:
    from ringleader.topology.matrix import number_ranges

    words = [_name(node)]
    if node.kind is Kind.NUMA and node.cpus:
        words = [f"{words[0]}: CPUs {number_ranges(node.cpus)}"]
    if node.kind is Kind.PORT:
        words.append(rate_text(node.speed) or "speed unknown")
    elif node.parent is not None:
        up = next((k for k in topology.links_of(node.id) if k.other(node.id) == node.parent), None)
        words.append(rate_text(up.bandwidth if up else None))
    fast: Counter[str] = Counter()
    for link in topology.links_of(node.id):
        if link.kind in (LinkKind.NVLINK, LinkKind.XGMI) and node.kind is Kind.GPU:
            fast[f"{link.count} {link.kind} to {_name(topology[link.other(node.id)])}"] += 1
    words += sorted(fast)
    if node.id in ranks:
        words.append(f"rank {ranks[node.id]}")
    return ", ".join(word for word in words if word)


def _name(node: Node) -> str:
    if node.kind is Kind.NUMA:
        return f"NUMA {'?' if node.numa is None else node.numa}"
    told = node.name or node.address or node.id.rpartition("/")[2].removeprefix(str(node.kind))
    kinds = {
        Kind.PCI: "PCI switch ",
        Kind.NIC: "NIC ",
        Kind.PORT: "port ",
        Kind.BRIDGE: "host bridge ",
        Kind.SWITCH: "",
    }
    return kinds.get(node.kind, "") + told


# ---------------------------------------------------------------------------------------------------------------- SVG


def draw_svg(topology: Topology) -> str:
    """One host: boxes within boxes. Several: the network, hosts at the bottom and switches above them, level by level.

    Raises
    ------
    InvalidArgument
        There is nothing to draw, or more than `MAX_HOSTS` hosts.

    Examples
    --------
    >>> from ringleader.topology import generate
    >>> draw_svg(generate.hgx_h100()).count("GPU")
    16
    """
    hosts = topology.of(Kind.HOST) or topology.of(Kind.GPU)
    if not hosts:
        raise InvalidArgument(f"topology {topology.name!r} has no host to draw")
    if len(hosts) > MAX_HOSTS:
        raise InvalidArgument(
            f"{len(hosts)} hosts are too many for a drawing; at most {MAX_HOSTS}. The tree lists them all"
        )
    if len(hosts) == 1 and hosts[0].kind is Kind.HOST:
        width, height, body = _host(topology, hosts[0])
    else:
        width, height, body = _network(topology, hosts)
    font = "font-family='system-ui, sans-serif' font-size='11' fill='#0f172a'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' {font}>"
    title = f"<title>{escape(topology.name)}</title><rect width='100%' height='100%' fill='white'/>"
    return "\n".join([head, title, *body, "</svg>"]) + "\n"


def _rect(x: float, y: float, w: float, h: float, fill: str, label: str, hint: str = "") -> Iterator[str]:
    yield f"<rect x='{x:g}' y='{y:g}' width='{w:g}' height='{h:g}' rx='4' fill='{fill}' stroke='#64748b'>"
    yield f"<title>{escape(hint or label)}</title></rect>"
    most = max(3, int((w - 6) / 6.2))
    shown = label if len(label) <= most else label[: most - 1] + "…"
    yield f"<text x='{x + w / 2:g}' y='{y + 13:g}' text-anchor='middle'>{escape(shown)}</text>"


def _host(topology: Topology, host: Node) -> tuple[float, float, list[str]]:
    """Boxes side by side in the box of what holds them; NVLink below them."""
    body: list[str] = []
    centres: dict[str, tuple[float, float]] = {}
    ranks = {node: rank for rank, node in enumerate(topology.ranks)}

    def size(node: Node) -> tuple[float, float]:
        inner = [size(child) for child in _shown(topology, node)]
        if not inner:
            return (_BOX, 36) if node.kind in (Kind.GPU, Kind.NIC) else (_BOX, 24)
        return max(_BOX, sum(w for w, _ in inner) + _GAP * (len(inner) + 1)), max(h for _, h in inner) + _TITLE + _GAP

    def place(node: Node, x: float, y: float, height: float | None = None) -> None:
        w, h = size(node)
        inner = _shown(topology, node)
        hint = _line(topology, node, ranks)
        ports = [child.name for child in topology.children(node.id) if child.kind is Kind.PORT and child.name]
        label = ports[0] if node.kind is Kind.NIC and ports else _name(node)
        body.extend(_rect(x, y, w, height or h, _FILL[node.kind], label, hint))
        second = _second(topology, node, ranks)
        if second:
            body.append(
                f"<text x='{x + w / 2:g}' y='{y + 27:g}' text-anchor='middle' fill='#475569'>{escape(second)}</text>"
            )
        centres[node.id] = (x + w / 2, y + (height or h))
        across = x + _GAP
        tallest = max((size(child)[1] for child in inner), default=0)
        for child in inner:
            place(child, across, y + _TITLE, tallest if _shown(topology, child) else None)
            across += size(child)[0] + _GAP

    width, height = size(host)
    place(host, _GAP, _GAP)
    bottom = height + 2 * _GAP
    fast = [link for link in topology.links if link.kind in (LinkKind.NVLINK, LinkKind.XGMI)]
    switches = topology.of(Kind.NVSWITCH, host.id)
    if switches:
        count = f"{len(switches)} NVSwitches" if len(switches) > 1 else "NVSwitch"
        body += _rect(_GAP, bottom + 24, width, 24, _FILL[Kind.NVSWITCH], count)
    lines: list[str] = []
    bonded: Counter[str] = Counter()
    direct = [link for link in fast if not {topology[link.a].kind, topology[link.b].kind} & {Kind.NVSWITCH}]
    for link in fast:
        if link not in direct:
            bonded[link.a if topology[link.a].kind is Kind.GPU else link.b] += link.count
    for gpu, lanes in bonded.items():
        x, y = centres[gpu]
        lines.append(f"<path d='M{x:g} {y:g}V{bottom + 24:g}' stroke='#16a34a' stroke-width='3' fill='none'/>")
        lines.append(f"<text x='{x + 4:g}' y='{bottom + 18:g}'>{lanes}</text>")
    for link in direct:
        (x1, y1), (x2, y2) = centres[link.a], centres[link.b]
        deep = bottom + 20 + abs(x2 - x1) / 6
        lines.append(f"<path d='M{x1:g} {y1:g}C{x1:g} {deep:g} {x2:g} {deep:g} {x2:g} {y2:g}' stroke='#16a34a' "
                     f"stroke-width='{min(6, 1 + link.count / 2):g}' stroke-opacity='.6' fill='none'>"
                     f"<title>{link.count} {link.kind}</title></path>")  # fmt: skip
    extra = 60 if switches else max((20 + abs(centres[k.a][0] - centres[k.b][0]) / 6 for k in direct), default=0)
    return width + 2 * _GAP, bottom + extra + _GAP, body + lines


def _shown(topology: Topology, node: Node) -> list[Node]:
    return [child for child in topology.children(node.id) if child.kind not in (Kind.PORT, Kind.NVSWITCH)]


def _second(topology: Topology, node: Node, ranks: dict[str, int]) -> str:
    """The second line of a device's box."""
    if node.kind is Kind.NIC:
        speeds = [port.speed for port in topology.children(node.id) if port.speed]
        return f"{sum(speeds) / 125e6:g} Gbit/s" if speeds else ""
    return f"rank {ranks[node.id]}" if node.kind is Kind.GPU and node.id in ranks else ""


def _network(topology: Topology, hosts: Sequence[Node]) -> tuple[float, float, list[str]]:
    switches = topology.of(Kind.SWITCH)
    inside = {node.id: host.id for host in hosts for node in (host, *topology.below(host.id))}
    level: dict[str, int] = {host.id: 0 for host in hosts}
    joined: Counter[tuple[str, str]] = Counter()
    rates: dict[tuple[str, str], float] = {}
    for link in topology.links:
        if link.kind is LinkKind.NETWORK:
            ends = (inside.get(link.a, link.a), inside.get(link.b, link.b))
            joined[ends] += 1
            rates[ends] = rates.get(ends, 0.0) + (link.bandwidth or 0.0)
    for depth in range(1, len(switches) + 1):  # a switch lies one above the lowest that it is joined to
        found = {e for pair in joined for e in pair if e not in level and any(level.get(o) == depth - 1 for o in pair)}
        if not found:
            break
        level.update(dict.fromkeys(found, depth))
    rows: dict[int, list[str]] = {}
    for id in [host.id for host in hosts] + [switch.id for switch in switches]:
        rows.setdefault(level.get(id, 1), []).append(id)
    widest = max(map(len, rows.values()))
    step = max(14.0, min(96.0, 1500 / widest))
    width, top = max(320.0, widest * step) + 2 * _GAP, max(rows)
    spots: dict[str, tuple[float, float]] = {}
    body: list[str] = []
    for depth, ids in rows.items():
        each = (width - 2 * _GAP) / len(ids)
        wide = min(84.0, each - 4)
        for position, id in enumerate(ids):
            x, y = _GAP + each * (position + 0.5), _GAP + (top - depth) * 110.0
            spots[id] = (x, y)
            node = topology[id]
            gpus = len(topology.of(Kind.GPU, id)) if node.kind is Kind.HOST else 0
            hint = f"{_name(node)}{f', {gpus} GPUs' if gpus else ''}"
            label = hint if wide > 60 else (str(position) if wide > 16 or position % 2 == 0 else "")
            fill = _FILL[Kind.NUMA if node.kind is Kind.HOST else node.kind]
            body += _rect(x - wide / 2, y, wide, 24, fill, label, f"{id}: {hint}")
    lines = []
    for (a, b), count in joined.items():
        (x1, y1), (x2, y2) = sorted((spots[a], spots[b]), key=lambda spot: spot[1])
        hint = f"{a} - {b}: {count} links, {rate_text(rates[a, b] or None) or 'bandwidth unknown'}"
        shape = f"M{x1:g} {y1 + 24:g}L{x2:g} {y2:g}"
        if y1 == y2:  # neighbours of one level: an arc below them
            shape = (
                f"M{x1:g} {y1 + 24:g}Q{(x1 + x2) / 2:g} {y1 + 24 + min(50, 12 + abs(x1 - x2) / 4):g} {x2:g} {y2 + 24:g}"
            )
        lines.append(
            f"<path d='{shape}' fill='none' stroke='#7c3aed' stroke-opacity='.45' "
            f"stroke-width='{min(4.0, 0.8 + count / 4):g}'><title>{escape(hint)}</title></path>"
        )
    flat = any(level.get(a, 1) == level.get(b, 1) for a, b in joined)  # then there are arcs below
    return width, _GAP * 2 + top * 110.0 + (84 if flat else 24), lines + body
