"""The documentation names what there is, and its checker finds what is wrong. `make docs-check` runs all blocks too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import check_docs

PAGES = check_docs.pages_of([])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(check_docs.ROOT)))
def test_pages(page: Path) -> None:
    assert check_docs.problems(page) == []


def test_every_page_with_python_is_run() -> None:
    blocks = [block for page in PAGES for block in check_docs.blocks_of(page.read_text()) if block.language == "python"]
    left = [block for block in blocks if block.reason is not None]
    assert len(blocks) > 50 and len(left) <= 9
    assert all(len(block.reason or "") > 5 for block in left)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`rl.tune.formats.mscl` reads them.", "rl.tune.formats.mscl does not exist"),
        ("Call `ringleader.torch.hooks.fp17()`.", "ringleader.torch.hooks.fp17 does not exist"),
        ("See `comm.counter()`.", "comm.counter does not exist"),
        ("Set `RINGLEADER_TRANSPORTS`.", "RINGLEADER_TRANSPORTS is no setting"),
        ("Run `ringleader bench --algoritm ring`.", "No such option: --algoritm"),
        ("```\nringleader brench -b 8    times it\n```", "No such command 'brench'"),
        (
            "```sh\nRINGLEADER_WIRE=bf16 torchrun --nproc-per-node 2 -m ringleader bench --x 3 | head\n```",
            "No such option: --x",
        ),
        ("```python\nx = (\n```", "does not compile"),
        ("```python norun\nx = 1\n```", "norun without a reason"),
        ("[there](nowhere.md)", "nowhere.md does not exist"),
        ("`tests/nothing.py` has it.", "`tests/nothing.py` does not exist"),
    ],
)
def test_wrong_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    (found,) = check_docs.problems(page)
    assert problem in found


def test_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go together as their fences say, run in order, and what fails is told with the page's line."""
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```python alone\nassert 'x' not in globals()\n```\n\n```python\n>>> x + 1\n2\n```\n\n"
        "```python ranks=2\nimport ringleader as rl\n\nassert rl.init().size == 2\n```\n\n"
        "```python norun: no reason\n1 / 0\n```\n\n"
        "```python\nassert x == 2\n```\n"
    )
    programs = check_docs.programs_of(page, check_docs.blocks_of(page.read_text()))
    assert [len(program.blocks) for program in programs] == [3, 1, 1]
    outcomes = [check_docs.run_program(program) for program in programs]
    assert outcomes[1:] == ["", ""]
    assert "line 25" in outcomes[0] and "AssertionError" in outcomes[0], outcomes[0]
    page.write_text("```python\n>>> 1 + 1\n3\n```\n")
    (program,) = check_docs.programs_of(page, check_docs.blocks_of(page.read_text()))
    assert "Expected:\n    3\nGot:\n    2" in check_docs.run_program(program)
