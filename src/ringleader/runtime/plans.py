"""From a request to a plan: choice of the algorithm, schedule, lowering, binding.

Plans are kept in a least-recently-used cache of at most `PLAN_CACHE_SIZE` entries per communicator; schedules and
lowered schedules have bounded caches of their own. So memory stays flat however many different sizes a program uses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeVar

from ringleader import _core, algorithms, tune
from ringleader.runtime.config import Config, logger
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.wire import WIRE_CODES, effective
from ringleader.schedule import Collective
from ringleader.schedule.lower import lower

__all__ = ["PLAN_CACHE_SIZE", "Choice", "LruCache", "Planned", "Planner", "Request"]

PLAN_CACHE_SIZE: Final = 512
NO_OP: Final = 255

log = logger("TUNE")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A dictionary that forgets the entry not used for longest when it is full.

    Safe to use from several threads: each method is a few atomic dictionary operations, and losing a race only costs
    a rebuild.
    """

    __slots__ = ("_entries", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The entry, now the most recently used, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            with suppress(KeyError):  # forgotten by another thread meanwhile
                self._entries.move_to_end(key)
        return entry

    def put(self, key: K, value: V) -> None:
        """Add an entry."""
        self._entries[key] = value
        while len(self._entries) > self.limit:
            with suppress(KeyError):
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


class Request(NamedTuple):
    """What a collective call asks for; equal requests share a plan."""

    collective: Collective
    elements: int  # per block for collectives over blocks
    code: int
    itemsize: int
    op: ReduceOp | None
    root: int
    algorithm: str | None
    shape: tuple[int, ...] | None
    wire: str | None


class Choice(NamedTuple):
    """What ran: algorithm, protocol and wire format of a call, the number of windows it ran in, and why."""

    collective: str
    algorithm: str
    protocol: str
    nbytes: int
    windows: int
    reason: str
    wire: str = "f32"

    def __str__(self) -> str:
        wire = "" if self.wire == "f32" else f", {self.wire} between nodes"
        windows = f", {self.windows} windows" if self.windows > 1 else ""
        how = f"{self.algorithm} ({self.protocol}{wire}{windows})"
        return f"{self.collective} of {self.nbytes} bytes: {how} because {self.reason}"


class Planned(NamedTuple):
    """A plan and the choice that led to it."""

    plan: _core.Plan
    choice: Choice


class Planner:
    """Makes and remembers the plans of one communicator.

    Parameters
    ----------
    core
        The native communicator.
    nodes
        Node number of every rank.
    config
        Its ``algo`` and ``proto`` limit the choice; ``wire`` is the format of reductions that ask for none.
    """

    def __init__(self, core: _core.Communicator, nodes: Sequence[int], config: Config) -> None:
        self._core = core
        self._nodes = tuple(nodes)
        self._wire = config.wire
        self._limits = {"RINGLEADER_ALGO": config.algo or "", "RINGLEADER_PROTO": config.proto.replace("auto", "")}
        self._plans: LruCache[Request, Planned] = LruCache(PLAN_CACHE_SIZE)
        self._announced: LruCache[tuple[str, str, str, str], bool] = LruCache(256)

    def plan(self, request: Request) -> Planned:
        """The plan for `request`.

        Raises
        ------
        InvalidArgument
            Unknown or unsuitable algorithm; the message lists the valid ones.
        """
        planned = self._plans.get(request)
        if planned is None:
            planned = self._build(request)
            self._plans.put(request, planned)
        return planned

    def _build(self, request: Request) -> Planned:
        collective, count, code, itemsize, op, root, algorithm, shape, asked = request
        wire = effective(asked, self._wire, collective, code, self._nodes)
        nbytes = count * itemsize * (len(self._nodes) if collective.blocked else 1)
        n = len(self._nodes)
        chosen = tune.select(collective.value, nbytes, n, self._nodes, itemsize, forced=algorithm, env=self._limits)
        schedule = algorithms.build(collective.value, chosen.algorithm, n, root)
        lowered = lower(schedule, self._nodes, push=chosen.protocol != "pull", wire=wire != "f32")
        # The protocol decides who copies, so ranks that differ in it must not meet: it is part of the fingerprint.
        identity = algorithms.algorithm_hash(f"{chosen.algorithm}/{chosen.protocol}")
        operation, factor = (NO_OP, 1.0) if op is None else (op.code, op.factor)
        plan = self._core.plan(
            lowered, collective.code, count, code, operation, root, identity, shape, factor, WIRE_CODES[wire]
        )
        choice = Choice(collective.value, chosen.algorithm, chosen.protocol, nbytes, plan.windows, chosen.reason, wire)
        self._announce(choice)
        return Planned(plan, choice)

    def _announce(self, choice: Choice) -> None:
        key = (choice.collective, choice.algorithm, choice.protocol, choice.wire)
        if self._announced.get(key) is None:
            self._announced.put(key, True)
            log.info("rank %d: %s", self._core.rank, choice)

    def explain(
        self, collective: str, nbytes: int, itemsize: int, algorithm: str | None, wire: str | None = None
    ) -> tune.Explanation:
        """What would run for float32 elements, among which candidates."""
        n = len(self._nodes)
        found = tune.explain(collective, nbytes, n, self._nodes, itemsize, forced=algorithm, env=self._limits)
        used = effective(wire, self._wire, Collective(collective), 0, self._nodes)
        return found if used == "f32" else replace(found, request=f"{found.request}, {used} between nodes")

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()
