"""The registry as Markdown, for docs/algorithms.md: ``python -m ringleader.algorithms.table docs/algorithms.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from ringleader.algorithms import COLLECTIVES, Algorithm, all_algorithms
from ringleader.errors import InvalidArgument

__all__ = ["BEGIN", "END", "insert", "render"]

BEGIN = "<!-- table: begin -->"
END = "<!-- table: end -->"


def render() -> str:
    """Return one Markdown table per collective, and the list of references."""
    entries = all_algorithms()
    numbers = {text: index for index, text in enumerate(sorted({entry.reference for entry in entries}), 1)}
    lines: list[str] = []
    for collective in COLLECTIVES:
        lines += [f"### {collective}", "", "| name | parameters | cost | how | known from |", "|---|---|---|---|---|"]
        lines += [_row(entry, numbers[entry.reference]) for entry in entries if entry.collective == collective]
        lines.append("")
    lines += ["### References", "", *(f"{index}. {text}" for text, index in numbers.items())]
    return "\n".join(lines)


def _row(entry: Algorithm, reference: int) -> str:
    names = f"`{entry.name}`" + "".join(f", also `{alias}`" for alias in entry.aliases)
    settings = ", ".join(f"`{p.name}={p.values.replace('|', '/')}` ({p.default})" for p in entry.parameters)
    return f"| {names} | {settings} | {entry.cost} | {entry.summary} | [{reference}] |"


def insert(text: str) -> str:
    """Return a page with the table between its markers replaced by the registry's.

    Raises
    ------
    InvalidArgument
        The page lacks a marker.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidArgument(f"the page needs a line {BEGIN!r} and after it a line {END!r}")
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(insert(page.read_text(encoding="utf-8")), encoding="utf-8")
