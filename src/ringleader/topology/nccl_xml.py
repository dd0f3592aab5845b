"""Topology files of NCCL and RCCL (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``), read and written.

A file that was read and a topology that was not changed since is written as it was found, comments included.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import defusedxml
import defusedxml.ElementTree

from ringleader.errors import InvalidArgument
from ringleader.topology.model import Kind, Link, LinkKind, Node, Topology, lane_bandwidth, pcie_bandwidth

__all__ = ["dump_xml", "is_graph_file", "load_xml", "read_xml", "write_xml"]

MAX_TEXT = 64 << 20
_MAX_DEPTH = 64

_SWITCH_CLASS = "0x068000"  # "bridge, other": how NVLink switches show themselves
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
_ANY_SWITCH = re.compile(r"f+:ff:ff\.?[0-9f]")  # a target behind NVLink switches

_CPU = ("host_hash", "numaid", "affinity", "arch", "vendor", "familyid", "modelid")
_PCI = (
    "busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width",
)  # fmt: skip
_GPU = ("dev", "sm", "gcn", "arch", "rank", "gdr")
_NET = ("name", "dev", "latency", "speed", "port", "guid", "maxconn", "gdr", "coll", "keep")


def load_xml(path: str | os.PathLike[str]) -> Topology:
    """Read a topology from a file; see `read_xml`. OSError if the file cannot be read."""
    file = Path(path)
    with file.open("rb") as stream:
        return read_xml(stream.read(MAX_TEXT + 1), file.name)


def is_graph_file(text: str | bytes) -> bool:
    """Whether this is NCCL's other XML file: the rings and trees that it chose (``NCCL_GRAPH_FILE``)."""
    data = text.encode() if isinstance(text, str) else text
    return re.match(rb"\s*(?:<\?xml.*?\?>|<!--.*?-->|\s)*<graphs?[\s>/]", data, re.DOTALL) is not None


def read_xml(text: str | bytes, source: str = "topology XML") -> Topology:
    """Read a topology in NCCL's or RCCL's XML.

    Parameters
    ----------
    text
        The XML.
    source
        What errors call it, and the topology's name.

    Returns
    -------
    Topology
        One host per ``host_hash``. Ranks are placed on the GPUs that say which rank they are.

    Raises
    ------
    InvalidArgument
        It is no XML, not of this kind, or an attribute is not what it must be; the message names the element.

    Examples
    --------
    >>> topology = read_xml('''<system version="1"><cpu numaid="0" arch="x86_64">
    ...   <pci busid="0000:07:00.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
    ...     <gpu dev="0" sm="86" rank="0"><nvlink target="0000:08:00.0" count="4" tclass="0x030000"/></gpu></pci>
    ...   <pci busid="0000:08:00.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
    ...     <gpu dev="1" sm="86" rank="1"><nvlink target="0000:07:00.0" count="4" tclass="0x030000"/></gpu></pci>
    ... </cpu></system>''')
    >>> str(topology.distance(*topology.ranks)), topology.distance(*topology.ranks).bandwidth
    ('NV4', 56250000000.0)
    """
    if len(text) > MAX_TEXT:
        raise InvalidArgument(f"{source} has more than {MAX_TEXT >> 20} MiB; a topology has some kilobytes")
    builder = _Commented(insert_comments=True)
    parser = defusedxml.ElementTree.DefusedXMLParser(target=builder, forbid_dtd=True)
    try:
        parser.feed(text)
        root = parser.close()
    except ElementTree.ParseError as error:
        raise InvalidArgument(f"{source} is not well-formed XML: {error}") from None
    except defusedxml.DefusedXmlException as error:
        raise InvalidArgument(
            f"{source} declares entities or a document type, which no topology needs: {error}"
        ) from None
    except (ValueError, LookupError) as error:
        raise InvalidArgument(f"{source} is not text in an encoding that XML knows: {error}") from None
    if root.tag != "system":
        kind = (
            "a graph file of NCCL (NCCL_GRAPH_FILE: the rings and trees that it chose), not a topology"
            if root.tag in ("graphs", "graph")
            else f"an XML file whose outermost element is <{str(root.tag)[:40]}>"
        )
        raise InvalidArgument(f"{source} is {kind}; expected <system>, as NCCL_TOPO_DUMP_FILE writes it")
    topology = _Reader(source).read(root)
    topology.__dict__["source"] = (builder.before, root, builder.after)
    return topology


