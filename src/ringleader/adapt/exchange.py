"""How ranks tell each other what they measured, without waiting for it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ringleader.adapt.estimates import Row, rows_of
from ringleader.errors import InvalidArgument
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.monitor.network import Reading, flow_rate
from ringleader.runtime.watched import unseen

__all__ = ["Exchange", "agree"]

_LINKS_UP_TO = 16  # ranks; beyond, what each two of them have would be too much to tell


class Exchange:
    """At most one exchange of rows at a time, under way while the program does something else."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._network = len(set(comm.nodes)) > 1
        self._reading = Reading.of(comm._cores())
        self._pending: tuple[Any, Any, Any, Any] | None = None  # what it is about, work, table, row

    def start(self, subject: Any, seconds: float, outside: float, window: float) -> None:
        """Tell the others what was measured since the last exchange; see `estimates.Row`."""
        row = np.array(self._measured(seconds, outside, window).values())
        table = np.empty((self._comm.size, row.size))
        with unseen(self._comm, 1):
            self._pending = (subject, self._comm.all_gather(row, table, async_op=True), table, row)

    def take(self) -> tuple[Any, list[Row]] | None:
        """What the latest exchange was about, and the rows of all ranks; None: there was none since."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        subject, work, table, _ = pending
        work.wait()
        return subject, rows_of(table.tolist())

    def _measured(self, seconds: float, outside: float, window: float) -> Row:
        if not self._network:
            return Row(seconds, outside, window, 0.0)
        now, before = Reading.of(self._comm._cores()), self._reading
        self._reading = now
        rate = flow_rate(now.flow_bytes - before.flow_bytes, now.flow_ns - before.flow_ns) or 0.0
        links: tuple[float, ...] = ()
        if self._comm.size <= _LINKS_UP_TO:
            links = tuple(
                flow_rate(row["flow_bytes"] - old["flow_bytes"], row["flow_ns"] - old["flow_ns"]) or 0.0
                for row, old in zip(now.links, before.links, strict=True)
            )
        return Row(seconds, outside, window, rate, links)


def agree(comm: Communicator, settings: object) -> None:
    """Raise InvalidArgument on all ranks unless they have the same settings."""
    text = json.dumps(settings, default=str).encode()
    mine = np.frombuffer(text[:4096].ljust(4096), np.uint8)
    if comm.size == 1:
        return
    with unseen(comm, 1):
        table = comm.all_gather(mine)
    others = [rank for rank in range(comm.size) if table[rank].tobytes() != table[0].tobytes()]
    if others:
        shown = [table[rank].tobytes().decode().strip()[:200] for rank in (0, others[0])]
        raise InvalidArgument(
            f"policies or settings differ between ranks: rank 0 has {shown[0]}, rank {others[0]} has {shown[1]}; give "
            "all ranks the same"
        )
