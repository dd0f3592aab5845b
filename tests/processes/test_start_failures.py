"""What goes wrong while a job starts: ranks that die or fail at each step, that are there twice; what others left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from meeting_support import PROMPT, Event, free_port

LONG = bool(os.environ.get("RINGLEADER_LONG_TESTS"))

# A rank that ends at one step of the start, in one way; each step is a function that the start calls there.
RANK = """
    import os, sys, time
    import numpy as np
    import ringleader as rl
    from ringleader.runtime import assembly, bootstrap, meeting, presence, processes

    rank, size, port, victim, step, way = (int(a) if a.isdigit() else a for a in sys.argv[1:])

    def end(*args, **kwargs):
        print("ends", time.time(), flush=True)
        if way == "kill":
            os.kill(os.getpid(), 9)
        if way == "exit":
            sys.exit(3)
        raise ValueError("its own failure")

    if rank == victim:
        where = {
            "claim": (presence.Vigil, "begin"), "met": (bootstrap, "my_card"), "cards": (bootstrap, "node_ids"),
            "ends": (bootstrap, "read_end"), "links": (bootstrap, "_connect_network"),
            "arenas": (processes, "exchange_arenas"),
        }[step]
        if step == "claim" and way == "kill":  # where it has told who it is
            before = assembly.PrefixStore.set
            def then_end(self, key, value):
                before(self, key, value)
                if key.endswith(f"who/{rank}"):
                    end()
            assembly.PrefixStore.set = then_end
        else:
            setattr(*where, end)
    print("is", os.getpid(), flush=True)
    try:
        with rl.init(rank, size, master_addr="127.0.0.1", master_port=port, start_timeout=120) as comm:
            print("formed", flush=True)
    except Exception as error:
        print("raised", time.time(), type(error).__name__, error, flush=True)
"""
STEPS = {"shm": ("claim", "met", "cards", "ends", "arenas"), "tcp": ("claim", "met", "cards", "ends", "links")}
ALL = [
    (transport, victim, step, way)
    for transport, steps in STEPS.items()
    for victim in (1, 0)
    for step in steps
    for way in ("kill", "exit", "raise")
    # Who has not been met by anybody is not missed by anybody either.
    if (victim, step) != (0, "claim")
]
SOME = [
    ("shm", 1, "claim", "kill"),
    ("shm", 1, "claim", "exit"),
    ("shm", 0, "met", "kill"),
    ("shm", 1, "arenas", "kill"),
    ("shm", 0, "arenas", "raise"),
    ("tcp", 1, "cards", "kill"),
    ("tcp", 0, "links", "kill"),
    ("tcp", 1, "ends", "exit"),
]


def start(program: str, *arguments: object, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(processes: list[subprocess.Popen[str]], seconds: float = 100) -> list[str]:
    try:
        return [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(("transport", "victim", "step", "way"), ALL if LONG else SOME)
def test_the_others_learn_who_ended_and_soon(transport, victim, step, way):
    port = free_port()
    ranks = [start(RANK, r, 3, port, victim, step, way, RINGLEADER_TRANSPORT=transport) for r in range(3)]
    outputs = ended(ranks)
    when = float(re.search(r"ends ([\d.]+)", outputs[victim])[1])
    pid = re.search(r"is (\d+)", outputs[victim])[1]
    for rank in {0, 1, 2} - {victim}:
        raised = re.search(r"raised ([\d.]+) (\w+) (.*)", outputs[rank])
        assert raised is not None, outputs[rank]
        assert re.search(rf"rank {victim} \(host [^,]+, pid {pid}\)", raised[3]), outputs[rank]
        assert float(raised[1]) - when < PROMPT  # its own limit is 120 s
        assert raised[2] in ("PeerLost", "RendezvousError")
        assert way != "raise" or "its own failure" in raised[3]


# ---------------------------------------------------------------------------------------- ranks that are there twice

MEMBER = """
    import sys, time
    from pathlib import Path
    import numpy as np
    import ringleader as rl
    sys.path.insert(0, sys.argv[5])
    from meeting_support import Event

    rank, size, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        with rl.init(rank, size, master_addr="127.0.0.1", master_port=port, start_timeout=100) as comm:
            Event(folder, rank).set()
            assert Event(folder, "over").wait(90)
            print("sum", comm.all_reduce(np.ones(1))[0])
    except Exception as error:
        print(type(error).__name__, error)
"""
TESTS = str(Path(__file__).parent.parent)


def test_a_second_process_of_a_rank_is_told_whose_place_it_wants(tmp_path):
    port = free_port()
    members = [start(MEMBER, rank, 2, port, tmp_path, TESTS) for rank in range(2)]
    try:
        assert all(Event(tmp_path, rank).wait(60) for rank in range(2))
        others = [start(MEMBER, *place, port, tmp_path, TESTS) for place in ((1, 2), (0, 2), (2, 3))]
        twice, root, third = ended(others, 60)  # far less than their limit
        assert f"pid {members[1].pid}) is rank 1 of this job at 127.0.0.1:{port}" in twice
        assert f"127.0.0.1:{port} is busy" in root and f"pid {members[0].pid}) is rank 0 of a job there" in root
        assert "has 2 ranks" in third and "rank 2 of 3" in third
    finally:
        Event(tmp_path, "over").set()
    assert ended(members) == ["sum 2.0\n"] * 2  # the running job did not notice


def test_a_rank_that_was_restarted_alone_is_told_so(tmp_path):
    port = free_port()
    members = [start(MEMBER, rank, 2, port, tmp_path, TESTS) for rank in range(2)]
    try:
        assert all(Event(tmp_path, rank).wait(60) for rank in range(2))
        members[1].kill()
        members[1].wait()
        (again,) = ended([start(MEMBER, 1, 2, port, tmp_path, TESTS)], 60)
        assert f"pid {members[1].pid}), which has ended" in again and "start all ranks again" in again
    finally:
        Event(tmp_path, "over").set()
        ended(members)


TWICE = """
    import sys
    import numpy as np
    import ringleader as rl

    where = dict(master_addr="127.0.0.1", master_port=int(sys.argv[2]), start_timeout=90)
    with rl.init(int(sys.argv[1]), 2, **where) as comm:
        comm.barrier()
        try:
            rl.init(int(sys.argv[1]), 2, **where)
        except rl.errors.RendezvousError as error:
            print(error)
        print("sum", comm.all_reduce(np.ones(1))[0])
    with rl.init(int(sys.argv[1]), 2, **where) as comm:
        print("sum", comm.all_reduce(np.ones(1))[0])
