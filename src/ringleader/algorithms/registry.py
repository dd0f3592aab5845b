"""The registry: one decorator makes an algorithm of a function that returns a schedule, the library's own or a user's.

An algorithm is named by a *spec*, ``name`` or ``name:key=value:key=value``, for example ``ring:segments=4`` (see
`parameter`). The name is unique within its collective. A spec is parsed once, into a `Spec`. `build` turns it, with n
and root, into a schedule and remembers the last ones. What an algorithm costs is read off its schedule (`terms`).

Some algorithms (hierarchical ones, tori) depend on the node layout: their function has a keyword ``nodes``. `build`,
`check` and `Algorithm.terms` take the node of every rank; a communicator always gives its own. It is not part of the
spec. Where such an algorithm gets neither a layout nor a parameter that says one, it divides the ranks by itself, so
that it can be looked at.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ringleader._names import did_you_mean, unknown
from ringleader.algorithms.parameter import Parameter, Value, parameter_of, split_spec
from ringleader.errors import InvalidArgument, ScheduleError, VerificationError
from ringleader.schedule import Collective, Schedule, verify

__all__ = [
    "COLLECTIVES", "MAX_TRANSFERS", "Algorithm", "Spec", "Terms", "algorithm", "algorithm_hash", "all_algorithms",
    "build", "canonical", "check", "forget", "get", "name_of", "names", "parse_spec", "register_schedule", "terms",
]  # fmt: skip

Nodes: TypeAlias = tuple[int, ...] | None
Maker: TypeAlias = Callable[..., Schedule]

COLLECTIVES: tuple[str, ...] = tuple(collective.value for collective in Collective)

# A transfer takes 29 bytes in the table and more once lowered: this many are about as much as a first call may cost.
MAX_TRANSFERS = 5_000_000
_CACHED_SCHEDULES = 64
# Where a closed form says that there are more, it is believed: making them takes longer than a choice may.
_DERIVED = 1 << 17
PER_RANK = 64  # transfers for each rank and segment, at most, of algorithms without a closed form
_PROVED = (2, 3, 4)
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_HOME = os.path.join(os.path.dirname(__file__), "")  # whose algorithms are the library's
_OWN_ARGUMENTS = ("n", "root", "nodes")


class Terms(NamedTuple):
    """What a schedule costs.

    Attributes
    ----------
    steps
        The latency term.
    volume
        The bandwidth term, in units of the payload (all bytes of ``data``): for each step the bytes through the busiest
        rank in its busier direction, summed over the steps.
    transfers
        Rows of the table; in a closed form at least as many.
    """

    steps: float
    volume: float
    transfers: int


def terms(schedule: Schedule) -> Terms:
    """Read the terms off a schedule.

    Examples
    --------
    >>> terms(build("all_reduce", "ring", 4))
    Terms(steps=6, volume=1.5, transfers=24)
    """
    moves = schedule.table[schedule.table["src_rank"] != schedule.table["dst_rank"]]
    share, step = moves["count"] / schedule.chunks, moves["step"].astype(np.int64)
    busiest = np.zeros(schedule.steps)
    for end in ("src_rank", "dst_rank"):
        cell, index = np.unique(step * schedule.n + moves[end], return_inverse=True)
        np.maximum.at(busiest, cell // schedule.n, np.bincount(index, share))
    return Terms(schedule.steps, float(busiest.sum()), schedule.transfers)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One entry of the registry: what `algorithm` was given, and what the function says of itself.

    `needs_layout`: the schedule depends on which ranks share a node. `own`: it was made by a user, so each of its
    schedules is proved before it is used; the library's are proved by its tests.
    """

    collective: str
    name: str
    function: Maker
    summary: str
    reference: str
    cost: str
    aliases: Mapping[str, str]
    closed: Callable[..., Terms] | None
    limit: Callable[..., str] | None
    ranks: Collection[int] | Callable[[int], bool] | None
    described: tuple[Parameter, ...]
    own: bool

    @property
    def full_name(self) -> str:
        """``collective/name``."""
        return f"{self.collective}/{self.name}"

    @functools.cached_property
    def _keywords(self) -> Mapping[str, inspect.Parameter]:
        try:
            try:
                return inspect.signature(self.function, eval_str=True).parameters
            except NameError:  # an annotation names what is not there at run time: the defaults have to do
                return inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            raise InvalidArgument(f"algorithm {self.full_name}: {self.function!r} is not a function of n") from None

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a spec may set: the keywords of the function, by annotation and default."""
        keys = {key: p for key, p in self._keywords.items() if key not in _OWN_ARGUMENTS and p.default is not p.empty}
        found = (parameter_of(key, p.default, p.annotation) for key, p in keys.items())
        return self.described or tuple(parameter for parameter in found if parameter is not None)

    @functools.cached_property
    def accepts(self) -> frozenset[str]:
        """Which of ``root`` and ``nodes`` the function takes.

        Raises
        ------
        InvalidArgument
            It lacks an argument that it needs, or has one that nothing can be given for.
        """
        known = {*_OWN_ARGUMENTS, *self.defaults}
        surplus = [key for key, p in self._keywords.items() if key not in known and p.default is p.empty and p.kind < 2]
        needed = ["n", *(["root"] if Collective(self.collective).rooted else [])]
        if surplus or any(key not in self._keywords for key in needed):
            raise InvalidArgument(
                f"algorithm {self.full_name}: the function's arguments are {', '.join(self._keywords) or 'none'}; "
                f"expected {' and '.join(needed)}, and for each parameter a keyword with an integer as default, or an "
                "annotation that says what it is"
            )
        return frozenset(self._keywords) & {"root", "nodes"}

    @property
    def needs_layout(self) -> bool:
        """Whether the function has a keyword ``nodes``."""
        return "nodes" in self.accepts

    @property
    def defaults(self) -> dict[str, Value]:
        """Every parameter with its default."""
        return {parameter.name: parameter.default for parameter in self.parameters}

    def terms(self, n: int, parameters: Mapping[str, Value], nodes: Sequence[int] | None = None) -> Terms:
        """What the schedule over n ranks costs, from root 0; read off it, unless it is large and has a closed form.

        `nodes` is the node of each rank, shape (n,); only algorithms with `needs_layout` look at it.

        Raises
        ------
        InvalidArgument
            There is no such schedule, or it does not do what it promises.
        """
        if n == 1:  # one rank alone communicates nothing
            return Terms(0, 0.0, 0)
        layout = numbered(nodes) if self.needs_layout else None
        if self.closed is not None:
            told = self.closed(n, **parameters, **({"nodes": layout} if self.needs_layout else {}))
            if told.transfers > _DERIVED:
                return told
        return _derived(Spec.of(self, parameters), n, layout)

    def transfers(self, n: int, parameters: Mapping[str, Value], nodes: Sequence[int] | None = None) -> int:
        """At least as many transfers as the schedule has; without making large ones where that is known otherwise."""
        layout = numbered(nodes) if self.needs_layout else None
        if n > 1 and self.closed is not None:
            return self.closed(n, **parameters, **({"nodes": layout} if self.needs_layout else {})).transfers
        segments = parameters.get("segments", 1)
        if isinstance(segments, int) and segments > 1 and n * segments > _DERIVED:
            return segments * self.terms(n, {**parameters, "segments": 1}, nodes).transfers
        return self.terms(n, parameters, nodes).transfers

    def refusal(self, n: int, parameters: Mapping[str, Value], nodes: Sequence[int] | None = None) -> str:
        """Why these parameters are impossible for n ranks; empty if they are possible, or if only building can tell."""
        if self.ranks is not None and not (self.ranks(n) if callable(self.ranks) else n in self.ranks):
            listed = "" if callable(self.ranks) else f": {', '.join(map(str, sorted(self.ranks)))}"
            return f"it is for other numbers of ranks{listed}"
        if self.limit is None:
            return ""
        return self.limit(n, **parameters, **({"nodes": numbered(nodes)} if self.needs_layout else {}))

    def make(self, n: int, root: int, parameters: Mapping[str, Value], nodes: Nodes) -> Schedule:
        """The schedule, checked and, of a user's algorithm, proved."""
        given = {"root": root, "nodes": nodes}
        where = f"algorithm {self.full_name} over n={n} ranks"
        made = self.function(n, **{key: given[key] for key in self.accepts}, **parameters)
        if isinstance(made, Schedule) and made.transfers > MAX_TRANSFERS:
            raise InvalidArgument(_too_many(made.transfers, parameters))
        if not self.own:
            return made
        if not isinstance(made, Schedule):
            raise VerificationError(f"{where} returned {type(made).__name__}; expected a Schedule")
        if made.collective != self.collective or made.n != n or made.root != root:
            expected = f"{self.collective} with n={n} and root={root}"
            raise VerificationError(f"{where} returned {made!r}; expected {expected}")
        try:
            report = verify(made)
        except ScheduleError as error:
            raise VerificationError(f"{where}: {error}") from None
        if not report.ok:
            raise VerificationError(f"{where} is wrong: {'; '.join(report.violations)}")
        return made


