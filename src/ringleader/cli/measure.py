"""The measuring room: every number of ``ringleader bench`` and of the benchmarks comes from here.

A *point* is one collective at one size. Several *contestants* (algorithms, kinds of memory, in and out of place,
torch's Gloo) are measured at it by the same processes, in alternating blocks, because machines change within minutes
and what is compared should have met the same weather. The time is that of the slowest rank: the median of each block,
and of those the median over the blocks. Everything here runs on every rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader import _core
from ringleader.cli.exchange import exchange
from ringleader.cli.gloo import Gloo
from ringleader.cli.operands import Buffers, Operands, elements, operands
from ringleader.cli.patterns import Kind, Patterns, kind_of
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.config import Config
from ringleader.runtime.start import init
from ringleader.schedule import Collective

__all__ = ["Contestant", "Measured", "Point", "Result", "Session", "Setup", "Timing"]

_MOST_ITERATIONS = 2000  # of a block


@dataclass(frozen=True)
class Setup:
    """How the ranks are joined. `gloo`: torch's Gloo is set up too."""

    transport: str = "auto"
    protocol: str = "auto"
    gloo: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to run a collective.

    Attributes
    ----------
    library
        ``"ringleader"`` or ``"gloo"``.
    algorithm
        Spec, or None for the built-in choice.
    in_place, registered, persistent
        How it is called, and on which memory.
    """

    library: str = "ringleader"
    algorithm: str | None = None
    in_place: bool = True
    registered: bool = False
    persistent: bool = False


@dataclass(frozen=True)
class Point:
    """What is measured, and how long.

    Attributes
    ----------
    nbytes
        Size of the whole data; rounded down to whole elements (of whole blocks), at least one.
    iterations
        Of each contestant, in `blocks` blocks; 0: as many as take about `seconds`.
    warmup
        Iterations before each block that do not count.
    together
        Operations in flight at once; they count as one iteration, of which the time is divided by their number.
    check
        Compare each contestant's result with what it has to be.
    """

    collective: str
    nbytes: int
    contestants: tuple[Contestant, ...]
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    iterations: int = 0
    seconds: float = 0.2
    blocks: int = 5
    warmup: int = 2
    together: int = 1
    check: bool = True


@dataclass(frozen=True)
class Timing:
    """Microseconds per operation, of the slowest rank.

    `median` is the median over blocks of their medians, `fastest_block` and `slowest_block` their extremes; `mean`,
    `least` and `p99` are of single iterations.
    """

    median: float
    mean: float
    least: float
    p99: float
    fastest_block: float
    slowest_block: float
    iterations: int


@dataclass(frozen=True)
class Measured:
    """A contestant's result; `wrong` elements of all ranks, None if not checked."""

    contestant: Contestant
    timing: Timing
    wrong: int | None
    algorithm: str
    protocol: str
    windows: int
    reason: str


@dataclass(frozen=True)
class Result:
    """A point's results, in the order of its contestants; `count` elements (of a block), `nbytes` in all."""

    collective: str
    dtype: str
    op: str
    root: int
    ranks: int
    nbytes: int
    count: int
    measured: tuple[Measured, ...]


@dataclass
class _Runner:
    """A contestant, ready: `call` runs it once and waits; `flight` runs several at once."""

    contestant: Contestant
    operands: Operands
    call: Callable[[], object]
    flight: Callable[[int], None]
    choice: Callable[[], tuple[str, str, int, str]]
    times: list[NDArray[np.int64]] = field(default_factory=list)


