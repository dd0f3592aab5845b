"""Algorithms that depend on which ranks share a host, over random layouts; and how specs name lists and algorithms."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.algorithms import Algorithm, all_algorithms, build, canonical, check, names, parse_spec
from ringleader.algorithms.layout import groups
from ringleader.algorithms.parameter import MAX_LIST, Parameter
from ringleader.algorithms.registry import numbered
from ringleader.errors import InvalidArgument
from ringleader.schedule import Schedule, verify
from ringleader.schedule.algebra import expand

HIERARCHICAL = [entry for entry in all_algorithms() if entry.name.startswith("hierarchical")]
IDS = [entry.full_name for entry in HIERARCHICAL]

layouts = st.lists(st.integers(0, 4), min_size=1, max_size=14)


def part_names(entry: Algorithm, level: str) -> tuple[str, ...]:
    """Algorithms that the entry's parameter `inner` or `outer` may name."""
    return names(next(parameter.of for parameter in entry.parameters if parameter.name == level))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Algorithm, str, int, list[int]]:
    """(entry, spec, root, nodes), valid."""
    entry = draw(st.sampled_from(HIERARCHICAL))
    nodes = draw(layouts)
    root = (
        draw(st.integers(0, len(nodes) - 1)) if entry.collective in ("broadcast", "reduce", "gather", "scatter") else 0
    )
    inner, outer = (draw(st.sampled_from(part_names(entry, level))) for level in ("inner", "outer"))
    return entry, f"{entry.name}:inner={inner}:outer={outer}", root, nodes


@given(requests())
@settings(max_examples=150, deadline=None)
def test_proved_over_random_layouts_with_any_parts(request: tuple[Algorithm, str, int, list[int]]) -> None:
    entry, spec, root, nodes = request
    schedule = build(entry.collective, spec, len(nodes), root, nodes)
    verify(schedule, nodes=nodes).raise_if_failed()


def measured(schedule: Schedule) -> tuple[int, Fraction]:
    """(steps, volume), as the registry has to tell them."""
    table = expand(schedule.table)[0]
    table = table[table["src_rank"] != table["dst_rank"]]
    chunks = 0
    for step in range(schedule.steps):
        now = table[table["step"] == step]
        if len(now):
            chunks += max(np.bincount(now["src_rank"]).max(), np.bincount(now["dst_rank"]).max())
    return schedule.steps, Fraction(int(chunks), schedule.chunks)


