"""The tuner's table and the rules of a job: loaded at the start, rank 0's for all; and tuning itself, for seconds."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.errors import InvalidArgument, SpawnError
from ringleader.runtime.config import Config
from ringleader.runtime.tuning import check_agreement, fingerprint, own_guide, tell, understand
from ringleader.tune import rulefile, table
from ringleader.tune.fit import Errors
from ringleader.tune.model import DEFAULT
from ringleader.tune.rules import Range, Rule, RuleSet
from ringleader.tune.table import Table

# Not what is built in for 2 ranks that share memory, so that a choice shows where it comes from.
ODD = "allgather_reduce"


def _table(algorithm: str = ODD, link: str = "1:tcp") -> Table:
    rules = RuleSet((Rule("all_reduce", ranks=Range(2, 2), algorithm=algorithm, protocol="pull"),), "tuned")
    return Table(fingerprint(), DEFAULT, Errors(0.1, 0.3, 40), {link: rules}, "2026-01-31T12:00:00+00:00")


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _choices(settings: dict[int, dict[str, str | None]]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """On this rank: set its own environment, join, and say what ran and what was logged."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringleader.TUNE").addHandler(handler)
    rank = int(os.environ["RINGLEADER_RANK"])
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.get(rank, {}).items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        comm = rl.init()
        for group in (comm, comm.split(0)):
            assert group is not None
            x = np.full(2, rank + 1.0, np.float32)
            assert group.all_reduce(x).tolist() == [3.0, 3.0]
            choice = group.last_choice
            assert choice is not None
            found.append((choice.algorithm, choice.protocol, choice.reason))
        group.close()
        comm.close()
    logging.getLogger("ringleader.TUNE").removeHandler(handler)
    return found, messages


