"""Simulated collectives: closed forms, what may never get faster or slower, contention, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.algorithms import all_algorithms, build
from ringleader.errors import InvalidArgument, RingleaderError
from ringleader.schedule import Builder
from ringleader.simulate import Costs, Fabric, Medium, Simulation, collective, engine, nccl, simulate
from ringleader.simulate.steps import Steps
from ringleader.topology import Kind, LinkKind, Topology, generate

FREE = Costs("links only")
SPECS = ["ring", "double_binary_tree", "double_binary_tree:segments=4", "hierarchical", "recursive_doubling", "torus"]


def racks(hosts: int = 4, speed: float = 1e9, **network: float) -> Topology:
    return generate.ethernet_racks(generate.cpu_host(sockets=2, speed=speed), hosts, per_rack=2, **network)


# ----------------------------------------------------------------------------------------------------- closed forms


def test_a_ring_takes_what_its_closed_form_says() -> None:
    chips = generate.torus([8], link=50e9, latency=10e-9)
    seconds = simulate("ring", chips, 1e8, costs=FREE).seconds
    assert seconds == pytest.approx(14 * (10e-9 + 1e8 / 8 / 50e9), rel=1e-9)
    assert seconds == pytest.approx(3.50014e-3, rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_broadcast_down_a_chain_is_pipelined(n: int) -> None:
    """k segments over n - 1 equal links: n - 2 + k steps of a k-th."""
    chips = generate.torus([n], link=1e9, latency=0.0)
    b = Builder("broadcast", n, 1)
    for rank in range(n - 1):
        b.send(rank, rank, 0, rank + 1)
    for k in (1, 4, 16):
        seconds = simulate(b.build(), chips, 1e6, segments=k, costs=FREE).seconds
        assert seconds == pytest.approx((n - 2 + k) * 1e6 / k / 1e9, rel=1e-6)


def test_flows_that_share_a_link_share_its_bandwidth() -> None:
    t = Topology("two racks")
    for side in "ab":
        t.add(side, Kind.SWITCH)
        for i in range(3):
            t.add(f"{side}{i}", Kind.GPU)
            t.connect(f"{side}{i}", side, LinkKind.NETWORK, bandwidth=10e9)
    t.connect("a", "b", LinkKind.NETWORK, bandwidth=10e9)
    t.place([f"{side}{i}" for side in "ab" for i in range(3)])
    for pairs in (1, 2, 3):
        b = Builder("all_to_all", 6, 36)
        for i in range(pairs):
            b.send(0, src=i, src_chunk=i + 3, dst=i + 3, dst_chunk=i, src_buffer="input", dst_buffer="output")
        steps = Steps.of(b.build())
        assert len(steps.runs[0][0].src) == pairs
        simulation = Simulation("pairwise", t, collective="all_to_all", costs=FREE)
        simulation.steps = steps
        simulation._routed = [collective._Routed(step, simulation.fabric, 1.0) for step, _ in steps]
        simulation._bound.clear()
        assert simulation.seconds(36e9) == pytest.approx(pairs * 1e9 / 10e9)
        assert simulation.result(36e9).bottleneck.name == ("a -> b" if pairs > 1 else "a0 -> a")


def test_ranks_of_one_numa_node_copy_by_themselves() -> None:
    host = generate.cpu_host(sockets=1)
    node = host.ranks[0]
    for n in (2, 4):
        result = simulate("ring", host, 1e9, placement=[node] * n, costs=Costs("memory", copy=10e9))
        assert result.seconds == pytest.approx(2 * (n - 1) / n * 1e9 / 10e9)
        assert result.bottleneck is not None and result.bottleneck.name == "copies of rank 0"
    # A root that copies to all others does so one after the other.
    linear = simulate("linear", host, 1e9, placement=[node] * 4, collective="broadcast", costs=Costs("m", copy=10e9))
    assert linear.seconds == pytest.approx(3 * 0.1)


def test_in_a_node_the_destination_pulls_and_combines_straight_from_the_source() -> None:
    host = generate.cpu_host(sockets=1)
    costs = Costs("memory", copy=10e9, reduce=5e9)
    four = Fabric(host, [host.ranks[0]] * 4)

    def seconds(collective_name: str, spec: str, pull: bool) -> float:
        return float(Simulation(spec, four, collective=collective_name, costs=costs, pull=pull).seconds(1e9))

    # Three destinations copy at once, or the root copies to them in turn.
    assert seconds("broadcast", "linear", pull=True) == pytest.approx(0.1)
    assert seconds("broadcast", "linear", pull=False) == pytest.approx(0.3)
    # The root combines three times what it reads; nobody copies it first, whatever the protocol.
    assert seconds("reduce", "linear", pull=True) == seconds("reduce", "linear", pull=False) == pytest.approx(0.6)
    assert simulate("linear", four, 1e9, collective="reduce", costs=costs).links[0].name == "copies of rank 0"


# ------------------------------------------------------------------------------------------- what must hold always


@pytest.mark.parametrize("collective_name", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("n", [2, 3, 4, 9, 16])
def test_what_is_known_to_repeat_is_what_the_schedule_repeats(collective_name: str, n: int) -> None:
    known, found = Steps.named(collective_name, "ring", n), Steps.of(build(collective_name, "ring", n))
    assert [repeats for _, repeats in known] == [repeats for _, repeats in found]
    for (a, _), (b, _) in zip(known, found, strict=True):
        for name in ("src", "dst", "share", "combined"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("spec", SPECS)
def test_many_sizes_at_once_and_a_rhythm_change_nothing(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(generate.fat_tree(generate.dgx_a100(), 4))
    sizes = [1.0, 1000.0, 1e6, 1e9]
    together = Simulation(spec, fabric).seconds(sizes)
    assert together.tolist() == pytest.approx([float(Simulation(spec, fabric).seconds(size)) for size in sizes])
    monkeypatch.setattr(collective, "_FEW", 1 << 30)  # every repetition is computed
    assert together.tolist() == pytest.approx(Simulation(spec, fabric).seconds(sizes).tolist(), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    hosts=st.integers(1, 4),
    size=st.floats(1, 1e9),
    rate=st.floats(1e8, 1e11),
    latency=st.floats(0, 1e-3),
    more=st.floats(1.0, 10.0),
)
def test_more_bytes_less_bandwidth_and_more_latency_never_make_it_faster(
    spec: str, hosts: int, size: float, rate: float, latency: float, more: float
) -> None:
    def seconds(size: float, rate: float, latency: float) -> float:
        t = racks(hosts, speed=rate, uplink=rate, latency=latency)
        return float(Simulation(spec, t).seconds(size))

    base = seconds(size, rate, latency) * (1 - 1e-9)
    assert seconds(size * more, rate, latency) >= base
    assert seconds(size, rate / more, latency) >= base
    assert seconds(size, rate, latency * more) >= base


@pytest.mark.parametrize("spec", ["ring", "double_binary_tree", "recursive_doubling"])
def test_more_ranks_never_make_it_faster(spec: str) -> None:
    for nbytes in (8, 1 << 20):
        times = [simulate(spec, generate.torus([n]), nbytes).seconds for n in (1, 2, 4, 8, 16, 32)]
        assert times == sorted(times)


def test_odd_sizes_are_no_steps() -> None:
    t = racks()
    for spec in SPECS:
        at = Simulation(spec, t).seconds([1 << 20, (1 << 20) + 1, (1 << 20) + 3, (1 << 20) + 64])
        assert (np.diff(at) >= 0).all() and at[-1] < at[0] * 1.001


@pytest.mark.parametrize("entry", all_algorithms(), ids=lambda entry: entry.full_name)
def test_every_algorithm_has_a_time(entry: object) -> None:
    name, of = entry.name, entry.collective  # type: ignore[attr-defined]
    result = simulate(name, racks(), 1 << 20, collective=of)
    assert 0 < result.seconds < 1
    assert all(0 <= load.busy <= 1 + 1e-9 for load in result.links)


def test_a_late_rank_delays_everybody_by_no_more_than_it_is_late() -> None:
    t = racks()
    plain = simulate("ring", t, 1 << 20).seconds
    late = simulate("ring", t, 1 << 20, stragglers={3: 0.5}).seconds
    assert 0.5 < late <= 0.5 + plain * (1 + 1e-9)


def test_jitter_is_drawn_from_the_seed() -> None:
    t = racks()
    one, again, other = (simulate("ring", t, 1 << 20, jitter=0.3, seed=seed).seconds for seed in (1, 1, 2))
    assert one == again != other
    assert one > simulate("ring", t, 1 << 20).seconds  # the slowest of many counts


def test_channels_use_all_adapters() -> None:
    cluster = generate.fat_tree(generate.dgx_a100(), 2)
    one = simulate("ring", cluster, 1 << 30)
    all_of_them = simulate("ring", cluster, 1 << 30, channels=8)
    assert all_of_them.seconds < one.seconds / 4
    used = {load.name for load in all_of_them.links if "/port -> " in load.name and "nic" in load.name}
    assert len(used) >= 16


def test_switches_that_combine_halve_the_bytes() -> None:
    box = generate.hgx_h100()
    in_switch = simulate("ring", box, 1 << 30, in_network=True)
    assert in_switch.seconds < simulate("ring", box, 1 << 30).seconds * 0.65
    for without in (generate.torus([8]), generate.pcie_box()):
        with pytest.raises(InvalidArgument, match="no switch that could combine is between rank 0"):
            simulate("ring", without, 8, in_network=True)
    with pytest.raises(InvalidArgument, match="all_reduce only"):
        simulate("ring", box, 8, collective="all_gather", in_network=True)


def test_the_network_carries_a_wire_formats_bytes() -> None:
    t = racks(2, speed=1e8)
    assert simulate("ring", t, 1e8, wire=0.25).seconds == pytest.approx(simulate("ring", t, 1e8).seconds / 4, rel=0.1)
    assert "no effect" in simulate("ring", generate.cpu_host(), 1e6, wire=0.5).warnings[0]


def test_the_fastest_protocol_is_taken_for_each_size() -> None:
    box = generate.dgx_a100()
    small, large = simulate("ring", box, 8), simulate("ring", box, 1 << 30)
    assert (small.costs.name, large.costs.name) == ("NCCL LL", "NCCL Simple")
    for protocol in ("LL", "LL128", "Simple"):
        assert small.seconds <= simulate("ring", box, 8, protocol=protocol).seconds
    assert 200e9 < large.bus_bandwidth < 300e9


def test_shifts_through_a_fat_tree_share_no_link() -> None:
    t = generate.fat_tree(generate.cpu_host(sockets=1), 16, radix=8)
    fabric = Fabric(t)
    for by in (1, 3, 4, 7, 8):
        up = [link for r in range(16) for link in fabric.route(r, (r + by) % 16)[0] if "spine" in fabric.name(link)]
        assert len(up) == len(set(up))


# ------------------------------------------------------------------------------------------------- what it looks like


@pytest.mark.parametrize("spec", SPECS)
def test_the_critical_path_leads_from_the_start_to_the_end(spec: str) -> None:
    result = simulate(spec, generate.fat_tree(generate.dgx_a100(), 2), 1 << 20)
    path = result.critical_path
    assert path[-1].end == pytest.approx(result.seconds - result.costs.start)
    for before, after in itertools.pairwise(path):
        assert before.dst == after.src and before.step < after.step and before.end <= after.begin + 1e-12


def test_a_trace_has_every_transfer(tmp_path: Path) -> None:
    result = simulate("ring", generate.torus([4]), 1 << 20)
    result.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    moves = [event for event in events if event["ph"] == "X"]
    assert len(moves) == 6 * 4
    assert max(event["ts"] + event["dur"] for event in moves) == pytest.approx(
        (result.seconds - result.costs.start) * 1e6
    )


def test_links_carry_what_the_schedule_sends() -> None:
    result = simulate("ring", generate.torus([8]), 8e6)
    assert {load.nbytes for load in result.links} == {14e6}
    assert len(result.links) == 8
    assert result.algorithm_bandwidth == pytest.approx(8e6 / result.seconds)


# ---------------------------------------------------------------------------------------------------- what is refused


def test_ranks_that_nothing_connects_are_named() -> None:
    t = generate.torus([2])
    t.add("lonely", Kind.GPU)
    with pytest.raises(InvalidArgument, match=r"nothing connects rank 1 \(chip1\) and rank 2 \(lonely\)"):
        simulate("ring", t, 8, placement=["chip0", "chip1", "lonely"])


def test_a_schedule_that_is_wrong_has_no_time() -> None:
    b = Builder("all_reduce", 2, 1)
    b.send(0, 0, 0, 1, reduce=True)
    with pytest.raises(RingleaderError, match="rank 0"):
        simulate(b.build(), generate.torus([2]), 8)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"placement": ["chip0", "chip1"]}, "for 4 ranks, and 2 are placed"),
        ({"placement": ["chip0", "chip9"]}, "no node 'chip9'"),
        ({"channels": 0}, "channels is 0"),
        ({"segments": 0}, "segments is 0"),
        ({"jitter": -1.0}, "jitter is -1"),
        ({"wire": 0.0}, "wire is 0.0"),
        ({"stragglers": {9: 1.0}}, "straggler 9"),
        ({"stragglers": {1: -1.0}}, "straggler 1: -1.0 s"),
        ({"protocol": "LL64"}, "unknown protocol 'LL64'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        simulate(build("all_reduce", "ring", 4), generate.torus([4]), 8, **options)


def test_sizes_and_costs_are_checked() -> None:
    for size in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="sizes"):
            simulate("ring", generate.torus([2]), size)
    for wrong in ({"start": -1.0}, {"copy": 0.0}, {"reduce": float("nan")}, {"efficiency": {Medium.BUS: 1.5}}):
        with pytest.raises(InvalidArgument, match="costs 'x'"):
            Costs("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="has no ranks"):
        simulate("ring", Topology("empty"), 8)


def test_what_takes_no_time_has_a_bandwidth() -> None:
    alone = simulate("ring", generate.torus([1]), 1e8, costs=FREE)
    assert (alone.seconds, alone.algorithm_bandwidth, alone.bus_bandwidth) == (0.0, float("inf"), float("inf"))
    assert simulate("ring", generate.torus([2], latency=0.0), 0, costs=FREE).bus_bandwidth == 0.0


def test_what_has_no_effect_is_said() -> None:
    chips, host = generate.torus([4]), generate.cpu_host()
    assert any("seed=3" in text for text in simulate("ring", chips, 8, seed=3).warnings)
    assert any("NCCL's" in text for text in simulate("ring", host, 8, protocol="LL").warnings)
    assert any("costs are given" in text for text in simulate("ring", chips, 8, protocol="LL", costs=FREE).warnings)
    assert any("one rank" in text for text in simulate("ring", generate.torus([1]), 8).warnings)
    t = Topology("unknown")
    for name in "ab":
        t.add(name, Kind.GPU)
    t.connect("a", "b", LinkKind.NVLINK)
    assert any("taken for unlimited: a -> b" in text for text in simulate("ring", t.place("ab"), 8).warnings)
    assert not simulate("ring", chips, 8).warnings


def test_costs_come_from_published_numbers_or_from_the_tuner() -> None:
    assert nccl("ll128").efficiency[Medium.LINK] == pytest.approx(0.75)
    assert engine().message > 0
