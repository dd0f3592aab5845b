"""`verify`: proof that a schedule does what its collective promises, before it ever runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ScheduleError, VerificationError
from ringleader.schedule.lower import lower_uncached
from ringleader.schedule.replay import EXTRA, MIX, WEIGHT, Replay, Required, blocks_of_ranks, required
from ringleader.schedule.spec import check_spec
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Collective

__all__ = ["EXACT_RANKS", "LARGE", "Report", "lower_bound", "verify"]

EXACT_RANKS = 32
"""Mode "auto" counts contributions exactly up to this number of ranks (and `EXACT_COUNTS`)."""

EXACT_COUNTS = 1 << 23
"""Most counters (locations times ranks) of the exact mode that "auto" chooses."""

MAX_PLACES = 1 << 25
"""Most locations (chunks on all ranks) that `verify` takes on: about 1.3 GB of memory."""

MAX_COUNTS = 1 << 28
"""Most counters (of 4 bytes) that the exact mode makes: 1 GiB."""

LARGE = 1 << 19
"""Beyond this number of transfers `verify` by default lowers for one layout of nodes only."""

_SHOWN = 20  # violations listed in full


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes
    ----------
    schedule
        The schedule.
    mode
        "exact" or "fingerprint".
    violations
        What is wrong, in words; empty if the schedule is proved.
    sent, received
        What each rank sends to, and receives from, other ranks: fractions of the data, shape (n,).
    lower_bound
        The least that the busiest rank must send or receive in any algorithm, as such a fraction.
    instructions
        For each lowered form (node layout, and push or pull) the number of instructions of all ranks.
    """

    schedule: Schedule
    mode: str
    violations: tuple[str, ...]
    sent: NDArray[np.float64] = field(repr=False)
    received: NDArray[np.float64] = field(repr=False)
    lower_bound: float
    instructions: dict[str, int]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.violations

    @property
    def steps(self) -> int:
        """Steps of the schedule."""
        return self.schedule.steps

    @property
    def transfers(self) -> int:
        """Transfers of the schedule."""
        return self.schedule.transfers

    @property
    def max_sent(self) -> float:
        """What the busiest sender sends."""
        return float(self.sent.max())

    @property
    def max_received(self) -> float:
        """What the busiest receiver receives."""
        return float(self.received.max())

    @property
    def ratio(self) -> float:
        """What the busiest rank sends or receives, over the lower bound; 1 is optimal, NaN where the bound is 0."""
        return max(self.max_sent, self.max_received) / self.lower_bound if self.lower_bound else float("nan")

    def raise_if_failed(self) -> Report:
        """Return the report itself if the schedule is proved.

        Raises
        ------
        VerificationError
            With the violations.
        """
        if self.violations:
            raise VerificationError(f"{self.schedule!r} is wrong: " + "; ".join(self.violations))
        return self

    def __str__(self) -> str:
        head = f"{self.schedule!r}: {'proved' if self.ok else 'WRONG'} ({self.mode})"
        ratio = f", {self.ratio:.3f} x the lower bound" if self.lower_bound else ""
        cost = f"  busiest rank sends {self.max_sent:.4g} and receives {self.max_received:.4g} of the data{ratio}"
        lowered = [f"  lowered, {layout}: {count} instructions" for layout, count in self.instructions.items()]
        return "\n".join([head, cost, *lowered, *(f"  - {violation}" for violation in self.violations)])


