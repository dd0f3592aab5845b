"""One rank of one system: waits in a socket for its turn, runs what the coordinator asks for, answers, waits again.

While it waits it uses no processor: it reads from the socket, not from an MPI.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.cli.operands import Buffers, Operands, elements, operands
from ringleader.cli.patterns import Patterns, kind_of
from ringleader.schedule import Collective


@dataclass
class Ready:
    """A contestant that is ready to run: `call` is one all-reduce of `given`, `source` what it is rewritten from."""

    call: Callable[[], object]
    given: Operands
    source: NDArray[Any]


class Library:
    """What a worker needs of a library."""

    rank: int
    size: int

    def barrier(self) -> None:
        """Let all ranks meet."""
        raise NotImplementedError

    def caller(self, contestant: str, buffers: Buffers, given: Operands) -> Callable[[], object]:
        """One all-reduce (sum, in place), ready to be called."""
        raise NotImplementedError

    def choice(self, contestant: str) -> str:
        """What the library says of its latest call."""
        return ""

    def release(self) -> None:
        """Forget what refers to buffers."""

    def close(self) -> None:
        """Leave."""


class Mpi(Library):
    """Any MPI, through mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self._types = {"float32": MPI.FLOAT, "float16": getattr(MPI, "FLOAT16_T", MPI.DATATYPE_NULL)}

    def barrier(self) -> None:
        self._world.Barrier()

    def caller(self, contestant: str, buffers: Buffers, given: Operands) -> Callable[[], object]:
        all_reduce, in_place, op = self._world.Allreduce, self._mpi.IN_PLACE, self._mpi.SUM
        target = [given.x, buffers.second.size, self._types[buffers.kind.name]]
        return lambda: all_reduce(in_place, target, op)

    def close(self) -> None:
        self._mpi.Finalize()


class Own(Library):
    """Ringleader, and Gloo in the same processes."""

    def __init__(self) -> None:
        from ringleader.cli.measure import Session, Setup

        cores = os.sched_getaffinity(0)
        self._session = Session(Setup(os.environ["RINGLEADER_TRANSPORT"], gloo=True))
        self._comm = self._session.comm
        self.rank, self.size = self._comm.rank, self._comm.size
        for thread in map(int, os.listdir("/proc/self/task")):
            if thread != threading.get_native_id():  # Gloo's own: RINGLEADER_BIND is for this one
                os.sched_setaffinity(thread, cores)
        self._operations: dict[str, Any] = {}

    def barrier(self) -> None:
        self._comm.barrier()

    def caller(self, contestant: str, buffers: Buffers, given: Operands) -> Callable[[], object]:
        if contestant == "gloo":
            assert self._session.gloo is not None
            start = self._session.gloo.starter(Collective.ALL_REDUCE, buffers.kind, given, "sum", 0)
            return lambda: start(False)
        x = buffers.given(buffers.second)
        if contestant == "persistent":
            operation = self._operations[contestant] = self._comm.all_reduce_init(x)
            return operation
        all_reduce = self._comm.all_reduce
        return lambda: all_reduce(x)

    def choice(self, contestant: str) -> str:
        if contestant == "gloo":
            return ""
        made = self._operations.get(contestant)
        it = self._comm.last_choice if made is None else made.choice
        return f"{it.algorithm} ({it.protocol}, {it.windows} windows)"

    def release(self) -> None:
        self._operations.clear()

    def close(self) -> None:
        self._session.close()


class Worker:
    """Answers requests; each names what to do and its arguments."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._ready: dict[str, Ready] = {}
        self._memory: dict[bool, tuple[Buffers, NDArray[Any]]] = {}  # registered or not: shared by contestants

    def prepare(self, contestant: str, nbytes: int, dtype: str) -> dict[str, Any]:
        """Make the buffers, run once, and count wrong elements."""
        library, kind = self._library, kind_of(dtype)
        count = elements(Collective.ALL_REDUCE, nbytes, kind.storage.itemsize, library.size)
        registered = contestant in ("registered", "persistent")
        if registered not in self._memory:
            source = next((source for _, source in self._memory.values()), np.empty(count, kind.storage))
            self._memory[registered] = Buffers.make(kind, count, registered), source
        buffers, source = self._memory[registered]
        given = operands(Collective.ALL_REDUCE, True, buffers, count, library.rank, library.size, 0)
        assert given.x is not None
        patterns = Patterns(kind, "sum", library.size)
        patterns.fill(source, given.inputs)
        np.copyto(given.x, source)
        call = library.caller(contestant, buffers, given)
        library.barrier()
        call()
        self._ready[contestant] = Ready(call, given, source)
        assert given.result is not None
        return {"wrong": patterns.wrong(given.result, given.expected), "choice": library.choice(contestant)}

    def block(self, contestant: str, iterations: int, warmup: int, rewrite: bool) -> dict[str, Any]:
        """Nanoseconds of each iteration on this rank."""
        ready = self._ready[contestant]
        self._library.barrier()
        for _ in range(warmup):
            ready.call()
        times = self._rewritten(ready, iterations) if rewrite else _back_to_back(ready.call, iterations)
        return {"times": times.tolist()}

    def _rewritten(self, ready: Ready, iterations: int) -> NDArray[np.int64]:
        """Each rank writes its whole buffer before every call, as a training step does; only the call is timed."""
        clock, barrier, call = time.perf_counter_ns, self._library.barrier, ready.call
        target, source = ready.given.x, ready.source
        assert target is not None
        times = np.empty(iterations, np.int64)
        for i in range(iterations):
            np.copyto(target, source)
            barrier()
            began = clock()
            call()
            times[i] = clock() - began
        return times

    def release(self) -> dict[str, Any]:
        """Drop all buffers."""
        self._ready.clear()
        self._memory.clear()
        self._library.release()
        return {}


def _back_to_back(call: Callable[[], object], iterations: int) -> NDArray[np.int64]:
    clock = time.perf_counter_ns
    stamps = [clock()]
    for _ in range(iterations):
        call()
        stamps.append(clock())
    return np.diff(np.array(stamps, np.int64))


def main() -> None:
    """Join, say hello, serve until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--system", required=True)
    arguments = parser.parse_args()
    library = Own() if arguments.system.startswith("ringleader") else Mpi()
    worker = Worker(library)
    with socket.socket(socket.AF_UNIX) as it:
        it.connect(arguments.socket)
        lines = it.makefile("rw")

        def say(message: dict[str, Any]) -> None:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

        say({"system": arguments.system, "rank": library.rank, "pid": os.getpid()})
        for line in lines:
            request = json.loads(line)
            if request["do"] == "end":
                break
            try:
                answer = getattr(worker, request.pop("do"))(**request)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            say(answer)
    library.close()


if __name__ == "__main__":
    main()
