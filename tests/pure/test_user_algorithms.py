"""Algorithms of users: what may be registered, how it is proved, costed and found, by import and from files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from formats_support import HERE

import ringleader as rl
from ringleader import algorithms
from ringleader.cli.main import main
from ringleader.errors import InvalidArgument, MismatchError, ScheduleError, VerificationError
from ringleader.runtime.store import LocalStore
from ringleader.schedule import Builder, Schedule, to_json


@pytest.fixture(autouse=True)
def _forget_all() -> Iterator[None]:
    before = {(entry.collective, entry.name) for entry in algorithms.all_algorithms()}
    yield
    for entry in algorithms.all_algorithms():
        if (entry.collective, entry.name) not in before:
            algorithms.forget(entry.collective, entry.name)


def everybody(n: int, segments: int = 1) -> Schedule:
    """All send to all."""
    b = Builder("all_reduce", n, 1)
    for away in range(1, n):
        b.send(0, np.arange(n), 0, (np.arange(n) + away) % n, reduce=True)
    return b.build().pipelined(segments)


# ------------------------------------------------------------------------------------------------------- registration


def test_a_function_becomes_an_algorithm() -> None:
    @rl.algorithm("mine", "all_reduce", reference="a test")
    def mine(n: int) -> Schedule:
        """All to all."""
        return everybody(n)

    entry = algorithms.get("all_reduce", "mine")
    assert (entry.summary, entry.reference) == ("All to all.", "a test")
    assert algorithms.build("all_reduce", "mine", 5).name == "mine"
    assert entry.terms(5, {}) == (1, 4, 20)  # one step, in which each rank receives the data of four others
    assert mine(3) == everybody(3)  # the function itself stays what it was
    assert rl.tune.select("all_reduce", 64, 5, [0] * 5, env={"RINGLEADER_ALGO": "mine"}).algorithm == "mine"
    assert "mine" in {c.algorithm for c in rl.tune.explain("all_reduce", 64, 5, [0] * 5, env={}).candidates}


def test_keywords_are_parameters_and_roots_are_passed() -> None:
    @rl.algorithm("line", "broadcast")
    def line(n: int, root: int = 0, segments: int = 2) -> Schedule:
        b = Builder("broadcast", n, 1, root)
        step = np.arange(n - 1)
        b.send(step, (root + step) % n, 0, (root + step + 1) % n)
        return b.build().pipelined(segments)

    schedule = algorithms.build("broadcast", "line:segments=3", 4, root=2)
    assert (schedule.chunks, schedule.root, schedule.steps) == (3, 2, 5)
    assert algorithms.canonical("broadcast", "line:segments=2") == "line"
    with pytest.raises(InvalidArgument, match="segments='x' is not valid"):
        algorithms.build("broadcast", "line:segments=x", 4)


def test_the_layout_is_passed_to_who_asks_for_it() -> None:
    seen = []

    @rl.algorithm("layout", "all_reduce", prove=())
    def layout(n: int, nodes: tuple[int, ...] | None = None) -> Schedule:
        seen.append(nodes)
        return everybody(n)

    algorithms.build("all_reduce", "layout", 4, nodes=[7, 7, 3, 3])
    assert seen == [(0, 0, 1, 1)]


def test_a_wrong_schedule_is_refused_when_it_is_registered() -> None:
    with pytest.raises(VerificationError, match=r"all_reduce/wrong over n=2 ranks is wrong: rank 0 data\[0\]"):

        @rl.algorithm("wrong", "all_reduce")
        def wrong(n: int) -> Schedule:
            return Schedule.empty("all_reduce", n, 1)

    assert "wrong" not in algorithms.names("all_reduce")  # and the name is free


def test_a_schedule_that_is_wrong_for_other_n_is_never_run() -> None:
    @rl.algorithm("small", "all_reduce")
    def small(n: int) -> Schedule:
        return everybody(n) if n <= 4 else Schedule.empty("all_reduce", n, 1)

    with pytest.raises(InvalidArgument, match=r"small' over n=5 ranks: .* is wrong"):
        algorithms.build("all_reduce", "small", 5)
    notes = {c.algorithm: c.note for c in rl.tune.explain("all_reduce", 64, 5, [0] * 5, env={}).candidates}
    assert "is wrong" in notes["small"]  # others can still be chosen and explained


@pytest.mark.parametrize(
    ("name", "function", "problem"),
    [
        ("Upper", everybody, "algorithm name 'Upper': expected a small letter"),
        ("ring", everybody, "all_reduce already has an algorithm 'ring'"),
        ("args", lambda n, x: everybody(n), r"the function's arguments are n, x; expected n, and for each parameter"),
        ("none", lambda: everybody(2), "the function's arguments are none; expected n"),
        ("type", lambda n: 7, "returned int; expected a Schedule"),
        ("size", lambda n: everybody(n + 1), "returned <Schedule: all_reduce, n=3.*expected all_reduce with n=2"),
        ("spec", lambda n: _self_copy(n), "all_reduce/spec over n=2 ranks"),
    ],
)
def test_what_cannot_be_registered(name, function, problem: str) -> None:
    with pytest.raises((InvalidArgument, VerificationError), match=problem):
        rl.algorithm(name, "all_reduce")(function)
    if name != "ring":
        assert name not in algorithms.names("all_reduce")


def _self_copy(n: int) -> Schedule:
    b = Builder("all_reduce", n, 1)
    b.send(0, 0, 0, 0)
    return b.build()


def test_rooted_collectives_need_a_root() -> None:
    with pytest.raises(InvalidArgument, match="arguments are n; expected n and root"):
        rl.algorithm("rootless", "broadcast")(lambda n: everybody(n))
    with pytest.raises(InvalidArgument, match="unknown collective 'all_redu'"):
        rl.algorithm("x", "all_redu")


def test_built_in_algorithms_cannot_be_forgotten() -> None:
    with pytest.raises(InvalidArgument, match="'ring' is built in"):
        algorithms.forget("all_reduce", "ring")


# ------------------------------------------------------------------------------------------------------------- ranks


def _on_ranks(n: int, body) -> list:
    store = LocalStore()

    def rank_body(rank: int):
        try:
            with rl.init(rank=rank, size=n, store=store, timeout=20) as comm:
                return body(comm)
        except rl.errors.RingleaderError as error:
            return error

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(rank_body, range(n)))


def test_ranks_run_it() -> None:
    rl.algorithm("mine", "all_reduce")(everybody)
    results = _on_ranks(3, lambda comm: comm.all_reduce(np.arange(5) + comm.rank, algorithm="mine:segments=2"))
    assert all(np.array_equal(x, 3 * np.arange(5) + 3) for x in results)


def test_ranks_with_different_functions_of_one_name_do_not_meet() -> None:
    """The name and its parameters are equal, but not what it does on rank 1."""
    turn = iter(range(100))

    @rl.algorithm("fickle", "all_reduce", prove=())
    def fickle(n: int) -> Schedule:
        return everybody(n, segments=1 + next(turn) % 2)

    def body(comm: rl.Communicator):
        comm.barrier()
        for rank in range(comm.size):  # one after the other, each makes the schedule anew
            if rank == comm.rank:
                algorithms.registry._build.cache_clear()
                comm.explain("all_reduce", 40, algorithm="fickle")
                plan = comm.all_reduce_init(np.zeros(5), algorithm="fickle")
            comm.barrier()
        return plan()

    results = _on_ranks(3, body)
    assert any(isinstance(result, MismatchError) for result in results), results


# ------------------------------------------------------------------------------------------------------------- files

MODULE = """
import numpy as np
import ringleader as rl

