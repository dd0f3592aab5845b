"""How long a collective takes on a topology: the steps of its schedule, over the links that its transfers share.

The model. Every rank has a clock. A transfer begins when its source has finished its earlier steps; all transfers of a
step that cross a link share it, and a link serves one step after the other. A transfer ends when the last byte has
crossed its narrowest link, plus the latencies of its links and the cost of a hop; then the destination combines what it
got, and both clocks have advanced. So nothing is assumed to be in lockstep, pipelines fill and drain, and no event is
simulated per byte or packet. Times are computed for many sizes at once; a step that repeats is looked at until every
clock advances alike.

References
----------
A. Alexandrov et al., "LogGP", SPAA 1995. W. Won et al., "ASTRA-sim2.0", ISPASS 2023 (what it is compared with).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Schedule, verify
from ringleader.simulate.costs import Costs, engine, nccl
from ringleader.simulate.routes import Fabric, Medium
from ringleader.simulate.steps import Step, Steps, checked
from ringleader.topology import Kind, Topology

__all__ = ["LinkLoad", "Result", "Simulation", "simulate"]

_MOST_ROWS = 4_000_000  # of a trace or a critical path: what is kept for each transfer
_FEW = 4  # repetitions that are not worth looking for a rhythm
_ALIKE = 1e-9
_PROTOCOLS = ("LL", "LL128", "Simple")
# Bytes through the busiest rank over bytes of data, in nccl-tests' busbw.
_BUS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}  # times (n - 1) / n; 1 for others


@dataclass(frozen=True)
class LinkLoad:
    """What a directed link carried: bytes, and the share of the time in which it was busy."""

    name: str
    nbytes: float
    busy: float


@dataclass(frozen=True)
class Hop:
    """A transfer on the critical path; seconds since the start."""

    step: int
    src: int
    dst: int
    begin: float
    end: float
    bottleneck: str


@dataclass(frozen=True)
class Result:
    """One simulated collective; see `simulate`.

    Attributes
    ----------
    seconds
        From the first rank's start to the last one's end.
    nbytes, n
        Bytes of the whole data, ranks.
    algorithm
        Name of the schedule.
    costs
        What sending was taken to cost: the best of several protocols, if several could be taken.
    links
        Loads of the links that carried anything, the busiest first.
    warnings
        What was given without having an effect, and what had to be assumed.
    """

    seconds: float
    nbytes: float
    n: int
    collective: str
    algorithm: str
    costs: Costs
    links: tuple[LinkLoad, ...] = field(repr=False)
    warnings: tuple[str, ...] = field(repr=False)
    _simulation: Simulation = field(repr=False, compare=False)

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of data per second; infinite where nothing takes time."""
        if self.seconds == 0:
            return float("inf") if self.nbytes else 0.0
        return self.nbytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """As nccl-tests define it: comparable with the links' bandwidth, whatever the number of ranks."""
        factor = _BUS.get(self.collective, 0) * (self.n - 1) / self.n
        return self.algorithm_bandwidth * (factor or 1.0)

    @property
    def bottleneck(self) -> LinkLoad | None:
        """The busiest link; None if nothing was sent."""
        return self.links[0] if self.links else None

    @property
    def critical_path(self) -> tuple[Hop, ...]:
        """The transfers that the end waited for, one after the other, the first first.

        Raises
        ------
        InvalidArgument
            The schedule has too many transfers to remember each.
        """
        return self._simulation._path(self.nbytes, self.costs)

    def trace(self, path: str | Path) -> None:
        """Write each transfer as an event of the JSON that Perfetto and chrome://tracing read: a row for each rank.

        Raises
        ------
        InvalidArgument
            The schedule has too many transfers.
        """
        events = self._simulation._events(self.nbytes, self.costs)
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")


