"""Parameters of algorithms: what a spec ``name:key=value:...`` may set, and how values are written.

They are the keywords of an algorithm's function. The annotation says what a value is: an integer (``4``; `Range`), a
word out of a few (``ring``; a ``Literal``), a list of integers (``4+4+3``, a run of equal ones as ``8*512``; a tuple
with a `Separator`), or another algorithm, whose own parameters then stand in parentheses (``ring(segments=4)``; `Of`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from ringleader._names import did_you_mean
from ringleader.errors import InvalidArgument

__all__ = [
    "MAX_LIST", "MAX_NESTING", "Of", "Parameter", "Range", "Segments", "Separator", "Value", "listed", "nested",
    "parameter_of", "split_spec",
]  # fmt: skip

Value: TypeAlias = int | str | tuple[int, ...]

MAX_LIST = 1 << 16
"""Most entries of a list."""

MAX_NESTING = 4
"""Most parentheses within parentheses."""


@dataclass(frozen=True)
class Range:
    """In an annotation: the bounds of an integer, or of each entry of a list."""

    low: int
    high: int


@dataclass(frozen=True)
class Separator:
    """In an annotation of a tuple of integers: what stands between them in a spec."""

    text: str


@dataclass(frozen=True)
class Of:
    """In an annotation of a string: it is the spec of an algorithm for this collective."""

    collective: str


Segments = Annotated[int, Range(1, 1024), "pieces of every chunk, sent one behind the other (a pipeline)"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of an algorithm; see `parameter_of`.

    Attributes
    ----------
    name, default, summary
        `default` is a value as the algorithm's function gets it.
    low, high
        Bounds of an integer, or of each entry of a list.
    choices
        If not empty, the words that it may be.
    of
        If not empty, the value is the spec of an algorithm for this collective (the function gets its canonical form).
    separator
        If not empty, the value is a list of integers with this between them (the function gets a tuple).
    """

    name: str
    default: Value
    summary: str
    low: int = 1
    high: int = 1024
    choices: tuple[str, ...] = ()
    of: str = ""
    separator: str = ""

    @property
    def values(self) -> str:
        """The valid values as text: ``1..1024``, ``ring|bruck``, ``a+b+...``, ``<all_reduce algorithm>``."""
        if self.choices:
            return "|".join(self.choices)
        if self.of:
            return f"<{self.of} algorithm>"
        return f"a{self.separator}b{self.separator}..." if self.separator else f"{self.low}..{self.high}"

    def parse(self, text: str, where: str, canonical: Callable[[str, str], str]) -> Value:
        """Return the value that `text` stands for.

        Parameters
        ----------
        text
            As in a spec.
        where
            Begins the error message.
        canonical
            `registry.canonical`, for the specs of other algorithms.

        Raises
        ------
        InvalidArgument
            Naming `where` and the valid values.
        """
        if self.choices:
            if text in self.choices:
                return text
        elif self.of:
            try:
                return canonical(self.of, _unwrapped(text))
            except InvalidArgument as error:
                raise InvalidArgument(f"{where}: {self.name}={text!r} is not valid; {error}") from None
        elif self.separator:
            found = self._list(text)
            if found is not None:
                return found
        elif (number := self._integer(text)) is not None:
            return number
        each = f", each {self.low}..{self.high}" if self.separator else ""
        question = did_you_mean(text, self.choices)
        hint = f"{question} Expected" if question else "; expected"
        raise InvalidArgument(f"{where}: {self.name}={text!r} is not valid{hint} {self.values}{each}")

    def text(self, value: Value) -> str:
        """The one way in which a spec says `value`; `parse` undoes it.

        Examples
        --------
        >>> Parameter("hosts", (), "", separator="+").text((8, 8, 8, 4, 4))
        '8*3+4+4'
        """
        if isinstance(value, tuple):
            return listed(value, self.separator)
        return nested(value) if self.of and isinstance(value, str) else str(value)

    def _integer(self, text: str) -> int | None:
        digits = text.isascii() and text.isdigit() and len(text) <= 10
        return int(text) if digits and self.low <= int(text) <= self.high else None

    def _list(self, text: str) -> tuple[int, ...] | None:
        entries: list[int] = []
        for word in text.split(self.separator, MAX_LIST):
            entry, star, times = word.partition("*")
            number = self._integer(entry.strip())
            repeat = times.strip() if star else "1"
            if number is None or not (repeat.isascii() and repeat.isdigit() and len(repeat) <= 6):
                return None
            if len(entries) + int(repeat) > MAX_LIST:
                return None
            entries += [number] * int(repeat)
        return tuple(entries) if entries else None


def parameter_of(name: str, default: Any, annotation: Any) -> Parameter | None:
    """The parameter that a keyword of an algorithm's function is; None if a spec cannot set it.

    Parameters
    ----------
    default
        The keyword's default. A default that is an integer makes a parameter without any annotation.
    annotation
        A type, or an ``Annotated`` one with a `Range`, a `Separator` or an `Of`, and a line that says what it is.

    Examples
    --------
    >>> parameter_of("radix", 4, Annotated[int, Range(2, 256), "base of the distances"]).values
    '2..256'
    >>> parameter_of("exchange", "bruck", Literal["bruck", "ring"]).values
    'bruck|ring'
    """
    base, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    found = {type(note): note for note in notes}
    limits, separator, of = found.get(Range, Range(1, 1024)), found.get(Separator), found.get(Of)
    choices = get_args(base) if get_origin(base) is Literal else ()
    if not (choices or separator or of or type(default) is int):
        return None
    return Parameter(
        name, default, found.get(str, name), limits.low, limits.high, choices,
        of.collective if of else "", separator.text if separator else "",
    )  # fmt: skip


def listed(value: tuple[int, ...], separator: str) -> str:
    """A list as a spec says it, runs of more than two equal entries as one word."""
    runs = [(entry, len(list(run))) for entry, run in itertools.groupby(value)]
    words = [[f"{entry}*{times}"] if times > 2 else [str(entry)] * times for entry, times in runs]
    return separator.join(itertools.chain.from_iterable(words))


def nested(spec: str) -> str:
    """A spec as the value of a parameter in another spec.

    Examples
    --------
    >>> nested("ring"), nested("ring:segments=4")
    ('ring', 'ring(segments=4)')
    """
    name, colon, settings = spec.partition(":")
    return f"{name}({settings})" if colon else name


def _unwrapped(text: str) -> str:
    """The spec whose `nested` form is `text`; other text as it is, for the error message."""
    name, parenthesis, settings = text.partition("(")
    return f"{name}:{settings[:-1]}" if parenthesis and settings.endswith(")") else text


def split_spec(spec: str, where: str) -> list[str]:
    """Split a spec at the colons that are not within parentheses.

    Raises
    ------
    InvalidArgument
        Parentheses that do not match, or more than `MAX_NESTING` within each other.

    Examples
    --------
    >>> split_spec("hierarchical:outer=ring(segments=4):hosts=4+3", "")
    ['hierarchical', 'outer=ring(segments=4)', 'hosts=4+3']
    """
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(spec):
        depth += (letter == "(") - (letter == ")")
        if not 0 <= depth <= MAX_NESTING:
            break
        if letter == ":" and depth == 0:
            parts.append(spec[start:place])
            start = place + 1
    if depth:
        problem = f"more than {MAX_NESTING} within each other" if depth > MAX_NESTING else "they do not match"
        raise InvalidArgument(f"{where}: wrong parentheses, {problem}; the form is name:key=name(key=value):key=value")
    return [*parts, spec[start:]]
