"""From a request to a plan: choice of the algorithm, schedule, lowering, binding.

Plans are kept in a least-recently-used cache of at most `PLAN_CACHE_SIZE` entries per communicator; schedules and
lowered schedules have bounded caches of their own. So memory stays flat however many different sizes a program uses.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeVar

from ringleader import _core, algorithms, tune
from ringleader.runtime.config import SUBSYSTEMS, Config, logger
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.wire import WIRE_CODES, effective
from ringleader.runtime.workers import Workers
from ringleader.schedule import Collective, Schedule
from ringleader.schedule.lower import lower

__all__ = ["PLAN_CACHE_SIZE", "Choice", "LruCache", "Planned", "Planner", "Request"]

PLAN_CACHE_SIZE: Final = 512
NO_OP: Final = 255

_NAME_ROOM = 40  # bytes of a name in a description, with the zero at its end (native/transport/link.hpp)
log = logger("TUNE")
_examined: set[str] = set()  # files of rules that were compared with the job

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
    description: str = ""  # what else must be alike on all ranks


class Choice(NamedTuple):
    """What ran: algorithm, protocol, wire format and channels of a call, the number of windows it ran in, and why."""

    collective: str
    algorithm: str
    protocol: str
    nbytes: int
    windows: int
    reason: str
    wire: str = "f32"
    channels: int = 0
    inlined: bool = False  # small data beside the flags, see docs/architecture.md
    workers: int = 1

    def __str__(self) -> str:
        wire = "" if self.wire == "f32" else f", {self.wire} between nodes"
        channels = f", {self.channels} channels" if self.channels else ""
        windows = f", {self.windows} windows" if self.windows > 1 else ""
        inlined = ", inline" if self.inlined else ""
        workers = f", {self.workers} workers" if self.workers > 1 else ""
        how = f"{self.algorithm} ({self.protocol}{inlined}{channels}{workers}{wire}{windows})"
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
    rules
        Sets of rules that come before the built-in ones: the rules file's, then the tuner's. Equal on all ranks.
    model
        Decides where no rule does. Equal on all ranks.
    workers
        Among which large operations are divided.
    """

    def __init__(
        self,
        core: _core.Communicator,
        nodes: Sequence[int],
        config: Config,
        rules: Sequence[tune.RuleSet] = (),
        model: tune.Model = tune.DEFAULT,
        workers: Workers | None = None,
    ) -> None:
        self._core = core
        self._nodes = tuple(nodes)
        self._wire = config.wire
        self._sets = tuple(rules)
        self._model = model
        self._workers = workers or Workers()
        proto = "" if config.proto in (None, "auto") else config.proto
        self._limits = {"RINGLEADER_ALGO": config.algo or "", "RINGLEADER_PROTO": proto}
        self._plans: LruCache[Request, Planned] = LruCache(PLAN_CACHE_SIZE)
        self._selections: LruCache[Request, tuple[str, str, tune.Choice]] = LruCache(PLAN_CACHE_SIZE)
        self._announced: LruCache[tuple[object, ...], bool] = LruCache(256)
        if core.rank == 0:
            self._report(config)

    def _report(self, config: Config) -> None:
        """What a user should know at the start: rules that are for other jobs, and on demand all predictions."""
        for rules in self._sets:
            # The first group is the whole job: that a file has nothing for a part of it may well be meant.
            if rules.source != config.rules or rules.source in _examined:
                continue
            _examined.add(rules.source)
            if not rules.concerns(self._nodes):
                log.warning(
                    "%s: none of its %d rules is for a group of %d ranks on %d nodes; they change nothing here",
                    rules.source, len(rules.rules), len(self._nodes), len(set(self._nodes)),
                )  # fmt: skip
        # With all subsystems on, a table of a hundred lines would hide what else INFO has to say.
        wanted = logging.INFO if config.debug_subsys != SUBSYSTEMS else logging.DEBUG
        if len(self._nodes) > 1 and config.debug is not None and log.isEnabledFor(wanted):
            log.log(wanted, "%s", tune.matrix(self._nodes, env=self._limits, rules=self._sets, model=self._model))

    @property
    def model(self) -> tune.Model:
        """The cost model."""
        return self._model

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
        collective, count, code, itemsize, op, root, algorithm, shape, asked, description = request
        n = len(self._nodes)
        nbytes = count * itemsize * (n if collective.blocked else 1)
        # There may be many descriptions of what is otherwise one request.
        selection = self._selections.get(request._replace(description="")) if description else None
        if selection is None:
            wire, ruled = self._wire_of(collective, nbytes, code, asked)
            chosen = tune.select(
                collective.value, nbytes, n, self._nodes, itemsize, forced=algorithm, env=self._limits,
                rules=self._sets, wire=wire, model=self._model,
            )  # fmt: skip
            if description:
                self._selections.put(request._replace(description=""), (wire, ruled, chosen))
        else:
            wire, ruled, chosen = selection
        schedule = algorithms.build(collective.value, chosen.algorithm, n, root, self._nodes)
        if chosen.channels > 1:
            schedule = schedule.split(chosen.channels)
        # The protocol decides who copies, so ranks that differ in it must not meet: it is part of the fingerprint.
        # So is the schedule itself: under one name, a user's algorithm or file might differ from rank to rank.
        channels = f"/channels={chosen.channels}" if chosen.channels > 1 else ""
        extra = f"/{description}" if description else ""
        name = f"{chosen.algorithm}/{chosen.protocol}{channels}"
        identity = algorithms.algorithm_hash(f"{name}/{schedule.fingerprint}{extra}")
        operation, factor = (NO_OP, 1.0) if op is None else (op.code, op.factor)

        def bind(core: _core.Communicator, part: Schedule, elements: int) -> _core.Plan:
            lowered = lower(part, self._nodes, push=chosen.protocol != "pull", wire=wire != "f32")
            return core.plan(
                lowered, collective.code, elements, code, operation, root, identity, shape, factor, WIRE_CODES[wire],
                name if len(name) < _NAME_ROOM else f"{name[: _NAME_ROOM - 4]}...",
            )  # fmt: skip

        slices = self._workers.slices(collective, count, itemsize)
        plan = bind(self._core, schedule, slices[0][1])
        if len(slices) > 1:
            cores = zip(self._workers.cores, slices[1:], strict=False)
            plan = plan.beside(
                [
                    (bind(core, self._workers.schedule(schedule, worker), elements), first * itemsize)
                    for worker, (core, (first, elements)) in enumerate(cores, 1)
                ]
            )
        reason = "; ".join(filter(None, (chosen.reason, ruled)))
        choice = Choice(
            collective.value, chosen.algorithm, chosen.protocol, nbytes, plan.windows, reason, wire, chosen.channels,
            plan.inlined, len(slices),
        )  # fmt: skip
        self._announce(choice)
        return Planned(plan, choice)

    def _wire_of(self, collective: Collective, nbytes: int, code: int, asked: str | None) -> tuple[str, str]:
        """The format of a call's messages, and what to say if a rule decided it."""
        default, why = self._wire, ""
        if asked is None and default is None:
            found = tune.select_wire(collective.value, nbytes, self._nodes, self._sets)
            default, why = ("f32", "") if found is None else (found[0], f"wire by {found[1]}")
        wire = effective(asked, default or "f32", collective, code, self._nodes)
        return wire, why if wire == default else ""

    def _announce(self, choice: Choice) -> None:
        key = (choice.collective, choice.algorithm, choice.protocol, choice.wire, choice.channels)
        if self._announced.get(key) is None:
            self._announced.put(key, True)
            log.info("rank %d: %s", self._core.rank, choice)

    def explain(
        self, collective: str, nbytes: int, itemsize: int, algorithm: str | None, wire: str | None = None
    ) -> tune.Explanation:
        """What would run for float32 elements, among which candidates."""
        algorithms.names(collective)  # raises if there is no such collective
        n = len(self._nodes)
        used, why = self._wire_of(Collective(collective), nbytes, 0, wire)
        found = tune.explain(
            collective, nbytes, n, self._nodes, itemsize, forced=algorithm, env=self._limits, rules=self._sets,
            wire=used, model=self._model,
        )  # fmt: skip
        return replace(found, request=f"{found.request} ({why})") if why else found

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()
        self._selections.clear()