class _Routed:
    """A step with its routes: rows are (transfer, link), first in the order of transfers, then in that of links."""

    def __init__(self, step: Step, fabric: Fabric, wire: float, pull: bool = False) -> None:
        moves = step.src != step.dst
        self.src, self.dst = step.src[moves], step.dst[moves]
        ways = [fabric.route(a, b) for a, b in zip(self.src.tolist(), self.dst.tolist(), strict=True)]
        lengths = np.fromiter((len(links) for links, _ in ways), np.int64, len(ways))
        self.media = np.fromiter((medium for _, medium in ways), np.int64, len(ways))
        self.link = np.fromiter((link for links, _ in ways for link in links), np.int64, int(lengths.sum()))
        self.transfer = np.repeat(np.arange(len(ways)), lengths)
        self.first = np.cumsum(lengths) - lengths
        # Within a node the destination combines straight from the source's memory, and copies if it pulls.
        memory, combined = self.media == Medium.MEMORY, step.combined[moves]
        self.folds = memory & (combined > 0)
        taken = memory if pull else self.folds
        self.link[self.first[taken]] += (self.dst - self.src)[taken]  # links of copies are in the order of ranks
        self.remote = self.media == Medium.NETWORK
        self.share = np.where(self.remote, step.share[moves] * wire, step.share[moves])
        self.latency = np.add.reduceat(fabric.latency[self.link], self.first) if len(ways) else np.zeros(0)
        self.by_link = np.argsort(self.link, kind="stable")
        self.used, self.link_first, counts = np.unique(self.link[self.by_link], return_index=True, return_counts=True)
        self.place = np.empty(len(self.link), dtype=np.int64)  # of each row's link in `used`
        self.place[self.by_link] = np.repeat(np.arange(len(self.used)), counts)
        self.bytes = np.bincount(self.place, self.share[self.transfer], minlength=len(self.used))
        self.by_dst, self.by_src = (np.argsort(end, kind="stable") for end in (self.dst, self.src))
        self.receivers, self.dst_first = np.unique(self.dst[self.by_dst], return_index=True)
        self.senders, self.src_first = np.unique(self.src[self.by_src], return_index=True)
        apart = step.combined.copy()
        apart[np.flatnonzero(moves)[self.folds]] = 0.0
        self.combined = np.bincount(step.dst, apart, minlength=fabric.size)
        self.copied = np.bincount(step.dst[~moves], (step.share - step.combined)[~moves], minlength=fabric.size)
        ends = np.concatenate((self.src[self.remote], self.dst[self.remote]))
        self.messages = np.bincount(ends, minlength=fabric.size)


class _Bound:
    """A routed step at the costs of one protocol; times are per byte of data."""

    def __init__(self, routed: _Routed, fabric: Fabric, costs: Costs) -> None:
        self.routed = r = routed
        efficiency = np.array([costs.efficiency.get(medium, 1.0) for medium in Medium])
        efficiency[Medium.MEMORY] = costs.copy  # such a way is one link, of capacity 1
        self.rate = 1.0 / (fabric.capacity[r.link] * efficiency[r.media[r.transfer]])
        self.rate[r.first[r.folds]] = 1.0 / min(costs.copy, costs.reduce)
        self.own = r.share[r.transfer] * self.rate
        self.load = np.bincount(r.place, self.own, minlength=len(r.used))
        self.latency = r.latency + np.array([costs.hop.get(medium, 0.0) for medium in Medium])[r.media]
        work = r.combined / costs.reduce + r.copied / costs.copy
        self.working = np.flatnonzero(work)
        self.work = work[self.working]
        talk = r.messages * costs.message
        self.talking = np.flatnonzero(talk)
        self.talk = talk[self.talking]