def verify(
    schedule: Schedule,
    nodes: Sequence[int] | None = None,
    push: bool | None = None,
    mode: Literal["auto", "exact", "fingerprint"] = "auto",
    seed: int = 0,
    lowered: bool = True,
) -> Report:
    """Prove a schedule, and its lowered programs, or say what is wrong.

    Of the schedule: (1) every rank ends with what the collective promises, each contribution exactly once (in a
    barrier: at least once); (2) no transfer reads a chunk that is not there; (3) no two writes race within a step;
    (4) all ranks that get a result get it in the same association, so that it is bitwise identical. Of the programs
    that it is lowered to: (5) no deadlock even where a message waits for its receive; (6) sends and receives match in
    order on every connection; and the same results, without races.

    Parameters
    ----------
    schedule
        The schedule.
    nodes
        Node number of each rank, equal for shared memory. Default: three layouts, all ranks on one node, each on its
        own, and two halves; beyond `LARGE` transfers the last only, which has both kinds of links.
    push
        Who copies within a node, the source (True) or the destination. Default: both on one node, else the source.
    mode
        "exact" counts the contributions; "fingerprint" sums random elements of the field modulo 2^61 - 1, which is
        wrong with probability below 2^-60 and takes much less memory; "auto" is exact up to 32 ranks.
    seed
        Of the random elements.
    lowered
        False leaves the lowered programs out.

    Returns
    -------
    Report
        Its `violations` are empty if everything is proved.

    Raises
    ------
    ScheduleError
        If the mode is unknown, `nodes` has the wrong length, or the schedule is too large to be verified.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("all_reduce", n=2, chunks=1)
    >>> b.send(0, src=[0, 1], src_chunk=0, dst=[1, 0], reduce=True)
    >>> report = verify(b.build(), lowered=False)
    >>> report.ok, report.ratio
    (True, 1.0)
    """
    if mode not in ("auto", "exact", "fingerprint"):
        raise ScheduleError(f"mode is {mode!r}; expected 'auto', 'exact' or 'fingerprint'")
    if nodes is not None and len(nodes) != schedule.n:
        raise ScheduleError(f"nodes has {len(nodes)} entries; expected one for each of {schedule.n} ranks")
    try:
        check_spec(schedule)
    except ScheduleError as error:
        nothing = np.zeros(schedule.n if schedule.n < MAX_PLACES else 1)
        bound = lower_bound(schedule.collective, schedule.n)
        return Report(schedule, mode, (str(error),), nothing, nothing, bound, {})
    places = schedule.n * (schedule.chunks * (3 if schedule.collective is Collective.ALL_TO_ALL else 1))
    places += schedule.n * schedule.scratch_chunks
    if places > MAX_PLACES:
        raise ScheduleError(f"{schedule!r} has {places} chunks on all ranks; verify takes at most {MAX_PLACES}")
    words = (
        schedule.n if schedule.collective is not Collective.BARRIER else schedule.n // 16
    )  # sets have a bit for each
    if (mode == "exact" or schedule.collective is Collective.BARRIER) and places * words > MAX_COUNTS:
        raise ScheduleError(f"{schedule!r} needs {places * words} counters; at most {MAX_COUNTS} are made")
    small = schedule.n <= EXACT_RANKS and places * schedule.n <= EXACT_COUNTS
    exact = mode == "exact" or (mode == "auto" and small)
    replay = Replay(schedule, exact, seed)
    violations = [f"{schedule.describe(index)} reads a chunk that is not there" for index in replay.missing]
    violations += _contents(replay) or _associations(replay)
    instructions: dict[str, int] = {}
    if lowered and not violations:
        for label, layout, pushes in _layouts(schedule, nodes, push):
            program = lower_uncached(schedule, layout, pushes)
            instructions[label] = sum(program.instruction_count(rank) for rank in range(schedule.n))
            violations += [f"lowered, {label}: {violation}" for violation in program.check(seed)]
    if len(violations) > _SHOWN:
        violations[_SHOWN:] = [f"and {len(violations) - _SHOWN} more"]
    sent, received = _traffic(schedule)
    bound = lower_bound(schedule.collective, schedule.n)
    chosen = "exact" if replay.exact else "fingerprint"
    return Report(schedule, chosen, tuple(violations), sent, received, bound, instructions)


def lower_bound(collective: Collective, n: int) -> float:
    """The least that the busiest of n ranks must send or receive, as a fraction of the data (of all blocks together).

    References
    ----------
    Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience",
    Concurrency and Computation 19 (2007).
    """
    if n == 1 or collective is Collective.BARRIER:
        return 0.0
    if collective is Collective.ALL_REDUCE:
        return 2 * (n - 1) / n
    return 1.0 if collective in (Collective.BROADCAST, Collective.REDUCE) else (n - 1) / n


def _traffic(schedule: Schedule) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    table = schedule.table
    remote = table["src_rank"] != table["dst_rank"]
    shares = np.where(remote, table["count"], 0) / schedule.chunks
    sent, received = np.zeros(schedule.n), np.zeros(schedule.n)
    sent += np.bincount(table["src_rank"], shares, minlength=schedule.n)
    received += np.bincount(table["dst_rank"], shares, minlength=schedule.n)
    return sent, received


def _layouts(
    schedule: Schedule, nodes: Sequence[int] | None, push: bool | None
) -> Iterator[tuple[str, list[int], bool]]:
    """The lowered forms to prove: a name, the node of each rank, push."""
    n = schedule.n
    ways = (True, False) if push is None else (push,)
    names = {True: "push", False: "pull"}
    if nodes is not None:
        distinct = len(set(nodes))
        label = "one node" if distinct == 1 else f"{distinct} nodes"
        yield from ((f"{label}, {names[way]}", list(nodes), way) for way in ways)
        return
    if schedule.transfers <= LARGE:
        yield from ((f"one node, {names[way]}", [0] * n, way) for way in ways)
        if n > 1:
            yield "network", list(range(n)), ways[0]
    if n > 2:
        yield f"two nodes, {names[ways[0]]}", [int(2 * rank >= n) for rank in range(n)], ways[0]


