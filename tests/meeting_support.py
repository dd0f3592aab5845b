"""How processes of a test meet: events that one tells the others, conditions that come true, ports that are free.

A rank that has to be late waits for the event that the others are done, not for a time: no pause of a loaded machine
changes who is first, and nobody waits longer than needed.
"""

from __future__ import annotations

import errno
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = 20.0
"""Seconds within which what should come at once has come on any machine; operations that hang have longer limits."""


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Whether `condition()` became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Event:
    """Told by one process of this host to others, by a file of this name in a folder of the test's own."""

    def __init__(self, folder: str | Path, name: object = "event") -> None:
        self._path = Path(folder) / f"event-{name}"

    def set(self) -> None:
        self._path.touch()

    def is_set(self) -> bool:
        return self._path.exists()

    def wait(self, seconds: float = PROMPT) -> bool:
        """Whether it was told in time."""
        return wait_until(self.is_set, seconds)


def free_port(host: str = "127.0.0.1") -> int:
    """A port for a program that must be given its number.

    Below those that the system gives to connections: between this call and its use, none of the many connections of
    other tests can take it.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    raise AssertionError("no port from 12000 to 31999 is free")