class Simulation:
    """A schedule on a topology, prepared once and asked for the times of many sizes.

    Parameters
    ----------
    schedule
        A `Schedule`, or the spec of an algorithm, such as ``hierarchical:outer=double_binary_tree``.
    topology
        What it runs on; a `Fabric` made of it once serves many simulations.
    collective, root
        Of a spec.
    placement
        The node of each rank; default: the topology's ranks.
    channels
        So many copies of the schedule side by side, each on a slice of the data; in copy k the ranks of each host are
        rotated by k, so that copies enter and leave hosts by different ranks, and adapters.
    segments
        So many segments of each chunk, one step behind the other.
    protocol
        Of NCCL, for ranks on GPUs: ``LL``, ``LL128``, ``Simple``, or ``auto``, the fastest for each size.
    costs
        Instead: any costs. By default NCCL's where ranks are on GPUs, else those of this library's engine.
    stragglers
        Rank to the seconds that it starts late.
    jitter
        Spread of each transfer's duration: the standard deviation of its logarithm, drawn from `seed`.
    wire
        Bytes on the network for each byte of data, of a wire format: 0.5 for bf16.
    pull
        Copies between ranks of one NUMA node or device are done by their destination instead of their source.
    in_network
        Switches combine (NVLink SHARP in a host, SHARP in the network): each rank sends its data once and receives the
        result once. Only all_reduce.

    Raises
    ------
    InvalidArgument
        Ranks that nothing connects, a schedule for another number of ranks, numbers out of range.
    ScheduleError
        A schedule that is not correct, or cannot finish: it has no time.
    """

    def __init__(
        self,
        schedule: Schedule | str,
        topology: Topology | Fabric,
        *,
        collective: str = "all_reduce",
        root: int = 0,
        placement: Sequence[str] | None = None,
        channels: int = 1,
        segments: int = 1,
        protocol: str | None = None,
        costs: Costs | Sequence[Costs] | None = None,
        stragglers: Mapping[int, float] | None = None,
        jitter: float = 0.0,
        seed: int = 0,
        wire: float = 1.0,
        pull: bool = False,
        in_network: bool = False,
    ) -> None:
        self.warnings: list[str] = []
        if isinstance(topology, Fabric) and placement is not None:
            raise InvalidArgument("placement is given with a Fabric, which has one; give it the topology instead")
        self.fabric = topology if isinstance(topology, Fabric) else Fabric(topology, placement)
        self.costs = _costs(self.fabric, protocol, costs, self.warnings)
        n = self.fabric.size
        for what, value, least in (("channels", channels, 1), ("segments", segments, 1)):
            if value < least:
                raise InvalidArgument(f"{what} is {value}; expected {least} or more")
        if not 0 <= jitter < 10:
            raise InvalidArgument(f"jitter is {jitter}; expected the spread of a logarithm, 0 to 10")
        if not 0 < wire <= 1:
            raise InvalidArgument(f"wire is {wire}; expected bytes on the network per byte of data, above 0, at most 1")
        self.collective = str(schedule.collective) if isinstance(schedule, Schedule) else str(Collective(collective))
        self._late = np.zeros((n, 1))
        for rank, seconds in (stragglers or {}).items():
            if not 0 <= rank < n or not 0 <= seconds < float("inf"):
                raise InvalidArgument(
                    f"straggler {rank}: {seconds} s; expected a rank of 0..{n - 1} and seconds from 0"
                )
            self._late[rank] = seconds
        self._jitter, self._seed, self._wire = jitter, seed, wire
        self._in_network = in_network
        self.steps = self._prepare(schedule, root, channels, segments)
        self._routed = [_Routed(step, self.fabric, wire, pull) for step, _ in self.steps]
        self._bound: dict[str, list[_Bound]] = {}
        self._check_effects(protocol, seed)

    def _prepare(self, schedule: Schedule | str, root: int, channels: int, segments: int) -> Steps:
        n = self.fabric.size
        if self._in_network:
            return self._combined_in_switches(channels, segments)
        plain = channels == 1 and segments == 1
        if isinstance(schedule, str) and plain:
            return Steps.named(self.collective, schedule, n, root, self.fabric.hosts)
        if isinstance(schedule, str):
            from ringleader.algorithms import build

            schedule = build(self.collective, schedule, n, root, self.fabric.hosts)
        else:
            verify(schedule, lowered=False).raise_if_failed()
        if segments > 1:
            schedule = schedule.pipelined(segments)
        if channels > 1:
            schedule = schedule.split(channels, [_rotated(self.fabric.hosts, k) for k in range(channels)])
        return checked(Steps.of(schedule), n)

    def _combined_in_switches(self, channels: int, segments: int) -> Steps:
        if self.collective != "all_reduce":
            raise InvalidArgument(f"in_network combines all_reduce only, not {self.collective}")
        if channels > 1 or segments > 1:
            self.warnings.append("channels and segments have no effect with in_network")
        n = self.fabric.size
        if n == 1:
            return Steps(1, (), "in-network")
        # Each rank's link carries the data to its switch once, and the result back at the same time, as if they went to
        # the next rank of the host. What the host's switch has combined, its ranks share among them between hosts.
        members: dict[int, list[int]] = {}
        for rank, host in enumerate(self.fabric.hosts):
            members.setdefault(host, []).append(rank)
        groups = list(members.values())
        if len({len(group) for group in groups}) > 1:
            raise InvalidArgument(
                f"in_network needs as many ranks on each host; here are {sorted({len(group) for group in groups})}"
            )
        each = len(groups[0])
        inside = [(g[i], g[(i + 1) % each], 1.0) for g in groups for i in range(each) if each > 1]
        between = [
            (group[i], after[i], 1.0 / each)
            for group, after in zip(groups, groups[1:] + groups[:1], strict=True)
            for i in range(each)
            if len(groups) > 1
        ]
        src, dst, share = (np.array(column) for column in zip(*inside, *between, strict=True))
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            if not self.fabric.crosses(a, b, (Kind.NVSWITCH, Kind.SWITCH)):
                raise InvalidArgument(
                    f"in_network: no switch that could combine is between rank {a} ({self.fabric.ranks[a]}) and "
                    f"rank {b} ({self.fabric.ranks[b]}) of {self.fabric.topology.name!r}; expected one"
                )
        return Steps(n, ((Step(src, dst, share, np.zeros(len(src))), 1),), "in-network")

    def _check_effects(self, protocol: str | None, seed: int) -> None:
        if self.fabric.size == 1:
            self.warnings.append("one rank communicates nothing: only `start` counts")
        if seed and not self._jitter:
            self.warnings.append(f"seed={seed} has no effect without jitter")
        used = {link for routed in self._routed for link in routed.used.tolist()}
        unknown = self.fabric.unknown(sorted(used))
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            self.warnings.append(f"bandwidth unknown, taken for unlimited: {', '.join(unknown[:3])}{more}")
        if self._wire < 1 and not any(routed.remote.any() for routed in self._routed):
            self.warnings.append(f"wire={self._wire} has no effect: nothing leaves a host")

    def _bind(self, costs: Costs) -> list[_Bound]:
        found = self._bound.get(costs.name)
        if found is None:
            found = self._bound[costs.name] = [_Bound(routed, self.fabric, costs) for routed in self._routed]
        return found

    # ----------------------------------------------------------------------------------------------------------- time

    def seconds(self, sizes: Sequence[float] | NDArray[Any] | float) -> NDArray[np.float64]:
        """The time for each size.

        Parameters
        ----------
        sizes
            Bytes of the whole data, shape (sizes,) or a number.

        Returns
        -------
        numpy.ndarray
            Seconds, the shape of `sizes`.
        """
        return self._best(sizes)[0]

    def _best(self, sizes: Sequence[float] | NDArray[Any] | float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        wanted = np.asarray(sizes, dtype=float)
        flat = np.atleast_1d(wanted)
        if not (np.isfinite(flat).all() and (flat >= 0).all()):
            raise InvalidArgument(f"sizes {sizes!r}; expected bytes, 0 or more")
        times = np.stack([self._run(flat, costs) for costs in self.costs])
        best = times.argmin(axis=0)
        return times.min(axis=0).reshape(wanted.shape), best.reshape(wanted.shape)

    def _run(
        self, sizes: NDArray[np.float64], costs: Costs, record: list[_Record] | None = None
    ) -> NDArray[np.float64]:
        clock = np.repeat(self._late, len(sizes), axis=1)
        busy = np.zeros((len(self.fabric.capacity), len(sizes)))
        random = np.random.default_rng(self._seed) if self._jitter else None
        number = 0
        for (_, repeats), bound in zip(self.steps, self._bind(costs), strict=True):
            last = np.zeros(1)
            for done in range(repeats):
                before = clock.copy()
                _advance(clock, busy, bound, sizes, random, self._jitter, record, number + done)
                if record is not None or random is not None or repeats - done < _FEW:
                    continue
                # Once all clocks have advanced alike twice, so they do in the repetitions that are left.
                gained = clock - before
                spread = gained.max(axis=0) - gained.min(axis=0)
                if bool(np.all(spread <= _ALIKE * gained[0])) and np.allclose(gained[0], last, _ALIKE, 0):
                    left = repeats - done - 1
                    clock += gained * left
                    busy[bound.routed.used] += gained[0] * left
                    break
                last = gained[0]
            number += repeats
        total: NDArray[np.float64] = clock.max(axis=0) + costs.start
        return total

    def result(self, nbytes: float) -> Result:
        """The simulated collective for one size, with loads of links."""
        seconds, best = self._best(nbytes)
        costs = self.costs[int(best)]
        moved = np.zeros(len(self.fabric.capacity))
        taken = np.zeros(len(self.fabric.capacity))
        for (_, repeats), bound in zip(self.steps, self._bind(costs), strict=True):
            moved[bound.routed.used] += repeats * nbytes * bound.routed.bytes
            taken[bound.routed.used] += repeats * nbytes * bound.load
        order = np.argsort(-taken, kind="stable")
        loads = tuple(
            LinkLoad(self.fabric.name(int(link)), float(moved[link]), float(taken[link] / seconds))
            for link in order[: int((moved > 0).sum())]
        )
        return Result(
            float(seconds), float(nbytes), self.fabric.size, self.collective, self.steps.name, costs, loads,
            tuple(self.warnings), self,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- looking

    def _recorded(self, nbytes: float, costs: Costs) -> list[_Record]:
        rows = sum(len(step.src) * repeats for step, repeats in self.steps)
        if rows > _MOST_ROWS:
            raise InvalidArgument(f"{rows} transfers are too many to remember each; at most {_MOST_ROWS}: fewer ranks")
        record: list[_Record] = []
        self._run(np.array([float(nbytes)]), costs, record)
        return record

    def _path(self, nbytes: float, costs: Costs) -> tuple[Hop, ...]:
        record = self._recorded(nbytes, costs)
        # Backwards from the rank that ends last: through the transfer that its clock waited for in each step.
        ends = np.repeat(self._late[:, 0], 1)
        cause: list[dict[int, tuple[int, int]]] = []
        for entry in record:
            causes: dict[int, tuple[int, int]] = {}
            for row in np.argsort(entry.end, kind="stable").tolist():
                dst = int(entry.bound.routed.dst[row])
                if entry.end[row] >= ends[dst]:
                    ends[dst] = entry.end[row]
                    causes[dst] = (row, int(entry.bound.routed.src[row]))
            np.maximum(ends, entry.clock, out=ends)
            cause.append(causes)
        rank = int(ends.argmax())
        path: list[Hop] = []
        for entry, causes in zip(reversed(record), reversed(cause), strict=True):
            if rank in causes:
                row, src = causes[rank]
                mine = np.flatnonzero(entry.bound.routed.transfer == row)
                slow = int(entry.bound.routed.link[mine[np.argmax(entry.bound.rate[mine])]])
                path.append(
                    Hop(entry.step, src, rank, float(entry.begin[row]), float(entry.end[row]), self.fabric.name(slow))
                )
                rank = src
        return tuple(reversed(path))

    def _events(self, nbytes: float, costs: Costs) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"rank {rank} ({node})"}}
            for rank, node in enumerate(self.fabric.ranks)
        ]
        for entry in self._recorded(nbytes, costs):
            for row in range(len(entry.begin)):
                src, dst = int(entry.bound.routed.src[row]), int(entry.bound.routed.dst[row])
                events.append(
                    {
                        "ph": "X", "pid": 0, "tid": src, "name": f"step {entry.step}: to rank {dst}",
                        "ts": entry.begin[row] * 1e6, "dur": (entry.end[row] - entry.begin[row]) * 1e6,
                        "args": {"bytes": entry.bound.routed.share[row] * nbytes},
                    }
                )  # fmt: skip
        return events