class _Commented(ElementTree.TreeBuilder):
    """Keeps also the comments that stand outside the outermost element."""

    def __init__(self, *, insert_comments: bool) -> None:
        super().__init__(insert_comments=insert_comments)
        self.before: list[str] = []
        self.after: list[str] = []
        self._depth = self._seen = 0

    def start(self, tag: str, attrs: dict[str, str]) -> ElementTree.Element:
        self._depth += 1
        self._seen += 1
        return super().start(tag, attrs)

    def end(self, tag: str) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)

    def comment(self, text: str | None) -> ElementTree.Element:
        if self._depth == 0:
            (self.after if self._seen else self.before).append(f"<!--{text or ''}-->")
        return super().comment(text)


class _Reader:
    """Makes nodes and links of the elements."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.topology = Topology(source)
        self.hosts: dict[str, str] = {}
        self.gpus: dict[str, str] = {}  # PCI address to node
        self.ranks: dict[int, str] = {}
        self.links: list[tuple[str, ElementTree.Element]] = []

    def read(self, root: ElementTree.Element) -> Topology:
        for number, element in enumerate(_elements(root)):
            if element.tag == "cpu":
                self._cpu(element, number)
            elif element.tag in ("pci", "nic"):  # devices that stand outside any CPU
                self._device(element, self._unknown_numa(), 1)
        self._connect()
        for numa in self.topology.of(Kind.NUMA):
            host = self.topology.holder(numa.id, Kind.HOST)
            assert host is not None
            first = self.topology.of(Kind.NUMA, host.id)[0]
            if first.id != numa.id:
                self.topology.connect(first.id, numa.id, LinkKind.SMP)
        if self.ranks:
            if sorted(self.ranks) == list(range(len(self.ranks))):
                self.topology.place(self.ranks[rank] for rank in sorted(self.ranks))
            else:
                self.topology.notes.append(f"the ranks {sorted(self.ranks)} are not 0, 1, ...; none was placed")
        return self.topology

    def _fail(self, element: ElementTree.Element, what: str) -> InvalidArgument:
        names = {key: element.get(key) for key in ("busid", "numaid", "dev", "name", "target") if element.get(key)}
        shown = " ".join(f'{key}="{value}"' for key, value in names.items())
        return InvalidArgument(f"{self.source}: <{element.tag}{' ' if shown else ''}{shown}>: {what}")

    def _integer(self, element: ElementTree.Element, key: str, most: int = 1 << 31) -> int | None:
        text = element.get(key, "").strip()
        if not text:
            return None
        try:
            value = int(text, 0)
        except ValueError:
            raise self._fail(element, f'{key}="{text[:40]}" is not a whole number') from None
        if not -1 <= value <= most:
            raise self._fail(element, f'{key}="{text[:40]}" is out of range; expected -1 (unknown) to {most}')
        return None if value < 0 else value

    def _host(self, key: str, facts: Mapping[str, str]) -> str:
        if key not in self.hosts:
            id = f"host{len(self.hosts)}"
            self.hosts[key] = self.topology.add(id, Kind.HOST, name=id, index=len(self.hosts), facts=facts)
        return self.hosts[key]

    def _unknown_numa(self) -> str:
        host = self._host(next(iter(self.hosts), ""), {})
        found = f"{host}/elsewhere"
        return found if found in self.topology else self.topology.add(found, Kind.NUMA, parent=host)

    def _cpu(self, element: ElementTree.Element, number: int) -> None:
        host = self._host(element.get("host_hash", ""), _facts(element, ("host_hash",), only=True))
        numa = self._integer(element, "numaid")
        id = self.topology.add(
            f"{host}/cpu{number}", Kind.NUMA, parent=host, numa=numa, index=number, cpus=self._affinity(element),
            facts=_facts(element, ("numaid", "host_hash")),
        )  # fmt: skip
        for child in _elements(element):
            if child.tag in ("pci", "nic"):
                self._device(child, id, 1)

    def _affinity(self, element: ElementTree.Element) -> tuple[int, ...]:
        words = element.get("affinity", "").split(",")
        try:
            masks = [int(word, 16) for word in words] if words != [""] else []
        except ValueError:
            raise self._fail(
                element, f'affinity="{element.get("affinity", "")[:60]}" is no CPU mask of hexadecimal words'
            ) from None
        mask = 0
        for word in masks:
            if not 0 <= word < 1 << 32:
                raise self._fail(element, f"affinity has a word of more than 32 bits: {word:x}")
            mask = mask << 32 | word
        return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)

    def _device(self, element: ElementTree.Element, parent: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._fail(element, f"more than {_MAX_DEPTH} PCI devices within each other")
        if element.tag == "nic":
            nic = self.topology.add(
                f"{parent}/nic{self._count(parent)}", Kind.NIC, parent=parent, facts=_facts(element)
            )
            self._ports(element, nic)
            return
        address = element.get("busid", "").strip().lower()
        kind, inner = self._kind(element)
        host = self.topology.holder(parent, Kind.HOST)
        assert host is not None
        id = f"{host.id}/{address or f'{kind}{self._count(parent)}'}"
        if id in self.topology:
            raise self._fail(element, "another PCI device of the host has the same address")
        lanes = self._integer(element, "link_width", 64)
        self.topology.add(
            id, kind, parent=parent, address=address, bandwidth=self._pcie(element, lanes),
            index=None if inner is None else self._integer(inner, "dev"),
            name="" if inner is None or not inner.get("dev") else f"GPU{inner.get('dev')}",
            facts=_facts(element, ("busid",)) | ({} if inner is None else _facts(inner, ("dev",), prefix="gpu.")),
        )  # fmt: skip
        if kind is Kind.GPU:
            self.gpus.setdefault(address, id)
        if inner is not None:
            rank = self._integer(inner, "rank")
            if rank is not None and self.ranks.setdefault(rank, id) != id:
                self.topology.notes.append(f"rank {rank} is on two GPUs; the first one was taken")
            self.links += [(id, link) for link in _elements(inner) if link.tag in ("nvlink", "xgmi", "c2c")]
        for child in _elements(element):
            if child.tag == "pci":
                self._device(child, id, depth + 1)
            elif child.tag == "nic":
                self._ports(child, id)

    def _kind(self, element: ElementTree.Element) -> tuple[Kind, ElementTree.Element | None]:
        inner = element.find("gpu")
        if inner is not None:
            return Kind.GPU, inner
        code = element.get("class", "").lower()
        if element.find("nic") is not None or code.startswith(_NIC_CLASSES):
            return Kind.NIC, None
        if code.startswith(_GPU_CLASSES) and element.find("pci") is None:
            return Kind.GPU, None
        return Kind.PCI, None

    def _pcie(self, element: ElementTree.Element, lanes: int | None) -> float | None:
        text = element.get("link_speed", "").strip()
        if not text or text.lower().startswith("unknown"):
            return None
        match = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", text)
        if match is None:
            raise self._fail(element, f'link_speed="{text[:40]}" is not of the form "16.0 GT/s PCIe"')
        transfers = float(match[1]) * 1e9
        return pcie_bandwidth(transfers, lanes) if lanes and 0 < transfers < 1e13 else None

    def _ports(self, element: ElementTree.Element, nic: str) -> None:
        for net in _elements(element):
            if net.tag != "net":
                continue
            megabits = self._integer(net, "speed")
            self.topology.add(
                f"{nic}/port{self._count(nic)}", Kind.PORT, parent=nic, name=net.get("name", ""),
                index=self._integer(net, "dev"), speed=megabits * 125e3 if megabits else None,
                facts=_facts(net, ("name", "dev")),
            )  # fmt: skip

    def _count(self, parent: str) -> int:
        return len(self.topology.children(parent))

    def _connect(self) -> None:
        """NVLink and xGMI: both ends name each other, which is one link."""
        seen: dict[tuple[LinkKind, frozenset[str]], tuple[str, int]] = {}
        for gpu, element in self.links:
            count = self._integer(element, "count", 1 << 10) or 1
            facts = _facts(element, ("target", "count"))
            if element.tag == "c2c":
                cpu = self.topology.holder(gpu, Kind.NUMA)
                assert cpu is not None
                megabytes = self._integer(element, "bw")
                rate = megabytes * 1e6 * count if megabytes else None
                self.topology.connect(gpu, cpu.id, LinkKind.C2C, bandwidth=rate, count=count, facts=facts)
                continue
            kind = LinkKind.XGMI if element.tag == "xgmi" else LinkKind.NVLINK
            target = self._target(gpu, element)
            if target is None or target == gpu:
                self.topology.notes.append(
                    f"{gpu}: {kind} to {element.get('target', 'nowhere')}, which is not in the file"
                )
                continue
            first, number = seen.setdefault((kind, frozenset((gpu, target))), (gpu, count))
            if first == gpu:
                rate = lane_bandwidth(self.topology[gpu], kind)
                both = None if rate is None else rate * count
                self.topology.connect(gpu, target, kind, bandwidth=both, count=count, facts=facts)
            elif number != count:
                self.topology.notes.append(f"{gpu} and {target} count their {kind}s differently: {count} and {number}")

    def _target(self, gpu: str, element: ElementTree.Element) -> str | None:
        target = element.get("target", "").strip().lower()
        host = self.topology.holder(gpu, Kind.HOST)
        assert host is not None
        id = f"{host.id}/{target}"
        if id in self.topology:
            return id
        if element.get("tclass", "").lower() != _SWITCH_CLASS and not _ANY_SWITCH.fullmatch(target):
            return self.gpus.get(target)
        return self.topology.add(id, Kind.NVSWITCH, parent=host.id, name="NVSwitch", address=target)


def _elements(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    return (child for child in element if isinstance(child.tag, str))


def _facts(
    element: ElementTree.Element, names: tuple[str, ...] = (), only: bool = False, prefix: str = ""
) -> dict[str, str]:
    return {prefix + key: value for key, value in element.items() if (key in names) is only}


# ------------------------------------------------------------------------------------------------------------ writing


def dump_xml(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write a topology to a file in NCCL's XML; see `write_xml`."""
    Path(path).write_text(write_xml(topology), encoding="utf-8")


