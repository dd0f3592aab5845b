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
from ringleader.runtime.presence import myself
from ringleader.runtime.store import Store, StoreLost, backoff, no_longer_than, wait_for_ranks

__all__ = ["LOOK_AGAIN", "Meeting", "Reported"]

# Seconds after which somebody who waits looks whether another rank has failed.
LOOK_AGAIN = 0.25

# How long rank 0 waits for all to have read the last answer. They need milliseconds, unless they have died.
_LAST_ANSWER_LIMIT = 5.0
# How long rank 0 stays after a failure so that the others can read why; shorter after a timeout, which they notice too.
_REPORT_LIMIT = 2.0
_LATE_REPORT_LIMIT = 0.5
# How long somebody whose connection failed looks whether another rank's failure is behind it.
_NEWS_LIMIT = 0.4

_KINDS: dict[str, type[RingleaderError]] = {"timeout": CollectiveTimeout, "lost": PeerLost}


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
        self.doing = "met the others"  # what this rank does, for messages
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
                return self.store.get(self._key(name), min(LOOK_AGAIN, left))
            except CollectiveTimeout:
                pass
            try:
                self.check()
            except (PeerLost, Reported):
                # The answer may have come first: then whoever failed afterwards had done its part. All take it.
                with contextlib.suppress(CollectiveTimeout, RendezvousError):
                    return self.store.get(self._key(name), 0)
                raise
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
            self._await_leaving()
            for key in (self._previous, self._key("left"), self._key("done")):
                self.store.delete(key)

    def _await_leaving(self) -> None:
        """Rank 0: until all have read the last answer; ranks that have died will not."""
        deadline = time.monotonic() + min(_LAST_ANSWER_LIMIT, self.left)
        while (left := deadline - time.monotonic()) > 0:
            try:
                self.store.get(self._key("done"), min(LOOK_AGAIN, left))
                return
            except CollectiveTimeout:
                if self._watch is not None:
                    try:
                        self._watch()
                    except PeerLost as error:
                        if self.store.add(self._key("left"), 0) >= self.size - 1 - len(error.ranks):
                            return

    def check(self) -> None:
        """Raise the failure of another rank, if there is one.

        Raises
        ------
        Reported
            With the error that the rank has reported.
        PeerLost
            It has died.
        """
        try:
            report = json.loads(self.store.get(self._key("failed"), 0))
        except CollectiveTimeout:
            if self._watch is not None:
                try:
                    self._watch()
                except PeerLost as error:
                    raise PeerLost(
                        f"{error}; group {self.group!r} cannot be formed (rank {self.rank} {self.doing})", error.ranks
                    ) from None
            return
        self.store.add(self._key("told"), 1)
        kind = _KINDS.get(report["kind"], RendezvousError)
        raise Reported(kind(f"{report['message']} (reported by {report['name']})", report["ranks"]))

    def cause_of(self, error: BaseException) -> BaseException:
        """Why this rank failed, if that was another rank's failure: what it meets first may be a consequence."""
        if isinstance(error, (Reported, PeerLost)) or not isinstance(error, (OSError, CollectiveTimeout)):
            return error
        late = isinstance(error, CollectiveTimeout)
        try:
            for _ in backoff(time.monotonic() + (0.0 if late else _NEWS_LIMIT)):
                self.check()
        except (Reported, PeerLost, StoreLost) as cause:
            return cause
        except RingleaderError:
            pass
        return error

    def give_up(self, error: BaseException) -> None:
        """Before this rank raises: tell the others why, or, as rank 0, see to it that they read what another rank told.

        Rank 0 may serve the store: were it gone before, the others would take that for the cause.
        """
        if self.size == 1 or isinstance(error, StoreLost):
            return
        if not isinstance(error, Reported):
            self._report(error)
        elif self.rank == 0:
            with contextlib.suppress(RingleaderError), no_longer_than(time.monotonic() + _REPORT_LIMIT):
                self._wait_until_told(error.error)

    def _report(self, error: BaseException) -> None:
        name = myself(self.rank).name
        text = str(error)
        if not isinstance(error, RingleaderError):  # somebody else's words, or Ctrl-C: say whose failure that is
            text = f"{name} failed while it {self.doing}: {type(error).__name__}{': ' if text else ''}{text}"
        report = {
            "name": name,
            "message": text,
            "ranks": list(getattr(error, "ranks", ())) or [self.rank],
            "kind": next((name for name, kind in _KINDS.items() if isinstance(error, kind)), ""),
        }
        with contextlib.suppress(RingleaderError), no_longer_than(time.monotonic() + _REPORT_LIMIT):
            self.store.set(self._key("failed"), json.dumps(report).encode())
            self.store.add(self._key("told"), 1)
            if self.rank == 0 and isinstance(error, Exception):  # not for Ctrl-C
                self._wait_until_told(error)

    def _wait_until_told(self, error: Exception) -> None:
        """Rank 0 may serve the store: give those who are there, or about to come, a moment to read the report."""
        late = isinstance(error, CollectiveTimeout)
        absent = isinstance(error, (CollectiveTimeout, PeerLost))  # the ranks it names will not read it
        expected = self.size - (len(getattr(error, "ranks", ())) if absent else 0)
        # Failing takes no longer than the limit of the start and a moment.
        limit = _LATE_REPORT_LIMIT if late else min(_REPORT_LIMIT, max(_LATE_REPORT_LIMIT, self.left))
        for _ in backoff(time.monotonic() + limit):
            if self.store.add(self._key("told"), 0) >= expected:
                return


class Reported(Exception):
    """Carries an error that came from another rank, so that it is not reported again."""

    def __init__(self, error: RingleaderError) -> None:
        super().__init__(str(error))
        self.error = error
