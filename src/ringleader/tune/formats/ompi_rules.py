"""Rules files of Open MPI's component `tuned` in their classic form, versions 1 and 2.

A file is a sequence of numbers; ``#`` begins a comment. For each collective the sizes of communicators in ascending
order, for each of them sizes of messages in ascending order, for each of those an algorithm. The nearest lower size
decides, of the communicator first, then of the message. Facts from Open MPI's documentation (docs/rules-formats.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, NoReturn

from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Imported, Note
from ringleader.tune.formats.ompi_algorithms import COLLECTIVES, MpiCollective
from ringleader.tune.formats.ompi_import import Decision, rules_of
from ringleader.tune.rulefile import MAX_BYTES, MAX_RULES
from ringleader.tune.rules import ANY, LAYOUTS, Range

__all__ = ["loads"]

_LARGEST = (1 << 62) - 1


class _Number(NamedTuple):
    value: int
    line: int
    together: int  # numbers on its line


class _Row(NamedTuple):
    """One decision as it is written: the smallest message it is for, and what it chooses."""

    nbytes: int
    algorithm: int
    fan: int
    segment: int
    requests: int
    line: int


class _Sizes(NamedTuple):
    """The rows for communicators from one size on; `announced`: how many there should be, by the number on `line`."""

    ranks: int
    rows: list[_Row]
    announced: int
    line: int


class _Text:
    """The numbers of a file, one after the other."""

    def __init__(self, text: str, source: str) -> None:
        if len(text) > MAX_BYTES:
            raise InvalidArgument(f"{source} has {len(text)} characters; expected at most {MAX_BYTES}")
        self.source = source
        self.version = 1
        # As people and tools write it: rows are lines of four or five numbers, everything else stands alone. Then a
        # wrong count is told from the lines; otherwise line ends mean nothing.
        together = {len(line.partition("#")[0].split()) for line in text.split("\n")} - {0}
        self.lined = together <= {1, 4, 5} and 1 in together and len(together) > 1
        self._numbers = self._scan(text)
        self._ahead: _Number | None = None
        self.line = 1

    def fail(self, line: int, problem: str) -> NoReturn:
        """Raise, naming the place."""
        raise InvalidArgument(f"{self.source}, line {line}: {problem}")

    def _scan(self, text: str) -> Iterator[_Number]:
        head = re.match(r"rule-file-version-(\d{1,9})\b", text)
        if head is not None:
            self.version = int(head[1])
            if self.version not in (1, 2):
                self.fail(1, f"rule-file-version-{head[1]}; expected 1 or 2 (version 3 is JSON: format ompi-json)")
        elif text.lstrip()[:1] == "{":
            self.fail(1, "this is JSON; read it as format ompi-json")
        for line, content in enumerate(text[head.end() if head else 0 :].split("\n"), 1):
            words = content.partition("#")[0].split()
            for word in words:
                if not re.fullmatch(r"0|[1-9]\d{0,18}", word, re.ASCII):
                    self.fail(line, self._problem(word))
                if int(word) > _LARGEST:
                    self.fail(line, f"{word} is too large; expected at most 2^62 - 1")
                yield _Number(int(word), line, len(words))

    @staticmethod
    def _problem(word: str) -> str:
        shown = repr(word if len(word) <= 40 else f"{word[:37]}...")
        if re.fullmatch(r"-\d+", word, re.ASCII):
            return f"{shown} is negative; expected a number from 0"
        if re.fullmatch(r"\d+", word, re.ASCII):
            return (
                f"{shown} {'has too many digits' if word[0] != '0' else 'begins with 0 (Open MPI reads it as octal)'}"
            )
        return f"{shown} is not a number; expected decimal numbers and comments that begin with #"

    def peek(self) -> _Number | None:
        """The next number, which stays."""
        if self._ahead is None:
            self._ahead = next(self._numbers, None)
        return self._ahead

    def next(self, what: str) -> _Number:
        """The next number; `what` it must be, for the message if the file ends."""
        number = self.peek()
        if number is None:
            self.fail(self.line, f"the file ends here, but {what} should follow")
        self._ahead, self.line = None, number.line
        return number

    def head(self, what: str) -> _Number:
        """As `next`, for a number that is not part of a row."""
        number = self.next(what)
        if self.lined and number.together > 1:
            self.fail(number.line, f"a row of {number.together} numbers, where {what} should be; is a count too small?")
        return number

    @property
    def row_ahead(self) -> bool:
        """Whether a row may follow."""
        ahead = self.peek()
        return not self.lined or (ahead is not None and ahead.together > 1)


def loads(text: str, source: str = "ompi rules") -> Imported:
    """Read a classic rules file of Open MPI.

    Parameters
    ----------
    text
        At most 1 MiB, and at most 4096 rules.
    source
        Where it comes from, for messages.

    Returns
    -------
    Imported
        Rules that choose as the file does, and what they cannot say: algorithms that there are not here, collectives
        without counterpart. Where the file says nothing, or leaves the decision to Open MPI (algorithm 0), there is no
        rule.

    Raises
    ------
    InvalidArgument
        The file is not of this form; the message names the line and what was expected there.

    References
    ----------
    Open MPI documentation: "The tuned component", 2024-2026.

    Examples
    --------
    >>> read = loads("1  2  1  # one collective: allreduce, one size\\n 4 2  # 4 ranks\\n 0 3 0 0\\n 65536 4 0 0\\n")
    >>> print(*read.rules.rules, sep="\\n")
    all_reduce[ranks=4-,bytes=0-65535]: recursive_doubling
    all_reduce[ranks=4-,bytes=64K-]: ring
    """
    numbers = _Text(text, source)
    try:
        found = _collectives(numbers)
    except InvalidArgument as error:
        if (han := _as_han(text)) is not None:
            raise InvalidArgument(f"{error}. {han}") from None
        raise
    notes: list[Note] = []
    blocks = [sizes for _, blocks in found for sizes in blocks]
    if short := _short(numbers, blocks):
        text = f"all {len(short)} numbers of message sizes, this the first, are one larger than the rows that follow"
        notes.append(Note(short[0].line, f"{text}; read by lines, as meant, where Open MPI would count"))
    late = [sizes for sizes in blocks if sizes.rows and sizes.rows[0].nbytes > 0]
    if late:
        text = f"{len(late)} communicator sizes, this the first, do not begin with a row for 0 bytes"
        notes.append(Note(late[0].line, f"{text}; Open MPI refuses such a file and uses its own rules"))
    decisions = [it for collective, blocks in found for it in _decisions(numbers, collective, blocks)]
    return rules_of(decisions, source, notes)


def _collectives(numbers: _Text) -> list[tuple[MpiCollective, list[_Sizes]]]:
    count = numbers.head("the number of collectives")
    if count.value > len(COLLECTIVES):
        numbers.fail(count.line, f"{count.value} collectives; Open MPI has {len(COLLECTIVES)}")
    found: dict[int, tuple[MpiCollective, list[_Sizes]]] = {}
    rows = 0
    for index in range(1, count.value + 1):
        number = numbers.head(f"the id of collective {index} of {count.value}")
        if number.value >= len(COLLECTIVES):
            numbers.fail(number.line, f"collective id {number.value}; expected 0 to {len(COLLECTIVES) - 1}")
        collective = COLLECTIVES[number.value]
        if number.value in found:
            numbers.fail(number.line, f"collective id {number.value} ({collective.name}) is given twice; expected once")
        found[number.value] = collective, []
        sizes = numbers.head(f"the number of communicator sizes of {collective.name}")
        for place in range(1, sizes.value + 1):
            block = _sizes(numbers, collective, f"communicator size {place} of {sizes.value} of {collective.name}")
            before = found[number.value][1]
            if before and block.ranks <= before[-1].ranks:
                sizes_text = f"communicator size {block.ranks} of {collective.name} after {before[-1].ranks}"
                numbers.fail(block.line, f"{sizes_text}; expected ascending sizes")
            before.append(block)
            rows += len(block.rows)
            if rows > MAX_RULES or len(before) > MAX_RULES:
                numbers.fail(block.line, f"more than {MAX_RULES} rows or sizes; expected fewer")
    rest = numbers.peek()
    if rest is not None:
        numbers.fail(rest.line, f"{rest.value} follows the last rule; is a count further up too small?")
    return list(found.values())


def _sizes(numbers: _Text, collective: MpiCollective, what: str) -> _Sizes:
    ranks = numbers.head(what)
    count = numbers.head(f"the number of message sizes for {ranks.value} ranks of {collective.name}")
    rows: list[_Row] = []
    for place in range(1, count.value + 1):
        if not numbers.row_ahead:
            break
        where = f"row {place} of {count.value} for {ranks.value} ranks of {collective.name}"
        nbytes = numbers.next(f"the message size of {where}")
        columns = ("the algorithm", "the fan-out", "the segment size")
        algorithm, fan, segment = (numbers.next(f"{column} of {where}").value for column in columns)
        requests, ahead = 0, numbers.peek()
        if numbers.version > 1 and ahead is not None and ahead.line == numbers.line:
            requests = numbers.next("").value
        try:
            if collective.algorithms:
                collective.numbered(algorithm)
        except InvalidArgument as error:
            numbers.fail(nbytes.line, str(error))
        if rows and nbytes.value <= rows[-1].nbytes:
            numbers.fail(
                nbytes.line, f"{where} is for {nbytes.value} bytes, after {rows[-1].nbytes}; expected ascending sizes"
            )
        rows.append(_Row(nbytes.value, algorithm, fan, segment, requests, nbytes.line))
        if len(rows) > MAX_RULES:
            numbers.fail(nbytes.line, f"more than {MAX_RULES} rows; expected fewer")
    return _Sizes(ranks.value, rows, count.value, count.line)


def _short(numbers: _Text, blocks: list[_Sizes]) -> list[_Sizes]:
    """Blocks with fewer rows than announced. That is an error, but for one tool's habit: one fewer in every block."""
    short = [sizes for sizes in blocks if len(sizes.rows) < sizes.announced]
    if short and not (len(short) == len(blocks) > 1 and all(len(it.rows) + 1 == it.announced for it in short)):
        first = short[0]
        counted = f"{first.announced} message sizes for {first.ranks} ranks"
        numbers.fail(first.line, f"{counted}, but {len(first.rows)} rows follow")
    return short


