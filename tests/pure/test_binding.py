"""Which cores ranks get, and whether they share them: functions of what the ranks tell."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ringleader.errors import InvalidArgument
from ringleader.runtime.binding import (
    Seat,
    bind,
    crowded,
    fair_share,
    format_cores,
    held_here,
    my_cores,
    parse_bind,
    parse_cores,
    physical_order,
    seats,
)
from ringleader.runtime.cards import Card, agreed_workers, cohabitants
from ringleader.runtime.config import Config


def host(n: int, cores: str, setting: str = "core") -> list[Seat]:
    return [Seat(f"rank {r}", parse_cores(cores), setting) for r in range(n)]


def texts(found: list[frozenset[int]]) -> list[str]:
    return [format_cores(cores) for cores in found]


@pytest.mark.parametrize(
    ("n", "cores", "expected"),
    [
        (1, "0-3", ["0-3"]),
        (2, "0-3", ["0-1", "2-3"]),
        (3, "0-3", ["0", "1", "2-3"]),
        (4, "4-7", ["4", "5", "6", "7"]),
        (4, "0,2", ["0", "0", "2", "2"]),
        (5, "0-1", ["0", "0", "0", "1", "1"]),
        (8, "0-2", ["0", "0", "0", "1", "1", "1", "2", "2"]),
    ],
)
def test_core_shares_evenly(n, cores, expected):
    found = seats(host(n, cores))
    assert texts(found) == expected
    assert frozenset().union(*found) == parse_cores(cores)
    # Who is bound stays: the ranks that have the same cores now are those that share them.
    again = seats([Seat(f"rank {r}", mine, "core") for r, mine in enumerate(found)])
    assert again == found


def test_ranks_that_a_launcher_has_bound_stay_apart():
    first, second = host(2, "0-1"), host(2, "2-3")
    assert texts(seats([first[0], second[0], first[1], second[1]])) == ["0", "2", "1", "3"]
    assert texts(seats([*host(1, "0-3", "none"), *host(2, "0-3")])) == ["0-3", "0-1", "2-3"]


def test_lists_go_by_local_rank():
    assert texts(seats(host(2, "0-7", "0-3:4-7"))) == ["0-3", "4-7"]
    with pytest.raises(InvalidArgument, match=r"names cores for 2 rank\(s\) of a host, but rank 2 is number 2 of 3"):
        seats(host(3, "0-7", "0-3:4-7"))


def test_hardware_threads_of_a_core_are_neighbours(tmp_path: Path):
    for core in range(8):  # two packages of two cores of two threads; numbered as usual: all first threads first
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{core % 4 // 2}\n")
        (topology / "die_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core % 2}\n")
    order = physical_order(range(8), str(tmp_path))
    assert order == [0, 4, 1, 5, 2, 6, 3, 7]
    found = seats(host(4, "0-7"), lambda cores: physical_order(cores, str(tmp_path)))
    assert texts(found) == ["0,4", "1,5", "2,6", "3,7"]
    (tmp_path / "cpu3" / "topology" / "core_id").unlink()
    assert physical_order(range(8), str(tmp_path)) == list(range(8))


@pytest.mark.parametrize(
    ("taken", "each", "quota", "expected"),
    [
        (["0-1", "0-1"], 1, 0, False),
        (["0-1", "0-1", "0-1"], 1, 0, True),
        (["0", "1", "2", "3"], 1, 0, False),  # each process sees one core, and yet they share none
        (["0", "1", "2", "2"], 1, 0, True),
        (["0", "0", "0-3"], 1, 0, True),  # enough cores together, but two must share one
        (["0-1", "0", "0-2"], 1, 0, False),
        (["0-3", "4-7"], 4, 0, False),
        (["0-3", "4-7"], 5, 0, True),
        (["0", "1", "2", "3"], 1, 3, True),  # a container's quota
        (["0", "1"], 1, 2, False),
    ],
)
def test_crowded(taken, each, quota, expected):
    assert crowded([parse_cores(text) for text in taken], each, quota) is expected


def test_fair_share():
    assert [fair_share([parse_cores("0-7")] * 3, r) for r in range(3)] == [2, 2, 2]
    assert [fair_share([parse_cores("0-3"), parse_cores("3")], r) for r in range(2)] == [3, 0]
    assert fair_share([parse_cores("0-7")] * 2, 0, quota=3) == 1


def card(rank: int, cores: str, **changes: object) -> Card:
    values = {"host": "here", "cores": cores, **changes}
    return Card(rank, "name", 1, network="net", shm=True, transport="auto", channels=2, identity="00", **values)


def test_cards_tell_who_shares_cores():
    bound = [card(r, str(r)) for r in range(4)]
    assert not cohabitants(bound, 2).crowded() and cohabitants(bound, 2).cores == 4
    assert cohabitants(bound, 2).crowded(unseen=1)
    assert cohabitants([*bound, card(4, "2")], 0).crowded()
    # On another host the same numbers are other cores.
    assert not cohabitants([*bound, card(4, "2", host="there")], 0).crowded()
    assert cohabitants([card(r, "0-3", quota=2) for r in range(4)], 0).crowded()
    halves = [card(r, "0-7", bind="core") for r in range(2)]
    assert [format_cores(cohabitants(halves, r).cores_of(r)) for r in range(2)] == ["0-3", "4-7"]
    assert agreed_workers(halves, 1) == 4 and agreed_workers(bound, 1) == 1
    assert agreed_workers([card(r, f"{2 * r}-{2 * r + 1}") for r in range(2)], 1) == 2


@pytest.mark.parametrize("text", ["all", "0-", "3-1", "0:", "0::1", "-1", "0,,1", "", "1x", "0-70000", "core:0"])
def test_what_is_not_a_binding(text):
    with pytest.raises(InvalidArgument, match=r"RINGLEADER_BIND=.*expected none, core, or cores of each local rank"):
        Config.from_environment({"RINGLEADER_BIND": text})
    with pytest.raises(ValueError):
        parse_bind(text)


def in_thread(body) -> None:
    """Affinity belongs to threads: tests spoil their own only."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.mark.skipif(len(my_cores()) < 2, reason="needs two cores")
def test_a_binding_is_undone_unless_somebody_changed_it():
    def body() -> None:
        before = my_cores()
        one, other = frozenset({min(before)}), frozenset({max(before)})
        binding = bind(one, "core", "rank 0")
        assert binding is not None and my_cores() == one and held_here() is binding
        assert bind(one, "core", "rank 0") is None
        helper = threading.Thread(target=binding.release)  # from another thread, as a program's end may come
        helper.start()
        helper.join(30)
        assert my_cores() == before and held_here() is None
        binding = bind(one, "core", "rank 0")
        assert binding is not None
        os.sched_setaffinity(0, other)
        assert held_here() is None
        binding.release()
        binding.release()
        assert my_cores() == other

    in_thread(body)


def test_cores_that_do_not_exist():
    def body() -> None:
        before = my_cores()
        for cores in (frozenset({4000}), before | {4001}):
            with pytest.raises(InvalidArgument, match=r"RINGLEADER_BIND=.*: rank 3 cannot run on cores .*; it may use"):
                bind(cores, format_cores(cores), "rank 3")
            assert my_cores() == before

    in_thread(body)
