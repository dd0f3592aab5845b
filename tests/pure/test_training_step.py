"""Simulated training steps and plans of clusters: closed forms, monotony, real layouts, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringleader.errors import InvalidArgument
from ringleader.overlap import fixed_buckets
from ringleader.simulate import Costs, Layout, frontier, plan_cluster, simulate_step
from ringleader.topology import Kind, generate

REALDATA = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[3] / "shared" / "realdata")
LAYOUTS = REALDATA / "model-layouts"
needs_layouts = pytest.mark.skipif(not LAYOUTS.is_dir(), reason="no folder of real files (RINGLEADER_REALDATA)")
FREE = Costs("links only")
MODEL = Layout("four layers", ("d", "c", "b", "a"), (4 << 20, 1 << 20, 1 << 20, 2 << 20))
CHIPS = generate.torus([8], link=1e9, latency=0.0)


def test_a_step_that_hides_nothing_takes_computing_and_then_one_ring() -> None:
    step = simulate_step(MODEL.timeline(0.3), "ring", CHIPS, overlap=False, costs=FREE)
    ring = 14 / 8 * MODEL.parameters * 4 / 1e9
    assert step.compute == pytest.approx(0.3)
    assert step.plan.buckets == ((0, 1, 2, 3),) or step.communication == pytest.approx(ring, rel=1e-6)
    assert step.seconds == pytest.approx(0.3 + ring, rel=1e-6)
    assert step.exposed_share == pytest.approx(ring / (0.3 + ring), rel=1e-6)


def test_overlap_exposes_what_the_last_gradients_and_the_channel_leave() -> None:
    """One bucket a gradient: d is ready after half of the backward pass, and each transfer waits for the last."""
    line = MODEL.timeline(0.03)
    step = simulate_step(line, "ring", CHIPS, bucket_bytes=1, costs=FREE)
    per_byte = 14 / 8 / 1e9
    free = 0.0
    for ready, nbytes in zip(line.ready.tolist(), line.nbytes.tolist(), strict=True):
        free = max(free, ready) + nbytes * per_byte
    assert step.exposed == pytest.approx(free - line.backward_end, rel=1e-5)


@pytest.mark.parametrize("compute", [1e-3, 0.03, 0.3])
def test_the_best_buckets_are_never_behind_fixed_ones_or_no_overlap(compute: float) -> None:
    cluster = generate.ethernet_racks(generate.cpu_host(), 4)
    line = MODEL.timeline(compute)
    best = simulate_step(line, "hierarchical", cluster)
    late = simulate_step(line, "hierarchical", cluster, overlap=False)
    assert best.exposed <= late.exposed
    for size in (1, 1 << 20, 4 << 20, 25 << 20):
        fixed = simulate_step(line, "hierarchical", cluster, bucket_bytes=size)
        assert fixed.plan.buckets == fixed_buckets(line.nbytes, size, min(size, 1 << 20))
        assert best.exposed <= fixed.exposed + 1e-9


def test_compression_saves_what_it_does_not_send_and_costs_what_it_computes() -> None:
    line = MODEL.timeline(0.3)
    plain = simulate_step(line, "ring", CHIPS, overlap=False, costs=FREE)
    half = simulate_step(line, "ring", CHIPS, overlap=False, costs=FREE, ratio=0.5)
    paid = simulate_step(line, "ring", CHIPS, overlap=False, costs=FREE, ratio=0.5, codec=1e-9)
    assert half.exposed == pytest.approx(plain.exposed / 2, rel=1e-6)
    assert paid.exposed == pytest.approx(half.exposed + MODEL.parameters * 4e-9, rel=1e-6)


def test_compute_is_given_whole_or_by_gradient() -> None:
    each = MODEL.timeline([0.1, 0.025, 0.025, 0.05], element_bytes=2)
    whole = MODEL.timeline(0.3, element_bytes=2)
    assert each.ready.tolist() == pytest.approx(whole.ready.tolist())
    assert each.forward == pytest.approx(0.1)
    assert whole.needed[-1] == 0
    assert whole.total == MODEL.parameters * 2


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: MODEL.timeline(-1.0), "compute is -1.0"),
        (lambda: MODEL.timeline([1.0]), "each of the 4 gradients"),
        (lambda: MODEL.timeline(1.0, element_bytes=0), "element_bytes is 0"),
        (lambda: MODEL.compute_seconds(0, 1e12), "0 tokens"),
        (lambda: Layout("none", (), ()), "at least one"),
        (lambda: simulate_step(MODEL.timeline(1.0), "ring", CHIPS, ratio=0.0), "ratio 0.0"),
        (lambda: simulate_step(MODEL.timeline(1.0), "ring", CHIPS, collective="all_gather"), "all_gather"),
        (lambda: plan_cluster(MODEL, 0.0, generate.cpu_host()), "compute is 0.0"),
        (lambda: plan_cluster(MODEL, 1.0, generate.cpu_host(nics=0), gigabits=[10]), "no network port"),
        (lambda: generate.network_of("fat-tre"), "fat-tree"),
    ],
)
def test_what_cannot_be_is_refused(what: object, said: str) -> None:
    assert callable(what)
    with pytest.raises(InvalidArgument, match=said):
        what()


@pytest.mark.parametrize("text", ["", "{}", "[[1, [2]]]", '[["a", [0]]]', '[["a", 3]]', '[["a", [1.5]]]', "[]", "7"])
def test_a_file_that_is_no_layout_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"model"):
        Layout.read(path)


def test_a_scalar_parameter_has_one_element(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('[["scale", []], ["weight", [3, 5]]]')
    assert Layout.read(path).elements == (1, 15)


@needs_layouts
def test_real_layouts_have_the_parameters_that_are_published() -> None:
    facts = json.loads((LAYOUTS / "facts.json").read_text())
    for fact in facts:
        layout = Layout.read(LAYOUTS / f"{fact['model']}.json")
        assert (len(layout.names), layout.parameters) == (fact["tensors"], fact["parameters"])
    assert len(facts) >= 6


def test_another_speed_of_adapters_changes_ports_and_nothing_else() -> None:
    host = generate.dgx_a100()
    slow = host.with_port_speed(1e9)
    assert {port.speed for port in slow.of(Kind.PORT)} == {1e9}
    assert {port.speed for port in host.of(Kind.PORT)} == {25e9}
    ports = {port.id for port in host.of(Kind.PORT)}
    for before, after in zip(host.links, slow.links, strict=True):
        assert after == before or ports & {after.a, after.b}
    assert slow.ranks == host.ranks


def test_more_hosts_and_faster_links_never_compute_longer_and_the_frontier_holds_no_waste() -> None:
    tried = plan_cluster(
        MODEL, 1.0, generate.cpu_host(), hosts=[1, 2, 4], gigabits=[1, 10, 100], algorithms=["ring", "hierarchical"]
    )
    assert len(tried) == 18
    for option in tried:
        assert option.step.compute == pytest.approx(1.0 / option.ranks, rel=1e-6)
    at = {(o.hosts, o.gigabits, o.step.algorithm): o.step.seconds for o in tried}
    for (hosts, speed, spec), seconds in at.items():
        assert speed is not None
        faster = at.get((hosts, speed * 10, spec))
        assert faster is None or faster <= seconds + 1e-9
    best = frontier(tried)
    assert best
    for option in tried:
        assert option.gigabits is not None
        covered = [b for b in best if b.hosts <= option.hosts and (b.gigabits or 0) <= option.gigabits]
        assert min(b.step.seconds for b in covered) <= option.step.seconds
    for b in best:
        others = [o for o in best if o is not b and o.hosts <= b.hosts and (o.gigabits or 0) <= (b.gigabits or 0)]
        assert all(b.step.seconds < o.step.seconds for o in others)