@dataclass(frozen=True)
class Spec:
    """A spec, parsed: an algorithm with the values of all its parameters. Unpacks to these two.

    `text` is its one canonical form: no alias, parameters in their declared order, defaults left out.
    """

    algorithm: Algorithm
    text: str
    values: Mapping[str, Value] = field(compare=False, repr=False)

    @classmethod
    def of(cls, algorithm: Algorithm, values: Mapping[str, Value]) -> Spec:
        """The spec that says these values."""
        changed = [p for p in algorithm.parameters if values[p.name] != p.default]
        text = ":".join([algorithm.name, *(f"{p.name}={p.text(values[p.name])}" for p in changed)])
        return cls(algorithm, text, MappingProxyType(dict(values)))

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.algorithm.name

    def __iter__(self) -> Iterator[Any]:
        return iter((self.algorithm, self.values))

    def __str__(self) -> str:
        return self.text


_registry: dict[str, dict[str, Algorithm]] = {collective: {} for collective in COLLECTIVES}


def algorithm(
    name: str,
    collective: str,
    *,
    summary: str = "",
    reference: str = "its author",
    cost: str = "read off its schedule",
    aliases: Sequence[str] = (),
    closed: Callable[..., Terms] | None = None,
    limit: Callable[..., str] | None = None,
    ranks: Collection[int] | Callable[[int], bool] | None = None,
    parameters: tuple[Parameter, ...] = (),
    prove: Collection[int] = _PROVED,
) -> Callable[[Maker], Maker]:
    """Register the decorated function as an algorithm.

    The function is called with ``n``, with ``root`` and ``nodes`` (a tuple with the node of each rank, or None) if it
    has such keywords (a rooted collective's must have ``root``), and with its parameters: the other keywords, by
    annotation and default (see `parameter`). It must be pure: on every rank the same schedule.

    Parameters
    ----------
    name
        Lower case letters, digits, ``_``, ``-`` and ``.``; new within its collective.
    collective
        What it does, e.g. ``"all_reduce"``.
    summary, reference
        One line each, for the lists; the reference is the paper or text that it is known from. Default of the
        summary: the docstring's first line.
    cost
        The terms as a formula, for the lists.
    aliases
        Other names that users may know it by, with parameters if they mean some: ``segmented_ring:segments=8``.
    closed
        ``closed(n, **parameters) -> Terms`` for n >= 2: what it costs, where its schedule is too large to be made for
        the question. Where both are at hand, the schedule decides.
    limit
        ``limit(n, **parameters)``: why these parameters are impossible for n ranks; empty if they are possible.
    ranks
        The numbers of ranks that it is for: a set, or a function from a number to a truth value. Default: those for
        which the function does not raise `InvalidArgument`.
    parameters
        Instead of those that the function's annotations describe.
    prove
        Numbers of ranks for which a user's algorithm is proved now; all others are when they are first used.

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
    entries = _entries(collective)
    others = {alias: settings for alias, _, settings in (each.partition(":") for each in aliases)}

    def register(function: Maker) -> Maker:
        for taken in (name, *others):
            if taken in entries or any(taken in entry.aliases for entry in entries.values()):
                raise InvalidArgument(f"{collective} already has an algorithm {taken!r}; choose another name")
        first_line = summary or (inspect.getdoc(function) or f"{name}, defined by the user").splitlines()[0]
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        own = file == __file__ or not file.startswith(_HOME)  # those of `register_schedule` are a user's
        entry = Algorithm(
            str(collective), name, function, first_line, reference, cost, others, closed, limit,
            ranks, parameters, own,
        )  # fmt: skip
        if not own:
            entries[name] = entry
            function.__doc__ = _docstring(entry)
            return function
        _ = entry.accepts  # raises where it is no function of n and parameters
        entries[name] = entry
        try:
            for n in prove:
                made = None if entry.refusal(n, entry.defaults) else _build(Spec.of(entry, entry.defaults), n, 0, None)
                if isinstance(made, VerificationError):
                    raise made
        except BaseException:
            forget(collective, name)
            raise
        return function

    return register


def _docstring(entry: Algorithm) -> str:
    """The function's own docstring with what the registry knows."""
    own = inspect.getdoc(entry.function) or entry.summary
    returned = f"For {entry.collective}; cost {entry.cost} (see docs/algorithms.md)."
    return f"{own}\n\nReturns\n-------\nSchedule\n    {returned}\n\nReferences\n----------\n{entry.reference}"


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
    plain = re.sub(r"[^a-z0-9_.-]+", "_", schedule.name.lower()).strip("_.-")[:100]
    name = name or (plain if plain and plain[0].isalpha() else f"file_{plain}".rstrip("_"))

    def fixed(n: int, root: int = 0) -> Schedule:
        return schedule.with_root(root) if schedule.collective.rooted else schedule

    summary = f"for {schedule.n} ranks: {schedule.steps} steps, {schedule.transfers} transfers"
    only = (schedule.n,)
    algorithm(name, schedule.collective.value, ranks=only, summary=summary, reference=reference, prove=only)(fixed)
    return name


