"""Selection: which algorithm and protocol a call uses.

A choice depends on the arguments and the rules only, never on a rank's own state, so that all ranks agree without
talking. Who decides, in this order:

1. the call's own argument (`forced`, `protocol`);
2. the environment, RINGLEADER_ALGO and RINGLEADER_PROTO (see `grammar`): of what it allows, what the rules choose if
   that is among it, else what the cost model finds cheapest;
3. the rules (see `rules`): first those that the caller gives (rules file, tuner's table), then the built-in ones.

A demand that cannot be met is an error, never a silent fallback; a rule whose algorithm cannot run is passed over, and
`explain` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ringleader._names import unknown
from ringleader.algorithms import MAX_TRANSFERS, canonical, check, name_of, names, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.tune.builtin import BUILT_IN
from ringleader.tune.cost import predict
from ringleader.tune.grammar import ALGO, OWN_CHOICE, PROTO, Selection, parse_algo, parse_proto, selected
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.rules import PROTOCOLS, WIRES, Rule, RuleSet, Situation, known, layout_of

__all__ = ["Choice", "Ruled", "problem", "ruled", "select", "select_wire", "spec_of"]

MAX_SEGMENTS = 8

# Chunks of the unsegmented algorithm; all others that can be segmented have one per rank.
_FEW_CHUNKS = {"chain": 1, "double_binary_tree": 2}


Ruled: TypeAlias = tuple[RuleSet, Rule, str, str]
"""A set, a rule of it that fits, the spec that it chooses (empty: none), why it is passed over (empty: it is not)."""


@dataclass(frozen=True)
class Choice:
    """What a call uses, and why.

    Attributes
    ----------
    algorithm
        Canonical spec, for `ringleader.algorithms.build`.
    protocol
        ``push`` or ``pull``: who copies between ranks of one node.
    reason
        One line.
    channels
        Copies of the algorithm side by side on slices of the data; 0: as it is.
    rule
        The rule that decided about the algorithm, with its place; empty where no rule did.
    """

    algorithm: str
    protocol: str
    reason: str
    channels: int = 0
    rule: str = ""


# ------------------------------------------------------------------------------------------------ rules


def problem(situation: Situation, spec: str, channels: int = 0) -> str:
    """Why an algorithm cannot run in this situation, in so many copies; empty if it can."""
    try:
        check(situation.collective, spec, situation.n, nodes=situation.nodes)
    except InvalidArgument as error:
        return str(error)
    if channels > 1:
        entry, values = parse_spec(situation.collective, spec)
        rows = channels * entry.transfers(situation.n, values, situation.nodes)
        if rows > MAX_TRANSFERS:
            return f"{spec!r} on {channels} channels needs {rows} transfers; at most {MAX_TRANSFERS}: use fewer"
    return ""


def spec_of(rule: Rule, situation: Situation) -> str:
    """The algorithm that a rule chooses, with its number of segments, a power of two."""
    if not rule.segment:
        return rule.algorithm
    base = rule.algorithm
    chunk = situation.wire_bytes // _FEW_CHUNKS.get(name_of(base), situation.n)
    finest = max(1, situation.itemsize * WIRES[situation.wire] // 512)
    wanted = min(chunk // max(rule.segment, finest), MAX_SEGMENTS)
    segments = 1 << (wanted.bit_length() - 1) if wanted > 0 else 1
    while segments > 1 and problem(situation, f"{base}:segments={segments}"):
        segments //= 2
    return canonical(situation.collective, f"{base}:segments={segments}")


def ruled(situation: Situation, sets: Sequence[RuleSet]) -> Iterator[Ruled]:
    """The rules that fit, in order of precedence."""
    forbidden: dict[str, str] = {}
    for rules in sets:
        for rule in rules.fitting(situation):
            for name in rule.excluded:
                forbidden.setdefault(name, f"excluded by {rules.where(rule)}")
            if rule.excluded or not rule.algorithm:
                yield rules, rule, "", ""
                continue
            spec = spec_of(rule, situation)
            yield rules, rule, spec, forbidden.get(name_of(spec)) or problem(situation, spec, rule.channels)


def select_wire(
    collective: str, nbytes: int, nodes: Sequence[int], rules: Sequence[RuleSet] = ()
) -> tuple[str, str] | None:
    """The wire format that the rules say, and which rule; None where they say none.

    Examples
    --------
    >>> rules = RuleSet((Rule("all_reduce", wire="bf16"),), "mine.json")
    >>> select_wire("all_reduce", 1 << 20, [0, 1], [rules])
    ('bf16', 'mine.json (rule 1)')
    """
    situation = Situation(collective, nbytes, tuple(nodes))
    for found in rules:
        for rule in found.fitting(situation):
            if rule.wire:
                return rule.wire, found.where(rule)
    return None


# ------------------------------------------------------------------------------------------------ select


def select(
    collective: str,
    nbytes: int,
    n: int,
    nodes: Sequence[int],
    itemsize: int = 1,
    forced: str | None = None,
    protocol: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    rules: Sequence[RuleSet] = (),
    wire: str = "f32",
    model: Model = DEFAULT,
) -> Choice:
    """Choose algorithm and protocol for a collective; the same on every rank that gives the same arguments.

    Parameters
    ----------
    collective
        Name of a `ringleader.schedule.Collective`.
    nbytes
        Bytes of the whole data, all n blocks together where the collective has blocks.
    n
        Ranks.
    nodes
        Node of each rank, shape (n,): equal means shared memory.
    itemsize
        Bytes of an element; nothing is cut finer.
    forced
        Spec that the call asks for, with exactly the parameters that it gives; ``0``: none.
    protocol
        ``push`` or ``pull``, asked for by the call.
    env
        Where RINGLEADER_ALGO and RINGLEADER_PROTO are looked up; default: the environment of the process.
    rules
        Sets of rules that come before the built-in ones, the first first.
    wire
        Format of the messages between nodes.
    model
        Decides between algorithms where no rule does.

    Raises
    ------
    InvalidArgument
        An unknown word, or a demand that cannot be met; the message lists the valid ones or states the limit.

    Examples
    --------
    >>> select("all_reduce", 64, 2, nodes=[0, 0], env={}).algorithm
    'one_shot'
    >>> select("all_reduce", 1 << 24, 4, nodes=[0, 1, 2, 3], env={}).algorithm
    'ring:segments=8'
    >>> select("all_reduce", 64, 2, nodes=[0, 0], env={"RINGLEADER_ALGO": "ring"}).reason
    'RINGLEADER_ALGO'
    >>> mine = RuleSet((Rule("all_reduce", layouts=("shm",), algorithm="linear"),), "mine.json")
    >>> select("all_reduce", 64, 2, nodes=[0, 0], env={}, rules=[mine]).reason
    'mine.json (rule 1)'
    """
    env = os.environ if env is None else env
    if n < 1 or len(nodes) != n:
        raise InvalidArgument(
            f"{collective} over n={n} ranks with {len(nodes)} nodes; expected n >= 1 and a node for each"
        )
    names(collective)  # raises if there is no such collective
    if nbytes < 0 or itemsize < 1:
        raise InvalidArgument(f"{collective} of {nbytes} bytes in items of {itemsize}; expected >= 0 and >= 1")
    situation = Situation(str(collective), nbytes, tuple(nodes), itemsize, wire)
    found = list(ruled(situation, (*rules, BUILT_IN)))
    if forced is not None and forced != OWN_CHOICE:
        spec = known(situation.collective, forced)
        check(situation.collective, spec, n, nodes=situation.nodes)
        made = Choice(spec, "", "asked for by the call")
    elif (allowed := selected(parse_algo(env.get(ALGO, "")), situation)) is not None:
        made = _allowed(situation, found, allowed, model)
    else:
        made = _by_rules(situation, found, model)
    usable = next((rule.protocol for _, rule, _, why in found if rule.protocol and not why), PROTOCOLS[0])
    chosen, why = _protocol(situation, usable, protocol, env.get(PROTO, ""))
    reason = "; ".join(filter(None, (made.reason, why)))
    return Choice(made.algorithm, chosen, reason, made.channels, made.rule)


def _by_rules(situation: Situation, found: Sequence[Ruled], model: Model) -> Choice:
    """What the first rule that can be followed chooses."""
    for rules, rule, spec, why in found:
        if spec and not why:
            built_in = f"built-in rule for {layout_of(situation.nodes)}"
            reason = built_in if rules is BUILT_IN else rules.where(rule)
            return Choice(spec, "", reason, rule.channels, f"{rules.where(rule)}: {rule}")
    forbidden = {name for _, rule, _, _ in found for name in rule.excluded}
    if forbidden:
        left = tuple(name for name in names(situation.collective) if name not in forbidden)
        return Choice(
            _cheapest(situation, left, "the set of rules", model), "", "cheapest by the cost model of what rules allow"
        )
    raise InvalidArgument(
        f"no {situation.collective} algorithm for n={situation.n} ranks stays within {MAX_TRANSFERS} transfers"
    )


def _allowed(situation: Situation, found: Sequence[Ruled], allowed: Selection, model: Model) -> Choice:
    """The best of the specs that the environment allows."""
    collective = situation.collective
    specs = allowed.filter(names(collective))
    for rules, rule, spec, why in found:
        name = name_of(spec)
        place = f"{rules.where(rule)}: {rule}"
        if why or not spec:
            continue
        if name in specs:  # without parameters of the user's own, the rule's are used
            return Choice(spec, "", ALGO, rule.channels, place)
        own = [item for item in specs if name_of(item) == name and not problem(situation, item)]
        if own:
            return Choice(_cheapest(situation, own, ALGO, model), "", ALGO, rule.channels, place)
    return Choice(_cheapest(situation, specs, ALGO, model), "", ALGO)


def _cheapest(situation: Situation, specs: Sequence[str], who: str, model: Model) -> str:
    """The cheapest by the cost model of those that can run."""
    problems = {spec: problem(situation, spec) for spec in specs}
    possible = [spec for spec, why in problems.items() if not why]
    if not possible:
        raise InvalidArgument(
            f"{who} allows no {situation.collective} algorithm that can run: {'; '.join(problems.values())}"
        )

    def seconds(spec: str) -> float:
        protocol, nodes = PROTOCOLS[0], situation.nodes
        return predict(situation.collective, spec, situation.wire_bytes, situation.n, nodes, protocol, model).seconds

    return min(possible, key=seconds)


def _protocol(situation: Situation, ruled: str, forced: str | None, text: str) -> tuple[str, str]:
    if forced is not None:
        if forced.lower() not in PROTOCOLS:
            raise InvalidArgument(unknown("protocol", forced, PROTOCOLS))
        return forced.lower(), "protocol asked for by the call"
    selection = selected(parse_proto(text), situation)
    if selection is None:
        return ruled, ""
    return ruled if selection.allows(ruled) else selection.filter(PROTOCOLS)[0], f"protocol by {PROTO}"