def _contents(replay: Replay) -> list[str]:
    """(1): violations of the final state."""
    found: list[str] = []
    for ranks in blocks_of_ranks(replay.schedule):
        need = required(replay.schedule, replay.places, ranks)
        if len(need.place):
            found += _missing(replay, need)
    return found


def _missing(replay: Replay, need: Required) -> list[str]:
    """Violations among what some ranks need."""
    weights = replay.rows[need.place, WEIGHT]
    absent = weights == 0
    if replay.schedule.collective is Collective.BARRIER:
        assert replay.counts is not None
        words = replay.counts.shape[1]
        everybody = [(1 << min(64, replay.schedule.n - 64 * word)) - 1 for word in range(words)]
        wrong = (replay.counts[need.place] != np.array(everybody, np.uint64)).any(axis=1)
    elif replay.exact:
        wrong = _wrong_exactly(replay, need)
    else:
        wanted = np.where(need.rank < 0, replay.schedule.n, 1)
        sums = _sums(replay, need)
        wrong = (weights != wanted.astype(np.uint64)) | (replay.rows[need.place, EXTRA:] != sums).any(1)
    found = []
    for i in np.flatnonzero(absent | wrong):
        what = "nothing" if absent[i] else _content_text(replay, need, int(i))
        whose = "all contributions" if need.rank[i] < 0 else f"rank {need.rank[i]}'s contribution"
        where = replay.places.text(int(need.place[i]))
        found.append(f"{where} ends with {what}; expected {whose} to chunk {need.chunk[i]}")
    return found


def _wrong_exactly(replay: Replay, need: Required) -> NDArray[np.bool_]:
    assert replay.counts is not None
    ranks = np.arange(replay.schedule.n)
    expected = (need.rank[:, None] < 0) | (need.rank[:, None] == ranks)
    wrong_count = (replay.counts[need.place] != expected).any(axis=1)
    # The counters have 32 bits: the weight tells whether they have wrapped round.
    wrong_weight = replay.rows[need.place, WEIGHT] != expected.sum(axis=1).astype(np.uint64)
    wrong_origin = replay.rows[need.place, EXTRA] != need.chunk.astype(np.uint64)
    result: NDArray[np.bool_] = wrong_count | wrong_weight | wrong_origin
    return result


def _sums(replay: Replay, need: Required) -> NDArray[np.uint64]:
    """What the draws of each required location must add up to: everybody's, or one rank's."""
    if replay.symbols is None:
        result: NDArray[np.uint64] = replay.sums[need.chunk]
        return result
    one: NDArray[np.uint64] = replay.symbols[need.rank, need.chunk]
    return one


def _content_text(replay: Replay, need: Required, i: int) -> str:
    """What a location that is wrong ends with."""
    weight = int(replay.rows[need.place[i], WEIGHT])
    if replay.counts is None:
        return f"{weight} contributions, not the right ones"
    counts = replay.counts[need.place[i]]
    if replay.schedule.collective is Collective.BARRIER:
        bits = [bool(int(counts[rank // 64]) >> rank % 64 & 1) for rank in range(replay.schedule.n)]
        counts = np.array(bits, np.uint32)
    origin = int(replay.rows[need.place[i], EXTRA])
    parts = [f"{weight} contribution{'s' * (weight != 1)}"]
    expected = np.arange(replay.schedule.n) == need.rank[i] if need.rank[i] >= 0 else np.ones(replay.schedule.n, bool)
    for label, which in (
        ("none of rank", expected & (counts == 0)),
        ("several of rank", counts > 1),
        ("some of rank", ~expected & (counts > 0)),
    ):
        if bool(which.any()):
            parts.append(f"{label} {', '.join(map(str, np.flatnonzero(which)[:8]))}")
    if replay.schedule.collective is not Collective.BARRIER and origin != need.chunk[i]:
        parts.append("of several chunks" if origin >= replay.schedule.chunks else f"of chunk {origin}")
    return ", ".join(parts)


def _associations(replay: Replay) -> list[str]:
    """(4): violations of bitwise identity between ranks."""
    schedule = replay.schedule
    if schedule.collective is not Collective.ALL_REDUCE:
        return []
    # Data comes first among a rank's locations.
    mixes = replay.rows.reshape(schedule.n, replay.places.width, -1)[:, : schedule.chunks, MIX]
    differs = (mixes != mixes[0]).T
    return [
        f"chunk {chunk}: rank {int(np.argmax(differs[chunk]))} combines the contributions in another association than "
        f"rank 0, so that floating-point results differ"
        for chunk in np.flatnonzero(differs.any(axis=1))
    ]