Settings = dict[int, dict[str, str | None]]
Run = Callable[[Settings], list[tuple[list[tuple[str, str, str]], list[str]]]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs `_choices` in two ranks, each with its own settings."""
    with rl.WorkerGroup(2, transport="shm") as group:
        yield lambda settings: group.run(_choices, settings, timeout=150)


def test_a_table_is_loaded_by_itself(tmp_path: Path, run: Run) -> None:
    path = table.default_path(fingerprint(), {"XDG_CONFIG_HOME": str(tmp_path)})
    table.save(_table(), path)
    mine = {"XDG_CONFIG_HOME": str(tmp_path), "RINGLEADER_TUNING_FILE": None}
    # Only rank 0 has it.
    for found, _ in run({0: mine}):
        assert [(algorithm, protocol) for algorithm, protocol, _ in found] == [(ODD, "pull")] * 2
        assert all(reason == "tuner (rule 1)" for *_, reason in found)


def test_the_other_ranks_files_do_not_count(tmp_path: Path, run: Run) -> None:
    mine = _write(tmp_path / "a.json", table.dumps(_table()))
    other = _write(tmp_path / "b.json", table.dumps(_table("linear")))
    (first, _), (second, _) = run({0: {"RINGLEADER_TUNING_FILE": mine}, 1: {"RINGLEADER_TUNING_FILE": other}})
    assert first == second
    assert first[0][0] == ODD
    (first, _), (second, _) = run({1: {"RINGLEADER_TUNING_FILE": other}})
    assert first == second
    assert "built-in" in first[0][2]


def test_rank_0s_environment_and_rules_decide(tmp_path: Path, run: Run) -> None:
    rules = RuleSet((Rule("all_reduce", algorithm="binomial"),), "rules")
    mine = _write(tmp_path / "rules.json", rulefile.dumps(rules))
    (first, _), (second, heard) = run({0: {"RINGLEADER_RULES": mine}, 1: {"RINGLEADER_ALGO": "ring"}})
    assert first == second
    assert first[0][0] == "binomial"
    assert any("RINGLEADER_ALGO=ring of this rank is ignored" in message for message in heard)
    (first, _), (second, heard) = run({0: {"RINGLEADER_ALGO": "ring"}, 1: {"RINGLEADER_RULES": mine}})
    assert first == second
    assert first[0][0] == "ring"
    assert any("RINGLEADER_RULES" in message and "is ignored" in message for message in heard)


def test_rules_come_before_the_table_and_the_environment_before_both(tmp_path: Path, run: Run) -> None:
    rules = RuleSet((Rule("all_reduce", algorithm="binomial"),), "rules")
    files: dict[str, str | None] = {
        "RINGLEADER_RULES": _write(tmp_path / "rules.json", rulefile.dumps(rules)),
        "RINGLEADER_TUNING_FILE": _write(tmp_path / "table.json", table.dumps(_table())),
    }
    assert run({0: files})[1][0][0][0] == "binomial"
    assert run({0: {**files, "RINGLEADER_ALGO": "ring"}})[1][0][0][0] == "ring"


@pytest.mark.parametrize("damage", ["cut", "empty", "newer", "other", "missing"])
def test_a_table_that_cannot_be_used_is_a_warning(tmp_path: Path, damage: str, run: Run) -> None:
    text = table.dumps(_table())
    raw = json.loads(text)
    if damage == "newer":
        raw["version"] = 2
    if damage == "other":
        raw["fingerprint"]["cpu"] = "another"
    text = {"cut": text[:300], "empty": ""}.get(damage, json.dumps(raw))
    path = tmp_path / "table.json"
    if damage != "missing":
        path.write_text(text)
    (first, heard), (second, _) = run({0: {"RINGLEADER_TUNING_FILE": str(path)}})
    assert first == second
    assert "built-in" in first[0][2]
    warnings = [message for message in heard if str(path) in message]
    assert len(warnings) == 1
    assert "built-in rules" in warnings[0]


def test_rules_that_are_wrong_are_an_error_on_all_ranks(tmp_path: Path, run: Run) -> None:
    path = _write(tmp_path / "rules.json", "{}")
    with pytest.raises(SpawnError, match=r"rules\.json.*reported by rank 0"):
        run({0: {"RINGLEADER_RULES": path}})


def test_a_table_for_other_numbers_of_hosts_is_not_for_this_job() -> None:
    told = tell(Config())
    told["table"] = {
        "source": "t",
        "model": DEFAULT.to_json(),
        "rules": {"2:tcp": rulefile.dumps(RuleSet((Rule("reduce", algorithm="chain"),), "t"))},
    }
    assert understand(told, Config(), hosts=1).rules == ()
    assert [rules.source for rules in understand(told, Config(), hosts=2).rules] == ["tuner"]


def test_ranks_that_understood_otherwise_do_not_start() -> None:
    first, second = own_guide(Config()), own_guide(Config(algo="ring"))
    assert first.digest != second.digest
    check_agreement([first.digest, first.digest], ["rank 0", "rank 1"])
    with pytest.raises(InvalidArgument, match="rank 1 reads the rules of rank 0 otherwise"):
        check_agreement([first.digest, second.digest], ["rank 0", "rank 1"])


# ------------------------------------------------------------------------------------------------ ringleader tune


def _tune(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "RINGLEADER_TUNING_FILE"}
    environment["XDG_CONFIG_HOME"] = str(folder)
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "ringleader", "tune", *arguments],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tune_writes_a_table_that_the_next_start_reads(tmp_path: Path, run: Run) -> None:
    said = _tune(tmp_path, "--budget", "5", "--places", "2:shm,2:tcp", "--report", str(tmp_path / "report"))
    assert "had not seen" in said
    path = table.default_path(fingerprint(), {"XDG_CONFIG_HOME": str(tmp_path)})
    made = table.load(path)
    assert {rule.layouts for rule in made.rules["1:tcp"].rules} == {("shm",), ("net",)}
    assert made.errors.points > 0
    assert {p.name for p in (tmp_path / "report").iterdir()} == {
        "predicted.png",
        "regret.png",
        "points.csv",
        "report.md",
    }
    found, _ = run({0: {"XDG_CONFIG_HOME": str(tmp_path), "RINGLEADER_TUNING_FILE": None}})[1]
    assert found[0][2].startswith("tuner (rule ")


@pytest.mark.slow
def test_tune_keeps_older_rules_on_demand(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    for places, more in (("2:shm", ()), ("2:tcp", ("--keep",))):
        _tune(tmp_path, "--budget", "2", "--places", places, "--collectives", "broadcast", "-o", str(output), *more)
    made = table.load(output)
    assert {rule.layouts for rule in made.rules["1:tcp"].rules} == {("shm",), ("net",)}


@pytest.mark.slow
def test_tune_in_a_job_measures_its_layout(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "table.json"
    torchrun: tuple[str, ...] = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    said = _tune(
        tmp_path, "--budget", "3", "--collectives", "all_reduce", "-o", str(output),
        launcher=(*torchrun, sys.executable),
    )  # fmt: skip
    assert said.count("rules to") == 1  # said by rank 0 only
    rules: Any = table.load(output).rules["1:tcp"].rules
    assert {(rule.collective, rule.layouts, rule.ranks) for rule in rules} == {("all_reduce", ("shm",), Range(2, 2))}
