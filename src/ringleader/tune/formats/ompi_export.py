"""From rules to what Open MPI's component `tuned` can be told: for each range of sizes one algorithm."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ringleader.algorithms import get, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Note
from ringleader.tune.formats.ompi_algorithms import COLLECTIVES, MpiAlgorithm, MpiCollective
from ringleader.tune.rules import ANY, Range, Rule, RuleSet

__all__ = ["Block", "Cell", "blocks_of"]

MAX_CELLS = 1 << 16

Chosen: TypeAlias = tuple[MpiAlgorithm | None, int, int]  # algorithm, fan-out, segment size


@dataclass(frozen=True)
class Cell:
    """Messages of some sizes, and what is used for them; `algorithm` is None where Open MPI decides."""

    nbytes: Range
    algorithm: MpiAlgorithm | None
    fan: int = 0
    segment: int = 0


@dataclass(frozen=True)
class Block:
    """Communicators of some sizes, and cells that cover all sizes of messages, in order."""

    ranks: Range
    cells: tuple[Cell, ...]


def blocks_of(rules: RuleSet, layout: str, notes: list[Note], newest: bool) -> list[tuple[MpiCollective, list[Block]]]:
    """For each of Open MPI's collectives that some rule is for: blocks that cover all sizes, in order.

    Parameters
    ----------
    layout
        Of the job; rules for other layouts are left out.
    notes
        What cannot be said is added.
    newest
        Whether algorithms may be used that not all releases of Open MPI 5.0 have.

    Raises
    ------
    InvalidArgument
        The table would have more than 65536 cells.
    """
    usable = [(index, rule) for index, rule in enumerate(rules.rules) if _usable(index, rule, layout, notes)]
    tables = []
    told: set[str] = set()
    for collective in COLLECTIVES:
        mine = [(index, rule) for index, rule in usable if rule.collective == collective.ours]
        if not mine:
            continue
        blocks = _table(collective, mine, newest, notes, told)
        if any(cell.algorithm is not None for block in blocks for cell in block.cells):
            tables.append((collective, blocks))
    return tables


def _usable(index: int, rule: Rule, layout: str, notes: list[Note]) -> bool:
    """Whether a rule takes part. Those that do not decide the algorithm let the next one decide, here as there."""
    if layout not in rule.layouts:
        notes.append(Note(rule.line, f"{_name(index, rule)}: not for {layout}; left out"))
        return False
    conditions = [name for name in ("nodes", "ranks_per_node", "wire_bytes") if getattr(rule, name) != ANY]
    conditions += ["even"] if rule.even is not None else []
    if conditions:
        said = " and ".join(conditions)
        notes.append(Note(rule.line, f"{_name(index, rule)}: Open MPI has no condition on {said}; left out"))
        return False
    for what in ("protocol", "wire"):
        if getattr(rule, what):
            notes.append(Note(rule.line, f"{_name(index, rule)}: {what}={getattr(rule, what)} cannot be said"))
    if rule.excluded:
        notes.append(Note(rule.line, f"{_name(index, rule)}: an exclusion cannot be said; left out"))
        return False
    return bool(rule.algorithm)


def _name(index: int, rule: Rule) -> str:
    return f"rule {index + 1} ({rule})"


def _table(
    collective: MpiCollective, rules: list[tuple[int, Rule]], newest: bool, notes: list[Note], told: set[str]
) -> list[Block]:
    """Between two limits of any rule the first fitting one is always the same."""
    ranks = _pieces([rule.ranks for _, rule in rules], 1)
    sizes = _pieces([rule.nbytes for _, rule in rules], 0)
    if len(ranks) * len(sizes) > MAX_CELLS:
        raise InvalidArgument(
            f"{len(rules)} rules for {collective.ours} make {len(ranks)} x {len(sizes)} cells; expected at most "
            f"{MAX_CELLS}"
        )
    said = {index: _said(collective, index, rule, newest, notes, told) for index, rule in rules}
    blocks: list[Block] = []
    for piece in ranks:
        active = [(index, rule) for index, rule in rules if piece.low in rule.ranks]
        cells: list[Cell] = []
        for size in sizes:
            first = next((index for index, rule in active if size.low in rule.nbytes), None)
            chosen: Chosen = (None, 0, 0) if first is None else said[first]
            if cells and (cells[-1].algorithm, cells[-1].fan, cells[-1].segment) == chosen:
                cells[-1] = Cell(Range(cells[-1].nbytes.low, size.high), *chosen)
            else:
                cells.append(Cell(size, *chosen))
        if blocks and blocks[-1].cells == tuple(cells):
            blocks[-1] = Block(Range(blocks[-1].ranks.low, piece.high), tuple(cells))
        else:
            blocks.append(Block(piece, tuple(cells)))
    return blocks


def _pieces(ranges: list[Range], low: int) -> list[Range]:
    """All numbers from `low` on, cut wherever a range begins or ends."""
    cuts = {low, *(max(it.low, low) for it in ranges), *(it.high + 1 for it in ranges if low <= it.high < ANY.high)}
    return [Range(a, b - 1) for a, b in itertools.pairwise([*sorted(cuts), ANY.high + 1])]


def _said(collective: MpiCollective, index: int, rule: Rule, newest: bool, notes: list[Note], told: set[str]) -> Chosen:
    """The algorithm, fan-out and segment size that do the same; (None, 0, 0) if there are none."""
    entry = get(rule.collective, rule.algorithm.partition(":")[0])
    _, parameters = parse_spec(rule.collective, rule.algorithm)
    changed = {name: value for name, value in parameters.items() if value != entry.defaults[name]}
    problem = f"Open MPI's {collective.name} has no such algorithm"
    for algorithm in collective.algorithms:
        # What differs, or is another way to say the same as a further one, is never written.
        if algorithm.ours != entry.name or algorithm.differs or algorithm.chains:
            continue
        if not algorithm.ranks.low <= rule.ranks.low <= rule.ranks.high <= algorithm.ranks.high:
            continue
        problem = _obstacle(collective, algorithm, rule, parameters, changed, newest)
        if not problem:
            if rule.channels:
                _tell(f"{_name(index, rule)}: channels={rule.channels} cannot be said", rule, notes, told)
            radix = parameters["radix"] if algorithm.radix else 0
            return algorithm, int(str(radix)), rule.segment
    _tell(f"{_name(index, rule)}: {problem}; Open MPI decides there", rule, notes, told)
    return None, 0, 0


def _obstacle(
    collective: MpiCollective,
    algorithm: MpiAlgorithm,
    rule: Rule,
    parameters: Mapping[str, object],
    changed: Mapping[str, object],
    newest: bool,
) -> str:
    """Why Open MPI's algorithm is not what a rule chooses; empty if it is."""
    name = f"Open MPI's {algorithm.name}"
    if algorithm.since and not newest:
        return f"only Open MPI {algorithm.since} and later have {algorithm.name}"
    if rule.segment and not algorithm.segmented:
        return f"{name} cuts no segments"
    if not rule.segment and parameters.get("segments", 1) != 1:
        return f"a number of segments ({parameters['segments']}) cannot be said, only their size (segment)"
    if not rule.segment and algorithm.segmented:
        twins = [it for it in collective.algorithms if it.ours == algorithm.ours and not it.segmented]
        if twins:  # as ring is of segmented_ring
            return f"without segments it is {twins[0].name}"
    if algorithm.radix and "radix" in changed and not newest:
        return "only Open MPI 6.0 and later can be told a radix"
    others = [key for key in changed if key != "segments" and not (key == "radix" and algorithm.radix)]
    return f"{name} has no {' or '.join(others)}" if others else ""


def _tell(text: str, rule: Rule, notes: list[Note], told: set[str]) -> None:
    """A note, once: two collectives of Open MPI may be one of ours."""
    if text not in told:
        told.add(text)
        notes.append(Note(rule.line, text))
