"""The flight recorder in jobs that go wrong: what `ringleader autopsy` says, what torchfrtrace reads, what is left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT, Event, wait_until

import ringleader as rl
from ringleader.runtime.flight import autopsy, read_recordings
from ringleader.runtime.flight.recording import STACKS

N = 3


def _go_wrong(what: str, folder: str) -> str:
    comm = rl.init(timeout=60)
    for _ in range(5):
        comm.all_reduce(np.ones(4))
    rank, over = comm.rank, [Event(folder, each) for each in range(N)]
    try:
        if what == "late":
            if rank == 2:
                all(over[each].wait(60) for each in (0, 1))
            comm.all_reduce(np.ones(1000, np.float32), timeout=1.0)
        elif what == "different":
            if rank == 1:
                comm.broadcast(np.ones(7, np.int32), root=2)
            else:
                comm.all_reduce(np.ones(1000, np.float32))
        elif what == "killed":
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.all_reduce(np.ones(1000, np.float32))
        elif what == "message":
            if rank == 0:
                comm.recv(np.ones(3), 1, tag=5, timeout=1.0)
            over[0].wait(60)
    except rl.errors.RingleaderError as error:
        return str(error)
    finally:
        over[rank].set()
        comm.close()
    return ""


def _job(what: str, folder: Path, transport: str) -> Path:
    records, events = folder / "records", folder / "events"
    events.mkdir(parents=True)
    env = {"RINGLEADER_RECORDER_DIR": str(records), "TORCH_FR_DUMP_TEMP_FILE": str(folder / "torch" / "fr_")}
    try:
        rl.spawn(_go_wrong, N, what, str(events), transport=transport, env=env, timeout=150)
    except rl.errors.SpawnError:
        assert what == "killed"
    return records


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_comes_late_is_named_with_the_call_that_others_wait_in(tmp_path: Path, transport: str) -> None:
    (finding,) = autopsy(read_recordings(_job("late", tmp_path, transport)))
    assert finding.ranks == (2,)
    assert finding.verdict.startswith("rank 2 (host ") and "all_reduce #6 of float32 (1000,), sum" in finding.verdict
    assert "2 ranks (0, 1) waited 1." in finding.verdict and "test_flight_recorder.py:" in finding.verdict
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "timeout=1.0)" in text)
    assert f"test_flight_recorder.py:{line} in _go_wrong" in finding.verdict


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_was_called_differently_is_shown_side_by_side(tmp_path: Path, transport: str) -> None:
    (finding,) = autopsy(read_recordings(_job("different", tmp_path, transport)))
    assert finding.ranks == (1,)
    one, two = finding.verdict.split("; ")
    assert all(text in one for text in ("rank 1 (", "#6", "kind 'broadcast'", "dtype 'int32'", "root 2"))
    assert "2 ranks (0, 2)" in two and "kind 'all_reduce'" in two and "shape (1000,)" in two
    assert all("test_flight_recorder.py:" in text for text in (one, two))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_rank_is_named_from_what_it_has_left(tmp_path: Path, transport: str) -> None:
    records = _job("killed", tmp_path, transport)
    assert len(read_recordings(records)) == N
    command = [sys.executable, "-m", "ringleader.cli.main", "autopsy", str(records), "--last", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    first = done.stdout.splitlines()[0]
    assert "rank 2 (host " in first and "has not entered all_reduce #6" in first and "its process is gone" in first
    assert "all_reduce #5 of float64 (4,), sum, " in done.stdout  # with --last
    facts = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60).stdout)
    assert [finding["ranks"] for found in facts["jobs"].values() for finding in found] == [[2]]


def test_a_message_that_nobody_sent_is_blamed_on_its_sender(tmp_path: Path) -> None:
    (finding,) = autopsy(read_recordings(_job("message", tmp_path, "shm")))
    assert finding.ranks == (1,)
    assert "has not sent what rank 0 (host " in finding.verdict
    assert "recv #1 from rank 1, tag 5, 24 bytes, called at " in finding.verdict


def test_pytorchs_analyser_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    records = _job("different", tmp_path, "shm")
    # What the failure itself has left, and what is made of the recordings later.
    command = [sys.executable, "-m", "ringleader.cli.main", "autopsy", str(records), "--torch", f"{tmp_path}/later/fr_"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 1
    for folder in (tmp_path / "torch", tmp_path / "later"):
        assert sorted(path.name for path in folder.iterdir()) == ["fr_0", "fr_1", "fr_2"]
        output = tmp_path / f"{folder.name}.pickle"
        program = "import sys; from torch.distributed.flight_recorder.fr_trace import main; main(sys.argv[1:])"
        analyse = [sys.executable, "-c", program, "-p", "fr_", "-o", str(output), str(folder)]
        done = subprocess.run(analyse, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        _, database = pickle.loads(output.read_bytes())
        names = {each.collective_seq_id: each for each in database.collectives}
        assert all(names[number].pass_check and names[number].input_sizes == [[4]] for number in range(1, 6))
        odd = names[6]
        assert not odd.pass_check and odd.mismatch_collectives is not None
        kinds = {odd.collective_name, *(each.collective_name for each in odd.mismatch_collectives.values())}
        assert kinds == {"gloo:all_reduce", "gloo:broadcast"}


def _stuck(folder: str) -> str:
    comm = rl.init(timeout=60)
    if comm.rank == 1:
        Event(folder, "there").set()
        assert Event(folder, "seen").wait(60)
    comm.barrier()
    return str(os.getpid())


def test_a_running_job_is_looked_at_and_told_to_show_its_stacks(tmp_path: Path) -> None:
    records = tmp_path / "records"
    events = tmp_path / "events"
    events.mkdir()
    found: list[Any] = []

    def look() -> None:
        Event(events, "there").wait(60)

        def waits() -> bool:
            all_ = read_recordings(records)
            return any(o.kind == "barrier" and o.state == "running" for each in all_ for o in each.operations)

        wait_until(waits, PROMPT)
        time.sleep(0.7)  # until a wait counts as one
        found.append(autopsy(read_recordings(records)))
        for each in read_recordings(records):
            os.kill(each.pid, signal.SIGUSR2)
        wait_until(lambda: len([f for f in records.glob(f"*{STACKS}") if "_stuck" in f.read_text()]) == 2, PROMPT)
        Event(events, "seen").set()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        rl.spawn(_stuck, 2, str(events), env={"RINGLEADER_RECORDER_DIR": str(records)}, timeout=150)
    finally:
        thread.join()
    ((finding,),) = found
    assert finding.ranks == (1,) and "has not entered barrier #1, nor any operation before" in finding.verdict
    stacks = [path.read_text() for path in records.glob(f"*{STACKS}")]
    assert len(stacks) == 2 and all("in _stuck" in text for text in stacks)


def _usual() -> list[str]:
    with rl.init() as comm:
        comm.all_reduce(np.ones(3))
        work = comm.all_reduce(np.ones(3), async_op=True)
        work.wait()
        part = comm.subgroup([0, 1])
        assert part is not None
        part.barrier()
        return [each.text() for each in comm.recorded().operations]


def test_without_a_folder_nothing_is_written_and_the_program_can_look(tmp_path: Path) -> None:
    for texts in rl.spawn(_usual, 2, env={"TMPDIR": str(tmp_path)}, timeout=150):
        assert texts[:2] == [f"all_reduce #{i} of float64 (3,), sum" for i in (1, 2)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["/proc/nowhere", "file"])
def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, where: str) -> None:
    if where == "file":
        where = str(tmp_path / "a file")
        Path(where).write_text("mine")
    program = "import ringleader as rl, numpy as np\nwith rl.init(rank=0, size=1) as c: print(c.all_reduce(np.ones(1)))"
    env = {**os.environ, "RINGLEADER_RECORDER_DIR": where, "RINGLEADER_DEBUG": "WARN"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0 and done.stdout == "[1.]\n"
    assert done.stderr.count("cannot record in") == 1 and where in done.stderr


def test_a_full_disk_costs_a_warning(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        program = "import ringleader as rl\nwith rl.init(rank=0, size=1) as c: [c.barrier() for _ in range(2000)]"
        env = {**os.environ, "RINGLEADER_RECORDER_DIR": str(disk), "RINGLEADER_DEBUG": "WARN"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        assert "No space left on device" in done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _traced(_: str) -> None:
    with rl.init() as comm:
        for step in range(400):
            if comm.rank == 1 and step % 100 == 0:
                time.sleep(0.01)
            comm.all_reduce(np.ones(1000, np.float32))
        comm.barrier()


def test_a_traced_job_is_shown_as_one_time_line(tmp_path: Path) -> None:
    folder, output = tmp_path / "trace", tmp_path / "merged.json"
    rl.spawn(_traced, 2, "", env={"RINGLEADER_TRACE": str(folder)}, timeout=150)
    command = [sys.executable, "-m", "ringleader.cli.main", "trace"]
    merge = [*command, "merge", str(folder), "-o", str(output)]
    done = subprocess.run(merge, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "events of 2 ranks" in done.stdout, done.stderr
    events = json.loads(output.read_text())["traceEvents"]
    assert sum(each.get("cat") == "collective" for each in events) == 802
    done = subprocess.run([*command, "summary", str(folder), "--json"], capture_output=True, text=True, timeout=60)
    facts = json.loads(done.stdout)
    assert [each["operations"] for each in facts["ranks"]] == [401, 401]
    assert facts["ranks"][1]["awaited"] > 0.03 and facts["ranks"][0]["waiting"] > 0.03
    table = subprocess.run([*command, "summary", str(folder)], capture_output=True, text=True, timeout=60).stdout
    assert "waited for" in table and "within 0 us" in table


FORKED = """
import os, signal, numpy as np, ringleader as rl
comm = rl.init(rank=0, size=1)
comm.barrier()

def of_the_child():
    signal.alarm(20)
    x = np.ones(1)
    try:
        comm._core.isend(x.ctypes.data, x.nbytes, 0, 0)  # not stopped by what Python checks before it
    except rl.errors.ForkError:
        comm.recorded()
        os._exit(7)

if (pid := os.fork()) == 0:
    of_the_child()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert b"of_the_child" not in comm._core.recorded()
comm.send(np.ones(1), 0)
assert len(comm.recorded().messages) == 1
"""


def test_a_forked_child_leaves_its_parents_recording_alone(tmp_path: Path) -> None:
    """What the child calls is refused before anything of it is written into the file, which is the parent's."""
    env = {**os.environ, "RINGLEADER_RECORDER_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    (recording,) = read_recordings(tmp_path)
    assert [each.kind for each in recording.operations] == ["barrier"] and len(recording.messages) == 1
