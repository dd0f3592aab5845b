"""Who waits at a listener's door: connections that have not proved yet that they know the job's secret.

Anybody may connect, so what strangers can hold is bounded: their number, and the time of each. Where there is no room
for a newcomer somebody must give way, and it may not be a rank:

1. Whoever has said a hello that only the secret can make (`handshake.py`) is *believed*: it takes no room and need not
   give way. It still has to answer the challenge, since a hello could be one that was recorded.
2. Of the others, the source (address) with the most connections gives way first, of its connections those that have
   said nothing, then those that owe their next message, the longest first; none before `GRACE` is over.

If nobody may give way, newcomers wait in the kernel's queue for a moment. Whoever gives way is told so
(`handshake.turn_away`); a rank then tries again until its own limit, and is believed at the latest from then on.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["GRACE", "Complaints", "Lobby", "room_for_strangers"]

GRACE = 0.02
_MOST = 256
_LEAST = 16

G = TypeVar("G", bound=Hashable)


def room_for_strangers() -> int:
    """How many strangers may be in a lobby: at most an eighth of the descriptors that this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if limit == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, limit // 8))


@dataclass(eq=False)
class _Stay:
    source: str
    deadline: float
    since: float
    state: int


_SILENT, _SPEAKING, _BELIEVED = range(3)


class Lobby(Generic[G]):
    """The connections of a listener that are not authenticated yet.

    Parameters
    ----------
    room
        For how many that are not believed there is room.

    Examples
    --------
    >>> lobby = Lobby(room=2)
    >>> for guest in "abc":
    ...     lobby.enter(guest, "10.0.0.1", now=0.0, deadline=5.0)
    >>> lobby.believe("a")
    >>> lobby.speaks("b", now=0.1)
    >>> lobby.full, lobby.give_way(now=0.01), lobby.give_way(now=1.0)
    (True, None, 'c')
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._stays: dict[G, _Stay] = {}
        self._believed = 0
        # Per source those that have said nothing, and those that have spoken; each in the order of `since`.
        self._groups: dict[str, tuple[dict[G, None], dict[G, None]]] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def __contains__(self, guest: G) -> bool:
        return guest in self._stays

    @property
    def strangers(self) -> int:
        """How many are here that are not believed."""
        return len(self._stays) - self._believed

    @property
    def full(self) -> bool:
        """Whether a newcomer needs somebody to give way."""
        return self.strangers >= self.room

    def enter(self, guest: G, source: str, now: float, deadline: float) -> None:
        """A connection has come in; deadlines never decrease from one call to the next."""
        self._stays[guest] = _Stay(source, deadline, now, _SILENT)
        self._groups.setdefault(source, ({}, {}))[_SILENT][guest] = None

    def speaks(self, guest: G, now: float) -> None:
        """It has sent a whole message of the handshake: its grace begins anew."""
        stay = self._stays[guest]
        if stay.state != _BELIEVED:
            self._ungroup(guest, stay)
            stay.state, stay.since = _SPEAKING, now
            self._groups.setdefault(stay.source, ({}, {}))[_SPEAKING][guest] = None

    def believe(self, guest: G) -> None:
        """Its hello is one that only the secret can make."""
        stay = self._stays[guest]
        if stay.state != _BELIEVED:
            self._ungroup(guest, stay)
            stay.state = _BELIEVED
            self._believed += 1

    def _ungroup(self, guest: G, stay: _Stay) -> None:
        group = self._groups[stay.source]
        del group[stay.state][guest]
        if not group[_SILENT] and not group[_SPEAKING]:
            del self._groups[stay.source]

    def leave(self, guest: G) -> None:
        """It has been authenticated, or is gone. Does nothing if it is not here."""
        stay = self._stays.pop(guest, None)
        if stay is None:
            return
        if stay.state == _BELIEVED:
            self._believed -= 1
        else:
            self._ungroup(guest, stay)

    def give_way(self, now: float) -> G | None:
        """Who has to leave for a newcomer; None if all are within their grace."""
        for group in sorted(self._groups.values(), key=lambda g: -len(g[_SILENT]) - len(g[_SPEAKING])):
            for guests in group:
                first = next(iter(guests), None)
                if first is not None and now - self._stays[first].since >= GRACE:
                    return first
        return None

    def overdue(self, now: float) -> list[G]:
        """Whose time is up, in the order in which they came."""
        late = []
        for guest, stay in self._stays.items():
            if now < stay.deadline:
                break
            late.append(guest)
        return late

    def next_deadline(self) -> float | None:
        """When the first one's time is up; None if nobody is here."""
        return next((stay.deadline for stay in self._stays.values()), None)


class Complaints:
    """Warnings about connections, limited in rate: strangers can cause any number of them.

    Parameters
    ----------
    log
        Where they go.
    burst, interval
        So many at once; then one per interval (seconds), which tells how many were left out.
    """

    def __init__(self, log: logging.Logger, burst: int = 5, interval: float = 10.0) -> None:
        self._log, self._burst, self._interval = log, burst, interval
        self._left = float(burst)
        self._last = time.monotonic()
        self._silent = 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, or count it for the next one."""
        now = time.monotonic()
        self._left = min(float(self._burst), self._left + (now - self._last) / self._interval)
        self._last = now
        if self._left < 1:
            self._silent += 1
            return
        self._left -= 1
        more = f" ({self._silent} more like it since the last such line)" if self._silent else ""
        self._silent = 0
        self._log.warning(text + "%s", *arguments, more)
