"""Failures through torch: late ranks, disagreement, abort, exceptions, interpreter exit, Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from meeting_support import PROMPT
from torch.distributed.constants import default_pg_timeout
from torch_support import ENV, Ranks, events, joined, timed_barrier

import ringleader as rl

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


def text_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        assert isinstance(error, (rl.errors.RingleaderError, ValueError, TypeError)), type(error)
        return f"{type(error).__name__}: {error}"
    return "no error"


LIMITS = {"group": 4.0, "barrier": 1.5, "wait": 1.0, "future": 1.5}  # that of the group counts while it is made, too


def late(path: str, how: str) -> tuple[str, float, bool]:
    gave_up = events(path, (0, 1))
    with joined(path, seconds=LIMITS[how] if how == "group" else 60.0) as (rank, _):
        dist.all_reduce(torch.ones(1))
        if rank == 2:
            return "", 0.0, all(event.wait() for event in gave_up.values())
        started = time.monotonic()
        call = {
            "group": lambda: dist.all_reduce(torch.ones(3)),
            "barrier": lambda: timed_barrier(LIMITS[how]),
            "wait": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(timedelta(seconds=LIMITS[how])),
            "future": lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait(),
        }[how]
        if how == "future":
            dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=LIMITS[how]))
        try:
            call()
        except RuntimeError as error:  # as torch programs expect
            right = isinstance(error, rl.errors.CollectiveTimeout) and isinstance(error, dist.DistBackendError)
            return str(error), time.monotonic() - started, right
        finally:
            gave_up[rank].set()
        return "no error", 0.0, False


@pytest.mark.parametrize("how", ["group", "barrier", "wait", "future"])
def test_late_rank_is_named_in_time(ranks: Ranks, how: str) -> None:
    *found, (_, _, in_time) = ranks.run(late, how)
    assert in_time  # the others gave up without rank 2
    for text, seconds, right in found:
        assert right, text
        assert seconds < LIMITS[how] + PROMPT
        assert ("still running" if how == "wait" else "rank 2") in text
    assert max(seconds for _, seconds, _ in found) > LIMITS[how] - 0.1


def limited(path: str) -> tuple[list[float], str]:
    gave_up = events(path, (0, 1))
    os.environ["RINGLEADER_TIMEOUT"] = "1.5"
    try:
        with joined(path, seconds=default_pg_timeout.total_seconds()) as (rank, _):
            limits = [dist.group.WORLD.communicator.timeout]
            own = dist.new_group([0, 1, 2], timeout=timedelta(seconds=40))
            limits.append(own.communicator.timeout)
            told = joined_settings_limit()
            if rank == 2:
                assert all(event.wait() for event in gave_up.values())
                return [*limits, told], ""
            try:
                return [*limits, told], text_of(lambda: dist.all_reduce(torch.ones(3)))
            finally:
                gave_up[rank].set()
    finally:
        del os.environ["RINGLEADER_TIMEOUT"]


def joined_settings_limit() -> float:
    group = dist.new_group([0, 1, 2], pg_options={"timeout": 7})
    return float(group.communicator.timeout)


def test_the_setting_limits_groups_that_have_torchs_default(ranks: Ranks) -> None:
    found = ranks.run(limited)
    for limits, _ in found:
        assert limits == [1.5, 40.0, 7.0]
    for _, text in found[:2]:
        first, second = text.splitlines()[:2]
        assert first.startswith("CollectiveTimeout: rank 2 (") and "has not entered all_reduce #" in first, text
        assert first.endswith("; the timeout has passed") and second.startswith("timed out after 1.")


@pytest.mark.parametrize("what", ["shape", "length", "type", "root", "operator", "operation"])
def test_disagreement_is_an_error_everywhere(ranks: Ranks, what: str) -> None:
    texts = ranks.run(disagree, what)
    for text in texts:
        assert text.startswith(("MismatchError", "AbortedError")), texts
        assert "ranks disagree about the operation" in text and "rank 1" in text, texts


def disagree(path: str, what: str) -> str:
    with joined(path) as (rank, _):
        odd = rank == 1
        calls: dict[str, Any] = {
            "shape": lambda: dist.all_reduce(torch.ones((3, 2) if odd else (2, 3))),
            "length": lambda: dist.all_reduce(torch.ones(2 if odd else 1)),
            "type": lambda: dist.all_reduce(torch.ones(4, dtype=torch.float16 if odd else torch.bfloat16)),
            "root": lambda: dist.reduce(torch.ones(4), 1 if odd else 0),
            "operator": lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
            "operation": lambda: dist.broadcast(torch.ones(4), 0) if odd else dist.all_reduce(torch.ones(4)),
        }
        first = text_of(calls[what])
        # A rank that only gives may be done before anybody sees the difference; the next operation tells it.
        return first if first != "no error" else text_of(dist.barrier)


def wrong_arguments(path: str) -> list[str]:
    with joined(path) as (_, n):
        group = dist.distributed_c10d._get_default_group()
        texts = [
            text_of(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float8_e5m2))),
            text_of(lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)),
            text_of(lambda: dist.all_gather([torch.ones(3)], torch.ones(3))),
            text_of(lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(3))),
            text_of(lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(10))),
            text_of(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(n), [1, 1], [1] * n)),
            text_of(lambda: group.allreduce([torch.ones(1), torch.ones(1)])),
            text_of(lambda: dist.all_reduce(torch.ones(1).expand(4))),
            text_of(lambda: dist.all_reduce(torch.eye(3).to_sparse_csr())),
        ]
        x = torch.ones(2)
        dist.all_reduce(x)  # nothing was sent, the group is unharmed
        assert x.tolist() == [n, n]
        return texts


def test_wrong_arguments_are_refused_at_once(ranks: Ranks) -> None:
    for texts in ranks.run(wrong_arguments):
        for text, words in zip(
            texts,
            [
                "float8_e5m2",
                "avg is not offered for bool",
                "has 1 tensors; expected 3",
                "expected 9",
                "3 equal blocks",
                "split_sizes",
                "expected one",
                "repeats elements",
                "sparse",
            ],
            strict=True,
        ):
            assert words in text, text


def abort_and_go_on(path: str) -> tuple[str, float, list[float], float]:
    ended = events(path, (0, 1))
    with joined(path, seconds=60.0) as (rank, _):
        dist.all_reduce(torch.ones(1))
        group = dist.distributed_c10d._get_default_group()
        started = time.monotonic()
        if rank == 0:
            threading.Timer(0.3, group.abort).start()
        elif rank == 2:
            assert all(event.wait() for event in ended.values())
        text = text_of(lambda: dist.all_reduce(torch.ones(3)))
        assert "AbortedError" in text_of(lambda: dist.all_reduce(torch.ones(3)))
        assert dist.all_reduce(torch.ones(3), async_op=True).exception() is not None
        elapsed = time.monotonic() - started
        if rank in ended:
            ended[rank].set()
    with joined(path + "-again") as (rank, _):
        x = torch.full((2,), float(rank))
        dist.all_reduce(x)
        if rank == 0:
            works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(5)]
            works[0].get_future()
        started = time.monotonic()
    return text, elapsed, x.tolist(), time.monotonic() - started


def test_abort_then_a_new_group_and_destroy_in_flight(ranks: Ranks) -> None:
    for text, elapsed, values, closing in ranks.run(abort_and_go_on):
        assert "AbortedError" in text and "rank 0 called abort()" in text
        assert elapsed < 2 * PROMPT and values == [3.0, 3.0] and closing < PROMPT


def destroy_at_once(path: str) -> tuple[float, list[float]]:
    with joined(path) as (rank, n):
        xs = [torch.full((100_000,), float(rank + i)) for i in range(10)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in works:
        work.wait()
    return float(n), [x.unique().item() for x in xs]


def test_what_all_ranks_have_started_is_completed_by_destroy(ranks: Ranks) -> None:
    for n, values in ranks.run(destroy_at_once):
        assert values == [n * (n - 1) / 2 + n * i for i in range(10)]


def many_groups(path: str) -> tuple[int, int]:
    with joined(path) as (rank, _):
        counts = []
        for i in range(40):
            group = dist.new_group([0, 1])
            if rank < 2:
                x = torch.ones(1)
                dist.all_reduce(x, group=group)
                assert x.item() == 2.0
                dist.destroy_process_group(group)
            if i in (5, 39):
                counts.append(len(os.listdir("/proc/self/fd")))
        return counts[0], counts[1]


def test_groups_come_and_go(ranks: Ranks) -> None:
    for before, after in ranks.run(many_groups):
        assert after - before <= 5


def dropped_works(path: str) -> tuple[int, list[float]]:
    """Nobody waits: results are right after the next barrier, and no works or tensors are left over."""
    with joined(path) as (rank, _):
        group = dist.distributed_c10d._get_default_group()
        x = torch.full((8,), float(rank))
        for _ in range(300):
            y = torch.full((3, 2), float(rank)).T
            dist.all_reduce(y, async_op=True)
            del y
        dist.all_reduce(x, async_op=True)
        dist.barrier()
        dist.barrier(async_op=True).wait()
        return len(group._holder._live), x.tolist()


def test_works_that_nobody_waits_for(ranks: Ranks) -> None:
    for left, values in ranks.run(dropped_works):
        assert left < 80 and values == [3.0] * 8


def exits(name: str, folder: Path, rounds: int) -> list[list[tuple[int, float]]]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RINGLEADER_")} | ENV
    script = subprocess.run(
        [sys.executable, str(HERE / "torch_exits.py"), name, str(folder / "stderr"), str(rounds)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert script.returncode == 0, script.stderr
    return json.loads(script.stdout.splitlines()[-1])


@pytest.mark.slow
def test_exit_without_destroy_does_not_hang(tmp_path: Path) -> None:
    for ends in exits("pending", tmp_path, 6):
        assert all(code == 0 and seconds < 29 for code, seconds in ends), ends  # operations have 60 s


def test_exception_ends_all_ranks(tmp_path: Path) -> None:
    ((zero, one),) = exits("raises", tmp_path, 1)
    assert one[0] == 1 and zero[0] == 1 and one[1] < 29 and zero[1] - one[1] < 20
    assert "rank 1 has had enough" in (tmp_path / "stderr-1").read_text()
    assert "rank 1" in (tmp_path / "stderr-0").read_text()


def test_ctrl_c_ends_waits(tmp_path: Path) -> None:
    (ends,) = exits("interrupted", tmp_path, 1)
    assert all(seconds < 20 for _, seconds in ends), ends
    assert any("KeyboardInterrupt" in (tmp_path / f"stderr-{rank}").read_text() for rank in range(2))


TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("ringleader")
x = torch.full((4,), float(dist.get_rank() + 1))
dist.all_reduce(x)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(x).sum().backward()
print(f"sum {x.tolist()} {type(dist.group.WORLD).__name__}", flush=True)
dist.destroy_process_group()
dist.init_process_group("ringleader")  # once more over the same store
dist.all_reduce(x)
print(f"again {x.tolist()}", flush=True)
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import ringleader.torch\n" + TORCHRUN)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={k: v for k, v in os.environ.items() if not k.startswith("RINGLEADER_")} | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("sum [3.0, 3.0, 3.0, 3.0] ProcessGroupRingleader") == 2
    assert run.stdout.count("again [6.0, 6.0, 6.0, 6.0]") == 2