def forget(collective: str, name: str) -> None:
    """Remove a user's algorithm, so that another may have its name. Communicators keep the plans that they have made.

    Raises
    ------
    InvalidArgument
        There is none of this name, or it is a built-in one.
    """
    entry = get(collective, name)
    if not entry.own:
        raise InvalidArgument(f"{collective} algorithm {name!r} is built in; only users' algorithms can be removed")
    del _entries(collective)[entry.name]
    for cache in (_parsed, _build, _derived):
        cache.cache_clear()


def _entries(collective: str) -> dict[str, Algorithm]:
    entries = _registry.get(str(collective))
    if entries is None:
        raise InvalidArgument(unknown("collective", str(collective), COLLECTIVES))
    return entries


def names(collective: str) -> tuple[str, ...]:
    """Return the names of a collective's algorithms, in alphabetical order.

    Examples
    --------
    >>> names("barrier")
    ('direct', 'dissemination', 'tree')
    """
    return tuple(sorted(_entries(collective)))


def all_algorithms() -> tuple[Algorithm, ...]:
    """Return every entry, ordered by collective and name."""
    return tuple(entries[name] for entries in _registry.values() for name in sorted(entries))


def get(collective: str, name: str) -> Algorithm:
    """Return the entry of a name or an alias (no parameters; case does not matter).

    Raises
    ------
    InvalidArgument
        No such collective or algorithm; the message lists the valid names.
    """
    entries = _entries(collective)
    wanted = name.strip().lower()
    for entry in entries.values():
        if wanted == entry.name or wanted in entry.aliases:
            return entry
    aliases = (alias for entry in entries.values() for alias in entry.aliases)
    raise InvalidArgument(unknown(f"{collective} algorithm", name, names(collective), also=aliases))


