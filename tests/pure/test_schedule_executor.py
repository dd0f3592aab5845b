"""The reference executor's arithmetic: all types and operations, native kernels against NumPy, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from test_schedule_samples import (
    dissemination,
    doubling,
    linear_gather,
    one_shot,
    ring,
    run,
    through_scratch,
    tree,
    two_shot,
)

from ringleader.errors import InvalidArgument, ScheduleError, UnsupportedType
from ringleader.executors.arithmetic import dtype_of, fold, from_f32, to_f32
from ringleader.schedule import Builder, Schedule

try:
    from ringleader import _core
except ImportError:
    _core = None  # type: ignore[assignment]
needs_core = pytest.mark.skipif(_core is None, reason="the native kernels are not built")

F32, F64, F16, BF16, I8, I32, I64, U8, BOOL, C64, BYTES = 0, 1, 2, 3, 4, 6, 7, 8, 12, 13, 15
SUM, PROD, MIN, MAX, AVG, PREMUL_SUM, BAND, BOR, BXOR, NONE = 0, 1, 2, 3, 4, 5, 6, 7, 8, 255


def contribution(code: int, rank: int, count: int = 17) -> np.ndarray:
    rng = np.random.default_rng([code, rank])
    dtype = dtype_of(code)
    if code == BF16:
        return from_f32(rng.standard_normal(count).astype(np.float32))
    if dtype.kind == "c":
        return (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(count).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, count, dtype, endpoint=True)


@needs_core
@pytest.mark.parametrize("code", range(15))
@pytest.mark.parametrize("operation", range(9))
def test_kernels_and_numpy_agree(code: int, operation: int) -> None:
    supported = _core.reduce_supported(code, operation)
    for schedule in (ring(3), one_shot(4), tree(5), doubling(4), through_scratch(3)):
        inputs = [contribution(code, rank) for rank in range(schedule.n)]
        if not supported:
            for native in (True, False):
                with pytest.raises(UnsupportedType, match="not offered"):
                    run(schedule, inputs, code, operation, 0.3, native=native)
            continue
        ours, theirs = (run(schedule, inputs, code, operation, 0.3, native=native) for native in (True, False))
        for a, b in zip(ours, theirs, strict=True):
            if code in (C64, C64 + 1) and operation == PROD:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [ring, tree, one_shot, two_shot, through_scratch])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_average_divides_once_and_premul_sum_multiplies_each_once(make: object, n: int) -> None:
    schedule = make(n)  # type: ignore[operator]
    inputs = [np.arange(12, dtype=np.float64) * 4 + rank for rank in range(n)]
    total = np.sum(inputs, axis=0)
    for native in (False,) if _core is None else (False, True):
        for output in run(schedule, inputs, F64, AVG, native=native):
            np.testing.assert_allclose(output, total / n, rtol=1e-14)
        for output in run(schedule, inputs, F64, PREMUL_SUM, 0.5, native=native):
            np.testing.assert_array_equal(output, total * 0.5)


def test_a_reduce_into_an_empty_chunk_is_a_copy() -> None:
    """Neither premul_sum nor avg acts on it; they act when the value is folded."""
    b = Builder("all_reduce", 2, 1)
    b.send(0, [0, 1], 0, [1, 0], dst_chunk=0, reduce=True, dst_buffer="scratch")
    b.send(1, [0, 1], 0, [0, 1], reduce=True, src_buffer="scratch")
    b.send(
        2, [0, 1], 0, [0, 1], dst_chunk=1, reduce=True, dst_buffer="scratch"
    )  # the complete value, to an empty chunk
    b.send(3, [0, 1], 1, [0, 1], dst_chunk=0, src_buffer="scratch")
    inputs = [np.array([8.0]), np.array([20.0])]
    for operation, result in ((SUM, 28.0), (AVG, 14.0), (PREMUL_SUM, 7.0)):
        assert run(b.build(), inputs, F64, operation, 0.25, native=False) == [result, result]


def test_averages_of_integers_go_toward_zero() -> None:
    low = np.iinfo(np.int8).min
    inputs = [np.array([-5, 5, -4, low, 0], np.int8), np.array([-2, 2, -4, 0, -1], np.int8)]
    for native in (False,) if _core is None else (False, True):
        for output in run(one_shot(2), inputs, I8, AVG, native=native):
            assert output.tolist() == [-3, 3, -4, low // 2, 0]


def test_sixteen_bits_are_rounded_once_for_each_fold() -> None:
    ones = [np.array([1.0], np.float16)] + [np.array([2.0**-12], np.float16)] * 4  # half an ulp is 2**-11
    assert run(one_shot(5), ones, F16, SUM, native=False)[0][0] == np.float16(1 + 2.0**-10)
    assert run(ring(5), [np.repeat(x, 5) for x in ones], F16, SUM, native=False)[0][4] != np.float16(1 + 2.0**-10)


def test_bf16_conversions() -> None:
    for value, bits in (
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1 + 2.0**-8, 0x3F80),
        (1 + 3 * 2.0**-8, 0x3F82),
        (3.4e38, 0x7F80),
    ):
        assert from_f32(np.array([value], np.float32))[0] == bits
    assert np.isnan(to_f32(from_f32(np.array([np.nan, -np.nan], np.float32)))).all()
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    numbers = every[~np.isnan(to_f32(every))]
    assert np.array_equal(from_f32(to_f32(numbers)), numbers)


def test_other_types_are_moved() -> None:
    inputs = [np.frombuffer(f"rank {rank}".encode(), np.uint8) for rank in range(3)]
    outputs = run(linear_gather(3, root=2), inputs, BYTES, native=False)
    assert outputs[:2] == [None, None]
    assert outputs[2].tobytes() == b"rank 0rank 1rank 2"


def test_wrong_input() -> None:
    good = [np.zeros(4)] * 3
    cases: list[tuple[object, str]] = [
        (good[:2], "inputs has 2 arrays"),
        ([*good[:2], np.zeros(5)], "inputs differ in size"),
        ([*good[:2], np.zeros(4, np.float32)], "input of rank 2 is float32"),
        ([*good[:2], None], "input of rank 2 is None"),
        ([*good[:2], np.zeros((2, 2))], "flat array"),
    ]
    for inputs, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            run(ring(3), inputs, F64, SUM, native=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no multiple of 3"):
        run(linear_gather(3).reversed(), [np.zeros(4), None, None], F64, native=False)
    for code, operation in ((16, SUM), (-1, SUM), (F64, NONE), (F64, 99)):
        with pytest.raises(UnsupportedType):
            run(ring(3), good, code, operation, native=False)


def test_wrong_schedules() -> None:
    b = Builder("broadcast", 3, 1)
    b.send(0, 1, 0, 2)
    with pytest.raises(ScheduleError, match=r"transfer 0 .* reads a chunk that is not there"):
        run(b.build(), [np.zeros(3)] * 3, F64, native=False)
    with pytest.raises(ScheduleError, match="rank 1 ends without data"):
        run(Schedule.empty("broadcast", 2, 1), [np.zeros(3)] * 2, F64, native=False)


def test_fold_in_order() -> None:
    arrays = [np.array([x], np.float32) for x in (1e8, 1.0, -1e8)]
    assert fold(arrays, [True] * 3, F32, SUM, native=False)[0] == 0
    assert fold(arrays[::2] + arrays[1:2], [True] * 3, F32, SUM, native=False)[0] == 1


def test_a_barrier_moves_nothing() -> None:
    assert run(dissemination(5), [None] * 5, BYTES, NONE) == [None] * 5
