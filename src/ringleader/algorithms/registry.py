"""The registry: every algorithm under its field-standard name, with what it may be asked and what it costs.

An algorithm is named by a *spec*, ``name`` or ``name:key=value:key=value``, for example ``ring:segments=4`` (see
`parameter`). The name is unique within its collective. `build` turns (collective, spec, n, root) into a schedule and
remembers the last ones.

Some algorithms (hierarchical ones, tori) depend on the node layout: their entry says `needs_layout`. `build`, `check`
and `Algorithm.terms` take the node of every rank as `nodes`; a communicator always gives its own. It is not part of the
spec. Where such an algorithm gets neither `nodes` nor a parameter that says the layout, it divides the ranks by itself,
so that it can be looked at.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ringleader._names import did_you_mean, unknown
from ringleader.algorithms.parameter import SEGMENTS, Parameter, Value, split_spec
from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Schedule

__all__ = [
    "COLLECTIVES",
    "MAX_TRANSFERS",
    "SEGMENTS",
    "Algorithm",
    "Parameter",
    "Value",
    "algorithm",
    "algorithm_hash",
    "all_algorithms",
    "build",
    "canonical",
    "check",
    "get",
    "names",
    "parse_spec",
    "remove",
]

Nodes: TypeAlias = tuple[int, ...] | None
Params: TypeAlias = Mapping[str, Value]

COLLECTIVES: tuple[str, ...] = tuple(collective.value for collective in Collective)

# A transfer takes 29 bytes in the table and more once lowered: this many are about as much as a first call may cost.
MAX_TRANSFERS = 5_000_000
_CACHED_SCHEDULES = 64


@dataclass(frozen=True)
class Algorithm:
    """One entry of the registry.

    Attributes
    ----------
    collective, name
        Together unique.
    function
        ``f(n, root=0, **parameters) -> Schedule``; pure, for every n >= 1 that `limit` does not exclude.
    summary, reference
        One line each; the reference is the paper or text that the algorithm is known from.
    steps
        ``steps(n, **parameters)`` for n >= 2: steps of the schedule, the latency term.
    volume
        ``volume(n, **parameters)``: the bandwidth term, in units of the payload (all bytes of ``data``): for each step
        the bytes through the busiest rank in its busier direction, summed over the steps.
    cost
        Both terms as text.
    transfers
        ``transfers(n, **parameters)``: about how many rows the table has, kept at most `MAX_TRANSFERS`.
    parameters, aliases
        What a spec may set, and other names that a user may know the algorithm by.
    limit
        ``limit(n, **parameters)``: why these parameters are impossible for n ranks, e.g. ``dims=4x4 are 16 ranks``;
        empty if they are possible.
    needs_layout
        The schedule depends on which ranks share a node: all functions above have one more keyword, ``nodes``, a tuple
        with the node of each rank (nodes numbered in the order of their first ranks), or None if it is not known.
    """

    collective: str
    name: str
    function: Callable[..., Schedule]
    summary: str
    reference: str
    cost: str
    steps: Callable[..., float]
    volume: Callable[..., float]
    transfers: Callable[..., int]
    parameters: tuple[Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    limit: Callable[..., str] | None = None
    needs_layout: bool = False

    @property
    def full_name(self) -> str:
        """``collective/name``."""
        return f"{self.collective}/{self.name}"

    def terms(self, n: int, parameters: Params, nodes: Sequence[int] | None = None) -> tuple[float, float]:
        """(steps, volume) over n ranks, see `steps` and `volume`; one rank alone communicates nothing.

        `nodes` is the node of each rank, shape (n,); only algorithms with `needs_layout` look at it.
        """
        if n == 1:
            return 0.0, 0.0
        arguments = self.arguments(parameters, nodes)
        return self.steps(n, **arguments), self.volume(n, **arguments)

    def arguments(self, parameters: Params, nodes: Sequence[int] | None) -> dict[str, Any]:
        """The keywords with which the entry's functions are called."""
        return {**parameters, "nodes": _numbered(nodes)} if self.needs_layout else dict(parameters)

    @property
    def defaults(self) -> dict[str, Value]:
        """Every parameter with its default."""
        return {parameter.name: parameter.default for parameter in self.parameters}


_registry: dict[str, dict[str, Algorithm]] = {collective: {} for collective in COLLECTIVES}


