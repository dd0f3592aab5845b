"""Selection: which algorithm and protocol a call uses.

A choice depends on the arguments only, never on a rank's own state, so that all ranks agree without talking. Who
decides, in this order:

1. the call's own argument (`forced`, `protocol`);
2. the environment, RINGLEADER_ALGO and RINGLEADER_PROTO (see `grammar`): of what it allows, the built-in choice if that
   is among it, else what the cost model finds cheapest;
3. the built-in rules (see `rules`).

A demand that cannot be met is an error, never a silent fallback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringleader.algorithms import MAX_TRANSFERS, canonical, check, names
from ringleader.errors import InvalidArgument
from ringleader.tune.cost import Cost, predict
from ringleader.tune.grammar import ALGO, PROTO, PROTOCOLS, parse_algo, parse_proto
from ringleader.tune.rules import fitting, layout_of

__all__ = ["Candidate", "Choice", "Explanation", "explain", "select"]


@dataclass(frozen=True)
class Choice:
    """What a call uses, and why.

    Attributes
    ----------
    algorithm
        Canonical spec, for `ringleader.algorithms.build`.
    protocol
        ``push`` or ``pull``: who copies between ranks of one node.
    reason
        One line.
    """

    algorithm: str
    protocol: str
    reason: str


@dataclass(frozen=True)
class Candidate:
    """One algorithm that could have been chosen; `note` says why it was not, or that it was."""

    algorithm: str
    cost: Cost
    note: str


@dataclass(frozen=True)
class Explanation:
    """A choice among its candidates; as text, a table."""

    request: str
    choice: Choice
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = [f"{self.request}: {self.choice.algorithm}, {self.choice.protocol} ({self.choice.reason})"]
        lines.append(f"  {'algorithm':32} {'steps':>7} {'bytes':>14} {'model us':>12}")
        for candidate in self.candidates:
            cost = candidate.cost
            row = f"  {candidate.algorithm:32} {cost.steps:7.0f} {cost.nbytes:14.0f} {cost.seconds * 1e6:12.1f}"
            lines.append(f"{row}  {candidate.note}".rstrip())
        return "\n".join(lines)


def select(
    collective: str,
    nbytes: int,
    n: int,
    nodes: Sequence[int],
    itemsize: int = 1,
    forced: str | None = None,
    protocol: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Choice:
    """Choose algorithm and protocol for a collective; the same on every rank that gives the same arguments.

    Parameters
    ----------
    collective
        Name of a `ringleader.schedule.Collective`.
    nbytes
        Bytes of the whole data, all n blocks together where the collective has blocks.
    n
        Ranks.
    nodes
        Node of each rank, shape (n,): equal means shared memory.
    itemsize
        Bytes of an element; nothing is cut finer.
    forced
        Spec that the call asks for, with exactly the parameters that it gives.
    protocol
        ``push`` or ``pull``, asked for by the call.
    env
        Where RINGLEADER_ALGO and RINGLEADER_PROTO are looked up; default: the environment of the process.

    Raises
    ------
    InvalidArgument
        An unknown word, or a demand that cannot be met; the message lists the valid ones or states the limit.

    Examples
    --------
    >>> select("all_reduce", 64, 2, nodes=[0, 0], env={}).algorithm
    'one_shot'
    >>> select("all_reduce", 1 << 24, 4, nodes=[0, 1, 2, 3], env={}).algorithm
    'ring:segments=8'
    >>> select("all_reduce", 64, 2, nodes=[0, 0], env={"RINGLEADER_ALGO": "ring"}).reason
    'RINGLEADER_ALGO'
    """
    env = os.environ if env is None else env
    return _select(
        str(collective),
        nbytes,
        n,
        tuple(nodes),
        itemsize,
        forced,
        protocol,
        env.get(ALGO, ""),
        env.get(PROTO, ""),
    )


@functools.lru_cache(maxsize=256)
def _select(
    collective: str,
    nbytes: int,
    n: int,
    nodes: tuple[int, ...],
    itemsize: int,
    forced: str | None,
    protocol: str | None,
    algo: str,
    proto: str,
) -> Choice:
    known = names(collective)
    if nbytes < 0 or itemsize < 1:
        raise InvalidArgument(f"{collective} of {nbytes} bytes in items of {itemsize}; expected >= 0 and >= 1")
    if n < 1 or len(nodes) != n:
        raise InvalidArgument(
            f"{collective} over n={n} ranks with {len(nodes)} nodes; expected n >= 1 and a node for each"
        )
    layout = layout_of(nodes)
    built_in = next(fitting(collective, nbytes, n, layout, itemsize), None)
    if forced is not None:
        check(collective, forced, n)
        algorithm, reason = canonical(collective, forced), "asked for by the call"
    elif collective in (allowed := parse_algo(algo)):
        specs = allowed[collective].filter(known)
        algorithm = _among(collective, specs, built_in[1] if built_in else "", nbytes, n, layout)
        reason = ALGO
    elif built_in is not None:
        algorithm, reason = canonical(collective, built_in[1]), f"built-in rule for {layout}"
    else:
        raise InvalidArgument(f"no {collective} algorithm for n={n} ranks stays within {MAX_TRANSFERS} transfers")
    default = built_in[0].protocol if built_in else PROTOCOLS[0]
    chosen, proto_reason = _protocol(collective, default, protocol, proto)
    return Choice(algorithm, chosen, "; ".join(filter(None, (reason, proto_reason))))


def _among(collective: str, specs: tuple[str, ...], built_in: str, nbytes: int, n: int, layout: str) -> str:
    """The best of the specs that the environment allows."""
    name = built_in.partition(":")[0]
    if name in specs:  # without parameters of the user's own, the rule's are used
        return canonical(collective, built_in)
    possible, limits = [], []
    for spec in specs:
        try:
            check(collective, spec, n)
            possible.append(spec)
        except InvalidArgument as error:
            limits.append(str(error))
    if not possible:
        raise InvalidArgument(f"{ALGO} allows no {collective} algorithm that can run: {'; '.join(limits)}")
    preferred = [spec for spec in possible if spec.partition(":")[0] == name]
    return min(preferred or possible, key=lambda spec: predict(collective, spec, nbytes, n, layout).seconds)


def _protocol(collective: str, built_in: str, forced: str | None, text: str) -> tuple[str, str]:
    if forced is not None:
        if forced.lower() not in PROTOCOLS:
            raise InvalidArgument(f"unknown protocol {forced!r}; valid ones: {', '.join(PROTOCOLS)}")
        return forced.lower(), "protocol asked for by the call"
    selection = parse_proto(text).get(collective)
    if selection is None:
        return built_in, ""
    return built_in if selection.allows(built_in) else selection.filter(PROTOCOLS)[0], f"protocol by {PROTO}"


def explain(
    collective: str,
    nbytes: int,
    n: int,
    nodes: Sequence[int],
    itemsize: int = 1,
    forced: str | None = None,
    protocol: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Explanation:
    """Choose as `select` does, and show all candidates with the terms of the cost model, the cheapest first.

    Raises
    ------
    InvalidArgument
        As `select`.

    Examples
    --------
    >>> print(str(explain("broadcast", 1024, 2, [0, 0], env={})).splitlines()[0])
    broadcast of 1024 bytes, 2 ranks, shm: linear, pull (built-in rule for shm)
    """
    env = os.environ if env is None else env
    choice = select(collective, nbytes, n, nodes, itemsize, forced, protocol, env)
    layout = layout_of(tuple(nodes))
    allowed = parse_algo(env.get(ALGO, "")).get(collective)
    chosen = choice.algorithm.partition(":")[0]
    candidates = []
    for name in names(collective):
        spec, note = name, ""
        if name == chosen:
            spec, note = choice.algorithm, f"chosen: {choice.reason}"
        elif allowed is not None and not allowed.allows(name):
            note = f"not allowed by {ALGO}"
        else:
            try:
                check(collective, name, n)
            except InvalidArgument as error:
                note = str(error)
        candidates.append(Candidate(spec, predict(collective, spec, nbytes, n, layout), note))
    candidates.sort(key=lambda candidate: candidate.cost.seconds)
    request = f"{collective} of {nbytes} bytes, {n} ranks, {layout}"
    return Explanation(request, choice, tuple(candidates))
