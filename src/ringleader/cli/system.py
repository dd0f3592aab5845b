"""What a result was measured on: hardware, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from ringleader import __version__, _core

__all__ = ["package_version", "system_info"]


def _first(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return ""
    return match[1].strip() if match else ""


def package_version(name: str) -> str | None:
    """Version of an installed package, None if it is not installed; it is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def system_info() -> dict[str, Any]:
    """Processor, memory, kernel and versions, as JSON's types.

    Examples
    --------
    >>> system_info()["ringleader"]
    '0.1.0'
    """
    kib = _first("/proc/meminfo", r"^MemTotal:\s+(\d+)")
    return {
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": _core.usable_cores(),
        "memory_gib": round(int(kib) / 2**20, 1) if kib else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "huge_pages": _first("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        "isa": _core.kernel_isa(),
        "compiler": _core.build_info().get("compiler"),
        "python": platform.python_version(),
        "numpy": package_version("numpy"),
        "torch": package_version("torch"),
        "ringleader": __version__,
    }
