"""From a schedule to one program per rank: the wrapper of the native lowering, with a bounded cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ringleader.errors import ScheduleError
from ringleader.schedule.spec import check_spec
from ringleader.schedule.table import Schedule

if TYPE_CHECKING:
    from ringleader import _core

__all__ = ["CACHED_TRANSFERS", "clear_cache", "lower", "lower_uncached"]

CACHED_TRANSFERS = 500_000
"""Bound of the cache: transfers of all schedules whose programs it keeps. Larger ones are lowered anew each time."""

_cache: OrderedDict[tuple[str, tuple[int, ...], bool, bool], tuple[int, _core.Lowered]] = OrderedDict()
_lock = threading.Lock()


def lower(schedule: Schedule, nodes: Sequence[int], push: bool = True, wire: bool = False) -> _core.Lowered:
    """Lower a schedule to one program per rank, or find that in the cache.

    Parameters
    ----------
    schedule
        The schedule; it is checked against the spec first.
    nodes
        Node number of each rank, shape (n,): equal means shared memory, different means network.
    push
        Copies between ranks of one node are done by the source (push) or by the destination (pull).
    wire
        Messages have a wire format: what must be rounded for equal results on all ranks is marked.

    Raises
    ------
    ScheduleError
        If the schedule breaks a rule or `nodes` has the wrong length.
    """
    key = (schedule.fingerprint, tuple(int(node) for node in nodes), bool(push), bool(wire))
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key][1]
    check_spec(schedule)
    lowered = lower_uncached(schedule, nodes, push, wire)
    weight = schedule.transfers + 1
    if weight <= CACHED_TRANSFERS:
        with _lock:
            _cache[key] = (weight, lowered)
            while sum(entry[0] for entry in _cache.values()) > CACHED_TRANSFERS:
                _cache.popitem(last=False)
    return lowered


def lower_uncached(schedule: Schedule, nodes: Sequence[int], push: bool = True, wire: bool = False) -> _core.Lowered:
    """Lower a schedule that is known to keep the spec; nothing is remembered. See `lower`."""
    from ringleader import _core

    if len(nodes) != schedule.n:
        raise ScheduleError(f"nodes has {len(nodes)} entries; expected one for each of {schedule.n} ranks")
    return _core.lower(
        schedule.table,
        schedule.collective.code,
        schedule.n,
        schedule.root,
        schedule.chunks,
        [int(node) for node in nodes],
        bool(push),
        bool(wire),
    )


def clear_cache() -> None:
    """Forget all lowered schedules."""
    with _lock:
        _cache.clear()
