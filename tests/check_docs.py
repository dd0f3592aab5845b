"""Checks the documentation. `make docs-check` runs it.

- Links lead somewhere; files that are named exist.
- Python blocks run. All blocks of a page are one program, in the order of the page, in a fresh process with a time
  limit; doctests among them print what the page says. Words after the language, which Markdown viewers leave out, say
  otherwise: ``ranks=2`` (a program of its own, with the other blocks of so many ranks, started as torchrun starts
  ranks), ``alone`` (a program of its own, with no other block), ``norun: WHY``.
- Command lines of ``ringleader`` parse: commands and options exist.
- Names exist: ``rl.x.y`` and ``ringleader.x.y``, methods of ``comm``, variables ``RINGLEADER_*``.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import doctest
import importlib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 120  # seconds of one program
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Variables that are read by tests and scripts, and are no settings.
OTHER_VARIABLES = {
    f"RINGLEADER_{name}" for name in ("REALDATA", "LONG_TESTS", "REQUIRE_MPI", "WERROR", "NATIVE_TESTS", "SANITIZE")
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its first line of code (from 1), its language, the words after it, and its text."""

    line: int
    language: str
    words: str
    text: str

    @property
    def doctest(self) -> bool:
        return self.text.lstrip().startswith(">>>")

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        head, colon, why = self.words.partition(":")
        return why.strip() if colon and head.strip() == "norun" else None

    @property
    def ranks(self) -> int:
        found = re.search(r"\branks=(\d+)\b", self.words)
        return int(found[1]) if found else 0

    @property
    def alone(self) -> bool:
        return "alone" in self.words.split()


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    found, lines, start = [], text.split("\n"), None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language, _, words = lines[start][3:].strip().partition(" ")
        found.append(Block(start + 2, language, words.strip(), "\n".join(lines[start + 1 : number])))
        start = None
    return found


# ------------------------------------------------------------------------------------------------ links and files


def anchors(text: str) -> set[str]:
    """Names that headings of a Markdown page get, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links and named files that lead nowhere."""
    prose = FENCED.sub("", text)
    for target in LINK.findall(prose):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            yield f"{target} does not exist"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{file.name} has no heading for #{anchor}"
    for word in INLINE.findall(prose):
        if re.fullmatch(r"(src|tests|docs|examples|benchmarks|native)/[\w/.*-]+", word) and not any(ROOT.glob(word)):
            yield f"`{word}` does not exist"


# ------------------------------------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Program:
    """Blocks of a page that run together, in `ranks` processes (0: one, started by no launcher)."""

    page: Path
    blocks: tuple[Block, ...]

    @property
    def ranks(self) -> int:
        return self.blocks[0].ranks

    @property
    def text(self) -> str:
        """The page with all but these blocks blank, so that tracebacks tell the page's lines."""
        lines = [""] * (max(block.line + block.text.count("\n") for block in self.blocks) + 1)
        for block in self.blocks:
            own = block.text.split("\n")
            if block.doctest:
                own = [f"__import__('check_docs').run_doctest({str(self.page)!r}, {block.line}, globals())"]
            lines[block.line - 1 : block.line - 1 + len(own)] = own
        return "\n".join(lines)

    def __str__(self) -> str:
        places = ", ".join(str(block.line) for block in self.blocks)
        return f"{self.page.relative_to(ROOT)}, line{'s' if len(self.blocks) > 1 else ''} {places}"


def programs_of(page: Path, blocks: list[Block]) -> list[Program]:
    """What is to be run of a page."""
    together: dict[object, list[Block]] = {}
    for block in blocks:
        if block.language in ("python", "pycon") and block.reason is None:
            together.setdefault(block.line if block.alone else f"ranks={block.ranks}", []).append(block)
    return [Program(page, tuple(each)) for each in together.values()]


def run_doctest(page: str, line: int, names: dict[str, Any]) -> None:
    """Run the doctest block at a line of a page; a difference ends the program."""
    (text,) = (block.text for block in blocks_of(Path(page).read_text()) if block.line == line)
    test = doctest.DocTestParser().get_doctest(text, names, Path(page).name, page, line - 1)
    test.globs = names  # not a copy: later blocks go on with what this one made
    said: list[str] = []
    if doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False).failed:
        sys.exit("".join(said))


