"""Checks the documentation: links lead somewhere, Python blocks compile. `make docs-check` runs it."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Names that headings of a Markdown page get, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def problems(page: Path) -> list[str]:
    """Broken links and code blocks of one page."""
    text = page.read_text()
    found = []
    for target in LINK.findall(FENCED.sub("", text)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            found.append(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            found.append(f"{page.relative_to(ROOT)}: {file.name} has no heading for #{anchor}")
    for block in CODE.findall(text):
        try:
            source = doctest.script_from_examples(block) if block.lstrip().startswith(">>>") else block
            compile(source, str(page), "exec")
        except SyntaxError as error:
            found.append(f"{page.relative_to(ROOT)}: a Python block does not compile: {error}")
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    pages = [ROOT / name for name in listing.stdout.splitlines()]
    found = [problem for page in pages for problem in problems(page)]
    print("\n".join(found) or f"{len(pages)} pages: links and Python blocks are fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
