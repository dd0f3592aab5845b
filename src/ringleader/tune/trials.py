"""What is measured: a collective by one algorithm, or a *task*, a building block of all of them.

Tasks are schedules too, so the engine runs them as it runs everything else: a message that bounces between two ranks
(what a hop costs), many messages in one step (what each costs), a copy or a reduction of some size (bandwidth), a token
that all ranks pass on together (what it costs that ranks share cores). A few of them, in a few worlds, tell the
parameters of the cost model, and so the time of every algorithm in every world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.algorithms import build
from ringleader.schedule import Builder, Schedule
from ringleader.tune.cost import Work, work_of

__all__ = ["TASKS", "Trial", "schedule_of", "tasks", "work"]

_FOLDED = 16  # chunks of a fold, of which one goes back
TASKS = ("bounce", "stream", "fold", "rotate")


@dataclass(frozen=True)
class Trial:
    """One thing to measure.

    Attributes
    ----------
    collective
        Its name; for a task the one whose memory it uses.
    algorithm
        Spec; or a task of `TASKS`.
    protocol
        ``push`` or ``pull``.
    nbytes
        Bytes of the whole data.
    times
        Of a task: hops, messages or rounds.
    ends
        Of a task between two ranks: these.
    """

    collective: str
    algorithm: str
    protocol: str
    nbytes: int
    times: int = 0
    ends: tuple[int, int] = (0, 1)

    @property
    def is_task(self) -> bool:
        """Whether it is a building block, not a whole collective."""
        return self.times > 0

    @property
    def name(self) -> str:
        """Algorithm and protocol, for people."""
        times = f" x {self.times}" if self.is_task else ""
        return f"{self.algorithm}{times} ({self.protocol})"


def schedule_of(trial: Trial, n: int, nodes: Sequence[int] | None = None) -> Schedule:
    """The schedule of a trial over `n` ranks.

    Examples
    --------
    >>> schedule_of(Trial("broadcast", "bounce", "push", 8, times=4), 2).steps
    4
    """
    if not trial.is_task:
        return build(trial.collective, trial.algorithm, n, nodes=nodes)
    a, b = trial.ends
    if trial.algorithm == "stream":
        # One message back, else the sender would run ahead and its waiting would not be seen.
        stream = Builder("broadcast", n, chunks=trial.times, root=a)
        for chunk in range(trial.times):
            stream.send(0, src=a, src_chunk=chunk, dst=b)
        stream.send(1, src=b, src_chunk=0, dst=a)
        return stream.build("stream")
    if trial.algorithm == "fold":
        fold = Builder("all_reduce", n, chunks=_FOLDED, root=0)
        fold.send(0, src=a, src_chunk=0, dst=b, count=_FOLDED, reduce=True)
        fold.send(1, src=b, src_chunk=0, dst=a)
        return fold.build("fold")
    if trial.algorithm == "rotate":
        rotate = Builder("barrier", n, chunks=1)
        for step in range(trial.times):
            for rank in range(n):
                rotate.send(step, src=rank, src_chunk=0, dst=(rank + 1) % n, reduce=True)
        return rotate.build("rotate")
    bounce = Builder("broadcast", n, chunks=1, root=a)
    for hop in range(trial.times):
        src, dst = (a, b) if hop % 2 == 0 else (b, a)
        bounce.send(hop, src=src, src_chunk=0, dst=dst)
    return bounce.build("bounce")


def work(trial: Trial, nodes: Sequence[int]) -> Work:
    """What the trial's ranks do, for the cost model."""
    return work_of(schedule_of(trial, len(nodes), nodes), nodes, trial.protocol != "pull")


def tasks(nodes: Sequence[int], largest: int) -> list[Trial]:
    """The tasks that tell what a layout's links cost, between a pair of every kind, up to `largest` bytes.

    Examples
    --------
    >>> {trial.algorithm for trial in tasks([0, 0], 1 << 20)} == set(TASKS)
    True
    """
    found = [Trial("barrier", "rotate", "push", 1, times) for times in (1, 8)]
    for pair in _pairs(nodes):
        near = nodes[pair[0]] == nodes[pair[1]]
        protocols = ("push", "pull") if near else ("push",)
        for protocol in protocols:
            found += [Trial("broadcast", "bounce", protocol, 8, times, pair) for times in (2, 10)]
            found += [Trial("broadcast", "stream", protocol, 4 * times, times, pair) for times in (4, 32)]
            found += [Trial("broadcast", "bounce", protocol, nbytes, 2, pair) for nbytes in _sizes(largest)]
        found += [Trial("all_reduce", "fold", "push", nbytes, 1, pair) for nbytes in _sizes(largest)]
    return found


def _pairs(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Two ranks of one node, and two of different nodes, as far as there are such."""
    near = next(((0, rank) for rank in range(1, len(nodes)) if nodes[rank] == nodes[0]), None)
    far = next(((0, rank) for rank in range(1, len(nodes)) if nodes[rank] != nodes[0]), None)
    return [pair for pair in (near, far) if pair is not None]


def _sizes(largest: int) -> list[int]:
    """From 1 KiB, each 16 times the last, and the largest."""
    sizes = [1 << bits for bits in range(10, largest.bit_length(), 4) if 1 << bits < largest]
    return [*sizes, largest]
