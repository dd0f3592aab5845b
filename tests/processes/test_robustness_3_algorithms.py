"""Every algorithm in place and out of place; a choice that was asked for is what runs, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from robustness_support import Workers, names_for, part, world

import ringleader as rl

N = 9


@pytest.fixture(scope="module", params=["shm", "tcp"])
def nine(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = Workers(N, request.param)
    yield workers
    workers.close()


# ------------------------------------------------------------------------------------------------------------ in place


def _placements() -> dict[str, Any]:
    """Bits of [sum of ranks, sum of 1/rank] for every way of calling; the complaints under ""."""
    comm, seen, wrong = world(), {}, []
    for n in range(2, comm.size + 1):
        group = part(range(n))
        if group is None:
            continue
        rank = group.rank
        mine = np.array([rank, 1 / rank if rank else 0.0])
        want = [n * (n - 1) / 2, sum(1 / r for r in range(1, n))]
        for name in names_for("all_reduce", n):
            results = {}
            for mode in (False, True):
                x = mine.copy()
                result = group.all_reduce(x, algorithm=name, async_op=mode)
                if (result.wait(60) if mode else result) is not x:
                    wrong.append(f"{name} over {n}: not in place")
                results["in place", mode] = x
                x, out = mine.copy(), np.full(2, -1.0)
                result = group.all_reduce(x, out=out, algorithm=name, async_op=mode)
                if (result.wait(60) if mode else result) is not out:
                    wrong.append(f"{name} over {n}: out was not used")
                if x.tobytes() != mine.tobytes():
                    wrong.append(f"{name} over {n}, async {mode}: the input became {x}")
                results["out of place", mode] = out
                registered = group.empty(2, np.float64)
                registered[:] = mine
                result = group.all_reduce(registered, algorithm=name, async_op=mode)
                results["registered", mode] = (result.wait(60) if mode else result).copy()
            bits = {result.tobytes() for result in results.values()}
            if len(bits) != 1 or not np.allclose(results["in place", False], want, rtol=1e-15, atol=0):
                wrong.append(f"{name} over {n}: {results}, expected {want}")
            seen[f"{n} {name}"] = results["in place", False].tolist()
    seen[""] = wrong
    return seen


@pytest.mark.slow
def test_in_place_out_of_place_and_async_give_the_same_bits(nine: Workers) -> None:
    ranks = nine.run(_placements)
    assert [seen.pop("") for seen in ranks] == [[]] * N
    for seen in ranks[1:]:
        for key, value in seen.items():
            assert ranks[0][key] == value, key
    assert ranks[0]["4 one_shot"] == [6, 1.8333333333333333]
    assert {key.split()[0] for key in ranks[0]} == {str(n) for n in range(2, N + 1)}


# ------------------------------------------------------------------------------------------------------ what was asked


def _forced() -> list[str]:
    comm, wrong = world(), []
    from ringleader.algorithms import names

    for collective, call in {
        "all_reduce": lambda **k: comm.all_reduce(np.ones(8), **k),
        "reduce": lambda **k: comm.reduce(np.ones(8), 2, **k),
        "broadcast": lambda **k: comm.broadcast(np.ones(8), 1, **k),
        "all_gather": lambda **k: comm.all_gather(np.ones(8), **k),
        "reduce_scatter": lambda **k: comm.reduce_scatter(np.ones(comm.size), **k),
        "gather": lambda **k: comm.gather(np.ones(8), 1, **k),
        "all_to_all": lambda **k: comm.all_to_all(np.ones(comm.size), **k),
        "barrier": lambda **k: comm.barrier(**k),
    }.items():
        for name in names(collective):
            call(algorithm=name)
            choice = comm.last_choice
            assert choice is not None
            if choice.algorithm.partition(":")[0] != name or "asked for by the call" not in choice.reason:
                wrong.append(f"{collective}: asked for {name}, ran {choice}")
        # Misspelt, known for another operation only, and with a parameter that it does not have.
        others = [n for n in ("bruck", "two_shot", "dissemination") if n not in names(collective)]
        for bad in ("rign", others[0], f"{names(collective)[0]}:colour=3", "ring:segments=0", 7):
            before = comm.counters()["operations"]
            try:
                call(algorithm=bad)
                wrong.append(f"{collective}: {bad} was accepted")
            except rl.errors.InvalidArgument as error:
                if ":" not in str(bad) and bad != 7 and names(collective)[-1] not in str(error):
                    wrong.append(f"{collective}: the valid names are not told: {error}")
            if comm.counters()["operations"] != before:
                wrong.append(f"{collective}: something was sent for {bad}")
    # A refusal has changed nothing: the choice without demands is what it was.
    comm.all_reduce(np.ones(8))
    if "built-in" not in comm.last_choice.reason:  # type: ignore[union-attr]
        wrong.append(str(comm.last_choice))
    return wrong


def test_a_forced_algorithm_runs_or_is_refused_with_the_valid_names(nine: Workers) -> None:
    assert nine.run(_forced) == [[]] * N


def _precedence() -> list[tuple[str, str]]:
    """Argument of the call over argument of init over environment over the built-in rules."""
    seen = []
    for given, forced in ((None, None), ("ring", None), ("ring", "binomial")):
        with rl.init(algo=given) as comm:
            comm.all_reduce(np.ones(8), algorithm=forced)
            choice = comm.last_choice
            assert choice is not None
            seen.append((choice.algorithm.partition(":")[0], choice.reason.partition(";")[0]))
            comm.broadcast(np.ones(8))  # the demand is about all_reduce only
            assert comm.last_choice is not None
            seen.append((comm.last_choice.algorithm.partition(":")[0], comm.last_choice.reason.partition(";")[0]))
    return seen


def test_precedence_of_argument_environment_and_rules() -> None:
    rule = "built-in rule for shm"
    with rl.WorkerGroup(2, transport="shm") as pair:
        assert pair.run(_precedence, timeout=150)[0][0] == ("one_shot", rule)
    env: dict[str, str | None] = {"RINGLEADER_ALGO": "rabenseifner;broadcast:binomial"}
    with rl.WorkerGroup(2, transport="shm", env=env) as pair:
        for seen in pair.run(_precedence, timeout=150):
            assert seen[0] == ("rabenseifner", "RINGLEADER_ALGO")
            assert seen[1] == ("binomial", "RINGLEADER_ALGO")
            assert seen[2][0] == "ring"
            assert seen[4] == ("binomial", "asked for by the call")
    with (
        rl.WorkerGroup(2, transport="shm", env={"RINGLEADER_ALGO": "rign"}) as pair,
        pytest.raises(rl.errors.SpawnError, match="ring"),
    ):
        pair.run(_precedence, timeout=150)


def _limits() -> list[str]:
    """A demand that this number of ranks cannot meet is refused by all ranks alike, stating the limit."""
    comm = world()
    seen = []
    for algorithm in ("ring:segments=1024", "ring:segments=4096", "two_shot:segments=2000", "ring:segments=3"):
        try:
            comm.all_reduce(np.arange(5.0) + comm.rank, algorithm=algorithm)
            seen.append("ran")
        except ValueError as error:
            seen.append(str(error))
    return seen


def test_limits_are_told_alike_on_all_ranks(nine: Workers) -> None:
    got = nine.run(_limits)
    assert all(seen == got[0] for seen in got)
    assert "1024" in got[0][1] and "1024" in got[0][2]
    assert got[0][3] == "ran"
