"""Wire formats: how float32 values travel between nodes. See docs/wire.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from ringleader import errors
from ringleader.schedule import Collective

__all__ = ["WIRE_CODES", "Wire", "effective", "parse_wire"]

# The codes are the contract with the native core (native/wire/wire.hpp).
WIRE_CODES: Final = {"f32": 0, "bf16": 1, "f16": 2, "int8": 3, "onebit": 4}
_FLOAT32: Final = 0
# What RINGLEADER_WIRE applies to: moving data is exact unless the call itself asks for less.
_REDUCTIONS: Final = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)

Wire: TypeAlias = str | Mapping[str, str] | None
"""A format's name, or ``{"inter": name}`` for hops between nodes; None leaves it to RINGLEADER_WIRE."""


def parse_wire(wire: Wire) -> str | None:
    """The name of the format that a call asks for.

    Raises
    ------
    InvalidArgument
        An unknown format or kind of hop; the message lists the valid ones.

    Examples
    --------
    >>> parse_wire("bf16"), parse_wire({"inter": "int8"}), parse_wire(None)
    ('bf16', 'int8', None)
    """
    if wire is None:
        return None
    name: object = wire
    if isinstance(wire, Mapping):
        if set(wire) != {"inter"}:
            raise errors.InvalidArgument(
                f"wire is {dict(wire)!r}; the only kind of hop that can be given a format is 'inter' (between nodes), "
                "for example wire={'inter': 'bf16'}"
            )
        name = wire["inter"]
    if not isinstance(name, str) or name not in WIRE_CODES:
        raise errors.InvalidArgument(f"wire is {wire!r}; valid formats: {', '.join(WIRE_CODES)}")
    return name


def effective(wire: str | None, default: str, collective: Collective, code: int, nodes: tuple[int, ...]) -> str:
    """The format that a call's messages have: f32 where the call has no network hop, or the default does not apply.

    Parameters
    ----------
    wire
        What the call asks for (`parse_wire`), and `default` what RINGLEADER_WIRE says.
    code
        Native code of the element type.

    Raises
    ------
    UnsupportedType
        The call asks for a format, but its elements are not float32.

    Examples
    --------
    >>> effective("int8", "f32", Collective.ALL_REDUCE, 0, (0, 1)), effective("int8", "f32", Collective.ALL_REDUCE, 0, (0, 0))
    ('int8', 'f32')
    >>> effective(None, "bf16", Collective.ALL_REDUCE, 0, (0, 1)), effective(None, "bf16", Collective.BROADCAST, 0, (0, 1))
    ('bf16', 'f32')
    """
    if wire is None:
        wire = default if collective in _REDUCTIONS and code == _FLOAT32 else "f32"
    elif wire != "f32" and code != _FLOAT32:
        raise errors.UnsupportedType(f"wire={wire!r} is for float32 elements only; convert the array, or leave out wire")
    return "f32" if len(set(nodes)) <= 1 else wire
