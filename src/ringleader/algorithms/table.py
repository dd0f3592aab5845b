"""The registry as Markdown, for docs/algorithms.md: ``python -m ringleader.algorithms.table docs/algorithms.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from ringleader.algorithms import COLLECTIVES, Algorithm, Parameter, all_algorithms, build
from ringleader.errors import InvalidArgument
from ringleader.schedule import verify

__all__ = ["BEGIN", "END", "insert", "render"]

BEGIN = "<!-- table: begin -->"
END = "<!-- table: end -->"

RANKS = (16, 12)
"""Numbers of ranks for which the table gives the ratio to the lower bound."""


_HEAD = f"| name | parameters | cost | x bound, n = {' / '.join(map(str, RANKS))} | how | known from |"


def render() -> str:
    """Return one Markdown table per collective, and the list of references."""
    entries = all_algorithms()
    numbers = {text: index for index, text in enumerate(sorted({entry.reference for entry in entries}), 1)}
    lines: list[str] = []
    for collective in COLLECTIVES:
        lines += [f"### {collective}", "", _HEAD, "|---|---|---|---|---|---|"]
        lines += [_row(entry, numbers[entry.reference]) for entry in entries if entry.collective == collective]
        lines.append("")
    lines += ["### References", "", *(f"{index}. {text}" for text, index in numbers.items())]
    return "\n".join(lines)


def _row(entry: Algorithm, reference: int) -> str:
    names = f"`{entry.name}`" + "".join(
        f", also `{alias}`" + f" (`{settings}`)" * bool(settings) for alias, settings in entry.aliases.items()
    )
    settings = ", ".join(map(_setting, entry.parameters))
    return f"| {names} | {settings} | {entry.cost} | {_ratios(entry)} | {entry.summary} | [{reference}] |"


def _setting(parameter: Parameter) -> str:
    default = parameter.text(parameter.default)
    return f"`{parameter.name}={parameter.values.replace('|', '/')}`" + f" ({default})" * bool(default)


def _ratios(entry: Algorithm) -> str:
    """What the busiest rank sends or receives in all, over the least that is possible; with default parameters."""
    reports = [verify(build(entry.collective, entry.name, n), lowered=False) for n in RANKS]
    return " / ".join(f"{report.ratio:.2f}" if report.lower_bound else "-" for report in reports)


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
