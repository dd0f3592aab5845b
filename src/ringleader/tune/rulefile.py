"""Rules as text: versioned JSON, read with errors that name the line and the element.

::

    {
      "format": "ringleader-rules",
      "version": 1,
      "rules": [
        {"collective": "all_reduce", "layout": "net", "ranks": "3-", "bytes": "0-32K",
         "algorithm": "recursive_doubling", "protocol": "push"}
      ]
    }

docs/selection.md describes the members of a rule. A reader must survive any file: nothing is allocated or repeated by
a number in it, its size, depth and number of rules are limited, and whatever is wrong is an InvalidArgument.
"""

from __future__ import annotations

import bisect
import functools
import json
import json.decoder
import json.scanner
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from ringleader._names import unknown
from ringleader.algorithms import check
from ringleader.errors import InvalidArgument
from ringleader.tune.conditions import CONDITIONS, Range
from ringleader.tune.rules import Rule, RuleSet

__all__ = [
    "FORMAT", "MAX_BYTES", "MAX_RULES", "VERSION", "Members",
    "dumps", "load", "loads", "parse_json", "read_text", "shown",
]  # fmt: skip

FORMAT: Final = "ringleader-rules"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
MAX_RULES: Final = 4096
_MAX_DEPTH: Final = 8
_MAX_VALUES: Final = 1 << 16  # 4096 rules with all their members have fewer


# ------------------------------------------------------------------------------------------------ JSON with lines


class Members(dict[str, Any]):
    """An object of the text: its members, and where they are."""

    def __init__(
        self, pairs: list[tuple[str, Any]], start: int, starts: list[int], lines: Callable[[int], int]
    ) -> None:
        super().__init__(pairs)
        self._start, self._lines = start, lines
        self._starts = dict(zip((key for key, _ in pairs), starts, strict=True))

    @property
    def line(self) -> int:
        """The line on which the object begins."""
        return self._lines(self._start)

    def line_of(self, name: str) -> int:
        """The line of a member; of the object if it has none of this name."""
        return self._lines(self._starts.get(name, self._start))


class _Reader(json.JSONDecoder):
    """Python's JSON decoder, which tells the lines of objects and members, and accepts nothing beyond the standard."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._text = text
        # Where the values of every object or array that is open began; the innermost is the last.
        self._open: list[list[int]] = []
        self._values = self._opened = 0
        super().__init__(
            object_pairs_hook=self._pairs,
            parse_constant=lambda word: self._fail(word, "is not JSON"),
            parse_float=lambda word: self._fail(word, "has a fraction or exponent; expected a whole number"),
            parse_int=self._whole,
        )
        parse_object, parse_array = json.decoder.JSONObject, json.decoder.JSONArray  # type: ignore[attr-defined]
        self.parse_object = lambda start, strict, _, *hooks: self._nested(
            start, lambda: parse_object(start, strict, scan_once, *hooks)
        )
        self.parse_array = lambda start, _: self._nested(start, lambda: parse_array(start, scan_once))
        inner = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

        def scan_once(text: str, index: int) -> Any:
            self._values += 1
            if self._values > _MAX_VALUES:
                raise InvalidArgument(f"{source}, line {self.line(index)}: more than {_MAX_VALUES} values")
            if self._open:
                self._open[-1].append(index)
            return inner(text, index)

        self.scan_once = scan_once

    @functools.cached_property
    def _ends(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self._text)]

    def line(self, index: int) -> int:
        """The line, from 1, of a place in the text."""
        return bisect.bisect_left(self._ends, index) + 1

    def _fail(self, word: str, problem: str) -> NoReturn:
        where = self._open[-1][-1] if self._open else 0
        raise InvalidArgument(f"{self._source}, line {self.line(where)}: {word[:40]} {problem}")

    def _whole(self, word: str) -> int:
        if len(word) > 20:
            self._fail(word, f"has {len(word)} digits; expected at most 20")
        return int(word)

    def _nested(self, start: tuple[str, int], parse: Callable[[], Any]) -> Any:
        if len(self._open) >= _MAX_DEPTH:
            where = f"{self._source}, line {self.line(start[1])}"
            raise InvalidArgument(f"{where}: objects and arrays are nested deeper than {_MAX_DEPTH}")
        self._opened += 1
        if self._opened > MAX_RULES + 2:  # the file, its array, and the rules
            where = f"{self._source}, line {self.line(start[1])}"
            raise InvalidArgument(f"{where}: too many objects or arrays; expected at most {MAX_RULES} rules")
        self._open.append([])
        try:
            return parse()
        finally:
            self._open.pop()

    def _pairs(self, pairs: list[tuple[str, Any]]) -> Members:
        starts = self._open[-1]
        # The object itself is the latest value of what holds it.
        members = Members(pairs, self._open[-2][-1] if len(self._open) > 1 else 0, starts, self.line)
        if len(members) < len(pairs):
            seen: set[str] = set()
            for (key, _), start in zip(pairs, starts, strict=True):
                if key in seen:
                    raise InvalidArgument(
                        f"{self._source}, line {self.line(start)}: member {shown(key)} is given twice; expected once"
                    )
                seen.add(key)
        return members


def parse_json(text: str, source: str) -> Any:
    """Read JSON of at most 8 levels, whole numbers only; objects are `Members`, which know their lines.

    Raises
    ------
    InvalidArgument
        Not JSON, or a member is given twice; the message names the line.
    """
    reader = _Reader(text, source)
    try:
        return reader.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{source}, line {error.lineno}, column {error.colno}: {error.msg}") from None


def shown(value: object) -> str:
    """A value for a message, however large it is."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    if isinstance(value, str) and len(value) > 60:
        value = f"{value[:57]}..."
    return json.dumps(value)


