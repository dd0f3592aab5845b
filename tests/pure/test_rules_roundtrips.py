"""Rules in the formats of Open MPI and NCCL: generated files mean what the formats' definitions say."""

from __future__ import annotations

import json
from typing import Any

from formats_support import NODES, chosen, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.tune.formats import nccl_tuner, ompi_rules, ompi_rules_json
from ringleader.tune.rules import ANY, Range

# -------------------------------------------------------------------------------------------------- Open MPI, meaning


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted)
BYTES = st.lists(st.integers(1, 300), max_size=4, unique=True).map(lambda sizes: [0, *sorted(sizes)])
NUMBERS = st.sampled_from([0, 1, 3, 4, 6])
NAMES = {1: "linear", 3: "recursive_doubling", 4: "ring", 6: "rabenseifner"}


@settings(max_examples=60, deadline=None)
@given(st.data(), SIZES, st.sampled_from([1, 2]))
def test_classic_files_mean_the_nearest_lower_sizes(data: st.DataObject, sizes: list[int], version: int):
    tables = {size: [(low, data.draw(NUMBERS)) for low in data.draw(BYTES)] for size in sizes}
    lines = [f"rule-file-version-{version}"] if version == 2 or data.draw(st.booleans()) else []
    lines += ["1 # collectives", "# a comment", "2", f"{len(sizes)}"]
    for size, rows in tables.items():
        lines += [f"{size} # ranks", str(len(rows))]
        lines += [
            f"{low} {number} 0 0{' 0' if version == 2 and data.draw(st.booleans()) else ''}" for low, number in rows
        ]
    read = ompi_rules.loads("\n".join(lines))
    for ranks in data.draw(st.lists(st.integers(1, 50), min_size=5, max_size=5)):
        for nbytes in data.draw(st.lists(st.integers(0, 400), min_size=5, max_size=5)):
            lower = [size for size in sizes if size <= ranks]
            number = [a for low, a in tables[lower[-1]] if low <= nbytes][-1] if lower else 0
            found = chosen(read.rules, "all_reduce", nbytes, (0,) * ranks)
            assert (found and found[0]) == NAMES.get(number)


LIMITS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)
RULE = st.tuples(LIMITS, st.sampled_from([0, 1, 3, 4, 6, "ring", "basic_linear", "ignore", "unheard-of", 99]))
ENTRY = st.tuples(LIMITS, st.sampled_from(["any", "single-node", "one-per-node"]), st.lists(RULE, max_size=4))


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRY, max_size=4), st.lists(st.tuples(st.integers(3, 45), st.integers(0, 45)), min_size=8, max_size=8))
def test_json_files_mean_the_first_entry_that_fits_and_its_first_rule(entries: list[Any], points: list[Any]):
    written = [
        {
            "comm_size_min": low,
            "comm_size_max": high,
            "comm_rank_distribution": distribution,
            "rules": [{"msg_size_min": a, "msg_size_max": b, "alg": alg} for (a, b), alg in rules],
        }
        for (low, high), distribution, rules in entries
    ]
    read = ompi_rules_json.loads(
        json.dumps({"rule_file_version": 3, "module": "tuned", "collectives": {"allreduce": written}}, indent=1)
    )
    fits = {"any": ("shm", "net", "mixed"), "single-node": ("shm",), "one-per-node": ("net",)}
    for ranks, nbytes in points:
        for layout, nodes in NODES.items():
            entry = next((e for e in entries if layout in fits[e[1]] and e[0][0] <= ranks <= e[0][1]), None)
            known = [] if entry is None else [r for r in entry[2] if r[1] not in ("unheard-of", 99)]
            alg = next((alg for (a, b), alg in known if a <= nbytes <= b), 0)
            found = chosen(read.rules, "all_reduce", nbytes, nodes(ranks))
            assert (found and found[0]) == (
                NAMES.get(alg) if isinstance(alg, int) else {"ignore": None, "basic_linear": "linear"}.get(alg, alg)
            )


def test_parameters_of_open_mpis_algorithms():
    read = ompi_rules.loads(
        "2\n7\n1\n2\n7\n0 3 0 1024\n10 3 0 0\n20 2 4 0\n30 2 1 8\n40 6 0 512\n50 7 2 0\n60 9 0 0\n"
        "0\n1\n4\n2\n0 2 3 0\n9 6 0 0\n"
    )
    found = {n: chosen(read.rules, "broadcast", n, (0, 0)) for n in (0, 10, 20, 30, 40, 50, 60)}
    assert found == {
        0: ("chain", 1024), 10: ("chain:segments=1", 0), 20: None, 30: ("chain", 8), 40: ("binomial", 0),
        50: ("knomial", 0), 60: ("scatter_allgather", 0),
    }  # fmt: skip
    assert chosen(read.rules, "all_gather", 0, (0,) * 4) == ("bruck:radix=3", 0)
    notes = text_of(read.notes)
    assert "line 8: bcast algorithm 2 (chain) for 2- ranks, 20-29 bytes: it has 4 chains side by side" in notes
    assert "line 10: bcast algorithm 6 (binomial) for 2- ranks, 40-49 bytes: segments of 512 bytes are not cut" in notes
    assert "line 18: allgather algorithm 6 (two_proc) for 4- ranks, 9- bytes: it is for 2 ranks only" in notes


def test_blocks_of_equal_size_are_reduce_scatter_block():
    """Both of Open MPI's collectives are ours; where both say something, the one with equal blocks decides."""
    read = ompi_rules.loads("2\n12\n1\n2\n2\n0 3 0 0\n100 3 0 0\n13\n1\n2\n2\n0 0 0 0\n100 3 0 0\n")
    assert chosen(read.rules, "reduce_scatter", 5, (0, 0)) == ("ring", 0)
    assert chosen(read.rules, "reduce_scatter", 100, (0, 0)) == ("recursive_halving", 0)


def test_a_file_that_chooses_nothing_says_so():
    for read in (
        ompi_rules.loads("0"),
        ompi_rules.loads("1 2 1 4 1 0 0 0 0"),
        ompi_rules_json.loads('{"rule_file_version": 3, "module": "tuned", "collectives": {"scan": []}}'),
        nccl_tuner.loads("# nothing\n\n"),
    ):
        assert read.rules.rules == () and "nothing in the file chooses an algorithm" in text_of(read.notes)


# ------------------------------------------------------------------------------------------------------------- NCCL


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(nccl_tuner.OURS)), LIMITS, st.sampled_from([-1, 1, 2, 4]),
            st.sampled_from([-1, 3, 4, 8]), st.sampled_from([-1, 1, 64]),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_nccl_files_mean_one_rule_a_line(rows: list[Any]):
    names = {ours: name for name, ours in nccl_tuner.COLLECTIVES.items()}
    lines = [f"{names[c]},{low},{high},{a},simple,{ch},{n},{r}" for (c, a), (low, high), n, r, ch in rows]
    read = nccl_tuner.loads("\n".join(lines))
    assert read.notes == () and len(read.rules.rules) == len(rows)
    for rule, ((collective, algorithm), (low, high), nodes, ranks, channels) in zip(
        read.rules.rules, rows, strict=True
    ):
        assert (rule.collective, rule.algorithm) == (collective, nccl_tuner.OURS[collective, algorithm])
        assert (rule.nbytes, rule.channels) == (Range(low, high), max(channels, 0))
        assert (rule.nodes, rule.ranks) == tuple(ANY if it < 0 else Range(it, it) for it in (nodes, ranks))
