"""What ranks tell of themselves while a group is formed: who they are, and where they can be reached."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringleader import _core
from ringleader.runtime import processes
from ringleader.runtime.addresses import check_interface_choice, host_id, network_id
from ringleader.runtime.config import Config
from ringleader.runtime.workers import workers_for

__all__ = ["Card", "End", "agreed_workers", "my_card", "node_ids", "read_card", "read_end"]


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
    cores: int = 1
    net: str = "tcp"
    buffsize: int = 0  # bytes of a staging slot: into how many windows an operation is cut
    told: dict[str, Any] | None = None  # rank 0's: by what the group chooses (see `tuning`)

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


def agreed_workers(cards: Sequence[Card], nodes: int) -> int:
    """How many threads each rank uses for one large operation: the least that any rank can or wants to have.

    Over the network it is one unless asked for: there, one thread moves more than most links do.
    """
    if len(cards) == 1:
        return 1
    on_host = Counter(card.host for card in cards)
    fair = [card.cores if nodes == 1 else 1 for card in cards]
    return min(workers_for(c.workers, cores, on_host[c.host]) for c, cores in zip(cards, fair, strict=True))


def my_card(rank: int, config: Config, told: Mapping[str, Any] | None) -> Card:
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
        cores=_core.usable_cores(),
        identity=processes.my_identity().hex(),
        known=tuple(identity.hex() for identity in processes.known_processes()) if config.use_shm else (),
        told=None if told is None else dict(told),
    )


def read_card(raw: dict[str, Any]) -> Card:
    """A card as it came through the store."""
    return Card(**{**raw, "known": tuple(raw["known"])})


def read_end(raw: dict[str, Any]) -> End:
    """An end as it came through the store."""
    return End(**{**raw, "tcp": tuple((ip, scope, port) for ip, scope, port in raw["tcp"])})
