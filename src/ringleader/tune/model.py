"""The numbers of the cost model: what a machine's links and cores cost, and how to read and write them.

The model itself is in `cost`. Times are seconds, volumes bytes. `DEFAULT` was fitted on one machine (see its comment);
``ringleader tune`` fits the numbers of yours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ringleader.errors import InvalidArgument

__all__ = ["AMPLE", "DECADES", "DEFAULT", "Model", "Parameters"]

DECADES = 10
"""Sizes of a correction: 1 B, 10 B, ... 1 GB; between them it is interpolated, beyond them it stays."""

AMPLE = 1 << 20
"""Cores of a node where nothing is known: one for every rank."""

_LAYOUTS = ("shm", "net", "mixed")
_SLOWEST = 1e4  # seconds, or seconds per byte: more is no machine
_STRONGEST = 100.0


@dataclass(frozen=True)
class Parameters:
    """What things cost; every field is a time in seconds, or one per byte (s/B), and at least 0.

    Attributes
    ----------
    call
        One operation, however small: the engine's own start and end (s).
    window
        One window of an operation whose staged data does not fit into its slot (s).
    shm_hop
        A step in which a rank waits for a rank of its own node (s).
    shm_op
        One transfer within a node: an instruction of its executor (s).
    push_byte, pull_byte
        Copying a byte between ranks of a node, done by its source or by its destination (s/B).
    reduce_byte
        Reducing a byte from another rank's or the own memory (s/B).
    net_hop
        A step in which a rank waits for a message from another node (s).
    net_message
        The processor's work for one end of a message (s).
    net_byte
        The processor's work for one end of a byte: copies in the kernel (s/B).
    wire_byte
        A byte through the busier direction of a rank's connections: 1 / bandwidth (s/B).
    switch
        For a step within a node, per rank beyond the first that shares a core: the core changes hands (s).
    net_switch
        The same for a step with messages: the rank has slept in the kernel and is woken (s).
    """

    call: float
    window: float
    shm_hop: float
    shm_op: float
    push_byte: float
    pull_byte: float
    reduce_byte: float
    net_hop: float
    net_message: float
    net_byte: float
    wire_byte: float
    switch: float
    net_switch: float

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields in order: the columns of `cost.features`."""
        return tuple(f.name for f in fields(cls))

    def values(self) -> tuple[float, ...]:
        """The numbers in the order of `names`."""
        return tuple(getattr(self, name) for name in self.names())


@dataclass(frozen=True)
class Model:
    """Parameters, and what they were found to miss by, per layout and decade of size.

    Attributes
    ----------
    parameters
        See `Parameters`.
    corrections
        Layout (``shm``, ``net``, ``mixed``) to `DECADES` factors: measured over predicted time where the ranks of a
        machine have 1 B, 10 B, ... together (see `cost.footprint`).
    slot_bytes
        Bytes of a staging slot in shared memory (RINGLEADER_BUFFSIZE): more staged data takes several windows.
    cores
        Cores of a node that its ranks share; more ranks than these take turns.
    one_host
        All nodes are on one machine and share its cores: TCP over loopback.
    source
        Where the numbers come from, for people.
    """

    parameters: Parameters
    corrections: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    slot_bytes: int = 512 << 10
    cores: int = AMPLE
    one_host: bool = False
    source: str = "built-in"

    def correction(self, layout: str, nbytes: float) -> float:
        """The factor for a size: between two decades geometrically interpolated; 1 where nothing is known.

        Examples
        --------
        >>> flat = Model(DEFAULT.parameters, {"shm": (1.0,) * 3 + (4.0,) * 7})
        >>> flat.correction("shm", 100), round(flat.correction("shm", 10**2.5), 6), flat.correction("net", 1e6)
        (1.0, 2.0, 1.0)
        """
        factors = self.corrections.get(layout)
        if factors is None:
            return 1.0
        place = min(max(math.log10(max(nbytes, 1.0)), 0.0), DECADES - 1.0)
        low = min(int(place), DECADES - 2)
        share = place - low
        return float(factors[low] ** (1 - share) * factors[low + 1] ** share)

    def to_json(self) -> dict[str, Any]:
        """As JSON's types; `from_json` reads it."""
        return {
            "parameters": dict(zip(Parameters.names(), self.parameters.values(), strict=True)),
            "corrections": {layout: list(factors) for layout, factors in self.corrections.items()},
            "slot_bytes": self.slot_bytes,
            "cores": self.cores,
        }

    @classmethod
    def from_json(cls, raw: Any, source: str) -> Model:
        """Read what `to_json` wrote; `source` names the file in messages.

        Raises
        ------
        InvalidArgument
            Something is missing, unknown, no number or out of range; the message names it.

        Examples
        --------
        >>> Model.from_json(DEFAULT.to_json(), "here").parameters == DEFAULT.parameters
        True
        """
        _keys(raw, ("parameters", "corrections", "slot_bytes", "cores"), f"{source}: model")
        _keys(raw["parameters"], Parameters.names(), f"{source}: model.parameters")
        parameters = {
            name: _number(raw["parameters"][name], 0.0, _SLOWEST, f"{source}: model.parameters.{name}")
            for name in Parameters.names()
        }
        corrections: dict[str, tuple[float, ...]] = {}
        if not isinstance(raw["corrections"], dict) or not set(raw["corrections"]) <= set(_LAYOUTS):
            raise InvalidArgument(f"{source}: model.corrections: expected an object with keys of {', '.join(_LAYOUTS)}")
        for layout, factors in raw["corrections"].items():
            where = f"{source}: model.corrections.{layout}"
            if not isinstance(factors, list) or len(factors) != DECADES:
                raise InvalidArgument(f"{where}: expected a list of {DECADES} numbers")
            corrections[layout] = tuple(_number(f, 1 / _STRONGEST, _STRONGEST, where) for f in factors)
        slot = _number(raw["slot_bytes"], 1.0, float(1 << 40), f"{source}: model.slot_bytes")
        cores = _number(raw["cores"], 1.0, float(AMPLE), f"{source}: model.cores")
        return cls(Parameters(**parameters), corrections, int(slot), int(cores), source=source)


def _keys(raw: Any, expected: tuple[str, ...], where: str) -> None:
    if not isinstance(raw, dict) or set(raw) != set(expected):
        found = ", ".join(sorted(map(str, raw))) if isinstance(raw, dict) else type(raw).__name__
        raise InvalidArgument(f"{where}: expected an object with exactly {', '.join(expected)}; found {found[:200]}")


def _number(raw: Any, low: float, high: float, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
        raise InvalidArgument(f"{where}: {str(raw)[:80]} is not valid; expected a number from {low:g} to {high:g}")
    return float(raw)


# Fitted to tasks measured on 2 cores of an AMD EPYC (Zen 5) virtual machine, rounded; TCP was loopback, which has no
# wire: its bandwidth is that of a 10 Gbit/s network. Ratios between kinds of work carry over to other machines,
# absolute values do not: tune there.
DEFAULT = Model(
    Parameters(
        call=0.6e-6,
        window=8e-6,
        shm_hop=0.3e-6,
        shm_op=0.03e-6,
        push_byte=1 / 23e9,
        pull_byte=1 / 30e9,
        reduce_byte=1 / 20e9,
        net_hop=4.5e-6,
        net_message=0.5e-6,
        net_byte=1 / 5e9,
        wire_byte=1 / 1.2e9,
        switch=1.4e-6,
        net_switch=10e-6,
    )
)
