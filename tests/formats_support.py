"""Files of other projects that tests read: those of this repository, and more where a folder of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ringleader.tune.formats.ompi_algorithms import COLLECTIVES
from ringleader.tune.rules import RuleSet, Situation

HERE = Path(__file__).resolve().parent / "data"
_REAL = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[2] / "shared" / "realdata")


def files(kind: str, suffix: str) -> list[Path]:
    """All files of a kind, each once."""
    found = {path.name: path for folder in (_REAL, HERE) for path in sorted((folder / kind).glob(f"*{suffix}"))}
    return [found[name] for name in sorted(found)]


ALLREDUCE = COLLECTIVES[2]
NODES = {"shm": lambda n: (0,) * n, "net": lambda n: tuple(range(n)), "mixed": lambda n: (*range(n - 1), 0)}


def chosen(rules: RuleSet, collective: str, nbytes: int, nodes: tuple[int, ...]) -> tuple[str, int] | None:
    """Algorithm and segment of the first rule that fits."""
    rule = next(rules.fitting(Situation(collective, nbytes, nodes)), None)
    return None if rule is None else (rule.algorithm, rule.segment)


def text_of(notes: tuple[Any, ...]) -> str:
    return "\n".join(map(str, notes))
