"""The topology model, its readers, writers, generators, drawings, and the detection of a host from a copy of /sys."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.topology import (
    Kind,
    LinkKind,
    Matrix,
    PathClass,
    Topology,
    detect,
    draw,
    generate,
    load_xml,
    matrix_of,
    pcie_bandwidth,
    read_matrix,
    read_xml,
    write_xml,
)  # fmt: skip
from ringleader.topology.detect import add_nvlinks

REAL = Path(__file__).parents[3] / "shared/realdata"
NCCL_FILES = sorted((REAL / "nccl-topo").glob("*.xml"))
TOPOLOGIES = [path for path in NCCL_FILES if ".GRAPH." not in path.name]
MATRICES = sorted((REAL / "nvidia-smi-topo-m").glob("*.txt"))
needs_files = pytest.mark.skipif(
    not NCCL_FILES, reason="the collection of real topology files is not beside the project"
)


def described(topology: Topology) -> object:
    """All that two equal topologies share."""
    links = [
        (*sorted((k.a, k.b)), k.kind, k.bandwidth, k.count, tuple(sorted(k.facts.items()))) for k in topology.links
    ]
    return [(node.id, node) for node in topology], sorted(links, key=repr), topology.ranks


def canonical(text: str) -> str:
    return ElementTree.canonicalize(text, strip_text=True, with_comments=True)


# ----------------------------------------------------------------------------------------------------------- NCCL's XML


@needs_files
@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_real_files_are_written_as_they_were_read(path: Path) -> None:
    topology = load_xml(path)
    assert canonical(write_xml(topology)) == canonical(path.read_text())
    assert len(topology.of(Kind.HOST)) == 1
    assert len(topology.of(Kind.GPU)) >= 1


@needs_files
@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_the_model_holds_all_of_real_files(path: Path) -> None:
    """Written anew, from nodes and links alone, a file gives the same topology."""
    topology = load_xml(path)
    before = described(topology)
    del topology.__dict__["source"]  # as a change would
    assert described(read_xml(write_xml(topology), path.name)) == before


@needs_files
def test_a_graph_file_is_refused_by_name() -> None:
    path = next(path for path in NCCL_FILES if ".GRAPH." in path.name)
    with pytest.raises(InvalidArgument, match=r"azure.*is a graph file of NCCL"):
        load_xml(path)


def cpu(inner: str, attributes: str = 'numaid="0"') -> str:
    return f'<system version="1"><cpu {attributes}>{inner}</cpu></system>'


GPU = (
    '<pci busid="0:1:{0}.0" class="0x030200" link_speed="{1}" link_width="16">'
    '<gpu dev="{0}" sm="90" rank="{0}">{2}</gpu></pci>'
)


def test_numa_minus_one_is_unknown() -> None:
    topology = read_xml(cpu(GPU.format(0, "", ""), 'numaid="-1"'))
    assert [node.numa for node in topology.of(Kind.NUMA)] == [None]
    other = topology.add("x", Kind.NUMA, parent="host0", numa=0)
    topology.add("y", Kind.GPU, parent=other)
    assert topology.distance("y", topology.ranks[0]).path is PathClass.UNKNOWN


def test_no_speed_is_unknown_bandwidth() -> None:
    topology = read_xml(cpu(GPU.format(0, "", "") + GPU.format(1, "Unknown speed", "")))
    assert topology.distance(*topology.ranks).bandwidth is None


@pytest.mark.parametrize(
    ("text", "expected"), [("2.5", 4.0), ("8", 15.754), ("16.0", 31.508), ("32.0", 63.015), ("64.0", 121.0)]
)
def test_pcie_bandwidth(text: str, expected: float) -> None:
    topology = read_xml(cpu(GPU.format(0, f"{text} GT/s PCIe", "")))
    rate = topology.distance(topology.ranks[0], "host0/cpu0").bandwidth
    assert rate == pcie_bandwidth(float(text) * 1e9, 16) == pytest.approx(expected * 1e9, rel=1e-3)


def test_several_hosts() -> None:
    two = "".join(
        f'<cpu numaid="0" host_hash="0x{h}">' + GPU.format(h, "16.0 GT/s PCIe", "") + "</cpu>" for h in (0, 1)
    )
    topology = read_xml(f'<system version="1">{two}</system>')
    assert len(topology.of(Kind.HOST)) == 2
    with pytest.raises(InvalidArgument, match="nothing connects"):
        topology.route(*topology.ranks)
    topology.__dict__.pop("source")
    assert described(read_xml(write_xml(topology))) == described(read_xml(f'<system version="1">{two}</system>'))


def test_nvswitch_and_direct_links() -> None:
    behind = '<nvlink target="ffffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    topology = read_xml(cpu(GPU.format(0, "", behind) + GPU.format(1, "", behind)))
    distance = topology.distance(*topology.ranks)
    assert (str(distance), distance.bandwidth, distance.hops) == ("NV18", 450e9, 2)
    direct = '<xgmi target="0:1:{}.0" count="2" tclass="0x038000"/>'
    topology = read_xml(cpu(GPU.format(0, "", direct.format(1)) + GPU.format(1, "", direct.format(0))))
    assert [(k.kind, k.count) for k in topology.links if k.kind is LinkKind.XGMI] == [(LinkKind.XGMI, 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not well-formed"),
        ("<system", "not well-formed"),
        ("<algo name='x'/>", "outermost element is <algo>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system>&b;</system>", "entities or a document type"),
        (cpu("", 'numaid="zero"'), r'<cpu numaid="zero">: numaid="zero" is not a whole number'),
        (cpu("", 'affinity="xyz"'), "no CPU mask"),
        (cpu(GPU.format(0, "fast", "")), 'link_speed="fast"'),
        (cpu(GPU.format(0, "", "") * 2), "same address"),
        (cpu("".join(f"<pci busid='{i}'>" for i in range(70)) + "</pci>" * 70), "within each other"),
    ],
)
def test_malformed_files(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        read_xml(text, "some.xml")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    seed = cpu(
        GPU.format(0, "16.0 GT/s PCIe", '<nvlink target="0:1:1.0" count="4"/>')
        + "<nic><net name='a' dev='0' speed='1000'/></nic>"
    )
    text = bytearray(seed.encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = data.draw(st.integers(at, min(at + 8, len(text))))
        text[at:end] = data.draw(st.binary(max_size=6) | st.sampled_from([b"-1", b"<pci>", b'"', b"9" * 30, b"</cpu>"]))
        if not text:
            break
    try:
        topology = read_xml(bytes(text))
    except InvalidArgument:
        return
    draw.draw_tree(topology)
    write_xml(topology)


# ----------------------------------------------------------------------------------------------------------- the matrix


@pytest.mark.skipif(not MATRICES, reason="the collection of real matrices is not beside the project")
@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.stem)
def test_real_matrices(path: Path) -> None:
    matrix = read_matrix(path.read_text(), path.name)
    assert read_matrix(matrix.text()) == matrix
    topology = matrix.topology()
    made = matrix_of(topology)
    ids = [n.id for n in sorted(topology.of(Kind.GPU), key=lambda n: n.index or 0)]
    ids += [n.id for n in topology.of(Kind.NIC)]
    label = {id.rpartition("/")[2]: new for id, new in zip(ids, made.devices, strict=True)}
    for (a, b), cell in matrix.cells.items():
        assert made.cell(label[a], label[b]) == cell.replace("SOC", "SYS"), (a, b)


def test_matrix_details() -> None:
    path = "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    text = (
        f"{path}\nGPU0\t X \tNV18\tPIX\t0-3,8\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t4-7\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \n\n"
    )
    matrix = read_matrix(text + "NIC Legend:\n\n  NIC0: mlx5_0\n")
    assert matrix.affinity["GPU0"] == {"CPU Affinity": "0-3,8", "NUMA Affinity": "0", "GPU NUMA ID": "N/A"}
    assert matrix.aliases == {"NIC0": "mlx5_0"}
    topology = matrix.topology()
    assert topology.of(Kind.NUMA)[0].cpus == (0, 1, 2, 3, 8)
    assert [n.name for n in topology.of(Kind.NIC)] == ["mlx5_0"]
    assert str(topology.distance("host0/GPU0", "host0/NIC0")) == "PIX"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no matrix"),
        ("nvidia-smi: command not found", "no matrix"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNVX\nGPU1\tNV4\tX\n", r"line 2: row GPU0, column GPU1: unknown connection 'NVX'"),
        ("\tGPU0\tGPU0\nGPU0\tX\tX\n", "named once"),
        ("\tGPU0\tGPU1\n", "no row"),
    ],
)
def test_malformed_matrices(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        read_matrix(text, "m.txt")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=" \t\nGPUNICXVSYSB019,-:/A", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        matrix = read_matrix(text)
    except InvalidArgument:
        return
    matrix_of(matrix.topology())


# ----------------------------------------------------------------------------------------------------------- generators


def test_networks() -> None:
    host = generate.cpu_host(sockets=1)
    flat = generate.fat_tree(host, 8, radix=4)
    thin = generate.fat_tree(host, 8, radix=4, oversubscription=4)
    far = [t.distance(t.ranks[0], t.ranks[-1]) for t in (flat, thin)]
    assert far[0].bandwidth == 4 * (far[1].bandwidth or 0)
    assert flat.distance(flat.ranks[0], flat.ranks[1]).hops < far[0].hops
    rails = generate.rail_optimized(generate.hgx_h100(), 4)
    assert len(rails.ranks) == 32
    ports = rails.of(Kind.PORT)
    switch = [next(k.other(p.id) for k in rails.links_of(p.id) if k.kind is LinkKind.NETWORK) for p in ports]
    assert len(set(switch)) == 8
    assert switch[0] == switch[8] != switch[1]
    groups = generate.dragonfly(host, 32, per_router=2, routers=4)
    assert groups.distance(groups.ranks[0], groups.ranks[-1]).path is PathClass.NET
    grid = generate.torus([4, 4, 4])
    assert {len(grid.links_of(rank)) for rank in grid.ranks} == {6}
    assert grid.distance("chip0.0.0", "chip2.2.2").hops == 6
    sites = generate.wan([flat, thin, host])
    assert len(sites.ranks) == 17
    assert sites.distance(sites.ranks[0], sites.ranks[-1]).latency >= 0.04


def test_a_gpu_forwards_for_nobody() -> None:
    topology = generate.pcie_box(gpus=4, sockets=2, gpus_per_switch=2)
    topology.connect("host/gpu0", "host/gpu2", LinkKind.NVLINK, bandwidth=1e9)
    route = topology.route("host/gpu1", "host/gpu2")
    assert "host/gpu0" not in {end for link in route for end in (link.a, link.b)}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fattree9", "unknown topology"),
        ("fat-tree:host=dgx", "unknown host 'dgx'"),
        ("fat-tree:hots=3", "did you mean 'hosts'"),
        ("fat-tree:hosts=many", "expected a whole number"),
        ("fat-tree:hosts=0", "hosts is 0"),
        ("fat-tree:radix=3", "radix is 3"),
        ("fat-tree:radix=2,hosts=5", "larger radix"),
        ("fat-tree:hosts", "name=value"),
        ("torus:sides=4x", "sides is '4x'"),
    ],
)
def test_wrong_names(spec: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        generate.make(spec)


def test_numbers_out_of_range() -> None:
    topology = generate.cpu_host()
    for bandwidth in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="bandwidth"):
            topology.connect("host", "host/nic0", LinkKind.NETWORK, bandwidth=bandwidth)
    with pytest.raises(InvalidArgument, match="latency"):
        topology.connect("host", "host/nic0", LinkKind.NETWORK, latency=-1)
    with pytest.raises(InvalidArgument, match="did you mean 'host/nic0'"):
        topology.connect("host", "host/nic", LinkKind.NETWORK)


@pytest.mark.parametrize(
    "spec", ["hgx-h100", "fat-tree:host=hgx-h100,hosts=64,radix=64", "torus:sides=4x4", "dragonfly:hosts=20"]
)
def test_drawings_are_whole(spec: str) -> None:
    topology = generate.make(spec)
    root = ElementTree.fromstring(draw.draw_svg(topology))
    box = [float(x) for x in root.attrib["viewBox"].split()]
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rect.get("x"):
            right, low = (float(rect.attrib[a]) + float(rect.attrib[b]) for a, b in (("x", "width"), ("y", "height")))
            assert right <= box[2] + 1
            assert low <= box[3] + 1
    assert draw.draw_tree(topology).count("\n") + 1 == len(topology)


# ------------------------------------------------------------------------------------------------------------ detection


class FakeSys:
    """A /sys of our own below a folder, as the kernel lays it out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("sys/devices/system/cpu/online", "0-15")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, place.parent))

    def node(self, number: int, cpus: str) -> None:
        self.write(f"sys/devices/system/node/node{number}/cpulist", cpus)

    def pci(self, chain: str, code: str, numa: int, vendor: str = "0x8086", speed: str = "32.0 GT/s PCIe") -> str:
        path = f"sys/devices/{chain}"
        facts = {
            "class": code,
            "vendor": vendor,
            "numa_node": str(numa),
            "current_link_speed": speed,
            "current_link_width": "16",
        }
        for name, value in facts.items():
            self.write(f"{path}/{name}", value)
        address = chain.rpartition("/")[2]
        if not (self.root / f"sys/bus/pci/devices/{address}").is_symlink():
            self.link(f"sys/bus/pci/devices/{address}", path)
        return path


