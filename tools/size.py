"""Lines of each package, code and tests apart: `make size`. Comments and docstrings count, empty lines do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyi", ".hpp", ".cpp"}


def lines(path: Path) -> int:
    """How many a file has."""
    return sum(1 for line in path.read_text().splitlines() if line.strip())


def count(top: str, depth: int) -> Counter[str]:
    """Lines of the files below a folder, by its subfolders."""
    found: Counter[str] = Counter()
    for path in (ROOT / top).rglob("*"):
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
            inside = path.relative_to(ROOT / top).parts
            found["/".join((top, *inside[:-1][:depth]))] += lines(path)
    return found


def main() -> None:
    """Print the table."""
    native = count("native", 1)
    product = count("src/ringleader", 1) + Counter({k: v for k, v in native.items() if k != "native/tests"})
    tests = count("tests", 1) + Counter({k: v for k, v in native.items() if k == "native/tests"})
    for title, found in (("product", product), ("tests", tests)):
        for name, number in sorted(found.items()):
            print(f"{number:7,}  {name}")
        print(f"{found.total():7,}  {title}\n")


if __name__ == "__main__":
    main()