def parse_spec(collective: str, spec: str) -> Spec:
    """Parse a spec: its algorithm and the values of all parameters (defaults filled in).

    Raises
    ------
    InvalidArgument
        Unknown name, parameter or value; the message lists the valid ones.

    Examples
    --------
    >>> entry, values = parse_spec("all_reduce", "tree:segments=4")
    >>> entry.name, dict(values)
    ('double_binary_tree', {'segments': 4})
    """
    if not isinstance(spec, str):
        raise InvalidArgument(
            f"algorithm is {spec!r}; expected a name, one of {', '.join(names(collective))}, with parameters if any"
        )
    return _parsed(str(collective), spec)


@functools.lru_cache(maxsize=1024)
def _parsed(collective: str, spec: str) -> Spec:
    where = f"{collective} algorithm {spec!r}"
    name, *settings = split_spec(spec.lower(), where)
    entry = get(collective, name)
    known = {parameter.name: parameter for parameter in entry.parameters}
    implied = entry.aliases.get(name.strip(), "")
    values = entry.defaults
    # What an alias means comes first, so that what is given overrides it.
    for group in (implied.split(":") if implied else [], settings):
        given: set[str] = set()
        for setting in group:
            key, equals, text = (part.strip() for part in setting.partition("="))
            if key not in known or not equals:
                usage = ":".join([entry.name, *(f"{p.name}={p.values}" for p in entry.parameters)])
                question = did_you_mean(key, known)
                form = f"{question} The form is" if question else "; the form is"
                raise InvalidArgument(f"{where}: {setting!r} is not a parameter of {entry.name}{form} {usage!r}")
            if key in given:
                raise InvalidArgument(f"{where}: {key} is given twice; expected once")
            given.add(key)
            values[key] = known[key].parse(text, where, canonical)
    return Spec.of(entry, values)


