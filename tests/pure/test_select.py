"""Selection: the grammar of the environment, precedence, rules and explanations."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.algorithms import COLLECTIVES, MAX_TRANSFERS, all_algorithms, build, canonical, check, get, names
from ringleader.errors import InvalidArgument
from ringleader.schedule import verify
from ringleader.schedule.lower import lower_uncached
from ringleader.tune import PROTOCOLS, explain, parse_algo, parse_proto, predict, select
from ringleader.tune.builtin import BUILT_IN
from ringleader.tune.rules import LAYOUTS, Rule, Situation, layout_of
from ringleader.tune.select import spec_of

SIZES = (0, 1, 8, 4096, 16 << 10, (16 << 10) + 1, 1 << 20, 64 << 20, 1 << 40)


def nodes(layout: str, n: int) -> list[int]:
    return {"shm": [0] * n, "net": list(range(n)), "mixed": [rank // 2 for rank in range(n)]}[layout]


def algo(text: str) -> dict[str, str]:
    return {"RINGLEADER_ALGO": text}


# ---------------------------------------------------------------- grammar


def test_the_grammar_by_example() -> None:
    parsed = parse_algo("ring,Tree ; Broadcast: BINOMIAL")
    assert parsed["all_reduce"][0].items == ("ring", "double_binary_tree")
    assert parsed["broadcast"][0].items == ("binomial",)
    assert set(parsed) == {"all_reduce", "broadcast"}
    assert parse_algo("all_reduce:^ring,tree")["all_reduce"][0].filter(names("all_reduce")) == tuple(
        name for name in names("all_reduce") if name not in ("ring", "double_binary_tree")
    )
    assert parse_algo("ring:segments=4,two_shot")["all_reduce"][0].items == ("ring:segments=4", "two_shot")
    assert parse_algo("AllReduce:ring") == parse_algo("all_reduce:ring") == parse_algo("ring")
    assert parse_algo("") == parse_algo("  ") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnig", r"RINGLEADER_ALGO='rnig': unknown all_reduce algorithm 'rnig'.*ring,.* two_shot.*barrier"),
        (
            "all_reduces:ring",
            r"unknown all_reduce algorithm 'all_reduces'.*reduce_.*did you mean the collective 'all_reduce'",
        ),
        ("broadcast:ring", r"unknown broadcast algorithm 'ring'.*binomial, chain,.* linear"),
        ("ring;binomial", r"entry 'binomial' must begin with a collective.*valid collectives: all_reduce"),
        ("ring;brodcast:binomial", r"entry 'brodcast:binomial' must begin with a collective"),
        ("ring;all_reduce:linear", r"two entries for all_reduce"),
        ("ring,,linear", r"unknown all_reduce algorithm ''"),
        ("ring;", r"must begin with a collective"),
        ("^", r"unknown all_reduce algorithm ''"),
        ("ring,^linear", r"unknown all_reduce algorithm '\^linear'"),
        ("^ring:segments=4", r"'ring:segments=4' is excluded with parameters"),
        ("ring,binomail", r"'binomail'.*did you mean 'binomial'\?"),
        ("^binomail", r"'binomail'.*did you mean 'binomial'\?"),
        ("ring:segments=0", r"expected 1..1024"),
        ("gather:^" + ",".join(names("gather")), r"leaves no algorithm for gather"),
    ],
)
def test_wrong_algo_is_an_error_that_lists_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        select("all_reduce", 8, 2, [0, 0], env=algo(text))
    with pytest.raises(InvalidArgument, match=message):  # also for a collective that it is not about
        select("barrier", 0, 2, [0, 0], env=algo(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shove", r"unknown protocol 'shove'; valid: push, pull"),
        ("push;pull", r"must begin with a collective"),
        ("push;allgather:pul", r"unknown protocol 'pul'; did you mean 'pull'"),
        ("^push,pull", r"leaves no protocol"),
        ("gather:push;gather:pull", r"two entries for gather"),
        ("nothing:push", r"unknown protocol 'nothing:push'"),
    ],
)
def test_wrong_proto_is_an_error_that_lists_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        select("all_reduce", 8, 2, [0, 0], env={"RINGLEADER_PROTO": text})


def test_proto_by_example() -> None:
    def protocol(collective: str, text: str) -> str:
        return select(collective, 1 << 20, 4, [0] * 4, env={"RINGLEADER_PROTO": text}).protocol

    assert protocol("all_reduce", "") == "push"
    assert protocol("all_reduce", "pull") == "pull"
    assert protocol("all_reduce", "PULL;AllReduce:push") == "push"
    assert protocol("all_gather", "^pull") == "push"
    assert protocol("all_gather", "all_reduce:push") == "pull"
    assert protocol("all_gather", "push,pull") == protocol("all_gather", "auto") == "pull"


def test_conditions_in_the_environment() -> None:
    text = "all_reduce[bytes=0-64K]:linear; AllReduce [ranks=2-4, layout=net mixed]:^ring,two_shot; all_reduce:two_shot"

    def chosen(nbytes: int, layout: str, n: int) -> str:
        return select("all_reduce", nbytes, n, nodes(layout, n), env=algo(text)).algorithm

    assert chosen(64 << 10, "shm", 8) == chosen(8, "net", 4) == "linear"
    assert chosen(1 << 20, "net", 4) == "rabenseifner"  # the next rule's
    assert chosen(1 << 20, "net", 5) == chosen(1 << 20, "shm", 4) == "two_shot"
    push = {"RINGLEADER_PROTO": "push;all_gather[bytes=0-1K]:pull"}
    assert select("all_gather", 8, 2, [0, 0], env=push).protocol == "pull"
    assert select("all_gather", 8192, 2, [0, 0], env=push).reason == "built-in rule for shm"
    assert select("gather", 8, 2, [0, 0], env=push).protocol == "push"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[bytes=8]:ring", "must begin with a collective"),
        ("all_reduce[bytes=8:ring", "unknown all_reduce algorithm"),
        ("all_reduce[byte=8]:ring", "unknown condition 'byte'; did you mean 'bytes'.*ranks_per_node"),
        ("all_reduce[bytes]:ring", "'bytes' in brackets"),
        ("all_reduce[]:ring", "a condition is name=value"),
        ("all_reduce[bytes=1M-1K]:ring", "condition bytes: range 1048576-1024: expected 0 <= low <= high"),
        ("all_reduce[bytes=8,bytes=9]:ring", "bytes is given twice"),
        ("all_reduce[layout=ib]:ring", "unknown layout 'ib'; valid: shm, net, mixed"),
        ("all_reduce[layout=]:ring", "for no layout at all"),
        ("all_reduce:ring;all_reduce[bytes=8]:linear", "put entries with conditions before the one without"),
        ("all_reduce[bytes=8]:ring;all_reduce[bytes=8]:linear", r"two entries for all_reduce\[bytes=8\]"),
        ("x" * 70000, "at most 65536"),
    ],
)
def test_wrong_conditions(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_algo(text)


word = st.sampled_from(
    [
        *COLLECTIVES,
        "allreduce",
        *PROTOCOLS,
        *(entry.name for entry in all_algorithms()),
        "tree",
        "segments=4",
        "x",
        "bytes=8",
        "ranks=2-",
    ]
)
junk = st.lists(st.one_of(word, st.sampled_from([":", ";", ",", "^", " ", "=", "[", "]"])), max_size=12).map("".join)


@given(st.one_of(junk, st.text(max_size=20)))
def test_any_text_is_understood_or_a_clean_error(text: str) -> None:
    for parse in (parse_algo, parse_proto):
        try:
            parsed = parse(text)
        except InvalidArgument as error:
            assert str(error).startswith("RINGLEADER_")
            continue
        assert set(parsed) <= set(COLLECTIVES)


@st.composite
def sentences(draw: st.DrawFn) -> tuple[str, dict[str, tuple[bool, list[str]]]]:
    """A valid value of RINGLEADER_ALGO, and what it means."""
    meaning: dict[str, tuple[bool, list[str]]] = {}
    entries = []
    chosen = draw(st.lists(st.sampled_from(COLLECTIVES), unique=True, min_size=1, max_size=4))
    for index, collective in enumerate(chosen):
        few = st.lists(st.sampled_from(names(collective)), unique=True, min_size=1, max_size=len(names(collective)) - 1)
        items, exclude = draw(few), draw(st.booleans())
        meaning[collective] = exclude, items
        bare = index == 0 and collective == "all_reduce" and draw(st.booleans())
        prefix = (
            "" if bare else draw(st.sampled_from([collective, collective.replace("_", ""), collective.upper()])) + ":"
        )
        entries.append(prefix + ("^" if exclude else "") + draw(st.sampled_from([",", " , "])).join(items))
    return draw(st.sampled_from([";", " ; "])).join(entries), meaning


@given(sentences(), st.sampled_from(LAYOUTS), st.integers(1, 20), st.sampled_from(SIZES))
def test_only_what_is_allowed_is_chosen(sentence, layout: str, n: int, nbytes: int) -> None:
    text, meaning = sentence
    parsed = parse_algo(text)
    assert {c: (s.exclude, list(s.items)) for c, (s,) in parsed.items()} == meaning
    for collective in COLLECTIVES:
        choice = select(collective, nbytes, n, nodes(layout, n), env=algo(text))
        name = choice.algorithm.partition(":")[0]
        if collective in meaning:
            exclude, items = meaning[collective]
            assert (name in items) != exclude
            assert choice.reason == "RINGLEADER_ALGO"
        else:
            assert choice == select(collective, nbytes, n, nodes(layout, n), env={})


# ---------------------------------------------------------------- precedence


def test_argument_before_environment_before_rules() -> None:
    request = ("all_reduce", 1 << 20, 4, [0, 0, 0, 0])
    assert select(*request, env={}).algorithm == "two_shot"
    assert select(*request, env={}).reason == "built-in rule for shm"
    assert select(*request, env=algo("ring:segments=2")).algorithm == "ring:segments=2"
    choice = select(*request, forced="linear", env=algo("ring"))
    assert (choice.algorithm, choice.reason) == ("linear", "asked for by the call")
    assert select(*request, forced="linear", protocol="pull", env={"RINGLEADER_PROTO": "push"}).protocol == "pull"
    assert select(*request, env={"RINGLEADER_PROTO": "pull"}).reason.endswith("protocol by RINGLEADER_PROTO")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGLEADER_ALGO", "linear")
    assert select("all_reduce", 8, 2, [0, 0]).algorithm == "linear"
    monkeypatch.delenv("RINGLEADER_ALGO")
    assert select("all_reduce", 8, 2, [0, 0]).algorithm == "one_shot"


def test_a_demand_is_honoured_exactly_or_refused() -> None:
    assert select("all_reduce", 1 << 30, 4, range(4), forced="ring", env={}).algorithm == "ring"
    assert (
        select("all_reduce", 8, 4, range(4), forced="Segmented_Ring:segments=64", env={}).algorithm
        == "ring:segments=64"
    )
    with pytest.raises(InvalidArgument, match=r"unknown all_reduce algorithm 'best'.*alid: .*two_shot"):
        select("all_reduce", 8, 4, range(4), forced="best", env={})
    with pytest.raises(InvalidArgument, match=r"unknown all_reduce algorithm 'rign'.*did you mean 'ring'\?"):
        select("all_reduce", 8, 4, range(4), forced="rign", env={})
    with pytest.raises(InvalidArgument, match=r"unknown protocol 'shove'.*[vV]alid: push, pull"):
        select("all_reduce", 8, 4, range(4), protocol="shove", env={})
    with pytest.raises(InvalidArgument, match=f"at most {MAX_TRANSFERS}"):
        select("all_reduce", 8, 3000, range(3000), forced="ring", env={})
    with pytest.raises(InvalidArgument, match=r"RINGLEADER_ALGO allows no all_reduce algorithm that can run.*one_shot"):
        select("all_reduce", 8, 3000, range(3000), env=algo("ring,one_shot"))
    assert select("all_reduce", 8, 3000, range(3000), env=algo("ring,binomial")).algorithm == "binomial"


def test_the_rules_parameters_are_kept_where_the_environment_gives_none() -> None:
    request = ("all_reduce", 64 << 20, 4, range(4))
    assert select(*request, env={}).algorithm == "ring:segments=8"
    assert select(*request, env=algo("ring,linear")).algorithm == "ring:segments=8"
    assert select(*request, env=algo("^linear")).algorithm == "ring:segments=8"
    assert select(*request, env=algo("linear,ring:segments=2")).algorithm == "ring:segments=2"
    assert select(*request, env=algo("linear,binomial")).algorithm == "binomial"  # the cheaper by the model
    # The built-in choice comes first even with parameters that the model finds dear.
    assert select(*request, env=algo("ring:segments=1024,rabenseifner")).algorithm == "ring:segments=1024"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduces", 8, 2, [0, 0]), "did you mean 'all_reduce'"),
        (("all_reduce", -1, 2, [0, 0]), "-1 bytes"),
        (("all_reduce", 8, 2, [0, 0], 0), "items of 0"),
        (("all_reduce", 8, 2, [0]), "1 nodes"),
        (("all_reduce", 8, 0, []), "n >= 1"),
    ],
)
def test_wrong_requests(arguments: tuple, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        select(*arguments, env={})


# ---------------------------------------------------------------- built-in rules


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_request_has_an_answer_that_can_be_built(collective: str) -> None:
    for layout in LAYOUTS:
        for n in (1, 2, 3, 4, 5, 8, 16, 17, 64, 200, 1024, 1500):
            for nbytes in SIZES:
                choice = select(collective, nbytes, n, nodes(layout, n), itemsize=4, env={})
                check(collective, choice.algorithm, n)
                assert choice.algorithm == canonical(collective, choice.algorithm)
                assert choice.protocol in PROTOCOLS
                assert choice.reason


def test_the_rules_choices_are_proved() -> None:
    for rule in BUILT_IN.rules:
        for n in {2, min(rule.ranks.high, 6)}:
            nbytes = min(rule.nbytes.high, rule.wire_bytes.high, 64 << 20)
            spec = spec_of(rule, Situation(rule.collective, nbytes, tuple(nodes(rule.layouts[0], n)), 4))
            verify(build(rule.collective, spec, n), lowered=False).raise_if_failed()


def test_a_choice_depends_on_nothing_but_the_arguments() -> None:
    requests = [
        (collective, nbytes, n, nodes(layout, n))
        for collective in COLLECTIVES
        for layout in LAYOUTS
        for n in (1, 2, 5, 8)
        for nbytes in SIZES
    ]
    first = [select(*request, env={}) for request in requests]
    order = list(range(len(requests)))
    random.Random(1).shuffle(order)
    for index in order:
        assert select(*requests[index], env={}) == first[index]
        assert select(*requests[index], env={"RINGLEADER_OTHER": "1", "OMP_NUM_THREADS": "3"}) == first[index]


def test_what_is_expected_of_the_rules() -> None:
    def chosen(collective: str, nbytes: int, layout: str, n: int) -> str:
        return select(collective, nbytes, n, nodes(layout, n), itemsize=4, env={}).algorithm

    assert chosen("all_reduce", 8, "shm", 2) == chosen("all_reduce", 8192, "shm", 8) == "one_shot"
    assert chosen("all_reduce", 1 << 20, "shm", 2) == chosen("all_reduce", 1 << 30, "shm", 8) == "two_shot"
    assert chosen("all_reduce", 8, "net", 2) == "one_shot"
    assert chosen("all_reduce", 16 << 20, "net", 2) == "one_shot"
    assert chosen("all_reduce", 8, "net", 3) == "recursive_doubling"
    assert chosen("all_reduce", 16 << 20, "net", 8) == "ring:segments=8"
    assert chosen("all_reduce", 8, "mixed", 8) == "hierarchical_leader"
    assert chosen("all_reduce", 256 << 10, "mixed", 8) == "hierarchical:outer=rabenseifner"
    assert chosen("all_reduce", 16 << 20, "mixed", 8) == chosen("all_reduce", 16 << 20, "mixed", 7) == "hierarchical"
    assert chosen("broadcast", 16 << 20, "net", 8) == "chain"  # 8 segments is its default
    # Many ranks: no ring where its steps cost more than its bytes.
    assert chosen("all_reduce", 8, "net", 64) == "recursive_multiplying"
    assert chosen("all_reduce", 1 << 20, "net", 512) == "bcube"
    assert chosen("all_reduce", 1 << 30, "net", 512).startswith("ring")
    assert chosen("broadcast", 1 << 20, "net", 512) == "double_binary_tree:segments=16"
    hosts = [rank // 8 for rank in range(4096)]
    found = {c: select(c, 1 << 20, 4096, hosts, 4, env={}).algorithm for c in ("all_reduce", "broadcast")}
    assert found == {"all_reduce": "hierarchical:outer=bcube", "broadcast": "hierarchical:outer=double_binary_tree"}
    # A ring of 512 hosts would have millions of transfers.
    assert select("all_reduce", 1 << 30, 4096, hosts, 4, env={}).algorithm == "hierarchical:outer=bcube"


def test_segments_are_powers_of_two_and_not_cut_too_fine() -> None:
    seen = set()
    for exponent in range(10, 32):
        for n in (2, 3, 8, 100, 1000):
            spec = select("all_reduce", 1 << exponent, n, range(n), itemsize=4, env={}).algorithm
            segments = int(spec.partition("segments=")[2] or 1)
            assert segments in (1, 2, 4, 8)
            if segments > 1:
                assert (1 << exponent) / n / segments >= 256 << 10
            seen.add(segments)
    assert seen == {1, 2, 4, 8}
    # 8 segments would be too many transfers for so many ranks, and so would 4.
    assert select("all_reduce", 1 << 31, 1000, range(1000), itemsize=4, env={}).algorithm == "ring:segments=2"


def test_rules_name_what_exists_and_end_with_one_for_everything() -> None:
    for rule in BUILT_IN.rules:
        get(rule.collective, rule.algorithm.partition(":")[0])
        assert rule.protocol in PROTOCOLS
    for collective in COLLECTIVES:
        for layout in LAYOUTS:
            mine = [rule for rule in BUILT_IN.rules if rule.collective == collective and layout in rule.layouts]
            assert mine[-1].ranks.high >= 1 << 31
            assert min(mine[-1].nbytes.high, mine[-1].wire_bytes.high) >= 1 << 60


@pytest.mark.parametrize("job", [[0] * 4 + [1] * 4, [0, 0, 1], [0, 1] * 3, [0, 0, 0, 1, 1, 2], [0] * 5 + [1] * 3 + [2]])
def test_built_in_choices_over_hosts_of_several_ranks(job: list[int]) -> None:
    """All that is chosen is proved, with and without a wire format, and large data crosses the network least often."""
    hosts, place = len(set(job)), np.array(job)
    for collective in COLLECTIVES:
        for nbytes in (8, 100 << 10, 4 << 20):
            spec = select(collective, nbytes, len(job), job, itemsize=4, env={}).algorithm
            schedule = build(collective, spec, len(job), nodes=job)
            for wire in (False, collective != "barrier"):
                assert lower_uncached(schedule, job, True, wire).check() == []
        if collective not in ("all_reduce", "all_gather", "reduce_scatter"):
            continue
        table = schedule.table
        between = place[table["src_rank"]] != place[table["dst_rank"]]
        sent = [
            table["count"][between & (place[table["src_rank"]] == host)].sum() / schedule.chunks for host in set(job)
        ]
        if collective == "all_reduce":
            assert max(sent) <= 2 * (hosts - 1) / hosts + 1e-9
        else:  # every block leaves its host for each other host, or comes from it, once
            assert sum(sent) <= hosts - 1 + 1e-9


def test_uneven_hosts_do_not_cut_the_data_to_pieces() -> None:
    job = [0] * 7 + [1] * 9 + [2] * 8  # with shards, 504 chunks
    for nbytes in (100 << 10, 64 << 20):
        spec = select("all_reduce", nbytes, len(job), job, itemsize=4, env={}).algorithm
        assert spec.partition(":")[0] == "hierarchical_leader"


def test_layouts() -> None:
    assert layout_of((3,)) == layout_of((5, 5)) == "shm"
    assert layout_of((1, 0, 2)) == "net"
    assert layout_of((0, 1, 0)) == "mixed"


# ---------------------------------------------------------------- cost and explanation


def test_the_model_prefers_trees_for_little_and_rings_for_much() -> None:
    for small, large in (("recursive_doubling", "ring"), ("binomial", "two_shot")):
        for n in (8, 16, 64):
            assert (
                predict("all_reduce", small, 64, n, "net").seconds < predict("all_reduce", "ring", 64, n, "net").seconds
            )
            assert (
                predict("all_reduce", small, 1 << 28, n, "net").seconds
                > predict("all_reduce", large, 1 << 28, n, "net").seconds
            )


def test_explain_shows_candidates_and_the_reason() -> None:
    explanation = explain("all_reduce", 16 << 20, 4, range(4), itemsize=4, env=algo("^linear"))
    assert explanation.choice == select("all_reduce", 16 << 20, 4, range(4), itemsize=4, env=algo("^linear"))
    assert {c.algorithm.partition(":")[0] for c in explanation.candidates} == set(names("all_reduce"))
    seconds = [candidate.cost.seconds for candidate in explanation.candidates]
    assert seconds == sorted(seconds)
    notes = {candidate.algorithm: candidate.note for candidate in explanation.candidates}
    assert notes["ring:segments=8"] == "chosen: RINGLEADER_ALGO"
    assert notes["linear"] == "not allowed by RINGLEADER_ALGO"
    text = str(explanation)
    assert text.startswith("all_reduce of 16777216 bytes, 4 ranks, net: ring:segments=8, push (RINGLEADER_ALGO)")
    assert re.match(
        r"  decided by built-in \(rule \d+\): all_reduce\[layout=net mixed\]: ring push", text.splitlines()[1]
    )
    assert len(text.splitlines()) == 3 + len(names("all_reduce"))


def test_explain_names_limits() -> None:
    explanation = explain("all_reduce", 8, 3000, range(3000), env={})
    notes = {candidate.algorithm: candidate.note for candidate in explanation.candidates}
    assert f"at most {MAX_TRANSFERS}" in notes["one_shot"]


def test_powers_of_two_gather_by_doubling() -> None:
    chosen = {n: select("all_gather", 4096, n, list(range(n)), 4, env={}).algorithm for n in range(2, 10)}
    assert [n for n, algorithm in chosen.items() if algorithm == "recursive_doubling"] == [4, 8]
    assert {chosen[n] for n in (3, 5, 6, 7, 9)} == {"bruck"}


def test_open_mpis_numbers_and_names_are_understood_everywhere() -> None:
    """Those of coll_tuned_allreduce_algorithm, in a call, in RINGLEADER_ALGO, in rules; 0 leaves the choice."""
    own = select("all_reduce", 1 << 20, 4, range(4), env={}).algorithm
    meant = {
        "0": own,
        "1": "linear", "basic_linear": "linear",
        "2": "binomial", "nonoverlapping": "binomial",
        "3": "recursive_doubling", "recursive_doubling": "recursive_doubling",
        "4": "ring", "5": "ring:segments=8", "segmented_ring": "ring:segments=8",
        "6": "rabenseifner", "7": "allgather_reduce",
    }  # fmt: skip
    for word, spec in meant.items():
        assert select("all_reduce", 1 << 20, 4, range(4), forced=word, env={}).algorithm == spec
        chosen = select("all_reduce", 1 << 20, 4, range(4), env={"RINGLEADER_ALGO": f"allreduce:{word}"}).algorithm
        # Without parameters of the user's own, those of the rule that would choose it are used.
        assert chosen == spec or (word == "4" and chosen.startswith("ring:"))
        if word != "0":
            assert Rule("all_reduce", algorithm=word).algorithm == spec
    assert Rule("all_reduce", algorithm="segmented_ring", segment=65536).algorithm == "ring"  # its size counts


def test_a_segmented_ring_is_a_pipeline() -> None:
    """Segments follow each other by one step: a rank reduces one while it sends the next."""
    plain, segmented = build("all_reduce", "ring", 4), build("all_reduce", "segmented_ring", 4)
    assert (segmented.chunks, segmented.steps) == (8 * plain.chunks, plain.steps + 7)
    assert build("all_reduce", "segmented_ring:segments=3", 4) == plain.pipelined(3)
