"""The matrix that ``nvidia-smi topo -m`` prints, read and written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.topology.model import Kind, LinkKind, PathClass, Topology

__all__ = ["Matrix", "matrix_of", "read_matrix"]

MAX_TEXT = 4 << 20
_MAX_DEVICES = 512
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_CELL = re.compile(r"X|NV(\d+)|PIX|PXB|PHB|NODE|SYS|SOC")
_DEVICE = re.compile(r"(?:GPU|NIC|mlx\d+_|hfi\d+_|bnxt_re|irdma|efa_|ib)\d+|[A-Za-z][\w.-]*\d")
_ALIAS = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")

_LEGEND = (
    ("X", "Self"),
    ("SYS", "Across the interconnect between NUMA nodes"),
    ("NODE", "Across PCI host bridges of one NUMA node"),
    ("PHB", "Across one PCI host bridge"),
    ("PXB", "Across several PCI switches, no host bridge"),
    ("PIX", "Across one PCI switch at most"),
    ("NV#", "Across # bonded NVLinks"),
)


@dataclass(frozen=True)
class Matrix:
    """A matrix as it was printed.

    Attributes
    ----------
    devices
        Labels in the order of the columns.
    cells
        ``cells[row, column]`` is ``X``, ``NV18``, ``PIX`` ...; pairs that were not printed are absent. SOC, an older
        name of SYS, stays as it is.
    affinity
        Per device and heading (``CPU Affinity``, ``NUMA Affinity``, ``GPU NUMA ID``) what was printed.
    aliases
        ``NIC0`` to ``mlx5_0``, from the legend.
    """

    devices: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    affinity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def cell(self, a: str, b: str) -> str | None:
        """What was printed for a pair, in either direction; None if nothing was."""
        return self.cells.get((a, b), self.cells.get((b, a)))

    @property
    def gpus(self) -> tuple[str, ...]:
        """Labels of the GPUs."""
        return tuple(device for device in self.devices if device.startswith("GPU"))

    def text(self) -> str:
        """The matrix in nvidia-smi's layout, columns separated by tabs."""
        headings = [h for h in _HEADINGS if any(h in told for told in self.affinity.values())]
        lines = ["\t".join(["", *self.devices, *headings])]
        for row in self.devices:
            told = self.affinity.get(row, {})
            cells = [self.cells.get((row, column), "") for column in self.devices]
            shown = [" X " if cell == "X" else cell for cell in cells]
            lines.append("\t".join([row, *shown, *(told.get(h, "") for h in headings)]))
        lines += ["", "Legend:", "", *(f"  {name:<4} = {meaning}" for name, meaning in _LEGEND)]
        if self.aliases:
            lines += ["", "NIC Legend:", "", *(f"  {label}: {name}" for label, name in self.aliases.items())]
        return "\n".join(lines) + "\n"

    def topology(self, name: str = "nvidia-smi topo -m") -> Topology:
        """The host that such a matrix describes.

        Switches and host bridges are those that the classes need. What no cell tells (how GPUs that are joined by
        NVLink lie on the PCI bus, the NUMA node of an adapter that is far from every GPU) stays unknown. Ranks are
        placed on the GPUs in order.
        """
        return _Builder(self, name).build()


