"""The executor over MPI keeps the suite, under a real mpirun of Open MPI and of MPICH."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, ClassVar

import mpi_launch
import numpy as np
import pytest
from cases import COLLECTIVES, Case, cases
from suite import CollectiveConformance

from ringleader.algorithms import build, names
from ringleader.executors import reference

RANK = str(Path(__file__).with_name("mpi_rank.py"))


class World:
    """Ranks under one mpirun, alive between batches."""

    def __init__(self, mpi: str, ranks: int, folder: Path) -> None:
        self.ranks = ranks
        self._listener = Listener(str(folder / f"{mpi}-{ranks}"), "AF_UNIX")
        self._listener._listener._socket.settimeout(60)  # type: ignore[attr-defined]
        self._process: subprocess.Popen[str] = mpi_launch.start(mpi, ranks, [RANK, str(folder / f"{mpi}-{ranks}")])
        try:
            self._connection: Connection = self._listener.accept()
        except OSError as error:
            self.close(force=True)
            raise AssertionError(f"{mpi}, {ranks} ranks did not start: {self._process.communicate()[0]}") from error

    def ask(self, function: str, *arguments: Any, timeout: float = 150) -> list[Any]:
        """What a function of mpi_rank returns on all ranks."""
        self._connection.send((function, *arguments))
        if not self._connection.poll(timeout):
            raise AssertionError(f"no answer within {timeout:.0f} s to {function}{str(arguments)[:300]}")
        answers: list[Any] = self._connection.recv()
        return answers

    def close(self, force: bool = False) -> None:
        if not force:
            self._connection.send(None)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                force = True
        if force:
            mpi_launch.stop(self._process)
        self._listener.close()


class _Mpi(CollectiveConformance):
    mpi: ClassVar[str]
    folder: ClassVar[Path]
    world: ClassVar[World | None] = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _worlds(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        mpi_launch.need(cls.mpi)
        cls.folder = tmp_path_factory.mktemp("mpi")
        yield
        if cls.world is not None:
            cls.world.close()
            cls.world = None

    @pytest.mark.parametrize("collective", COLLECTIVES)
    @pytest.mark.parametrize("n", (1, 2, 3, 4, 5))
    def test_conforms(self, n: int, collective: str) -> None:
        self._run(n, list(cases(collective, n, self.counts)))

    test_more_ranks = None  # type: ignore[assignment]

    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        return [failure for rank in self.ask(n, "run_batch", batch) for failure in rank]

    def ask(self, n: int, function: str, *arguments: Any) -> list[Any]:
        """Ask n ranks, which are started once per n."""
        cls = type(self)
        if cls.world is None or cls.world.ranks != n:
            if cls.world is not None:
                cls.world.close()
            cls.world = World(self.mpi, n, self.folder)
        try:
            return cls.world.ask(function, *arguments)
        except BaseException:
            cls.world.close(force=True)
            cls.world = None
            raise

    @pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
    def test_same_bits_as_the_reference(self, collective: str) -> None:
        """Sums of random numbers: any other order of addition would show in the last bits."""
        rng = np.random.default_rng(5)
        for algorithm in names(collective):
            schedule = build(collective, algorithm, 5, 3 if collective == "reduce" else 0)
            inputs = [rng.normal(size=5 * 99).astype(np.float32) for _ in range(5)]
            wanted = reference.run(schedule, inputs, 0, 4)
            got = self.ask(5, "bits", schedule, inputs, "avg")
            assert got == [None if x is None else x.tobytes() for x in wanted], algorithm

    def test_ranks_that_disagree_all_learn_it(self) -> None:
        ring, tree = (build("all_reduce", name, 5) for name in ("ring", "tree"))
        scatter, four = build("scatter", "linear", 5), build("all_reduce", "ring", 4)
        x, y = np.zeros(10, np.float32), np.zeros(11, np.float32)
        usual: list[tuple[Any, Any, str]] = [(ring, x, "sum")] * 5
        for other, text in [
            ((ring, y, "sum"), r"MismatchError\[2\]: size is 10 on rank 0, but 11 on rank 2"),
            ((ring, x.astype("i4"), "sum"), r"MismatchError\[2\]: dtype is float32 on rank 0, but int32 on rank 2"),
            ((ring, x, "max"), r"MismatchError\[2\]: op is ReduceOp.SUM on rank 0, but ReduceOp.MAX on rank 2"),
            ((tree, x, "sum"), r"MismatchError\[2\]: schedule is <Schedule 'ring'.*, but <Schedule 'double_bin"),
            ((ring, None, "sum"), r"InvalidArgument\[2\]: rank 2: all_reduce needs an array on this rank; got None"),
            ((ring, [1.0], "sum"), r"InvalidArgument\[2\]: rank 2: array is a list; expected a numpy.ndarray"),
            ((ring, x.astype(object), "sum"), r"InvalidArgument\[2\]: rank 2: .* hold Python objects"),
            ((ring, x, "mean"), r"InvalidArgument\[2\]: rank 2: unknown reduction 'mean'; did you mean 'avg'"),
            ((four, x, "sum"), r"InvalidArgument\[2\]: rank 2: <.*is for 4 ranks; the communicator has 5"),
        ]:
            answers = self.ask(5, "error_of", [*usual[:2], other, *usual[3:]])
            assert len(set(answers)) == 1 and re.match(text, answers[0]), answers
        (answer,) = set(self.ask(5, "error_of", [(scatter, y, "sum")] + [(scatter, None, "sum")] * 4))
        assert answer == "InvalidArgument[0]: rank 0: 11 elements cannot be divided among ranks; give a multiple of 5"
        (answer,) = set(self.ask(5, "error_of", [(ring, x.astype("c8"), "max")] * 5))
        assert answer.startswith("UnsupportedType[]: max is not offered for complex64")


class TestOpenMpi(_Mpi):
    mpi = "openmpi"
    counts = (*range(10), 31, 33, 128, 1000)


class TestMpich(_Mpi):
    mpi = "mpich"
    counts = (0, 1, 5, 33, 1000)
