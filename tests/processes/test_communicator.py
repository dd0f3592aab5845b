"""One rank: arguments, arrays, plans, memory. What needs no peer is tested without one."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from meeting_support import wait_until

import ringleader as rl
from ringleader import _core
from ringleader.algorithms import all_algorithms
from ringleader.runtime.dtypes import BYTES, DTYPE_NAMES, supported_ops
from ringleader.runtime.plans import PLAN_CACHE_SIZE


@pytest.fixture(scope="module")
def comm() -> Iterator[rl.Communicator]:
    with rl.init(rank=0, size=1) as communicator:
        yield communicator


# ------------------------------------------------------------------------------------------------- one rank


@pytest.mark.parametrize("entry", all_algorithms(), ids=lambda entry: entry.full_name)
def test_one_rank_runs_every_algorithm(comm: rl.Communicator, entry: Any) -> None:
    x = np.arange(6.0) + 1
    call = getattr(comm, entry.collective)
    if entry.collective == "barrier":
        assert call(algorithm=entry.name) is None
    else:
        assert call(x, algorithm=entry.name).reshape(-1).tolist() == [1, 2, 3, 4, 5, 6]
    assert comm.last_choice is not None
    assert comm.last_choice.algorithm == entry.name


def test_shapes_of_results(comm: rl.Communicator) -> None:
    x = np.arange(6).reshape(2, 3)
    assert comm.all_gather(x).shape == (1, 2, 3)
    assert comm.gather(x).shape == (1, 2, 3)
    assert comm.reduce_scatter(x[None]).shape == (2, 3)
    assert comm.scatter(x[None]).shape == (2, 3)
    assert comm.reduce_scatter(np.arange(4)).shape == (4,)
    assert comm.all_to_all(x).shape == (2, 3)
    assert comm.all_gather(np.array(5)).shape == (1,)


@pytest.mark.parametrize("shape", [(0,), (1, 0, 2), ()])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i8", "?", "c16", "M8[s]", ">f8"])
def test_empty_and_scalar_shapes(comm: rl.Communicator, shape: tuple[int, ...], dtype: str) -> None:
    x = np.ones(shape, dtype)
    assert comm.all_gather(x).shape == (1, *shape)
    assert comm.broadcast(x, async_op=True).wait() is x
    if dtype != "M8[s]":
        assert comm.all_reduce(x, async_op=True).wait() is x
        assert np.array_equal(x, np.ones(shape, dtype))


# --------------------------------------------------------------------------------------------------- arrays


def test_strided_target_changes_only_the_viewed_elements(comm: rl.Communicator) -> None:
    for view in (
        lambda a: a[:, 1],
        lambda a: a[::2, ::3],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: a[1:3, 1:3],
    ):
        array = np.arange(20.0).reshape(4, 5)
        expected = array.copy()
        view(expected)[...] *= 0.5
        comm.all_reduce(view(array), op=rl.premul_sum(0.5))
        assert np.array_equal(array, expected)


def test_strided_result_and_strided_out(comm: rl.Communicator) -> None:
    out = np.zeros((3, 4))
    comm.all_gather(np.arange(6)[::2].astype(float), out=out[:, 1][None])
    assert out[:, 1].tolist() == [0, 2, 4]
    assert out.sum() == 6
    assert comm.scatter(np.linspace(0, 5, 6)[::2]).tolist() == [0, 2, 4]


def test_big_endian_keeps_values_and_type(comm: rl.Communicator) -> None:
    x = np.arange(4, dtype=">i4")
    comm.all_reduce(x, op=rl.ReduceOp.MAX)
    assert x.tolist() == [0, 1, 2, 3]
    assert comm.all_gather(x).dtype == np.dtype(">i4")
    assert comm.all_gather(x).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("make", [bytearray, lambda b: memoryview(bytearray(b))])
def test_buffer_protocol(comm: rl.Communicator, make: Any) -> None:
    x = make(b"abc")
    assert comm.all_reduce(x, op="max") is x
    assert bytes(x) == b"abc"
    assert comm.all_gather(x).tobytes() == b"abc"


def test_bytes_can_be_sent_but_not_received_into(comm: rl.Communicator) -> None:
    assert comm.all_gather(b"abc").tobytes() == b"abc"
    with pytest.raises(rl.errors.InvalidArgument, match="read-only"):
        comm.all_reduce(b"abc", op="max")


def test_read_only_source_is_fine_and_read_only_target_is_refused(comm: rl.Communicator) -> None:
    x = np.arange(3.0)
    x.flags.writeable = False
    out = np.empty(3)
    assert comm.all_reduce(x, out=out) is out
    assert comm.broadcast(x, root=0) is x
    with pytest.raises(rl.errors.InvalidArgument, match="read-only"):
        comm.all_reduce(x)
    with pytest.raises(rl.errors.InvalidArgument, match="read-only"):
        comm.all_gather(out, out=x)


def test_overlapping_input_and_output(comm: rl.Communicator) -> None:
    base = np.arange(8.0)
    comm.all_reduce(base[:6], out=base[2:])
    assert base.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("x", "kind", "text"),
    [
        ([1.0], "UnsupportedType", "list"),
        (3.0, "UnsupportedType", "float"),
        (np.float32(3), "UnsupportedType", "scalar"),
        (np.array([object()]), "UnsupportedType", "Python objects"),
        (np.zeros(2, [("a", object)]), "UnsupportedType", "Python objects"),
        (np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), "InvalidArgument", "repeats"),
    ],
)
def test_what_cannot_be_a_target(comm: rl.Communicator, x: Any, kind: str, text: str) -> None:
    with pytest.raises(getattr(rl.errors, kind), match=text):
        comm.broadcast(x) if kind == "UnsupportedType" else comm.all_reduce(x)


def test_structured_dates_and_strings_can_be_moved(comm: rl.Communicator) -> None:
    for x in (
        np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array(["text", "x"]),
        np.array([1.5], np.longdouble),
    ):
        assert np.array_equal(comm.all_gather(x)[0], x)
        assert np.array_equal(comm.all_to_all(x), x)


# ---------------------------------------------------------------------------------------------- refused calls


@pytest.mark.parametrize("name", [name for code, name in enumerate(DTYPE_NAMES) if code != BYTES])
def test_every_pair_is_offered_or_refused_with_the_list(comm: rl.Communicator, name: str) -> None:
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)
    code = DTYPE_NAMES.index(name)
    for op in ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor"):
        x = np.ones(3, dtype)
        if op in supported_ops(code):
            comm.all_reduce(x, op)
            assert np.array_equal(x, np.ones(3, dtype))
            continue
        before = comm.counters()["operations"]
        with pytest.raises(rl.errors.UnsupportedType) as caught:
            comm.all_reduce(x, op)
        assert isinstance(caught.value, TypeError)
        assert name in str(caught.value)
        assert op in str(caught.value)
        assert ", ".join(supported_ops(code)) in str(caught.value)
        assert comm.counters()["operations"] == before


def test_reducing_an_opaque_type_is_refused(comm: rl.Communicator) -> None:
    with pytest.raises(rl.errors.UnsupportedType, match="datetime64"):
        comm.all_reduce(np.zeros(2, "M8[s]"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, x: c.all_reduce(x, op="plus"), "sum, prod"),
        (lambda c, x: c.all_reduce(x, algorithm="rign"), "ring"),
        (lambda c, x: c.all_reduce(x, out=np.empty(4)), "3"),
        (lambda c, x: c.all_reduce(x, out=np.empty(3, "f4")), "float32"),
        (lambda c, x: c.all_reduce(x, timeout=0), "timeout"),
        (lambda c, x: c.all_reduce(x, timeout=-1), "timeout"),
        (lambda c, x: c.broadcast(x, root=1), "root 1"),
        (lambda c, x: c.broadcast(x, root=-1), "root -1"),
        (lambda c, x: c.broadcast(x, root="0"), "root"),
        (lambda c, x: c.scatter(None, root=0), "root"),
        (lambda c, x: c.all_gather(x, out=np.empty(4)), "from each of 1"),
        (lambda c, x: c.send(x, dest=1), "dest"),
        (lambda c, x: c.send(x, dest=0, tag=-1), "tag"),
        (lambda c, x: c.irecv(x, source=7), "ANY_SOURCE"),
        (lambda c, x: c.subgroup([]), "ranks"),
        (lambda c, x: c.subgroup([0, 0]), "ranks"),
        (lambda c, x: c.subgroup([1]), "ranks"),
        (lambda c, x: c.explain("all_reduse", 8), "all_reduce"),
    ],
)
def test_wrong_arguments_name_the_value_and_what_was_expected(comm: rl.Communicator, call: Any, text: str) -> None:
    with pytest.raises(rl.errors.InvalidArgument, match=text) as caught:
        call(comm, np.arange(3.0))
    assert isinstance(caught.value, ValueError)


def test_a_misspelt_algorithm_setting_is_refused_at_once() -> None:
    with pytest.raises(rl.errors.InvalidArgument, match="ring"):
        rl.init(rank=0, size=1, algo="rign")
    with pytest.raises(rl.errors.InvalidArgument, match="Valid: algo"):
        rl.init(rank=0, size=1, transprot="shm")


def test_a_forced_algorithm_is_what_ran() -> None:
    with rl.init(rank=0, size=1, algo="ring") as comm:
        comm.all_reduce(np.ones(4))
        assert comm.last_choice is not None
        assert comm.last_choice.algorithm.startswith("ring")
        comm.all_reduce(np.ones(4), algorithm="one_shot")  # the argument wins over the setting
        assert comm.last_choice.algorithm == "one_shot"


# ---------------------------------------------------------------------------------- plans, works, persistence


def test_the_cache_of_plans_is_bounded(comm: rl.Communicator) -> None:
    for count in range(2 * PLAN_CACHE_SIZE):
        comm.all_reduce(np.ones(count, "f4"))
    assert len(comm.planner._plans) == PLAN_CACHE_SIZE
    assert len(comm._known) <= PLAN_CACHE_SIZE
    x = np.arange(5.0)
    assert comm.all_reduce(x) is x
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_each_choice_is_logged_once(comm: rl.Communicator, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="ringleader"), rl.init(rank=0, size=1) as fresh:
        for _ in range(3):
            fresh.all_reduce(np.ones(100), algorithm="ring")
    lines = [record.getMessage() for record in caplog.records if "all_reduce" in record.getMessage()]
    assert len(lines) == 1
    assert "ring" in lines[0]


def test_work(comm: rl.Communicator) -> None:
    x = np.arange(5.0)
    work = comm.all_reduce(x, async_op=True)
    assert work.wait(timeout=10) is x
    assert work.result() is x
    assert work.is_completed()
    assert work.exception() is None


def test_arrays_of_dropped_works_go_when_the_works_complete(comm: rl.Communicator) -> None:
    arrays = [np.ones(10) for _ in range(2000)]
    gone = [weakref.ref(each) for each in arrays]
    while arrays:
        comm.all_reduce(arrays.pop(), async_op=True)
    comm.barrier()
    # The last ones too, without a further call: when the interpreter next looks.
    assert wait_until(lambda: not any(each() is not None for each in gone))


def test_async_on_a_strided_array(comm: rl.Communicator) -> None:
    array = np.arange(8.0)
    work = comm.all_reduce(array[::2], op=rl.premul_sum(2.0), async_op=True)
    work.wait()
    assert array.tolist() == [0, 1, 4, 3, 8, 5, 12, 7]


@pytest.mark.parametrize(
    "name",
    ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"],
)
def test_persistent_operations_see_new_content(comm: rl.Communicator, name: str) -> None:
    base = np.zeros(12)
    for x in (base[:6], base[::2]):
        op = getattr(comm, f"{name}_init")(x)
        for value in (1.0, 2.0):
            x[:] = value
            result = op()
            assert (np.asarray(result) == value).all()
            assert result is op.result
        x[:] = 3.0
        assert (np.asarray(op.start().wait()) == 3.0).all()


def test_operators_exist_once() -> None:
    assert pickle.loads(pickle.dumps(rl.ReduceOp.SUM)) is rl.ReduceOp.SUM
    assert pickle.loads(pickle.dumps(rl.premul_sum(0.25))) is rl.premul_sum(0.25)


# -------------------------------------------------------------------------------------------------- memory


def test_registered_memory_lives_as_long_as_it_is_used(comm: rl.Communicator) -> None:
    gc.collect()
    before = _core.arena_used()
    x = comm.empty((100, 10), np.float64)
    assert _core.arena_contains(x.ctypes.data, x.nbytes)
    view = x[::2]
    del x
    gc.collect()
    assert _core.arena_used() > before
    view[:] = 1
    comm.all_reduce(view, op=rl.premul_sum(3.0))
    assert (view == 3).all()
    del view
    gc.collect()
    assert _core.arena_used() == before
    assert comm.empty(0).shape == (0,)
    with pytest.raises(rl.errors.InvalidArgument, match="negative"):
        comm.empty((-1, 2))


def test_impossible_memory_is_a_clean_error(comm: rl.Communicator) -> None:
    with pytest.raises(rl.errors.OutOfMemory, match=r"\d"):
        comm.empty(1 << 45, np.uint8)


# ----------------------------------------------------------------------------------------------------- end


def test_use_after_close() -> None:
    comm = rl.init(rank=0, size=1)
    x = np.ones(2)
    op = comm.all_reduce_init(x)
    comm.all_reduce(x)
    comm.close()
    comm.close()
    for use in (
        lambda: comm.all_reduce(x),
        lambda: comm.barrier(),
        op,
        lambda: comm.split(0),
        lambda: comm.isend(x, 0),
    ):
        with pytest.raises(rl.errors.ClosedError):
            use()
    assert comm.state == "closed"


def test_abort_then_every_call_tells_the_first_cause() -> None:
    comm = rl.init(rank=0, size=1)
    comm.abort("the first reason")
    comm.abort("another reason")
    for _ in range(2):
        with pytest.raises(rl.errors.AbortedError, match="the first reason"):
            comm.all_reduce(np.ones(2))
    assert comm.state == "aborted"
    again = comm.shrink(timeout=5)
    assert again.all_reduce(np.ones(2)).tolist() == [1, 1]
    again.close()
    comm.close()
