"""The executor over torch.distributed keeps the suite, over Gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cases import COLLECTIVES, DTYPES, Case, cases
from suite import CollectiveConformance

import ringleader as rl
from ringleader.algorithms import build, names
from ringleader.executors import reference
from ringleader.schedule import Builder

torch_rank = pytest.importorskip("torch_rank")

_MOVED_ONLY = ("uint16", "uint32", "uint64")  # torch has no arithmetic for them


class TestTorch(CollectiveConformance):
    counts = (0, 17)
    folder: ClassVar[Path]
    meeting: ClassVar[str]
    group: ClassVar[rl.WorkerGroup | None] = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _close(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = tmp_path_factory.mktemp("torch")
        yield
        if cls.group is not None:
            cls.group.close()
            cls.group = None

    @pytest.mark.parametrize("collective", COLLECTIVES)
    @pytest.mark.parametrize("n", (2, 3, 5))
    def test_conforms(self, n: int, collective: str) -> None:
        self._run(n, [case for case in cases(collective, n, self.counts) if _offered(case)])

    test_more_ranks = None  # type: ignore[assignment]

    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        return [failure for rank in self.ask(n, torch_rank.run_batch, batch) for failure in rank]

    def ask(self, n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What a function of torch_rank returns on n ranks, which are started once per n."""
        cls = type(self)
        if cls.group is None or cls.group.size != n:
            if cls.group is not None:
                cls.group.close()
            cls.group = rl.WorkerGroup(n)
            cls.meeting = tempfile.mkdtemp(dir=cls.folder)  # a place of its own: torch's file stores are used once
        try:
            return list(cls.group.run(function, cls.meeting, *arguments, timeout=150))
        except BaseException:
            cls.group.close(force=True)
            cls.group = None
            raise

    @pytest.mark.parametrize("op", ["sum", "avg", "prod"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_same_bits_as_the_reference(self, dtype: str, op: str) -> None:
        """Values that round in every addition: only the same order and the same widening give the same bits."""
        rng = np.random.default_rng(7)
        code = DTYPES[dtype][0]
        values = rng.normal(1, 0.3, (4, 37)).astype(np.float32)
        raw = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)
        for name in ("ring", "two_shot", "recursive_doubling", "double_binary_tree:segments=3"):
            schedule = build("all_reduce", name, 4)
            wanted = reference.run(schedule, list(raw), code, _OPS[op])
            bits = [row.view(np.uint8) for row in raw]
            results = self.ask(4, torch_rank.result_of, schedule, bits, dtype, op)
            assert results == [x.tobytes() for x in wanted if x is not None], name

    def test_groups_number_their_own_ranks(self) -> None:
        assert self.ask(4, torch_rank.in_subgroup, [3, 1]) == [None, [6.0, 40.0], None, [6.0, 40.0]]

    @pytest.mark.parametrize("name", names("barrier"))
    def test_a_barrier_waits_without_a_comparison(self, name: str) -> None:
        times = self.ask(3, torch_rank.barrier_times, name)
        assert max(came for came, _ in times) <= min(left for _, left in times)

    def test_disagreement_is_an_error_on_all_ranks(self) -> None:
        ring, tree = build("all_reduce", "ring", 3), build("all_reduce", "double_binary_tree", 3)
        x = np.arange(4.0)
        wrong = Builder("all_reduce", 3, 1).build()
        for arguments, expected in (
            ([(ring, x, "sum"), (tree, x, "sum"), (ring, x, "sum")], "MismatchError[1]: schedule is"),
            ([(ring, x, "sum"), (ring, x, "sum"), (ring, x, "max")], "MismatchError[2]: op is"),
            (
                [(ring, x, "sum"), (ring, x[:3].copy(), "sum"), (ring, x, "sum")],
                "MismatchError[1]: size is 4 on rank 0",
            ),
            ([(ring, x, "sum"), (ring, x, "sum"), (ring, x.astype("f4"), "sum")], "MismatchError[2]: dtype is"),
            ([(ring, x, "band")] * 3, "UnsupportedType[0]: rank 0: band is not offered for torch.float64"),
            ([(ring, x, "sum"), (ring, None, "sum"), (ring, x, "sum")], "InvalidArgument[1]: rank 1: all_reduce needs"),
            ([(build("all_reduce", "ring", 4), x, "sum")] * 3, "InvalidArgument[0]: rank 0: <Schedule 'ring'"),
            ([(wrong, x, "sum")] * 3, "VerificationError[]: <Schedule: all_reduce, n=3"),
        ):
            errors = self.ask(3, torch_rank.error_of, arguments)
            assert len(set(errors)) == 1, errors
            assert errors[0].startswith(expected), errors


_OPS = {"sum": 0, "prod": 1, "avg": 4}


def _offered(case: Case) -> bool:
    if case.dtype not in DTYPES:
        return False
    return not (case.op != "none" and case.dtype in _MOVED_ONLY)
