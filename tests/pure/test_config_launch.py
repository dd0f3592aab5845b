"""Rank, size and meeting point from the variables of the launchers."""

from __future__ import annotations

import re

import pytest

from ringleader.errors import InvalidArgument
from ringleader.runtime.environment import detect, first_host, format_hostport, parse_hostport

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n0",
    "MASTER_PORT": "1234",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "run7", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-n0-77@1",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "3",
    "SLURM_JOB_NODELIST": "node[07-10,12],other", "SLURM_TASKS_PER_NODE": "2(x4)",
}  # fmt: skip


def test_nothing_set_is_a_job_of_one():
    launch = detect({"HOME": "/root"})
    assert (launch.rank, launch.size, launch.one_host, launch.master_addr) == (0, 1, True, None)


def test_torchrun():
    launch = detect(TORCHRUN)
    assert (launch.rank, launch.size, launch.local_rank, launch.local_size) == (3, 8, 1, 2)
    assert (launch.master_addr, launch.master_port, launch.job_id, launch.attempt) == ("n0", 1234, "run7", 2)
    assert launch.agent_store and not launch.one_host


def test_torch_variables_without_torchrun():
    launch = detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1"})
    assert (launch.master_addr, launch.master_port, launch.agent_store) == ("::1", 29500, False)
    with pytest.raises(InvalidArgument, match="MASTER_ADDR is not"):
        detect({"RANK": "0", "WORLD_SIZE": "2"})


def test_open_mpi():
    launch = detect(OPEN_MPI)
    assert (launch.rank, launch.size, launch.local_rank, launch.one_host) == (2, 4, 2, True)
    assert (launch.master_addr, launch.job_id) == (None, "prterun-n0-77@1")
    assert detect({**OPEN_MPI, "MASTER_ADDR": "n0"}).master_port == 29500


def test_mpich():
    launch = detect(MPICH)
    assert (launch.rank, launch.size, launch.local_rank, launch.one_host) == (1, 2, 1, True)
    # Different jobs of one user must not meet in one directory.
    assert launch.job_id != "default"


def test_mpich_over_several_hosts_has_one_name():
    """The proxy of each host has its own process number: with an address, the name must not hold it."""
    for more in ({"MASTER_ADDR": "n0", "MASTER_PORT": "77"}, {"RINGLEADER_STORE": "n0:77"}):
        assert detect({**MPICH, **more}).job_id == "port-77"
    assert detect(MPICH, address="n0:77").job_id == "port-77"
    assert detect({**MPICH, "PMI_JOBID": "j1"}, address="n0:77").job_id == "j1"


def test_slurm():
    launch = detect(SLURM)
    assert (launch.rank, launch.size, launch.local_rank, launch.master_addr) == (5, 8, 1, "node07")
    assert launch.job_id == "slurm-42.3" and not launch.one_host
    # All ranks of a step compute the same port, and another step another one.
    assert launch.master_port == detect({**SLURM, "SLURM_PROCID": "0"}).master_port
    assert launch.master_port != detect({**SLURM, "SLURM_STEP_ID": "4"}).master_port
    assert detect({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}).size == 6
    # srun's PMI plugin describes the same step; the node list is Slurm's.
    assert detect({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}).master_addr == "node07"


def test_slurm_gives_way_to_a_launcher_started_inside():
    outside = {**SLURM, "SLURM_PROCID": "0"}
    assert detect({**outside, **TORCHRUN}).rank == 3
    assert detect({**outside, **OPEN_MPI}).size == 4


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("node[007-010,12],other", "node007"),
        ("gpu-a[3,5-9]", "gpu-a3"),
        ("rack[1-2]n[3-4].cluster", "rack1n3.cluster"),
    ],
)
def test_first_host(nodelist, host):
    assert first_host(nodelist) == host


def test_own_variables_and_arguments_win():
    own = {
        "RINGLEADER_RANK": "1", "RINGLEADER_SIZE": "2", "RINGLEADER_STORE": "[::1]:5000",
        "RINGLEADER_STORE_SERVED": "1",
        "RINGLEADER_LOCAL_SIZE": "2", "RINGLEADER_JOB_ID": "mine",
    }  # fmt: skip
    launch = detect({**TORCHRUN, **own})
    assert (launch.rank, launch.size, launch.master_addr, launch.master_port) == (1, 2, "::1", 5000)
    assert (launch.store_served, launch.job_id, launch.agent_store, launch.one_host) == (True, "mine", False, True)
    launch = detect({**TORCHRUN, **own}, rank=0, size=3, address="h:9")
    assert (launch.rank, launch.size, launch.master_addr, launch.store_served) == (0, 3, "h", False)
    launch = detect({**TORCHRUN, "RINGLEADER_STORE": "h:9"})
    assert (launch.rank, launch.master_port, launch.agent_store, launch.own_address) == (3, 9, False, True)


def test_consistent_launchers_are_fine_and_contradictions_are_not():
    both = {**OPEN_MPI, "RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "n0"}
    assert detect(both).rank == 2
    with pytest.raises(InvalidArgument, match=r"contradiction: torchrun .* rank 0 of 4, Open MPI .* rank 2 of 4"):
        detect({**both, "RANK": "0"})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK is not"),
        ({"PMI_RANK": "0"}, "PMI_SIZE is not"),
        ({"SLURM_PROCID": "0"}, "SLURM_NTASKS is not"),
        ({"RINGLEADER_SIZE": "2"}, "RINGLEADER_RANK is not"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not valid"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1' is not valid"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "rank 2 of size 2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "rank 0 of size 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "70000"}, "MASTER_PORT"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"},
            "local rank 3",
        ),
    ],
)
def test_incomplete_or_impossible(environ, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        detect(environ)


def test_rank_needs_size():
    with pytest.raises(InvalidArgument, match="together"):
        detect({}, rank=1)


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:29500", "[fe80::1%eth0]:80", "10.0.0.1:65535"])
def test_hostport_round_trip(text):
    assert format_hostport(*parse_hostport(text)) == text


@pytest.mark.parametrize(
    "text", ["localhost", "::1:29500", "host:0", "host:65536", "host:x", ":80", "[::1]", "a b:80", ""]
)
def test_bad_hostport(text):
    with pytest.raises(InvalidArgument, match="expected host:port"):
        parse_hostport(text)
