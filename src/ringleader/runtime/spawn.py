"""Starts ranks as processes of this host, runs functions on them, and collects what they return.

The parent serves the store, so the ranks that are left can regroup after the death of any rank.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import pickletools
import secrets
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ringleader.errors import ClosedError, CollectiveTimeout, InvalidArgument, SpawnError
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.keys import secret_key
from ringleader.runtime.storeserver import TcpStoreServer

R = TypeVar("R")

__all__ = ["Outcome", "WorkerGroup", "spawn"]

GRACE = 5.0
_STOP_LIMIT = 5.0
_NO_MODULE = (
    "it is defined in a main program that new processes cannot import ({program}); define it in a module and import it "
    "from there, or install cloudpickle, which sends functions as they are"
)
_GUARD = 'a script must start ranks under `if __name__ == "__main__":` only'


@dataclass(frozen=True)
class Outcome:
    """What became of one rank: the returned `value`, or the `error` (a traceback, or how the process ended)."""

    rank: int
    value: Any = None
    error: str | None = None
    exception: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether it did not return."""
        return self.error is not None


# ------------------------------------------------------------------------------------------------------ in the children


def _worker(conn: Connection) -> None:
    """Body of a child: run what arrives, until the parent closes the pipe."""
    threading.Thread(target=_end_with_parent, name="ringleader-parent-watch", daemon=True).start()
    while True:
        try:
            job_id, payload = conn.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        os.environ["RINGLEADER_JOB_ID"] = job_id
        # SystemExit is let through, so that the parent sees the exit code.
        try:
            function, args, kwargs = _unpickled(payload)
            reply = (function(*args, **kwargs), None, None)
            message = _dumps(reply)
        except SystemExit:
            raise
        except BaseException as error:
            message = _failure_message(error)
        try:
            conn.send_bytes(message)
        except OSError:
            return


def _unpickled(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)
    except AttributeError as error:
        if "__main__" not in str(error) and "__mp_main__" not in str(error):
            raise
        raise AttributeError(f"{error}: {_NO_MODULE.format(program='it was run interactively')}") from error


def _dumps(reply: Any) -> bytes:
    """Pickled; with cloudpickle where that is needed, for classes that came from a main program."""
    try:
        return pickle.dumps(reply)
    except Exception:
        if (by_value := _cloudpickle()) is None:
            raise
        return bytes(by_value.dumps(reply))


def _cloudpickle() -> Any:
    """The module, None where it is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _failure_message(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        # Loading may fail even where dumping works (an exception with its own __init__), so try both.
        message = _dumps((None, text, error))
        pickle.loads(message)
    except Exception:
        message = pickle.dumps((None, text, None))
    return message


def _end_with_parent() -> None:
    """No child outlives its parent, even one that was killed without a chance to end its children."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


# -------------------------------------------------------------------------------------------------------- in the parent

