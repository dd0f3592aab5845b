"""Persistent operations: check and plan once, run any number of times on the same arrays."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ringleader import _core, errors
from ringleader.runtime import calls
from ringleader.runtime.calls import Call
from ringleader.runtime.collectives import Collectives
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.plans import Choice
from ringleader.runtime.runner import seconds
from ringleader.runtime.wire import Wire, parse_wire
from ringleader.runtime.work import Work

__all__ = ["PersistentCollectives", "PersistentOperation"]


class PersistentOperation(_core.Operation):
    """A collective bound to its arrays. Call it to run it; the arrays' content may change between runs, not the arrays.

    Examples
    --------
    >>> import numpy as np, ringleader as rl
    >>> with rl.init(rank=0, size=1) as comm:
    ...     x = np.zeros(2)
    ...     op = comm.all_reduce_init(x, op="sum")
    ...     for step in range(3):
    ...         x += 1
    ...         _ = op()
    ...     x
    array([3., 3.])
    """

    __slots__ = ("_call", "_last", "_timeout")

    def __init__(self, call: Call, timeout: float) -> None:
        self._call = call
        self._timeout = timeout
        self._last: _core.Work | None = None
        if not call.loads and not call.stores:
            self._bind(call.plan, call.in_ptr, call.out_ptr, call.result, timeout)

    def _run(self) -> Any:
        """What calling does where elements must be copied before or after."""
        self._settle()
        return self._call.run(self._timeout)

    def _settle(self) -> None:
        """Wait for an earlier run that may still use the temporaries; who waits for its work gets to know its error."""
        if self._last is not None:
            with suppress(errors.RingleaderError):
                self._last.wait()
            self._last = None

    def start(self) -> Work:
        """Start asynchronously; the arrays must be left alone until the `Work` is complete."""
        call = self._call
        self._settle()
        work = call.start(self._timeout)
        if call.loads or call.stores:
            self._last = work
        return Work(work, call.result)

    @property
    def result(self) -> Any:
        """The array that each run leaves the result in (None where this rank gets none)."""
        return self._call.result

    @property
    def choice(self) -> Choice:
        """The algorithm that runs, and why."""
        return self._call.choice


class PersistentCollectives(Collectives):
    """For every collective ``name``, ``name_init`` with the same arguments makes a `PersistentOperation`."""

    def _persistent(self, call: Call, timeout: float | None) -> PersistentOperation:
        return PersistentOperation(call, seconds(timeout))

    def all_reduce_init(
        self,
        x: Any,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        wire: Wire = None,
        timeout: float | None = None,
    ) -> PersistentOperation:
        """Prepare `all_reduce` on these arrays for many runs.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     op = comm.all_reduce_init(np.array([1, 2]), op="max")
        ...     op()
        array([1, 2])
        """
        self._check_usable()
        return self._persistent(calls.all_reduce(self, x, op, out, algorithm, parse_wire(wire)), timeout)

    def reduce_init(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        wire: Wire = None,
        timeout: float | None = None,
    ) -> PersistentOperation:
        """Prepare `reduce` on these arrays for many runs."""
        self._check_usable()
        return self._persistent(calls.reduce(self, x, root, op, out, algorithm, parse_wire(wire)), timeout)

    def broadcast_init(
        self, x: Any, root: int = 0, *, algorithm: str | None = None, wire: Wire = None, timeout: float | None = None
    ) -> PersistentOperation:
        """Prepare `broadcast` on this array for many runs."""
        self._check_usable()
        return self._persistent(calls.broadcast(self, x, root, algorithm, parse_wire(wire)), timeout)

    def all_gather_init(
        self, x: Any, out: Any = None, *, algorithm: str | None = None, wire: Wire = None, timeout: float | None = None
    ) -> PersistentOperation:
        """Prepare `all_gather` on these arrays for many runs; without `out`, a result array is made once."""
        self._check_usable()
        return self._persistent(calls.all_gather(self, x, out, algorithm, parse_wire(wire)), timeout)

    def reduce_scatter_init(
        self,
        x: Any,
        out: Any = None,
        op: ReduceOp | str = "sum",
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        timeout: float | None = None,
    ) -> PersistentOperation:
        """Prepare `reduce_scatter` on these arrays for many runs; without `out`, a result array is made once."""
        self._check_usable()
        return self._persistent(calls.reduce_scatter(self, x, out, op, algorithm, parse_wire(wire)), timeout)

    def gather_init(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        timeout: float | None = None,
    ) -> PersistentOperation:
        """Prepare `gather` on these arrays for many runs; without `out`, the root's result array is made once."""
        self._check_usable()
        return self._persistent(calls.gather(self, x, root, out, algorithm, parse_wire(wire)), timeout)

    def scatter_init(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        timeout: float | None = None,
    ) -> PersistentOperation:
        """Prepare `scatter` on these arrays for many runs."""
        self._check_usable()
        return self._persistent(calls.scatter(self, x, root, out, algorithm, parse_wire(wire)), timeout)

    def all_to_all_init(
        self, x: Any, out: Any = None, *, algorithm: str | None = None, wire: Wire = None, timeout: float | None = None
    ) -> PersistentOperation:
        """Prepare `all_to_all` on these arrays for many runs; without `out`, a result array is made once."""
        self._check_usable()
        return self._persistent(calls.all_to_all(self, x, out, algorithm, parse_wire(wire)), timeout)

    def barrier_init(self, *, algorithm: str | None = None, timeout: float | None = None) -> PersistentOperation:
        """Prepare `barrier` for many runs."""
        self._check_usable()
        return self._persistent(calls.barrier(self, algorithm), timeout)
