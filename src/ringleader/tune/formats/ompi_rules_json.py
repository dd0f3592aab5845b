"""Rules files of Open MPI's component `tuned` as JSON, version 3 (Open MPI 6.0).

The first entry that fits the communicator decides, and within it the first rule that fits the message; if none does,
Open MPI decides, and no later entry. Facts from Open MPI's documentation and its published schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Cover, Imported, Note
from ringleader.tune.formats.ompi_algorithms import MpiAlgorithm, MpiCollective, collective_named
from ringleader.tune.formats.ompi_import import Decision, rules_of
from ringleader.tune.rulefile import MAX_BYTES, MAX_RULES, Members, parse_json, shown
from ringleader.tune.rules import ANY, LAYOUTS, Range

__all__ = ["loads"]

# How ranks lie, as the files say it: single-node and one-per-node are our layouts shm and net.
DISTRIBUTIONS = {"any": LAYOUTS, "single-node": ("shm",), "one-per-node": ("net",)}
_INFINITE = ("inf", "Inf", "INF")
_FILE = ("$schema", "rule_file_version", "module", "collectives")
_ENTRY = ("comm_size_min", "comm_size_max", "comm_rank_distribution", "rules")
_RULE = ("msg_size_min", "msg_size_max", "alg", "faninout", "seg_size", "reqs")


class _Reader:
    """Reads one file; `notes` collects what is left out."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.notes: list[Note] = []
        self.decisions: list[Decision] = []

    def members(self, value: object, valid: tuple[str, ...], element: str, line: int) -> Members:
        """An object that has no other members than the valid ones."""
        if not isinstance(value, Members):
            raise self.error(line, element, f"{shown(value)}; expected an object")
        for name in value:
            if name not in valid:
                raise self.error(value.line_of(name), element, unknown("member", name, valid))
        return value

    def error(self, line: int, element: str, problem: str) -> InvalidArgument:
        """The error for a place."""
        return InvalidArgument(f"{self.source}, line {line}, {element}: {problem}")

    def number(self, members: Members, name: str, default: int, element: str) -> int:
        """A number from 0, or infinity."""
        value = members.get(name, default)
        if value in _INFINITE:
            return ANY.high
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ANY.high:
            raise self.error(members.line_of(name), f"{element}.{name}", f'{shown(value)}; expected 0 to 2^62 or "inf"')
        return value

    def range(self, members: Members, what: str, element: str) -> Range:
        """From the members ``<what>_min`` and ``<what>_max``."""
        low, high = (self.number(members, f"{what}_{end}", at, element) for end, at in (("min", 0), ("max", ANY.high)))
        if low > high:
            raise self.error(members.line_of(f"{what}_min"), element, f"{what}_min {low} is above {what}_max {high}")
        return Range(low, high)

    def file(self, value: object) -> None:
        """The whole file."""
        whole = self.members(value, _FILE, "file", 1)
        if whole.get("rule_file_version") != 3 or isinstance(whole.get("rule_file_version"), bool):
            problem = f"rule_file_version is {shown(whole.get('rule_file_version'))}; expected 3"
            raise self.error(whole.line_of("rule_file_version"), "file", problem)
        if whole.get("module") != "tuned":
            raise self.error(
                whole.line_of("module"), "file", f'module is {shown(whole.get("module"))}; expected "tuned"'
            )
        collectives = whole.get("collectives")
        if not isinstance(collectives, Members):
            raise self.error(whole.line_of("collectives"), "collectives", f"{shown(collectives)}; expected an object")
        seen: dict[int, str] = {}
        for name, entries in collectives.items():
            line = collectives.line_of(name)
            try:
                collective = collective_named(name)
            except InvalidArgument as error:
                raise self.error(line, "collectives", str(error)) from None
            if collective.number in seen:
                raise self.error(line, name, f"the same collective as {seen[collective.number]}; expected once")
            seen[collective.number] = name
            self.collective(collective, entries, name, line)

    def collective(self, collective: MpiCollective, entries: object, element: str, line: int) -> None:
        """The entries of a collective: each decides for the ranks that no earlier one is for."""
        if not isinstance(entries, list):
            raise self.error(line, element, f"{shown(entries)}; expected an array of entries")
        taken = {layout: Cover() for layout in LAYOUTS}
        for index, value in enumerate(entries):
            where = f"{element}[{index}]"
            entry = self.members(value, _ENTRY, where, line)
            distribution = entry.get("comm_rank_distribution", "any")
            if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
                problem = f"{shown(distribution)}; expected {', '.join(DISTRIBUTIONS)}"
                raise self.error(entry.line_of("comm_rank_distribution"), f"{where}.comm_rank_distribution", problem)
            ranks = self.range(entry, "comm_size", where)
            rules = entry.get("rules")
            if not isinstance(rules, list):
                raise self.error(
                    entry.line_of("rules"), f"{where}.rules", f"{shown(rules)}; expected an array of rules"
                )
            free: dict[Range, list[str]] = {}
            for layout in DISTRIBUTIONS[distribution]:
                for part in taken[layout].claim(ranks):
                    free.setdefault(part, []).append(layout)
            choices = list(self.rules(collective, rules, f"{where}.rules", entry.line_of("rules")))
            for part, layouts in free.items():
                for nbytes, algorithm, numbers, at in choices:
                    self.decisions.append(Decision(collective, tuple(layouts), part, nbytes, algorithm, *numbers, at))
                if len(self.decisions) > MAX_RULES:
                    raise self.error(entry.line, where, f"more than {MAX_RULES} decisions; expected fewer")

    def rules(
        self, collective: MpiCollective, rules: list[Any], element: str, line: int
    ) -> Iterator[tuple[Range, MpiAlgorithm | None, tuple[int, int, int], int]]:
        """What each rule decides: for the sizes that no earlier one is for."""
        taken = Cover()
        for index, value in enumerate(rules):
            where = f"{element}[{index}]"
            rule = self.members(value, _RULE, where, line)
            nbytes = self.range(rule, "msg_size", where)
            fan, segment, requests = (self.number(rule, name, 0, where) for name in ("faninout", "seg_size", "reqs"))
            word = rule.get("alg")
            if isinstance(word, bool) or not isinstance(word, (int, str)):
                raise self.error(rule.line_of("alg"), f"{where}.alg", f"{shown(word)}; expected a number or a name")
            algorithm = None
            if collective.algorithms:
                try:
                    algorithm = collective.numbered(word) if isinstance(word, int) else collective.named(word)
                except InvalidArgument as error:
                    self.notes.append(Note(rule.line_of("alg"), f"{where}: {error}; left out, as Open MPI does"))
                    continue
            for part in taken.claim(nbytes):
                yield part, algorithm, (fan, segment, requests), rule.line