_start_lock = threading.Lock()
_groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change the environment while a child is started: it must be there before the child imports anything."""
    with _start_lock:
        saved = {name: os.environ.get(name) for name in changes}
        try:
            _apply(changes)
            yield
        finally:
            _apply(saved)


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class WorkerGroup:
    """`n` processes that are kept alive to run many functions; `ringleader.init()` in them joins all of them.

    Parameters
    ----------
    n
        Number of ranks.
    env
        Environment variables for the processes, None to unset one.
    transport
        "auto", "shm", "tcp" or "ucx" (RINGLEADER_TRANSPORT).

    Examples
    --------
    >>> import operator
    >>> with WorkerGroup(2) as group:
    ...     group.run(operator.add, 1, 2)
    [3, 3]
    """

    def __init__(self, n: int, *, env: Mapping[str, str | None] | None = None, transport: str | None = None) -> None:
        if n < 1:
            raise InvalidArgument(f"n is {n}; expected at least 1 rank")
        self.size = n
        self._runs = 0
        self._job = f"spawn-{os.getpid()}-{secrets.token_hex(4)}"
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._conns: list[Connection] = []
        self._closed = False
        secret = secrets.token_hex(32)
        self._server = TcpStoreServer([("127.0.0.1", 0)], secret_key(secret))
        common: dict[str, str | None] = {
            "RINGLEADER_SIZE": str(n),
            "RINGLEADER_LOCAL_SIZE": str(n),
            "RINGLEADER_STORE": format_hostport("127.0.0.1", self._server.port),
            "RINGLEADER_STORE_SERVED": "1",
            "RINGLEADER_SECRET": secret,
            "RINGLEADER_JOB_ID": self._job,
            **({"RINGLEADER_TRANSPORT": transport} if transport is not None else {}),
            **(env or {}),
        }
        _groups.add(self)
        try:
            for rank in range(n):
                self._start(rank, {**common, "RINGLEADER_RANK": str(rank), "RINGLEADER_LOCAL_RANK": str(rank)})
        except BaseException:
            self.close(force=True)
            raise

    def _start(self, rank: int, environ: Mapping[str, str | None]) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._conns.append(ours)
        try:
            process = context.Process(target=_worker, args=(theirs,), name=f"ringleader-rank-{rank}")
            with _environment(environ), _importable_program():
                process.start()
        finally:
            theirs.close()
        self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Process numbers by rank."""
        return [process.pid or 0 for process in self._processes]

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        grace: float = GRACE,
        **kwargs: Any,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank and return the results by rank.

        Parameters
        ----------
        fn
            A function of a module (it is pickled by name); with cloudpickle installed, any.
        timeout
            Seconds for all ranks together; then the processes are ended.
        grace
            Seconds that the others get to end by themselves once a rank has failed.

        Raises
        ------
        SpawnError
            If a rank raised or died: names the first one, with its traceback, exit code or signal. The group stays
            usable if all its processes are alive.
        CollectiveTimeout
            Naming the ranks that were not done in time.
        """
        outcomes = self.outcomes(fn, *args, timeout=timeout, grace=grace, **kwargs)
        failed = [outcome for outcome in self._by_time(outcomes) if outcome.failed]
        if failed:
            first = failed[0]
            others = "".join(f"\n\nrank {o.rank} failed as well:\n{o.error}" for o in failed[1:])
            raise SpawnError(
                f"rank {first.rank} of {self.size} failed:\n{first.error}{others}", [o.rank for o in failed]
            ) from first.exception
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        grace: float = GRACE,
        **kwargs: Any,
    ) -> list[Outcome]:
        """Like `run`, but failures are returned, not raised."""
        if self._closed:
            raise ClosedError("the worker group is closed, or was ended after a rank died or did not answer")
        self._runs += 1
        message = (f"{self._job}-{self._runs}", _pickled(fn, args, kwargs))
        try:
            for conn in self._conns:
                with contextlib.suppress(OSError):  # a dead worker: noticed when collecting
                    conn.send(message)
            outcomes = self._collect(timeout, grace)
        except BaseException:  # a timeout or Ctrl-C: the children are in an unknown state
            self.close(force=True)
            raise
        if any(not process.is_alive() for process in self._processes):
            self.close(force=True)
        return outcomes

    def _by_time(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        return sorted(outcomes, key=lambda outcome: self._order.index(outcome.rank))

    def _collect(self, timeout: float | None, grace: float) -> list[Outcome]:
        """Wait for all ranks; after a failure only for the grace time."""
        done: dict[int, Outcome] = {}
        self._order: list[int] = []  # ranks as they finished: the first failure is usually the cause of the others
        started = time.monotonic()
        deadline = None if timeout is None else started + timeout
        grace_ends: float | None = None
        while len(done) < self.size:
            pending = [rank for rank in range(self.size) if rank not in done]
            limit = min((t for t in (deadline, grace_ends) if t is not None), default=None)
            waitable = [self._conns[rank] for rank in pending] + [self._processes[rank].sentinel for rank in pending]
            ready = multiprocessing.connection.wait(
                waitable, None if limit is None else max(0.0, limit - time.monotonic())
            )
            for rank in pending:
                if self._conns[rank] in ready or self._processes[rank].sentinel in ready:
                    done[rank] = self._receive(rank)
                    self._order.append(rank)
                    if done[rank].failed and grace_ends is None:
                        grace_ends = time.monotonic() + grace
            if not ready and grace_ends is not None and time.monotonic() >= grace_ends:
                self._end_stuck(pending, f"did not end within {grace:.1f} s after another rank failed", done)
            elif not ready and deadline is not None and time.monotonic() >= deadline:
                raise CollectiveTimeout(
                    f"{_were(pending)} not done within {timeout:.1f} s; all ranks were ended", pending
                )
        return [done[rank] for rank in range(self.size)]

    def _end_stuck(self, pending: Sequence[int], why: str, done: dict[int, Outcome]) -> None:
        for rank in pending:
            self._processes[rank].terminate()
        for rank in pending:
            done[rank] = Outcome(rank, error=f"{why} and was terminated")
            self._order.append(rank)

    def _receive(self, rank: int) -> Outcome:
        """A reply, or how the process ended without one."""
        try:
            if self._conns[rank].poll():
                value, error, exception = pickle.loads(self._conns[rank].recv_bytes())
                return Outcome(rank, value, error, exception)
        except (EOFError, OSError):
            pass
        except Exception as error:
            return Outcome(rank, error=f"its result cannot be unpickled here: {error}", exception=error)
        process = self._processes[rank]
        process.join(_STOP_LIMIT)
        early = self._runs == 1 and process.exitcode == 1
        hint = f"; what it wrote tells why ({_GUARD})" if early else ""
        return Outcome(rank, error=f"its process (pid {process.pid}) ended: {_ending(process.exitcode)}{hint}")

    def close(self, *, force: bool = False) -> None:
        """End the processes; those that do not end by themselves within 5 s (at once with `force`) are terminated."""
        self._closed = True
        for conn in self._conns:
            conn.close()
        deadline = time.monotonic() + (0.0 if force else _STOP_LIMIT)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for end in ("terminate", "kill"):
            alive = [process for process in self._processes if process.is_alive()]
            for process in alive:
                getattr(process, end)()
            for process in alive:
                process.join(2.0)
        for process in self._processes:
            process.close()
        self._processes, self._conns = [], []
        self._server.close()
        _groups.discard(self)

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(force=kind is not None)


def _were(ranks: Sequence[int]) -> str:
    """ "rank 1 was" or "ranks 1, 2 were"."""
    return f"rank {ranks[0]} was" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} were"


def _program() -> tuple[str, bool | None]:
    """What the main program is, and whether new processes can import it; None: not all that it has defined."""
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if spec is not None and (spec.name == "__main__" or spec.name.endswith(".__main__")):
        return f"{path}, which runs a directory, a package or an archive", False
    if spec is None and path is None:
        return "python -c, standard input, an interactive session or a notebook", False
    if spec is None and not os.path.exists(str(path)):
        return f"{path}, which is no file", False
    return str(path), None if hasattr(sys, "ps1") or sys.flags.interactive else True


@contextlib.contextmanager
def _importable_program() -> Iterator[None]:
    """multiprocessing has its children run the main program's file; where there is none it must not try."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None or os.path.exists(path):
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def _ending(code: int | None) -> str:
    if code is None:
        return "it closed its pipe but is still running"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name} (signal {-code})"
    return f"exit code {code}"


