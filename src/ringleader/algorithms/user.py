"""Algorithms of your own: a function that returns a schedule, or a file, registered under a name.

They are then what the built-in ones are: a call's ``algorithm=``, ``RINGLEADER_ALGO``, rules, ``explain`` and the
command line take them by name. What they cost is read off the schedule, and each schedule is proved before it runs.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ringleader.algorithms import registry
from ringleader.algorithms.registry import MAX_TRANSFERS, Parameter
from ringleader.errors import InvalidArgument, ScheduleError, VerificationError
from ringleader.schedule import Collective, Schedule, verify

__all__ = ["algorithm", "forget", "register_schedule"]

PROVED = (2, 3, 4)
"""Numbers of ranks for which an algorithm is proved when it is registered."""
_CACHED = 64
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_OWN_ARGUMENTS = ("n", "root", "nodes")


def algorithm(
    name: str,
    collective: str,
    *,
    ranks: Collection[int] | Callable[[int], bool] | None = None,
    summary: str = "",
    reference: str = "its author",
    parameters: tuple[Parameter, ...] = (),
    prove: Collection[int] = PROVED,
) -> Callable[[Callable[..., Schedule]], Callable[..., Schedule]]:
    """Register the decorated function as an algorithm.

    Parameters
    ----------
    name
        Lower case letters, digits, ``_``, ``-`` and ``.``; new within its collective.
    collective
        What it does, e.g. ``"all_reduce"``.
    ranks
        The numbers of ranks that it is for: a set, or a function from a number to a truth value. Default: those for
        which the function does not raise `InvalidArgument`.
    summary, reference
        One line each, for the lists. Default: the docstring's first line.
    parameters
        What a spec may set (``name:key=value``). Default: the function's keywords that have an integer as default.
    prove
        Numbers of ranks for which it is proved now; all others are when they are first used.

    The function is called as ``f(n)``, with a keyword ``root`` if it has one (a rooted collective's must), with the
    parameters, and with ``nodes`` (a tuple with the node of each rank, or None) if it has such a keyword. It must be
    pure: on every rank the same schedule.

    Raises
    ------
    InvalidArgument
        A name that is taken or malformed, an unknown collective, or a function without the arguments that it needs.
    VerificationError
        A schedule does not do what its collective promises; the message says what is wrong.

    Examples
    --------
    >>> import ringleader as rl
    >>> @rl.algorithm("tutorial_exchange", "all_reduce")
    ... def exchange(n):
    ...     b = rl.schedule.Builder("all_reduce", n, chunks=1)
    ...     for rank in range(n):
    ...         for other in range(n):
    ...             if other != rank:
    ...                 b.send(0, src=other, src_chunk=0, dst=rank, reduce=True)
    ...     return b.build()
    >>> rl.algorithms.build("all_reduce", "tutorial_exchange", 4)
    <Schedule 'tutorial_exchange': all_reduce, n=4, chunks=1, steps=1, transfers=12, channels=1>
    >>> rl.algorithms.forget("all_reduce", "tutorial_exchange")
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"algorithm name {name!r}: expected a small letter, then small letters, digits, _ - .")
    registry.names(collective)  # raises if there is no such collective

    def register(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
        entry = _Entry(name, collective, function, ranks, parameters)

        def built(n: int, root: int = 0, **arguments: Any) -> Schedule:
            return entry.build(n, root, **arguments)

        built.__doc__ = inspect.getdoc(function)
        first_line = (inspect.getdoc(function) or f"{name}, defined by the user").splitlines()[0]
        registry.algorithm(
            name,
            collective,
            summary=summary or first_line,
            reference=reference,
            cost="read off its schedule",
            steps=entry.steps,
            volume=entry.volume,
            transfers=entry.transfers,
            parameters=entry.parameters,
            limit=entry.limit,
            needs_layout="nodes" in entry.accepts,
        )(built)
        try:
            for n in prove:
                if not entry.refused(n):
                    entry.build(n)
        except BaseException:
            forget(collective, name)
            raise
        return function

    return register


def register_schedule(schedule: Schedule, name: str = "", reference: str = "a file") -> str:
    """Register one schedule as an algorithm for exactly its number of ranks.

    Parameters
    ----------
    schedule
        Any schedule; it is proved.
    name
        Default: the schedule's own, with everything that a name cannot have made ``_``.

    Returns
    -------
    str
        The name.

    Raises
    ------
    InvalidArgument, VerificationError
        As `algorithm`.
    """
    name = name or _name_from(schedule.name)
    collective = schedule.collective.value

    def fixed(n: int, root: int = 0) -> Schedule:
        return schedule.with_root(root) if schedule.collective.rooted else schedule

    summary = f"for {schedule.n} ranks: {schedule.steps} steps, {schedule.transfers} transfers"
    decorate = algorithm(
        name, collective, ranks=(schedule.n,), summary=summary, reference=reference, prove=(schedule.n,)
    )
    decorate(fixed)
    return name


def forget(collective: str, name: str) -> None:
    """Remove a user's algorithm, so that another may have its name. Communicators keep the plans that they have made.

    Raises
    ------
    InvalidArgument
        There is none of this name, or it is a built-in one.
    """
    entry = registry.get(collective, name)
    if not isinstance(getattr(entry.limit, "__self__", None), _Entry):
        raise InvalidArgument(f"{collective} algorithm {name!r} is built in; only users' algorithms can be removed")
    registry.remove(collective, entry.name)


class _Entry:
    """A user's function as the registry wants it: called uniformly, proved, costed. Results are remembered."""

    def __init__(
        self,
        name: str,
        collective: str,
        function: Callable[..., Schedule],
        ranks: Collection[int] | Callable[[int], bool] | None,
        parameters: tuple[Parameter, ...],
    ) -> None:
        self.full_name = f"{collective}/{name}"
        self.collective = Collective(collective)
        self.function = function
        self.ranks = ranks
        try:
            signature = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise InvalidArgument(f"algorithm {self.full_name}: {function!r} is not a function of n") from None
        self.accepts = {key for key in _OWN_ARGUMENTS if key in signature}
        self.parameters = parameters or tuple(
            Parameter(key, p.default, key)
            for key, p in signature.items()
            if key not in _OWN_ARGUMENTS and type(p.default) is int
        )
        known = {*_OWN_ARGUMENTS, *(parameter.name for parameter in self.parameters)}
        surplus = [key for key, p in signature.items() if key not in known and p.default is p.empty and p.kind < 2]
        needed = ["n", *(["root"] if self.collective.rooted else [])]
        if surplus or any(key not in signature for key in needed):
            raise InvalidArgument(
                f"algorithm {self.full_name}: the function's arguments are {', '.join(signature) or 'none'}; expected "
                f"{' and '.join(needed)}, and for each parameter a keyword with an integer as default"
            )
        self.made = functools.lru_cache(maxsize=_CACHED)(self._made)

    def build(self, n: int, root: int = 0, **arguments: Any) -> Schedule:
        """The proved schedule, or the error that says why there is none."""
        made = self.made(n, root, tuple(sorted(arguments.items())))
        if isinstance(made, Schedule):
            return made
        raise type(made)(str(made))

    def _made(
        self, n: int, root: int, arguments: tuple[tuple[str, Any], ...]
    ) -> Schedule | InvalidArgument | VerificationError:
        """`_make`, with an error as value, so that it is remembered too: it may have taken long to find."""
        try:
            return self._make(n, root, arguments)
        except (InvalidArgument, VerificationError) as error:
            return error

    def _make(self, n: int, root: int, arguments: tuple[tuple[str, Any], ...]) -> Schedule:
        where = f"algorithm {self.full_name} over n={n} ranks"
        keywords = dict(arguments)
        if "root" in self.accepts:
            keywords["root"] = root
        schedule = self.function(n, **keywords)
        if not isinstance(schedule, Schedule):
            raise VerificationError(f"{where} returned {type(schedule).__name__}; expected a Schedule")
        if schedule.collective is not self.collective or schedule.n != n or schedule.root != root:
            expected = f"{self.collective} with n={n} and root={root}"
            raise VerificationError(f"{where} returned {schedule!r}; expected {expected}")
        if schedule.transfers > MAX_TRANSFERS:
            raise InvalidArgument(f"{where} needs {schedule.transfers} transfers; at most {MAX_TRANSFERS}")
        try:
            report = verify(schedule)
        except ScheduleError as error:
            raise VerificationError(f"{where}: {error}") from None
        if not report.ok:
            raise VerificationError(f"{where} is wrong: {'; '.join(report.violations)}")
        return schedule

    def refused(self, n: int, **arguments: Any) -> str:
        """Why there is no schedule for n ranks, or nothing."""
        allowed = True if self.ranks is None else self.ranks(n) if callable(self.ranks) else n in self.ranks
        if not allowed:
            known = "" if self.ranks is None or callable(self.ranks) else f" {', '.join(map(str, sorted(self.ranks)))}"
            return f"it is for other numbers of ranks{':' if known else ''}{known}"
        try:
            self.build(n, **arguments)
        except InvalidArgument as error:
            return str(error)
        return ""

    def limit(self, n: int, **arguments: Any) -> str:
        """`refused`, or what is wrong with the schedule: then it is not chosen, and asking for it is an error."""
        try:
            return self.refused(n, **arguments)
        except VerificationError as error:
            return str(error)

    def steps(self, n: int, **arguments: Any) -> float:
        """Steps of the schedule; infinite if there is none."""
        return float("inf") if self.limit(n, **arguments) else float(self.build(n, **arguments).steps)

    def transfers(self, n: int, **arguments: Any) -> int:
        """Rows of the schedule; none if there is none."""
        return 0 if self.limit(n, **arguments) else self.build(n, **arguments).transfers

    def volume(self, n: int, **arguments: Any) -> float:
        """For each step what the busiest rank sends or receives, summed over the steps; in units of the whole data."""
        if self.limit(n, **arguments):
            return float("inf")
        schedule = self.build(n, **arguments)
        table = schedule.table[schedule.table["src_rank"] != schedule.table["dst_rank"]]
        share = table["count"] / schedule.chunks
        cells = [
            np.bincount(table["step"] * np.int64(n) + table[f"{end}_rank"], share, minlength=schedule.steps * n)
            for end in ("src", "dst")
        ]
        return float(np.maximum(*cells).reshape(schedule.steps, n).max(axis=1, initial=0).sum())


def _name_from(text: str) -> str:
    plain = re.sub(r"[^a-z0-9_.-]+", "_", text.lower()).strip("_.-")[:100]
    return plain if plain and plain[0].isalpha() else f"file_{plain}".rstrip("_")
