"""What communicators count, for Prometheus: over HTTP, or in a file for the node exporter's textfile collector.

The numbers are those of `Communicator.counters` and of the links with each peer, read when somebody asks for them. One
server, or one file, serves all communicators of a process. What goes wrong with it is a warning: it must not end a job.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ringleader.runtime.config import logger

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

    from ringleader.runtime.watched import Watched

__all__ = ["INTERVAL", "Collector", "serve"]

INTERVAL = 5.0
"""Seconds from one writing of the file to the next."""

_ADDRESS = re.compile(r"(?P<host>.*):(?P<port>\d+)")
_log = logger("NET")
_lock = threading.Lock()
_collector: Collector | None = None

# name, its meaning, key of `counters()`
_TOTALS = (
    ("operations", "Collectives that the program has called.", "operations"),
    ("sleeps", "Waits that slept in the kernel.", "sleeps"),
    ("staged_in_bytes", "Bytes copied into staging buffers.", "bytes_staged_in"),
    ("staged_out_bytes", "Bytes copied out of staging buffers.", "bytes_staged_out"),
)
# name, its meaning, key of a row of `links()`, and by which it is multiplied
_PER_PEER = (
    ("sent_bytes", "Bytes sent to a rank over the network.", "sent", 1.0),
    ("received_bytes", "Bytes received from a rank over the network.", "received", 1.0),
    ("waited_seconds", "Time of waiting for a rank.", "waited_ns", 1e-9),
    ("waits", "Waits for a rank that outlasted spinning.", "waits", 1.0),
    ("retransmits", "Segments to a rank that TCP sent again.", "retransmits", 1.0),
)


class Collector:
    """Makes Prometheus' families of what the communicators of this process count.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.runtime.monitor.metrics import Collector
    >>> collector = Collector()
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.barrier()
    ...     collector.add(comm)
    ...     [each.samples[0].value for each in collector.collect() if each.name == "ringleader_operations"]
    [1]
    """

    def __init__(self) -> None:
        self._communicators: weakref.WeakSet[Watched] = weakref.WeakSet()

    def add(self, comm: Watched) -> None:
        """Show this communicator too, as long as it is there."""
        self._communicators.add(comm)

    def collect(self) -> Iterator[Metric]:
        """The families, as a registry asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["group", "rank"]
        totals = {name: CounterMetricFamily(f"ringleader_{name}", text, labels=labels) for name, text, _ in _TOTALS}
        peers = {
            name: CounterMetricFamily(f"ringleader_{name}", text, labels=[*labels, "peer"])
            for name, text, _, _ in _PER_PEER
        }
        rtt = GaugeMetricFamily(
            "ringleader_rtt_seconds", "Round trip to a rank, as TCP measures it.", labels=[*labels, "peer"]
        )
        live = GaugeMetricFamily("ringleader_live", "1: the communicator can be used, 0: it has failed.", labels=labels)
        for comm in sorted(self._communicators, key=lambda each: (_about(each)[0], id(each))):
            own = _about(comm)
            with contextlib.suppress(Exception):  # it is being closed
                counters, state = comm.counters(), cast("Any", comm).state
                if state == "closed":
                    continue
                live.add_metric(own, float(state == "live"))
                for name, _, key in _TOTALS:
                    totals[name].add_metric(own, counters[key])
                for row in comm._core.links():
                    peer = [*own, str(row["rank"])]
                    for name, _, key, factor in _PER_PEER:
                        if row[key]:
                            peers[name].add_metric(peer, row[key] * factor)
                    if row["rtt_us"]:
                        rtt.add_metric(peer, row["rtt_us"] * 1e-6)
        yield from (live, *totals.values(), *peers.values(), rtt)


def _about(comm: Watched) -> list[str]:
    known = cast("Any", comm)
    return [str(known.name), str(known.rank)]


def serve(comm: Watched, where: str, local_rank: int) -> None:
    """Show what a communicator counts where the setting METRICS says; the first one starts the server.

    Parameters
    ----------
    where
        ``":port"`` or ``"host:port"``, to which the rank's number on its host is added, or a file's path, in which
        ``%h`` is the host's name and ``%p`` the process number.
    local_rank
        The rank's number on its host.
    """
    global _collector
    with _lock:
        if _collector is None:
            try:
                from prometheus_client.registry import CollectorRegistry
            except ImportError:
                _log.warning("RINGLEADER_METRICS=%s needs prometheus_client; pip install 'ringleader[metrics]'", where)
                return
            _collector = Collector()
            _collector.add(comm)  # before anybody can look
            registry = CollectorRegistry()
            registry.register(cast("Any", _collector))
            _start(registry, where, local_rank)
        _collector.add(comm)


def _start(registry: CollectorRegistry, where: str, local_rank: int) -> None:
    address = _ADDRESS.fullmatch(where)
    if address is None:
        path = Path(where.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
        threading.Thread(target=_write, args=(registry, path), name="ringleader-metrics", daemon=True).start()
        return
    from prometheus_client import start_http_server

    port = int(address["port"]) + local_rank
    try:
        start_http_server(port, address["host"] or "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        _log.warning("no metrics at %s:%d: %s (RINGLEADER_METRICS)", address["host"], port, error)


def _write(registry: CollectorRegistry, path: Path) -> None:
    from prometheus_client import write_to_textfile

    pid, failed = os.getpid(), False
    pause = threading.Event()
    while pid == os.getpid():  # a forked child has no such thread
        try:
            write_to_textfile(str(path), registry)  # a new file in the place of the old one
        except OSError as error:
            if not failed:
                _log.warning("cannot write metrics to %s: %s (RINGLEADER_METRICS)", path, error)
            failed = True
        pause.wait(INTERVAL)
