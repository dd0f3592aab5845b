"""torch tensors in the Communicator, which never imports torch itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import ringleader as rl

torch = pytest.importorskip("torch")


def _tensors() -> Any:
    comm = rl.init(timeout=60)
    column = torch.arange(6.0).reshape(3, 2) + 10 * comm.rank
    comm.all_reduce(column[:, 1])
    half = torch.full((5,), 1.5 + comm.rank, dtype=torch.bfloat16)
    for _ in range(3):  # the second and third take the short way
        comm.all_reduce(half, "max")
    gathered = comm.all_gather(torch.tensor([comm.rank, 7]))
    out = torch.empty(2, 2, dtype=torch.int64)
    again = [comm.all_gather(torch.tensor([comm.rank + i, 7]), out=out).tolist() for i in range(2)]
    conjugate = torch.tensor([1 + 2j]).conj()
    total = comm.all_reduce(conjugate).resolve_conj()
    eight = comm.broadcast(torch.full((3,), comm.rank + 1.0).to(torch.float8_e4m3fn), root=1)
    parameter = torch.nn.Parameter(torch.ones(2))
    comm.all_reduce(parameter)
    shared = torch.from_numpy(comm.empty(4))
    shared.fill_(comm.rank + 1)
    comm.all_reduce(shared)
    comm.close()
    return (
        column.tolist(),
        half.tolist(),
        (type(gathered).__name__, gathered.tolist()),
        again,
        total.tolist(),
        eight.float().tolist(),
        parameter.tolist(),
        shared.tolist(),
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_tensors(transport: str) -> None:
    for rank, got in enumerate(rl.spawn(_tensors, 2, transport=transport, timeout=150)):
        column, half, gathered, again, total, eight, parameter, shared = got
        assert column == [[2.0 * i + 10 * rank, 4.0 * i + 12] for i in range(3)]
        assert half == [2.5] * 5
        assert gathered == ("Tensor", [[0, 7], [1, 7]])
        assert again == [[[0, 7], [1, 7]], [[1, 7], [2, 7]]]
        assert total == [2 - 4j]
        assert eight == [2.0] * 3
        assert parameter == [2.0, 2.0]
        assert shared == [3.0] * 4


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.ones(3, device="meta"), "meta"),
        (lambda: torch.ones(3).to_sparse(), "sparse"),
        (lambda: torch.ones(1).expand(3), "repeats"),
    ],
)
def test_tensors_that_cannot_be_used(make: Any, text: str) -> None:
    with rl.init(rank=0, size=1) as comm, pytest.raises((TypeError, ValueError), match=text):
        comm.all_reduce(make())


class _Exporter:
    """An object with nothing but DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_dlpack() -> None:
    tensor = torch.arange(4.0)
    with rl.init(rank=0, size=1) as comm:
        comm.all_reduce(_Exporter(tensor), rl.premul_sum(3.0))
        assert tensor.tolist() == [0, 3, 6, 9]
        assert comm.all_gather(_Exporter(tensor)).tolist() == [[0, 3, 6, 9]]


def test_torch_is_never_imported() -> None:
    script = """
import sys, numpy as np, ringleader as rl
with rl.init(rank=0, size=1) as comm:
    comm.all_reduce(np.ones(3)); comm.all_gather(bytearray(b"x")); comm.barrier()
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150)
    assert done.stdout == "False\n", done.stderr