def write_xml(topology: Topology) -> str:
    """A topology in NCCL's XML: hosts with their devices. Network switches have no place there and are left out.

    Examples
    --------
    >>> from ringleader.topology import generate
    >>> print(write_xml(generate.cpu_host(sockets=1)).splitlines()[1].strip()[:20])
    <cpu numaid="0" affi
    """
    before: list[str] = []
    after: list[str] = []
    if "source" in topology.__dict__:
        before, root, after = topology.__dict__["source"]
    else:
        root = ElementTree.Element("system", version="1")
        for host in topology.of(Kind.HOST):
            several = len(topology.of(Kind.HOST)) > 1
            for numa in topology.of(Kind.NUMA, host.id):
                root.append(_write_cpu(topology, numa, host.facts.get("host_hash", host.id if several else "")))
        ElementTree.indent(root)
    return "\n".join([*before, ElementTree.tostring(root, encoding="unicode").rstrip(), *after]) + "\n"


def _write_cpu(topology: Topology, numa: Node, host: str) -> ElementTree.Element:
    mask = sum(1 << cpu for cpu in numa.cpus)
    words = [f"{mask >> 32 * k & 0xFFFFFFFF:08x}" for k in reversed(range((mask.bit_length() + 31) // 32))]
    known = {"numaid": str(-1 if numa.numa is None else numa.numa), **numa.facts}
    if words:
        known.setdefault("affinity", ",".join(words))
    if host:
        known["host_hash"] = host
    element = ElementTree.Element("cpu", _ordered(known, _CPU))
    for child in topology.children(numa.id):
        _write_below(topology, child, element)
    return element


def _write_below(topology: Topology, node: Node, above: ElementTree.Element) -> None:
    if node.kind is Kind.BRIDGE:
        for child in topology.children(node.id):
            _write_below(topology, child, above)
    elif node.kind is Kind.NIC and not node.address:
        _write_ports(topology, node, ElementTree.SubElement(above, "nic", dict(node.facts)))
    elif node.kind in (Kind.PCI, Kind.GPU, Kind.NIC):
        own = {key: value for key, value in node.facts.items() if "." not in key}
        inner = {key[4:]: value for key, value in node.facts.items() if key.startswith("gpu.")}
        if not inner and not (node.kind is Kind.NIC and topology.children(node.id)):  # else what it holds tells
            classes = {Kind.PCI: "0x060400", Kind.GPU: "0x030200", Kind.NIC: "0x020000"}
            own.setdefault("class", classes[node.kind])
        link = next((k for k in topology.links_of(node.id) if k.other(node.id) == node.parent), None)
        if "link_speed" not in own:
            own.update(_speed_and_width(link))
        pci = ElementTree.SubElement(above, "pci", _ordered({"busid": node.address, **own}, _PCI))
        if node.kind is Kind.GPU and (inner or node.index is not None):
            _write_gpu(topology, node, inner, pci)
        if node.kind is Kind.NIC and topology.children(node.id):
            _write_ports(topology, node, ElementTree.SubElement(pci, "nic"))
        for child in topology.children(node.id):
            if child.kind is not Kind.PORT:
                _write_below(topology, child, pci)


def _speed_and_width(link: Link | None) -> dict[str, str]:
    """Width and speed of a link that only its bandwidth tells: the slowest PCI Express that carries it in 16 lanes."""
    if link is None or link.bandwidth is None:
        return {"link_speed": "", "link_width": "0"}
    for text in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0"):
        if pcie_bandwidth(float(text) * 1e9, 16) >= link.bandwidth * 0.999:
            break
    return {"link_speed": f"{text} GT/s PCIe", "link_width": "16"}


def _write_gpu(topology: Topology, node: Node, inner: dict[str, str], pci: ElementTree.Element) -> None:
    if node.index is not None:
        inner["dev"] = str(node.index)
    if "rank" not in inner and node.id in topology.ranks:
        inner["rank"] = str(topology.ranks.index(node.id))
    gpu = ElementTree.SubElement(pci, "gpu", _ordered(inner, _GPU))
    for link in topology.links_of(node.id):
        if link.kind is LinkKind.C2C:
            ElementTree.SubElement(gpu, "c2c", {**link.facts, "count": str(link.count)})
        elif link.kind in (LinkKind.NVLINK, LinkKind.XGMI):
            target = topology[link.other(node.id)]
            switch = target.kind is Kind.NVSWITCH
            own = {"target": target.address or "fffffff:ff:ff.0", "count": str(link.count)}
            own["tclass"] = link.facts.get("tclass", _SWITCH_CLASS if switch else target.facts.get("class", "0x030200"))
            ElementTree.SubElement(gpu, str(link.kind), own)


def _write_ports(topology: Topology, nic: Node, element: ElementTree.Element) -> None:
    for port in topology.children(nic.id):
        if port.kind is not Kind.PORT:
            continue
        own = {"name": port.name, **port.facts}
        if port.index is not None:
            own["dev"] = str(port.index)
        if port.speed is not None:
            own["speed"] = str(round(port.speed / 125e3))
        ElementTree.SubElement(element, "net", _ordered(own, _NET))


def _ordered(facts: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {key: facts[key] for key in (*(n for n in names if n in facts), *(k for k in facts if k not in names))}
