"""The network monitor and adaptive all-reduce with real ranks."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringleader as rl
from ringleader.compress import ErrorFeedback, OneBit
from ringleader.runtime.monitor import publish
from ringleader.runtime.monitor.network import Network

CALLS = 25


def _exact(elements: int, dtype: str, op: str) -> tuple[list[str], list[str], bool]:
    with rl.init(timeout=60) as comm:
        reduce = rl.adapt.AdaptiveAllReduce(comm)
        used, right = [], True
        for call in range(CALLS):
            everyone = [(np.arange(elements) * 7 + rank * 5 + call) % 13 + 1 for rank in range(comm.size)]
            x = everyone[comm.rank].astype(dtype)
            want = np.max(everyone, 0) if op == "max" else np.sum(everyone, 0)
            got = reduce(x, op)
            right &= got is x and bool(np.array_equal(x, want.astype(dtype)))
            used.append(reduce.latest)
        return used, [str(each) for each in reduce.history], right


@pytest.fixture(scope="module", params=["tcp", "shm"])
def group(request: pytest.FixtureRequest) -> Any:
    with rl.WorkerGroup(3, transport=request.param) as group:
        yield group


@pytest.mark.parametrize(
    ("elements", "dtype", "op"),
    [(100_003, "float32", "sum"), (5, "int64", "max"), (0, "float32", "sum"), (7, "float64", "sum")],
)
def test_exact_on_all_ranks_by_the_same_ways(group: rl.WorkerGroup, elements: int, dtype: str, op: str) -> None:
    results = group.run(_exact, elements, dtype, op, timeout=150)
    assert all(right for _, _, right in results)
    used, history, _ = results[0]
    assert all(result[:2] == (used, history) for result in results)
    assert all(name.endswith(" f32") for name in used)
    assert len(used) == CALLS


def _lossy(policies: str) -> tuple[set[str], float, int, bytes]:
    with rl.init(timeout=60) as comm:
        allowed = ["int8"] if policies == "int8" else [ErrorFeedback(OneBit())]
        # Everything that is not exact counts as faster: the policy must take it, and the ranks must stay together.
        reduce = rl.adapt.AdaptiveAllReduce(comm, allowed)
        worst, used, x = 0.0, set(), np.empty(0, np.float32)
        for call in range(150):  # small ones are compared every few calls only
            everyone = [
                np.random.default_rng([call, rank]).standard_normal(50_000, np.float32) for rank in range(comm.size)
            ]
            x = everyone[comm.rank].copy()
            if call == 5:
                _slow_down(reduce)
            reduce(x, "avg", key="x")
            used.add(reduce.latest.split()[-1])
            worst = max(worst, float(np.abs(x - np.mean(everyone, 0)).max()))
        return used, worst, len(reduce.history), x.tobytes()


def _slow_down(reduce: rl.adapt.AdaptiveAllReduce) -> None:
    """Make all ranks believe that lines have become slow, and that nothing tells otherwise."""
    estimates = reduce.estimates
    estimates.into = [1e4] * len(estimates.into)
    estimates.out = [1e4] * len(estimates.out)
    estimates.learn = lambda rows, fan: False  # type: ignore[method-assign]
    estimates.at_least = lambda load, seconds: None  # type: ignore[method-assign]


def test_a_lossy_format_that_is_allowed_is_used_by_all_ranks_at_once() -> None:
    with rl.WorkerGroup(3, transport="tcp") as group:
        results = group.run(_lossy, "int8", timeout=150)
        assert len({result[3] for result in results}) == 1  # equal bits
        assert results[0][0] == {"f32", "int8"}
        assert 0 < results[0][1] < 0.2
        assert results[0][2] >= 1


def _conservation() -> float:
    """With error feedback nothing is lost when the choice goes from one bit to float32: largest error of the sum."""
    with rl.init(timeout=60) as comm:
        reduce = rl.adapt.AdaptiveAllReduce(comm, [ErrorFeedback(OneBit())])
        whole = got = np.zeros(5_000)
        used = []
        for call in range(20):
            everyone = [
                np.random.default_rng([call, rank]).standard_normal(5_000, np.float32) for rank in range(comm.size)
            ]
            policy = next(iter(reduce._kinds.values())).policy if reduce._kinds else None
            if policy is not None:  # both ways by hand, equally on all ranks
                policy.choose = lambda: None  # type: ignore[method-assign]
                exact = call < 5 or call >= 15
                policy.current = next(i for i, each in enumerate(policy.candidates) if each.format.lossless == exact)
            x = everyone[comm.rank].copy()
            reduce(x, "avg", key="x")
            used.append(reduce.latest)
            whole, got = whole + np.mean(everyone, 0), got + x
        assert len(set(used)) == 2
        return float(np.abs(whole - got).max())


def test_what_error_feedback_remembers_is_sent_when_the_format_changes() -> None:
    with rl.WorkerGroup(2, transport="tcp") as group:
        assert max(group.run(_conservation, timeout=150)) < 1e-4


def _overlapped() -> tuple[bool, list[str]]:
    with rl.init(timeout=60) as comm, rl.adapt.AdaptiveAllReduce(comm, overlap=True) as reduce:
        right = True
        for call in range(12):
            x = np.full(30_000, comm.rank + call, np.float32)
            work = reduce(x, async_op=True)
            with contextlib.suppress(rl.errors.CollectiveTimeout):  # a wait may end early, and begin again
                work.wait(timeout=1e-6)
            y = comm.all_reduce(np.full(3, comm.rank))  # beside it, on the communicator itself
            right &= float(work.wait()[7]) == sum(rank + call for rank in range(comm.size)) and work.is_completed()
            right &= int(y[0]) == sum(range(comm.size))
        return right, [str(each) for each in reduce.history]


def test_beside_other_collectives(group: rl.WorkerGroup) -> None:
    results = group.run(_overlapped, timeout=150)
    assert all(right for right, _ in results)
    assert len({tuple(history) for _, history in results}) == 1


def _disagree() -> str:
    with rl.init(timeout=60) as comm:
        try:
            rl.adapt.AdaptiveAllReduce(comm, ["int8"] if comm.rank else None)
        except rl.errors.InvalidArgument as error:
            return str(error)
        return ""


def test_ranks_that_allow_different_things_are_told_so(group: rl.WorkerGroup) -> None:
    texts = group.run(_disagree, timeout=150)
    assert all("differ between ranks" in text and "int8" in text for text in texts)


def _log_and_no_overlap() -> tuple[list[str], str]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ringleader.ADAPT")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    with rl.init(timeout=60) as comm:
        reduce = rl.adapt.AdaptiveAllReduce(comm)
        for _ in range(CALLS):
            reduce(np.ones(200_000, np.float32))
        refused = ""
        try:
            reduce(np.ones(3), async_op=True)
        except rl.errors.InvalidArgument as error:
            refused = str(error)
        changes = [f"{comm.name}: {each}" for each in reduce.history]
        assert [each for each in records if "->" in each] == changes
        assert "f32" in reduce.explain()
        return changes, refused


def test_changes_are_logged(group: rl.WorkerGroup) -> None:
    results = group.run(_log_and_no_overlap, timeout=150)
    assert all("overlap=True" in refused for _, refused in results)


# --------------------------------------------------------------------------------------------------------- the monitor


def _monitored(late: float) -> tuple[dict[str, Any], dict[str, Any], str]:
    with rl.init(timeout=60) as comm:
        x = np.ones(1 << 20, np.float32)
        for _ in range(4):
            comm.all_reduce(x, algorithm="ring")
        comm.barrier()
        before = comm.network()
        if comm.rank == 1:
            time.sleep(late)
        comm.all_reduce(np.ones(3), algorithm="one_shot")
        return before.to_json(), comm.network(probe=0.15).to_json(), str(comm.network())


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_the_network_from_the_engines_counters(transport: str) -> None:
    with rl.WorkerGroup(3, transport=transport) as group:
        results = group.run(_monitored, 1.0, timeout=150)
    for rank, (raw, raw_after, text) in enumerate(results):
        before, after = Network.from_json(raw), Network.from_json(raw_after)
        assert [peer.rank for peer in before.peers] == [each for each in range(3) if each != rank]
        assert before.operations >= 5
        assert f"rank {rank} of 3" in text
        way = {"tcp": "network", "shm": "memory"}[transport]
        assert {peer.way for peer in before.peers} == {way}
        came = {peer.rank: peer for peer in before.peers}[(rank - 1) % 3]  # the ring's neighbour
        if transport == "tcp":
            assert came.received > 4 * 2 * 2 * (1 << 22) // 3 - 1000
            assert came.rtt is not None
            assert came.rtt > 0
            assert all(peer.bandwidth is not None and peer.bandwidth > 1e6 for peer in after.peers)
            assert after.probed
        else:
            assert not after.probed  # a probe is between nodes
        if rank != 1:
            late = {peer.rank: peer for peer in after.peers}[1]
            assert late.waits >= 1
            assert 0.5 < late.longest_wait < 30
            assert after.stragglers()[0].rank == 1


def _probing() -> tuple[list[bool], int, float]:
    with rl.init(timeout=60) as comm:
        began = time.monotonic()
        prober = rl.adapt.Prober(comm, share=0.1, quiet=0.05, budget=0.02)
        said = [prober.idle()]  # nothing was idle yet
        for _ in range(8):
            time.sleep(0.06)
            said.append(prober.idle())
        return said, len(prober.found), time.monotonic() - began


def test_probes_are_made_by_all_ranks_together_when_idle_and_within_their_budget() -> None:
    with rl.WorkerGroup(3, transport="tcp") as group:
        results = group.run(_probing, timeout=150)
    said, found, _ = results[0]
    seconds = max(each[2] for each in results)
    assert all(each[0] == said for each in results)
    assert not said[0]
    assert 1 <= sum(said) <= 0.1 * seconds / 0.02
    assert found == 2


def _published(path: str) -> int:
    with rl.init(timeout=60) as comm:
        comm.all_reduce(np.ones(1000))
        comm._publisher.write()
        comm.barrier()
        seen = len(publish.read_snapshots(Path(path)))
        comm.barrier()
        return seen


def test_snapshots_appear_and_go(tmp_path: Path) -> None:
    with rl.WorkerGroup(2, env={"RINGLEADER_MONITOR": str(tmp_path)}) as group:
        assert group.run(_published, str(tmp_path), timeout=150) == [2, 2]
    assert not list(tmp_path.glob("*.json"))


def test_a_dead_process_leaves_no_snapshot(tmp_path: Path) -> None:
    with rl.init(rank=0, size=1) as comm:
        publisher = publish.Publisher(comm, tmp_path, interval=60)
        publisher.write()
        (path,) = tmp_path.glob("*.json")
        (tmp_path / "other.network.json").write_text(json.dumps({**json.loads(path.read_text()), "start": "0"}))
        (tmp_path / "broken.network.json").write_text("{")
        assert [each.total.size for each in publish.read_snapshots(tmp_path)] == [1]
        publisher.stop()
    assert [each.name for each in tmp_path.iterdir()] == ["broken.network.json"]
