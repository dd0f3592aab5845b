"""The rounds of a group through the store: everybody contributes, everybody gets all contributions.

Each round is a gather by rank 0 that answers everybody, so a round costs 2n messages, not n squared.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ringleader.errors import CollectiveTimeout, PeerLost, RendezvousError, RingleaderError
from ringleader.runtime.store import Store, backoff, wait_for_ranks

__all__ = ["Meeting", "Reported"]

# How long rank 0 waits for all to have read the last answer. They need milliseconds, unless they have died.
_LAST_ANSWER_LIMIT = 5.0
# How long rank 0 stays after a failure so that the others can read why; shorter after a timeout, which they notice too.
_REPORT_LIMIT = 2.0
_LATE_REPORT_LIMIT = 0.5


class Meeting:
    """The rounds of one group through the store, under one deadline. `watch` raises if a member is known to be dead."""

    def __init__(
        self,
        store: Store,
        group: str,
        rank: int,
        size: int,
        timeout: float,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.store, self.group, self.rank, self.size, self.timeout = store, group, rank, size, timeout
        self._watch = watch
        self.deadline = time.monotonic() + timeout
        self._previous: str | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def _key(self, *parts: object) -> str:
        return "/".join(map(str, (self.group, *parts)))

    def gather(self, name: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Everybody's contribution to a round, by rank."""
        if self.size == 1:
            return [mine]
        own, what = json.dumps(mine).encode(), f"group {self.group!r}"
        self.store.set(self._key(name, self.rank), own)
        if self.rank == 0:
            found = self._collect(name, range(1, self.size), self.left, what, (0,))
            answer = b"[" + b",".join([own, *(found[r] for r in range(1, self.size))]) + b"]"
            self.store.set(self._key(name), answer)
            if self._previous is not None:
                self.store.delete(self._previous)  # all have begun this round, so all have read the one before
        else:
            answer = self._await_answer(name, what)
        with contextlib.suppress(RingleaderError):
            self.store.delete(self._key(name, self.rank))  # rank 0 has read it, or there were no answer
        self._previous = self._key(name)
        everybody: list[dict[str, Any]] = json.loads(answer)
        return everybody

    def _await_answer(self, name: str, what: str) -> bytes:
        while True:
            left = self.left
            try:
                return self.store.get(self._key(name), min(0.5, left))
            except CollectiveTimeout:
                self.check()
                if left <= 0:
                    break
        # Name the missing ranks, as rank 0 would have done if it were not missing or late itself.
        self._collect(name, range(self.size), 0.0, what)
        raise CollectiveTimeout(
            f"rank 0 did not answer at {what} within {self.timeout:.1f} s, though all are there", (0,)
        )

    def _collect(
        self, name: str, ranks: Sequence[int], timeout: float, what: str, here: Sequence[int] = ()
    ) -> dict[int, bytes]:
        return wait_for_ranks(
            self.store, lambda r: self._key(name, r), ranks, timeout, self.check, what, limit=self.timeout, here=here
        )

    def finish(self) -> None:
        """Leave the last round. Rank 0, which may serve the store, leaves last, so nobody's answer is lost with it."""
        if self._previous is None:
            return
        with contextlib.suppress(RingleaderError):  # the group is formed; only tidying up is left
            if self.rank != 0:
                if self.store.add(self._key("left"), 1) == self.size - 1:
                    self.store.set(self._key("done"), b"")
                return
            self.store.get(self._key("done"), min(_LAST_ANSWER_LIMIT, self.left))
            for key in (self._previous, self._key("left"), self._key("done")):
                self.store.delete(key)

    def check(self) -> None:
        """Raise the failure of another rank, if there is one."""
        try:
            report = json.loads(self.store.get(self._key("failed"), 0))
        except CollectiveTimeout:
            if self._watch is not None:
                self._watch()
            return
        self.store.add(self._key("told"), 1)
        kind = CollectiveTimeout if report["timeout"] else RendezvousError
        raise Reported(kind(f"{report['message']} (reported by rank {report['rank']})", report["ranks"]))

    def report(self, error: BaseException) -> None:
        """Tell the others why this rank gives up."""
        report = {
            "rank": self.rank,
            "message": str(error) or type(error).__name__,
            "ranks": list(getattr(error, "ranks", ())) or [self.rank],
            "timeout": isinstance(error, CollectiveTimeout),
        }
        with contextlib.suppress(RingleaderError):
            self.store.set(self._key("failed"), json.dumps(report).encode())
            self.store.add(self._key("told"), 1)
            if self.rank == 0 and isinstance(error, Exception):  # not for Ctrl-C
                self._wait_until_told(error)

    def _wait_until_told(self, error: Exception) -> None:
        """Rank 0 may serve the store: give those who are there, or about to come, a moment to read the report."""
        late = isinstance(error, CollectiveTimeout)
        absent = isinstance(error, (CollectiveTimeout, PeerLost))  # the ranks it names will not read it
        expected = self.size - (len(getattr(error, "ranks", ())) if absent else 0)
        for _ in backoff(time.monotonic() + (_LATE_REPORT_LIMIT if late else _REPORT_LIMIT)):
            if self.store.add(self._key("told"), 0) >= expected:
                return


class Reported(Exception):
    """Carries an error that came from another rank, so that it is not reported again."""

    def __init__(self, error: RingleaderError) -> None:
        super().__init__(str(error))
        self.error = error