def name_of(spec: str) -> str:
    """Return the algorithm's name in a spec.

    Examples
    --------
    >>> name_of("hierarchical:outer=ring(segments=4)")
    'hierarchical'
    """
    return spec.partition(":")[0].strip()


def canonical(collective: str, spec: str) -> str:
    """Return the one form of a spec: aliases resolved, parameters in their declared order, defaults left out.

    Examples
    --------
    >>> canonical("all_reduce", "Tree:segments=8"), canonical("all_reduce", "ring:segments=1")
    ('double_binary_tree:segments=8', 'ring')
    """
    return parse_spec(collective, spec).text


def check(collective: str, spec: str, n: int, root: int = 0, nodes: Sequence[int] | None = None) -> None:
    """Raise InvalidArgument, naming the limit, unless `build` can build this.

    Examples
    --------
    >>> check("all_reduce", "hierarchical:hosts=4+4", 9)
    Traceback (most recent call last):
    ...
    ringleader.errors.InvalidArgument: all_reduce 'hierarchical:hosts=4+4' over n=9 ranks: hosts=4+4 are 8 ranks
    """
    entry, values = parse_spec(collective, spec)
    if n < 1:
        raise InvalidArgument(f"{collective} over n={n} ranks; n must be at least 1")
    rooted = Collective(collective).rooted
    if not 0 <= root < (n if rooted else 1):
        expected = f"a rank of 0..{n - 1}" if rooted else f"0, because {collective} has no root"
        raise InvalidArgument(f"{collective} with root={root} over n={n} ranks; expected {expected}")
    if nodes is not None and len(nodes) != n:
        raise InvalidArgument(
            f"{collective} over n={n} ranks with nodes={list(nodes)!r}; expected a node for each rank"
        )
    problem = entry.refusal(n, values, nodes)
    try:
        if not problem and not _few(entry, n, values) and (rows := entry.transfers(n, values, nodes)) > MAX_TRANSFERS:
            problem = _too_many(rows, values)
    except InvalidArgument as error:
        problem = str(error)
    if problem:
        raise InvalidArgument(f"{collective} {spec!r} over n={n} ranks: {problem}")


