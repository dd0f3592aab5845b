"""The forms that values of settings have: functions that read a text, or make such a function; all raise ValueError
for any other text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from ringleader._names import did_you_mean, match
from ringleader.errors import InvalidArgument

__all__ = [
    "NotAName",
    "choice",
    "integer",
    "parse_devices",
    "parse_flag",
    "parse_protocols",
    "parse_seconds",
    "parse_text",
    "secret",
    "several",
    "size",
    "zero_or",
]

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_text(value: str) -> str:
    """Anything but blanks."""
    if not value.strip():
        raise ValueError
    return value.strip()


def secret(least: int) -> Callable[[str], str]:
    """Text of at least so many bytes."""

    def parse(value: str) -> str:
        if len(value.encode()) < least:
            raise ValueError
        return value

    return parse


def parse_flag(value: str) -> bool:
    """Yes or no, in several spellings."""
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ValueError


class NotAName(ValueError):
    """A word is none of the valid ones; the text is the question whether the nearest was meant, or empty."""


def choice(*names: str) -> Callable[[str], str]:
    """One of the names, whatever its case, also by another name of a number format."""

    def parse(value: str) -> str:
        found = match(value, names)
        if found is None:
            raise NotAName(did_you_mean(value, names))
        return found

    return parse


def parse_protocols(value: str) -> str:
    """What `ringleader.tune.parse_proto` reads."""
    from ringleader.tune import parse_proto  # not at the top: settings are read before anything heavier is needed

    text = parse_text(value).lower()
    try:
        parse_proto(text)
    except InvalidArgument as error:
        raise NotAName(f"; {error}".replace(f"; RINGLEADER_PROTO={text!r}: ", "; ")) from None
    return text


def integer(low: int, high: int) -> Callable[[str], int]:
    """A number within limits."""

    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def zero_or(low: int, high: int) -> Callable[[str], int]:
    """Parser of zero or an integer within limits.

    Examples
    --------
    >>> zero_or(100, 200)("0")
    0
    """

    def parse(value: str) -> int:
        return 0 if int(value) == 0 else integer(low, high)(value)

    return parse


def size(low: int, high: int) -> Callable[[str], int]:
    """Bytes within limits, with or without K, M or G."""

    def parse(value: str) -> int:
        match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", value.strip(), re.IGNORECASE)
        if match is None:
            raise ValueError
        number = int(match[1]) * _UNITS[match[2].upper()]
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def parse_devices(value: str) -> str:
    """Names with or without `:port`, separated by commas; `^` before them stays."""
    names = [name.strip() for name in value.strip().removeprefix("^").split(",")]
    if not all(re.fullmatch(r"[^\s:^,]+(:\d+)?", name) for name in names):
        raise ValueError
    return ("^" if value.strip().startswith("^") else "") + ",".join(names)


def parse_seconds(value: str) -> float:
    """A finite number above 0."""
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError
    return number


def several(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Some of the known names, in their order; ALL is each of them, and `^` before the list all but those."""

    def parse(value: str) -> tuple[str, ...]:
        exclude = value.startswith("^")
        names = [name.strip().upper() for name in value.removeprefix("^").split(",")]
        for name in names:
            if name not in (*known, "ALL"):
                raise NotAName(did_you_mean(name, (*known, "ALL")))
        chosen = set(known) if "ALL" in names else set(names)
        return tuple(name for name in known if (name in chosen) != exclude)

    return parse