@dataclass(frozen=True)
class _Record:
    step: int
    bound: _Bound
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    clock: NDArray[np.float64]


def _advance(
    clock: NDArray[np.float64],
    busy: NDArray[np.float64],
    bound: _Bound,
    sizes: NDArray[np.float64],
    random: np.random.Generator | None,
    jitter: float,
    record: list[_Record] | None,
    number: int,
) -> None:
    """One step: clocks of ranks, shape (n, sizes), and until when links are busy, shape (links, sizes)."""
    r = bound.routed
    if len(bound.talking):
        clock[bound.talking] += bound.talk[:, None]
    if len(r.src):
        begin = clock.take(r.src, axis=0)
        row_begin = begin.take(r.transfer, axis=0)
        # A link begins when the first transfer does, or when it has done with earlier steps; it is done when all bytes
        # of this step have crossed it, and not before the last transfer has had the time for its own.
        earliest = np.minimum.reduceat(row_begin.take(r.by_link, axis=0), r.link_first)
        row_begin += bound.own[:, None] * sizes
        latest = np.maximum.reduceat(row_begin.take(r.by_link, axis=0), r.link_first)
        until = np.maximum(np.maximum(busy.take(r.used, axis=0), earliest) + bound.load[:, None] * sizes, latest)
        busy[r.used] = until
        sent = np.maximum.reduceat(until.take(r.place, axis=0), r.first)
        if random is not None:
            sent = begin + (sent - begin) * random.lognormal(0.0, jitter, (len(r.src), 1))
        arrived = sent + bound.latency[:, None]
        clock[r.senders] = np.maximum(clock[r.senders], np.maximum.reduceat(sent.take(r.by_src, axis=0), r.src_first))
        clock[r.receivers] = np.maximum(
            clock[r.receivers], np.maximum.reduceat(arrived.take(r.by_dst, axis=0), r.dst_first)
        )
    if len(bound.working):
        clock[bound.working] += bound.work[:, None] * sizes
    if record is not None and len(r.src):
        record.append(_Record(number, bound, begin[:, 0], arrived[:, 0], clock[:, 0].copy()))


