"""What users type: sizes, names of collectives and algorithms; and the nearest valid word to one that is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ringleader import algorithms
from ringleader._names import match, unknown
from ringleader.errors import InvalidArgument

__all__ = [
    "algorithm_specs",
    "collective_name",
    "format_size",
    "one_of",
    "parse_range",
    "parse_size",
    "size_steps",
    "sizes_text",
]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from a number with an optional suffix K, M or G (powers of 1024), as in ``64K`` or ``1.5M``.

    Raises
    ------
    InvalidArgument
        Not of that form.

    Examples
    --------
    >>> parse_size("64K"), parse_size("1.5M"), parse_size("8")
    (65536, 1572864, 8)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is not a size; expected a number of bytes, with K, M or G for powers of 1024")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(nbytes: int) -> str:
    """A size for people: ``64 KiB``.

    Examples
    --------
    >>> format_size(65536), format_size(100)
    ('64 KiB', '100 B')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def sizes_text(sizes: Sequence[int]) -> str:
    """A few sizes for a message, the first and the last of many."""
    return (
        ", ".join(map(format_size, sizes)) if len(sizes) < 4 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
    )


def size_steps(least: int, most: int, factor: float, step: int) -> list[int]:
    """The sizes to measure: from `least` to `most`, multiplied by `factor`, or with `step` > 0 increased by that.

    Raises
    ------
    InvalidArgument
        The limits are in the wrong order, or the sizes would not grow.

    Examples
    --------
    >>> size_steps(8, 64, 2, 0), size_steps(8, 64, 2, 20)
    ([8, 16, 32, 64], [8, 28, 48])
    """
    if least > most:
        raise InvalidArgument(f"the smallest size, {least} bytes, is above the largest, {most}; swap -b and -e")
    if step <= 0 and not factor > 1:
        raise InvalidArgument(f"the step factor is {factor:g}; expected more than 1 (or a step in bytes with -i)")
    sizes, size = [], float(least)
    while size <= most:
        sizes.append(int(size))
        size = size + step if step > 0 else max(size * factor, size + 1)
    return sizes


def parse_range(text: str, what: str) -> list[int]:
    """Numbers from ``8``, ``1..64`` or a list of both, ``1..8,16,32``.

    Raises
    ------
    InvalidArgument
        Not of that form; `what` is what the numbers are.

    Examples
    --------
    >>> parse_range("1..3,8", "ranks")
    [1, 2, 3, 8]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(?:\.\.|-)\s*(\d+)\s*)?", part)
        if match is None or int(match[1]) < 1 or int(match[2] or match[1]) < int(match[1]):
            raise InvalidArgument(f"{text!r} is not a number of {what}; expected one from 1, a range 1..64, or 1..8,16")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def one_of(word: str, valid: Iterable[str], what: str) -> str:
    """The valid word that `word` means; capitals, ``_`` and ``-`` do not matter.

    Raises
    ------
    InvalidArgument
        There is none; the message lists the valid words, and the nearest one.

    Examples
    --------
    >>> one_of("AllReduce", ["all_reduce", "reduce"], "collective")
    'all_reduce'
    """
    known = list(valid)
    found = match(word, known)
    if found is None:
        raise InvalidArgument(unknown(what, word, known))
    return found


def collective_name(word: str) -> str:
    """The collective that a word means, with or without underscores."""
    return one_of(word, algorithms.COLLECTIVES, "collective")


def algorithm_specs(collective: str, text: str) -> list[str]:
    """Canonical specs of a comma-separated list, or of every algorithm for ``all``.

    Raises
    ------
    InvalidArgument
        Unknown name (with the nearest one), parameter or value.

    Examples
    --------
    >>> algorithm_specs("all_reduce", "Ring:segments=4,tree")
    ['ring:segments=4', 'double_binary_tree']
    """
    if text.strip().lower() == "all":
        return list(algorithms.names(collective))
    specs = []
    for spec in text.split(","):
        name, colon, rest = spec.strip().partition(":")
        entries = [entry for entry in algorithms.all_algorithms() if entry.collective == collective]
        aliases = {alias for entry in entries for alias in entry.aliases}
        if name.lower() not in aliases:
            name = one_of(name, (entry.name for entry in entries), f"{collective} algorithm")
        specs.append(algorithms.canonical(collective, name + colon + rest))
    return specs
