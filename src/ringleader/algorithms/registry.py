"""The registry: every algorithm under its field-standard name, with what it may be asked and what it costs.

An algorithm is named by a *spec*, ``name`` or ``name:key=value:key=value``, for example ``ring:segments=4``. The name
is unique within its collective. `build` turns (collective, spec, n, root) into a schedule and remembers the last ones.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Schedule

__all__ = [
    "COLLECTIVES",
    "MAX_TRANSFERS",
    "SEGMENTS",
    "Algorithm",
    "Parameter",
    "algorithm",
    "algorithm_hash",
    "all_algorithms",
    "build",
    "canonical",
    "check",
    "get",
    "names",
    "parse_spec",
]

Value: TypeAlias = int | str
Params: TypeAlias = Mapping[str, Value]

COLLECTIVES: tuple[str, ...] = tuple(collective.value for collective in Collective)

# A transfer takes 29 bytes in the table and more once lowered: this many are about as much as a first call may cost.
MAX_TRANSFERS = 1 << 22
_CACHED_SCHEDULES = 64


@dataclass(frozen=True)
class Parameter:
    """One parameter of an algorithm: an integer within [low, high], or one of `choices`."""

    name: str
    default: Value
    summary: str
    low: int = 1
    high: int = 1024
    choices: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        """The valid values as text, ``1..1024`` or ``ring|bruck``."""
        return "|".join(self.choices) if self.choices else f"{self.low}..{self.high}"

    def parse(self, text: str, where: str) -> Value:
        """Return the value that `text` stands for, or raise InvalidArgument naming `where` and the valid values."""
        if self.choices:
            if text in self.choices:
                return text
        elif text.isascii() and text.isdigit() and self.low <= int(text) <= self.high:
            return int(text)
        raise InvalidArgument(f"{where}: {self.name}={text!r} is not valid; expected {self.values}")


SEGMENTS = Parameter("segments", 1, "pieces of every chunk, sent one behind the other (a pipeline)")


@dataclass(frozen=True)
class Algorithm:
    """One entry of the registry.

    Attributes
    ----------
    collective, name
        Together unique.
    function
        ``f(n, root=0, **parameters) -> Schedule``; pure, for every n >= 1.
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

    @property
    def full_name(self) -> str:
        """``collective/name``."""
        return f"{self.collective}/{self.name}"

    def terms(self, n: int, parameters: Params) -> tuple[float, float]:
        """(steps, volume) over n ranks, see `steps` and `volume`; one rank alone communicates nothing."""
        return (self.steps(n, **parameters), self.volume(n, **parameters)) if n > 1 else (0.0, 0.0)

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
            collective, name, function, summary, reference, cost, steps, volume, transfers, parameters, aliases
        )
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
        raise InvalidArgument(f"unknown collective {collective!r}; valid ones: {', '.join(COLLECTIVES)}")
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
    raise InvalidArgument(f"unknown {collective} algorithm {name!r}; valid ones: {', '.join(names(collective))}")


def parse_spec(collective: str, spec: str) -> tuple[Algorithm, dict[str, Value]]:
    """Split a spec into its entry and the values of all parameters (defaults filled in).

    Raises
    ------
    InvalidArgument
        Unknown name, parameter or value; the message lists the valid ones.

    Examples
    --------
    >>> entry, parameters = parse_spec("all_reduce", "ring:segments=4")
    >>> entry.name, parameters
    ('ring', {'segments': 4})
    """
    if not isinstance(spec, str):
        raise InvalidArgument(
            f"algorithm is {spec!r}; expected a name, one of {', '.join(names(collective))}, with parameters if any"
        )
    name, *settings = spec.lower().split(":")
    entry = get(collective, name)
    known = {parameter.name: parameter for parameter in entry.parameters}
    values = entry.defaults
    given: set[str] = set()
    where = f"{collective} algorithm {spec!r}"
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if key not in known or not equals:
            usage = ":".join([entry.name, *(f"{parameter.name}={parameter.values}" for parameter in entry.parameters)])
            raise InvalidArgument(f"{where}: {setting!r} is not a parameter of {entry.name}; the form is {usage!r}")
        if key in given:
            raise InvalidArgument(f"{where}: {key} is given twice; expected once")
        given.add(key)
        values[key] = known[key].parse(text, where)
    return entry, values


def canonical(collective: str, spec: str) -> str:
    """Return the one form of a spec: aliases resolved, parameters in their declared order, defaults left out.

    Examples
    --------
    >>> canonical("all_reduce", "Tree:segments=8"), canonical("all_reduce", "ring:segments=1")
    ('double_binary_tree:segments=8', 'ring')
    """
    entry, values = parse_spec(collective, spec)
    changed = [f"{p.name}={values[p.name]}" for p in entry.parameters if values[p.name] != p.default]
    return ":".join([entry.name, *changed])


def check(collective: str, spec: str, n: int, root: int = 0) -> None:
    """Raise InvalidArgument, naming the limit, unless `build` can build this."""
    entry, values = parse_spec(collective, spec)
    if n < 1:
        raise InvalidArgument(f"{collective} over n={n} ranks; n must be at least 1")
    rooted = Collective(collective).rooted
    if not 0 <= root < (n if rooted else 1):
        expected = f"a rank of 0..{n - 1}" if rooted else f"0, because {collective} has no root"
        raise InvalidArgument(f"{collective} with root={root} over n={n} ranks; expected {expected}")
    rows = entry.transfers(n, **values)
    if rows > MAX_TRANSFERS:
        advice = "use fewer segments or another algorithm" if "segments" in values else "use another algorithm"
        raise InvalidArgument(
            f"{collective} {spec!r} over n={n} ranks needs {rows} transfers; at most {MAX_TRANSFERS}: {advice}"
        )


def build(collective: str, spec: str, n: int, root: int = 0) -> Schedule:
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

    Raises
    ------
    InvalidArgument
        Unknown name or parameter (the valid ones are listed), a root out of range, or a schedule over the limit.

    Examples
    --------
    >>> build("all_reduce", "ring", 4).steps
    6
    """
    check(collective, spec, n, root)
    return _build(str(collective), canonical(collective, spec), n, root)


@functools.lru_cache(maxsize=_CACHED_SCHEDULES)
def _build(collective: str, spec: str, n: int, root: int) -> Schedule:
    entry, values = parse_spec(collective, spec)
    return entry.function(n, root, **values).with_name(spec)


def algorithm_hash(full_name: str) -> int:
    """Return a 64-bit number for an algorithm's full name with parameters; the same in every process and release.

    Ranks compare it before they exchange data, so that two algorithms never meet in one operation.

    Examples
    --------
    >>> algorithm_hash("all_reduce/ring:segments=4") == algorithm_hash("all_reduce/ring:segments=4")
    True
    """
    return int.from_bytes(hashlib.blake2b(full_name.encode(), digest_size=8).digest(), "little")
