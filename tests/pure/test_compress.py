"""Compressors alone: what is kept and what is lost, against plain references; memory, state, special values."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from compress_support import PLAIN, SIZES, WITH_MEMORY, equal_state, gradient, same_bits

from ringleader import _core, errors
from ringleader.compress import (
    DGC,
    QSGD,
    ErrorFeedback,
    Int4,
    Int8,
    Natural,
    OneBit,
    Policy,
    PowerSGD,
    RandomK,
    TopK,
)

every_plain = pytest.mark.parametrize("name", PLAIN)
every_memory = pytest.mark.parametrize("name", WITH_MEMORY)


# ---------------------------------------------------------------- for every compressor


@every_memory
@pytest.mark.parametrize("elements", SIZES)
def test_what_was_sent_and_what_is_remembered_is_all(name: str, elements: int) -> None:
    """The conservation law: the sum of updates and the residual is the sum of gradients."""
    codec, steps = WITH_MEMORY[name](), 3 if elements > 1000 else 12
    sent, total = np.zeros(elements), np.zeros(elements)
    for step in range(steps):
        x = gradient(elements, step)
        kept = x.copy()
        payload = codec.compress(x)
        assert same_bits(x, kept), "the input was changed"
        sent += codec.decompress(payload)
        total += x
    scale = np.abs(total).max(initial=1.0) * steps
    np.testing.assert_allclose(sent + codec.error("", elements), total, rtol=0, atol=2e-5 * scale)


@every_memory
def test_going_on_from_a_state_gives_the_same_bits(name: str) -> None:
    straight, first, second = (WITH_MEMORY[name]() for _ in range(3))
    for step in range(5):
        straight.compress(gradient(1000, step), "w")
        first.compress(gradient(1000, step), "w")
    state = copy.deepcopy(first.state_dict())
    first.compress(gradient(1000, 77), "w")  # must not change what was saved
    second.load_state_dict(state)
    for step in range(5, 10):
        a = straight.decompress(straight.compress(gradient(1000, step), "w"))
        b = second.decompress(second.compress(gradient(1000, step), "w"))
        assert same_bits(a, b)
    assert equal_state(straight.state_dict(), second.state_dict())


@every_plain
@pytest.mark.parametrize("elements", SIZES)
def test_wire_bytes_are_the_bytes(name: str, elements: int) -> None:
    codec = PLAIN[name]()
    if name in ("user", "topk_warmup"):
        pytest.skip("payloads of this one differ from step to step")
    payload = codec.compress(gradient(elements, 0))
    assert payload.nbytes == codec.wire_bytes(elements)
    assert payload.elements == elements


@every_memory
def test_zero_gives_exactly_zero(name: str) -> None:
    codec = WITH_MEMORY[name]()
    for _ in range(2):
        result = codec.decompress(codec.compress(np.zeros(1000, np.float32)))
        assert not result.any()
    assert not codec.error("", 1000).any()
    tiny = codec.decompress(codec.compress(np.full(1000, 1e-30, np.float32)))
    assert np.isfinite(tiny).all()
    assert np.isfinite(codec.error("", 1000)).all()
    alive = gradient(1000, 1)
    assert np.any([codec.decompress(codec.compress(alive)).any() for _ in range(3)]), "zeros must not stop it for good"


@every_memory
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_and_does_not_stay(name: str, bad: float) -> None:
    codec = WITH_MEMORY[name]()
    random_pick = name in ("randomk", "user")  # may not send it in this step: then it is dropped
    codec.compress(gradient(1000, 0))
    x = gradient(1000, 1)
    x[500] = bad
    result = codec.decompress(codec.compress(x))
    assert random_pick or not np.isfinite(result).all()
    assert np.isfinite(codec.error("", 1000)).all()
    for step in range(2, 5):
        assert np.isfinite(codec.decompress(codec.compress(gradient(1000, step)))).all()


@every_memory
def test_another_size_starts_anew_with_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    codec = WITH_MEMORY[name]()
    codec.compress(gradient(100, 0), "layer")
    codec.compress(gradient(200, 0), "layer")
    codec.compress(gradient(200, 1), "layer")
    lines = [record.getMessage() for record in caplog.records if "error memory" in record.getMessage()]
    assert len(lines) == 1
    assert "'layer'" in lines[0]
    assert "200 elements now, 100 before" in lines[0]
    assert set(codec.errors) == {"layer"}


def test_memory_does_not_grow() -> None:
    codec = DGC(ratio=0.1)
    for elements in range(100, 140):
        codec.compress(gradient(elements, 0), "layer")
        codec.compress(gradient(elements, 1), "layer")
    for memory in (codec.errors, codec.velocities):
        held = [*memory._values.values(), *memory._spare.values(), *memory._successors.values()]
        assert sum(each.size for each in held) <= 2 * 139


@every_memory
def test_a_step_that_fails_leaves_no_trace(name: str) -> None:
    codec, straight = WITH_MEMORY[name](), WITH_MEMORY[name]()
    for each in (codec, straight):
        each.compress(gradient(500, 0), "w")
    before = copy.deepcopy(codec.state_dict())
    for _ in range(2):
        mark = codec.mark("w")
        codec.stage(gradient(500, 1), "w")
        codec.roll_back("w", mark)
        assert equal_state(before, codec.state_dict())
    for step in (1, 2):
        assert same_bits(*(each.decompress(each.compress(gradient(500, step), "w")) for each in (codec, straight)))


@every_plain
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(errors.UnsupportedType, match="int64"):
        PLAIN[name]().compress(np.arange(5))


_PRINT_BITS = """
import hashlib, sys
sys.path.insert(0, {tests!r})
from compress_support import PLAIN, gradient
import numpy as np
digest = hashlib.sha256()
for name, make in sorted(PLAIN.items()):
    codec = make()
    for elements in (1, 63, 65, 5000, 100003):
        payload = codec.compress(gradient(elements, 1))
        digest.update(payload.data.tobytes())
        digest.update(codec.decompress(payload).tobytes())
