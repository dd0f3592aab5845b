"""Every rule of the spec: what breaks it, and that the message names the transfer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_schedule_samples import SAMPLES, dissemination, through_scratch

from ringleader.errors import ScheduleError
from ringleader.schedule import Builder, Schedule, check_spec
from ringleader.schedule.spec import RULES, find_violation


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_keep_every_rule(name: str) -> None:
    check_spec(SAMPLES[name]())
    check_spec(SAMPLES[name]().split(3).pipelined(2))
    check_spec(dissemination(7))


def with_transfers(
    *transfers: dict[str, object], collective: str = "all_reduce", n: int = 4, chunks: int = 4
) -> Schedule:
    """One good transfer, then those given."""
    b = Builder(collective, n, chunks)
    b.send(0, 0, 0, 1)
    for transfer in transfers:
        b.send(**({"step": 0, "src": 2, "src_chunk": 1, "dst": 3} | transfer))  # type: ignore[arg-type]
    return b.build()


SCRATCH = {"dst_buffer": "scratch"}
BROKEN: dict[str, tuple[Callable[[], Schedule], str]] = {
    "root": (lambda: Schedule.empty("broadcast", 4, 1, root=4), "root is 4; expected 0 to 3"),
    "root of none": (lambda: Schedule.empty("all_reduce", 4, 1, root=1), "root is 1; expected 0 to 0"),
    "blocks": (lambda: Schedule.empty("all_gather", 4, 6), "6 chunks cannot be divided into 4 blocks"),
    "barrier": (lambda: Schedule.empty("barrier", 4, 2), "it has 2 chunks"),
    "held": (lambda: Schedule.empty("all_reduce", 1 << 20, 1 << 20), "it holds 1099511627776 chunks"),
    "scratch held": (
        lambda: with_transfers(SCRATCH | {"dst_chunk": (1 << 31) - 1}),
        "it holds 8589934608 chunks",
    ),
    "moved": (
        lambda: with_transfers({"step": np.arange(4096), "count": 1 << 16}, chunks=1 << 17),
        "it moves 268435457 chunks",
    ),
    "step": (lambda: with_transfers({"step": -1}), "step is -1"),
    "channel": (lambda: with_transfers({"channel": -1}), "channel is -1"),
    "src_rank": (lambda: with_transfers({"src": 4}), "src_rank is 4; expected 0 to 3"),
    "dst_rank": (lambda: with_transfers({"dst": -1}), "dst_rank is -1; expected 0 to 3"),
    "count": (lambda: with_transfers({"count": 0}), "count is 0"),
    "reduce in broadcast": (lambda: with_transfers({"reduce": True}, collective="broadcast"), "reduce is 1"),
    "input": (lambda: with_transfers({"src_buffer": "input"}), "src_buffer is input, which all_reduce does not have"),
    "output": (lambda: with_transfers({"dst_buffer": "output"}), "dst_buffer is output"),
    "chunk": (lambda: with_transfers({"src_chunk": 4}), "src_chunk is 4; expected 0 to 3"),
    "chunks": (lambda: with_transfers({"src_chunk": 2, "count": 3}), "src_chunk is 2 to 4; expected 0 to 3"),
    "negative scratch": (lambda: with_transfers(SCRATCH | {"dst_chunk": -1}), "dst_chunk is -1"),
    "itself": (lambda: with_transfers({"dst": 2}), "its source and destination overlap"),
    "overlap": (
        lambda: with_transfers({"dst": 2, "dst_chunk": 2, "count": 2}, collective="all_gather"),
        "its source and destination overlap",
    ),
    "index": (lambda: with_transfers({"dst_chunk": 2}), "index within the block is 1 at the source and 2"),
    "two copies": (lambda: with_transfers({}, {"src": 1}), "it writes the same chunk as transfer 1"),
    "copy beside reduce": (
        lambda: with_transfers({}, {"src": 1, "reduce": True}),
        "it writes the same chunk as transfer 1",
    ),
    "copy of a range": (
        lambda: with_transfers({"src_chunk": 0, "count": 2}, {"src": 0, "src_chunk": 1, "count": 2}),
        "it writes the same chunk as transfer 1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_named(name: str) -> None:
    make, message = BROKEN[name]
    schedule = make()
    with pytest.raises(ScheduleError) as caught:
        check_spec(schedule)
    text = str(caught.value)
    assert message in text
    assert ". Rule: " in text
    assert text.startswith(("transfer ", "<Schedule"))


def test_every_rule_has_a_sentence() -> None:
    for rule in RULES:
        assert rule.__doc__
        assert rule.__doc__.endswith(".")


def test_the_offender_is_found_in_order_of_the_table() -> None:
    schedule = with_transfers({"step": 3}, {"step": 5, "dst": 9}, {"step": 7, "dst": 8})
    with pytest.raises(ScheduleError, match=r"^transfer 2 \(step 5: rank 2 data\[1\] -> rank 9 data\[1\], channel 0\)"):
        check_spec(schedule)


def test_allowed_neighbours() -> None:
    """A chunk may be read and written in one step, reduced into by several, and copied to another buffer or block."""
    check_spec(with_transfers({"reduce": True}, {"src": 1, "reduce": True}, {"src": 3, "dst": 2}))
    check_spec(with_transfers({"dst": 2, "dst_buffer": "scratch"}))
    check_spec(with_transfers({"dst": 2, "dst_chunk": 3}, collective="all_gather"))
    check_spec(with_transfers({"step": 1}, {"step": 2}))


class TestScratchSizes:
    """A scratch chunk has the size of what was first written to it."""

    @staticmethod
    def chain(last: int) -> Schedule:
        b = Builder("all_reduce", 2, 4)
        b.send(0, 0, 1, 1, 7, dst_buffer="scratch")
        b.send(1, 1, 7, 0, 5, src_buffer="scratch", dst_buffer="scratch")
        b.send(2, 0, 5, 1, last, src_buffer="scratch", reduce=True)
        return b.build()

    def test_it_travels_along(self) -> None:
        check_spec(self.chain(1))
        with pytest.raises(
            ScheduleError, match=r"transfer 2 .* index within the block is 1 and 2, one end being scratch"
        ):
            check_spec(self.chain(2))

    def test_it_does_not_change(self) -> None:
        b = Builder("all_reduce", 2, 4)
        b.send(0, 0, 1, 1, 0, dst_buffer="scratch")
        b.send(1, 0, 2, 1, 0, dst_buffer="scratch")
        with pytest.raises(ScheduleError, match="one end being scratch"):
            check_spec(b.build())

    def test_with_one_chunk_a_block_anything_goes(self) -> None:
        table = through_scratch(3).table.copy()
        table = table[table["count"] == 2]
        table["count"] = 1
        check_spec(Schedule("all_reduce", 3, 1, table))


def test_collisions_are_those_of_single_chunks() -> None:
    # Transfers of several chunks are looked at as a whole; each chunk by itself must say the same.
    random = np.random.default_rng(5)
    found = 0
    for _ in range(300):
        b = Builder("all_reduce", n=3, chunks=8)
        writes: dict[tuple[int, int, int], list[bool]] = {}
        for step in np.sort(random.integers(0, 3, 4)).tolist():
            src, chunk, count = (int(value) for value in random.integers((0, 0, 1), (3, 5, 4)))
            dst, reduce = (src + int(random.integers(1, 3))) % 3, bool(random.integers(0, 3))
            b.send(step, src=src, src_chunk=chunk, dst=dst, count=count, reduce=reduce)
            for place in range(chunk, chunk + count):
                writes.setdefault((step, dst, place), []).append(reduce)
        collides = any(len(kinds) > 1 and not all(kinds) for kinds in writes.values())
        assert (find_violation(b.build()) is not None) is collides
        found += collides
    assert 30 < found < 270