@given(requests())
@settings(max_examples=100, deadline=None)
def test_cost_is_told_exactly(request: tuple[Algorithm, str, int, list[int]]) -> None:
    entry, spec, _, nodes = request
    n, values = len(nodes), parse_spec(entry.collective, spec).values
    schedule = build(entry.collective, spec, n, 0, nodes)
    steps, volume = measured(schedule)
    told = entry.terms(n, values, nodes)
    assert (told.steps, told.volume) == (steps, pytest.approx(float(volume)))
    assert schedule.transfers <= entry.transfers(n, values, nodes)
    if entry.closed is not None and n > 1:
        closed = entry.closed(n, **values, nodes=numbered(nodes))
        assert (closed.steps, closed.volume) == (steps, pytest.approx(float(volume)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(["ring", "two_shot", "recursive_doubling"]))
@settings(max_examples=60, deadline=None)
def test_hosts_of_any_sizes_by_parameter(hosts: list[int], outer: str) -> None:
    text = "+".join(map(str, hosts))
    schedule = build("all_reduce", f"hierarchical:hosts={text}:outer={outer}", sum(hosts))
    verify(schedule, lowered=False).raise_if_failed()
    nodes = [host for host, size in enumerate(hosts) for _ in range(size)]
    assert schedule == build("all_reduce", f"hierarchical:outer={outer}", sum(hosts), nodes=nodes)


def between_hosts(schedule: Schedule, nodes: list[int]) -> Fraction:
    """What all hosts together send to each other, as a fraction of the data."""
    home = np.array(nodes)
    table = schedule.table
    crossing = home[table["src_rank"]] != home[table["dst_rank"]]
    return Fraction(int(table["count"][crossing].sum()), schedule.chunks)


LAYOUT = [0, 0, 1, 2, 1, 2, 2, 0, 1, 2, 3]  # 3 + 3 + 4 + 1 ranks, mixed
HOSTS = 4


@pytest.mark.parametrize(
    ("collective", "spec", "crossings"),
    [
        # An optimal all_reduce between H hosts sends 2(H-1) times the data, however many ranks they have.
        ("all_reduce", "hierarchical", 2 * (HOSTS - 1)),
        ("all_reduce", "hierarchical:outer=two_shot", 2 * (HOSTS - 1)),
        ("all_reduce", "hierarchical_leader:outer=two_shot", 2 * (HOSTS - 1)),
        ("reduce", "hierarchical", HOSTS - 1),
        ("broadcast", "hierarchical", HOSTS - 1),
        ("all_gather", "hierarchical", HOSTS - 1),  # every block enters each other host once
        ("reduce_scatter", "hierarchical", HOSTS - 1),
        ("gather", "hierarchical:outer=linear", Fraction(8, 11)),  # all blocks but those of the root's host
        ("scatter", "hierarchical:outer=linear", Fraction(8, 11)),
    ],
)
def test_what_crosses_between_hosts_is_least(collective: str, spec: str, crossings: Fraction) -> None:
    schedule = build(collective, spec, len(LAYOUT), nodes=LAYOUT)
    assert between_hosts(schedule, LAYOUT) == crossings


def test_every_rank_of_a_host_shares_the_traffic() -> None:
    nodes = [0, 0, 0, 0, 1, 1, 1]
    table = build("all_reduce", "hierarchical", 7, nodes=nodes).table
    home = np.array(nodes)
    crossing = table[home[table["src_rank"]] != home[table["dst_rank"]]]
    sent = np.bincount(crossing["src_rank"], weights=crossing["count"], minlength=7)
    assert sent[:4].tolist() == [sent[0]] * 4
    assert sent[4:].tolist() == [sent[4]] * 3
    assert sent[0] * 4 == sent[4] * 3


def test_only_leaders_talk_between_hosts() -> None:
    nodes = [0, 1, 1, 0, 2, 2]
    for collective, root, leaders in (
        ("all_reduce", 0, {0, 1, 4}),
        ("broadcast", 3, {3, 1, 4}),
        ("gather", 5, {0, 1, 5}),
    ):
        name = "hierarchical_leader" if collective == "all_reduce" else "hierarchical"
        table = build(collective, name, 6, root, nodes).table
        home = np.array(nodes)
        crossing = table[home[table["src_rank"]] != home[table["dst_rank"]]]
        assert set(crossing["src_rank"]) | set(crossing["dst_rank"]) == leaders


def test_without_a_layout_the_ranks_are_divided_evenly() -> None:
    assert [len(group) for group in groups(16, (), None)] == [4, 4, 4, 4]
    assert build("all_reduce", "hierarchical", 11) == build("all_reduce", "hierarchical:hosts=4+4+3", 11)
    # The numbers of the nodes do not matter.
    assert build("all_reduce", "torus", 4, nodes=[7, 7, 3, 3]) is build("all_reduce", "torus", 4, nodes=[0, 0, 1, 1])


def test_torus_is_hosts_times_ranks() -> None:
    nodes = [0, 1, 0, 1, 0, 1]
    table = build("all_reduce", "torus", 6, nodes=nodes).table
    home = np.array(nodes)
    crossing = home[table["src_rank"]] != home[table["dst_rank"]]
    assert set(table["step"][crossing]) == {2, 3}  # reduce_scatter over 3 ranks inside, then between 2 hosts
    assert parse_spec("all_reduce", "torus:dims=4x2").values == {"dims": (4, 2)}


@pytest.mark.parametrize(
    ("spec", "n", "message"),
    [
        ("hierarchical:hosts=4+4", 9, r"over n=9 ranks: hosts=4\+4 are 8 ranks"),
        ("hierarchical:hosts=0+4", 4, r"hosts='0\+4' is not valid; expected a\+b\+\.\.\., each 1\.\.1048576"),
        ("hierarchical:hosts=4+", 4, r"hosts='4\+' is not valid"),
        ("hierarchical:hosts=2*70000", 4, r"hosts='2\*70000' is not valid"),
        ("hierarchical:hosts=1*-3", 4, r"is not valid"),
        ("hierarchical:inner=binomial", 4, r"unknown reduce_scatter algorithm 'binomial'; valid: .*direct.*ring"),
        ("hierarchical:outer=ring(segments=0)", 4, r"outer='ring\(segments=0\)' is not valid; .*expected 1..1024"),
        ("hierarchical:outer=torus(dims=3x3)", 4, r"dims=3x3 are 9 ranks"),
        ("hierarchical:outer=ring(segments=2", 4, r"wrong parentheses, they do not match"),
        ("hierarchical:outer=" + "hierarchical(outer=" * 5 + "ring" + ")" * 5, 4, r"more than 4 within each other"),
        ("torus:dims=2x3", 7, r"dims=2x3 are 6 ranks"),
        ("bucket:dims=2x3x2", 7, r"dims=2x3x2 are 12 ranks"),
        ("swing:dims=3x2", 6, r"each side must be even"),
        ("swing:dims=4x4", 8, r"dims=4x4 are 16 ranks"),
        ("ring:order=0+1+1", 3, r"order=0\+1\+1 must name each of the ranks 0..2 once"),
        ("ring:order=0+1", 3, r"must name each of the ranks 0..2 once"),
        ("unequal_two_shot:shares=1+2", 3, r"shares=1\+2 are for 2 ranks"),
        ("unequal_two_shot:shares=0+0", 2, r"shares=0\+0 are 0 parts in all; expected 1..65536"),
        ("unequal_two_shot:shares=1024*100", 100, r"are 102400 parts in all"),
        ("recursive_multiplying:radix=1", 4, r"radix='1' is not valid; expected 2..256"),
    ],
)
def test_impossible_parameters_name_the_limit(spec: str, n: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build("all_reduce", spec, n)


def test_wrong_layouts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"over n=4 ranks with nodes=\[0, 1\]; expected a node for each rank"):
        build("all_reduce", "hierarchical", 4, nodes=[0, 1])


def test_huge_specs_are_refused_at_once() -> None:
    began = time.process_time()
    for spec in ("ring:order=" + "0+" * 10**6 + "0", "hierarchical:hosts=1*999999", "ring" + "(" * 10**6):
        with pytest.raises(InvalidArgument):
            check("all_reduce", spec, 4)
    assert time.process_time() - began < 30  # seconds would be a few thousandths; a quadratic reader takes hours


def test_parts_have_one_canonical_form() -> None:
    assert canonical("all_reduce", "hierarchical:outer=tree(segments=2):hosts=4+4+4:inner=direct(segments=1)") == (
        "hierarchical:hosts=4*3:outer=double_binary_tree(segments=2)"
    )
    nested = "hierarchical:hosts=4+4:outer=hierarchical(hosts=1+1:outer=ring(segments=2))"
    assert canonical("all_reduce", nested) == nested
    verify(build("all_reduce", nested, 8)).raise_if_failed()


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40))
def test_lists_are_read_as_they_are_written(entries: list[int]) -> None:
    parameter = Parameter("list", (), "", low=0, high=99, separator="+")
    text = parameter.text(tuple(entries))
    assert parameter.parse(text, "", canonical) == tuple(entries)
    assert len(entries) <= MAX_LIST


def test_many_hosts_are_proved_quickly() -> None:
    """512 hosts of 8 ranks; time is measured in benchmarks/verify_speed.py."""
    schedule = build("all_reduce", "hierarchical:hosts=8*512:outer=double_binary_tree", 4096)
    verify(schedule).raise_if_failed()