def _decisions(numbers: _Text, collective: MpiCollective, blocks: list[_Sizes]) -> Iterator[Decision]:
    """Each row, with the sizes that it is the nearest lower one of."""
    for block, following in pairwise([*blocks, None]):
        assert block is not None
        ranks = Range(block.ranks, ANY.high if following is None else following.ranks - 1)
        for row, after in pairwise([*block.rows, None]):
            assert row is not None
            nbytes = Range(row.nbytes, ANY.high if after is None else after.nbytes - 1)
            algorithm = collective.numbered(row.algorithm) if collective.algorithms else None
            yield Decision(collective, LAYOUTS, ranks, nbytes, algorithm, row.fan, row.segment, row.requests, row.line)


def _as_han(text: str) -> str | None:
    """What a file is as a HAN rules file, if its first collective reads as one."""
    numbers = _Text(text, "HAN")
    levels_read = 0
    try:
        count = numbers.next("the number of collectives").value
        for index in range(1, min(count, 64) + 1):
            numbers.next(f"the id of collective {index} of {count}")
            levels = numbers.next(f"the topologic level count of collective {index} of {count}").value
            for _ in range(levels):
                level = numbers.next(f"a topologic level of collective {index}").value
                configurations = numbers.next("the number of configurations").value
                if level > 2:
                    return None
                for _ in range(configurations):
                    numbers.next("a configuration size")
                    for _ in range(numbers.next("the number of message sizes").value):
                        numbers.next("a message size")
                        numbers.next("a component")
                levels_read += 1
    except InvalidArgument as error:
        if levels_read < 2:
            return None
        return f"It begins as a HAN rules file does, and as one it is incomplete: {error}"
    what = "It is a HAN rules file: that chooses components for the levels of a topology, not algorithms"
    return what if levels_read and numbers.peek() is None else None