# ------------------------------------------------------------------------------------------------ members of a rule


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument("expected text")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidArgument('expected a number, with K, M, G or T as text ("256K")')
    found = Range.parse(value)
    if found.low != found.high:
        raise InvalidArgument("expected one number, not a range")
    return found.low


def _optional_auto(value: object) -> str:
    """``auto`` leaves it open."""
    return "" if _text(value).lower() == "auto" else _text(value).lower()


# Member of the text -> field of the rule, and how it is read.
_MEMBERS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "collective": ("collective", _text),
    **CONDITIONS,
    "algorithm": ("algorithm", _text),
    "protocol": ("protocol", _optional_auto),
    "channels": ("channels", _number),
    "segment": ("segment", _number),
    "wire": ("wire", _optional_auto),
}


def _members_of(value: object, valid: tuple[str, ...], line: int, element: str, source: str) -> Members:
    """`value` as an object with no other members than the valid ones."""
    if not isinstance(value, Members):
        raise InvalidArgument(f"{source}, line {line}, {element}: {shown(value)}; expected an object")
    for name in value:
        if name not in valid:
            raise InvalidArgument(f"{source}, line {value.line_of(name)}, {element}: {unknown('member', name, valid)}")
    return value


def _rule(value: object, line: int, element: str, source: str) -> Rule:
    members = _members_of(value, tuple(_MEMBERS), line, element, source)
    fields: dict[str, Any] = {}
    for name, content in members.items():
        field, read = _MEMBERS[name]
        try:
            fields[field] = read(content)
        except InvalidArgument as error:
            where = f"{source}, line {members.line_of(name)}, {element}.{name}"
            raise InvalidArgument(f"{where}: {shown(content)}: {error}") from None
    if "collective" not in fields:
        raise InvalidArgument(f"{source}, line {line}, {element}: member collective is missing; expected for example "
                              '"collective": "all_reduce"')  # fmt: skip
    try:
        rule = Rule(**fields, line=line)
        if rule.algorithm and not rule.excluded and rule.ranks.low == rule.ranks.high:
            check(rule.collective, rule.algorithm, rule.ranks.low)
        return rule
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}, line {line}, {element}: {error}") from None