def read_matrix(text: str, source: str = "nvidia-smi topo -m") -> Matrix:
    """Read what ``nvidia-smi topo -m`` printed, of any release.

    Raises
    ------
    InvalidArgument
        There is no such matrix in the text, or a cell in it is none that is known.

    Examples
    --------
    >>> m = read_matrix('''
    ...         GPU0    GPU1    mlx5_0  CPU Affinity
    ... GPU0     X      NV4     PIX     0-11
    ... GPU1    NV4      X      SYS     12-23
    ... mlx5_0  PIX     SYS      X
    ... ''')
    >>> m.cell("GPU1", "mlx5_0"), m.affinity["GPU1"]
    ('SYS', {'CPU Affinity': '12-23'})
    """
    if len(text) > MAX_TEXT:
        raise InvalidArgument(f"{source} has more than {MAX_TEXT >> 20} MiB; the matrix of a host has some kilobytes")
    lines = _ANSI.sub("", text).replace("\r", "").splitlines()
    start, devices, headings = _header(lines, source)
    known = set(devices)
    cells: dict[tuple[str, str], str] = {}
    affinity: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if not words or words[0] not in known:
            if words and words[0].rstrip(":") in ("Legend", "NIC"):
                break
            continue
        row, rest = words[0], words[1:]
        count = 0
        for column, word in zip(devices, rest, strict=False):
            if not _CELL.fullmatch(word):
                if _affinity_like(word):
                    break  # a short row
                valid = ("X", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS")
                where = f"{source}, line {number}: row {row}, column {column}: "
                raise InvalidArgument(where + unknown("connection", word, valid))
            cells[row, column] = word
            count += 1
        told = dict(zip(headings, rest[count:], strict=False))
        if told:
            affinity[row] = told
    if not cells:
        raise InvalidArgument(f"{source} has a heading with {', '.join(devices[:4])}, but no row of any of them")
    aliases = {m[1]: m[2] for m in map(_ALIAS.fullmatch, lines[start:]) if m and m[1] in known}
    return Matrix(tuple(devices), cells, affinity, aliases)


def _affinity_like(word: str) -> bool:
    return re.fullmatch(r"N/A|[\d,-]+", word) is not None


def _header(lines: Sequence[str], source: str) -> tuple[int, list[str], list[str]]:
    for number, line in enumerate(lines):
        rest, headings = line, []
        for heading in _HEADINGS:
            rest, found = re.subn(heading.replace(" ", r"\s+"), " ", rest)
            headings += [heading] * (found > 0)
        words = rest.split()
        if words and words[0].startswith("GPU") and all(_DEVICE.fullmatch(word) for word in words):
            if len(words) > _MAX_DEVICES or len(set(words)) != len(words):
                raise InvalidArgument(
                    f"{source}, line {number + 1}: {len(words)} columns, {len(set(words))} of them different; expected "
                    f"up to {_MAX_DEVICES}, each named once"
                )
            return number, words, headings
    raise InvalidArgument(f"{source} is no matrix of nvidia-smi topo -m; expected a line of columns GPU0, GPU1, ...")


def matrix_of(topology: Topology, host: str | None = None) -> Matrix:
    """The matrix of a host's GPUs and network adapters.

    Parameters
    ----------
    host
        Id of the host; None for the first one.

    Raises
    ------
    InvalidArgument
        The topology has no host, or this one is not there.
    """
    hosts = topology.of(Kind.HOST)
    if not hosts:
        raise InvalidArgument(f"topology {topology.name!r} has no host, so no matrix of one")
    inside = hosts[0].id if host is None else topology[host].id
    gpus = topology.of(Kind.GPU, inside)
    nics = topology.of(Kind.NIC, inside)
    labels = {node.id: f"GPU{i if node.index is None else node.index}" for i, node in enumerate(gpus)}
    if len(set(labels.values())) != len(gpus):
        labels = {node.id: f"GPU{i}" for i, node in enumerate(gpus)}
    gpus.sort(key=lambda node: int(labels[node.id][3:]))
    labels |= {node.id: f"NIC{i}" for i, node in enumerate(nics)}
    cells, affinity = {}, {}
    for a in (*gpus, *nics):
        for b in (*gpus, *nics):
            path, links = topology.path_class(a.id, b.id)
            text = f"NV{links}" if path is PathClass.NV else path.name
            cells[labels[a.id], labels[b.id]] = "SYS" if path is PathClass.UNKNOWN else text
    for gpu in gpus:
        numa = topology.holder(gpu.id, Kind.NUMA)
        if numa is not None:
            known = {
                "CPU Affinity": number_ranges(numa.cpus),
                "NUMA Affinity": "N/A" if numa.numa is None else str(numa.numa),
            }
            affinity[labels[gpu.id]] = {key: value or "N/A" for key, value in known.items()}
    ports = {node.id: [p.name for p in topology.children(node.id) if p.name] for node in nics}
    aliases = {labels[node.id]: (node.name or next(iter(ports[node.id]), "")) for node in nics}
    shown = {label: name for label, name in aliases.items() if name}
    return Matrix(tuple(labels[node.id] for node in (*gpus, *nics)), cells, affinity, shown)


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_ranges(text: str) -> tuple[int, ...]:
    """The numbers of ``0-3,8``; none if it is of another form.

    Examples
    --------
    >>> parse_ranges("0-3,8"), parse_ranges("N/A")
    ((0, 1, 2, 3, 8), ())
    """
    numbers: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            return ()
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


class _Builder:
    """From classes of pairs to a tree: devices that are near each other under one node, level by level."""

    _LEVELS = (PathClass.PIX, PathClass.PXB, PathClass.PHB, PathClass.NODE)

    def __init__(self, matrix: Matrix, name: str) -> None:
        self.matrix = matrix
        self.topology = Topology(name)
        self.number = 0

    def build(self) -> Topology:
        host = self.topology.add("host0", Kind.HOST, name="host0", index=0)
        parts = self._numa_parts()
        first = None
        for position, (told, members) in enumerate(parts):
            numbers = parse_ranges(told.get("NUMA Affinity", ""))
            numa = self.topology.add(
                f"host0/cpu{position}", Kind.NUMA, parent=host, index=position, numa=numbers[0] if numbers else None,
                cpus=parse_ranges(told.get("CPU Affinity", "")),
            )  # fmt: skip
            first = first or numa
            if numa != first:
                self.topology.connect(first, numa, LinkKind.SMP)
            for group in self._clusters(members, PathClass.PHB):
                known = any(self._class(a, b) == PathClass.NODE for a in members for b in members)
                bridge = self._under(numa, Kind.BRIDGE) if known else numa
                self._pci(group, bridge)
        self._nvlinks(host)
        self.topology.place(f"host0/{gpu}" for gpu in self.matrix.gpus)
        return self.topology

    def _class(self, a: str, b: str) -> PathClass | None:
        cell = self.matrix.cell(a, b)
        if cell is None or cell == "X" or cell.startswith("NV"):
            return None
        return PathClass.SYS if cell == "SOC" else PathClass[cell]

    def _clusters(self, members: Sequence[str], most: PathClass) -> list[list[str]]:
        """Members joined by pairs of at most this class."""
        groups: list[list[str]] = []
        for member in members:
            near = [g for g in groups if any((self._class(member, o) or PathClass.SYS) <= most for o in g)]
            groups = [g for g in groups if g not in near] + [[*(m for g in near for m in g), member]]
        order = {member: position for position, member in enumerate(members)}
        return sorted((sorted(g, key=order.__getitem__) for g in groups), key=lambda g: order[g[0]])

    def _numa_parts(self) -> list[tuple[Mapping[str, str], list[str]]]:
        """What lies on one NUMA node: GPUs by what they say, the rest by who is near."""
        parts: dict[str, tuple[Mapping[str, str], list[str]]] = {}
        for group in self._clusters(self.matrix.devices, PathClass.NODE):
            told = next((self.matrix.affinity[d] for d in group if d in self.matrix.affinity), {})
            said = [told[heading] for heading in _HEADINGS[:2] if heading in told]
            key = "|".join(said) or f"unknown {group[0]}"
            parts.setdefault(key, (told, []))[1].extend(group)
        return list(parts.values())

    def _under(self, parent: str, kind: Kind) -> str:
        self.number += 1
        return self.topology.add(f"host0/{kind}{self.number}", kind, parent=parent)

    def _pci(self, group: Sequence[str], parent: str) -> None:
        for wide in self._clusters(group, PathClass.PXB):
            narrow = self._clusters(wide, PathClass.PIX)
            top = self._under(parent, Kind.PCI) if len(narrow) > 1 else parent
            for devices in narrow:
                shared = len(devices) > 1 or len(narrow) > 1
                switch = self._under(top, Kind.PCI) if shared else top
                for device in devices:
                    self._device(device, switch)

    def _device(self, device: str, parent: str) -> None:
        gpu = device.startswith("GPU")
        name = device if gpu else self.matrix.aliases.get(device, device)
        digits = re.search(r"\d+$", device)
        self.topology.add(
            f"host0/{device}", Kind.GPU if gpu else Kind.NIC, parent=parent, name=name,
            index=int(digits[0]) if digits else None,
        )  # fmt: skip

    def _nvlinks(self, host: str) -> None:
        gpus = self.matrix.gpus
        counts = {
            (a, b): int(cell[2:])
            for i, a in enumerate(gpus)
            for b in gpus[i + 1 :]
            if (cell := self.matrix.cell(a, b)) is not None and cell.startswith("NV")
        }
        number = set(counts.values())
        # All joined to all by the same number, more than a GPU has for each of them: then switches are in between.
        if len(gpus) > 2 and len(counts) == len(gpus) * (len(gpus) - 1) // 2 and len(number) == 1 and min(number) > 6:
            switch = self.topology.add("host0/nvswitch", Kind.NVSWITCH, parent=host, name="NVSwitch")
            for gpu in gpus:
                self.topology.connect(f"host0/{gpu}", switch, LinkKind.NVLINK, count=min(number))
            return
        for (a, b), count in counts.items():
            self.topology.connect(f"host0/{a}", f"host0/{b}", LinkKind.NVLINK, count=count)