def _rotated(hosts: Sequence[int], by: int) -> NDArray[np.int64]:
    """The ranks, those of each host rotated by `by`."""
    order = np.arange(len(hosts))
    place = np.asarray(hosts)
    for host in np.unique(place):
        own = np.flatnonzero(place == host)
        order[own] = np.roll(own, -by)
    return order


def _costs(
    fabric: Fabric, protocol: str | None, costs: Costs | Sequence[Costs] | None, warnings: list[str]
) -> tuple[Costs, ...]:
    if costs is not None:
        if protocol is not None:
            warnings.append(f"protocol={protocol} has no effect: costs are given")
        return (costs,) if isinstance(costs, Costs) else tuple(costs)
    if fabric.topology[fabric.ranks[0]].kind is not Kind.GPU:
        if protocol is not None:
            warnings.append(f"protocol={protocol} has no effect: it is NCCL's, and ranks are not on GPUs")
        return (engine(),)
    names = _PROTOCOLS if protocol is None or protocol.lower() == "auto" else (protocol,)
    return tuple(nccl(name) for name in names)


def simulate(
    schedule: Schedule | str,
    topology: Topology | Fabric,
    nbytes: float,
    **options: Any,
) -> Result:
    """Predict what a collective takes on a topology.

    Parameters
    ----------
    schedule
        A `Schedule`, or the spec of an algorithm, such as ``hierarchical:outer=double_binary_tree``.
    topology
        What it runs on; `ringleader.topology.generate` makes clusters to order.
    nbytes
        Bytes of the whole data, all blocks together.
    **options
        Those of `Simulation`: collective, root, placement, channels, segments, protocol, costs, stragglers, jitter,
        seed, wire, pull, in_network.

    Returns
    -------
    Result
        Seconds, bandwidths, loads of links, the critical path.

    Raises
    ------
    InvalidArgument
        Ranks that nothing connects, a schedule for another number of ranks, numbers out of range.
    ScheduleError
        A schedule that is not correct or cannot finish.

    Examples
    --------
    Eight chips in a ring of 50 GB/s links:

    >>> from ringleader.simulate import Costs
    >>> from ringleader.topology import generate
    >>> ring = generate.torus([8], link=50e9, latency=10e-9)
    >>> result = simulate("ring", ring, 1e8, costs=Costs("links only"))
    >>> round(result.seconds * 1e3, 3), round(result.bus_bandwidth / 1e9, 1)
    (3.5, 50.0)
    """
    return Simulation(schedule, topology, **options).result(nbytes)
