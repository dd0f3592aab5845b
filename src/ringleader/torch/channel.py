"""A communicator of a process group with its plans by torch's terms."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

from ringleader import _core
from ringleader.runtime.calls import Call
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.plans import PLAN_CACHE_SIZE, Choice

__all__ = ["Channel"]


class Channel:
    """One of a group's communicators.

    Attributes
    ----------
    plans
        Native plans for calls that need no copies, and how they were chosen, by operation, type and shape: the short
        way of repeated calls. First in, first out, at most `PLAN_CACHE_SIZE`.
    """

    __slots__ = ("__weakref__", "barrier", "comm", "exchanges", "plans")

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.plans: dict[Hashable, tuple[_core.Plan, Choice]] = {}
        self.barrier: Call | None = None
        self.exchanges = 0

    def remember(self, key: Hashable, call: Call) -> None:
        """Let calls like this one take the short way, if it needed no copies."""
        if call.loads or call.stores:
            return
        while len(self.plans) >= PLAN_CACHE_SIZE:
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
                del self.plans[next(iter(self.plans))]
        self.plans[key] = call.plan, call.choice

    def close(self) -> None:
        """Leave the group."""
        self.plans.clear()
        self.comm.close()
