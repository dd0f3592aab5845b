"""Installs packages into prefixes of their own below build/peers: ``python -m peers.install openmpi mpich mpi4py``."""

from __future__ import annotations

import sys
from pathlib import Path

from peers.systems import install

PREFIXES = Path(__file__).resolve().parents[2] / "build" / "peers"


def main() -> int:
    """1 if a package does not install."""
    failures = install(sys.argv[1:], PREFIXES)
    for package, why in failures.items():
        print(f"{package} does not install: {why}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
