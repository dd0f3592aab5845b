"""scikit-build-core, kept from compiling again what it has compiled: `pip install .` repeated takes seconds.

pip builds in an environment of its own, at a new path each time. scikit-build-core takes a new path of its own for a
reason to start again; CMake and Ninja know better what has changed, so that path is brought up to date before they run.
Builds of one tree share `build/`, so they take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scikit_build_core
from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

BUILD = Path("build")


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for info in BUILD.glob("*/.skbuild-info.json"):
            content = json.loads(info.read_text())
            content["skbuild_path"] = str(Path(scikit_build_core.__file__).parent.resolve())
            info.write_text(json.dumps(content))
        yield


def build_wheel(directory: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """As PEP 517 says."""
    with _turn():
        return backend.build_wheel(directory, settings, metadata)


def build_editable(directory: str, settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    """As PEP 660 says."""
    with _turn():
        return backend.build_editable(directory, settings, metadata)
