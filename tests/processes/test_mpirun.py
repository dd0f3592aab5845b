"""`rl.init()`, the torch backend and the command line in jobs that mpirun has started: Open MPI and MPICH, for real."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import mpi_launch
import pytest
from meeting_support import free_port

SUMS = """
    import sys
    import numpy as np
    import ringleader as rl

    job = int(sys.argv[1])
    for round in range(2):
        with rl.init(timeout=60) as comm:
            x = np.arange(1000.0) + 1000 * job + comm.rank
            comm.all_reduce(x)
            wanted = comm.size * (np.arange(1000.0) + 1000 * job) + sum(range(comm.size))
            assert np.array_equal(x, wanted), (x[:5], wanted[:5])
            assert comm.all_gather(np.array([comm.rank])).ravel().tolist() == list(range(comm.size))
    sys.stdout.write(f"rank {comm.rank} of {comm.size} is right\\n")
"""

TRAIN = """
    import os
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import ringleader as rl

    torch.set_num_threads(1)
    rl.torch.init_process_group(sys.argv[1])
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # different starts, which DDP makes equal
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(20):
        x = torch.randn(32, 20, generator=generator)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [torch.empty(1, 20) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert losses[-1] < losses[0] / 2, losses
    assert all(torch.equal(w, weights[0]) for w in weights)
    sys.stdout.write(f"rank {rank} of {size} over {dist.get_backend()} is right\\n")
    sys.stdout.flush()
    del model, optimizer, loss
    dist.destroy_process_group()
    if sys.argv[1] == "gloo":  # a thread that it leaves running aborts some processes while Python ends
        os._exit(0)
"""

DIES = """
    import os, sys, time
    import numpy as np
    import ringleader as rl

    comm = rl.init(timeout=60)
    comm.barrier()
    if comm.rank == 1:
        os._exit(0)  # as if all were well: the launcher does not notice
    began = time.monotonic()
    try:
        comm.all_reduce(np.ones(10))
    except rl.errors.PeerLost as error:
        sys.stdout.write(f"rank {comm.rank} noticed {error.ranks} early: {time.monotonic() - began < 20}\\n")
"""


@pytest.fixture(params=mpi_launch.MPIS)
def mpi(request: pytest.FixtureRequest) -> str:
    mpi_launch.need(request.param)
    return request.param


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def lines(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize("ranks", [1, 4])
def test_init(mpi: str, script: Callable[[str], str], ranks: int):
    output = mpi_launch.run(mpi, ranks, [script(SUMS), "0"])
    assert lines(output) == [f"rank {rank} of {ranks} is right" for rank in range(ranks)]


def test_ranks_below_a_script_of_their_own(mpi: str, script: Callable[[str], str]):
    """``mpirun -n 2 ./run.sh``: what starts the ranks is not their parent."""
    inner = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {script(SUMS)!r}, '0']).returncode)"
    output = mpi_launch.run(mpi, 2, ["-c", inner])
    assert lines(output) == ["rank 0 of 2 is right", "rank 1 of 2 is right"]


def test_jobs_at_the_same_time_do_not_meet(mpi: str, script: Callable[[str], str]):
    started = [mpi_launch.start(mpi, 2, [script(SUMS), str(job)]) for job in range(3)]
    try:
        for process in started:
            output, _ = process.communicate(timeout=200)
            assert lines(output) == ["rank 0 of 2 is right", "rank 1 of 2 is right"], output
    finally:
        for process in started:
            mpi_launch.stop(process)


@pytest.mark.parametrize("variables", ["MASTER_ADDR", "RINGLEADER_STORE"])
def test_meeting_point_of_several_hosts(mpi: str, script: Callable[[str], str], variables: str):
    port = free_port()
    meeting = {
        "MASTER_ADDR": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        "RINGLEADER_STORE": {"RINGLEADER_STORE": f"127.0.0.1:{port}"},
    }[variables]
    output = mpi_launch.run(mpi, 3, [script(SUMS), "1"], **meeting)
    assert lines(output) == [f"rank {rank} of 3 is right" for rank in range(3)]


@pytest.mark.parametrize(
    ("mpi", "backend", "ranks"), [("openmpi", "ringleader", 4), ("mpich", "ringleader", 2), ("openmpi", "gloo", 2)]
)
def test_torch(mpi: str, script: Callable[[str], str], backend: str, ranks: int):
    mpi_launch.need(mpi)
    pytest.importorskip("torch")
    output = mpi_launch.run(mpi, ranks, [script(TRAIN), backend], timeout=150)
    assert lines(output) == [f"rank {rank} of {ranks} over {backend} is right" for rank in range(ranks)]


def test_torch_is_told_what_it_must_not_be_given():
    pytest.importorskip("torch")
    import ringleader as rl

    with pytest.raises(rl.errors.InvalidArgument, match=r"rank, store given; with them call torch\.distributed"):
        rl.torch.init_process_group(store=None, rank=0)


def test_a_rank_that_leaves_is_named(script: Callable[[str], str]):
    """MPICH's launcher lets the others go on."""
    mpi_launch.need("mpich")
    output = mpi_launch.run("mpich", 3, [script(DIES)])
    assert lines(output) == ["rank 0 noticed (1,) early: True", "rank 2 noticed (1,) early: True"], output


def test_bench(mpi: str):
    output = mpi_launch.run(mpi, 2, ["-m", "ringleader", "bench", "-b", "8", "-e", "64", "-n", "5", "--blocks", "1"])
    assert len(re.findall(r"^ +(8|16|32|64) ", output, re.MULTILINE)) == 4, output
    assert "Out of bounds values : 0 OK" in output, output
