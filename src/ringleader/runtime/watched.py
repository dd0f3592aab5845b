"""What can be seen of a communicator: its ranks, its counters, and the network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from ringleader.runtime import compressed
from ringleader.runtime.flight import recording
from ringleader.runtime.workers import Workers

if TYPE_CHECKING:
    from ringleader._core import Communicator as Core
    from ringleader.runtime.communicator import Communicator
    from ringleader.runtime.flight.records import Recording
    from ringleader.runtime.monitor.network import Network
    from ringleader.runtime.monitor.publish import Publisher

__all__ = ["Watched", "unseen"]


@contextmanager
def unseen(comm: Communicator, operations: int | None = None) -> Iterator[None]:
    """What Ringleader calls for itself here is not shown as the program's: `last_choice` and the count of operations.

    Parameters
    ----------
    operations
        How many are started. None: they are counted, which needs all of them to be complete at the end.
    """
    kept, before = comm._last_choice, 0 if operations is not None else _operations(comm)
    try:
        yield
    finally:
        comm._last_choice = kept
        comm._unseen += _operations(comm) - before if operations is None else operations


def _operations(comm: Communicator) -> int:
    return sum(core.counters()["operations"] for core in comm._cores())


class Watched:
    """The part of a communicator that tells about it."""

    _core: Core
    _workers: Workers
    _publisher: Publisher | None
    _since: float
    _unseen: int  # operations that are Ringleader's own

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _watch(self, monitor: str) -> None:
        """From now on; `monitor` is the setting of that name."""
        self._since = time.monotonic()
        self._publisher = None
        recording.watch(self)
        if monitor != "0":
            from ringleader.runtime.monitor.publish import Publisher  # only who asks pays for the import

            self._publisher = Publisher(cast("Communicator", self), None if monitor == "1" else monitor)

    def _unwatch(self) -> None:
        if self._publisher is not None:
            self._publisher.stop()

    def _cores(self) -> list[Core]:
        return [self._core, *self._workers.cores]

    def status(self) -> list[dict[str, object]]:
        """What can be seen of every rank from here: rank, name, whether alive, last operation entered and its number.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     [row["rank"] for row in comm.status()]
        [0]
        """
        return self._core.status()

    def recorded(self) -> Recording:
        """What the flight recorder has: this rank's last collectives and messages, see docs/troubleshooting.md.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.barrier()
        ...     [operation.text() for operation in comm.recorded().operations]
        ['barrier #1']
        """
        from ringleader.runtime.flight.records import parse  # only who asks pays for the import

        return parse(self._core.recorded())

    def counters(self) -> dict[str, int]:
        """Totals since the start: operations, windows, sleeps, and bytes by way (network, staging, peers' memory).

        `flow_bytes` came over the network, in large messages, while this rank waited for them; that took `flow_ns`
        nanoseconds. With several workers, each slice of an operation counts as one, and a compressed collective as
        those that it is made of. Operations are the program's; bytes include what Ringleader tells other ranks for
        itself.
        """
        total = Counter(self._core.counters())
        for core in self._workers.cores:
            total.update(core.counters())
        if (lane := compressed.lane_or_none(self)) is not None:
            total.update(lane.comm.counters())
        total["operations"] -= self._unseen
        return dict(total)

    def network(self, probe: float | None = None) -> Network:
        """What this rank knows of the network since the start: bandwidth, latency, jitter, and who was waited for.

        It comes from the traffic there was; nothing is sent. See docs/adaptive.md.

        Parameters
        ----------
        probe
            Seconds to spend on measuring actively first; then every rank must call it, with the same number, while
            nothing else is going on.

        Returns
        -------
        Network
            A table of all peers; ``print`` shows it.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.network().size
        1
        """
        from ringleader.runtime.monitor import network, probes  # only who asks pays for the import

        self._check_usable()
        comm = cast("Communicator", self)
        found = {} if probe is None else probes.probe(comm, probe)
        return network.measure(comm)[0].with_probes(found)
