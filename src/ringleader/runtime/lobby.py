"""Who waits at a listener's door: connections that have not proved yet that they know the job's secret.

Anybody may connect, so what strangers can hold is bounded: their number, and the time of each. Where there is no room
for a newcomer somebody must give way, and it should not be a rank. What tells the two apart before the proof: a rank
speaks at once, answers within a round trip, and does not come in hundreds from one address. Hence the order:

1. the source (address) with the most connections in the lobby gives way first,
2. of its connections those that have said nothing for `SILENT_GRACE`, the longest silent first,
3. then those in mid-handshake that have owed their next message for `SPEAKING_GRACE`.

Invariant: nobody in mid-handshake gives way before its grace is over. If nobody may give way, newcomers wait in the
kernel's queue. Whoever gives way is told so (`handshake.turn_away`), and a rank then tries again until its own limit.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["SILENT_GRACE", "SPEAKING_GRACE", "Complaints", "Lobby", "room_for_strangers"]

SILENT_GRACE = 0.05
SPEAKING_GRACE = 1.0
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
    speaking: bool = False


class Lobby(Generic[G]):
    """The connections of a listener that are not authenticated yet.

    Parameters
    ----------
    room
        How many there is room for.

    Examples
    --------
    >>> lobby = Lobby(room=2)
    >>> lobby.enter("a", "10.0.0.1", now=0.0, deadline=5.0); lobby.enter("b", "10.0.0.1", now=0.1, deadline=5.1)
    >>> lobby.full, lobby.give_way(now=0.04), lobby.give_way(now=1.0)
    (True, None, 'a')
    >>> lobby.speaks("a", now=1.0)
    >>> lobby.give_way(now=1.0)
    'b'
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self._stays: dict[G, _Stay] = {}
        # Per source those that have said nothing, and those in mid-handshake; each in the order of `since`.
        self._groups: dict[str, tuple[dict[G, None], dict[G, None]]] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def __contains__(self, guest: G) -> bool:
        return guest in self._stays

    @property
    def full(self) -> bool:
        """Whether a newcomer needs somebody to give way."""
        return len(self._stays) >= self.room

    def enter(self, guest: G, source: str, now: float, deadline: float) -> None:
        """A connection has come in; deadlines never decrease from one call to the next."""
        self._stays[guest] = _Stay(source, deadline, now)
        self._groups.setdefault(source, ({}, {}))[0][guest] = None

    def speaks(self, guest: G, now: float) -> None:
        """It has sent a whole message of the handshake: its grace begins anew."""
        stay = self._stays[guest]
        group = self._groups[stay.source]
        del group[stay.speaking][guest]
        stay.speaking, stay.since = True, now
        group[True][guest] = None

    def leave(self, guest: G) -> None:
        """It has been authenticated, or is gone. Does nothing if it is not here."""
        stay = self._stays.pop(guest, None)
        if stay is None:
            return
        group = self._groups[stay.source]
        del group[stay.speaking][guest]
        if not group[False] and not group[True]:
            del self._groups[stay.source]

    def give_way(self, now: float) -> G | None:
        """Who has to leave for a newcomer; None if all are within their grace."""
        for group in sorted(self._groups.values(), key=lambda g: -len(g[0]) - len(g[1])):
            for speaking, grace in ((False, SILENT_GRACE), (True, SPEAKING_GRACE)):
                first = next(iter(group[speaking]), None)
                if first is not None and now - self._stays[first].since >= grace:
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
