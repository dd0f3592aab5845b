"""Wire formats: how float32 values travel between nodes. See docs/wire.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from ringleader import _core, errors
from ringleader._names import match, unknown
from ringleader.runtime import arrays
from ringleader.schedule import Collective

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

L = TypeVar("L", bound="np.ndarray[Any, Any] | Tensor")

__all__ = ["WIRE_CODES", "Wire", "effective", "parse_wire", "round_to_wire"]

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
    >>> parse_wire("bf16"), parse_wire({"inter": "int8"}), parse_wire(None), parse_wire("fp16")
    ('bf16', 'int8', None, 'f16')
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
    if isinstance(name, str) and name in WIRE_CODES:
        return name
    found = match(name, WIRE_CODES)
    if found is None:
        raise errors.InvalidArgument(unknown("wire format", name, WIRE_CODES))
    return found


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
    >>> nodes = (0, 1)
    >>> [effective("int8", "f32", Collective.ALL_REDUCE, 0, where) for where in (nodes, (0, 0))]
    ['int8', 'f32']
    >>> [effective(None, "bf16", kind, 0, nodes) for kind in (Collective.ALL_REDUCE, Collective.BROADCAST)]
    ['bf16', 'f32']
    """
    if wire is None:
        wire = default if collective in _REDUCTIONS and code == _FLOAT32 else "f32"
    elif wire != "f32" and code != _FLOAT32:
        raise errors.UnsupportedType(
            f"wire={wire!r} is for float32 elements only; convert the array, or leave out wire"
        )
    return "f32" if len(set(nodes)) <= 1 else wire


@overload
def round_to_wire(x: L, wire: str) -> L: ...  # type: ignore[overload-overlap]
@overload
def round_to_wire(x: object, wire: str) -> NDArray[np.float32]: ...
def round_to_wire(x: Any, wire: str) -> Any:
    """What a wire format makes of `x` when it is sent once, as one piece: blocks count from its start.

    Use it for error feedback: what is lost is ``x - round_to_wire(x, wire)``.

    Parameters
    ----------
    x
        float32 elements, any shape; left as it is.
    wire
        ``"bf16"``, ``"f16"``, ``"int8"``, ``"onebit"`` (or ``"f32"``: nothing is lost).

    Returns
    -------
    array
        New, of `x`'s shape and kind.

    Raises
    ------
    InvalidArgument
        Unknown format.
    UnsupportedType
        The elements are not float32.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
    Training of Speech DNNs, Interspeech 2014 (error feedback).

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> rl.round_to_wire(np.array([1.0, -1.5, 0.5], np.float32), "onebit")
    array([ 1., -1.,  1.], dtype=float32)
    """
    name = parse_wire(wire)
    if name is None:
        raise errors.InvalidArgument(f"wire is None; valid formats: {', '.join(WIRE_CODES)}")
    origin = arrays.source(x)
    if origin.code != _FLOAT32:
        raise errors.UnsupportedType(f"x has type {origin.dtype_name}; wire formats are for float32 elements")
    result = arrays.new_like(x, arrays.user_shape(x))
    target = arrays.target(result)
    if origin.load is not None:
        origin.load()
    _core.round_to_wire(target.ptr, origin.ptr, origin.count, WIRE_CODES[name])
    if target.store is not None:
        target.store()
    return result
