"""Ranks that disagree in random ways, mostly where data go one way only: all ranks raise, none waits for its limit."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from meeting_support import PROMPT
from robustness_support import LONG, Workers, names_for

import ringleader as rl

LIMIT = 60.0  # of every operation: who waits for it is far above PROMPT
ROOTED = ("broadcast", "reduce", "gather", "scatter")
OTHERS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = (1, 24, 2_400, 60_000, 300_000)
HOW = ("root", "shape", "type", "op", "algorithm", "operation", "left out", "twice", "compression")
Call = dict[str, Any]
torch: Any = None  # imported by the ranks: it takes longer than what is measured


def _random_call(rng: random.Random, n: int, rooted: bool) -> Call:
    call: Call = {"verb": rng.choice(ROOTED if rooted else OTHERS), "count": rng.choice(SIZES) * n, "dtype": "float32"}
    if call["verb"] in ROOTED:
        call["root"] = rng.randrange(n)
    if call["verb"] in ("reduce", "all_reduce", "reduce_scatter"):
        call["op"] = rng.choice(("sum", "max"))
    if rng.random() < 0.3:
        call["algorithm"] = rng.choice(names_for(call["verb"], n))
    return call


def plan(seed: str, n: int) -> tuple[int, list[Call], list[Call], str, bool]:
    """The odd rank, its calls, those of all others, the mode of the calls, and whether arrays are registered."""
    rng = random.Random(seed)
    how = rng.choice(HOW)
    common = _random_call(rng, n, rooted=how == "root" or rng.random() < 0.7)
    odd = dict(common)
    if how == "root":
        odd["root"] = (common["root"] + rng.randrange(1, n)) % n
    elif how == "shape":
        odd["count"] = rng.choice([count * n for count in (*SIZES, 25, 2_401) if count * n != common["count"]])
    elif how == "type":
        odd["dtype"] = rng.choice(("float16", "int32", "float64"))
    elif how == "op" and "op" in common:
        odd["op"] = "min"
    elif how == "algorithm" and len(names := names_for(common["verb"], n)) > 1:
        common["algorithm"], odd["algorithm"] = rng.sample(names, 2)
    elif how == "compression":
        for call, compressor in ((common, "int8"), (odd, None)):
            call.clear()
            call.update(verb="all_reduce", count=60_000, dtype="float32", op="sum", compression=compressor)
    else:
        while odd["verb"] == common["verb"]:
            odd = _random_call(rng, n, rooted=rng.random() < 0.7)
    calls = {"left out": ([], [common]), "twice": ([common, common], [common])}.get(how, ([odd], [common]))
    return rng.randrange(n), *calls, rng.choice(("sync", "async", "persistent", "torch")), rng.random() < 0.3


def _prepare(comm: rl.Communicator, call: Call, mode: str, registered: bool) -> Callable[[], object]:
    """A call with its arrays made and its plan known: what comes then is the operation alone."""
    x: Any = comm.empty(call["count"], call["dtype"]) if registered else np.empty(call["count"], call["dtype"])
    x[:] = 1
    x = torch.from_numpy(x) if mode == "torch" else x
    options = {name: call[name] for name in ("root", "op", "algorithm") if name in call}
    if call["verb"] == "scatter":
        block = x[: len(x) // comm.size]
        options["out"] = block.clone() if mode == "torch" else block.copy()
        x = x if comm.rank == call["root"] else None
    if call.get("compression") is not None:
        return lambda: comm.all_reduce(x, compression=rl.compress.Int8())
    persistent = getattr(comm, call["verb"] + "_init")(x, **options)
    if mode == "persistent":
        return lambda: persistent()
    verb = functools.partial(getattr(comm, call["verb"]), x, **options)
    return verb if mode != "async" else lambda: verb(async_op=True).wait()


def _disagree(seed: str) -> tuple[float, float, str, str]:
    """When this rank began and raised, and what."""
    global torch
    torch = pytest.importorskip("torch")
    comm = rl.init(timeout=LIMIT)
    try:
        odd, its, theirs, mode, registered = plan(seed, comm.size)
        calls = [_prepare(comm, call, mode, registered) for call in (its if comm.rank == odd else theirs)]
        began = time.monotonic()
        try:
            comm.barrier()
            began = time.monotonic()
            for call in calls:
                call()
            comm.barrier()
        except rl.errors.RingleaderError as error:
            return began, time.monotonic(), type(error).__name__, str(error)
        return began, time.monotonic(), "no error", ""
    finally:
        comm.close()


@pytest.fixture(scope="module", params=[(2, "shm"), (4, "shm"), (3, "tcp"), (4, "tcp")], ids=lambda p: f"{p[1]}{p[0]}")
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    group = Workers(*request.param)
    yield group
    group.close()


def test_all_ranks_raise_at_once(workers: Workers) -> None:
    for number in range(125 if LONG else 8):
        seed = f"{workers.transport}{workers.n} {number}"
        got = workers.run(_disagree, seed, timeout=150)
        where = f"seed {seed!r}: {plan(seed, workers.n)}: {got}"
        assert {kind for _, _, kind, _ in got} == {"MismatchError"}, where
        assert all(text.count("#") >= 2 for *_, text in got), where
        assert max(raised for _, raised, *_ in got) - max(began for began, *_ in got) < PROMPT, where