@rl.algorithm("from_module", "all_reduce")
def from_module(n):
    '''All to all.'''
    b = rl.schedule.Builder("all_reduce", n, 1)
    for away in range(1, n):
        b.send(0, np.arange(n), 0, (np.arange(n) + away) % n, reduce=True)
    return b.build()
"""


def test_files_are_loaded_at_the_start_of_every_process(tmp_path: Path) -> None:
    module, plain = tmp_path / "own.py", tmp_path / "plain.json"
    module.write_text(MODULE)
    plain.write_text(to_json(everybody(2).with_name("From a File!")))
    files = f"{module}:{plain}:{HERE / 'msccl' / 'ncv4-ar_tree_12_LL.xml'}"
    code = (
        "import ringleader as rl, numpy as np\n"
        "with rl.init(rank=0, size=1) as comm:\n"
        "    print([n for n in rl.algorithms.names('all_reduce') if n.startswith(('from', 'allreduce'))])\n"
        "import own\n"
    )
    environment = {"RINGLEADER_ALGORITHM_FILES": files, "PATH": "", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "['allreduce_ncv4', 'from_a_file', 'from_module']", done.stderr


def test_the_command_line_takes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "own_cli.py"
    module.write_text(MODULE.replace("from_module", "cli_module"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGLEADER_ALGORITHM_FILES", "")
        assert main(["--load", str(module), "verify", "cli_module", "-n", "2..4"]) == 0
    assert "3 proved, 0 wrong" in capsys.readouterr().out
    for name in ("out.xml", "out.json"):
        assert main(["export", "cli_module", "-n", "3", "-o", str(tmp_path / name)]) == 0
    assert rl.schedule.formats.msccl.load(tmp_path / "out.xml").transfers == 6
    assert rl.schedule.from_json((tmp_path / "out.json").read_text()) == algorithms.build("all_reduce", "cli_module", 3)
    assert main(["export", "cli_module", "-o", str(tmp_path / "out.txt")]) == 2
    assert "known are: MSCCL (.xml), a schedule (.json)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", "", "of no known kind; known are: .*.py.*.xml.*.json"),
        ("missing.xml", None, "cannot be read: No such file"),
        ("broken.xml", "<algo", "broken.xml, line 1: the text is not XML"),
        ("broken.json", '{"format": "ringleader.schedule"}', r"broken.json: \$: members are missing"),
        ("plan.json", "{}", "plan.json: JSON, but no schedule and no MSCCL"),
    ],
)
def test_files_that_are_wrong_say_so(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((InvalidArgument, ScheduleError), match=problem):
        algorithms.load_files(str(tmp_path / name))
