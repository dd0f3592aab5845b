"""How the ranks of one start find one another in a store that may hold traces of other starts.

A store may outlive a job (torchrun's, a file, one that was passed), rank 0 may still serve that of the job before, and
a second job may use the same port. So:

- Rank 0 gives every start a number of its own, and publishes it with who it is.
- A rank claims its place in that start, by an atomic counter: the first claim holds, and its owner tells who it is.
- Rank 0 waits for all ranks and publishes who they are. From there on all are in the same start, and under its number.

Invariant: a rank goes on only in a start in which its own claim was the first, so nothing that another start left is
ever taken for an answer. Who comes early finds the start before: marked as ended, or with a rank 0 that is dead, or
with a claim of its own; it waits for the next one. Who finds its place taken by another process is told so at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from ringleader.errors import CollectiveTimeout, PeerLost, RendezvousError, RingleaderError
from ringleader.runtime.config import logger
from ringleader.runtime.meeting import LOOK_AGAIN, Meeting, Reported
from ringleader.runtime.presence import Member, Vigil
from ringleader.runtime.store import PrefixStore, Store, StoreLost, no_longer_than, wait_for_ranks

__all__ = ["Assembled", "Assembly", "name_of_start"]

_ENDED = b"ended"
_LEAVE_LIMIT = 0.5
# Starts whose place this process has claimed, and those of them that are still open: (number, rank).
_claimed: set[tuple[str, int]] = set()
_open: set[tuple[str, int]] = set()
_registry = threading.Lock()


def _forget_all() -> None:
    """A forked child has claimed nothing."""
    global _registry
    _registry = threading.Lock()
    _claimed.clear()
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)


@dataclass(frozen=True)
class _Start:
    """What rank 0 publishes."""

    number: str
    size: int
    root: Member
    secret: str = field(repr=False)  # what rank 0 tells of it, hexadecimal

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, raw: bytes) -> _Start:
        told = json.loads(raw)
        return cls(str(told["number"]), int(told["size"]), Member(**told["root"]), str(told["secret"]))


@dataclass(frozen=True)
class Assembled:
    """A start in which all ranks are: its number, the job's secret, and the watch over its ranks."""

    number: str
    secret: bytes = field(repr=False)
    vigil: Vigil


