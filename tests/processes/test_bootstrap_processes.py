"""Groups between real processes with the real engine, and every way in which a job may be launched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from meeting_support import PROMPT, Event, free_port

import ringleader as rl
from ringleader.errors import CollectiveTimeout
from ringleader.runtime.spawn import WorkerGroup

# ------------------------------------------------------------------------------------------- what runs in the processes


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def add_up(job: int, rounds: int):
    """Sums that only this job's ranks can give."""
    results = []
    for _ in range(rounds):
        with rl.init() as comm:
            x = np.array([job * 100 + comm.rank], np.int64)
            results.append(int(comm.all_reduce(x)[0]))
    return results


def many_live_groups(count: int):
    with rl.init() as comm:
        comm.barrier()
        before = descriptors()
        groups = [comm.split(0) for _ in range(count)]
        grown = descriptors() - before
        sums = {int(g.all_reduce(np.array([g.rank + i]))[0]) - g.size * i for i, g in enumerate(groups)}
        for g in groups:
            g.close()
        return grown, sums


def arrive(late: int, limit: float, folder: str):
    """The late rank comes when the others have given up, or after a while if they are patient."""
    rank = int(os.environ["RINGLEADER_RANK"])
    gave_up = {each: Event(folder, each) for each in range(4) if each != late}
    if rank == late and limit > PROMPT:
        time.sleep(1)
    elif rank == late:
        assert all(event.wait() for event in gave_up.values())
    started = time.monotonic()
    try:
        with rl.init(start_timeout=limit):
            return "formed", ""
    except CollectiveTimeout as error:
        elapsed = time.monotonic() - started
        if rank in gave_up:
            gave_up[rank].set()
        return elapsed, str(error)


def interface_line(caplog_file: str):
    with rl.init():
        return open(caplog_file.replace("%p", str(os.getpid()))).read()


# ------------------------------------------------------------------------------------------------------------- groups


@pytest.fixture(scope="module")
def four():
    with WorkerGroup(4, transport="shm") as group:
        yield group


@pytest.mark.slow
def test_a_late_rank_is_named_and_a_longer_limit_helps(four, tmp_path):
    outcomes = four.run(arrive, 2, 2.0, str(tmp_path))
    for rank in (0, 1, 3):
        elapsed, message = outcomes[rank]
        assert "rank 2 did not arrive" in message and "2.0 s" in message and elapsed < PROMPT
    assert max(elapsed for elapsed, _ in outcomes) > 1.5
    assert four.run(arrive, 2, 30.0, str(tmp_path)) == [("formed", "")] * 4


def test_200_live_groups_need_no_descriptors(four):
    for grown, sums in four.run(many_live_groups, 200):
        assert grown <= 5 and sums == {0 + 1 + 2 + 3}


@pytest.mark.slow
def test_eight_jobs_at_once_do_not_meet():
    jobs = [WorkerGroup(2, transport="tcp" if job % 2 else None) for job in range(8)]
    results: dict[int, list[list[int]]] = {}

    def body(job):
        results[job] = jobs[job].run(add_up, job, 5, timeout=150)

    try:
        threads = [threading.Thread(target=body, args=(job,)) for job in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for group in jobs:
            group.close(force=True)
    assert results == {job: [[200 * job + 1] * 5] * 2 for job in range(8)}


def test_the_choice_of_interface_is_logged_once_per_rank(tmp_path):
    path = str(tmp_path / "log.%p")
    env = {"RINGLEADER_DEBUG": "INFO", "RINGLEADER_DEBUG_FILE": path}
    with WorkerGroup(2, transport="tcp", env=env) as group:
        for rank, text in enumerate(group.run(interface_line, path)):
            lines = [line for line in text.splitlines() if " uses " in line]
            assert len(lines) == 1 and f"rank {rank} (host" in lines[0]
            assert "uses lo (127.0.0.1" in lines[0] and "all ranks are on this host" in lines[0]


# ---------------------------------------------------------------------------------------------------------- launchers

RANK_PROGRAM = """
import sys, time
start = time.monotonic()
import ringleader as rl, numpy as np
try:
    with rl.init() as comm:
        x = comm.all_reduce(np.array([comm.rank + 1], np.int64))
        sys.stdout.write(f"sum {x[0]} of {comm.size}\\n")  # one piece: ranks may share the pipe
        sys.stdout.flush()
        comm.barrier()
except rl.errors.RingleaderError as error:
    print(type(error).__name__, error)
    sys.exit(3)
finally:
    sys.stdout.write(f"{'torch' in sys.modules}\\n")
"""


def launch(environments, tmp_path, wait=100.0):
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK_PROGRAM))
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for env in environments
    ]
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=wait)[0])
        finally:
            process.kill()
    return [process.returncode for process in processes], outputs


