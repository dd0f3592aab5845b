"""Turns of the benchmark against other libraries: real processes that answer, hang, end, refuse."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from meeting_support import wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from peers.limits import Limits, compile_helper
from peers.systems import Launch, System
from peers.turns import Group, PeerError

# A worker without a library: it answers a block with its rank, and does with others what it is told.
WORKER = """
import json, os, socket, sys, time
rank = int(sys.argv[2])
print("rank", rank, "speaking", flush=True)
if sys.argv[3] == "never": raise SystemExit("no such library")
it = socket.socket(socket.AF_UNIX); it.connect(sys.argv[1]); lines = it.makefile("rw")
def say(m): lines.write(json.dumps(m) + "\\n"); lines.flush()
say({"system": "x", "rank": rank, "pid": os.getpid()})
for line in lines:
    request = json.loads(line)
    what = request.get("contestant") if rank == 1 else "answer"
    if request["do"] == "end": break
    if what == "hang": time.sleep(60)
    if what == "end": os._exit(3)
    if what == "refuse": say({"error": "no such type"})
    else: say({"times": [1000 * (rank + 1)] * request.get("iterations", 0), "wrong": rank, "choice": f"of {rank}"})
"""


def group(folder: Path, how: str = "", limit: float = 60.0) -> Group:
    script = folder / "worker.py"  # leftovers are recognised by this name
    script.write_text(WORKER)
    meeting = folder / "meeting"
    command = (sys.executable, "-I", "-S", str(script), str(meeting))
    starts = [Launch((*command, str(rank), how), {}) for rank in range(3)]
    return Group(System("x", "", "shm"), 3, starts, meeting, limit)


def pids_are_gone(it: Group) -> bool:
    return wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in it._pids))


def test_a_turn_gathers_all_ranks_in_order(tmp_path: Path):
    it = group(tmp_path)
    assert it.prepare("a", 8, "float32") == {"wrong": 3, "choice": "of 0"}
    assert it.block("a", 4, 1, False).tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    it.close()
    assert pids_are_gone(it)


@pytest.mark.parametrize(
    ("what", "limit", "says"), [("hang", 2.0, "took more than 2 s"), ("end", 60.0, "rank 1 ended")]
)
def test_who_hangs_or_ends_is_reported_with_its_output_and_removed(tmp_path: Path, what: str, limit: float, says: str):
    it = group(tmp_path, limit=limit)
    with pytest.raises(PeerError, match=says) as caught:
        it.block(what, 4, 1, False)
    assert "rank 2 speaking" in str(caught.value)
    it.close(force=True)
    assert pids_are_gone(it)


def test_a_refusal_costs_the_turn_only(tmp_path: Path):
    it = group(tmp_path)
    with pytest.raises(PeerError, match="no such type"):
        it.prepare("refuse", 8, "float16")
    assert it.prepare("a", 8, "float32")["wrong"] == 3
    it.close()


def test_who_does_not_start_is_reported_at_once(tmp_path: Path):
    with pytest.raises(PeerError, match=r"ended while starting.*no such library"):
        group(tmp_path, "never")


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="needs a C compiler")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_limits_are_measured(tmp_path: Path):
    helper = Limits(compile_helper(tmp_path))
    try:
        state = helper.state()
        assert min(state.flag_us, state.copy_gbs, state.add_gbs) > 0
        helper.prepare("ideal", 1 << 22, "float32")
        large = helper.block("ideal", 5, 1, False)
        assert large.shape == (1, 5)
        helper.prepare("ideal", 1 << 12, "float32")
        small = helper.block("ideal", 50, 1, True)
        assert small.shape == (1, 50) and small.min() < large.min()  # of the same work, 1024 times as much
    finally:
        helper.close()
