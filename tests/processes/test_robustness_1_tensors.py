"""Shapes, strides, types and sizes that go wrong elsewhere: all operations, on real ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from robustness_support import Workers, names_for, part, world

import ringleader as rl

N = 4


@pytest.fixture(scope="module", params=["shm", "tcp"])
def four(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


def _bfloat16() -> list[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return []
    return [np.dtype(ml_dtypes.bfloat16)]


# -------------------------------------------------------------------------------------------------------- strides

VIEWS = {
    "column": (lambda: np.zeros((12, 3)), lambda a: a[:, 1]),
    "step": (lambda: np.zeros(25), lambda a: a[1::2]),
    "backwards": (lambda: np.zeros(12), lambda a: a[::-1]),
    "transposed": (lambda: np.zeros((3, 4)), lambda a: a.T),
    "inner": (lambda: np.zeros((6, 5)), lambda a: a[1:5, 1:4]),
    "back_step": (lambda: np.zeros((4, 9)), lambda a: a[::-1, ::-3]),
}
GUARD = -77.0


def _in_view(kind: str, values: NDArray[Any], shape: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    """A base array full of guard values, and a view of it that holds `values`."""
    base = VIEWS[kind][0]()
    base[...] = GUARD
    view = VIEWS[kind][1](base)
    view[...] = values.reshape(view.shape)
    return base, view


def _collectives(comm: rl.Communicator, mine: Any, mode: bool) -> dict[str, Any]:
    """Each operation on fresh views made by `mine(rank_offset)`: (result, whether everything else is untouched)."""
    n, seen = comm.size, {}

    def done(result: Any) -> Any:
        return result.wait(30) if mode else result

    def record(name: str, result: Any, *pairs: tuple[Any, Any]) -> None:
        intact = True
        for base, view in pairs:
            rest = base.copy()
            VIEWS[current][1](rest)[...] = GUARD
            intact = intact and bool((rest == GUARD).all()) and np.shares_memory(base, view)
        flat = None if result is None else np.asarray(result).reshape(-1).tolist()
        seen[name] = (flat, intact)

    current = mine.kind
    for name in ("all_reduce", "reduce", "broadcast"):
        base, view = mine(0)
        root = {} if name == "all_reduce" else {"root": n - 1}
        result = done(getattr(comm, name)(view, async_op=mode, **root))
        record(name, view, (base, view))
        if name == "reduce":
            assert (result is None) == (comm.rank != n - 1)
    for name in ("all_gather", "gather"):
        base, view = mine(0)
        root = {} if name == "all_gather" else {"root": 1}
        record(name, done(getattr(comm, name)(view, async_op=mode, **root)), (base, view))
    for name in ("reduce_scatter", "all_to_all"):
        base, view = mine(0)
        blocks = view if view.shape[0] % n == 0 else view.reshape(-1)
        record(name, done(getattr(comm, name)(blocks, async_op=mode)), (base, view))
    base, view = mine(0)
    out = np.full((12 // n, 2), GUARD)
    comm_x = view.reshape(-1) if comm.rank == 2 else None
    record("scatter", done(comm.scatter(comm_x, root=2, out=out[:, 1], async_op=mode)), (base, view))
    assert (out[:, 0] == GUARD).all()
    return seen


class _Views:
    def __init__(self, kind: str, rank: int) -> None:
        self.kind, self.rank = kind, rank

    def __call__(self, shift: int) -> tuple[Any, Any]:
        return _in_view(self.kind, _values(self.rank) + shift)


def _values(rank: int) -> NDArray[Any]:
    return np.arange(12.0) ** 2 + 1000 * rank


def _strided_everywhere() -> list[str]:
    comm = world()
    n, rank, wrong = comm.size, comm.rank, []
    all_values = [_values(r) for r in range(n)]
    total, block = sum(all_values), slice(rank * 3, rank * 3 + 3)
    expected = {
        "all_reduce": total,
        "reduce": total if rank == n - 1 else all_values[rank],
        "broadcast": all_values[n - 1],
        "all_gather": np.concatenate(all_values),
        "gather": np.concatenate(all_values) if rank == 1 else None,
        "reduce_scatter": total[block],
        "all_to_all": np.concatenate([v[block] for v in all_values]),
        "scatter": all_values[2][block],
    }
    for kind in VIEWS:
        for mode in (False, True):
            for name, (flat, intact) in _collectives(comm, _Views(kind, rank), mode).items():
                want = None if expected[name] is None else expected[name].tolist()
                if flat != want or not intact:
                    wrong.append(f"{name} of {kind}, async {mode}: {flat}, expected {want}, rest intact: {intact}")
    return wrong


def test_strided_views_in_every_operation(four: Workers) -> None:
    assert four.run(_strided_everywhere) == [[]] * N


def _examples() -> Any:
    comm = world()
    pair, three = part([0, 1]), part([1, 2, 3])
    column: Any = None
    if pair is not None:
        a = np.arange(12).reshape(3, 4) + 100 * pair.rank
        before = a.copy()
        pair.all_reduce(a[:, 1])
        column = a[:, 1].tolist(), bool((a[:, [0, 2, 3]] == before[:, [0, 2, 3]]).all())
    got: Any = None
    if three is not None:
        out = np.zeros(1)
        got = three.scatter(np.linspace(0, 5, 6)[::2] if three.rank == 0 else None, root=0, out=out)
        got = got.tolist()
    return column, got, comm.rank


def test_a_column_over_two_ranks_and_a_step_slice_scattered(four: Workers) -> None:
    for column, got, rank in four.run(_examples):
        assert column == (([102, 110, 118], True) if rank < 2 else None)
        assert got == ([2.0 * (rank - 1)] if rank > 0 else None)


# ---------------------------------------------------------------------------------------------- empty, 0-dimensional


def _shapes() -> list[str]:
    comm = world()
    n, rank, wrong = comm.size, comm.rank, []
    types = [np.dtype(t) for t in ("f4", "f8", "f2", "i1", "i2", "i8", "u1", "u4", "?", "c8", "c16", ">i4", ">f8")]
    for dtype in [*types, *_bfloat16(), np.dtype("M8[s]"), np.dtype([("a", "i4"), ("b", "i1")])]:
        reducible = dtype.kind not in "MV" or dtype.name == "bfloat16"
        for shape in ((0,), (1, 0, 2), ()):
            for mode in (False, True):

                def check(name: str, result: Any, want: tuple[int, ...] | None, mode: bool = mode, *about: Any) -> None:
                    result = result.wait(30) if mode else result
                    if (None if result is None else result.shape) != want:
                        wrong.append(f"{name} {about} async {mode}: {result!r}, expected shape {want}")

                x = np.ones(shape, dtype)
                if reducible:
                    operator = "bor" if dtype.kind == "b" else "sum"
                    check("all_reduce", comm.all_reduce(x, operator, async_op=mode), shape, mode, dtype, shape)
                    want = shape if rank == 1 else None
                    check("reduce", comm.reduce(x, 1, operator, async_op=mode), want, mode, dtype, shape)
                    blocks = np.ones((n, *shape), dtype)
                    want = shape if shape else (1,)
                    check("reduce_scatter", comm.reduce_scatter(blocks, op=operator, async_op=mode), want, mode, dtype)
                check("broadcast", comm.broadcast(x, root=2, async_op=mode), shape, mode, dtype, shape)
                check("all_gather", comm.all_gather(x, async_op=mode), (n, *shape), mode, dtype, shape)
                want = (n, *shape) if rank == 3 else None
                check("gather", comm.gather(x, root=3, async_op=mode), want, mode, dtype, shape)
                out = np.empty(shape, dtype)
                whole = np.ones((n, *shape), dtype) if rank == 0 else None
                check("scatter", comm.scatter(whole, root=0, out=out, async_op=mode), shape, mode, dtype, shape)
                many = np.ones((n, *shape), dtype)
                check("all_to_all", comm.all_to_all(many, async_op=mode), (n, *shape), mode, dtype, shape)
    one = np.array(rank + 1)
    comm.all_reduce(one)
    if int(one) != 10:
        wrong.append(f"0-dimensional sum is {one}")
    send = comm.isend(np.empty((1, 0, 2)), (rank + 1) % n)
    if comm.recv(np.empty(0), (rank - 1) % n) != (rank - 1) % n:
        wrong.append("an empty message")
    send.wait(30)
    return wrong


def test_empty_and_scalar_shapes_in_every_operation_and_type(four: Workers) -> None:
    assert four.run(_shapes) == [[]] * N


# ------------------------------------------------------------------------------------------------------------- types


def _bool_bytes() -> list[str]:
    comm = world()
    wrong = []
    for algorithm in names_for("all_reduce", comm.size):
        for count in (1, 67, 5001):
            x = np.ones(count, bool)
            some = (np.arange(count) + comm.rank) % 3 == 0
            comm.all_reduce(x, algorithm=algorithm)
            comm.all_reduce(some, algorithm=algorithm)
            everyone = np.arange(count) % 3 == 9  # of four neighbours in a cycle of three, never all
            product = (np.arange(count) + comm.rank) % 3 == 0
            comm.all_reduce(product, "prod", algorithm=algorithm)
            if not (x.view(np.uint8) == 1).all():
                wrong.append(f"{algorithm}, {count}: raw bytes {set(x.view(np.uint8).tolist())}")
            if not (some.view(np.uint8) == 1).all() or not (product == everyone).all():
                wrong.append(f"{algorithm}, {count}: OR or AND is wrong")
    try:
        comm.all_reduce(np.ones(3, bool), "avg")
        wrong.append("AVG of bool was not refused")
    except rl.errors.UnsupportedType as error:
        if "avg" not in str(error) or "bool" not in str(error) or "sum" not in str(error):
            wrong.append(str(error))
    return wrong


def test_a_bool_sum_is_or_with_raw_bytes_of_exactly_1(four: Workers) -> None:
    assert four.run(_bool_bytes) == [[]] * N


def _wrapping() -> list[str]:
    pair, wrong = part([0, 1]), []
    if pair is None:
        return []
    low = pair.rank == 0
    for algorithm in names_for("all_reduce", 2):
        for count in (1, 130):
            a = pair.all_reduce(np.full(count, 120 if low else 100, np.int8), algorithm=algorithm)
            b = pair.all_reduce(np.full(count, 200 if low else 100, np.uint8), algorithm=algorithm)
            c = pair.all_reduce(np.full(count, -(2**63) + (5 if low else 2), np.int64), algorithm=algorithm)
            if set(a.tolist()) != {-36} or set(b.tolist()) != {44} or set(c.tolist()) != {7}:
                wrong.append(f"{algorithm}, {count}: {a[0]}, {b[0]}, {c[0]}")
    return wrong


def test_small_integers_wrap_alike_under_every_algorithm(four: Workers) -> None:
    assert four.run(_wrapping) == [[]] * N


def _refused_before_the_first_byte() -> Any:
    comm = world()
    before = comm.counters()["operations"]
    refused = 0
    for x, op in ((np.ones(3), "band"), (np.zeros(2, "M8[s]"), "sum"), (np.ones(3, "c8"), "max"), (np.ones(2), "x")):
        for call in (comm.all_reduce, lambda y, o: comm.reduce(y, 0, o), lambda y, o: comm.reduce_scatter(y, op=o)):
            with pytest.raises((TypeError, ValueError)):
                call(x, op)
            refused += 1
    return refused, comm.counters()["operations"] - before, comm.all_reduce(np.ones(1)).tolist()


def test_what_is_refused_is_refused_on_all_ranks_before_the_first_byte(four: Workers) -> None:
    assert four.run(_refused_before_the_first_byte) == [(12, 0, [4])] * N


# --------------------------------------------------------------------------------------------------------------- AVG


def _averages() -> list[str]:
    comm, three, wrong = world(), part([3, 0, 1]), []
    rank = comm.rank
    for algorithm in names_for("all_reduce", N):

        def expect(x: Any, want: float, group: rl.Communicator = comm, algorithm: str = algorithm) -> None:
            got = group.all_reduce(x, "avg", algorithm=algorithm)
            if not (got == want).all():
                wrong.append(f"{algorithm} over {group.size}: {got}, expected {want}")

        expect(np.full(7, rank + 1.0), 2.5)
        expect(np.full(130, rank + 1.0, "f2"), 2.5)
        expect(np.array([6 if rank == 0 else 0]), 1)
        expect(np.array([-6 if rank == 0 else 0]), -1)
        expect(np.array([7 if rank == 3 else 0], np.uint8), 1)
    for algorithm in names_for("all_reduce", 3) if three is not None else []:
        expect(np.full(5, (2.0, 5.0, 8.0)[three.rank]), 5.0, three, algorithm)
        expect(np.full(5, (0, -3, -5)[three.rank]), -2, three, algorithm)
    for algorithm in names_for("reduce_scatter", N):
        part_of_it = comm.reduce_scatter(np.arange(8.0) + rank, op="avg", algorithm=algorithm)
        if part_of_it.tolist() != [2.0 * rank + 1.5, 2.0 * rank + 2.5]:
            wrong.append(f"reduce_scatter {algorithm}: {part_of_it}")
    for algorithm in names_for("reduce", N):
        got = comm.reduce(np.array([rank + 1.0, 4.0 * rank]), 2, "avg", algorithm=algorithm)
        if rank == 2 and got.tolist() != [2.5, 6.0]:
            wrong.append(f"reduce {algorithm}: {got}")
    return wrong


def test_avg_divides_by_the_group_and_truncates_under_every_algorithm(four: Workers) -> None:
    assert four.run(_averages) == [[]] * N


# --------------------------------------------------------------------------------------------------------------- NaN


def _nan() -> Any:
    comm, wrong, bits = world(), [], hashlib.sha256()
    rank, n = comm.rank, comm.size
    values = np.array([1.0, 3.0, 4.0, 2.0])
    types = [np.dtype(t) for t in ("f4", "f8", "f2")] + _bfloat16()
    for dtype in types:
        for op in ("min", "max"):
            for where in range(n):
                # One element in five of each vector is NaN on the rank `where`; the others must not be touched by it.
                x = np.full(67, values[rank], dtype)
                if rank == where:
                    x[::5] = np.nan
                want = np.full(67, values.min() if op == "min" else values.max())
                want[::5] = np.nan
                results = [
                    (f"all_reduce {name}", comm.all_reduce(x.copy(), op, algorithm=name), want)
                    for name in names_for("all_reduce", n)
                ]
                for name in names_for("reduce", n):
                    got = comm.reduce(x.copy(), 1, op, algorithm=name)
                    results += [(f"reduce {name}", got, want)] if rank == 1 else []
                blocks = np.tile(x, n)
                results += [
                    (f"reduce_scatter {name}", comm.reduce_scatter(blocks, op=op, algorithm=name), want)
                    for name in names_for("reduce_scatter", n)
                ]
                for label, got, wanted in results:
                    if not np.array_equal(got.astype("f8"), wanted, equal_nan=True):
                        wrong.append(f"{label} {dtype} {op}, NaN on {where}: {got[:6]}")
                    if label.startswith("all_reduce"):
                        bits.update(got.tobytes())
    return wrong, bits.hexdigest()


def test_nan_wins_wherever_it_is_with_the_same_bits_on_all_ranks(four: Workers) -> None:
    got = four.run(_nan)
    assert [wrong for wrong, _ in got] == [[]] * N
    assert len({bits for _, bits in got}) == 1


# ------------------------------------------------------------------------------------------------------------ reduce


def _reduce_example() -> list[str]:
    pair, wrong = part([0, 1]), []
    if pair is None:
        return []
    mine = np.array([[1, 2], [3, 4]]) if pair.rank == 0 else np.array([[4, 5], [6, 7]])
    for algorithm in names_for("reduce", 2):
        for mode in (False, True):
            x = mine.copy()
            result = pair.reduce(x, 0, algorithm=algorithm, async_op=mode)
            result = result.wait(30) if mode else result
            if pair.rank == 0 and result.tolist() != [[5, 7], [9, 11]]:
                wrong.append(f"{algorithm}: {result.tolist()}")
            if pair.rank == 1 and (result is not None or x.tolist() != mine.tolist()):
                wrong.append(f"{algorithm}: the input became {x.tolist()}, returned {result}")
    return wrong


def test_reduce_to_one_leaves_the_other_inputs(four: Workers) -> None:
    assert four.run(_reduce_example) == [[]] * N