def algorithm(
    name: str,
    collective: str,
    *,
    summary: str,
    reference: str,
    cost: str,
    steps: Callable[..., float],
    volume: Callable[..., float],
    transfers: Callable[..., int],
    parameters: tuple[Parameter, ...] = (),
    aliases: tuple[str, ...] = (),
    limit: Callable[..., str] | None = None,
    needs_layout: bool = False,
) -> Callable[[Callable[..., Schedule]], Callable[..., Schedule]]:
    """Register the decorated function as an algorithm; see `Algorithm` for the arguments.

    Raises
    ------
    InvalidArgument
        The collective is unknown, or it already has an algorithm of this name.
    """

    def register(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
        entries = _entries(collective)
        for taken in (name, *aliases):
            if taken in entries or any(taken in entry.aliases for entry in entries.values()):
                raise InvalidArgument(f"{collective} already has an algorithm {taken!r}; choose another name")
        entries[name] = Algorithm(
            collective, name, function, summary, reference, cost, steps, volume, transfers, parameters, aliases,
            limit, needs_layout,
        )  # fmt: skip
        function.__doc__ = _docstring(entries[name])
        return function

    return register


def _docstring(entry: Algorithm) -> str:
    """The function's own docstring with what the registry knows: parameters, cost and reference."""
    root = "The root rank." if Collective(entry.collective).rooted else "Always 0: the collective has no root."
    sections = {
        "Parameters": ["n", "    Ranks, at least 1.", "root", f"    {root}"],
        "Returns": ["Schedule", f"    For {entry.collective}; cost {entry.cost} (see docs/algorithms.md)."],
        "References": [entry.reference],
    }
    for parameter in entry.parameters:
        sections["Parameters"] += [parameter.name, f"    {parameter.summary}: {parameter.values}."]
    lines = [inspect.cleandoc(entry.function.__doc__ or entry.summary)]
    for title, body in sections.items():
        lines += ["", title, "-" * len(title), *body]
    return "\n".join(lines)


def _entries(collective: str) -> dict[str, Algorithm]:
    entries = _registry.get(str(collective))
    if entries is None:
        raise InvalidArgument(unknown("collective", str(collective), COLLECTIVES))
    return entries


def remove(collective: str, name: str) -> None:
    """Take an entry out of the registry, and forget what was built of it."""
    del _entries(collective)[name]
    _build.cache_clear()


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


def parse_spec(collective: str, spec: str) -> tuple[Algorithm, dict[str, Value]]:
    """Split a spec into its entry and the values of all parameters (defaults filled in).

    Raises
    ------
    InvalidArgument
        Unknown name, parameter or value; the message lists the valid ones.

    Examples
    --------
    >>> entry, parameters = parse_spec("all_reduce", "tree:segments=4")
    >>> entry.name, parameters
    ('double_binary_tree', {'segments': 4})
    """
    if not isinstance(spec, str):
        raise InvalidArgument(
            f"algorithm is {spec!r}; expected a name, one of {', '.join(names(collective))}, with parameters if any"
        )
    where = f"{collective} algorithm {spec!r}"
    name, *settings = split_spec(spec.lower(), where)
    entry = get(collective, name)
    known = {parameter.name: parameter for parameter in entry.parameters}
    values = entry.defaults
    given: set[str] = set()
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if key not in known or not equals:
            usage = ":".join([entry.name, *(f"{parameter.name}={parameter.values}" for parameter in entry.parameters)])
            question = did_you_mean(key, known)
            hint = f"{question} The" if question else "; the"
            raise InvalidArgument(f"{where}: {setting!r} is not a parameter of {entry.name}{hint} form is {usage!r}")
        if key in given:
            raise InvalidArgument(f"{where}: {key} is given twice; expected once")
        given.add(key)
        values[key] = known[key].parse(text, where, canonical)
    return entry, values


def canonical(collective: str, spec: str) -> str:
    """Return the one form of a spec: aliases resolved, parameters in their declared order, defaults left out.

    Examples
    --------
    >>> canonical("all_reduce", "Tree:segments=8"), canonical("all_reduce", "ring:segments=1")
    ('double_binary_tree:segments=8', 'ring')
    """
    entry, values = parse_spec(collective, spec)
    changed = [f"{p.name}={p.text(values[p.name])}" for p in entry.parameters if values[p.name] != p.default]
    return ":".join([entry.name, *changed])


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
    arguments = entry.arguments(values, nodes)
    impossible = entry.limit(n, **arguments) if entry.limit is not None else ""
    if impossible:
        raise InvalidArgument(f"{collective} {spec!r} over n={n} ranks: {impossible}")
    rows = entry.transfers(n, **arguments)
    if rows > MAX_TRANSFERS:
        advice = "use fewer segments or another algorithm" if "segments" in values else "use another algorithm"
        raise InvalidArgument(
            f"{collective} {spec!r} over n={n} ranks needs {rows} transfers; at most {MAX_TRANSFERS}: {advice}"
        )


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
    layout = _numbered(nodes) if parse_spec(collective, spec)[0].needs_layout else None
    return _build(str(collective), canonical(collective, spec), n, root, layout)


@functools.lru_cache(maxsize=_CACHED_SCHEDULES)
def _build(collective: str, spec: str, n: int, root: int, nodes: Nodes) -> Schedule:
    entry, values = parse_spec(collective, spec)
    return entry.function(n, root, **entry.arguments(values, nodes)).with_name(spec)


def _numbered(nodes: Sequence[int] | None) -> Nodes:
    """The nodes numbered 0, 1, ... in the order of their first ranks, so that equal layouts are equal."""
    if nodes is None:
        return None
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
