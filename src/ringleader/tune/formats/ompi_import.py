"""From decisions of Open MPI's component `tuned`, however they are written, to rules."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.algorithms import canonical
from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Imported, Note
from ringleader.tune.formats.ompi_algorithms import MpiAlgorithm, MpiCollective
from ringleader.tune.rulefile import MAX_RULES
from ringleader.tune.rules import LAYOUTS, Range, Rule, RuleSet

__all__ = ["Decision", "rules_of"]

_NUMBER_OF_BLOCK = 13  # reduce_scatter_block: with equal blocks, as all here


@dataclass(frozen=True)
class Decision:
    """What Open MPI does in one place: each size of message and communicator is in at most one decision of a layout.

    `algorithm` is None where it is left to Open MPI. `segment` (bytes), `fan` and `requests` are 0 for its defaults.
    """

    collective: MpiCollective
    layouts: tuple[str, ...]
    ranks: Range
    nbytes: Range
    algorithm: MpiAlgorithm | None
    fan: int
    segment: int
    requests: int
    line: int

    @property
    def where(self) -> str:
        """For messages."""
        layouts = "" if self.layouts == LAYOUTS else f"{'/'.join(self.layouts)}, "
        what = "ignore" if self.algorithm is None else f"{self.algorithm.number} ({self.algorithm.name})"
        sizes = f"{self.ranks.text()} ranks, {self.nbytes.text(units=True)} bytes"
        return f"{self.collective.name} algorithm {what} for {layouts}{sizes}"


def rules_of(decisions: list[Decision], source: str, notes: list[Note]) -> Imported:
    """The rules that choose as the decisions do; what they cannot say is added to the notes.

    A decision that is left to Open MPI becomes no rule: Ringleader's own choice stands there, as Open MPI's would.
    """
    rules: list[Rule] = []
    # Blocks are equal here, so what is said about reduce_scatter_block goes first.
    for decision in sorted(decisions, key=lambda it: it.collective.number != _NUMBER_OF_BLOCK):
        try:
            rule = _rule(decision, notes)
        except InvalidArgument as error:
            raise InvalidArgument(f"{source}, line {decision.line}: {error}") from None
        if rule is not None:
            rules.append(rule)
        if len(rules) > MAX_RULES:
            raise InvalidArgument(f"{source}, line {decision.line}: more than {MAX_RULES} rules; expected fewer")
    foreign = {it.collective.name: it.line for it in reversed(decisions) if not it.collective.ours}
    notes += [Note(line, f"{name} has no counterpart here; its rules are left out") for name, line in foreign.items()]
    if not rules:
        notes.append(Note(0, "nothing in the file chooses an algorithm: no rule is left"))
    return Imported(RuleSet(tuple(rules), source), tuple(sorted(notes, key=lambda note: note.line or 1 << 62)))


def _rule(decision: Decision, notes: list[Note]) -> Rule | None:
    collective, algorithm = decision.collective, decision.algorithm
    if not collective.ours or algorithm is None:
        return None

    def note(text: str) -> None:
        notes.append(Note(decision.line, f"{decision.where}: {text}"))

    if not algorithm.ours:
        note("there is no such algorithm here; Ringleader's own choice stands")
        return None
    if algorithm.chains and decision.fan > 1:
        note(f"it has {decision.fan} chains side by side, a chain here is one; Ringleader's own choice stands")
        return None
    low, high = max(decision.ranks.low, algorithm.ranks.low), min(decision.ranks.high, algorithm.ranks.high)
    if low > high or (low, high) != (decision.ranks.low, decision.ranks.high):
        note(f"it is for {algorithm.ranks.text()} ranks only")
    if low > high:
        return None
    if algorithm.differs:
        note(f"taken as {algorithm.ours}, which {algorithm.differs}")
    segment = decision.segment if algorithm.segmented else 0
    if decision.segment and not algorithm.segmented:
        note(f"segments of {decision.segment} bytes are not cut here")
    if decision.requests and algorithm.differs == "":
        note(f"its limit of {decision.requests} requests is left out")
    return Rule(
        collective.ours,
        layouts=decision.layouts,
        ranks=Range(low, high),
        nbytes=decision.nbytes,
        algorithm=_spec(collective.ours, algorithm, decision.fan, segment),
        segment=segment,
        line=decision.line,
    )


def _spec(collective: str, algorithm: MpiAlgorithm, fan: int, segment: int) -> str:
    """Our algorithm with its parameters. Without a segment size nothing is cut, whatever our default is."""
    spec = algorithm.ours
    if algorithm.radix:
        spec += f":radix={fan or algorithm.radix}"
    if algorithm.segmented and not segment:
        spec += ":segments=1"
    return canonical(collective, spec)
