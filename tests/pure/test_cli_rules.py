"""`ringleader rules`: files of any format shown, checked, imported and exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.cli.main import main
from ringleader.tune import rulefile
from ringleader.tune.formats import nccl_tuner, ompi_rules, ompi_rules_json
from ringleader.tune.rules import Range, Rule, RuleSet

RULES = RuleSet(
    (
        Rule("all_reduce", ranks=Range(8, 8), nbytes=Range(0, 65535), algorithm="recursive_doubling"),
        Rule("all_reduce", ranks=Range(8, 8), nbytes=Range(65536), algorithm="ring"),
    ),
    "test",
)
FILES = {
    "ringleader": lambda: rulefile.dumps(RULES),
    "ompi": lambda: ompi_rules.dumps(RULES).text,
    "ompi-json": lambda: ompi_rules_json.dumps(RULES).text,
    "nccl-csv": lambda: nccl_tuner.dumps(RULES).text,
}


@pytest.mark.parametrize("form", FILES)
def test_check_tells_formats_apart(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "file"
    file.write_text(FILES[form]())
    for arguments in (["check", str(file)], ["check", str(file), "--format", form]):
        assert main(["rules", *arguments]) == 0
        out = capsys.readouterr().out
        assert f"{file}, {form}: " in out and "all_reduce[" in out and ": ring" in out


@pytest.mark.parametrize("form", ["ompi", "ompi-json"])
def test_import_and_export(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    theirs, ours, again = tmp_path / "theirs", tmp_path / "ours.json", tmp_path / "again"
    theirs.write_text(FILES[form]())
    assert main(["rules", "import", str(theirs), "-o", str(ours)]) == 0
    assert {(r.algorithm, r.nbytes) for r in rulefile.load(ours).rules} == {
        (r.algorithm, r.nbytes) for r in RULES.rules
    }
    assert main(["rules", str(ours)]) == 0 and "recursive_doubling" in capsys.readouterr().out
    assert main(["rules", "export", str(ours), "-f", form, "-o", str(again)]) == 0
    without_comments = [line for line in again.read_text().splitlines() if not line.startswith("#")]
    assert without_comments == [line for line in theirs.read_text().splitlines() if not line.startswith("#")]


def test_what_is_left_out_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "rules.json"
    file.write_text(FILES["ringleader"]())
    assert main(["rules", "export", str(file), "--format", "nccl-csv"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "allreduce,65536,4294967295,ring,simple,-1,-1,8,-1,-1"
    assert "NCCL has no recursive_doubling for all_reduce; left out" in err


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
        (["export", "{}", "-f", "ringleader"], "format"),
        (["import", "{}", "-f", "ringleader"], "line 2, column 1"),
        (["export", "{}"], "format"),
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
    file.write_text(FILES["ringleader"]())
    assert main(["rules", "import", str(file), "-o", str(tmp_path / "no" / "such")]) == 2
    assert "cannot write" in capsys.readouterr().err
