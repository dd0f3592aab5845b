"""Recordings of the flight recorder: files of any content are read or refused, and what an autopsy concludes."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

import ringleader as rl
from ringleader.errors import InvalidArgument
from ringleader.runtime.flight import Operation, Recording, autopsy, read_recordings
from ringleader.runtime.flight.diagnosis import latest_job
from ringleader.runtime.flight.records import parse

USUAL = Operation(
    1, "all_reduce", "float32", (8,), 8, "sum", None, "ring/push", 7, "", None, None, "a.py:1", "done", None, 10.0, 10.1
)


def recording(rank: int, *operations: Operation, size: int = 3, **fields: object) -> Recording:
    usual = Recording(rank, size, (0, 1, 2), "job", "world", "elsewhere", 100 + rank, "live", "", 20.0, operations, ())
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


def call(number: int, **fields: object) -> Operation:
    return dataclasses.replace(USUAL, number=number, **fields)  # type: ignore[arg-type]


def test_damaged_files_are_read_or_refused() -> None:
    with rl.init(rank=0, size=1) as comm:
        for i in range(40):
            comm.all_reduce(np.ones(i))
        comm.send(np.ones(1), 0)
        data = comm._core.recorded()
    chance = random.Random(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 5, 300))):
            at = chance.choice((chance.randrange(4096), chance.randrange(len(data))))
            damaged[at] = chance.randrange(256)
        if chance.random() < 0.2:
            damaged = damaged[: chance.randrange(len(damaged))]
        try:
            autopsy([parse(bytes(damaged))])
        except InvalidArgument:
            refused += 1
    assert 0 < refused < 400


def test_folders_without_recordings_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="set RINGLEADER_RECORDER_DIR to it"):
        read_recordings(tmp_path)
    with pytest.raises(InvalidArgument, match="is no folder"):
        read_recordings(tmp_path / "nowhere")
    (tmp_path / "x.flight").write_bytes(b"something else")
    with pytest.raises(
        InvalidArgument, match=r"x.flight is no recording of the flight recorder: it begins with b'someth"
    ):
        read_recordings(tmp_path)


def test_all_is_well() -> None:
    (finding,) = autopsy([recording(rank, call(1), call(2)) for rank in range(3)])
    assert not finding.ranks and "the last operation was all_reduce #2" in finding.verdict


def test_the_first_difference_counts_and_the_fewer_are_blamed() -> None:
    ranks = [recording(rank, call(1), call(2), call(3, state="running")) for rank in range(3)]
    ranks[1] = recording(1, call(1), call(2, shape=(2, 4), site="b.py:7"), call(3, dtype="float64"))
    (finding,) = autopsy(ranks)
    assert finding.ranks == (1,)
    assert "#2 with shape (2, 4), called at b.py:7; 2 ranks (0, 2) with shape (8,), called at a.py:1" in finding.verdict
    assert "float64" not in finding.verdict


def test_only_what_all_have_kept_is_compared() -> None:
    """One rank's recorder has forgotten the beginning."""
    ranks = [recording(rank, *(call(i) for i in range(1 + 5 * rank, 12))) for rank in range(3)]
    assert not autopsy(ranks)[0].ranks


def test_absent_ranks_are_blamed_only_if_no_other_is() -> None:
    waits = call(2, state="running", begun=12.0, ended=None)
    (finding,) = autopsy([recording(0, call(1), waits), recording(2, call(1), waits)])
    assert finding.ranks == (1,) and "rank 1 left no recording" in finding.verdict and "waited 8.0 s" in finding.verdict
    (finding,) = autopsy([recording(0, call(1), waits), recording(2, call(1))])
    assert finding.ranks == (2,)


def test_a_short_wait_is_no_fault() -> None:
    waits = call(2, state="running", begun=19.9, ended=None)
    assert not autopsy([recording(0, call(1), waits), recording(1, call(1)), recording(2, call(1))])[0].ranks


def test_who_has_closed_is_told_so() -> None:
    waits = call(2, state="running", begun=12.0, ended=None)
    ranks = [recording(0, call(1), waits), recording(1, call(1), end="closed"), recording(2, call(1), waits)]
    assert "rank 1 (host elsewhere, pid 101) has not entered all_reduce #2" in autopsy(ranks)[0].verdict
    assert "and has closed the communicator" in autopsy(ranks)[0].verdict


def test_communicators_with_faults_come_first_and_the_latest_job_is_told_apart() -> None:
    waits = call(1, state="running", begun=12.0, ended=None)
    fine = [recording(rank, call(1), group="fine") for rank in range(3)]
    stuck = [recording(0, waits, group="stuck"), recording(1, group="stuck"), recording(2, waits, group="stuck")]
    assert [finding.group for finding in autopsy([*fine, *stuck])] == ["stuck", "fine"]
    old = [dataclasses.replace(each, job="old", read=5.0) for each in fine]
    assert {each.job for each in latest_job([*old, *stuck])} == {"job"}