"""


def test_a_second_init_while_the_first_is_open_is_told_so_and_one_after_it_works():
    port = free_port()
    ranks = [start(TWICE, rank, port) for rank in range(2)]
    for output in ended(ranks, 60):
        assert f"127.0.0.1:{port}" in output and "this process (pid" in output and "close() it first" in output
        assert output.count("sum 2.0") == 2


# ------------------------------------------------------------------------------------------------------- the limit

PATIENT = """
    import sys, time
    import ringleader as rl
    started = time.monotonic()
    try:
        rl.init(int(sys.argv[1]), 2, master_addr="127.0.0.1", master_port=int(sys.argv[2]), start_timeout=4)
    except Exception as error:
        print("after", time.monotonic() - started, error)
"""
STOPPED = """
    import os, signal, sys
    from ringleader.runtime import bootstrap
    import ringleader as rl
    def stop(*args, **kwargs):
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    bootstrap.my_card = stop
    rl.init(0, 2, master_addr="127.0.0.1", master_port=int(sys.argv[1]))
"""


def test_a_server_that_is_stopped_costs_no_more_than_the_limit():
    """Requests have limits of their own (30 s): within a start they are cut short."""
    port = free_port()
    root = start(STOPPED, port)
    try:
        (output,) = ended([start(PATIENT, 1, port)], 25)  # before any other limit
        assert re.search(r"after \d", output), output
    finally:
        root.send_signal(signal.SIGKILL)
        root.communicate()


# --------------------------------------------------------------------------------------------------------- torch

TORCH = """
    import os, sys, time
    from datetime import timedelta
    import torch
    import torch.distributed as dist
    from ringleader.runtime import bootstrap

    rank, path, ends = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    def end(*args, **kwargs):
        os.kill(os.getpid(), 9)
    if ends == "met":
        bootstrap.my_card = end
    elif ends == "ends":
        bootstrap.read_end = end
    print("is", os.getpid(), flush=True)
    try:
        dist.init_process_group("ringleader", init_method=f"file://{path}", rank=rank, world_size=2,
                                timeout=timedelta(seconds=100))
        x = torch.ones(1)
        dist.all_reduce(x)
        print("sum", x.item())
        dist.destroy_process_group()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["met", "ends"])
def test_torch_names_a_rank_that_died_and_its_file_can_be_used_again(step, tmp_path):
    """What a killed start left in the file of a `file://` rendezvous is not taken for part of the next one."""
    pytest.importorskip("torch")
    path = tmp_path / "rendezvous"
    other, dead = ended([start(TORCH, 0, path, "-"), start(TORCH, 1, path, step)], 80)
    pid = re.search(r"is (\d+)", dead)[1]
    assert re.search(rf"rank 1 \(host [^,]+, pid {pid}\) died", other), other
    ended([start(TORCH, 0, path, "met"), start(TORCH, 1, path, "met")], 80)  # nobody is left to tidy up
    assert path.exists()
    assert [out.splitlines()[-1] for out in ended([start(TORCH, r, path, "-") for r in range(2)], 80)] == [
        "sum 2.0"
    ] * 2


# ------------------------------------------------------------------------------------------------------ other hosts


def test_a_dead_rank_of_another_host_is_known_by_its_connection():
    """Not its process number tells here: the store's server does, whose connection with it has ended."""
    from ringleader.runtime.presence import Member, Vigil
    from ringleader.runtime.storeserver import TcpStoreServer
    from ringleader.runtime.tcpstore import TcpStoreClient

    secret = b"0123456789abcdef"
    server = TcpStoreServer([("127.0.0.1", 0)], secret)
    clients = [TcpStoreClient(["127.0.0.1"], server.port, secret, 5, rank) for rank in range(3)]
    members = {rank: Member(rank, f"host{rank}", 100 + rank, "1", f"place{rank}") for rank in range(3)}
    vigils = [Vigil(client, members) for client in clients]
    try:
        for vigil, member in zip(vigils, members.values(), strict=True):
            vigil.begin(member)
        assert vigils[0].gone(range(3)) is None
        clients[1].close()  # in order
        assert clients[2]._will is not None
        clients[2]._will.close()  # as the kernel does for a process that was killed
        deadline = time.monotonic() + PROMPT
        while (gone := vigils[0].gone(range(3))) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone == members[2]
        assert vigils[0].gone([0, 1]) is None
    finally:
        for client in clients:
            client.close()
        server.close()
