"""Rules of Open MPI and NCCL, in and out: what they mean, what cannot be said, what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.formats import nccl_tuner, ompi_rules, ompi_rules_json
from ringleader.formats.exchange import Cover
from ringleader.formats.ompi_algorithms import COLLECTIVES
from ringleader.tune.rules import Range, Rule, RuleSet, Situation

REALDATA = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[3] / "shared" / "realdata")
needs_realdata = pytest.mark.skipif(not REALDATA.is_dir(), reason="no folder of real files (RINGLEADER_REALDATA)")

ALLREDUCE = COLLECTIVES[2]
NODES = {"shm": lambda n: (0,) * n, "net": lambda n: tuple(range(n)), "mixed": lambda n: (*range(n - 1), 0)}


def real(path: str) -> str:
    return (REALDATA / path).read_text()


def chosen(rules: RuleSet, collective: str, nbytes: int, nodes: tuple[int, ...]) -> tuple[str, int] | None:
    """Algorithm and segment of the first rule that fits."""
    rule = next(rules.fitting(Situation(collective, nbytes, nodes)), None)
    return None if rule is None else (rule.algorithm, rule.segment)


def text_of(notes: tuple[Any, ...]) -> str:
    return "\n".join(map(str, notes))


# ------------------------------------------------------------------------------------------------------ real files


@needs_realdata
def test_a_users_alltoall_file():
    read = ompi_rules.loads(real("ompi-rules/tuned-alltoall-64.txt"))
    assert read.notes == ()
    for nbytes, algorithm in [(0, "bruck"), (99, "bruck"), (100, "bruck"), (8191, "bruck"), (8192, "pairwise")]:
        assert chosen(read.rules, "all_to_all", nbytes, (0,) * 64) == (algorithm, 0)
    assert chosen(read.rules, "all_to_all", 0, (0,) * 100) == ("bruck", 0), "the nearest lower size decides"
    assert chosen(read.rules, "all_to_all", 0, (0,) * 63) is None


@needs_realdata
def test_the_tuning_tools_file_is_read_by_its_lines():
    text = real("ompi-rules/tuned-12collectives-36core.txt")
    read = ompi_rules.loads(text)
    notes = text_of(read.notes)
    assert "line 5: all 72 numbers of message sizes, this the first, are one larger than the rows that follow" in notes
    assert "line 17: 22 communicator sizes, this the first, do not begin with a row for 0 bytes" in notes
    assert "line 65: allgatherv has no counterpart here" in notes and "alltoallv has no counterpart" in notes
    assert "line 39: allgather algorithm 1 (linear) for 16-31 ranks, 0-63 bytes: there is no such algorithm" in notes
    # Every row, by the words of the documentation: the nearest lower sizes decide.
    rows = by_rows(text)
    assert len(rows) == 12 and sum(len(r) for by in rows.values() for r in by.values()) > 400
    for number, (ours, names) in {
        2: ("all_reduce", {3: "recursive_doubling", 4: "ring", 5: "ring:segments=1", 6: "rabenseifner", 1: "linear",
                           2: "binomial"}),
        3: ("all_to_all", {1: "direct", 2: "pairwise", 3: "bruck", 4: "direct"}),
        15: ("scatter", {1: "linear", 2: "binomial"}),
    }.items():  # fmt: skip
        for ranks in (4, 5, 8, 31, 64, 200):
            table = rows[number][max(size for size in rows[number] if size <= ranks)]
            for nbytes in (0, 1, 8, 100, 4096, 5000, 65536, 1 << 20, 1 << 30):
                lower = [algorithm for size, algorithm in table if size <= nbytes]
                expected = names.get(lower[-1]) if lower else None
                found = chosen(read.rules, ours, nbytes, (0,) * ranks)
                assert (found and found[0]) == (expected and expected.removesuffix(":segments=1")), (
                    ours,
                    ranks,
                    nbytes,
                )


def by_rows(text: str) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """collective -> size -> [(bytes, algorithm)], from the comments and lines of the tool."""
    found: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for line in text.splitlines():
        number = int(line.split()[0])
        if "Collective ID" in line:
            found[number] = {}
        elif "Com size" in line:
            found[list(found)[-1]][number] = []
        elif "#" not in line:
            sizes = found[list(found)[-1]]
            sizes[list(sizes)[-1]].append((number, int(line.split()[1])))
    return found


@needs_realdata
def test_the_documentations_json_example():
    read = ompi_rules_json.loads(real("ompi-rules/tuned-v3-doc-example.json"))
    assert [str(rule) for rule in read.rules.rules] == [
        "all_reduce[ranks=64-128,bytes=512-511999]: binomial",
        "all_reduce[ranks=64-128,bytes=500K-]: recursive_doubling",
    ]
    assert "line 12: allreduce algorithm 2 (nonoverlapping)" in text_of(read.notes)
    assert "limit of 8 requests is left out" in text_of(read.notes)


@needs_realdata
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ompi-rules/han-header-example.txt", r"line 15.*begins as a HAN rules file does, and as one it is incomplete: "
         r"HAN, line 15: the file ends here, but the topologic level count of collective 2 of 2 should follow"),
        ("ompi-rules/tuned-detail-times.txt", r"line 2: '64\.33\(0\.94\)' is not a number"),
        ("ompi-rules/tuned-v3-doc-example.json", "line 1: this is JSON; read it as format ompi-json"),
    ],
)  # fmt: skip
def test_what_is_no_tuned_file_is_refused(path: str, message: str):
    with pytest.raises(InvalidArgument, match=message):
        ompi_rules.loads(real(path))


@needs_realdata
def test_nccls_example():
    text = real("nccl-tuner/nccl_tuner-example.conf")
    plain, registered = nccl_tuner.loads(text), nccl_tuner.loads(text, registered=True)
    assert [str(rule) for rule in plain.rules.rules] == [
        "all_reduce[ranks=32,nodes=4,bytes=65537-1M]: ring channels=4",
        "broadcast[bytes=32769-]: chain channels=2",
        "all_gather[nodes=2]: ring channels=4",
    ]
    assert str(registered.rules.rules[0]) == "all_reduce[nodes=1,bytes=0-64K]: double_binary_tree channels=2"
    assert "line 45: NCCL has no tree for reduce, so the line never decides" in text_of(plain.notes)
    assert "line 26: numPipeOps=4 is for groups" in text_of(plain.notes)
    with pytest.raises(InvalidArgument, match="line 1: this is a table of measurements"):
        nccl_tuner.loads(real("nccl-tuner/nccl_tuner-sample-performance.csv"))


@needs_realdata
def test_our_json_keeps_open_mpis_schema():
    jsonschema = pytest.importorskip("jsonschema")
    schema = _repaired(json.loads(real("ompi-rules/tuned-v3-schema.json")))
    rules = RuleSet(
        (
            Rule("all_reduce", layouts=("net",), ranks=Range(2, 8), algorithm="ring"),
            Rule("broadcast", nbytes=Range(0, 1000), algorithm="knomial"),
            Rule("reduce", nbytes=Range(1000), algorithm="binomial"),
        ),
        "test",
    )
    written = json.loads(ompi_rules_json.dumps(rules).text)
    jsonschema.Draft201909Validator(schema).validate(written)
    written["collectives"]["bcast"][0]["rules"][0]["alg"] = 1.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(schema).validate(written)


def _repaired(schema: dict[str, Any]) -> dict[str, Any]:
    """The published schema refers to a list (`int_or_inf`) where a schema should be: here the list itself."""
    either = schema["$defs"].pop("int_or_inf")
    for part in ("msg_size_rule", "comm_size_rule"):
        for member in schema["$defs"][part]["properties"].values():
            if "anyOf" in member:
                member["anyOf"] = either
    return schema


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


# ---------------------------------------------------------------------------------------------------- Open MPI, out


@st.composite
def rule_sets(draw: st.DrawFn) -> RuleSet:
    """Overlapping rules with all of which Open MPI can do something."""

    def limits(most: int) -> Range:
        low, high = sorted(draw(st.tuples(st.integers(0, most), st.integers(0, most))))
        return Range(low) if draw(st.booleans()) else Range(low, high)

    rules = []
    for _ in range(draw(st.integers(1, 6))):
        collective, algorithm, segment = draw(
            st.sampled_from(
                [
                    ("all_reduce", "ring", 0), ("all_reduce", "ring", 512), ("all_reduce", "linear", 0),
                    ("broadcast", "chain", 256), ("broadcast", "chain:segments=1", 0), ("broadcast", "knomial", 0),
                    ("barrier", "tree", 0), ("reduce", "binary_tree", 64), ("gather", "binomial", 0),
                ]
            )
        )  # fmt: skip
        layouts = draw(st.sampled_from([("shm", "net", "mixed"), ("shm",), ("net", "mixed")]))
        rules.append(Rule(collective, layouts, limits(20), nbytes=limits(90), algorithm=algorithm, segment=segment))
    return RuleSet(tuple(rules), "test")


@settings(max_examples=25, deadline=None)
@given(rule_sets(), st.lists(st.tuples(st.integers(3, 25), st.integers(0, 100)), min_size=8, max_size=8))
def test_what_is_written_means_the_same(rules: RuleSet, points: list[tuple[int, int]]):
    whole = ompi_rules_json.loads(ompi_rules_json.dumps(rules).text).rules
    for layout, nodes in NODES.items():
        for version in (1, 2):
            one = ompi_rules.loads(ompi_rules.dumps(rules, version, layout).text).rules
            for ranks, nbytes in points:
                for collective in ("all_reduce", "broadcast", "barrier", "reduce", "gather"):
                    expected = chosen(rules, collective, nbytes, nodes(ranks))
                    assert chosen(one, collective, nbytes, nodes(ranks)) == expected
                    assert chosen(whole, collective, nbytes, nodes(ranks)) == expected


def test_what_open_mpi_cannot_be_told_is_listed():
    rules = RuleSet(
        (
            Rule("all_reduce", nodes=Range(2, 2), algorithm="ring"),
            Rule("all_reduce", layouts=("shm",), algorithm="one_shot"),
            Rule("all_reduce", nbytes=Range(0, 9), algorithm="two_shot", protocol="push", channels=2),
            Rule("all_reduce", nbytes=Range(0, 99), algorithm="ring:segments=4"),
            Rule("all_reduce", nbytes=Range(0, 999), algorithm="allgather_reduce"),
            Rule("all_reduce", algorithm="^ring", wire="bf16"),
            Rule("all_reduce", algorithm="ring", channels=4),
        ),
        "test",
    )
    written = ompi_rules.dumps(rules)
    rows = [line for line in written.text.splitlines() if re.match(r"\d+ \d+ \d+ \d+", line)]
    assert rows == ["0 0 0 0", "1000 4 0 0 # ring"]
    notes = text_of(written.notes)
    for text in (
        "rule 1 (all_reduce[nodes=2]: ring): Open MPI has no condition on nodes; left out",
        "rule 2 (all_reduce[layout=shm]: one_shot): not for net; left out",
        "Open MPI's allreduce has no such algorithm; Open MPI decides there",
        "a number of segments (4) cannot be said, only their size",
        "only Open MPI 6.0 and later have allgather_reduce",
        "an exclusion cannot be said",
        "wire=bf16 cannot be said",
        "rule 7 (all_reduce: ring channels=4): channels=4 cannot be said",
        "protocol=push cannot be said",
    ):
        assert text in notes, text
    assert "allgather_reduce" in ompi_rules_json.dumps(rules).text
    for arguments in ({"version": 3}, {"layout": "star"}):
        with pytest.raises(InvalidArgument, match="expected"):
            ompi_rules.dumps(rules, **arguments)


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
def test_nccl_files_come_back(rows: list[Any]):
    names = {ours: name for name, ours in nccl_tuner.COLLECTIVES.items()}
    lines = [f"{names[c]},{low},{high},{a},simple,{ch},{n},{r}" for (c, a), (low, high), n, r, ch in rows]
    read = nccl_tuner.loads("\n".join(lines))
    assert read.notes == () and len(read.rules.rules) == len(rows)
    written = nccl_tuner.dumps(read.rules)
    assert written.notes == ()
    assert [line.removesuffix(",-1,-1") for line in written.text.splitlines()[2:]] == lines
    assert nccl_tuner.loads(written.text).rules.rules == read.rules.rules


def test_what_nccl_cannot_be_told_is_listed():
    rules = RuleSet(
        (
            Rule("all_reduce", ranks=Range(2, 8), algorithm="ring"),
            Rule("all_reduce", layouts=("shm",), algorithm="ring", segment=1024),
            Rule("all_to_all", algorithm="pairwise"),
            Rule("all_reduce", algorithm="^ring"),
            Rule("all_gather", layouts=("net",), algorithm="pat"),
            Rule("reduce_scatter", algorithm="pat:aggregation=2", protocol="pull"),
        ),
        "test",
    )
    written = nccl_tuner.dumps(rules, "ll")
    assert [line for line in written.text.splitlines() if not line.startswith("#")] == [
        "allreduce,0,4294967295,ring,ll,-1,1,-1,-1,-1",
        "reducescatter,0,4294967295,pat,ll,-1,-1,-1,-1,-1",
    ]
    notes = text_of(written.notes)
    for text in (
        "rule 1 (all_reduce[ranks=2-8]: ring): ranks is a range; left out", "segment=1024 cannot be said",
        "rule 3 (all_to_all: pairwise): NCCL has no pairwise for all_to_all; left out",
        "NCCL has no condition on layout=net; left out", "aggregation=2 cannot be said", "protocol=pull cannot be said",
    ):  # fmt: skip
        assert text in notes, text


# -------------------------------------------------------------------------------------------------------- bad input

HEAD = '{"rule_file_version": 3, "module": "tuned", "collectives": '
BAD_CLASSIC = [
    ("", "line 1: the file ends here, but the number of collectives should follow"),
    ("1099511627776", "line 1: 1099511627776 collectives; Open MPI has 22"),
    ("1\n22", "line 2: collective id 22; expected 0 to 21"),
    ("2 2 0 2 0", r"line 1: collective id 2 \(allreduce\) is given twice"),
    ("1\n2\n1099511627776\n2\n1\n0 1 0 0\n", "ends here, but communicator size 2 of 1099511627776 of allreduce"),
    ("1\n2\n1\n2\n1099511627776\n0 1 0 0\n", "line 5: 1099511627776 message sizes for 2 ranks, but 1 rows follow"),
    ("1\n2\n1\n2\n1\n0 1 0 0\n9 1 0 0", "line 7: 9 follows the last rule; is a count further up too small"),
    ("1\n2\n2\n2\n1\n0 1 0 0\n9 1 0 0\n4\n1\n0 1 0 0", "line 7: a row of 4 numbers, where communicator size 2 of 2"),
    ("1\n2\n2\n4\n1\n0 1 0 0\n2\n1\n0 1 0 0", "line 8: communicator size 2 of allreduce after 4; expected ascending"),
    ("1\n2\n1\n4\n2\n9 1 0 0\n9 1 0 0", "line 7: row 2 of 2 .* is for 9 bytes, after 9; expected ascending sizes"),
    ("1\n2\n1\n4\n1\n0 8 0 0", r"line 6: allreduce has no algorithm 8; expected 0 \(ignore\), 1 \(basic_linear\)"),
    ("1\n2\n1\n4\n1\n0 -1 0 0", "line 6: '-1' is negative"),
    ("1\n2\n1\n4\n1\n0 1 0 0x10", "line 6: '0x10' is not a number"),
    ("1\n2\n1\n4\n1\n0 1 0 010", r"line 6: '010' begins with 0 \(Open MPI reads it as octal\)"),
    (f"1\n2\n1\n4\n1\n0 1 0 {1 << 62}", "line 6: 4611686018427387904 is too large"),
    ("1\n2\n1\n4\n1\n0 1 0 " + "9" * 9999, "line 6: '9{37}...' has too many digits"),
    ("rule-file-version-3\n1", "line 1: rule-file-version-3; expected 1 or 2"),
    ("1\n2\n1\n4\n1\n\x00\x01", "line 6: .* is not a number"),
    ("1\n2\n1\n4\n5000\n" + "".join(f"{i} 1 0 0\n" for i in range(5000)), "more than 4096 rows"),
    ("1 # " * 400000, "characters; expected at most 1048576"),
]
BAD_JSON = [
    ("", "line 1, column 1"),
    (HEAD, "line 1"),
    ("[" * 100000, "nested deeper"),
    (HEAD + "{" * 50 + "}}", "line 1"),
    ('{"rule_file_version": 2}', "rule_file_version is 2; expected 3"),
    ('{"rule_file_version": true}', "rule_file_version is true; expected 3"),
    ('{"rule_file_version": 3, "module": "han"}', 'module is "han"; expected "tuned"'),
    (HEAD + "[]}", "collectives: an array; expected an object"),
    (HEAD + '{\n"allsum": []}}', "line 2, collectives: unknown collective 'allsum'; expected allgather"),
    (HEAD + '{"allreduce": [], "allreduce": []}}', "is given twice"),
    (HEAD + '{"reducescatter": [], "reduce_scatter": []}}', "the same collective as reducescatter"),
    (HEAD + '{"bcast": {}}}', "line 1, bcast: an object; expected an array of entries"),
    (HEAD + '{"bcast": [\n\n{"rules": 3}]}}', r"line 3, bcast\[0\]\.rules: 3; expected an array of rules"),
    (HEAD + '{"bcast": [\n{"comm_size_min": 9, "comm_size_max": 3, "rules": []}]}}', "comm_size_min 9 is above"),
    (HEAD + '{"bcast": [{"comm_size_min": -1, "rules": []}]}}', r"bcast\[0\]\.comm_size_min: -1; expected 0 to 2\^62"),
    (HEAD + '{"bcast": [{"comm_size_min": 1099511627776.5, "rules": []}]}}', "fraction or exponent"),
    (HEAD + '{"bcast": [{"rules": [\n{"msg_size_min": 1}]}]}}', r"line 2, bcast\[0\]\.rules\[0\]\.alg: null; expected"),
    (HEAD + '{"bcast": [{"rules": [{"alg": 1, "algo": 1}]}]}}', 'unknown member "algo"; valid: msg_size_min'),
    (HEAD + '{"bcast": [{"comm_rank_distribution": "ring", "rules": []}]}}', '"ring"; expected any, single-node'),
    ('"' + '\\"' * 400000, "line 1"),
]
BAD_CSV = [
    ("allreduce,0,1", "line 1: 3 columns; expected 8 to 10: collective_type,min_bytes"),
    ("\n#\nallsum,0,1,ring,simple,1,1,1", "line 3, collective_type: unknown word 'allsum'"),
    ("allreduce,0,1,rings,simple,1,1,1", "line 1, algorithm: unknown word 'rings'; did you mean 'ring'"),
    ("allreduce,0,1,ring,fast,1,1,1", "line 1, protocol: unknown word 'fast'"),
    ("allreduce,9,1,ring,simple,1,1,1", "line 1, max_bytes: 1 is less than min_bytes, 9"),
    ("allreduce,-1,1,ring,simple,1,1,1", "line 1, min_bytes: '-1'; expected a number from 0"),
    ("allreduce,0,1,ring,simple,0,1,1", "line 1, channels: 0; expected a number from 1, or -1 for any"),
    ("allreduce,0,1,ring,simple,1,1,1e3", "line 1, nRanks: '1e3'; expected a number"),
    (f"allreduce,0,{1 << 64},ring,simple,1,1,1", "line 1, max_bytes"),
    (f"allreduce,0,1,ring,simple,{1 << 40},1,1", "line 1, channels: '1099511627776'"),
    ("allreduce,0,1,ring,simple,1,1,1,1,2", "line 1, regBuff: '2'"),
    ("allreduce,0,1,ring,simple,1,1,1,1,1,1", "line 1: 11 columns"),
    ("# " + "x" * 300, "line 1: 302 characters; NCCL reads at most 255"),
    ("allreduce,0,1,ring,simple,1,1,1\n" * 5000, "line 4097: more than 4096 choices"),
    ("a,\x00" * 60, "columns"),
    ("#\n" * 600000, "characters; expected at most 1048576"),
]
READERS = {"ompi": ompi_rules.loads, "ompi-json": ompi_rules_json.loads, "nccl-csv": nccl_tuner.loads}


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [(form, *case) for form, cases in zip(READERS, (BAD_CLASSIC, BAD_JSON, BAD_CSV), strict=True) for case in cases],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_bad_input_is_refused_with_its_place(form: str, text: str, message: str):
    with pytest.raises(InvalidArgument, match=message) as caught:
        READERS[form](text, "file")
    assert str(caught.value).startswith("file") and len(str(caught.value)) < 1000


@pytest.mark.parametrize("form", sorted(READERS))
def test_hostile_files_cost_little_memory(form: str):
    import tracemalloc

    texts = ["9 " * 500000, "1\n" * 500000, "{" * 1000000, "," * 1000000, '{"a":[' * 150000, "\x00" * 1000000]
    for text in texts:
        tracemalloc.start()
        try:
            with pytest.raises(InvalidArgument):
                READERS[form](text, "file")
            assert tracemalloc.get_traced_memory()[1] < 100 << 20, (form, text[:10])
        finally:
            tracemalloc.stop()


WORDS = st.sampled_from(
    ["0", "1", "2", "3", "7", "9", "12", "#", "\n", " ", ",", "-1", "{", "}", "[", "]", ":", '"', "allreduce", "ring",
     "simple", "alg", "rules", "inf", "rule-file-version-2", "1099511627776", "\x00", "é", '"collectives"', "3.5"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(READERS)), st.lists(WORDS, max_size=60).map("".join) | st.text(max_size=200))
def test_no_text_does_anything_but_be_read_or_refused(form: str, text: str):
    try:
        READERS[form](text)
    except InvalidArgument as error:
        assert "line" in str(error)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject):
    form = data.draw(st.sampled_from(sorted(READERS)))
    rules = RuleSet(
        (Rule("all_reduce", ranks=Range(4, 8), algorithm="ring"), Rule("reduce", algorithm="binomial")), "t"
    )
    whole = {
        "ompi": lambda: ompi_rules.dumps(rules, 2).text,
        "ompi-json": lambda: ompi_rules_json.dumps(rules).text,
        "nccl-csv": lambda: nccl_tuner.dumps(RuleSet((Rule("reduce", algorithm="chain"),), "t")).text,
    }[form]()
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(WORDS | st.just("")) + whole[at + data.draw(st.integers(0, 20)) :]
    try:
        READERS[form](damaged)
    except InvalidArgument as error:
        assert "line" in str(error)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=8))
def test_a_cover_gives_every_number_to_the_first_who_claims_it(claims: list[list[int]]):
    cover, owner = Cover(), {}
    for index, (low, high) in enumerate(claims):
        for part in cover.claim(Range(low, high)):
            for number in range(part.low, part.high + 1):
                assert number not in owner
                owner[number] = index
    for number in range(31):
        assert owner.get(number) == next((i for i, (a, b) in enumerate(claims) if a <= number <= b), None)
