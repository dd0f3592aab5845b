"""Files of other projects that tests read: those of this repository, and more where a folder of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent / "data"
_REAL = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[2] / "shared" / "realdata")


def files(kind: str, suffix: str) -> list[Path]:
    """All files of a kind, each once."""
    found = {path.name: path for folder in (_REAL, HERE) for path in sorted((folder / kind).glob(f"*{suffix}"))}
    return [found[name] for name in sorted(found)]
