"""Active probes: a few pings and short bursts between each two ranks, when nothing else goes on.

All ranks take part, in the rounds of a tournament: in each round every rank talks to one other, so bursts meet only
where hosts share a line. A probe takes about as long as it is given.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from ringleader.errors import InvalidArgument
from ringleader.runtime.watched import unseen

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["Found", "Prober", "probe", "tournament"]

Found = tuple[float | None, float, float, float]
"""Bandwidth (bytes/s), mean and least round trip, and the mean deviation from it (seconds)."""

# Tags at the end of the range, so that no message of the program is taken for a probe's.
_ASK: Final = 2**31 - 1
_ANSWER: Final = 2**31 - 2
_BURST: Final = 2**31 - 3
_CHUNK = 32 << 10
_FIRST_BURST = 4 * _CHUNK
_LARGEST_BURST = 8 << 20
_PINGS = 8
_END, _PING, _SEND, _TAKE = range(4)


def tournament(n: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds in which each two of n ranks meet once, and each rank meets at most one other in a round.

    Examples
    --------
    >>> [sorted(pairs) for pairs in tournament(4)]
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    even = n + n % 2
    others = list(range(1, even))
    for _ in range(even - 1):
        circle = [0, *others]
        pairs = [(circle[i], circle[-1 - i]) for i in range(even // 2)]
        yield [(min(a, b), max(a, b)) for a, b in pairs if max(a, b) < n]
        others = others[-1:] + others[:-1]


def probe(comm: Communicator, budget: float = 0.2, everyone: bool = False) -> dict[int, Found]:
    """Measure round trips and bandwidth to the other ranks. Every rank must call it, with the same arguments.

    Parameters
    ----------
    budget
        Seconds that it may take, about.
    everyone
        Also between ranks of a node.

    Returns
    -------
    dict
        From rank to what was found on the way from it to this one.

    Raises
    ------
    InvalidArgument
        The budget is not above 0.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     probe(comm, 0.1)
    {}
    """
    if not budget > 0:
        raise InvalidArgument(f"budget is {budget!r}; expected seconds above 0")
    rounds = [
        [(a, b) for a, b in pairs if everyone or comm.nodes[a] != comm.nodes[b]] for pairs in tournament(comm.size)
    ]
    rounds = [pairs for pairs in rounds if pairs]
    found: dict[int, Found] = {}
    for pairs in rounds:
        with unseen(comm, 1):
            comm.barrier()  # a round is over before the next one begins: bursts must not meet
        for a, b in pairs:
            if comm.rank == a:
                found[b] = _lead(comm, b, budget / len(rounds))
            elif comm.rank == b:
                found[a] = _follow(comm, a)
    return found


def _lead(comm: Communicator, peer: int, seconds: float) -> Found:
    """The side that decides what is done, and tells the other at the end what it found on the way to this rank."""
    until = time.monotonic() + seconds
    trips = []
    for _ in range(_PINGS):
        begun = time.perf_counter()
        _ask(comm, peer, _PING, 0)
        trips.append(time.perf_counter() - begun)
        if time.monotonic() > until:
            break
    trip = statistics.median(trips)
    rates: dict[int, float] = {}
    for way in (_SEND, _TAKE):
        size, share = _FIRST_BURST, time.monotonic() + (until - time.monotonic()) / (2 if way == _SEND else 1)
        while True:
            took = _ask(comm, peer, way, size) if way == _SEND else _take(comm, peer, size)
            rates[way] = (size - _CHUNK) / max(took, 1e-9)
            size *= 2
            if size > _LARGEST_BURST or time.monotonic() + size / rates[way] + trip > share:
                break
    spread = statistics.fmean(abs(each - trip) for each in trips)
    report = np.array([_END, 0, rates[_SEND], trip, min(trips), spread])
    comm.send(report, peer, _ASK)
    return rates[_TAKE], trip, min(trips), spread


def _ask(comm: Communicator, peer: int, what: int, size: int) -> float:
    """Let the peer answer a ping, or receive a burst; what it measured."""
    comm.send(np.array([what, size, 0, 0, 0, 0], float), peer, _ASK)
    if what == _SEND:
        _send_burst(comm, peer, size)
    answer = np.empty(1)
    comm.recv(answer, peer, _ANSWER)
    return float(answer[0])


def _take(comm: Communicator, peer: int, size: int) -> float:
    comm.send(np.array([_TAKE, size, 0, 0, 0, 0], float), peer, _ASK)
    return _receive_burst(comm, peer, size)


def _follow(comm: Communicator, peer: int) -> Found:
    order = np.empty(6)
    while True:
        comm.recv(order, peer, _ASK)
        what, size = int(order[0]), int(order[1])
        if what == _END:
            return float(order[2]), float(order[3]), float(order[4]), float(order[5])
        if what == _TAKE:
            _send_burst(comm, peer, size)
            continue
        took = _receive_burst(comm, peer, size) if what == _SEND else 0.0
        comm.send(np.array([took]), peer, _ANSWER)


def _send_burst(comm: Communicator, peer: int, size: int) -> None:
    chunk = np.zeros(_CHUNK, np.uint8)
    works = [comm.isend(chunk, peer, _BURST) for _ in range(size // _CHUNK)]
    for work in works:
        work.wait()


def _receive_burst(comm: Communicator, peer: int, size: int) -> float:
    """Seconds from the end of the first part of a burst to the end of the last."""
    chunk = np.empty(_CHUNK, np.uint8)
    comm.recv(chunk, peer, _BURST)
    begun = time.perf_counter()
    for _ in range(size // _CHUNK - 1):
        comm.recv(chunk, peer, _BURST)
    return time.perf_counter() - begun


class Prober:
    """Probes now and then, when all ranks have been idle, and for a small share of the time.

    Parameters
    ----------
    share
        Part of all time that may go into probes.
    quiet
        Seconds without collectives before a rank counts as idle.
    budget
        Seconds of a probe.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     Prober(comm).idle()
    False
    """

    def __init__(self, comm: Communicator, share: float = 0.01, quiet: float = 0.2, budget: float = 0.1) -> None:
        self._comm = comm
        self.share, self.quiet, self.budget = share, quiet, budget
        self.found: dict[int, Found] = {}
        self._began = self._busy = time.monotonic()
        self._operations = -1
        self._spent = 0.0

    def idle(self) -> bool:
        """Call this on every rank where the program has nothing to send; costs a small all-reduce.

        Returns
        -------
        bool
            Whether a probe was made, the same on all ranks; `found` holds what it found.
        """
        now = time.monotonic()
        operations = self._comm.counters()["operations"]
        if operations != self._operations:
            self._operations, self._busy = operations, now
        ready = now - self._busy >= self.quiet and self._spent + self.budget <= self.share * (now - self._began)
        agreed = np.array([ready and self._comm.size > 1])
        with unseen(self._comm, 1):
            self._comm.all_reduce(agreed, "min")
        if agreed[0]:
            self.found = probe(self._comm, self.budget)
            self._spent += time.monotonic() - now
            self._busy = time.monotonic()
        self._operations = self._comm.counters()["operations"]
        return bool(agreed[0])
