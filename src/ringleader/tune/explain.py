"""Explanations: what was chosen, by which rule, among which candidates, and what the others would cost."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringleader.algorithms import name_of, names
from ringleader.errors import InvalidArgument
from ringleader.tune.builtin import BUILT_IN
from ringleader.tune.cost import Cost, predict
from ringleader.tune.grammar import ALGO, parse_algo, selected
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.rules import RuleSet, Situation, layout_of
from ringleader.tune.select import Choice, Ruled, problem, ruled, select

__all__ = ["Candidate", "Explanation", "explain"]


@dataclass(frozen=True)
class Candidate:
    """One algorithm that could have been chosen; `note` says why it was not, or that it was."""

    algorithm: str
    cost: Cost
    note: str


@dataclass(frozen=True)
class Explanation:
    """A choice among its candidates; as text, a table.

    Attributes
    ----------
    rules
        The rules that fit, in order of precedence, as lines: those passed over with the reason, then the one that
        decided.
    """

    request: str
    choice: Choice
    candidates: tuple[Candidate, ...]
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        channels = f", {self.choice.channels} channels" if self.choice.channels else ""
        lines = [f"{self.request}: {self.choice.algorithm}, {self.choice.protocol}{channels} ({self.choice.reason})"]
        lines += [f"  {rule}" for rule in self.rules]
        lines.append(f"  {'algorithm':32} {'steps':>7} {'bytes':>14} {'model us':>12}")
        for candidate in self.candidates:
            cost = candidate.cost
            row = f"  {candidate.algorithm:32} {cost.steps:7.0f} {cost.nbytes:14.0f} {cost.seconds * 1e6:12.1f}"
            lines.append(f"{row}  {candidate.note}".rstrip())
        return "\n".join(lines)


def explain(
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
) -> Explanation:
    """Choose as `select` does, and show all candidates with the terms of the cost model, the cheapest first.

    Raises
    ------
    InvalidArgument
        As `select`.

    Examples
    --------
    >>> found = explain("broadcast", 1024, 2, [0, 0], env={})
    >>> print(str(found).splitlines()[0])
    broadcast of 1024 bytes, 2 ranks, shm: linear, pull (built-in rule for shm)
    >>> print(found.rules[-1].partition(": ")[2])
    broadcast[layout=shm]: linear pull
    """
    env = os.environ if env is None else env
    choice = select(collective, nbytes, n, nodes, itemsize, forced, protocol, env, rules=rules, wire=wire, model=model)
    situation = Situation(str(collective), nbytes, tuple(nodes), itemsize, wire)
    layout = layout_of(situation.nodes)
    allowed = selected(parse_algo(env.get(ALGO, "")), situation)
    chosen = name_of(choice.algorithm)
    passed = list(ruled(situation, (*rules, BUILT_IN)))
    forbidden = {
        name: f"excluded by {place.where(rule)}" for place, rule, _, _ in reversed(passed) for name in rule.excluded
    }
    candidates = []
    for name in names(collective):
        spec, note = name, ""
        if name == chosen:
            spec, note = choice.algorithm, f"chosen: {choice.reason}"
        elif allowed is not None and not allowed.allows(name):
            note = f"not allowed by {ALGO}"
        else:
            note = forbidden.get(name) or problem(situation, name)
        candidates.append(Candidate(spec, _cost(situation, spec, choice.protocol, model), note))
    candidates.sort(key=lambda candidate: candidate.cost.seconds)
    travelling = "" if wire == "f32" else f", {wire} between nodes"
    request = f"{collective} of {nbytes} bytes, {n} ranks, {layout}{travelling}"
    return Explanation(request, choice, tuple(candidates), _consulted(passed, choice))


def _cost(situation: Situation, spec: str, protocol: str, model: Model) -> Cost:
    """What the model says; infinite where an algorithm is so impossible here that it has no cost."""
    try:
        return predict(situation.collective, spec, situation.wire_bytes, situation.n, situation.nodes, protocol, model)
    except InvalidArgument:
        return Cost(math.inf, math.inf, math.inf)


def _consulted(passed: Sequence[Ruled], choice: Choice) -> tuple[str, ...]:
    """The rules down to the one that decided, one line each."""
    lines: list[str] = []
    for place, rule, spec, why in passed:
        text = f"{place.where(rule)}: {rule}"
        if text == choice.rule:
            return (*lines, f"decided by {text}")
        if why:
            lines.append(f"passed over {text}: {why}")
        elif place is not BUILT_IN or not spec:
            lines.append(f"also fits {text}")
    return tuple(lines)
