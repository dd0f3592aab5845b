"""Rules among real ranks: what they choose runs, is shown, and costs nothing when a call is repeated."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader import tune
from ringleader.runtime import plans

N = 3


def _file(folder: Path, *rules: dict[str, Any]) -> str:
    path = folder / "rules.json"
    path.write_text(json.dumps({"format": "ringleader-rules", "version": 1, "rules": rules}))
    return str(path)


def _run(sizes: tuple[int, ...]) -> list[tuple[str, str, int, str, str, bool, str]]:
    """All-reduce each size: what ran, whether it was right, and what explain said."""
    found = []
    with rl.init() as comm:
        for size in sizes:
            x = np.arange(size, dtype=np.float32) % 7 + comm.rank
            comm.all_reduce(x)
            want = (np.arange(size, dtype=np.float32) % 7) * comm.size + sum(range(comm.size))
            ran = comm.last_choice
            assert ran is not None
            explained = comm.explain("all_reduce", size * 4)
            right = bool(np.allclose(x, want, atol=0 if ran.wire == "f32" else 0.5))
            same = (explained.choice.algorithm, explained.choice.channels) == (ran.algorithm, ran.channels)
            found.append(
                (ran.algorithm, ran.protocol, ran.channels, ran.wire, ran.reason, right and same, str(explained))
            )
    return found


def test_rules_choose_channels_segments_and_wire_formats(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        {"collective": "all_reduce", "bytes": "0-4K", "algorithm": "binomial"},
        {"collective": "all_reduce", "bytes": "64K-", "algorithm": "ring", "channels": 2, "segment": "16K"},
        {"collective": "all_reduce", "bytes": "256K-", "wire": "bf16"},
    )
    with rl.WorkerGroup(N, transport="tcp", env={"RINGLEADER_RULES": path}) as group:
        for small, middle, large in group.run(_run, (100, 30_000, 100_000), timeout=150):
            assert small[:4] == ("binomial", "push", 0, "f32")
            assert middle[:4] == ("ring:segments=2", "push", 2, "f32")
            assert large[:4] == ("ring:segments=4", "push", 2, "bf16")  # 66 KiB of each chunk travel
            assert small[4] == f"{path}, line 1 (rule 1)"
            assert large[4] == f"{path}, line 1 (rule 2); wire by {path}, line 1 (rule 3)"
            assert all(right for *_, right, _ in (small, middle, large))
            assert f"decided by {path}, line 1 (rule 2)" in large[6]
            assert "bf16 between nodes (wire by" in large[6]


def test_the_environments_wire_format_comes_before_the_rules(tmp_path: Path) -> None:
    path = _file(tmp_path, {"collective": "all_reduce", "wire": "bf16"})
    env: dict[str, str | None] = {"RINGLEADER_RULES": path, "RINGLEADER_WIRE": "f32"}
    with rl.WorkerGroup(2, transport="tcp", env=env) as group:
        assert group.run(_run, (1000,), timeout=150)[0][0][3] == "f32"


def test_a_wrong_file_is_an_error_of_every_rank(tmp_path: Path) -> None:
    path = _file(tmp_path, {"collective": "all_reduce", "algorithm": "rign"})
    with (
        rl.WorkerGroup(2, transport="shm", env={"RINGLEADER_RULES": path}) as group,
        pytest.raises(rl.errors.SpawnError, match=r"rules.json, line 1, rules\[0\]: unknown all_reduce algorithm"),
    ):
        group.run(_run, (8,), timeout=150)


def _logged(settings: dict[str, str]) -> list[str]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ringleader.TUNE")
    logger.addHandler(handler)
    try:
        with rl.init(**settings) as comm:
            part = comm.split(0)
            assert part is not None
            for count in (4, 4, 5):
                part.all_reduce(np.ones(count))
            part.close()
    finally:
        logger.removeHandler(handler)
    return messages


def test_a_file_that_is_for_another_job_says_so_once(tmp_path: Path) -> None:
    path = _file(tmp_path, {"collective": "all_reduce", "ranks": "5-", "algorithm": "ring"})
    with rl.WorkerGroup(2, transport="shm") as group:
        first, second = group.run(_logged, {"rules": path}, timeout=150)
    assert [m for m in first if path in m] == [
        f"{path}: none of its 1 rules is for a group of 2 ranks on 1 nodes; they change nothing here"
    ]
    assert not any("none of its" in message for message in second)


def test_the_log_has_the_matrix_and_a_line_for_each_new_choice() -> None:
    with rl.WorkerGroup(2, transport="shm") as group:
        first, second = group.run(_logged, {"debug": "INFO", "debug_subsys": "TUNE"}, timeout=150)
        plain = group.run(_logged, {"debug": "INFO"}, timeout=150)[0]
    tables = [message for message in first if message.startswith("2 ranks on 1 node (shm)")]
    assert len(tables) == 2  # of the job, and of the group that was split off
    assert "two_shot" in tables[0] and "dissemination" in tables[0]
    for messages in (first, second, plain):
        assert sum("all_reduce of 32 bytes: one_shot (push" in message for message in messages) == 1
    assert not any("2 ranks on" in message for message in (*second, *plain))


def test_a_repeated_call_selects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"select": 0, "build": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(plans.tune, "select", counted("select", tune.select))
    monkeypatch.setattr(plans.algorithms, "build", counted("build", plans.algorithms.build))
    with rl.init(rank=0, size=1) as comm:
        x, y = np.ones(100), np.ones(7)
        comm.all_reduce(x)
        comm.all_reduce(y)
        made = dict(calls)
        assert made["select"] == 2
        for _ in range(1000):
            comm.all_reduce(x)
            comm.all_reduce(y)
        assert calls == made