# ------------------------------------------------------------------------------------------------ reading, writing


def loads(text: str, source: str = "rules") -> RuleSet:
    """Read rules from text.

    Parameters
    ----------
    text
        JSON, see docs/selection.md; at most 1 MiB and 4096 rules.
    source
        Where it comes from, for messages and explanations.

    Raises
    ------
    InvalidArgument
        Not JSON, or anything in it is unknown, missing, given twice or out of range; the message names the source,
        the line and the element, for example ``rules.json, line 7, rules[2].bytes``.

    Examples
    --------
    >>> text = '{"format": "ringleader-rules", "version": 1, "rules": [{"collective": "reduce", "algorithm": "chain"}]}'
    >>> print(*loads(text).rules)
    reduce: chain
    """
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{source} has {len(text)} characters; expected at most {MAX_BYTES}")
    try:
        document = parse_json(text, source)
    except InvalidArgument as error:
        if text.lstrip().startswith("{"):
            raise
        raise InvalidArgument(
            f"{error}; expected Ringleader's rules, JSON as `ringleader rules --json` writes it (`ringleader rules "
            "import` makes it of Open MPI's and NCCL's files)"
        ) from None
    whole = _members_of(document, ("format", "version", "rules"), 1, "file", source)
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        found = whole.get(name)
        if found != expected or isinstance(found, bool):
            line = whole.line_of(name)
            problem = f"{name} is {shown(found)}" if name in whole else f"member {name} is missing"
            raise InvalidArgument(f"{source}, line {line}: {problem}; expected {shown(expected)}")
    entries = whole.get("rules")
    if not isinstance(entries, list):
        line = whole.line_of("rules")
        problem = f"rules is {shown(entries)}" if "rules" in whole else "member rules is missing"
        raise InvalidArgument(f"{source}, line {line}: {problem}; expected an array of rules")
    rules = []
    for index, entry in enumerate(entries):
        line = entry.line if isinstance(entry, Members) else whole.line_of("rules")
        rules.append(_rule(entry, line, f"rules[{index}]", source))
    return RuleSet(tuple(rules), source)


def load(path: str | Path) -> RuleSet:
    """Read a file of rules; see `loads`.

    Raises
    ------
    InvalidArgument
        It cannot be read, is no regular file, is too large, or as `loads`.
    """
    return loads(read_text(path), str(path))


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """The text of a regular file of at most `limit` bytes.

    Raises
    ------
    InvalidArgument
        It cannot be read, is no regular file, is larger, or is not UTF-8; the message names the path.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise InvalidArgument(f"{path} is not a file; expected a file of JSON text")
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise InvalidArgument(f"{path} is larger than {limit} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8 text") from None


def dumps(rules: RuleSet) -> str:
    """Write rules as text, one a line; the inverse of `loads`.

    Examples
    --------
    >>> from ringleader.tune.rules import Range
    >>> rules = RuleSet((Rule("reduce", nbytes=Range(1 << 16), algorithm="chain", wire="bf16"),), "mine")
    >>> print(dumps(rules).splitlines()[4])
        {"collective": "reduce", "bytes": "64K-", "algorithm": "chain", "wire": "bf16"}
    >>> loads(dumps(rules), "mine") == rules
    True
    """
    lines = [f"    {json.dumps(_entry(rule))}" for rule in rules.rules]
    head = f'{{\n  "format": {json.dumps(FORMAT)},\n  "version": {VERSION},\n  "rules": ['
    return head + ("\n" + ",\n".join(lines) + "\n  " if lines else "") + "]\n}\n"


def _entry(rule: Rule) -> dict[str, object]:
    entry: dict[str, object] = {"collective": rule.collective, **rule.conditions()}
    if rule.even is not None:
        entry["even"] = rule.even
    for name in ("algorithm", "protocol", "channels", "segment", "wire"):
        if getattr(rule, name):
            entry[name] = getattr(rule, name)
    return entry
