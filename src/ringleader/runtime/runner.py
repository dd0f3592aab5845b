"""How a prepared call is run, and the short way for calls that repeat an earlier one.

A program calls the same collective on the same kind of array over and over. The short way finds the plan with one
look-up by what decides everything: operation, operator, algorithm, and the types and shapes of plain contiguous
arrays. It takes about a microsecond; preparing a call from scratch takes ten. For NumPy arrays and synchronous calls
the native `_core.Lane`, which a communicator inherits from, does the same in a twentieth of that: its `_core.Verb`
objects stand before the methods here, and call them when they do not know a call.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from numpy import ndarray

from ringleader import _core, errors
from ringleader.runtime import arrays
from ringleader.runtime.arrays import numpy_address
from ringleader.runtime.calls import Call
from ringleader.runtime.plans import PLAN_CACHE_SIZE, Choice, Planner
from ringleader.runtime.work import Work

__all__ = ["MISS", "Runner", "seconds", "simple_address"]


def seconds(timeout: float | None) -> float:
    """A timeout for the core: 0 stands for the communicator's own.

    Raises
    ------
    InvalidArgument
        Not a positive number.
    """
    if timeout is None:
        return 0.0
    if not timeout > 0:
        raise errors.InvalidArgument(
            f"timeout is {timeout!r}; expected a positive number of seconds, or None for the default"
        )
    return float(timeout)


# ``torch.Tensor`` once a tensor has been seen: exact type, so that no subclass's own behaviour is bypassed.
_TENSOR_TYPES: set[Any] = set()


# What is asked for, apart from the arrays: verb, operator, root, algorithm, wire format. What a verb does not take
# stands as the native lane sees a call that does not give it: `NO_OP`, 0, None. Of a part of a compressed call also the
# digest of its description, see `compressed.described`.
Head: TypeAlias = tuple[str, Any, Any, str | None, str | None] | tuple[str, Any, Any, str | None, str | None, str]
NO_OP: Final = "sum"
MISS: Final = object()


class _Known(NamedTuple):
    """A plan for calls of one kind; `writes`: this rank gets a result; `distance`: see `calls.Call`."""

    plan: _core.Plan
    choice: Choice
    writes: bool
    distance: int | None


def simple_address(x: Any) -> int:
    """Address of a plain, contiguous, writable array; -1 for anything that needs more thought."""
    kind = type(x)
    if kind is ndarray:
        return numpy_address(x) if x.flags.carray else -1
    if kind in _TENSOR_TYPES and x.is_cpu and x.is_contiguous() and not x.is_neg() and not x.is_conj():
        return int(x.data_ptr()) or -1  # null: it has no elements, or no memory
    return -1


def _key(head: Head, x: Any, out: Any) -> tuple[Any, ...]:
    if out is None:
        return (head, type(x), x.dtype, x.shape)
    return (head, type(x), x.dtype, x.shape, type(out), out.dtype, out.shape)


class Runner(_core.Lane):
    """Runs prepared calls of one communicator."""

    # Verbs and the parameters that they take by position, in order; the place in the table is the native lane's code.
    VERBS: ClassVar[dict[str, tuple[str, ...]]] = {
        "all_reduce": ("x", "op"),
        "reduce_scatter": ("x", "out", "op"),
        "all_gather": ("x", "out"),
        "broadcast": ("x", "root"),
        "reduce": ("x", "root", "op"),
        "gather": ("x", "root", "out"),
        "scatter": ("x", "root", "out"),
        "all_to_all": ("x", "out"),
        "barrier": ("timeout",),
    }

    _planner: Planner
    _known: OrderedDict[tuple[Any, ...], _Known]
    _barriers: dict[str | None, Call]
    rank: int
    size: int

    def _check_usable(self) -> None:
        raise NotImplementedError

    @property
    def planner(self) -> Planner:
        """The cache of plans; for this package only."""
        return self._planner

    def _run(
        self, call: Call, async_op: bool, timeout: float | None, known_by: tuple[Head, Any, Any] | None = None
    ) -> Any:
        """Run or start a prepared call; later ones that are `known_by` the same take the short way."""
        self._last_choice = call.choice
        limit = seconds(timeout)
        if known_by is not None and not call.loads and not call.stores:
            self._remember(*known_by, call)
        if not async_op:
            return call.run(limit)
        return Work(call.start(limit), call.result)

    def _repeat(self, head: Head, x: Any, out: Any, async_op: bool, timeout: float | None) -> Any:
        """The short way: a call like an earlier one, on contiguous memory. Returns `MISS` if this is none.

        Invariant: whatever the long way checks follows from the key (types, shapes, operator, root, algorithm), or is
        checked here too (contiguous, writable, not overlapping); the state of the communicator is checked by the core.
        """
        ptr = to = simple_address(x)
        if out is not None:
            to = simple_address(out)
        if ptr == -1 or to == -1:
            return MISS
        known = self._known.get(_key(head, x, out))
        if known is None:
            return MISS
        if out is not None and ptr < to + out.nbytes and to < ptr + x.nbytes and to - ptr != known.distance:
            return MISS
        self._last_choice = known.choice
        result = (x if out is None else out) if known.writes else None
        if not known.writes:
            to = 0
        if async_op:
            return Work(known.plan.start(ptr, to, seconds(timeout), (x, out)), result)
        if type(x) is ndarray:
            self._teach(head, x, out, known)  # the native lane has forgotten the call, or cannot take it
        known.plan.run(ptr, to, seconds(timeout))
        return result

    def _remember(self, head: Head, x: Any, out: Any, call: Call) -> None:
        """Let calls like this one take the short way: first in, first out, bounded like the cache of plans."""
        if type(x) is arrays.torch_tensor_type():
            _TENSOR_TYPES.add(type(x))
        known = _Known(call.plan, call.choice, call.result is not None, call.distance)
        # Only a call without arrays (a barrier) is run on this one's memory; a user's is not kept for later calls.
        self._teach(head, x, out, known, call.in_ptr, call.keep if x is None and out is None else None)
        if x is None or simple_address(x) == -1 or (out is not None and simple_address(out) == -1):
            return
        while len(self._known) >= PLAN_CACHE_SIZE:
            with suppress(KeyError):
                self._known.popitem(last=False)
        self._known[_key(head, x, out)] = known

    def _teach(self, head: Head, x: Any, out: Any, known: _Known, in_ptr: int = 0, keep: Any = None) -> None:
        """Let the native lane run calls like this one; it knows of no descriptions."""
        if len(head) > 5:
            return
        verb, *words = head
        plan, choice, writes, distance = known
        self._learn(_CODES[verb], tuple(words), x, out, plan, choice, writes, distance, in_ptr, keep)

    def _forget_calls(self) -> None:
        """Let every call take the long way again."""
        self._forget()
        self._known.clear()
        self._barriers.clear()


_CODES: Final = {name: code for code, name in enumerate(Runner.VERBS)}