@pytest.fixture
def host(tmp_path: Path) -> FakeSys:
    """Two sockets; a switch with a GPU and an InfiniBand adapter; an Ethernet adapter and a GPU elsewhere."""
    sys = FakeSys(tmp_path)
    sys.node(0, "0-7")
    sys.node(1, "8-15")
    root = "pci0000:00/0000:00:01.0"
    up = f"{root}/0000:01:00.0"
    sys.pci(root, "0x060400", 0)
    sys.pci(up, "0x060400", 0)
    for port, (device, code, vendor) in enumerate(
        (("0000:03:00.0", "0x030200", "0x10de"), ("0000:04:00.0", "0x020700", "0x15b3"))
    ):
        down = f"{up}/0000:02:0{port}.0"
        sys.pci(down, "0x060400", 0)
        path = sys.pci(f"{down}/{device}", code, 0, vendor)
        if code == "0x020700":
            sys.link("sys/class/infiniband/mlx5_0/device", path)
            sys.write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)")
            sys.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
            sys.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    ethernet = sys.pci("pci0000:80/0000:80:01.0/0000:81:00.0", "0x020000", -1, speed="Unknown")
    sys.link("sys/class/net/eth0/device", ethernet)
    sys.write("sys/class/net/eth0/speed", "-1")
    sys.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "0x030200", 1, "0x10de")
    sys.pci("pci0000:c0/0000:c0:02.0/0000:c2:00.0", "0x030000", 1, "0x1a03")  # draws the console's screen
    sys.write("sys/fs/cgroup/cpu.max", "250000 100000")
    sys.write("sys/fs/cgroup/memory.max", "8589934592")
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    return sys