def torch_variables(n, host, port):
    common = {"WORLD_SIZE": str(n), "MASTER_ADDR": host, "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(n)}
    return [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(n)]


def open_mpi_variables(n, host, port):
    return [
        {
            "OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(n), "PMIX_NAMESPACE": f"test-{port}",
        }
        for r in range(n)
    ]  # fmt: skip


def mpich_variables(n, host, port):
    return [
        {"PMI_RANK": str(r), "PMI_SIZE": str(n), "MPI_LOCALRANKID": str(r), "MPI_LOCALNRANKS": str(n)} for r in range(n)
    ]


def slurm_variables(n, host, port):
    common = {"SLURM_NTASKS": str(n), "SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": str(n)}
    return [
        {**common, "SLURM_JOB_NODELIST": "localhost", "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(n)
    ]


def own_variables(n, host, port):
    common = {"RINGLEADER_SIZE": str(n), "RINGLEADER_STORE": f"{host}:{port}"}
    return [{**common, "RINGLEADER_RANK": str(r)} for r in range(n)]


@pytest.mark.parametrize(
    "variables", [torch_variables, open_mpi_variables, mpich_variables, slurm_variables, own_variables]
)
def test_launchers(variables, tmp_path):
    codes, outputs = launch(variables(2, "127.0.0.1", free_port()), tmp_path)
    assert codes == [0, 0], outputs
    # Nobody pays for importing torch who does not use it.
    assert outputs == ["sum 3 of 2\nFalse\n"] * 2


@pytest.mark.parametrize("host", ["localhost", "127.0.1.1", "::1", socket.gethostname()])
def test_names_and_families_of_the_master(host, tmp_path):
    try:
        socket.getaddrinfo(host, 1)
        port = free_port(host if ":" in host else "127.0.0.1")
    except OSError:
        pytest.skip(f"{host} is not available here")
    codes, outputs = launch(torch_variables(2, host, port), tmp_path)
    assert codes == [0, 0], outputs


@pytest.mark.slow
def test_torchrun(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK_PROGRAM))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3 of 2") == 2


def test_a_busy_port_is_told_by_all_ranks_within_5_s(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        started = time.monotonic()
        codes, outputs = launch(torch_variables(3, "127.0.0.1", port), tmp_path)
        elapsed = time.monotonic() - started
    assert codes == [3, 3, 3]
    for output in outputs:
        assert output.startswith("RendezvousError") and f"127.0.0.1:{port} is busy" in output
    assert elapsed < 40  # 5 s, and starting three interpreters on a loaded machine; init's own limit is longer


def test_the_failure_of_the_rank_that_serves_the_store_is_told(tmp_path):
    environments = torch_variables(3, "127.0.0.1", free_port())
    environments[0]["RINGLEADER_TRANSPORT"] = "shm"
    environments[2]["RINGLEADER_SHM_DISABLE"] = "1"
    codes, outputs = launch(environments, tmp_path)
    assert codes == [3, 3, 3], outputs
    assert all("RINGLEADER_TRANSPORT=shm, but not all ranks can share memory" in output for output in outputs), outputs


def test_wrong_secret_on_one_rank(tmp_path):
    environments = torch_variables(2, "127.0.0.1", free_port())
    environments[0]["RINGLEADER_SECRET"] = "the right secret"
    environments[1]["RINGLEADER_SECRET"] = "another secret.."
    for env in environments:
        env["RINGLEADER_STORE_TIMEOUT"] = "8"
    codes, outputs = launch(environments, tmp_path)
    assert codes == [3, 3]
    assert "secret differs" in outputs[1] and "rank 1 did not arrive" in outputs[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_while_a_peer_is_missing(rank, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import ringleader as rl\nprint('start', flush=True)\nrl.init()")
    env = {**os.environ, **torch_variables(2, "127.0.0.1", free_port())[rank]}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "start\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=40)
    assert "KeyboardInterrupt" in errors


HASTE = """
    import sys, time
    import numpy as np
    import ringleader as rl

    for round in range(6):
        with rl.init(timeout=20, start_timeout=20) as comm:
            x = np.array([comm.rank + round])
            comm.all_reduce(x)
            assert x[0] == 3 + 3 * round, x
            if comm.rank == round % 3:
                time.sleep(0.2)  # this one leaves when the others are already in the next job
    print("right")
"""


@pytest.mark.parametrize("meeting", ["directory", "port"])
def test_one_job_after_the_other_while_a_rank_is_late(meeting, tmp_path):
    """Ranks that init() again early must not meet in what rank 0 still serves for the previous job."""
    where = {"RINGLEADER_STORE": f"127.0.0.1:{free_port()}"} if meeting == "port" else {}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HASTE)],
            env={
                **os.environ,
                **where,
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
                "PMIX_NAMESPACE": f"haste-{os.getpid()}",
                "XDG_RUNTIME_DIR": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for rank in ranks:
            output, _ = rank.communicate(timeout=200)
            assert output == "right\n" and rank.returncode == 0, output
    finally:
        for rank in ranks:
            rank.kill()
    assert list(tmp_path.iterdir()) == []
