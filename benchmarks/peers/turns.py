"""Hands out turns: all systems' processes are alive, one system runs at a time, the others wait in a socket.

Every request has a time limit. A system that passes it, or ends, is killed and its error kept; the others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from peers.systems import Launch, System, environment

__all__ = ["Contender", "Group", "PeerError"]

# A process group of its own, to end it by, but not a session: the kernel schedules each session as one
# (sched_autogroup), and between sessions a yield hands nothing over. Ranks of an MPI's launcher share a session too.
_APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}

START_LIMIT = 90.0  # seconds for all ranks of a system to say hello


class PeerError(Exception):
    """A system hung, ended or refused."""


class Contender(Protocol):
    """What can be given a turn."""

    def prepare(self, contestant: str, nbytes: int, dtype: str) -> dict[str, Any]:
        """Get ready for a point: wrong elements of all ranks (None: not checked), and the library's choice."""

    def block(self, contestant: str, iterations: int, warmup: int, rewrite: bool) -> NDArray[np.float64]:
        """Run. Microseconds, shape (ranks, iterations)."""

    def release(self) -> None:
        """The point is over."""

    def close(self) -> None:
        """End."""


class Group:
    """The processes of a system.

    Parameters
    ----------
    limit
        Seconds that one request may take.
    """

    def __init__(self, system: System, ranks: int, starts: Sequence[Launch], path: Path, limit: float) -> None:
        self.system, self.ranks, self._limit = system, ranks, limit
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in `close`
        self._pids: list[int] = []
        self._connections: dict[int, tuple[socket.socket, Any]] = {}
        self._processes: list[subprocess.Popen[str]] = []
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            listener.listen(ranks)
            for start in starts:
                self._processes.append(
                    subprocess.Popen(
                        start.command,
                        env=environment(start),
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=subprocess.STDOUT,
                        **_APART,
                        text=True,
                    )
                )
            self._meet(listener)
        except BaseException:
            self.close(force=True)
            raise
        finally:
            listener.close()
            path.unlink(missing_ok=True)

    def _meet(self, listener: socket.socket) -> None:
        end = time.monotonic() + START_LIMIT
        listener.settimeout(0.5)
        while len(self._connections) < self.ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() > end:
                    raise self._failed(f"not all ranks came within {START_LIMIT:.0f} s") from None
                if any(process.poll() is not None for process in self._processes):
                    raise self._failed("ended while starting") from None
                continue
            lines = connection.makefile("r")
            connection.settimeout(max(end - time.monotonic(), 1.0))
            hello = json.loads(lines.readline())
            self._pids.append(hello["pid"])
            self._connections[hello["rank"]] = (connection, lines)

    def _failed(self, what: str) -> PeerError:
        self._output.seek(0)
        said = " ".join(self._output.read()[-2000:].split())
        return PeerError(f"{what}; it said: {said[:600]}" if said else what)

    def _ask(self, **request: Any) -> list[dict[str, Any]]:
        """Send a request to all ranks and gather their answers, by rank."""
        text = (json.dumps(request) + "\n").encode()
        end = time.monotonic() + self._limit
        answers = []
        try:
            for connection, _ in self._connections.values():
                connection.sendall(text)
            for rank in range(self.ranks):
                connection, lines = self._connections[rank]
                connection.settimeout(max(end - time.monotonic(), 0.01))
                line = lines.readline()
                if not line:
                    raise self._failed(f"rank {rank} ended")
                answers.append(json.loads(line))
        except TimeoutError:
            raise self._failed(f"took more than {self._limit:.0f} s") from None
        except OSError as error:
            raise self._failed(f"lost a rank: {error}") from None
        if wrong := [answer["error"] for answer in answers if "error" in answer]:
            raise PeerError(wrong[0])
        return answers

    def prepare(self, contestant: str, nbytes: int, dtype: str) -> dict[str, Any]:
        answers = self._ask(do="prepare", contestant=contestant, nbytes=nbytes, dtype=dtype)
        return {"wrong": sum(answer["wrong"] for answer in answers), "choice": answers[0]["choice"]}

    def block(self, contestant: str, iterations: int, warmup: int, rewrite: bool) -> NDArray[np.float64]:
        answers = self._ask(do="block", contestant=contestant, iterations=iterations, warmup=warmup, rewrite=rewrite)
        return np.array([answer["times"] for answer in answers], np.float64) / 1e3

    def release(self) -> None:
        self._ask(do="release")

    def close(self, force: bool = False) -> None:
        """End all processes; `force`: without asking."""
        for connection, _ in self._connections.values():
            try:
                if not force:
                    connection.sendall(b'{"do": "end"}\n')
            except OSError:
                force = True
        end = time.monotonic() + (0.0 if force else 10.0)
        for process in self._processes:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                force = True
        if force:
            self._kill()
        for connection, lines in self._connections.values():
            lines.close()
            connection.close()
        self._connections.clear()
        self._output.close()

    def _kill(self) -> None:
        """Launchers first with their sessions (they have time to clean up), then ranks that are left."""
        for process in self._processes:
            _signal_group(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(3.0)
            except subprocess.TimeoutExpired:
                _signal_group(process.pid, signal.SIGKILL)
                process.wait(5.0)
        for pid in self._pids:
            if _is_worker(pid):
                os.kill(pid, signal.SIGKILL)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _is_worker(pid: int) -> bool:
    """Whether the process is still one of ours: its number could belong to another one by now."""
    try:
        return b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
