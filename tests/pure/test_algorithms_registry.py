"""The registry: names, specs, parameters, limits, and the table made from it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringleader.algorithms
import ringleader.tune
from ringleader.algorithms import (
    COLLECTIVES,
    MAX_TRANSFERS,
    Parameter,
    algorithm,
    algorithm_hash,
    all_algorithms,
    build,
    canonical,
    check,
    get,
    names,
    parse_spec,
)
from ringleader.algorithms.table import BEGIN, END, insert, render
from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Schedule

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def test_names_lists_each_collective_in_order() -> None:
    assert names("scatter") == ("bine", "binomial", "hierarchical", "knomial", "linear")
    assert all(list(names(collective)) == sorted(set(names(collective))) for collective in COLLECTIVES)
    assert all(len(names(collective)) >= 2 for collective in COLLECTIVES)
    assert {entry.collective for entry in all_algorithms()} == set(COLLECTIVES)


def test_a_collective_may_be_given_as_its_enumeration() -> None:
    assert names(Collective.BARRIER) == names("barrier")
    assert build(Collective.ALL_REDUCE, "ring", 3) is build("all_reduce", "ring", 3)


def test_unknown_collective_lists_the_valid_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"'all_reduces'.*all_reduce, reduce_scatter, .*barrier"):
        build("all_reduces", "ring", 2)


def test_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"'rnig'.*allgather_reduce, .*ring, .*two_shot"):
        build("all_reduce", "rnig", 2)
    with pytest.raises(InvalidArgument, match=r"unknown broadcast algorithm 'ring'.*binomial, .*chain"):
        build("broadcast", "ring", 2)  # right for another collective


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "ring:segment=4",
            r"'segment=4' is not a parameter of ring; did you mean 'segments'\? The form is 'ring:segments=",
        ),
        ("ring:segments", r"'segments' is not a parameter"),
        ("ring:segments=0", r"segments='0' is not valid; expected 1..1024"),
        ("ring:segments=1025", r"expected 1..1024"),
        ("ring:segments=-1", r"expected 1..1024"),
        ("ring:segments=two", r"expected 1..1024"),
        ("ring:segments=²", r"expected 1..1024"),
        ("ring:segments=2:segments=3", r"segments is given twice"),
        ("one_shot:segments=2", r"not a parameter of one_shot; the form is 'one_shot'"),
        ("allgather_reduce:exchange=tree", r"exchange='tree' is not valid; expected bruck\|ring"),
        ("", r"unknown all_reduce algorithm ''"),
        ("ring:", r"'' is not a parameter of ring"),
    ],
)
def test_wrong_specs_say_what_is_right(spec: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build("all_reduce", spec, 4)


@pytest.mark.parametrize(
    ("collective", "spec", "n", "root", "message"),
    [
        ("all_reduce", "ring", 0, 0, "n must be at least 1"),
        ("all_reduce", "ring", 4, 1, "expected 0, because all_reduce has no root"),
        ("broadcast", "binomial", 4, 4, "expected a rank of 0..3"),
        ("broadcast", "binomial", 4, -1, "expected a rank of 0..3"),
        ("all_reduce", "ring", 2000, 0, f"at most {MAX_TRANSFERS}: use fewer segments"),
        ("all_reduce", "ring:segments=1024", 64, 0, f"at most {MAX_TRANSFERS}: use fewer segments"),
        ("all_reduce", "one_shot", 3000, 0, "use another algorithm"),
    ],
)
def test_what_cannot_be_built_states_the_limit(collective: str, spec: str, n: int, root: int, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build(collective, spec, n, root)


def test_trees_have_no_such_limit() -> None:
    assert build("all_reduce", "double_binary_tree", 5000).transfers == 4 * 4999


def test_canonical_forms() -> None:
    assert canonical("all_reduce", "RING : segments = 4") == "ring:segments=4"
    assert canonical("all_reduce", "segmented_ring:segments=1") == "ring"
    assert canonical("all_reduce", "tree") == "double_binary_tree"
    assert canonical("broadcast", "chain:segments=8") == "chain"
    assert parse_spec("broadcast", "chain").values == {"segments": 8}


def texts(parameter: Parameter) -> st.SearchStrategy[str]:
    """Values of a parameter as a user may write them."""
    integers = st.integers(parameter.low, parameter.high).map(str)
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    if parameter.of:
        short = st.sampled_from(names(parameter.of))
        return st.one_of(short, st.just("ring(segments=3)")) if "ring" in names(parameter.of) else short
    if parameter.separator:
        entries = st.one_of(integers, st.tuples(integers, st.integers(1, 9)).map(lambda pair: f"{pair[0]} * {pair[1]}"))
        return st.lists(entries, min_size=1, max_size=5).map(parameter.separator.join)
    return integers


@given(st.sampled_from(all_algorithms()), st.data())
def test_specs_round_trip(entry, data) -> None:
    settings = []
    for parameter in entry.parameters:
        settings.append(f"{parameter.name}={data.draw(texts(parameter))}")
    spec = ":".join([data.draw(st.sampled_from([entry.name, *entry.aliases, entry.name.upper()])), *settings])
    short = canonical(entry.collective, spec)
    assert canonical(entry.collective, short) == short
    assert parse_spec(entry.collective, short) == parse_spec(entry.collective, spec)


@given(st.sampled_from(COLLECTIVES), st.text(alphabet="ring_tebomual:=,^;1234 ", max_size=30))
def test_any_text_is_a_spec_or_a_clean_error(collective: str, text: str) -> None:
    try:
        entry, _ = parse_spec(collective, text)
    except InvalidArgument:
        return
    assert entry.name in names(collective)


def test_no_name_is_taken_twice_and_none_is_a_collective() -> None:
    for collective in COLLECTIVES:
        words = [word for name in names(collective) for word in (name, *get(collective, name).aliases)]
        assert len(words) == len(set(words))
        assert not {word.replace("_", "") for word in words} & {other.replace("_", "") for other in COLLECTIVES}
    with pytest.raises(InvalidArgument, match="already has an algorithm 'tree'"):
        algorithm("tree", "all_reduce")(lambda n: Schedule.empty("all_reduce", n, 1))


def test_every_entry_is_described() -> None:
    for entry in all_algorithms():
        assert entry.summary
        assert entry.reference
        assert entry.cost
        assert entry.function.__doc__
        check(entry.collective, entry.name, 64)


def test_built_schedules_are_kept_and_bear_their_name() -> None:
    first = build("all_reduce", "ring:segments=2", 7)
    assert build("all_reduce", "RING:segments=2", 7) is first
    assert first.name == "ring:segments=2"
    for n in range(1, 100):  # more than are kept
        build("broadcast", "binomial", n)
    assert build("all_reduce", "ring:segments=2", 7) == first


def test_hash_is_the_same_in_every_process() -> None:
    name = "all_reduce/ring:segments=4"
    assert algorithm_hash(name) == 0x4BA533B033405D16
    code = f"from ringleader.algorithms import algorithm_hash; print(algorithm_hash({name!r}))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={"PYTHONHASHSEED": "7"},
    )
    assert int(other.stdout) == algorithm_hash(name)
    hashes = {algorithm_hash(f"{entry.full_name}") for entry in all_algorithms()}
    assert len(hashes) == len(all_algorithms())
    assert all(0 <= value < 2**64 for value in hashes)


def test_the_page_says_what_the_registry_says() -> None:
    """Each row is true; one that is still missing is put there by ``python -m ringleader.algorithms.table``."""
    text = PAGE.read_text(encoding="utf-8")
    inside = text.partition(BEGIN)[2].partition(END)[0]
    rows = [line for line in inside.splitlines() if line.startswith("| `")]
    known = [line.rpartition("[")[0] for line in render().splitlines() if line.startswith("| `")]  # without the number
    assert len(rows) >= 60 and {row.rpartition("[")[0] for row in rows} <= set(known)
    for entry in all_algorithms():
        assert f"| `{entry.name}`" not in text or entry.reference in text
    assert insert(insert(text)) == insert(text)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="table: begin"):
        insert("# Nothing here\n")


@pytest.mark.parametrize(
    "module",
    [
        f"{package.__name__}.{info.name}"
        for package in (ringleader.algorithms, ringleader.tune)
        for info in pkgutil.iter_modules(package.__path__)
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
