"""Whether the rooms of `native/` include only those below them: `make lint` runs it. docs/architecture.md says why."""

from __future__ import annotations

import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "native"

# Each room may include itself and these.
BELOW = {
    "base": set(),
    "memory": {"base"},
    "reduce": {"base"},
    "wire": {"base", "reduce"},
    "compress": {"base", "reduce", "wire"},
    "transport": {"base", "memory", "wire"},
    "core": {"base", "memory", "reduce", "wire", "transport"},
}
ANY = {"bind", "tests"}  # include everything, and are included by nobody
INCLUDE = re.compile(r'^#include "([a-z_]+)/', re.MULTILINE)


def main() -> int:
    """Print what is wrong; 1 if something is."""
    wrong = []
    for room in sorted(path.name for path in NATIVE.iterdir() if path.is_dir()):
        if room in ANY:
            continue
        if room not in BELOW:
            wrong.append(f"native/{room}: no room that {Path(__file__).name} knows")
            continue
        for file in sorted(path for path in (NATIVE / room).rglob("*") if path.suffix in (".hpp", ".cpp")):
            for other in INCLUDE.findall(file.read_text()):
                if other in BELOW.keys() | ANY and other != room and other not in BELOW[room]:
                    allowed = ", ".join(sorted(BELOW[room])) or "nothing else"
                    wrong.append(f"{file.relative_to(NATIVE.parent)} includes {other}; native/{room} may: {allowed}")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