class Assembly:
    """One rank's way into a start.

    Parameters
    ----------
    store
        Keys of the job.
    me
        This process.
    size
        Number of ranks.
    tell, understand
        What rank 0 tells the others of the job's secret, and the secret; and the secret from what was told.
    timeout
        Seconds until all must be there.
    served_by_root
        Whether rank 0's process serves the store: who reaches the store knows that rank 0 lives.
    where
        Of the store, for messages.
    """

    def __init__(
        self,
        store: Store,
        me: Member,
        size: int,
        tell: Callable[[], tuple[bytes, bytes]],
        understand: Callable[[bytes], bytes],
        timeout: float,
        *,
        served_by_root: bool = False,
        where: str = "the store",
    ) -> None:
        self.store, self.me, self.size, self.timeout = store, me, size, timeout
        self._tell, self._understand = tell, understand
        self._served_by_root, self._where = served_by_root, where
        self._deadline = time.monotonic() + timeout
        self._found: dict[int, Member] = {me.rank: me}
        self._tried: set[str] = set()
        self._stale: Member | None = None
        self._mine: bytes | None = None  # rank 0: what it published
        self._number: str | None = None
        self.vigil: Vigil | None = None

    def run(self) -> Assembled:
        """Join.

        Raises
        ------
        RendezvousError
            Another process has this place, the ranks disagree, or the store is lost.
        PeerLost
            A rank died meanwhile; names it.
        CollectiveTimeout
            Naming the ranks that did not come.
        """
        return self._lead() if self.me.rank == 0 else self._follow()

    def leave(self) -> None:
        """The place is free again: the job is closed, or was not formed. Never waits for anybody."""
        if self._number is None:
            return
        with _registry:
            _open.discard((self._number, self.me.rank))
        with contextlib.suppress(RingleaderError), no_longer_than(time.monotonic() + _LEAVE_LIMIT):
            if self.me.rank == 0:
                with contextlib.suppress(CollectiveTimeout):
                    if self.store.get("start", 0) == self._mine:
                        self.store.set("start", _ENDED)  # not deleted: a store of torch would wait for the key
            else:
                self.store.set(self._who(self._number, self.me.rank), b"")

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @staticmethod
    def _who(number: str, rank: int) -> str:
        return f"{number}/who/{rank}"

    @contextlib.contextmanager
    def _begun(self, number: str) -> Iterator[Meeting]:
        """Enter the start: from here on the others learn why this rank fails or that it died, and it of them."""
        with _registry:
            _claimed.add((number, self.me.rank))
            _open.add((number, self.me.rank))
        self._number = number
        within = PrefixStore(number, self.store)
        self.vigil = vigil = Vigil(within, self._found)

        def watch() -> None:
            if gone := vigil.gone(range(self.size)):
                raise PeerLost(f"{gone.name} died", [gone.rank])

        meeting = Meeting(within, "start", self.me.rank, self.size, self._left, watch)
        try:
            vigil.begin(self.me)
            yield meeting
        except BaseException as error:
            cause = meeting.cause_of(error)
            meeting.give_up(cause)
            if isinstance(cause, Reported):
                raise cause.error from None
            if isinstance(cause, StoreLost) and self._served_by_root:
                root = self._found[0].name
                raise PeerLost(f"{root}, which served the store, ended during the start ({cause})", [0]) from error
            if cause is error:
                raise
            raise cause from error

    def _assembled(self, number: str, secret: bytes) -> Assembled:
        assert self.vigil is not None
        return Assembled(number, secret, self.vigil)

    # ----------------------------------------------------------------------------------------------------- rank 0

    def _lead(self) -> Assembled:
        self._refuse_second_root()
        number = secrets.token_hex(8)
        with self._begun(number) as meeting:
            told, secret = self._tell()
            self._mine = _Start(number, self.size, self.me, told.hex()).encode()
            self.store.set("start", self._mine)
            self._await_all(meeting, number)
            everybody = [asdict(self._found[rank]) for rank in range(self.size)]
            self.store.set(f"{number}/all", json.dumps(everybody).encode())
            return self._assembled(number, secret)

    def _refuse_second_root(self) -> None:
        """A rank 0 that lives and has not left has the store for itself."""
        found = name_of_start(self.store)
        if found is None:
            return
        other = found[0]
        if other.gone:
            logger("INIT").info("%s holds the start of a dead process (%s)", self._where, other.process)
        elif other.here and other.pid != self.me.pid:
            raise RendezvousError(
                f"another process ({other.process}) is rank 0 of the job at {self._where}, and lives; end it, or give "
                "this job a meeting point of its own",
                (0,),
            )

    def _await_all(self, meeting: Meeting, number: str) -> None:
        missing = [rank for rank in range(self.size) if rank != 0]
        turn = 0
        while missing:
            left = self._left
            # Waits for one of the ranks, and looks for the others now and then: it must learn who they are to see if
            # one of them has died.
            with contextlib.suppress(CollectiveTimeout):
                self._meet(number, missing[0], min(LOOK_AGAIN, left))
            if missing[0] not in self._found:
                some = missing[1:]
                for rank in [some[(turn + i) % len(some)] for i in range(min(64, len(some)))]:
                    with contextlib.suppress(CollectiveTimeout):
                        self._meet(number, rank, 0)
                turn += 64
                meeting.check()
                if left <= 0:
                    self._raise_missing(number)
            missing = [rank for rank in missing if rank not in self._found]

    def _meet(self, number: str, rank: int, timeout: float) -> None:
        if raw := self.store.get(self._who(number, rank), timeout):
            self._found[rank] = Member.decode(raw)

    def _raise_missing(self, number: str) -> NoReturn:
        """Name the ranks that are not there."""
        ranks = range(1, self.size)
        wait_for_ranks(self.store, lambda r: self._who(number, r), ranks, 0.0, limit=self.timeout, here=(0,))
        raise CollectiveTimeout(
            f"rank 0 did not go on within {self.timeout:.1f} s, though all ranks are there: is it stopped?", (0,)
        )

    # -------------------------------------------------------------------------------------------------- the others

    def _follow(self) -> Assembled:
        pause = 0.01
        seen = False
        while True:
            left = self._left
            raw = None
            try:
                raw = self.store.get("start", min(LOOK_AGAIN, left))
            except CollectiveTimeout:
                pass
            except StoreLost as error:
                if not self._served_by_root or seen or _claimed:
                    # Perhaps the store of the job before, in which this process was: rank 0 has still to leave it.
                    raise
                raise PeerLost(
                    f"rank 0 ended when it had just begun to serve {self._where} ({error}); start all ranks again", [0]
                ) from error
            if raw is not None:
                seen = True
                start = None if raw == _ENDED else _Start.decode(raw)
                if start is not None and self._claim(start):
                    done = self._await_answer(start)
                    if done is not None:
                        return done
                time.sleep(min(pause, self._left))
                pause = min(0.1, pause * 1.5)
            if left <= 0:
                raise CollectiveTimeout(self._no_start(), (0,))

    def _no_start(self) -> str:
        if self._stale is not None:
            return (
                f"rank 0 did not arrive within {self.timeout:.1f} s: {self._where} holds what a dead process "
                f"({self._stale.process}) left of an earlier start; start rank 0 again, or remove it"
            )
        return (
            f"rank 0 did not arrive within {self.timeout:.1f} s (rank {self.me.rank} of {self.size} waits for it); is "
            "it still running? `start_timeout=` (RINGLEADER_STORE_TIMEOUT) sets the limit of init()"
        )

    def _claim(self, start: _Start) -> bool:
        """Whether this process holds its place in this start. False: wait for another one."""
        if start.root.gone:
            if self._stale != start.root:
                self._stale = start.root
                logger("INIT").info("%s holds the start of a dead process (%s)", self._where, start.root.process)
            return False
        place = (start.number, self.me.rank)
        rank, root_lives = self.me.rank, self._served_by_root or start.root.here
        if place in _claimed:
            if place in _open and self._served_by_root:
                raise RendezvousError(
                    f"this process (pid {self.me.pid}) is rank {rank} of the job at {self._where} already, and its "
                    "communicator is open; close() it first, or make further groups with split() or subgroup()",
                    (rank,),
                )
            return False  # of this process's job before, which rank 0 has not left yet
        if start.size != self.size:
            if not root_lives:
                return False
            raise RendezvousError(
                f"the job at {self._where} has {start.size} ranks (its rank 0: {start.root.process}), but this process "
                f"is rank {rank} of {self.size}; two jobs with one address or name? Give each its own port, or "
                "RINGLEADER_JOB_ID and RINGLEADER_SECRET",
                (rank,),
            )
        if start.number not in self._tried:
            self._tried.add(start.number)
            if self.store.add(f"{start.number}/claim/{rank}", 1) == 1:
                return True
        with contextlib.suppress(CollectiveTimeout):
            if raw := self.store.get(self._who(start.number, rank), 0):
                self._refuse_second(Member.decode(raw), start.root, root_lives)
        return False  # who holds the place has left in order, or is about to tell who it is

    def _refuse_second(self, other: Member, root: Member, root_lives: bool) -> None:
        """Say that another process has this rank, where that job is known to live."""
        rank = self.me.rank
        job = f"this job at {self._where} (rank 0: {root.process})"
        if other.gone and root_lives:
            raise RendezvousError(
                f"rank {rank} of {job} was another process ({other.process}), which has ended; nobody can take its "
                "place: start all ranks again, once those that are left have ended",
                (rank,),
            )
        if root_lives or other.here:
            raise RendezvousError(
                f"another process ({other.process}) is rank {rank} of {job}; this one (pid {self.me.pid}) was started "
                "with the same rank, or belongs to another job: give that its own port (MASTER_PORT), or "
                "RINGLEADER_JOB_ID and RINGLEADER_SECRET",
                (rank,),
            )

    def _await_answer(self, start: _Start) -> Assembled | None:
        """Wait for rank 0 to have met all; None if it has begun another start meanwhile."""
        self._found = {self.me.rank: self.me, 0: start.root}
        with self._begun(start.number) as meeting:
            self.store.set(self._who(start.number, self.me.rank), self.me.encode())
            secret = self._understand(bytes.fromhex(start.secret))
            while True:
                left = self._left
                try:
                    raw = self.store.get(f"{start.number}/all", min(LOOK_AGAIN, left))
                    break
                except CollectiveTimeout:
                    meeting.check()
                if left <= 0:
                    self._raise_missing(start.number)
                if not start.root.here and self._other_start(start):
                    self._number = None
                    return None
            self._found.update({rank: Member(**told) for rank, told in enumerate(json.loads(raw))})
            return self._assembled(start.number, secret)

    def _other_start(self, start: _Start) -> bool:
        with contextlib.suppress(CollectiveTimeout):
            raw = self.store.get("start", 0)
            return raw != _ENDED and _Start.decode(raw).number != start.number
        return False


def name_of_start(store: Store) -> tuple[Member, bool] | None:
    """Rank 0 of the job that a store holds, and whether that is open in this process; None if there is none."""
    try:
        raw = store.get("start", 0)
    except CollectiveTimeout:
        return None
    if raw == _ENDED:
        return None
    start = _Start.decode(raw)
    return start.root, (start.number, 0) in _open