def test_detection(host: FakeSys) -> None:
    topology = detect.detect(host.root)
    assert topology.notes == []
    assert [(n.numa, len(n.cpus)) for n in topology.of(Kind.NUMA)] == [(0, 8), (1, 8), (None, 0)]
    assert topology.ranks == ("host/0000:03:00.0", "host/0000:c1:00.0")
    gpu, ib = "host/0000:03:00.0", "host/0000:04:00.0"
    assert str(topology.distance(gpu, ib)) == "PIX"
    assert topology.distance(gpu, ib).bandwidth == pcie_bandwidth(32e9, 16)
    assert topology.distance(*topology.ranks).path is PathClass.SYS
    assert topology.distance(gpu, "host/0000:81:00.0").path is PathClass.UNKNOWN
    ports = {p.name: p.speed for p in topology.of(Kind.PORT)}
    assert ports == {"mlx5_0": 50e9, "eth0": None}
    assert topology["host"].facts["cpu_quota"] == "2.5"
    assert topology["host"].facts["memory_limit"] == "8589934592"


def test_detection_survives_what_it_finds(host: FakeSys) -> None:
    host.write("sys/bus/pci/devices/odd/class", "nonsense")
    host.write("sys/devices/system/node/node1/cpulist", "x-y")
    host.link("sys/class/net/gone/device", "sys/devices/nowhere")
    (host.root / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/current_link_width").write_bytes(
        b"\xff\xfe" * 100_000
    )
    topology = detect.detect(host.root)
    assert len(topology.of(Kind.GPU)) == 2
    assert topology.of(Kind.NUMA)[1].cpus == ()