def _pickled(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    message = (fn, tuple(args), dict(kwargs))
    name = getattr(fn, "__qualname__", fn)
    problem: Exception | None = None
    try:
        payload = pickle.dumps(message)
        program, importable = _program()
        if importable or not _names_main(payload):
            return payload
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = error
    if (by_value := _cloudpickle()) is not None:
        try:
            return bytes(by_value.dumps(message))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            problem = error
    elif problem is None:
        if importable is None:
            return payload  # after a script: what it defines itself can be imported
        raise InvalidArgument(
            f"{name!r} or its arguments cannot be sent to another process: {_NO_MODULE.format(program=program)}"
        )
    raise InvalidArgument(
        f"{name!r} or its arguments cannot be sent to another process ({problem}); expected a function defined at the "
        "top of a module, not a lambda or an inner function (with cloudpickle installed, any)"
    ) from problem


def _names_main(payload: bytes) -> bool:
    """Whether loading it needs something of the main program."""
    strings: list[Any] = []
    for operation, argument, _ in pickletools.genops(payload):
        if "UNICODE" in operation.name:
            strings.append(argument)
        elif operation.name == "STACK_GLOBAL" and "__main__" in strings:
            return True
    return False


@atexit.register  # registered after multiprocessing's own handler, so it runs before that one waits for the children
def _close_all() -> None:
    for group in list(_groups):
        group.close(force=True)


def spawn(
    fn: Callable[..., R],
    n: int,
    *args: Any,
    transport: str | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
    grace: float = GRACE,
) -> list[R]:
    """Run `fn(*args)` in `n` new processes, in which `ringleader.init()` joins them all; return the results by rank.

    Parameters
    ----------
    fn
        A function of a module; scripts need the usual ``if __name__ == "__main__":`` around the call. With cloudpickle
        installed any function, also of a program that is no file (``python -c``, a notebook, a package's
        ``__main__.py``).
    transport
        "auto", "shm", "tcp" or "ucx".
    env
        Environment variables for the processes, None to unset one.
    timeout
        Seconds for everything, default no limit.
    grace
        Seconds that the others get to end once a rank has failed.

    Raises
    ------
    SpawnError
        If a rank raised or died: names it, with its traceback, exit code or signal.
    CollectiveTimeout
        Naming the ranks that were not done in time.

    Examples
    --------
    >>> import math
    >>> spawn(math.sqrt, 2, 9.0)
    [3.0, 3.0]
    """
    with WorkerGroup(n, env=env, transport=transport) as group:
        return group.run(fn, *args, timeout=timeout, grace=grace)
