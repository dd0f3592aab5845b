"""``ringleader monitor``: the network as the ranks of running jobs see it, live."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ringleader.errors import InvalidArgument, SpawnError
from ringleader.runtime.monitor.network import HEADINGS, Network, cells, format_rate, format_seconds
from ringleader.runtime.monitor.publish import SILENT, Snapshot, default_directory, read_snapshots
from ringleader.runtime.spawn import WorkerGroup

__all__ = ["run_monitor"]

_FEW = 4  # ranks up to which every pair has a line of its own
_WAIT = 20.0  # seconds for the ranks that the command starts itself
_ADVICE = "start the job with RINGLEADER_MONITOR=1 (or a directory), or let `ringleader monitor -n 4` start ranks"


def run_monitor(
    console: Console, where: str | None, ranks: int | None, interval: float, once: bool, as_json: bool, peers: bool
) -> None:
    """Show snapshots until interrupted, or once.

    Raises
    ------
    InvalidArgument
        There is nothing to show, or `where` is neither a directory, a process nor a job.
    """
    if ranks is not None:
        if where is not None:
            raise InvalidArgument(f"both {where!r} and --ranks were given; expected one of them")
        with tempfile.TemporaryDirectory(prefix="ringleader-monitor-") as path:
            _with_ranks(console, Path(path), ranks, interval, once, as_json, peers)
        return
    directory, wanted = _source(where)
    if not wanted(read_snapshots(directory)):
        raise InvalidArgument(f"nobody tells of {where or 'a job'} in {directory}; {_ADVICE}")
    _show(console, lambda: wanted(read_snapshots(directory)), interval, once, as_json, peers)


Wanted = Callable[[Sequence[Snapshot]], Sequence[Snapshot]]


def _source(where: str | None) -> tuple[Path, Wanted]:
    """The directory to look in, and which snapshots of it."""
    told = os.environ.get("RINGLEADER_MONITOR", "1")
    usual = default_directory() if told in ("0", "1") else Path(told)
    if where is None:
        return usual, lambda found: found
    if Path(where).is_dir():
        return Path(where), lambda found: found
    if where.isdecimal():
        pid = int(where)

        def of_process(found: Sequence[Snapshot]) -> Sequence[Snapshot]:
            jobs = {each.job for each in found if each.pid == pid}
            return [each for each in found if each.job in jobs]

        return usual, of_process
    return usual, lambda found: [each for each in found if each.job == where]


def _with_ranks(
    console: Console, directory: Path, ranks: int, interval: float, once: bool, as_json: bool, peers: bool
) -> None:
    """Start local ranks over TCP that send something all the time, and show them."""
    if ranks < 2:
        raise InvalidArgument(f"--ranks is {ranks}; expected at least 2")
    group = WorkerGroup(ranks, transport="tcp", env={"RINGLEADER_MONITOR": str(directory)})
    stop = directory / "stop"
    work = _Work(group, str(stop))
    try:
        deadline = time.monotonic() + _WAIT
        while len(read_snapshots(directory)) < ranks:
            if time.monotonic() > deadline or work.done():
                raise SpawnError(f"the {ranks} ranks did not come within {_WAIT:.0f} s")
            time.sleep(0.1)
        _show(console, lambda: read_snapshots(directory), interval, once, as_json, peers)
    finally:
        stop.touch()
        work.join()
        group.close()


class _Work:
    """The ranks at work, waited for on a thread."""

    def __init__(self, group: WorkerGroup, stop: str) -> None:
        self._thread = threading.Thread(target=lambda: group.outcomes(traffic, stop), daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether they have ended, as they should not yet."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for their end."""
        self._thread.join(10.0)


def traffic(stop: str) -> None:
    """What each rank of ``--ranks`` does: an all-reduce of 4 MiB ten times a second, until the file `stop` is there."""
    import numpy as np

    from ringleader.runtime.start import init

    with init() as comm:
        x = np.ones(1 << 20, np.float32)
        going = np.ones(1, np.int8)
        while going[0]:
            x[:] = 1
            comm.all_reduce(x)
            going[0] = not Path(stop).exists()
            comm.all_reduce(going, "min")
            time.sleep(0.1)


# ------------------------------------------------------------------------------------------------------------ showing


def _show(
    console: Console,
    look: Callable[[], Sequence[Snapshot]],
    interval: float,
    once: bool,
    as_json: bool,
    peers: bool,
) -> None:
    if as_json:
        while True:
            for each in look():
                console.out(json.dumps({"job": each.job, "host": each.host, "pid": each.pid, **each.recent.to_json()}))
            if once:
                return
            time.sleep(interval)
    if once:
        console.print(picture(look(), peers))
        return
    with Live(picture(look(), peers), console=console, auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(interval)
            live.update(picture(look(), peers), refresh=True)


def picture(snapshots: Sequence[Snapshot], peers: bool = False) -> Group:
    """A table for each communicator.

    Parameters
    ----------
    peers
        A line for each two ranks also where there are many.
    """
    if not snapshots:
        return Group(Text("no rank tells anything any more"))
    tables = []
    for (job, name), group in groupby(snapshots, key=lambda each: (each.job, each.total.name)):
        members = list(group)
        each_pair = peers or members[0].total.size <= _FEW
        table = _pairs(members) if each_pair else _ranks(members)
        table.title = escape(f"{job}, {name}: {len(members)} of {members[0].total.size} ranks")
        table.caption = escape(next((each.choice for each in members if each.choice), ""))
        tables.append(table)
    return Group(*tables)


def _head(snapshot: Snapshot) -> str:
    silent = time.time() - snapshot.time
    state = f", silent for {silent:.0f} s" if silent > SILENT else ""
    return f"{snapshot.total.rank} ({snapshot.host}, {snapshot.pid}{state})"


def _pairs(members: Sequence[Snapshot]) -> Table:
    table = Table("rank", *HEADINGS, box=box.SIMPLE, title_justify="left", caption_justify="left")
    for column in table.columns[3:]:
        column.justify = "right"
    for each in members:
        for place, peer in enumerate(each.recent.peers):
            table.add_row(escape(_head(each)) if place == 0 else "", *cells(peer))
    return table


def _ranks(members: Sequence[Snapshot]) -> Table:
    headings = ("rank", "operations/s", "in", "out", "line", "slowest from", "most waited for")
    table = Table(*headings, box=box.SIMPLE, title_justify="left", caption_justify="left")
    for each in members:
        seen = each.recent
        seconds = max(seen.seconds, 1e-9)
        moved = [format_rate(sum(getattr(peer, way) for peer in seen.peers) / seconds) for way in ("received", "sent")]
        line, often = format_rate(seen.bandwidth), f"{seen.operations / seconds:.1f}"
        table.add_row(escape(_head(each)), often, *moved, line, _slowest(seen), _waited(seen))
    return table


def _slowest(network: Network) -> str:
    peer = network.slowest()
    return "-" if peer is None else f"{peer.rank}: {format_rate(peer.bandwidth)}"


def _waited(network: Network) -> str:
    waited = network.stragglers()
    return f"{waited[0].rank}: {format_seconds(waited[0].waited)}" if waited else "-"