def test_detection_without_anything(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory"):
        detect.detect(tmp_path)
    (tmp_path / "sys").mkdir()
    topology = detect.detect(tmp_path)
    assert len(topology.of(Kind.NUMA)) == len(topology.ranks) == 1
    assert "tells of none" in topology.notes[0]


def test_detection_keeps_its_limit(host: FakeSys) -> None:
    topology = detect.detect(host.root, limit=0.0)
    assert any("time was up" in note for note in topology.notes)
    assert len(topology.of(Kind.HOST)) == 1


def test_nvlinks_from_nvidia_smi(host: FakeSys) -> None:
    topology = detect.detect(host.root)
    matrix = read_matrix("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    add_nvlinks(topology, "0, 00000000:C1:00.0, 8.0\n1, 00000000:03:00.0, 8.0\n", matrix)
    distance = topology.distance(*topology.ranks)
    assert (str(distance), distance.bandwidth) == ("NV4", 100e9)
    assert topology["host/0000:c1:00.0"].index == 0


def test_a_slow_nvidia_smi(tmp_path: Path) -> None:
    """A program that hangs is left at the limit, and the rest of the answer is there."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    found = detect._Detection(Path("/"), time.monotonic() + 0.5)
    with pytest.raises(detect.subprocess.TimeoutExpired):
        found._asked(str(program), "topo", "-m")


def test_this_host() -> None:
    topology = detect.detect()
    cpus = {cpu for node in topology.of(Kind.NUMA) for cpu in node.cpus}
    assert cpus >= {int(cpu) for cpu in topology["host"].facts["cpus"].split(",")}
    assert isinstance(matrix_of(topology), Matrix)
