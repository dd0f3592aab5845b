"""Who the processes of a job are, and which of them are known to be gone.

Invariant: a process is called gone only where the kernel of this host says so, or, of processes of other hosts and
other process namespaces, where its connection to the store's server has ended without a goodbye.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from ringleader.errors import CollectiveTimeout
from ringleader.runtime.store import Store, leave_word

__all__ = ["Member", "Vigil", "myself", "start_time"]


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None if there is none. Tells reused process numbers apart."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


@functools.cache
def _place() -> str:
    """Equal for processes that see each other in /proc: same kernel, same process namespace, same user."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return sha256(f"{kernel} {namespace} {os.geteuid()}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Member:
    """A process that takes part in a job as one of its ranks."""

    rank: int
    hostname: str
    pid: int
    born: str = ""  # `start_time`; empty if unknown
    place: str = ""  # where its process number means something, see `_place`

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} (host {self.hostname}, pid {self.pid})"

    @property
    def process(self) -> str:
        """The same without the rank."""
        return f"host {self.hostname}, pid {self.pid}"

    @property
    def here(self) -> bool:
        """Whether this process can see if that one lives."""
        return bool(self.place and self.born) and self.place == _place()

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended. Of processes elsewhere that is never known."""
        return self.here and start_time(self.pid) != self.born

    def encode(self) -> bytes:
        """For a store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Member:
        """The inverse of `encode`.

        Raises
        ------
        ValueError
            It is none.
        """
        told = json.loads(raw)
        if not isinstance(told, dict):
            raise ValueError(f"expected the description of a process, got {raw[:40]!r}")
        return cls(int(told["rank"]), str(told["hostname"]), int(told["pid"]), str(told["born"]), str(told["place"]))


def myself(rank: int) -> Member:
    """This process, as rank `rank`."""
    pid = os.getpid()
    return Member(rank, socket.gethostname(), pid, start_time(pid) or "", _place())


class Vigil:
    """Looks for members of a start that are gone.

    Parameters
    ----------
    store
        Keys of this start only.
    members
        Those that are known so far, by rank; may grow.
    """

    def __init__(self, store: Store, members: Mapping[int, Member]) -> None:
        self.members = members
        self._store = store
        self._words = False

    def begin(self, me: Member) -> None:
        """Have the store's server tell the others when this process is gone, where the store has such a server."""
        self._words = leave_word(self._store, "lost", me.encode() + b"\n")

    def gone(self, ranks: Collection[int]) -> Member | None:
        """One of the given ranks that is known to have ended."""
        for rank in ranks:
            if (member := self.members.get(rank)) is not None and member.gone:
                return member
        return next((m for m in self._lost() if m.rank in ranks and (m.gone or not m.here)), None)

    def _lost(self) -> list[Member]:
        if not self._words:
            return []
        try:
            return [Member.decode(line) for line in self._store.get("lost", 0).splitlines()]
        except CollectiveTimeout:
            return []
