"""A place: where something is measured, and for which jobs what was found there counts."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader._names import did_you_mean
from ringleader.errors import InvalidArgument
from ringleader.tune.rules import layout_of

__all__ = ["TRANSPORTS", "Place", "parse_places"]

TRANSPORTS = ("shm", "tcp", "ucx")
_MOST_RANKS = 1024


@dataclass(frozen=True)
class Place:
    """Ranks and how they are connected.

    Attributes
    ----------
    nodes
        Node of each rank: equal means shared memory.
    transport
        ``shm``, ``tcp`` or ``ucx``, or two joined by ``+``.
    hosts
        Machines that the ranks are on. TCP within one machine is not the network: what is fastest there need not be
        fastest between two.
    """

    nodes: tuple[int, ...]
    transport: str
    hosts: int = 1

    @classmethod
    def local(cls, ranks: int, transport: str) -> Place:
        """Ranks of one host that all share memory, or that all use TCP (or UCX).

        Examples
        --------
        >>> Place.local(2, "tcp").nodes
        (0, 1)
        """
        return cls((0,) * ranks if transport == "shm" else tuple(range(ranks)), transport)

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.nodes)

    @property
    def net(self) -> str:
        """What connects ranks that do not share memory: ``tcp`` or ``ucx``."""
        return "ucx" if "ucx" in self.transport else "tcp"

    @property
    def layout(self) -> str:
        """``shm``, ``net`` or ``mixed``, see `rules.layout_of`."""
        return layout_of(self.nodes)

    def __str__(self) -> str:
        return f"{self.ranks}:{self.transport}" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")


def parse_places(text: str) -> list[Place]:
    """Local places from ``2:shm,4:tcp``.

    Raises
    ------
    InvalidArgument
        Not of that form; the message shows the form.

    Examples
    --------
    >>> [str(place) for place in parse_places("2:shm, 4:tcp")]
    ['2:shm', '4:tcp']
    """
    places = []
    for part in text.split(","):
        ranks, _, transport = part.strip().partition(":")
        if not ranks.isdecimal() or len(ranks) > 4 or not 2 <= int(ranks) <= _MOST_RANKS or transport not in TRANSPORTS:
            question = did_you_mean(transport, TRANSPORTS) if transport not in TRANSPORTS else ""
            hint = f"{question} Expected" if question else "; expected"
            raise InvalidArgument(
                f"{part.strip()[:40]!r} is not a place{hint} ranks:transport with 2 to {_MOST_RANKS} ranks and a "
                f"transport of {', '.join(TRANSPORTS)}, as in 2:shm,4:tcp"
            )
        places.append(Place.local(int(ranks), transport))
    return list(dict.fromkeys(places))