from ringleader import _core
p = gradient(5000, 2).reshape(1000, 5)
_core.compress.orthonormalise(p)
q = gradient(1500, 3).reshape(300, 5)
out = np.empty((1000, 300), np.float32)
_core.compress.expand(p, q, out)
digest.update(out.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    found = set()
    for isa in _core.build_info()["isa_available"].split(", "):
        script = _PRINT_BITS.format(tests=os.path.dirname(os.path.dirname(__file__)))
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "RINGLEADER_ISA": isa},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        found.add(run.stdout.strip())
    assert len(found) == 1


# ---------------------------------------------------------------- formats against references


def test_onebit_is_sign_and_mean_magnitude() -> None:
    x = gradient(5000, 0)
    got = OneBit().decompress(OneBit().compress(x))
    for begin in range(0, 5000, 2048):
        block = x[begin : begin + 2048]
        want = np.where(np.signbit(block), -1, 1) * np.abs(block.astype(np.float64)).mean()
        np.testing.assert_allclose(got[begin : begin + 2048], want, rtol=1e-5)


def test_int4_rounds_to_the_nearest_of_fifteen() -> None:
    x = gradient(1000, 0)
    got = Int4().decompress(Int4().compress(x))
    for begin in range(0, 1000, 128):
        block = x[begin : begin + 128].astype(np.float64)
        unit = np.abs(block).max() / 7
        assert np.abs(got[begin : begin + 128] - block).max() <= unit * 0.5001


@pytest.mark.parametrize(
    "make", [lambda s: QSGD(8, seed=s), lambda s: QSGD(4, seed=s), lambda s: QSGD(2, seed=s),
             lambda s: QSGD(4, "l2", seed=s), lambda s: Natural(seed=s)]
)  # fmt: skip
def test_random_rounding_is_right_on_average(make: Any) -> None:
    x, codec, rounds = gradient(600, 0), make(1), 400
    draws = np.array([codec.decompress(codec.compress(x)) for _ in range(rounds)], np.float64)
    if isinstance(codec, Natural):
        gap = 2.0 ** np.floor(np.log2(np.abs(x)))
    else:  # the unit of each block is the smallest magnitude that is not zero
        magnitudes = np.where(draws == 0, np.inf, np.abs(draws)).min(axis=0)
        gap = np.concatenate([np.full(512, magnitudes[:512].min()), np.full(88, magnitudes[512:].min())])
    # Between neighbours the deviation is at most half their distance. The seed is fixed: no failures by chance.
    off = (draws.mean(axis=0) - x) / gap
    assert np.abs(off).max() < 5 * 0.5 / np.sqrt(rounds)
    assert abs(off.mean()) < 5 * 0.5 / np.sqrt(rounds * x.size)


