"""`ringleader rules`: files of any format shown, checked and imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from formats_support import WHOLE

from ringleader.cli.main import main
from ringleader.tune import rulefile
from ringleader.tune.rules import Range, Rule, RuleSet

RULES = RuleSet(
    (
        Rule("all_reduce", ranks=Range(8, 8), nbytes=Range(0, 65535), algorithm="recursive_doubling"),
        Rule("all_reduce", ranks=Range(8, 8), nbytes=Range(65536), algorithm="ring"),
    ),
    "test",
)
FILES = {"ringleader": rulefile.dumps(RULES), **WHOLE}


@pytest.mark.parametrize("form", FILES)
def test_check_tells_formats_apart(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "file"
    file.write_text(FILES[form])
    for arguments in (["check", str(file)], ["check", str(file), "--format", form]):
        assert main(["rules", *arguments]) == 0
        out = capsys.readouterr().out
        assert f"{file}, {form}: " in out and "all_reduce[" in out and ": ring" in out


@pytest.mark.parametrize("form", ["ompi", "ompi-json"])
def test_import(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours.json"
    theirs.write_text(FILES[form])
    assert main(["rules", "import", str(theirs), "-o", str(ours)]) == 0
    found = {(rule.collective, rule.ranks.low, rule.ranks.high, rule.algorithm) for rule in rulefile.load(ours).rules}
    assert ("all_reduce", 4, 8, "ring") in found and len(found) == 2
    assert main(["rules", str(ours)]) == 0 and "binomial" in capsys.readouterr().out


def test_what_is_left_out_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "tuner.csv"
    file.write_text("allreduce,0,99,nvls,simple,-1,-1,-1\nallreduce,100,4294967295,ring,simple,-1,-1,8\n")
    assert main(["rules", "import", str(file)]) == 0
    out, err = capsys.readouterr()
    assert '"ring"' in out and "nvls" not in out
    assert "nvls needs NVLink switches that reduce; left out" in err


def test_without_a_file_the_built_in_rules(capsys: pytest.CaptureFixture[str]):
    assert main(["rules"]) == 0
    assert "built-in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "{}"], "line 3: '-4' is negative"),
        (["check", "{}", "-f", "ompi-json"], "line 2, column 1"),
        (["check", "{}", "-f", "nccl"], "format"),
        (["check", "{}x"], "cannot read"),
        (["import", "{}", "-f", "ringleader"], "line 2, column 1"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "bad"
    file.write_text("1\n2\n-4\n")
    assert main(["rules", *(word.format(file) for word in arguments)]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "rules.json"
    file.write_text(FILES["ringleader"])
    assert main(["rules", "import", str(file), "-o", str(tmp_path / "no" / "such")]) == 2
    assert "cannot write" in capsys.readouterr().err
