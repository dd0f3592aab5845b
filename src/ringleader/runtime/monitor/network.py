"""What the engine's own traffic tells about the network: bandwidth, latency, jitter, and who is waited for.

Nothing is sent for it. See docs/adaptive.md for what each number means and where it comes from.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ringleader import _core

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["LEAST_FLOW", "Network", "Peer", "flow_rate", "measure"]

LEAST_FLOW = 12 << 10
"""Bytes that must have come, while they were waited for, before they tell a bandwidth."""

_TOTALS = ("sent", "received", "messages", "flow_bytes", "flow_ns", "waits", "waited_ns", "retransmits")


def flow_rate(nbytes: int, nanoseconds: int) -> float | None:
    """Bytes per second, or None if too little came to tell.

    Examples
    --------
    >>> flow_rate(1_000_000, 10_000_000), flow_rate(100, 1000)
    (100000000.0, None)
    """
    return nbytes * 1e9 / nanoseconds if nbytes >= LEAST_FLOW and nanoseconds > 0 else None


@dataclass(frozen=True)
class Peer:
    """What this rank knows of its way to another one. Times in seconds, volumes in bytes; None: not known.

    Attributes
    ----------
    rank, name
        Which rank.
    way
        ``"memory"`` (the same node) or ``"network"``.
    sent, received
        Bytes over the network, of collectives.
    bandwidth
        Bytes per second that come from this peer while this rank waits for them. If several send at once, each has its
        part of the line.
    rtt, least_rtt, jitter
        Round trip of the connection as the kernel measures it: smoothed, the least ever, and its mean deviation. They
        hold the queues on the way, which this traffic fills.
    retransmits
        Segments that had to be sent again.
    waits, waited, longest_wait
        How often this rank had to wait for the peer to begin, how long in all, and the longest time: over the network
        each wait for the first message of an operation; in memory only waits beyond spinning, for a peer that had not
        come. A straggler is who is waited for long.
    """

    rank: int
    name: str
    way: str
    sent: int
    received: int
    bandwidth: float | None
    rtt: float | None
    least_rtt: float | None
    jitter: float | None
    retransmits: int
    waits: int
    waited: float
    longest_wait: float


@dataclass(frozen=True)
class Network:
    """The network as one rank sees it; made by `Communicator.network`. ``print`` shows a table.

    Attributes
    ----------
    rank, size, name
        Of the communicator.
    seconds
        Time that the numbers cover.
    operations
        Collectives in that time.
    bandwidth
        Bytes per second that come to this rank from all others together while it waits for them; None: not known.
    peers
        All other ranks, in order.
    probed
        Bandwidth, rtt and jitter were measured by a probe, not by the way.

    Examples
    --------
    >>> import ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.network().peers
    ()
    """

    rank: int
    size: int
    name: str
    seconds: float
    operations: int
    bandwidth: float | None
    peers: tuple[Peer, ...]
    probed: bool = False

    def slowest(self) -> Peer | None:
        """The peer whose data comes slowest, of those whose bandwidth is known."""
        known = [peer for peer in self.peers if peer.bandwidth is not None]
        return min(known, key=lambda peer: peer.bandwidth or 0.0, default=None)

    def stragglers(self) -> tuple[Peer, ...]:
        """The peers that were waited for, the worst first."""
        return tuple(sorted((p for p in self.peers if p.waits), key=lambda p: -p.waited))

    def to_json(self) -> dict[str, Any]:
        """As JSON's types; `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Network:
        """Read what `to_json` wrote."""
        return cls(**{**raw, "peers": tuple(Peer(**peer) for peer in raw["peers"])})

    def with_probes(self, probes: dict[int, tuple[float | None, float, float, float]]) -> Network:
        """These numbers, with bandwidth, rtt, least rtt and jitter of a probe where there are some."""
        peers = []
        for peer in self.peers:
            if peer.rank in probes:
                bandwidth, rtt, least, jitter = probes[peer.rank]
                peer = replace(peer, bandwidth=bandwidth, rtt=rtt, least_rtt=least, jitter=jitter)
            peers.append(peer)
        return replace(self, peers=tuple(peers), probed=bool(probes))

    def __str__(self) -> str:
        how = ", probed" if self.probed else ""
        lines = [
            f"{self.name}: rank {self.rank} of {self.size}, {self.operations} operations in "
            f"{format_seconds(self.seconds)}{how}; receives {format_rate(self.bandwidth)}"
        ]
        rows = [HEADINGS, *(cells(peer) for peer in self.peers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(lines if self.peers else lines[:1])


HEADINGS = (
    "peer", "way", "sent", "received", "bandwidth", "rtt", "least", "jitter", "again", "waits", "waited", "longest",
)  # fmt: skip


def cells(peer: Peer) -> tuple[str, ...]:
    """A peer's row in a table with `HEADINGS`."""
    return (
        str(peer.rank), peer.way, format_bytes(peer.sent), format_bytes(peer.received), format_rate(peer.bandwidth),
        format_seconds(peer.rtt), format_seconds(peer.least_rtt), format_seconds(peer.jitter), str(peer.retransmits),
        str(peer.waits), format_seconds(peer.waited), format_seconds(peer.longest_wait),
    )  # fmt: skip


def format_rate(rate: float | None) -> str:
    """Bytes per second as bits per second.

    Examples
    --------
    >>> format_rate(12.5e6), format_rate(1.5e9), format_rate(None)
    ('100 Mbit/s', '12.0 Gbit/s', '-')
    """
    if rate is None:
        return "-"
    mbits = rate * 8e-6
    return (
        f"{mbits / 1e3:.1f} Gbit/s"
        if mbits >= 9999.5
        else f"{mbits:.0f} Mbit/s"
        if mbits >= 1
        else f"{mbits:.2g} Mbit/s"
    )


def format_bytes(nbytes: float) -> str:
    """Bytes with a binary unit.

    Examples
    --------
    >>> format_bytes(17), format_bytes(5 << 20)
    ('17 B', '5.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def format_seconds(seconds: float | None) -> str:
    """Seconds with a unit that fits.

    Examples
    --------
    >>> format_seconds(0.0123), format_seconds(3e-6), format_seconds(0.0), format_seconds(None)
    ('12.3 ms', '3.0 us', '0', '-')
    """
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.1f} s"


# ------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Reading:
    """The counters of a communicator at one time: what two of them differ by is what happened between them."""

    time: float
    operations: int
    flow_bytes: int
    flow_ns: int
    links: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, cores: Sequence[_core.Communicator]) -> Reading:
        """Read now; several native communicators with the same ranks (workers) are added up."""
        counters = [core.counters() for core in cores]
        links = [core.links() for core in cores]
        first = links[0]
        for others in links[1:]:
            for row, other in zip(first, others, strict=True):
                row.update({name: row[name] + other[name] for name in _TOTALS})
                row["longest_wait_ns"] = max(row["longest_wait_ns"], other["longest_wait_ns"])
        return cls(
            time.monotonic(),
            counters[0]["operations"],
            sum(each["flow_bytes"] for each in counters),
            sum(each["flow_ns"] for each in counters),
            tuple(first),
        )


def measure(comm: Communicator, earlier: Reading | None = None) -> tuple[Network, Reading]:
    """The network since an earlier reading (None: since the start), and a reading for the next time."""
    now = Reading.of(comm._cores())
    before = earlier or Reading(comm._since, 0, 0, 0, ())
    previous: Iterable[dict[str, Any]] = before.links or (dict.fromkeys(_TOTALS, 0) for _ in now.links)
    peers = [
        _peer(row, {name: row[name] - old[name] for name in _TOTALS})
        for row, old in zip(now.links, previous, strict=True)
        if row["rank"] != comm.rank
    ]
    bandwidth = flow_rate(now.flow_bytes - before.flow_bytes, now.flow_ns - before.flow_ns)
    operations = now.operations - before.operations
    network = Network(
        comm.rank, comm.size, comm.name, now.time - before.time, operations, bandwidth, tuple(peers)
    )  # fmt: skip
    return network, now


def _peer(row: dict[str, Any], passed: dict[str, int]) -> Peer:
    rtt, least, jitter = (
        row[name] * 1e-6 if row["rtt_us"] else None for name in ("rtt_us", "least_rtt_us", "jitter_us")
    )
    return Peer(
        row["rank"],
        row["name"],
        "memory" if row["shared"] else "network",
        passed["sent"],
        passed["received"],
        flow_rate(passed["flow_bytes"], passed["flow_ns"]),
        rtt,
        least,
        jitter,
        passed["retransmits"],
        passed["waits"],
        passed["waited_ns"] * 1e-9,
        row["longest_wait_ns"] * 1e-9,
    )