def test_qsgd_of_different_seeds_differs() -> None:
    x = gradient(2000, 0)
    a, b = (QSGD(4, seed=s).compress(x).data for s in (1, 2))
    assert not same_bits(a, b)


def test_natural_gives_neighbouring_powers_of_two() -> None:
    x = gradient(2000, 0)
    got = Natural().decompress(Natural().compress(x))
    mantissa, _ = np.frexp(got)
    assert set(np.abs(mantissa)) == {0.5}
    ratio = got / x
    assert ((ratio > 0.5) & (ratio < 2)).all()


def test_int8_bytes_are_those_of_the_wire_format() -> None:
    import ringleader as rl

    x = gradient(1000, 0)
    assert same_bits(Int8().decompress(Int8().compress(x)), rl.round_to_wire(x, "int8"))


# ---------------------------------------------------------------- selection


@pytest.mark.parametrize("elements", [1, 2, 17, 1000, 65536, 65537, 300_001])
@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "few", "sorted"])
def test_top_k_is_exact(elements: int, kind: str) -> None:
    x = gradient(elements, 0)
    if kind == "ties":
        x = np.round(x)
    elif kind == "constant":
        x = np.full(elements, -2.0, np.float32)
    elif kind == "few":
        x[np.arange(elements) % 1000 != 7] = 0
    elif kind == "sorted":
        x = np.sort(x)
    for k in sorted({0, 1, elements // 100, elements // 3, elements - 1, elements}):
        index = np.empty(k, np.uint32)
        _core.compress.select(x, index)
        # Largest first, of equal ones the lower place first.
        want = np.sort(np.argsort(-np.abs(x), kind="stable")[:k])
        assert np.array_equal(index, want), (k, kind)


def test_sampled_selection_finds_about_as_many() -> None:
    x = gradient(1_000_003, 0)
    codec = TopK(ratio=0.01, selection="sampled")
    payload = codec.compress(x)
    assert payload.index is not None
    assert 0.8 * 10001 < payload.index.size <= 10001
    chosen = np.abs(x[payload.index])
    assert chosen.min() > np.quantile(np.abs(x), 0.985)


@pytest.mark.parametrize("elements", [100_000, (1 << 16) + 1, (1 << 24) + 3])
def test_a_lone_value_at_the_last_place(elements: int) -> None:
    x = np.zeros(elements, np.float16)
    x[-1] = 5
    codec = TopK(k=1)
    result = codec.decompress(codec.compress(x))
    assert result[-1] == 5
    assert np.count_nonzero(result) == 1


def test_top_k_of_more_than_there_are_loses_nothing() -> None:
    x = gradient(9, 0)
    assert same_bits(TopK(k=100).decompress(TopK(k=100).compress(x)), x)
    assert TopK(k=0).compress(x).nbytes == 0
    assert not TopK(k=0).decompress(TopK(k=0).compress(x)).any()


def test_random_k_takes_one_of_each_part_and_all_in_turn() -> None:
    seen, codec = np.zeros(1000), RandomK(k=100, seed=5)
    for _ in range(200):
        payload = codec.compress(np.ones(1000, np.float32))
        assert payload.index is not None
        assert np.array_equal(payload.index // 10, np.arange(100))
        seen[payload.index] += 1
    assert seen.min() > 0
    assert abs(seen.mean() - 20) < 1e-9
    a, b = (RandomK(k=10, seed=s).compress(gradient(1000, 0)).index for s in (1, 2))
    assert not np.array_equal(a, b)


def test_indices_of_peers_are_checked() -> None:
    x = np.zeros(10, np.float32)
    with pytest.raises(errors.InvalidArgument, match="element 10 of an array of 10"):
        _core.compress.scatter_add(x, np.uint32([1, 10]), np.float32([1, 1]))
    assert not x.any()


def test_warm_up_sends_less_and_less() -> None:
    codec = TopK(ratio=0.001, warmup_steps=10)
    counts = [codec.compress(gradient(10000, step)).data.size // 2 for step in range(12)]
    assert counts[0] == 2500
    assert counts == sorted(counts, reverse=True)
    assert counts[10:] == [10, 10]


def test_momentum_correction_follows_the_paper() -> None:
    codec, m = DGC(ratio=0.1, momentum=0.9, selection="exact"), np.float32(0.9)
    u, v = np.zeros(50, np.float32), np.zeros(50, np.float32)
    for step in range(10):
        g = gradient(50, step)
        u = m * u + g
        v = v + u
        chosen = np.sort(np.argsort(-np.abs(v), kind="stable")[:5])
        want = np.zeros(50, np.float32)
        want[chosen] = v[chosen]
        assert np.allclose(codec.decompress(codec.compress(g)), want, rtol=1e-5)
        u[chosen] = v[chosen] = 0


# ---------------------------------------------------------------- PowerSGD


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (3, 5), (64, 7, 3), (129, 65), (31, 1000), (0, 4)])
def test_power_sgd_takes_odd_shapes(shape: tuple[int, ...]) -> None:
    codec = ErrorFeedback(PowerSGD(rank=4))
    count = int(np.prod(shape))
    sent, total = np.zeros(count), np.zeros(count)
    for step in range(6):
        x = gradient(count, step, shape=shape)
        sent += codec.decompress(codec.compress(x))
        total += x.reshape(-1)
    np.testing.assert_allclose(sent + codec.error("", count), total, atol=1e-3)


def test_power_sgd_finds_the_best_approximation() -> None:
    random = np.random.default_rng(0)
    u, _ = np.linalg.qr(random.standard_normal((60, 60)))
    v, _ = np.linalg.qr(random.standard_normal((40, 40)))
    x = (u[:, :40] * 0.5 ** np.arange(40) @ v.T).astype(np.float32)
    codec = PowerSGD(rank=3)
    for _ in range(12):  # warm starts converge to the singular vectors
        got = codec.decompress(codec.compress(x)).reshape(60, 40)
    assert np.linalg.norm(got - x) < 1.01 * np.linalg.norm(0.5 ** np.arange(3, 40))


def test_power_sgd_cuts_a_bucket_by_shapes() -> None:
    codec = PowerSGD(rank=2)
    codec.set_shapes("bucket", [(30, 20), (20,), (5, 4, 3)])
    parts = codec.parts("bucket", 680)
    assert [(part.rows, part.columns, part.rank) for part in parts] == [(30, 20, 2), (1, 20, 0), (5, 12, 2)]
    with pytest.raises(errors.InvalidArgument, match="have 680"):
        codec.parts("bucket", 681)


def test_orthonormal_columns_and_dependent_ones() -> None:
    p = gradient(400, 0, shape=(100, 4))
    p[:, 2] = 3 * p[:, 0]
    _core.compress.orthonormalise(p)
    want = np.diag([1, 1, 0, 1])
    np.testing.assert_allclose(p.T.astype(np.float64) @ p, want, atol=1e-6)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TopK(), "give one of them"),
        (lambda: TopK(ratio=0.1, k=3), "give one of them"),
        (lambda: TopK(ratio=0.0), "above 0"),
        (lambda: TopK(k=-1), "integer from 0"),
        (lambda: TopK(k=3, selection="best"), "'exact' or 'sampled'"),
        (lambda: TopK(k=3, exchange="ring"), "'gather' or 'scatter'"),
        (lambda: TopK(k=3, warmup_steps=4), "with a ratio"),
        (lambda: QSGD(bits=3), "2, 4 or 8"),
        (lambda: QSGD(norm="l1"), "'max' or 'l2'"),
        (lambda: PowerSGD(rank=0), "from 1"),
        (lambda: DGC(momentum=1.0), "below 1"),
        (lambda: ErrorFeedback(ErrorFeedback(OneBit())), "without error feedback"),
        (lambda: Policy("fp16"), "expected a compressor of ringleader.compress.*did you mean FP16"),
        (lambda: Policy(OneBit(), rules=[("*", 3)]), "the compressor for '\\*' is 3"),
        (lambda: Policy(OneBit()).load_state_dict({"compressors": []}), "of 0 compressors; this policy has 1"),
        (lambda: ErrorFeedback(RandomK(k=1, unbiased=True)).compress(np.ones(3, np.float32)), "diverges"),
    ],
)
def test_wrong_arguments(make: Any, text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=text):
        make()
