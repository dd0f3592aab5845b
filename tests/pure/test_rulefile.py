"""Rules as text: what is read, what is refused and how fast, and who decides."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.algorithms import COLLECTIVES, get, names
from ringleader.errors import InvalidArgument
from ringleader.tune import BUILT_IN, dumps, explain, load, loads, select, select_wire
from ringleader.tune.conditions import LAYOUTS, WIRES, Conditions, Range, Situation
from ringleader.tune.rules import MAX_CHANNELS, PROTOCOLS, REDUCTIONS, Rule, RuleSet
from ringleader.tune.select import problem


def text_of(*rules: dict[str, Any], **members: Any) -> str:
    whole = {"format": "ringleader-rules", "version": 1, "rules": list(rules)} | members
    return json.dumps(whole, indent=1)


RING = {"collective": "all_reduce", "algorithm": "ring"}

# ---------------------------------------------------------------- reading and writing


def test_everything_a_rule_can_say() -> None:
    entry = {
        "collective": "all_reduce", "layout": "mixed net", "ranks": "2-8", "nodes": 2, "ranks_per_node": "1-4",
        "even": False, "bytes": "64K-1M", "wire_bytes": "1K-", "algorithm": "Segmented_Ring", "protocol": "PULL",
        "channels": 2, "segment": "256K", "wire": "bf16",
    }  # fmt: skip
    (rule,) = loads(text_of(entry)).rules
    assert rule == Rule(
        "all_reduce", ("net", "mixed"), Range(2, 8), Range(2, 2), Range(1, 4), False, Range(1 << 16, 1 << 20),
        Range(1024), algorithm="ring", protocol="pull", channels=2, segment=1 << 18, wire="bf16",
    )  # fmt: skip
    assert str(rule) == (
        "all_reduce[layout=net mixed,ranks=2-8,nodes=2,ranks_per_node=1-4,even=false,bytes=64K-1M,wire_bytes=1K-]: "
        "ring pull wire=bf16 channels=2 segment=256K"
    )


ranges = st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)).map(lambda pair: Range(min(pair), max(pair)))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    collective = draw(st.sampled_from(COLLECTIVES))
    name = draw(st.sampled_from(["", "^", *names(collective)]))
    if name == "^":
        few = st.lists(st.sampled_from(names(collective)), unique=True, min_size=1, max_size=len(names(collective)) - 1)
        name = "^" + ",".join(draw(few))
    chooses = name and not name.startswith("^")
    segmented = chooses and "segments" in get(collective, name).defaults
    return Rule(
        collective,
        tuple(draw(st.lists(st.sampled_from(LAYOUTS), min_size=1))),
        **{field: draw(ranges) for field in ("ranks", "nodes", "ranks_per_node", "nbytes", "wire_bytes")},
        even=draw(st.sampled_from([None, True, False])),
        algorithm=name,
        protocol=draw(st.sampled_from(PROTOCOLS if not name else ("", *PROTOCOLS))),
        channels=draw(st.integers(0, MAX_CHANNELS)) if chooses else 0,
        segment=draw(st.integers(0, 1 << 62)) if segmented else 0,
        wire=draw(st.sampled_from(["", *WIRES])) if collective in REDUCTIONS else "",
    )


@given(st.lists(rules(), max_size=5))
def test_what_is_written_is_read(made: list[Rule]) -> None:
    impossible = [r for r in made if r.ranks.low == r.ranks.high and r.algorithm]
    given_rules = RuleSet(tuple(r for r in made if r not in impossible), "somewhere")
    assert loads(dumps(given_rules), "somewhere") == given_rules


def test_the_built_in_rules_are_in_the_same_grammar() -> None:
    written = dumps(BUILT_IN)
    assert loads(written, "built-in") == BUILT_IN
    assert len(written.splitlines()) == len(BUILT_IN.rules) + 6
    again = loads(written, "copy")
    assert again.where(again.rules[3]) == "copy, line 8 (rule 4)"


def test_a_built_in_set_given_as_a_file_changes_no_choice() -> None:
    copy = loads(dumps(BUILT_IN), "copy.json")
    for collective in COLLECTIVES:
        for nodes in ([0, 0], [0, 1, 2], [0, 0, 1, 1]):
            for nbytes in (8, 1 << 16, 1 << 24):
                mine = select(collective, nbytes, len(nodes), nodes, 4, env={}, rules=[copy])
                default = select(collective, nbytes, len(nodes), nodes, 4, env={})
                assert (mine.algorithm, mine.protocol) == (default.algorithm, default.protocol)
                assert mine.reason.startswith("copy.json, line ")


# ---------------------------------------------------------------- what is refused

WRONG: list[tuple[str, str]] = [
    ("", r"f.json, line 1, column 1: Expecting value"),
    ("[1, 2", r"f.json, line 1, column 6"),
    ('{"format": "ringleader-rules",\n "version": 1,\n "rules": [],}', r"f.json, line 3"),
    ("[]", r"f.json, line 1, file: an array; expected an object"),
    ('"rules"', r'f.json, line 1, file: "rules"; expected an object'),
    ("{}", r'line 1: member format is missing; expected "ringleader-rules"'),
    (text_of(format="ringleader-rule"), r'line 2: format is "ringleader-rule"; expected "ringleader-rules"'),
    (text_of(version=2), r"line 3: version is 2; expected 1"),
    (text_of(version=True), r"line 3: version is true; expected 1"),
    (text_of(version="1"), r'line 3: version is "1"; expected 1'),
    (text_of(rules={}), r"line 4: rules is an object; expected an array of rules"),
    (text_of(rule=[]), r"line 5, file: unknown member 'rule'; did you mean 'rules'\? Valid: format, version, rules"),
    (text_of(RING, 7), r"line 4, rules\[1\]: 7; expected an object"),  # type: ignore[arg-type]
    (text_of({"algorithm": "ring"}), r"line 5, rules\[0\]: member collective is missing"),
    (text_of(RING, {}), r"line 9, rules\[1\]: member collective is missing"),
    (text_of(RING, {**RING, "size": 3}), r"line 12, rules\[1\]: unknown member 'size'.*ranks, nodes"),
    (text_of({**RING, "collective": "allreduce"}), r"line 5, rules\[0\]: unknown collective 'allreduce'; did you mean"),
    (text_of({**RING, "collective": 3}), r"line 6, rules\[0\].collective: 3: expected text"),
    (
        text_of({**RING, "algorithm": "rign"}),
        r"line 5, rules\[0\]: unknown all_reduce algorithm 'rign'.*did you mean 'ring'\?",
    ),
    (text_of({**RING, "algorithm": "ring:colour=2"}), r"rules\[0\]: all_reduce algorithm .*is not a parameter of ring"),
    (text_of({**RING, "algorithm": None}), r"line 7, rules\[0\].algorithm: null: expected text"),
    (text_of({**RING, "algorithm": "^nothing"}), r"unknown all_reduce algorithm 'nothing'"),
    (text_of({**RING, "algorithm": "^" + ",".join(names("all_reduce"))}), r"leaves no algorithm for all_reduce"),
    (text_of({"collective": "barrier"}), r"rules\[0\]: the rule chooses nothing"),
    (text_of({**RING, "protocol": "ll128"}), r"rules\[0\]: unknown protocol 'll128'; valid: push, pull"),
    (text_of({**RING, "wire": "int9"}), r"unknown wire format 'int9'; did you mean 'int8'\? Valid: f32"),
    (text_of({"collective": "gather", "wire": "int8"}), r"wire=int8 for gather; a rule may set it for all_reduce"),
    (text_of({**RING, "layout": "shm ib"}), r"rules\[0\]: unknown layout 'ib'"),
    (text_of({**RING, "layout": ""}), r"for no layout at all"),
    (text_of({**RING, "layout": ["shm"]}), r"layout: an array: expected text: some of shm, net, mixed"),
    (
        text_of({**RING, "bytes": "1M-1K"}),
        r"line 8, rules\[0\].bytes: \"1M-1K\": range 1048576-1024: expected 0 <= low",
    ),
    (text_of({**RING, "bytes": "8T-9000000T"}), r"rules\[0\].bytes: .*<= 2\^62"),
    (text_of({**RING, "bytes": "-5"}), r"rules\[0\].bytes: \"-5\": '-5' is not a range"),
    (text_of({**RING, "bytes": -5}), r"rules\[0\].bytes: -5: range -5--5"),
    (text_of({**RING, "bytes": True}), r"rules\[0\].bytes: true: expected a number or a range"),
    (text_of({**RING, "bytes": 1.5}), r"line 8: 1.5 has a fraction or exponent"),
    (text_of({**RING, "ranks": "NaN"}), r"rules\[0\].ranks: \"NaN\""),
    (text_of({**RING, "ranks": float("nan")}), r"line 8: NaN is not JSON"),
    (text_of({**RING, "ranks": float("-inf")}), r"line 8: -Infinity is not JSON"),
    (text_of({**RING, "ranks": 10**30}), r"line 8: 1000000.* has 31 digits"),
    (text_of({**RING, "even": 1}), r"even: 1: expected true or false"),
    (text_of({**RING, "channels": 1 << 40}), r"channels=1099511627776; expected 0 \(as the algorithm is\) to 64"),
    (text_of({**RING, "channels": "1-2"}), r"channels: \"1-2\": expected one number"),
    (text_of({"collective": "gather", "protocol": "push", "channels": 2}), r"about the algorithm that a rule chooses"),
    (text_of({"collective": "gather", "algorithm": "linear", "segment": 8}), r"linear has no parameter segments"),
    (text_of({**RING, "algorithm": "ring:segments=2", "segment": 8}), r"is given segments already"),
    (text_of({**RING, "ranks": 3000}), r"line 5, rules\[0\]: all_reduce 'ring' over n=3000 ranks: it needs .* at most"),
    ('{"format": 1, "format": 2}', r"f.json, line 1: member \"format\" is given twice; expected once"),
    (text_of(RING).replace('"algorithm"', '"collective"'), r"line 7: member \"collective\" is given twice"),
    ("[" * 100000, r"line 1: objects and arrays are nested deeper than 8"),
    ('{"a":' * 100000, r"line 1: objects and arrays are nested deeper than 8"),
    ('{"format": ' + "9" * 100000 + "}", r"line 1: 99999.* has 100000 digits; expected at most 20"),
    (text_of(*[RING] * 5000).replace("\n", ""), r"line 1: too many objects or arrays; expected at most 4096 rules"),
    (" " * (1 << 20) + "[]", r"f.json has 1048578 characters; expected at most 1048576"),
    ("[0" + ",0" * 50000 + "]", r"line 1, file: an array; expected an object"),
    ('{"format": "\ud800"}', r'line 1: format is "\\ud800"; expected'),
    ('"' + "x" * 100000 + '"', r'line 1, file: "x{57}\.\.\."; expected an object'),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_text_is_an_error_with_line_and_element(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        loads(text, "f.json")
    assert len(str(caught.value)) < 1000


def test_the_worst_text_costs_little() -> None:
    """Memory is bounded whatever the text, and so is work: nothing but one pass over at most 65536 values."""
    worst = [
        "[" + "{}," * 340000 + "{}]",
        "[0" + ",0" * 500000 + "]",
        "\n" * 200000 + '{"a":1,' + "\n".join(f'"{i}":0,' for i in range(10000)) + '"z":0}',
        text_of(*[{**RING, "bytes": "1K-2K", "ranks": f"2-{i + 3}"} for i in range(4096)]).replace(" ", ""),
        '"' + "\\u0041" * 170000 + '"',
    ]
    for text in worst:
        assert len(text) <= 1 << 20
        tracemalloc.start()
        with contextlib.suppress(InvalidArgument):
            loads(text, "f.json")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 << 20
    for text, message in ((worst[0], "too many objects"), (worst[1], "more than 65536 values")):
        with pytest.raises(InvalidArgument, match=rf"f\.json, line 1: {message}"):
            loads(text, "f.json")


atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["ring", "all_reduce", "2-4", "64K-", "^ring", "push", "bf16", "shm", "int8", "auto"]),
)  # fmt: skip
members = st.sampled_from(
    ["collective", "layout", "ranks", "nodes", "ranks_per_node", "even", "bytes", "wire_bytes", "algorithm", "protocol",
     "channels", "segment", "wire", "rule"]
)  # fmt: skip
documents = st.builds(
    lambda entries, whole: json.dumps({"format": "ringleader-rules", "version": 1, "rules": entries} | whole),
    st.lists(st.one_of(atoms, st.dictionaries(members, atoms).map(lambda d: {"collective": "all_reduce", **d}))),
    st.dictionaries(st.sampled_from(["format", "version", "rules", "x"]), atoms, max_size=1),
)
pieces = st.sampled_from([*'{}[]:,"\\ \n', "NaN", "1e9", "-0", "true", '"rules"', '"version"', "\ufeff"])


@settings(max_examples=300)
@given(st.one_of(documents, st.text(), st.lists(pieces).map("".join)))
def test_any_text_is_understood_or_a_clean_error(text: str) -> None:
    try:
        found = loads(text, "f.json")
    except InvalidArgument as error:
        assert str(error).startswith("f.json, line ")
        return
    assert loads(dumps(found), "f.json") == found


def test_files_that_are_none(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text(text_of(RING))
    assert load(good).source == str(good)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "huge").write_bytes(b"")
    os.truncate(tmp_path / "huge", 1 << 40)
    (tmp_path / "latin").write_bytes(b'{"format":\n "\xe9"}')
    for name, message in (
        ("missing.json", "cannot read .*missing.json: No such file"),
        ("", "is not a file"),
        ("pipe", "is not a file"),
        ("huge", "is larger than 1048576 bytes"),
        ("latin", "latin, line 2: byte 0xe9 is not UTF-8"),
        ("nul\0", "cannot read"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            load(f"{tmp_path}/{name}")
    with pytest.raises(InvalidArgument, match="is not a file"):
        load("/dev/zero")


# ---------------------------------------------------------------- who decides


def test_conditions() -> None:
    def fits(job: tuple[int, ...], size: int = 8, wire: str = "f32", **conditions: Any) -> bool:
        return Conditions("all_reduce", **conditions).fits(Situation("all_reduce", size, job, 4, wire))

    assert fits((0, 0), layouts=("shm",)) and not fits((0, 1), layouts=("shm",))
    assert fits((0, 0, 1), ranks=Range(3, 3), nodes=Range(2, 2)) and not fits((0, 0, 1), nodes=Range(3))
    assert fits((0, 0, 1), even=False) and not fits((0, 0, 1), even=True) and fits((0, 0, 1, 1), even=True)
    assert fits((0, 0, 1), ranks_per_node=Range(1, 2)) and not fits((0, 0, 1), ranks_per_node=Range(2, 2))
    assert fits((0, 1), 1 << 20, nbytes=Range(1 << 20, 1 << 20)) and not fits((0, 1), 1 << 20, nbytes=Range(0, 1000))
    # 1 MiB is 264192 bytes as int8, and 34816 as one bit.
    assert fits((0, 1), 1 << 20, "int8", wire_bytes=Range(264192, 264192))
    assert fits((0, 1), 1 << 20, "onebit", wire_bytes=Range(34816, 34816), nbytes=Range(1 << 20))


def test_the_first_rule_that_fits_decides_aspect_by_aspect() -> None:
    mine = loads(
        text_of(
            {"collective": "all_reduce", "bytes": "1M-", "protocol": "pull"},
            {"collective": "all_reduce", "bytes": "1M-", "algorithm": "rabenseifner", "protocol": "push"},
            {"collective": "all_reduce", "bytes": "4M-", "wire": "int8"},
            {"collective": "all_reduce", "bytes": "4M-", "algorithm": "ring"},
        ),
        "mine.json",
    )
    later = loads(text_of({**RING, "wire": "bf16"}), "later.json")
    choice = select("all_reduce", 8 << 20, 2, [0, 0], 4, env={}, rules=[mine, later])
    assert (choice.algorithm, choice.protocol) == ("rabenseifner", "pull")
    assert choice.reason == "mine.json, line 10 (rule 2)"
    assert select_wire("all_reduce", 8 << 20, [0, 1], [mine, later]) == ("int8", "mine.json, line 16 (rule 3)")
    assert select_wire("all_reduce", 8, [0, 1], [mine, later]) == ("bf16", "later.json, line 5 (rule 1)")
    assert select_wire("reduce", 8, [0, 1], [mine, later]) is None
    assert select("all_reduce", 8, 2, [0, 0], 4, env={}, rules=[mine, later]).algorithm == "ring"
    assert select("reduce", 8, 2, [0, 0], 4, env={}, rules=[mine]).reason == "built-in rule for shm"


JOBS = ((0, 0), (0, 1, 2), (0, 0, 1, 1), (0, 0, 1))
narrow = st.sampled_from([Range(), Range(0, 2), Range(3), Range(2, 3)])
small_rules = st.builds(
    lambda layouts, ranks, nodes, nbytes, algorithm: Rule(
        "all_reduce", tuple(layouts), ranks=ranks, nodes=nodes, nbytes=nbytes, algorithm=algorithm
    ),
    st.lists(st.sampled_from(LAYOUTS), min_size=1),
    narrow,
    narrow,
    st.sampled_from([Range(), Range(0, 1000), Range(1001)]),
    st.sampled_from([*names("all_reduce"), "^ring", "^ring,binomial", "^two_shot,ring"]),
)


@given(
    st.lists(st.lists(small_rules, max_size=4), max_size=2),
    st.sampled_from(JOBS),
    st.sampled_from([8, 1000, 1001, 1 << 20]),
)
def test_choices_against_the_definition(made: list[list[Rule]], job: tuple[int, ...], nbytes: int) -> None:
    sets = [RuleSet(tuple(rules), f"set {index}") for index, rules in enumerate(made)]
    choice = select("all_reduce", nbytes, len(job), job, 4, env={}, rules=sets)
    situation, excluded, expected = Situation("all_reduce", nbytes, job, 4), set(), None
    for rule in (rule for rules in (*sets, BUILT_IN) for rule in rules.rules):
        if not rule.fits(situation):
            continue
        name = rule.algorithm.partition(":")[0]
        if rule.excluded:
            excluded |= set(rule.excluded)
        elif name not in excluded and not problem(situation, rule.algorithm):
            expected = name
            break
    assert expected is not None
    assert choice.algorithm.partition(":")[0] == expected


def test_argument_before_environment_before_rules_in_order() -> None:
    first, second = (loads(text_of({**RING, "algorithm": name}), name) for name in ("two_shot", "linear"))
    request = ("all_reduce", 1 << 20, 4, [0] * 4)
    assert select(*request, env={}, rules=[first, second]).algorithm == "two_shot"
    assert select(*request, env={}, rules=[second, first]).algorithm == "linear"
    env = {"RINGLEADER_ALGO": "ring", "RINGLEADER_PROTO": "pull"}
    choice = select(*request, env=env, rules=[first])
    assert (choice.algorithm, choice.protocol, choice.rule) == ("ring", "pull", "")
    assert select(*request, forced="binomial", env=env, rules=[first]).algorithm == "binomial"
    # Of what the environment allows, the first rule's.
    assert select(*request, env={"RINGLEADER_ALGO": "^two_shot"}, rules=[first, second]).algorithm == "linear"


def test_exclusions() -> None:
    request = ("all_reduce", 64 << 20, 4, range(4))
    no_ring = loads(text_of({**RING, "algorithm": "^ring,tree"}), "mine.json")
    choice = select(*request, env={}, rules=[no_ring])
    assert choice.algorithm == "rabenseifner"  # the next built-in rule
    assert choice.rule.startswith("built-in (rule ")
    only = loads(text_of({**RING, "algorithm": "^" + ",".join(set(names("all_reduce")) - {"linear"})}), "only.json")
    choice = select(*request, env={}, rules=[only])
    assert choice.algorithm == "linear"
    assert choice.reason == "cheapest by the cost model of what rules allow"
    notes = {c.algorithm: c.note for c in explain(*request, env={}, rules=[no_ring]).candidates}
    assert notes["ring"] == "excluded by mine.json, line 5 (rule 1)"


def test_channels_and_segments() -> None:
    found = loads(text_of({**RING, "channels": 2, "segment": "1M"}), "mine.json")
    choice = select("all_reduce", 16 << 20, 4, range(4), 4, env={}, rules=[found])
    assert (choice.algorithm, choice.channels) == ("ring:segments=4", 2)
    exact = loads(text_of(RING), "mine.json")
    assert select("all_reduce", 16 << 20, 4, range(4), 4, env={}, rules=[exact]).algorithm == "ring"


def test_channels_count_towards_the_limit_of_transfers() -> None:
    found = loads(text_of({**RING, "channels": 64}), "mine.json")
    n = 400  # 2 (n - 1) n transfers of a ring, of which 64 are too many
    explanation = explain("all_reduce", 1 << 20, n, range(n), env={}, rules=[found])
    assert "on 64 channels needs 20428800 transfers" in explanation.rules[0]
    assert explanation.choice.channels == 0


@pytest.mark.parametrize(("wire", "segments"), [("f32", 8), ("bf16", 4), ("int8", 2), ("onebit", 1)])
def test_segments_are_of_bytes_that_travel(wire: str, segments: int) -> None:
    found = loads(text_of({**RING, "segment": "1M"}), "mine.json")
    spec = select("all_reduce", 32 << 20, 4, range(4), 4, env={}, rules=[found], wire=wire).algorithm
    assert spec == ("ring" if segments == 1 else f"ring:segments={segments}")


def test_built_in_limits_between_nodes_are_of_bytes_that_travel() -> None:
    def name(nbytes: int, wire: str) -> str:
        return select("all_reduce", nbytes, 4, range(4), 4, env={}, wire=wire).algorithm.partition(":")[0]

    assert name(512 << 10, "f32") == "ring"
    assert name(512 << 10, "bf16") == name(1000 << 10, "int8") == "rabenseifner"
    assert name(512 << 10, "onebit") == "recursive_doubling"


def test_a_rule_that_cannot_be_followed_is_passed_over_and_explained() -> None:
    found = loads(text_of(RING), "mine.json")
    explanation = explain("all_reduce", 8, 3000, range(3000), env={}, rules=[found])
    assert explanation.choice.reason == "built-in rule for net"
    assert explanation.rules[0].startswith(
        "passed over mine.json, line 5 (rule 1): all_reduce: ring: all_reduce 'ring'"
    )
    assert explanation.rules[-1].startswith("decided by built-in (rule ")
    assert "all_reduce[layout=net,ranks=10-,wire_bytes=0-8K]: recursive_multiplying" in explanation.rules[-1]


def test_explain_shows_the_deciding_rule() -> None:
    found = loads(text_of({"collective": "gather", "protocol": "pull"}, {**RING, "algorithm": "linear"}), "mine.json")
    lines = str(explain("all_reduce", 8, 2, [0, 0], env={}, rules=[found])).splitlines()
    assert lines[0] == "all_reduce of 8 bytes, 2 ranks, shm: linear, push (mine.json, line 9 (rule 2))"
    assert lines[1] == "  decided by mine.json, line 9 (rule 2): all_reduce: linear"


def test_a_set_knows_whether_it_is_for_a_job() -> None:
    found = loads(text_of({**RING, "ranks": "5-"}, {**RING, "layout": "shm", "nodes": 2}), "mine.json")
    assert found.concerns((0,) * 5) and not found.concerns((0,) * 4) and not found.concerns((0, 1))
    assert not loads(text_of(), "empty").concerns((0, 0))
