"""The machine's fingerprint: a tuning is worth something only where it was made."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Fingerprint", "digest", "machine"]

Fingerprint = Mapping[str, str | int]

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_NAMES = ("model name", "Hardware", "uarch")  # in /proc/cpuinfo, by architecture
_GIB = 1 << 30


@functools.cache
def machine() -> Fingerprint:
    """What tells this machine from others, as far as speed depends on it.

    Examples
    --------
    >>> sorted(machine())
    ['architecture', 'caches', 'cores', 'cpu', 'memory_gib']
    """
    return {
        "cpu": _cpu(),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB),
    }


def digest(fingerprint: Fingerprint) -> str:
    """A short name for a fingerprint, for files.

    Examples
    --------
    >>> digest({"cpu": "a", "cores": 2}) == digest({"cores": 2, "cpu": "a"}), len(digest({}))
    (True, 16)
    """
    text = json.dumps(dict(fingerprint), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _cpu() -> str:
    """The processor's name; empty if the system does not say."""
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.strip() in _NAMES:
            return value.strip()
    return ""


def _caches() -> str:
    """Sizes of the first core's caches, ``L1d 48K, L1i 32K, L2 1024K, L3 32768K``."""
    found = []
    for index in sorted(_CACHES.glob("index[0-9]*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found.append(f"L{level}{'' if kind == 'Unified' else kind[0].lower()} {size}")
    return ", ".join(found)