def run_program(program: Program) -> str:
    """Run it; what is wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="ringleader-docs-") as folder:
        Path(folder, "examples").symlink_to(ROOT / "examples")
        script = Path(folder, f"{program.page.stem}.py")
        script.write_text(program.text)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RINGLEADER_")}
        environment |= {"PYTHONPATH": f"{ROOT / 'tests'}", "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(max(program.ranks, 1)):
            own = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(program.ranks),
                "LOCAL_WORLD_SIZE": str(program.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            } if program.ranks else {}  # fmt: skip
            quiet: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.PIPE,
            }
            command = [sys.executable, script.name]
            ranks.append(subprocess.Popen(command, cwd=folder, env={**environment, **own}, text=True, **quiet))
        with concurrent.futures.ThreadPoolExecutor(len(ranks)) as readers:
            return next(filter(None, readers.map(_outcome, ranks)), "")


def _outcome(process: subprocess.Popen[str]) -> str:
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"not finished within {LIMIT} s"
    return "" if process.returncode == 0 else f"exit code {process.returncode}: {errors.strip()[-2000:]}"


# ------------------------------------------------------------------------------------------------ command lines


def command_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Calls of ``ringleader`` in shell blocks, in indented code, and (then True) in running text."""
    for line in [
        *(
            line
            for block in blocks_of(text)
            if block.language in ("", "sh", "console")
            for line in block.text.split("\n")
        ),
        *re.findall(r"^ {4,}(\S.*)$", FENCED.sub("", text), re.MULTILINE),
    ]:
        found = re.match(
            r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:(?:torchrun|mpirun|srun)\b.* -m )?ringleader (?=[a-z-])(.*)", line
        )
        if found and not re.match(r"\d|.*: ", found[1]):
            yield re.split(r" {2,}| [>|&#]", found[1])[0], False
    for word in INLINE.findall(FENCED.sub("", text)):
        if found := re.fullmatch(r"(?:python -m )?ringleader ([a-z-][^.]*)", word):
            yield found[1], True


def wrong_command(line: str, mentioned: bool) -> str:
    """What is wrong with a command line; nothing is run. One that is only `mentioned` may leave arguments out."""
    import typer.main

    from ringleader.cli.app import app

    command: Any = typer.main.get_command(app)
    words, context = shlex.split(line), None
    try:
        while True:
            context = command.make_context(command.name, list(words), parent=context)
            if not hasattr(command, "commands"):
                return ""
            words = [*getattr(context, "_protected_args", ()), *context.args]
            if not words:
                return ""
            _, command, words = command.resolve_command(context, words)
    except Exception as error:  # of typer's own copy of click
        if mentioned and type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError", "BadOptionUsage"):
            return ""
        return getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    except SystemExit:
        return ""


# ------------------------------------------------------------------------------------------------ names


def resolve(name: str) -> bool:
    """Whether a dotted name that begins with ``ringleader`` exists for somebody who has imported only that."""
    value: Any = importlib.import_module("ringleader")
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            return part in getattr(value, "__annotations__", {}) or part in getattr(value, "__dataclass_fields__", {})
    return True


def unknown_names(text: str) -> Iterator[str]:
    """Names that are not there, in text and code."""
    from ringleader import Communicator
    from ringleader.runtime.config import SETTINGS, SUBSYSTEMS

    for found in sorted(set(re.findall(r"(?<![\w./-])(?:rl|ringleader)(?:\.[A-Za-z_]\w*)+(?![\w/])", text))):
        name = re.sub(r"^rl\.", "ringleader.", found)
        last = name.partition(".")[2]
        if last.isupper() and last in SUBSYSTEMS:
            continue  # a logger
        if not resolve(name):
            yield f"{found} does not exist"
    attributes = set(re.findall(r"^    (\w+(?:, \w+)*)$", Communicator.__doc__ or "", re.MULTILINE))
    known = {name for names in attributes for name in names.split(", ")}
    for name in sorted(set(re.findall(r"(?<![\w.])comm\.([a-z_]\w*)", text))):
        if not hasattr(Communicator, name) and name not in known and "mpi4py" not in text:
            yield f"comm.{name} does not exist"
    variables = {setting.variable for setting in SETTINGS} | OTHER_VARIABLES
    for name in sorted(set(re.findall(r"\bRINGLEADER_[A-Z0-9_]*[A-Z0-9]\b(?!\*)", text)) - variables):
        yield f"{name} is no setting"


# ------------------------------------------------------------------------------------------------ all


def problems(page: Path) -> list[str]:
    """What is wrong with a page, without running its programs."""
    text = page.read_text()
    found = [*broken_links(page, text), *unknown_names(text)]
    for block in blocks_of(text):
        if block.language == "python":
            try:
                ast.parse(doctest.script_from_examples(block.text) if block.doctest else block.text)
            except SyntaxError as error:
                found.append(f"line {block.line}: a Python block does not compile: {error}")
            if "norun" in block.words and not block.reason:
                found.append(f"line {block.line}: norun without a reason")
    for line, mentioned in command_lines(text):
        if problem := wrong_command(line, mentioned):
            found.append(f"`ringleader {line}`: {problem}")
    return [f"{page.relative_to(ROOT)}: {problem}" for problem in found]


def pages_of(names: list[str]) -> list[Path]:
    """The pages of these names, or all that git knows."""
    if names:
        return [Path(name).resolve() for name in names]
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listing.stdout.splitlines()]


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="Pages; default: all.")
    parser.add_argument("--no-run", action="store_true", help="Run no blocks.")
    arguments = parser.parse_args()
    pages = pages_of(arguments.pages)
    found = [problem for page in pages for problem in problems(page)]
    programs = [] if arguments.no_run else [p for page in pages for p in programs_of(page, blocks_of(page.read_text()))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for program, problem in zip(programs, pool.map(run_program, programs), strict=True):
            if problem:
                found.append(f"{program}: {problem}")
    left = sum(block.reason is not None for page in pages for block in blocks_of(page.read_text()))
    blocks = sum(len(program.blocks) for program in programs)
    print(
        "\n".join(found)
        or f"{len(pages)} pages are fine; {blocks} blocks ran in {len(programs)} programs, {left} did not"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
