"""Rules of Open MPI and NCCL: what they mean, what is not taken over, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from formats_support import WHOLE, chosen, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import InvalidArgument
from ringleader.tune.formats import nccl_tuner, ompi_rules, ompi_rules_json
from ringleader.tune.formats.exchange import Cover
from ringleader.tune.rules import Range

REALDATA = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[3] / "shared" / "realdata")
needs_realdata = pytest.mark.skipif(not REALDATA.is_dir(), reason="no folder of real files (RINGLEADER_REALDATA)")


def real(path: str) -> str:
    return (REALDATA / path).read_text()


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
    (HEAD + '{\n"allsum": []}}', "line 2, collectives: unknown collective 'allsum'; valid: allgather"),
    (HEAD + '{"allreduce": [], "allreduce": []}}', "is given twice"),
    (HEAD + '{"reducescatter": [], "reduce_scatter": []}}', "the same collective as reducescatter"),
    (HEAD + '{"bcast": {}}}', "line 1, bcast: an object; expected an array of entries"),
    (HEAD + '{"bcast": [\n\n{"rules": 3}]}}', r"line 3, bcast\[0\]\.rules: 3; expected an array of rules"),
    (HEAD + '{"bcast": [\n{"comm_size_min": 9, "comm_size_max": 3, "rules": []}]}}', "comm_size_min 9 is above"),
    (HEAD + '{"bcast": [{"comm_size_min": -1, "rules": []}]}}', r"bcast\[0\]\.comm_size_min: -1; expected 0 to 2\^62"),
    (HEAD + '{"bcast": [{"comm_size_min": 1099511627776.5, "rules": []}]}}', "fraction or exponent"),
    (HEAD + '{"bcast": [{"rules": [\n{"msg_size_min": 1}]}]}}', r"line 2, bcast\[0\]\.rules\[0\]\.alg: null; expected"),
    (
        HEAD + '{"bcast": [{"rules": [{"alg": 1, "algo": 1}]}]}}',
        "unknown member 'algo'; did you mean 'alg'\\? Valid: msg",
    ),
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
    whole = WHOLE[form]
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
