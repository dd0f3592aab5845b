"""What ranks tell of themselves while a group is formed: who they are, and where they can be reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringleader import _core
from ringleader.runtime import processes
from ringleader.runtime.addresses import check_interface_choice, host_id, network_id
from ringleader.runtime.binding import (
    NONE,
    Cores,
    Seat,
    crowded,
    fair_share,
    format_cores,
    held_here,
    my_cores,
    parse_cores,
    physical_order,
    seats,
)
from ringleader.runtime.config import Config
from ringleader.runtime.workers import workers_for

__all__ = [
    "Card", "Cohabitants", "End", "agreed_workers", "cohabitants", "my_card", "node_ids", "read_card", "read_end",
]  # fmt: skip


@dataclass(frozen=True)
class Card:
    """What a rank tells of itself in the first round."""

    rank: int
    hostname: str
    pid: int
    host: str
    network: str
    shm: bool
    transport: str
    channels: int
    identity: str
    known: tuple[str, ...] = ()
    workers: int | None = None  # None: as many as its cores allow
    cores: str = "0"  # that it may use before it is bound, as `parse_cores` reads them
    bind: str = NONE  # what is to become of that
    quota: int = 0  # of cores, 0: none
    net: str = "tcp"
    buffsize: int = 0  # bytes of a staging slot: into how many windows an operation is cut
    told: dict[str, Any] | None = None  # rank 0's: by what the group chooses (see `tuning`)
    extra: Any = None  # what the rank's caller tells the others'

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} (host {self.hostname}, pid {self.pid})"


@dataclass(frozen=True)
class End:
    """Where a rank can be reached, told in the second round."""

    control_offset: int
    unix: str | None = None
    tcp: tuple[tuple[str, int, int], ...] = ()  # address, scope (0 or 1: link-local), port
    interface: str | None = None
    ucx: str | None = None  # address of the UCX worker, hexadecimal


def node_ids(cards: Sequence[Card]) -> list[int]:
    """Node number of each rank: equal means shared memory. A function of the cards alone, so all ranks agree."""
    numbers: dict[object, int] = {}
    keys = [card.host if card.shm else card.rank for card in cards]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


@dataclass(frozen=True)
class Cohabitants:
    """The members of a group that are on one host, and the cores of each once all are bound."""

    ranks: list[int]
    taken: list[Cores]
    quota: int

    @property
    def cores(self) -> int:
        """Cores that they use together."""
        every = len(frozenset().union(*self.taken))
        return min(every, self.quota) if self.quota else every

    def cores_of(self, rank: int) -> Cores:
        """Those of one of them."""
        return self.taken[self.ranks.index(rank)]

    def share_of(self, rank: int) -> int:
        """Cores that one of them has for itself."""
        return fair_share(self.taken, self.ranks.index(rank), self.quota)

    def crowded(self, unseen: int = 0, each: int = 1) -> bool:
        """Whether they, and `unseen` others that may use any of their cores, cannot have `each` cores of their own."""
        return crowded([*self.taken, *[frozenset().union(*self.taken)] * unseen], each, self.quota)


def cohabitants(cards: Sequence[Card], rank: int) -> Cohabitants:
    """Who shares the host of `rank`, itself included. A function of the cards alone, so all ranks there agree.

    Raises
    ------
    InvalidArgument
        A rank's RINGLEADER_BIND has no cores for it.
    """
    here = [card for card in cards if card.host == cards[rank].host]
    taken = seats([Seat(card.name, parse_cores(card.cores), card.bind) for card in here], physical_order)
    return Cohabitants([card.rank for card in here], taken, min((c.quota for c in here if c.quota), default=0))


def agreed_workers(cards: Sequence[Card], nodes: int) -> int:
    """How many threads each rank uses for one large operation: the least that any rank can or wants to have.

    Over the network it is one unless asked for: there, one thread moves more than most links do.
    """
    if len(cards) == 1:
        return 1
    here = cohabitants(cards, 0)  # with several nodes no other host counts
    fair = [here.share_of(card.rank) if nodes == 1 else 1 for card in cards]
    return min(workers_for(c.workers, cores) for c, cores in zip(cards, fair, strict=True))


def my_card(rank: int, config: Config, told: Mapping[str, Any] | None, extra: Any = None) -> Card:
    """This process's card; raises InvalidArgument if it may use no interface."""
    check_interface_choice(config)
    return Card(
        rank=rank,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        host=host_id(),
        network=network_id(),
        shm=config.use_shm,
        transport=config.transport,
        net=config.network,
        buffsize=config.buffsize,
        channels=config.channels,
        workers=config.workers,
        cores=format_cores(my_cores()),
        # A thread that is bound already stays where it is: in a group of some ranks its place would be another one.
        bind=NONE if held_here() is not None else config.bind,
        quota=_core.quota_cores(),
        identity=processes.my_identity().hex(),
        known=tuple(identity.hex() for identity in processes.known_processes()) if config.use_shm else (),
        told=None if told is None else dict(told),
        extra=extra,
    )


def read_card(raw: dict[str, Any]) -> Card:
    """A card as it came through the store."""
    return Card(**{**raw, "known": tuple(raw["known"])})


def read_end(raw: dict[str, Any]) -> End:
    """An end as it came through the store."""
    return End(**{**raw, "tcp": tuple((ip, scope, port) for ip, scope, port in raw["tcp"])})
