"""The native short way: which calls take it, that the others do not, and that nothing can be seen of the difference."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meeting_support import Event

import ringleader as rl
from ringleader import errors
from ringleader.runtime import collectives
from ringleader.runtime.collectives import Collectives


@pytest.fixture(scope="module")
def comm() -> Iterator[rl.Communicator]:
    with rl.init(rank=0, size=1) as communicator:
        yield communicator


@pytest.fixture
def taken(comm: rl.Communicator, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], bool]:
    """Whether a call takes the native way: then no Python method runs."""
    seen: list[object] = []
    wire, usable = collectives.parse_wire, rl.Communicator._check_usable
    monkeypatch.setattr(collectives, "parse_wire", lambda given: (seen.append(given), wire(given))[1])
    monkeypatch.setattr(rl.Communicator, "_check_usable", lambda self: (seen.append(self), usable(self))[1])

    def natively(call: Callable[[], Any]) -> bool:
        seen.clear()
        call()
        return not seen

    return natively


def _read_only(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x.flags.writeable = False
    return x


class _Subclass(np.ndarray[Any, Any]):
    pass


Taken = Callable[[Callable[[], Any]], bool]


def test_a_call_like_an_earlier_one_takes_it(comm: rl.Communicator, taken: Taken) -> None:
    x, out, whole, single = np.ones(4), np.empty(4), np.empty((1, 4)), np.ones(4, "f4")
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(x, "max"),
        lambda: comm.all_reduce(x, op=rl.ReduceOp.MIN),
        lambda: comm.all_reduce(x, out=out),
        lambda: comm.all_reduce(x, out=x),
        lambda: comm.all_reduce(x, algorithm="ring"),
        lambda: comm.all_reduce(x, wire=None, out=None),
        lambda: comm.all_reduce(single, wire="bf16"),
        lambda: comm.reduce(x, 0, "sum"),
        lambda: comm.reduce_scatter(x, out),
        lambda: comm.reduce_scatter(x, x),
        lambda: comm.all_gather(x, whole),
        lambda: comm.all_gather(whole[0], whole),
        lambda: comm.broadcast(x, root=0),
        lambda: comm.gather(x, 0, whole),
        lambda: comm.gather(whole[0], out=whole),
        lambda: comm.scatter(whole, 0, out),
        lambda: comm.scatter(whole, out=whole[0]),
        lambda: comm.all_to_all(x, out),
        lambda: comm.barrier(),
        lambda: comm.barrier(algorithm="direct"),
    ]
    for number, call in enumerate(calls):
        call()
        assert taken(call), number
    y = np.zeros(4)  # another array of that kind
    assert taken(lambda: comm.all_reduce(y, timeout=5.0))
    assert taken(lambda: comm.all_reduce(y, timeout=5))


def test_calls_that_need_more_thought_do_not(comm: rl.Communicator, taken: Taken) -> None:
    x, out = np.ones((4, 6)), np.empty((4, 6))
    both = np.empty(48)
    for known in (lambda: comm.all_reduce(x), lambda: comm.all_reduce(x, out=out), lambda: comm.broadcast(x)):
        known()
        assert taken(known)
    comm.all_to_all(x, out)
    others: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(x.T.copy().T),  # not contiguous
        lambda: comm.all_reduce(np.ones((8, 6))[::2]),
        lambda: comm.all_reduce(np.ones((4, 6)).view(_Subclass)),
        lambda: comm.all_reduce(np.ones((4, 6)).astype(">f8")),
        lambda: comm.all_reduce(np.ones(24)),  # other shapes
        lambda: comm.all_reduce(np.ones((6, 4))),
        lambda: comm.all_reduce(np.ones((4, 6), np.float32)),
        lambda: comm.all_reduce(x, "prod"),
        lambda: comm.all_reduce(x, algorithm="two_shot"),
        lambda: comm.all_reduce(x, async_op=True).wait(),
        lambda: comm.all_reduce(memoryview(bytearray(8))),
        lambda: comm.all_reduce(np.frombuffer(bytearray(193), np.uint8)[1:].view("f8").reshape(4, 6)),  # not aligned
        lambda: comm.broadcast(_read_only(np.ones((4, 6)))),
        lambda: comm.all_reduce(_read_only(np.ones((4, 6))), out=out),
        lambda: comm.all_reduce(both[:24].reshape(4, 6), out=both[1:25].reshape(4, 6)),  # overlapping
        lambda: comm.all_to_all(x, x),
    ]
    for number, call in enumerate(others):
        for _ in range(2):
            assert not taken(call) or number in (3, 4, 5, 6, 7, 8), number  # those have become known


def test_wrong_calls_raise_what_the_method_raises(comm: rl.Communicator) -> None:
    x = np.ones(3)
    comm.all_reduce(x)
    with pytest.raises(errors.InvalidArgument, match="read-only"):
        comm.all_reduce(_read_only(np.ones(3)))
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        comm.all_reduce(x, timeout=-1.0)
    with pytest.raises(errors.InvalidArgument, match="timeout"):
        comm.all_reduce(x, timeout=float("nan"))
    with pytest.raises(errors.InvalidArgument, match="root"):
        comm.broadcast(x, root=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'outt'"):
        comm.all_reduce(x, outt=x)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        comm.all_reduce(x, x=x)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        comm.all_reduce(x, "sum", x)  # type: ignore[misc]
    with pytest.raises(TypeError, match="x"):
        comm.all_reduce()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no arguments"):
        comm.all_reduce_init(x)(x)  # type: ignore[call-arg]


def test_methods_look_like_methods() -> None:
    for name in rl.Communicator.VERBS:
        verb, method = getattr(rl.Communicator, name), getattr(Collectives, name)
        assert inspect.signature(verb) == inspect.signature(method)
        assert inspect.getdoc(verb) == inspect.getdoc(method)
        assert verb.__name__ == name
        assert inspect.isroutine(verb)
        positional = [
            p.name for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        assert positional == ["self", *rl.Communicator.VERBS[name]]
    with rl.init(rank=0, size=1) as comm:
        bound = comm.all_reduce
        assert inspect.ismethod(bound)
        assert bound.__self__ is comm
        assert rl.Communicator.all_reduce(comm, np.ones(2)).tolist() == [1, 1]


def test_the_latest_choice_is_seen(comm: rl.Communicator) -> None:
    x = np.ones(5)
    for _ in range(3):
        for algorithm in ("ring", "two_shot"):
            comm.all_reduce(x, algorithm=algorithm)
            assert comm.last_choice is not None
            assert comm.last_choice.algorithm.startswith(algorithm)


def test_a_closed_communicator_refuses(comm: rl.Communicator) -> None:
    with rl.init(rank=0, size=1) as other:
        x = np.ones(2)
        operation = other.all_reduce_init(x)
        for _ in range(3):
            other.all_reduce(x)
            other.barrier()
            operation()
    for call in (lambda: other.all_reduce(x), lambda: other.barrier(), operation):
        with pytest.raises(errors.ClosedError):
            call()


def test_an_aborted_communicator_refuses() -> None:
    with rl.init(rank=0, size=1) as other:
        x = np.ones(2)
        other.all_reduce(x)
        other.all_reduce(x)
        other.abort("because of the test")
        with pytest.raises(errors.AbortedError, match="because of the test"):
            other.all_reduce(x)


def test_a_forked_child_is_refused() -> None:
    with rl.init(rank=0, size=1) as other:
        x = np.ones(2)
        operation = other.all_reduce_init(x)
        other.all_reduce(x)
        pid = os.fork()
        if pid == 0:
            code = 0
            for call in (lambda: other.all_reduce(x), operation):
                try:
                    call()
                    code = 1
                except errors.ForkError:
                    pass
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_reference_is_kept_or_lost(comm: rl.Communicator) -> None:
    x, out = np.ones(7), np.empty(7)
    operation = comm.all_reduce_init(x)

    def everything() -> None:
        comm.all_reduce(x)
        comm.all_reduce(x, out=out)
        comm.broadcast(x)
        comm.barrier()
        comm.all_gather(x, out)
        operation()

    everything()
    everything()
    watched = [x, out, x.dtype, operation, comm.last_choice, comm, "sum", None, 0]
    before = [sys.getrefcount(it) for it in watched]
    for _ in range(1000):
        everything()
    after = [sys.getrefcount(it) for it in watched]
    # What a call keeps or loses counts 1000. Types and small numbers are everybody's: threads come and go with a few.
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 100, (before, after)
    assert (after[0], after[1], after[3]) == (before[0], before[1], before[3])


def test_a_dropped_communicator_goes_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        comm = rl.init(rank=0, size=1)
        x = np.ones(3)
        for _ in range(3):
            comm.all_reduce(x)
        gone = weakref.ref(comm)
        del comm
        assert gone() is None
    finally:
        gc.enable()


def test_more_kinds_of_calls_than_it_remembers(comm: rl.Communicator) -> None:
    arrays = [np.full(n, 3.0) for n in range(400)]
    for _ in range(3):
        for x in arrays:
            assert comm.all_reduce(x) is x
            assert (x == 3).all()


# ------------------------------------------------------------------------------------------------ several ranks


def _every_verb_again(rounds: int) -> list[str]:
    comm = rl.init(timeout=60)
    n, rank = comm.size, comm.rank
    wrong = []
    root = n - 1
    for count in (1, 3, 12, 13, 500):
        x, out, whole = np.empty(count), np.empty(count), np.empty((n, count))
        for number in range(rounds):
            mine = [np.arange(count) + 100.0 * r + number for r in range(n)]
            total = sum(mine)

            def check(what: str, got: Any, wanted: Any) -> None:
                if not np.array_equal(got, wanted):
                    wrong.append(f"rank {rank}: {what} of {count} in round {number}: {got} instead of {wanted}")  # noqa: B023

            x[:] = mine[rank]
            check("all_reduce", comm.all_reduce(x), total)
            x[:] = mine[rank]
            check("all_reduce to out", comm.all_reduce(x, "max", out=out), mine[-1])
            check("input", x, mine[rank])
            if rank == root:
                check("reduce", comm.reduce(x, root), total)
            else:
                assert comm.reduce(x, root) is None
                check("input", x, mine[rank])
            x[:] = mine[rank]
            check("broadcast", comm.broadcast(x, root), mine[root])
            x[:] = mine[rank]
            check("all_gather", comm.all_gather(x, whole), np.array(mine))
            whole[:] = -1
            whole[rank] = mine[rank]
            check("all_gather in place", comm.all_gather(whole[rank], whole), np.array(mine))
            got = comm.gather(x, root, whole if rank == root else None)
            check("gather", got if rank == root else np.array(mine), np.array(mine))
            whole[:] = mine
            given = whole if rank == root else None
            check("scatter", comm.scatter(given, root, out), mine[rank])
            if rank == root:
                check("scatter in place", comm.scatter(whole, root, whole[root]), mine[root])
            else:
                check("scatter in place", comm.scatter(None, root, out), mine[rank])
            whole[:] = [m * (rank + 1) for m in mine]
            check("reduce_scatter", comm.reduce_scatter(whole, out), mine[rank] * n * (n + 1) / 2)
            check("reduce_scatter in place", comm.reduce_scatter(whole, whole[rank]), mine[rank] * n * (n + 1) / 2)
            whole[:] = [m * (rank + 1) for m in mine]
            result = np.empty_like(whole)
            check("all_to_all", comm.all_to_all(whole, result), [mine[rank] * (r + 1) for r in range(n)])
            comm.barrier()
    comm.close()
    return wrong


@pytest.mark.parametrize("n", [2, 3])
def test_every_verb_again_and_again(n: int) -> None:
    assert [line for lines in rl.spawn(_every_verb_again, n, 6, timeout=150) for line in lines] == []


def _late(folder: str) -> str:
    comm = rl.init(timeout=60)
    gave_up = Event(folder)
    x = np.ones(3)
    for _ in range(5):
        comm.all_reduce(x)
    if comm.rank == 1:
        assert gave_up.wait()
    try:
        comm.all_reduce(x, timeout=0.4)
        return "done"
    except errors.RingleaderError as error:
        gave_up.set()
        return f"{type(error).__name__}: {error}"


def test_a_timeout_names_the_late_rank(tmp_path: Path) -> None:
    first, second = rl.spawn(_late, 2, str(tmp_path), timeout=150)
    assert first.startswith("CollectiveTimeout")
    assert "rank 1" in first
    assert second != "done"


def _threads_go_on(folder: str) -> bool:
    """Rank 1 comes when a thread of rank 0 has counted to 50, which it cannot while a call keeps the GIL."""
    comm = rl.init(timeout=60)
    counted = Event(folder)
    x = np.ones(3)
    for _ in range(5):
        comm.all_reduce(x)
    if comm.rank == 1:
        in_time = counted.wait()
        comm.all_reduce(x)
        return in_time
    stop = threading.Event()

    def tick() -> None:
        ticks = 0
        while not stop.wait(0.005):
            ticks += 1
            if ticks == 50:
                counted.set()

    thread = threading.Thread(target=tick)
    thread.start()
    comm.all_reduce(x)  # waits for the other rank, without the GIL
    stop.set()
    thread.join()
    return counted.is_set()


def test_other_threads_run_while_a_call_waits(tmp_path: Path) -> None:
    assert rl.spawn(_threads_go_on, 2, str(tmp_path), timeout=150) == [True, True]


def _disagree(what: str) -> str:
    comm = rl.init(timeout=20)
    x, y = np.ones(3), np.ones(4)
    for _ in range(3):
        comm.all_reduce(x)
        comm.all_reduce(y)
        comm.all_reduce(x, "max")
        comm.broadcast(x)
    try:
        if comm.rank == 0:
            comm.all_reduce(x)
        elif what == "count":
            comm.all_reduce(y)
        elif what == "operator":
            comm.all_reduce(x, "max")
        else:
            comm.broadcast(x)
            comm.all_reduce(x)
        comm.all_reduce(x)
    except errors.RingleaderError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize(("what", "told"), [("count", "4 elements"), ("operator", "op max"), ("verb", "broadcast")])
def test_ranks_that_disagree_are_told_both_sides(what: str, told: str) -> None:
    messages = rl.spawn(_disagree, 2, what, timeout=150)
    assert any(message.startswith("MismatchError") for message in messages), messages
    for message in messages:  # the abort of the one who sees it first may be the other's error
        assert message.startswith(("MismatchError", "AbortedError")), messages
        assert told in message
        assert "op sum" in message
