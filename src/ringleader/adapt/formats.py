"""How values may travel: what a user allows, from exact to lossy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ringleader._names import match, unknown
from ringleader.errors import InvalidArgument
from ringleader.runtime.wire import WIRE_CODES

__all__ = ["EXACT", "Format", "allowed"]

# Largest relative error of one rounding, see docs/wire.md; one bit keeps no more than a sign and a mean.
_ERRORS: Final = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8, "int8": 1 / 127, "onebit": 1.0}


@dataclass(frozen=True)
class Format:
    """A wire format, or a compressor.

    Attributes
    ----------
    name
        What logs call it.
    wire
        Format of messages between nodes.
    compressor
        Of `ringleader.compress`, or None.
    error
        Largest relative error of one rounding; None: no bound is known.
    """

    name: str
    wire: str = "f32"
    compressor: Any = None
    error: float | None = 0.0

    @property
    def lossless(self) -> bool:
        """Whether values arrive as they were sent."""
        return self.error == 0.0


EXACT = Format("f32")


def allowed(policies: Sequence[Any] | None, accuracy_budget: float | None) -> tuple[Format, ...]:
    """The formats that may be chosen, the most wanted first.

    What is exact is always among them; nothing lossy is unless it is named, or within the budget.

    Parameters
    ----------
    policies
        Names of wire formats, and compressors, in the order in which they are preferred. None: all wire formats within
        the budget, the more accurate ones first.
    accuracy_budget
        Largest relative error of one rounding. None: 0 without `policies`, no limit on what they name.

    Raises
    ------
    InvalidArgument
        Something else than that, or something named that is beyond the budget.

    Examples
    --------
    >>> [[each.name for each in allowed(*given)] for given in ((None, None), (None, 0.01), (["int8"], None))]
    [['f32'], ['f32', 'f16', 'bf16', 'int8'], ['f32', 'int8']]
    """
    if accuracy_budget is not None and not accuracy_budget >= 0:
        raise InvalidArgument(f"accuracy_budget is {accuracy_budget!r}; expected a relative error, 0 or more, or None")
    if policies is None:
        within = sorted((error, name) for name, error in _ERRORS.items() if error <= (accuracy_budget or 0.0))
        return tuple(Format(name, name, None, error) for error, name in within)
    if isinstance(policies, str) or not isinstance(policies, Sequence):
        raise InvalidArgument(f"policies is {policies!r}; expected a list of wire formats and compressors")
    found = [_format(each) for each in policies]
    for each in found:
        if accuracy_budget is not None and (each.error is None or each.error > accuracy_budget):
            bound = "no bound on the error" if each.error is None else f"a relative error of up to {each.error:.2g}"
            raise InvalidArgument(
                f"policies names {each.name}, which has {bound}, but accuracy_budget is {accuracy_budget:g}; leave "
                "one of them out"
            )
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"policies is {names}; expected each format once")
    return tuple(found) if "f32" in names else (EXACT, *found)


def _format(given: Any) -> Format:
    if isinstance(given, str):
        name = match(given, WIRE_CODES)
        if name is None:
            raise InvalidArgument(f"policies: {unknown('wire format', given, WIRE_CODES)}; or give a compressor")
        return Format(name, name, None, _ERRORS[name])
    if not callable(getattr(given, "compress", None)) or not hasattr(given, "compression_ratio"):
        raise InvalidArgument(
            f"policies names {given!r}; expected a wire format ({', '.join(WIRE_CODES)}) or a compressor of "
            "ringleader.compress"
        )
    inner = getattr(given, "compressor", None)
    name = type(given).__name__ if inner is None else f"{type(given).__name__}({type(inner).__name__})"
    return Format(f"{name} {given.compression_ratio:.3g}x", "f32", given, None)
