"""Time lines from recordings: clocks that differ are aligned, waiting is charged to who comes last, files are right."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from test_flight import USUAL, call, recording

from ringleader.runtime.flight.records import Operation, Recording
from ringleader.runtime.flight.timeline import Clock, align, summarize, write_trace

BASE = 1.8e9  # seconds since 1970


def job(
    clocks: dict[str, tuple[float, float]], operations: int = 300, late: int = -1, seed: int = 1
) -> tuple[list[Recording], dict[str, Clock]]:
    """A job of a rank on each host, whose clocks show true time * (1 + drift) + offset; and what would align them."""
    chance = random.Random(seed)
    hosts = list(clocks)
    own: dict[str, list[Operation]] = {host: [] for host in hosts}
    now = 0.0
    for number in range(1, operations + 1):
        slow = late if number > 8 else -1  # the first are those of a group that is traced
        came = [now + chance.random() * 2e-4 + (5e-3 if place == slow else 0.0) for place in range(len(hosts))]
        over = max(came) + 1e-4
        for host, begun in zip(hosts, came, strict=True):
            offset, drift = clocks[host]

            def shown(time: float, offset: float = offset, drift: float = drift) -> float:
                return BASE + time * (1 + drift) + offset

            ended = over + chance.random() * 1e-4
            own[host].append(call(number, begun=shown(begun), ended=shown(ended)))
        now = over + chance.random() * 0.05
    recordings = [
        recording(
            rank, *own[host], size=len(hosts), members=tuple(range(len(hosts))), host=host, read=own[host][-1].ended
        )
        for rank, host in enumerate(hosts)
    ]
    first_offset, first_drift = clocks[hosts[0]]
    right = {
        host: Clock(first_offset - offset, (1 + first_drift) / (1 + drift) - 1, BASE + offset, None)
        for host, (offset, drift) in clocks.items()
    }
    return recordings, right


@pytest.mark.parametrize("seed", range(5))
def test_clocks_that_differ_and_drift_are_aligned_within_what_is_stated(seed: int) -> None:
    clocks = {"a": (0.0, 0.0), "b": (11.5, 5e-5), "c": (-3600.0, -2e-5), "d": (1e-5, 0.0)}
    recordings, right = job(clocks, seed=seed)
    found = align(recordings)
    for each in recordings:
        clock = found[each.host]
        assert clock.uncertainty is not None and clock.uncertainty < 1e-3
        for operation in (each.operations[0], each.operations[150], each.operations[-1]):
            assert operation.begun is not None
            error = abs(clock(operation.begun) - right[each.host](operation.begun))
            assert error < 1e-3 and error <= clock.uncertainty + 5e-6  # and the resolution of the numbers
    assert found["d"].drift == 0.0, "no drift without need"


def test_hosts_are_aligned_by_way_of_others_and_those_that_cannot_be_are_told() -> None:
    first, _ = job({"a": (0.0, 0.0), "b": (2.0, 0.0)})
    second, _ = job({"b": (2.0, 0.0), "c": (-7.0, 0.0)}, seed=2)
    second = [dataclasses.replace(each, group="second", members=(1, 2)) for each in second]
    alone = recording(3, call(1), group="alone", members=tuple(range(4)), size=4, host="lonely")
    found = align([*first, *second, alone])
    assert found["c"].offset == pytest.approx(7.0, abs=1e-3) and (found["c"].uncertainty or 1.0) < 1e-3
    assert found["lonely"] == Clock(0.0, 0.0, 0.0, None)
    assert [each.aligned for each in summarize([*first, *second, alone])] == [True, True, True, False]


def test_who_comes_last_is_charged_with_the_others_waiting() -> None:
    recordings, _ = job({"a": (0.0, 0.0), "b": (11.5, 5e-5), "c": (1.0, 0.0)}, late=2)
    ranks = summarize(recordings)
    assert ranks[2].last >= 292
    assert ranks[2].awaited == pytest.approx(292 * 5.1e-3, rel=0.05) and ranks[0].awaited < 0.01
    assert ranks[0].waiting > 300 * 4.5e-3 > 10 * ranks[2].waiting
    assert ranks[0].operations == 300 and ranks[0].nbytes == 300 * 8 * 4


def test_the_trace_is_json_with_every_operation_whatever_the_names(tmp_path: Path) -> None:
    strange = 'a "quoted"\nname \U0001f600'
    recordings, _ = job({"a": (0.0, 0.0), strange: (3.0, 0.0)}, operations=20)
    message = dataclasses.replace(
        USUAL, kind="recv", peer=1, tag=5, begun=BASE, ended=None, state="running", site=strange
    )
    recordings = [dataclasses.replace(each, group=strange, messages=(message,)) for each in recordings]
    path = tmp_path / "trace.json"
    events = write_trace(recordings, path)
    trace = json.loads(path.read_text())["traceEvents"]
    assert len(trace) == events
    slices = [each for each in trace if each["ph"] == "X" and each["cat"] == "collective"]
    assert len(slices) == 40 and all(each["dur"] > 0 and each["ts"] > -1000 for each in slices)
    waits = [each for each in trace if each.get("cat") == "waiting"]
    assert len(waits) == 20 and {each["name"] for each in waits} <= {"waiting for rank 0", "waiting for rank 1"}
    assert {each["args"]["name"] for each in trace if each["name"] == "thread_name"} == {strange}
    assert [each["ph"] for each in trace if each.get("cat") == "message"] == ["b", "e"] * 2
    assert any("clock within" in each["args"].get("name", "") for each in trace if each["ph"] == "M")


def test_nothing_recorded_is_nothing_to_show(tmp_path: Path) -> None:
    assert align([]) == {} and summarize([recording(0)]) == []
    assert write_trace([recording(0)], tmp_path / "trace.json") == 3