class Session:
    """This rank's part in measuring. Every rank makes one and calls the same methods."""

    def __init__(self, setup: Setup) -> None:
        protocol = None if setup.protocol == "auto" else setup.protocol
        transport = None if setup.transport == "auto" else setup.transport
        self.comm: Communicator = init(transport=transport, proto=protocol)
        self.network = Config.from_environment(None, transport=transport).network
        self.gloo = Gloo(self.comm) if setup.gloo else None

    def close(self) -> None:
        """Leave."""
        if self.gloo is not None:
            self.gloo.close()
        self.comm.close()

    def ranks(self) -> list[dict[str, Any]]:
        """Who takes part: one entry per rank."""
        comm = self.comm
        here = comm.nodes[comm.rank]
        shared = sum(node == here for node in comm.nodes)
        links = "shm" if shared == comm.size else self.network if shared == 1 else f"shm+{self.network}"
        mine = {
            "rank": comm.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "node": here,
            "transport": links if comm.size > 1 else "none",
            "isa": _core.kernel_isa(),
            "cores": _core.usable_cores(),
        }
        return exchange(self.comm, mine)

    # ------------------------------------------------------------------------------------------------ measuring

    def measure(self, point: Point) -> Result:
        """Measure a point; all ranks get the same result."""
        collective, comm = Collective.parse(point.collective), self.comm
        kind = kind_of(point.dtype)
        count = elements(collective, point.nbytes, kind.storage.itemsize, comm.size)
        total = count * (comm.size if collective.blocked else 1)
        patterns = Patterns(kind, point.op if collective.reduces else None, comm.size)
        runners = self._runners(point, collective, kind, count, total)
        wrong = [self._wrong(runner, patterns) if point.check else None for runner in runners]
        self._run_blocks(point, runners)
        timings = self._timings(runners, point)
        everyone = exchange(self.comm, wrong)
        measured = []
        for number, (runner, timing) in enumerate(zip(runners, timings, strict=True)):
            missed = sum(row[number] for row in everyone) if point.check else None
            measured.append(Measured(runner.contestant, timing, missed, *runner.choice()))
        return Result(
            collective.value,
            kind.name,
            point.op if collective.reduces else "none",
            point.root if collective.rooted else -1,
            comm.size,
            total * kind.storage.itemsize,
            count,
            tuple(measured),
        )

    def _runners(self, point: Point, collective: Collective, kind: Kind, count: int, total: int) -> list[_Runner]:
        memory: dict[bool, Buffers] = {}
        runners = []
        for contestant in point.contestants:
            if contestant.registered not in memory:
                memory[contestant.registered] = Buffers.make(kind, total, contestant.registered)
            buffers = memory[contestant.registered]
            given = operands(
                collective, contestant.in_place, buffers, count, self.comm.rank, self.comm.size, point.root
            )
            make = _gloo_runner if contestant.library == "gloo" else _ringleader_runner
            runners.append(make(self, point, collective, contestant, buffers, given))
        return runners

    def _wrong(self, runner: _Runner, patterns: Patterns) -> int:
        """How many elements of the result are wrong on this rank, after one call."""
        given = runner.operands
        for target in (given.out, given.x):
            if target is not None:
                target.view(np.uint8)[...] = 1 if patterns.kind.name == "bool" else 0xA5
        if given.x is not None:
            patterns.fill(given.x, given.inputs)
        runner.call()
        return 0 if given.result is None else patterns.wrong(given.result, given.expected)

    def _run_blocks(self, point: Point, runners: list[_Runner]) -> None:
        iterations = [self._iterations(point, runner) for runner in runners]
        for _ in range(point.blocks):
            for runner, number in zip(runners, iterations, strict=True):
                self.comm.barrier()
                for _ in range(point.warmup):
                    runner.flight(point.together)
                runner.times.append(_block(runner, number, point.together))

    def _iterations(self, point: Point, runner: _Runner) -> int:
        """Iterations of one block, the same on every rank."""
        if point.iterations:
            return max(-(-point.iterations // point.blocks), 1)
        for _ in range(point.warmup):
            runner.flight(point.together)
        slowest = self.comm.all_reduce(np.array([_block(runner, 3, point.together).min()]), op="max")
        return int(np.clip(point.seconds * 1e9 / point.blocks / max(int(slowest[0]), 1), 2, _MOST_ITERATIONS))

    def _timings(self, runners: list[_Runner], point: Point) -> list[Timing]:
        mine = [
            [[float(np.median(t)), float(t.mean()), float(t.min()), float(np.percentile(t, 99))] for t in runner.times]
            for runner in runners
        ]
        slowest = (
            np.max(np.array(exchange(self.comm, mine)), axis=0) / 1e3 / point.together
        )  # (runner, block, statistic)
        return [
            Timing(
                median=float(np.median(blocks[:, 0])),
                mean=float(blocks[:, 1].mean()),
                least=float(blocks[:, 2].min()),
                p99=float(blocks[:, 3].max()),
                fastest_block=float(blocks[:, 0].min()),
                slowest_block=float(blocks[:, 0].max()),
                iterations=sum(len(t) for t in runner.times),
            )
            for runner, blocks in zip(runners, slowest, strict=True)
        ]


def _block(runner: _Runner, iterations: int, together: int) -> NDArray[np.int64]:
    """Nanoseconds of each of `iterations` iterations, back to back."""
    clock = time.perf_counter_ns
    stamps = [clock()]
    stamp = stamps.append
    if together == 1:
        call = runner.call
        for _ in range(iterations):
            call()
            stamp(clock())
    else:
        flight = runner.flight
        for _ in range(iterations):
            flight(together)
            stamp(clock())
    marks = np.array(stamps, np.int64)
    return marks[1:] - marks[:-1]


def _ringleader_runner(
    session: Session, point: Point, collective: Collective, contestant: Contestant, buffers: Buffers, given: Operands
) -> _Runner:
    comm = session.comm
    x = None if given.x is None else buffers.given(given.x)
    out = None if given.out is None else buffers.given(given.out)
    if given.out is given.x:
        out = x
    arguments: dict[str, Any] = {} if collective is Collective.BARRIER else {"x": x}
    if collective not in (Collective.BARRIER, Collective.BROADCAST):
        arguments["out"] = out
    if collective.reduces and collective is not Collective.BARRIER:
        arguments["op"] = point.op
    if collective.rooted:
        arguments["root"] = point.root
    if contestant.algorithm is not None:
        arguments["algorithm"] = contestant.algorithm
    chosen: Callable[[], Any] = lambda: comm.last_choice  # noqa: E731
    if contestant.persistent:
        operation = getattr(comm, f"{collective}_init")(**arguments)
        call, start, chosen = operation, operation.start, lambda: operation.choice
    else:
        verb = getattr(comm, collective.value)
        call, start = _bound(verb, arguments), _bound(verb, {**arguments, "async_op": True})

    def flight(number: int) -> None:
        if number == 1:
            call()
            return
        for work in [start() for _ in range(number)]:
            work.wait()

    def choice() -> tuple[str, str, int, str]:
        call()  # the latest choice has to be this contestant's
        it = chosen()
        return it.algorithm, it.protocol, it.windows, it.reason

    return _Runner(contestant, given, call, flight, choice)


def _bound(verb: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    """The call with its arguments; x goes first, as people write it."""
    rest = dict(arguments)
    if "x" not in rest:
        return lambda: verb(**rest)
    x = rest.pop("x")
    return lambda: verb(x, **rest)


def _gloo_runner(
    session: Session, point: Point, collective: Collective, contestant: Contestant, buffers: Buffers, given: Operands
) -> _Runner:
    assert session.gloo is not None
    start = session.gloo.starter(collective, buffers.kind, given, point.op, point.root)

    def call() -> None:
        start(False)

    def flight(number: int) -> None:
        if number == 1:
            start(False)
            return
        for work in [start(True) for _ in range(number)]:
            work.wait()

    return _Runner(contestant, given, call, flight, lambda: ("", "", 1, "torch's Gloo"))