def _few(entry: Algorithm, n: int, values: Mapping[str, Value]) -> bool:
    """Whether there cannot be too many transfers, so that nothing has to be made to count them.

    Of the library's algorithms those that are not made of others and have no closed form grow as n log n.
    """
    if entry.own or entry.closed is not None or any(parameter.of for parameter in entry.parameters):
        return False
    segments = values.get("segments", 1)
    return isinstance(segments, int) and PER_RANK * n * segments <= MAX_TRANSFERS


def _too_many(rows: int, values: Mapping[str, Value]) -> str:
    advice = "use fewer segments or another algorithm" if "segments" in values else "use another algorithm"
    return f"it needs {rows} transfers; at most {MAX_TRANSFERS}: {advice}"


def build(collective: str, spec: str, n: int, root: int = 0, nodes: Sequence[int] | None = None) -> Schedule:
    """Return the schedule of an algorithm. Schedules are immutable, so the last ones are kept and shared.

    Parameters
    ----------
    collective
        Name of a `ringleader.schedule.Collective`.
    spec
        ``name`` or ``name:key=value:...``.
    n
        Ranks, at least 1.
    root
        For broadcast, reduce, gather and scatter; 0 for the others.
    nodes
        Node of each rank, shape (n,), for algorithms that depend on it (`Algorithm.needs_layout`); None: not known.

    Raises
    ------
    InvalidArgument
        Unknown name or parameter (the valid ones are listed), a root out of range, parameters that do not fit n,
        or a schedule over the limit.

    Examples
    --------
    >>> build("all_reduce", "ring", 4).steps
    6
    """
    check(collective, spec, n, root, nodes)
    parsed = parse_spec(collective, spec)
    made = _build(parsed, n, root, numbered(nodes) if parsed.algorithm.needs_layout else None)
    if isinstance(made, Schedule):
        return made
    raise type(made)(str(made))


@functools.lru_cache(maxsize=_CACHED_SCHEDULES)
def _build(spec: Spec, n: int, root: int, nodes: Nodes) -> Schedule | InvalidArgument | VerificationError:
    """A schedule, or why there is none: remembered too, as it may have taken long to find."""
    try:
        return spec.algorithm.make(n, root, spec.values, nodes).with_name(spec.text)
    except (InvalidArgument, VerificationError) as error:
        return error


@functools.lru_cache(maxsize=4096)
def _derived(spec: Spec, n: int, nodes: Nodes) -> Terms:
    made = _build(spec, n, 0, nodes)
    if isinstance(made, Schedule):
        return terms(made)
    raise InvalidArgument(str(made))


def numbered(nodes: Sequence[int] | None) -> Nodes:
    """The nodes numbered 0, 1, ... in the order of their first ranks, so that equal layouts are equal."""
    return None if nodes is None else _renumbered(tuple(nodes))


@functools.lru_cache(maxsize=64)
def _renumbered(nodes: tuple[int, ...]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(int(node), len(numbers)) for node in nodes)


def algorithm_hash(full_name: str) -> int:
    """Return a 64-bit number for an algorithm's full name with parameters; the same in every process and release.

    Ranks compare it before they exchange data, so that two algorithms never meet in one operation.

    Examples
    --------
    >>> algorithm_hash("all_reduce/ring:segments=4") == algorithm_hash("all_reduce/ring:segments=4")
    True
    """
    return int.from_bytes(hashlib.blake2b(full_name.encode(), digest_size=8).digest(), "little")