def loads(text: str, source: str = "ompi rules") -> Imported:
    """Read a rules file of Open MPI in its JSON form, version 3.

    Parameters
    ----------
    text
        At most 1 MiB, and at most 4096 rules. A comma before a closing bracket is accepted, as Open MPI does.
    source
        Where it comes from, for messages.

    Returns
    -------
    Imported
        Rules that choose as the file does, whatever their order, and what they cannot say.

    Raises
    ------
    InvalidArgument
        The file is not of this form; the message names line and element.

    References
    ----------
    Open MPI documentation: "The tuned component" and tuned_dynamic_file_schema.json, 2026.

    Examples
    --------
    >>> bcast = '[{"comm_size_max": 8, "rules": [{"alg": "binomial"}]}]'
    >>> text = f'{{"rule_file_version": 3, "module": "tuned", "collectives": {{"bcast": {bcast}}}}}'
    >>> print(*loads(text).rules.rules)
    broadcast[ranks=0-8]: binomial
    """
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{source} has {len(text)} characters; expected at most {MAX_BYTES}")
    reader = _Reader(source)
    reader.file(parse_json(_without_last_commas(text), source))
    return rules_of(reader.decisions, source, reader.notes)


def _without_last_commas(text: str) -> str:
    """Commas before closing brackets as blanks, so that lines and columns stay; strings are left alone."""
    pattern = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|,(?=\s*[\]}])'
    return re.sub(pattern, lambda found: " " if found[0] == "," else found[0], text, flags=re.DOTALL)
