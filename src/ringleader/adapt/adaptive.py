"""All-reduce that measures the network as it goes and changes its ways with it. See docs/adaptive.md.

How the ranks agree: after a call each rank starts an all-gather of a few numbers that it measured in it, and does not
wait. The next call finds them there, and every rank draws the same conclusion from the same numbers (`policy`). So a
measurement counts from the next call on, all ranks change in the same call, and nobody waits for an agreement.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, overload

import numpy as np

from ringleader.adapt import menu
from ringleader.adapt.arrivals import Arrivals
from ringleader.adapt.estimates import Estimates
from ringleader.adapt.exchange import Exchange, agree
from ringleader.adapt.formats import EXACT, Format, allowed
from ringleader.adapt.loads import Candidate
from ringleader.adapt.policy import Policy, Settings
from ringleader.adapt.switch import Marks, Switch
from ringleader.errors import AbortedError, ClosedError, CollectiveTimeout, InvalidArgument, PeerLost
from ringleader.runtime import calls, compressed
from ringleader.runtime.communicator import Communicator
from ringleader.runtime.config import logger
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.monitor.network import format_rate
from ringleader.runtime.watched import unseen

__all__ = ["AdaptiveAllReduce", "AdaptiveWork", "Switch"]

A = TypeVar("A")

log = logger("ADAPT")

_EXCHANGE = 50e-6  # seconds that an exchange is thought to cost, and the part of a call that it may cost
_EXCHANGE_SHARE = 0.01
_MOST_CALLS = 128  # from one exchange to the next
_KINDS = 64
_STALE = 8  # calls without a measurement after which a probe is due
_PROBE_LEAST, _PROBE_MOST = 64 << 10, 4 << 20  # bytes of a probe, the first one per rank


class AdaptiveWork:
    """An adaptive all-reduce in flight."""

    def __init__(self, owner: AdaptiveAllReduce, future: Future[Any], started: float) -> None:
        self._owner, self._future, self._started = owner, future, started
        self._waited = False

    def is_completed(self) -> bool:
        """Whether it is over. Never waits."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait, and return the result; errors are those of `Communicator.all_reduce`.

        Raises
        ------
        CollectiveTimeout
            Not complete within `timeout` seconds; it goes on and can be waited for again.
        """
        begun = time.perf_counter()
        if not wait_for([self._future], timeout).done:
            raise CollectiveTimeout(f"the operation is not complete after {timeout} s; it is still running, wait again")
        result = self._future.result()
        if not self._waited:
            self._waited = True
            self._owner._ended(begun - self._started)
        return result


@dataclass
class _Kind:
    """What is remembered of calls of one size, type and operation."""

    nbytes: int
    policy: Policy
    menu: menu.Menu
    every: int = 1  # calls from one exchange to the next
    since: int = 0  # calls since the last one
    prepared: set[str] = field(default_factory=set)  # candidates that have plans


class AdaptiveAllReduce:
    """All-reduce for training loops on networks whose speed is not known, or changes.

    Call it in the place of `Communicator.all_reduce`, on all ranks in the same order. It picks the algorithm, and, if
    you allow some, the wire format or compressor, by what it predicts from measurements; nothing lossy is used that is
    not allowed. Making one is a collective operation.

    Parameters
    ----------
    comm
        The ranks.
    policies
        What may be used beside float32: names of wire formats (``"bf16"``, ...) and compressors of
        `ringleader.compress`, the most wanted first. A format is used only where the better liked ones make steps
        noticeably longer.
    accuracy_budget
        Without `policies`: all wire formats whose largest relative rounding error is within it. With them: a limit that
        all of them must keep. Default: 0 without policies, so that nothing is lost.
    overlap
        Make a communicator of its own, so that calls with ``async_op=True`` can run beside other collectives.
    settings
        See `ringleader.adapt.Settings`.
    probe_share
        Part of the time that may go into probes, which are made when calls send too little to tell the bandwidth.

    Attributes
    ----------
    history
        All changes of the choice so far, as `Switch`; equal on all ranks but for the time.
    estimates
        Bandwidths as measured.
    arrivals
        Which ranks come late, and by how much.
    marks
        Changes that are still to be shown in the trace of torch's profiler, by whoever is recorded.
    latest
        Name of the candidate that the latest call ran.

    Raises
    ------
    InvalidArgument
        Policies that are none, beyond the budget, or not the same on all ranks.

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     reduce = rl.adapt.AdaptiveAllReduce(comm, accuracy_budget=0.01)
    ...     reduce(np.ones(3, np.float32)), reduce.formats
    (array([1., 1., 1.], dtype=float32), ('f32', 'f16', 'bf16', 'int8'))
    """

    def __init__(
        self,
        comm: Communicator,
        policies: Sequence[Any] | None = None,
        accuracy_budget: float | None = None,
        *,
        overlap: bool = False,
        settings: Settings | None = None,
        probe_share: float = 0.01,
    ) -> None:
        self._formats = allowed(policies, accuracy_budget)
        self._settings = settings or Settings()
        self._probe_share = probe_share
        agree(comm, (self.formats, repr(self._settings), probe_share, overlap))
        own = comm.split(0) if overlap else None
        self._comm = own or comm
        self._own = own
        self._thread = ThreadPoolExecutor(1, "ringleader-adaptive") if overlap else None
        self._kinds: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()
        self.history: list[Switch] = []
        self.arrivals = Arrivals(comm.size)
        self.latest = ""
        rate = 1 / comm.planner.model.parameters.wire_byte
        self.estimates = Estimates.initial(comm.size, rate)
        self._network = len(set(comm.nodes)) > 1
        self._exchange = Exchange(self._comm)
        self._owing: dict[str, Any] = {}  # which compressor remembers something of an array
        self.marks = Marks()
        self._calls = 0
        self._ended_at: float | None = None
        self._window = 0.0
        self._elapsed = 0.0  # since the last probe, as all ranks know it
        self._probe = 0  # bytes of a probe that is due

    @property
    def formats(self) -> tuple[str, ...]:
        """What may be used, the most wanted first."""
        return tuple(each.name for each in self._formats)

    # ------------------------------------------------------------------------------------------------------ calling

    @overload
    def __call__(
        self, x: A, op: ReduceOp | str = "sum", *, out: None = None, key: str = "", async_op: Literal[False] = False
    ) -> A: ...
    @overload
    def __call__(
        self, x: Any, op: ReduceOp | str = "sum", *, out: A, key: str = "", async_op: Literal[False] = False
    ) -> A: ...
    @overload
    def __call__(
        self, x: Any, op: ReduceOp | str = "sum", *, out: Any = None, key: str = "", async_op: Literal[True]
    ) -> AdaptiveWork: ...
    @overload
    def __call__(
        self, x: Any, op: ReduceOp | str = "sum", *, out: Any = None, key: str = "", async_op: bool
    ) -> Any: ...
    def __call__(
        self, x: Any, op: ReduceOp | str = "sum", *, out: Any = None, key: str = "", async_op: bool = False
    ) -> Any:
        """Combine every rank's `x`; see `Communicator.all_reduce`.

        Parameters
        ----------
        x, op, out
            As there. Lossy formats are for float32, and compressors for sums and averages; else it stays exact.
        key
            Which of several arrays this is, for compressors that remember something about each.
        async_op
            Return an `AdaptiveWork` at once; only with ``overlap=True``. All calls are then made in their order on a
            thread of this object.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     rl.adapt.AdaptiveAllReduce(comm)(np.array([1, 2]), "max")
        array([1, 2])
        """
        started = time.perf_counter()
        outside = started - (started if self._ended_at is None else self._ended_at)
        if self._thread is None:
            if async_op:
                raise InvalidArgument("async_op is True; expected overlap=True when the AdaptiveAllReduce was made")
            result = self._call(x, op, out, key, outside, 0.0)
            self._ended(0.0)
            return result
        self.marks.flush()
        future = self._thread.submit(self._call, x, op, out, key, outside, self._window)
        work = AdaptiveWork(self, future, started)
        return work if async_op else work.wait()

    def _ended(self, window: float) -> None:
        self._ended_at, self._window = time.perf_counter(), window

    def _call(self, x: Any, op: ReduceOp | str, out: Any, key: str, outside: float, window: float) -> Any:
        if self._comm.size == 1:
            return self._comm.all_reduce(x, op, out=out)
        self._settle()
        kind = self._kind(x, op)
        candidate = kind.policy.candidates[kind.policy.current]
        self._prepare(kind, candidate, x, op, out)
        begun = time.perf_counter()
        result = self._run(candidate, x, op, out, key)
        seconds = time.perf_counter() - begun
        self.latest = candidate.name
        self._calls += 1
        kind.since += 1
        if kind.since >= kind.every:
            kind.since = 0
            self._exchange.start(kind, seconds, outside, window)
        if self._probe:
            self._send_probe()
        return result

    def _prepare(self, kind: _Kind, candidate: Candidate, x: Any, op: ReduceOp | str, out: Any) -> None:
        """Make a candidate's plan before it is timed for the first time."""
        if candidate.format.compressor is None and candidate.name not in kind.prepared:
            kind.prepared.add(candidate.name)
            calls.all_reduce(self._comm, x, op, out, candidate.algorithm, candidate.format.wire)

    def _run(self, candidate: Candidate, x: Any, op: ReduceOp | str, out: Any, key: str) -> Any:
        compressor = candidate.format.compressor
        left = self._owing.get(key)
        if left is not None and left is not compressor:
            # What error feedback remembers of this array goes along, once: nothing is lost by the change.
            del self._owing[key]
            return compressed.all_reduce(self._comm, x, op, left.at(key), out, dense=True)
        if compressor is not None:
            if hasattr(compressor, "pending"):
                self._owing[key] = compressor
            return self._comm.all_reduce(x, op, out=out, compression=compressor.at(key))
        return self._comm.all_reduce(x, op, out=out, algorithm=candidate.algorithm, wire=candidate.format.wire)

    def _kind(self, x: Any, op: ReduceOp | str) -> _Kind:
        """What is known of calls like this one; the first of its kind finds out what could be done."""
        if not hasattr(x, "nbytes"):
            x = np.asarray(x)
        dtype = str(x.dtype).removeprefix("torch.")
        label = getattr(op, "name", op)
        key = (int(x.nbytes), dtype, str(label).lower())
        kind = self._kinds.get(key)
        if kind is None:
            # Within a node values always move as they are, and fewer bytes would not be worth the work.
            formats = _suitable(self._formats if self._network else (EXACT,), dtype, key[2])
            offered = menu.agreed(self._comm, key[0], formats)
            policy = Policy(list(offered.candidates), list(offered.loads), self.estimates, self._settings)
            kind = self._kinds[key] = _Kind(key[0], policy, offered)
            while len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return kind

    # ---------------------------------------------------------------------------------------------------- agreeing

    def _settle(self) -> None:
        """Take in the latest exchange, which is over long since, and decide."""
        taken = self._exchange.take()
        if taken is None:
            return
        kind, rows = taken
        policy = kind.policy
        before = policy.candidates[policy.current].name
        self.arrivals.add([row.seconds for row in rows])
        policy.learn(rows)
        if kind.menu.refresh(policy):
            log.debug("lines are uneven: %s", kind.menu.uneven)
        choice = policy.choose()
        least = min(row.seconds for row in rows)
        kind.every = max(1, min(_MOST_CALLS, int(_EXCHANGE / (_EXCHANGE_SHARE * max(least, 1e-9)))))
        self._elapsed += (min(row.outside + row.window for row in rows) + least) * kind.every
        self._plan_probe(policy)
        if choice is not None:
            self._note(kind, before, policy.candidates[choice.index].name, choice.reason)

    def _note(self, kind: _Kind, before: str, after: str, reason: str) -> None:
        switch = Switch(
            self._calls, time.time(), kind.nbytes, before, after, reason, self.estimates.slowest()
        )  # fmt: skip
        self.history.append(switch)
        log.log(logging.INFO if self._comm.rank == 0 else logging.DEBUG, "%s: %s", self._comm.name, switch)
        self.marks.add(f"ringleader:adaptive {before} -> {after}")

    # ----------------------------------------------------------------------------------------------------- probing

    def _plan_probe(self, policy: Policy) -> None:
        """A probe is due if nothing has told the bandwidth for a while and a better liked format may be right again."""
        self._probe = 0
        liked = policy.candidates[policy.current].preference == 0
        if not self._network or liked or self.estimates.age < _STALE:
            return
        n = self._comm.size
        afford = self._probe_share * self._elapsed * self.estimates.slowest() * n / (2 * (n - 1))
        if afford >= n * _PROBE_LEAST:
            self._probe = min(int(afford), _PROBE_MOST)

    def _send_probe(self) -> None:
        """An all-reduce of nothing: what the links see of it is exchanged with the next call's numbers."""
        log.debug("probe of %d bytes", self._probe)
        with unseen(self._comm):
            self._comm.all_reduce(np.zeros(self._probe // 4, np.float32), algorithm="two_shot", wire="f32")
        self._probe, self._elapsed = 0, 0.0

    # ---------------------------------------------------------------------------------------------------- the rest

    def explain(self) -> str:
        """What is expected of each candidate, for each kind of call so far, as text.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     rl.adapt.AdaptiveAllReduce(comm).explain()
        'lines: 9600 Mbit/s'
        """
        lines = ["lines: " + ", ".join(format_rate(rate) for rate in self.estimates.lines())]
        for (nbytes, dtype, op), kind in self._kinds.items():
            policy = kind.policy
            lines.append(
                f"{op} of {nbytes} bytes of {dtype}; outside {policy.outside * 1e3:.2f} ms, "
                f"window {policy.window * 1e3:.2f} ms"
            )
            for index, candidate in enumerate(policy.candidates):
                seconds = policy.seconds(index)
                mark = "->" if index == policy.current else "  "
                lines.append(
                    f"{mark} {candidate.name:40} {seconds * 1e3:9.3f} ms, step {policy.step(seconds) * 1e3:9.3f} ms"
                )
        return "\n".join(lines)

    def close(self) -> None:
        """End the thread and the communicator of ``overlap=True``; call it on every rank."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        if self._comm.state == "live":
            with suppress(PeerLost, AbortedError):  # nothing depends on it any more, and others may have left
                self._exchange.take()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> AdaptiveAllReduce:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self.close()
        except ClosedError:
            if error is None:
                raise


_LOSSY_OPS: Final = ("sum", "avg")


def _suitable(formats: Sequence[Format], dtype: str, op: str) -> tuple[Format, ...]:
    """The formats that such a call can have."""
    floats = dtype in ("float16", "bfloat16", "float32", "float64")
    return tuple(
        each
        for each in formats
        if each.lossless
        or (
            op in _LOSSY_OPS
            and ((floats and each.compressor is not None) or (dtype == "float32" and not each.compressor))
        )
    )
