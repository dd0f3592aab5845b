"""This host's topology, from sysfs and nvidia-smi.

Everything is read below a root, so a copy of another machine's ``/sys`` can be read as well. What the system does not
say stays unknown: a device whose ``numa_node`` is -1 is on no NUMA node that is known, not on node 0.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from ringleader.errors import InvalidArgument
from ringleader.topology.matrix import Matrix, parse_ranges, read_matrix
from ringleader.topology.model import Kind, LinkKind, Node, Topology, lane_bandwidth, pcie_bandwidth

__all__ = ["LIMIT", "detect"]

LIMIT = 5.0
"""Seconds that a detection takes at most; what was not reached by then is missing, and a note says so."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_BRIDGE, _NETWORK, _DISPLAY, _ACCELERATOR = "0604", "02", "03", "1200"
_GPU_VENDORS = {"0x10de", "0x1002"}  # others' display controllers draw screens
_MAX_FILE = 1 << 16
_MAX_DEVICES = 4096


def detect(root: str | os.PathLike[str] = "/", limit: float = LIMIT) -> Topology:
    """Find this host's NUMA nodes, PCI devices, GPUs, network adapters and what limits this process.

    Parameters
    ----------
    root
        Where ``sys`` lies: "/" for this host, another directory for a copy. nvidia-smi is only asked for "/".
    limit
        Seconds; see `LIMIT`.

    Returns
    -------
    Topology
        One host. Ranks are on its GPUs, else on its NUMA nodes. The host's ``facts`` hold ``cpus`` (those that this
        process may use), ``cpu_quota`` (cores' worth of time) and ``memory_limit`` (bytes) where a control group sets
        them.

    Raises
    ------
    InvalidArgument
        There is no ``sys`` below `root`.

    Examples
    --------
    >>> here = detect()
    >>> len(here.of(Kind.HOST)), len(here.of(Kind.NUMA)) >= 1, len(here.ranks) >= 1
    (1, True, True)
    """
    return _Detection(Path(root), time.monotonic() + limit).run()


