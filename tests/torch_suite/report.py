"""The table of results: a CSV file with every test, and a page of the documentation."""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasons
import torch

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "benchmarks" / "results" / "torch_suite.csv"
PAGE = ROOT / "docs" / "pytorch-suite.md"
OUTCOMES = ("passes", "skipped", "not applicable", "fails")

HEAD = """# PyTorch's own tests

`make test-torch` runs the distributed suite that is shipped in the torch wheel
(`torch.testing._internal.distributed.distributed_test.DistributedTest`) over Ringleader, and over Gloo in the same
way. This page is what its last run wrote (torch {torch}, CPU); the rows are in `benchmarks/results/torch_suite.csv`.

The suite decides by the backend's name which tests to run. Ringleader gets all that Gloo gets, and both get those that
the suite reserves for MPI (`all_to_all` on the CPU) or, above 2 ranks, for jobs of 8 ranks (groups of two). A test that
fails is repeated once, for some of the suite's limits are short. Every test has processes of its own.

"""


@dataclass(frozen=True)
class Row:
    """The final result of one test."""

    test: str
    backend: str
    ranks: int
    written_for: str
    outcome: str
    reason: str
    seconds: float
    attempts: int


def write(results: dict[tuple[Any, str], dict[str, Any]], tests: list[str], options: argparse.Namespace) -> int:
    """Print the counts, write the table if all tests have run, and return the exit status."""
    rows = final(results)
    for backend, ranks in sorted({(row.backend, row.ranks) for row in rows}):
        count = Counter(row.outcome for row in rows if (row.backend, row.ranks) == (backend, ranks))
        print(f"{backend} on {ranks} ranks: " + ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES))
    fails = [row for row in rows if row.outcome == "fails" and row.backend == "ringleader"]
    bad = [row for row in fails if row.test not in reasons.KNOWN_FAILURES]
    for row in bad:
        print(f"FAILS without a written reason: {row.test} on {row.ranks} ranks: {row.reason}")
    if not options.no_report and not options.match:
        write_table(rows)
        PAGE.write_text(page(rows))
    return 1 if bad else 0


def final(results: dict[tuple[Any, str], dict[str, Any]]) -> list[Row]:
    """One row per test, backend and number of ranks: a test that was run under the name of MPI counts with that."""
    found: dict[tuple[str, str, int], Row] = {}
    for (setting, test), result in sorted(results.items(), key=lambda item: item[0][0].names):  # gloo, then mpi
        outcome, reason = result["outcome"], result["reason"]
        if outcome == "fails":
            why = reasons.not_applicable(reason)
            outcome, reason = ("fails", last_error(reason)) if why is None else ("not applicable", why)
            if setting.backend == "ringleader":
                reason = reasons.KNOWN_FAILURES.get(test, reason)
        found[test, setting.backend, setting.ranks] = Row(
            test, setting.backend, setting.ranks, setting.names, outcome, reason, result["seconds"], result["attempts"]
        )
    return sorted(found.values(), key=lambda row: (row.test, row.ranks, row.backend != "ringleader"))


def last_error(text: str) -> str:
    """The first line of the error of a test's process, out of the text of several tracebacks."""
    lines = re.findall(r"^[\w.]*(?:Error|Exception|[A-Z]\w+): .*", text, re.M)
    errors = [line for line in lines if not re.match(r"RuntimeError: Process \d+ (exited|terminated)", line)]
    return (errors or lines or [text.strip().splitlines()[-1] if text.strip() else "no reason known"])[0][:200]


def write_table(rows: list[Row]) -> None:
    """The CSV file."""
    with TABLE.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["test", "backend", "ranks", "written_for", "outcome", "reason", "seconds", "attempts", "torch"])
        for row in rows:
            values = (row.test, row.backend, row.ranks, row.written_for, row.outcome, row.reason, row.seconds)
            table.writerow([*values, row.attempts, torch.__version__])


def page(rows: list[Row]) -> str:
    """The page of the documentation."""
    places = sorted({(row.backend, row.ranks) for row in rows}, key=lambda p: (p[0] != "ringleader", p[1]))
    by_test: dict[str, dict[tuple[str, int], Row]] = defaultdict(dict)
    for row in rows:
        by_test[row.test][row.backend, row.ranks] = row
    return HEAD.format(torch=torch.__version__.partition("+")[0]) + summary(rows, places) + details(by_test, places)


def summary(rows: list[Row], places: list[tuple[str, int]]) -> str:
    """How many tests came out how."""
    lines = ["| over | ranks | " + " | ".join(OUTCOMES) + " |", "|---|---|" + "---|" * len(OUTCOMES)]
    for backend, ranks in places:
        count = Counter(row.outcome for row in rows if (row.backend, row.ranks) == (backend, ranks))
        lines.append(f"| {backend} | {ranks} | " + " | ".join(str(count[outcome]) for outcome in OUTCOMES) + " |")
    return "\n".join(lines) + "\n\n"


def remark(row: dict[tuple[str, int], Row]) -> str:
    """Why a test does not pass everywhere."""
    where: dict[str, list[str]] = defaultdict(list)
    for (backend, ranks), result in row.items():
        if result.outcome != "passes":
            where[result.reason.rstrip(".")].append(f"{backend} {ranks}")
    return "; ".join(f"{', '.join(places)}: {reason}" for reason, places in where.items()).replace("|", "\\|")


def details(by_test: dict[str, dict[tuple[str, int], Row]], places: list[tuple[str, int]]) -> str:
    """Every test: those that ran one by one, the others by what they need."""
    skipped: dict[str, list[str]] = defaultdict(list)
    lines = ["## Tests that ran", ""]
    lines.append("| test | " + " | ".join(f"{backend}, {ranks}" for backend, ranks in places) + " | remark |")
    lines.append("|---|" + "---|" * (len(places) + 1))
    for test, row in by_test.items():
        if all(each.outcome == "skipped" for each in row.values()):
            skipped[reasons.kind_of_skip(next(iter(row.values())).reason)].append(test)
            continue
        cells = [row[place].outcome if place in row else "" for place in places]
        lines.append(f"| {test} | " + " | ".join(cells) + f" | {remark(row)} |")
    lines += ["", "## Tests that torch skips over both", ""]
    for kind, names in sorted(skipped.items(), key=lambda item: -len(item[1])):
        lines += [f"**{kind[0].upper()}{kind[1:]}** ({len(names)}):", ", ".join(names), ""]
    return "\n".join(lines)