class _Detection:
    def __init__(self, root: Path, deadline: float) -> None:
        self.root = root
        self.sys = root / "sys"
        self.deadline = deadline
        self.live = root.resolve() == Path("/")
        self.topology = Topology("this host" if self.live else f"host in {root}")
        self.numas: dict[int | None, str] = {}

    def run(self) -> Topology:
        if not self.sys.is_dir():
            raise InvalidArgument(
                f"there is no directory {self.sys}; expected the root of a system, or a copy of its /sys"
            )
        t = self.topology
        try:
            t.add("host", Kind.HOST, name=self._hostname(), facts=self._limits())
        except _Late:
            t.add("host", Kind.HOST, name="host")
        for what, step in (
            ("NUMA nodes", self._numa_nodes), ("PCI devices", self._pci), ("network ports", self._ports),
            ("GPU links", self._nvidia_smi),
        ):  # fmt: skip
            if time.monotonic() > self.deadline:
                t.notes.append(f"{what}: not looked for, the time was up")
                continue
            try:
                step()
            except (OSError, _Late) as error:
                t.notes.append(f"{what}: not all found ({error})")
        if not self.numas:
            t.notes.append("NUMA nodes: the system tells of none")
            self._numa(None)
        gpus = sorted(t.of(Kind.GPU), key=lambda node: (node.index is None, node.index or 0, node.address))
        numas = t.of(Kind.NUMA)
        return t.place(node.id for node in gpus or [node for node in numas if node.cpus] or numas)

    # --------------------------------------------------------------------------------------------------------- reading

    def _read(self, path: Path) -> str:
        """A file of sysfs, empty if it cannot be read: many attributes of idle devices cannot."""
        if time.monotonic() > self.deadline:
            raise _Late
        try:
            with path.open("rb") as file:
                return file.read(_MAX_FILE).decode(errors="replace").strip()
        except OSError:
            return ""

    def _integer(self, path: Path) -> int | None:
        text = self._read(path)
        try:
            value = int(text, 0)
        except ValueError:
            return None
        return value if value >= 0 else None

    def _listed(self, path: Path) -> list[Path]:
        try:
            return sorted(path.iterdir())[:_MAX_DEVICES]
        except OSError:
            return []

    def _hostname(self) -> str:
        return os.uname().nodename if self.live else self._read(self.root / "etc/hostname") or "host"

    def _limits(self) -> dict[str, str]:
        facts: dict[str, str] = {}
        if self.live:
            with contextlib.suppress(OSError):
                facts["cpus"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        group = self.sys / "fs/cgroup"
        quota = self._read(group / "cpu.max").split()
        if len(quota) != 2:  # version 1
            quota = [self._read(group / "cpu/cpu.cfs_quota_us"), self._read(group / "cpu/cpu.cfs_period_us")]
        with contextlib.suppress(ValueError, ZeroDivisionError):
            if float(quota[0]) > 0:
                facts["cpu_quota"] = f"{float(quota[0]) / float(quota[1]):g}"
        memory = self._read(group / "memory.max") or self._read(group / "memory/memory.limit_in_bytes")
        if memory.isdigit() and int(memory) < 1 << 62:  # version 1 says "no limit" by a very large number
            facts["memory_limit"] = memory
        return facts

    # --------------------------------------------------------------------------------------------------------- devices

    def _numa(self, number: int | None, cpus: tuple[int, ...] = ()) -> str:
        if number not in self.numas:
            first = next(iter(self.numas.values()), None)
            id = "host/numa?" if number is None else f"host/numa{number}"
            self.numas[number] = self.topology.add(
                id, Kind.NUMA, parent="host", numa=number, index=len(self.numas), cpus=cpus
            )
            if first is not None and number is not None:
                self.topology.connect(first, id, LinkKind.SMP)
        return self.numas[number]

    def _numa_nodes(self) -> None:
        found = [(int(m[1]), path) for path in self._listed(self.sys / "devices/system/node")
                 if (m := re.fullmatch(r"node(\d{1,5})", path.name))]  # fmt: skip
        for number, path in sorted(found):
            self._numa(number, parse_ranges(self._read(path / "cpulist")))
        if not found:
            online = parse_ranges(self._read(self.sys / "devices/system/cpu/online"))
            if online:  # a kernel without NUMA: one memory for all
                self._numa(0, online)

    def _pci(self) -> None:
        places: dict[str, str] = {}  # PCI address to node
        for entry in self._listed(self.sys / "bus/pci/devices"):
            code = self._read(entry / "class")[2:].zfill(6)
            vendor = self._read(entry / "vendor")
            gpu = code.startswith((_DISPLAY, _ACCELERATOR)) and vendor in _GPU_VENDORS
            if gpu or code.startswith(_NETWORK):
                self._device(entry, Kind.GPU if gpu else Kind.NIC, places)
        for index, node in enumerate(sorted(self.topology.of(Kind.GPU), key=lambda n: n.address)):
            self.topology.update(node.id, index=index, name=f"GPU{index}")

    def _device(self, entry: Path, kind: Kind, places: dict[str, str]) -> None:
        """Add a device below the host bridge and the switches that its path shows."""
        try:
            parts = entry.resolve(strict=True).parts
        except OSError:
            parts = (entry.name,)
        chain = [part for part in parts if _ADDRESS.fullmatch(part.lower())] or [entry.name]
        root = next((part for part in parts if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
        numa = self._numa(self._integer(entry / "numa_node"))
        parent = numa
        if root is not None:
            parent = places.get(root) or self.topology.add(f"host/{root}", Kind.BRIDGE, parent=numa, name=root)
            places[root] = parent
            if self.topology[parent].parent != numa:
                # One host bridge, devices that name different nodes (or none): it stays where it was first seen.
                numa = self.topology[parent].parent or numa
        # Above a device: the root port, part of the host bridge, then for each switch its port upwards and downwards.
        for switch in chain[1:-1:2]:
            if switch not in places:
                path = self.sys / "bus/pci/devices" / switch
                places[switch] = self._add(path, Kind.PCI, switch, parent)
            parent = places[switch]
        places[chain[-1]] = self._add(entry, kind, chain[-1], parent)

    def _add(self, path: Path, kind: Kind, address: str, parent: str) -> str:
        names = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
        facts = {name: text for name in names if (text := self._read(path / name))}
        speed, width = self._read(path / "current_link_speed"), self._integer(path / "current_link_width")
        rate = None
        match = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", speed)
        if match and width and float(match[1]) > 0:
            rate = pcie_bandwidth(float(match[1]) * 1e9, width)
            facts |= {"link_speed": speed, "link_width": str(width)}
        id = f"host/{address.lower()}"
        return self.topology.add(id, kind, parent=parent, address=address, bandwidth=rate, facts=facts)

    # --------------------------------------------------------------------------------------------------------- network

    def _ports(self) -> None:
        """InfiniBand's and RoCE's ports under their own names, Ethernet's under their interfaces'."""
        by_device: dict[str, list[str]] = {}
        for device in self._listed(self.sys / "class/infiniband"):
            nic = self._nic_of(device)
            for port in self._listed(device / "ports"):
                rate = re.match(r"(\d+(?:\.\d+)?)\s*Gb/sec", self._read(port / "rate"))
                active = "ACTIVE" in self._read(port / "state")
                facts = {"link_layer": self._read(port / "link_layer"), "state": self._read(port / "state")}
                name = device.name if port.name == "1" else f"{device.name}:{port.name}"
                speed = float(rate[1]) * 125e6 if rate and active and float(rate[1]) > 0 else None
                self._port(nic, name, speed, {key: value for key, value in facts.items() if value})
            if nic is not None:
                by_device.setdefault(nic, []).append(device.name)
        for interface in self._listed(self.sys / "class/net"):
            nic = self._nic_of(interface)
            if nic is None or nic in by_device:  # virtual, or told above
                continue
            megabits = self._integer(interface / "speed")
            facts = {key: text for key in ("operstate", "mtu") if (text := self._read(interface / key))}
            self._port(nic, interface.name, megabits * 125e3 if megabits else None, facts)

    def _nic_of(self, device: Path) -> str | None:
        """The adapter that an interface belongs to: the PCI device it hangs on, if there is one."""
        try:
            parts = (device / "device").resolve(strict=True).parts
        except OSError:
            return None
        ids = [f"host/{part.lower()}" for part in parts if _ADDRESS.fullmatch(part.lower())]
        return next((id for id in reversed(ids) if id in self.topology), None)

    def _port(self, nic: str | None, name: str, speed: float | None, facts: dict[str, str]) -> None:
        if nic is None:
            return
        id = f"{nic}/{name}"
        if id not in self.topology:
            index = len(self.topology.of(Kind.PORT))
            self.topology.add(
                id, Kind.PORT, parent=nic, name=name, index=index, speed=speed, bandwidth=speed, facts=facts
            )

    # ------------------------------------------------------------------------------------------------------ nvidia-smi

    def _nvidia_smi(self) -> None:
        gpus = [node for node in self.topology.of(Kind.GPU) if node.facts.get("vendor") == "0x10de"]
        if not self.live or not gpus:
            return
        program = shutil.which("nvidia-smi")
        if program is None:
            self.topology.notes.append("GPU links: nvidia-smi is not there, so NVLink is unknown")
            return
        try:
            listed = self._asked(program, "--query-gpu=index,pci.bus_id,compute_cap", "--format=csv,noheader")
            matrix = read_matrix(self._asked(program, "topo", "-m"))
        except (OSError, subprocess.SubprocessError, InvalidArgument) as error:
            self.topology.notes.append(f"GPU links: unknown, nvidia-smi did not say ({error})")
            return
        add_nvlinks(self.topology, listed, matrix)

    def _asked(self, *command: str) -> str:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _Late
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        return answer.stdout[: 4 << 20].decode(errors="replace")


class _Late(Exception):
    def __str__(self) -> str:
        return "the time was up"


def add_nvlinks(topology: Topology, listed: str, matrix: Matrix) -> None:
    """Add what nvidia-smi says of the GPUs to a topology that has them: numbers, compute capabilities, NVLinks.

    Parameters
    ----------
    listed
        Lines ``index, PCI address, compute capability``.
    matrix
        ``nvidia-smi topo -m`` of the same GPUs.
    """
    by_address = {_short(node.address): node.id for node in topology.of(Kind.GPU)}
    ids: dict[str, str] = {}
    capability: dict[str, str] = {}
    for line in listed.splitlines():
        words = [word.strip() for word in line.split(",")]
        id = by_address.get(_short(words[1])) if len(words) >= 2 else None
        if id is not None and words[0].isdigit():
            ids[f"GPU{words[0]}"] = id
            topology.update(id, index=int(words[0]), name=f"GPU{words[0]}")
            capability[id] = words[2].replace(".", "") if len(words) > 2 else ""
    told = matrix.topology()
    for link in told.links:
        if link.kind is not LinkKind.NVLINK:
            continue
        ends = [ids.get(end.removeprefix("host0/")) for end in (link.a, link.b)]
        if told[link.b].kind is Kind.NVSWITCH:
            ends[1] = "host/nvswitch"
            if ends[1] not in topology:
                topology.add("host/nvswitch", Kind.NVSWITCH, parent="host", name="NVSwitch")
        if ends[0] is None or ends[1] is None:
            topology.notes.append(f"{link.a} and {link.b} are joined by NVLink, but have no PCI device here")
            continue
        rate = lane_bandwidth(Node("", Kind.GPU, facts={"gpu.sm": capability.get(ends[0], "")}), LinkKind.NVLINK)
        both = None if rate is None else rate * link.count
        topology.connect(ends[0], ends[1], LinkKind.NVLINK, bandwidth=both, count=link.count)


def _short(address: str) -> str:
    """A PCI address without leading zeros of its domain: nvidia-smi writes eight digits, sysfs four."""
    return address.lower().lstrip("0").zfill(len("0:00:00.0"))
