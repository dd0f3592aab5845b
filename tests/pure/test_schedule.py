"""The table, the builder and the algebra."""

from __future__ import annotations

import itertools
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_samples import (
    I64,
    SAMPLES,
    SUM,
    binomial_broadcast,
    direct_all_to_all,
    dissemination,
    doubling,
    expected,
    linear_gather,
    one_shot,
    random_inputs,
    ring,
    ring_reduce_scatter,
    run,
    same,
    through_scratch,
    tree,
    two_shot,
)

from ringleader.errors import ScheduleError
from ringleader.schedule import TRANSFER_DTYPE, Buffer, Builder, Collective, Schedule, verify


def proved(schedule: Schedule) -> Schedule:
    """Verified on symbols, and right on numbers."""
    verify(schedule, lowered=False).raise_if_failed()
    if schedule.collective is not Collective.BARRIER:
        inputs = random_inputs(schedule, 11)
        assert same(run(schedule, inputs, I64, SUM, native=False), expected(schedule, inputs))
    return schedule


# ---------------------------------------------------------------------------------------------------------- table


def test_transfer_layout_is_the_native_one() -> None:
    assert TRANSFER_DTYPE.itemsize == 29
    assert [TRANSFER_DTYPE.fields[name][1] for name in TRANSFER_DTYPE.names] == [0, 4, 8, 12, 16, 20, 24, 26, 27, 28]


def test_codes_are_the_native_ones() -> None:
    names = [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
    ]
    assert [Collective(name).code for name in names] == list(range(9))
    assert [buffer.name for buffer in Buffer] == ["DATA", "INPUT", "OUTPUT", "SCRATCH"]


def test_numbers_of_a_ring() -> None:
    schedule = ring(5)
    assert (schedule.n, schedule.chunks, schedule.blocks, schedule.chunks_per_block) == (5, 5, 1, 5)
    assert (schedule.steps, schedule.transfers, schedule.channels, len(schedule)) == (8, 40, 1, 40)
    assert (ring_reduce_scatter(5).blocks, ring_reduce_scatter(5).chunks_per_block) == (5, 1)
    assert repr(schedule) == "<Schedule 'ring': all_reduce, n=5, chunks=5, steps=8, transfers=40, channels=1>"
    assert "root=3" in repr(binomial_broadcast(4, root=3))


def test_schedules_do_not_change() -> None:
    schedule = ring(3)
    with pytest.raises(AttributeError, match="cannot be changed"):
        schedule.n = 4
    with pytest.raises(AttributeError, match="cannot be changed"):
        del schedule.table
    with pytest.raises(ValueError, match="read-only"):
        schedule.table["step"][0] = 7
    mine = ring(3).table.copy()
    other = Schedule("all_reduce", 3, 3, mine)
    mine["step"] = 9
    assert other == schedule


def test_equality_and_hash() -> None:
    assert ring(4) == ring(4).with_name("other")
    assert hash(ring(4)) == hash(ring(4))
    assert len({ring(4), ring(4), ring(5), tree(4)}) == 3
    different = [ring(4), ring(4).as_collective("barrier"), ring(4).on(ranks=[1, 0, 2, 3]), ring(4).split(2)]
    different += [binomial_broadcast(4), binomial_broadcast(4, root=1), Schedule.empty("all_reduce", 4, 4)]
    assert all(a != b and a.fingerprint != b.fingerprint for a, b in itertools.combinations(different, 2))
    assert ring(4) != "ring"


def test_pickle() -> None:
    again = pickle.loads(pickle.dumps(ring(4)))
    assert again == ring(4)
    assert again.name == "ring"
    assert not again.table.flags.writeable


def test_rows_are_put_in_order_of_steps_and_keep_it_within() -> None:
    b = Builder("all_reduce", 3, 1)
    b.send(1, src=0, src_chunk=0, dst=1)
    b.send(0, src=2, src_chunk=0, dst=0, reduce=True)
    b.send(1, src=0, src_chunk=0, dst=2)
    assert b.build().table["step"].tolist() == [0, 1, 1]
    assert b.build().table["dst_rank"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_recude", 2, 1), "did you mean 'all_reduce'"),
        (("all_reduce", 0, 1), "n is 0"),
        (("all_reduce", 2.0, 1), "n is 2.0"),
        (("all_reduce", True, 1), "n is True"),
        (("all_reduce", 2, 0), "chunks is 0"),
        (("all_reduce", 2, 1 << 31), "chunks is"),
        (("broadcast", 2, 1, -1), "root is -1"),
    ],
)
def test_wrong_arguments(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Builder(*arguments)  # type: ignore[arg-type]


def test_wrong_tables() -> None:
    for table in (np.zeros((2, 10), np.int32), [], np.zeros((1, 1), TRANSFER_DTYPE)):
        with pytest.raises(ScheduleError, match="TRANSFER_DTYPE"):
            Schedule("all_reduce", 2, 1, table)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- builder


def test_arrays_and_single_transfers_mix_in_order() -> None:
    b = Builder("all_reduce", 4, 4)
    b.send(0, 0, 0, 1)
    b.send(0, np.array([1, 2]), [[1], [2]], 3, count=2, reduce=[True, False], channel=1)
    b.send(np.int64(0), 3, 3, 0, 2, src_buffer=Buffer.SCRATCH, dst_buffer="input")
    rows = [tuple(int(value) for value in row) for row in b.build().table]
    assert rows == [
        (0, 0, 0, 1, 0, 1, 0, 0, 0, 0),
        (0, 1, 1, 3, 1, 2, 1, 0, 0, 1),
        (0, 2, 1, 3, 1, 2, 1, 0, 0, 0),
        (0, 1, 2, 3, 2, 2, 1, 0, 0, 1),
        (0, 2, 2, 3, 2, 2, 1, 0, 0, 0),
        (0, 3, 3, 0, 2, 1, 0, 3, 1, 0),
    ]
    assert len(b.build()) == 6  # building twice is fine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 1 << 31}, "step is 2147483648"),
        ({"channel": 40000}, "channel is 40000"),
        ({"channel": np.array([40000])}, "channel runs from"),
        ({"src": np.array([1 << 40])}, "src_rank runs from"),
        ({"src": [0.5]}, "src_rank must be integers"),
        ({"src": "0"}, "src_rank must be integers"),
        ({"src": [0, 1], "dst": [1, 2, 3]}, "cannot be broadcast"),
        ({"src_buffer": "dada"}, "unknown buffer 'dada'"),
        ({"dst_buffer": 4}, "unknown buffer 4"),
    ],
)
def test_wrong_transfers(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Builder("all_reduce", 2, 1).send(**{"step": 0, "src": 0, "src_chunk": 0, "dst": 1} | arguments)  # type: ignore[arg-type]


def test_empty_arrays_add_nothing() -> None:
    b = Builder("all_reduce", 2, 1)
    b.send([], [], [], [])
    assert b.build() == Schedule.empty("all_reduce", 2, 1)


def test_two_million_transfers_are_built_and_composed_quickly() -> None:
    small, large = 128, 1024  # 64 times the transfers: allow for more than that, but not for a loop over them
    times = []
    for n in (small, large):
        start = time.thread_time()
        assert ring(n).transfers == 2 * n * (n - 1)
        times.append(time.thread_time() - start)
    assert times[1] < 10  # about 0.3 s


# -------------------------------------------------------------------------------------------------------- algebra


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_compositions_that_are_collectives(n: int) -> None:
    scatter = linear_gather(n).reversed()
    reduce = binomial_broadcast(n).reversed()
    wide_reduce, wide_broadcast = reduce.split(2 * n), binomial_broadcast(n).split(2 * n)
    rs, ag = ring_reduce_scatter(n), ring_reduce_scatter(n).reversed()
    made = [
        rs >> ag,
        reduce >> binomial_broadcast(n),
        rs.split(2) >> linear_gather(n),
        wide_reduce >> scatter,
        scatter >> ag.split(2),
        linear_gather(n) >> wide_broadcast,
    ]
    names = ["all_reduce", "all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather"]
    assert [proved(schedule).collective for schedule in made] == names


def test_then_shifts_steps_and_keeps_the_root() -> None:
    whole = binomial_broadcast(4, root=3).reversed() >> binomial_broadcast(4, root=3)
    assert (whole.steps, whole.root, whole.collective) == (4, 0, "all_reduce")
    assert proved(ring_reduce_scatter(4).split(2) >> linear_gather(4, root=2)).root == 2


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (ring(3), ring(4), "n is 3 and 4"),
        (ring(3), one_shot(3), "chunks is 3 and 1"),
        (binomial_broadcast(4).reversed(), binomial_broadcast(4, root=1), "roots differ"),
        (ring_reduce_scatter(3).reversed(), ring_reduce_scatter(3), "all_gather >> reduce_scatter is no collective"),
        (binomial_broadcast(3), binomial_broadcast(3).reversed(), "broadcast >> reduce is no collective"),
        (one_shot(3), dissemination(3), "all_reduce >> barrier is no collective"),
    ],
)
def test_meaningless_sequences(a: Schedule, b: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        a >> b


def test_meaningless_neighbours() -> None:
    with pytest.raises(ScheduleError, match="is no collective"):
        ring(3) | ring_reduce_scatter(3)
    with pytest.raises(ScheduleError, match="chunks is 3 and 1"):
        ring(3) | one_shot(3)


def test_side_by_side_on_halves_of_the_chunks() -> None:
    both = tree(4).on(chunks=[0], total_chunks=2) | tree(4).on(ranks=[3, 2, 1, 0], chunks=[1], total_chunks=2)
    assert proved(both).steps == tree(4).steps
    assert proved(Schedule.empty("all_reduce", 4, 4) | ring(4)) == ring(4)


def test_scratch_of_composed_schedules_is_kept_apart() -> None:
    first = through_scratch(3).on(chunks=[0, 1], total_chunks=4)
    second = through_scratch(3).on(chunks=[2, 3], total_chunks=4)
    assert proved(first | second).scratch_chunks == 8
    assert proved(first >> second).scratch_chunks == 8


@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (2, 3), (3, 4), (4, 1), (1, 4)])
def test_hierarchical_all_reduce(nodes: int, local: int) -> None:
    """Reduce-scatter inside each node, all-reduce of each shard across nodes, all-gather inside."""
    n = nodes * local
    chunks = local * nodes  # `local` shards of `nodes` chunks
    empty = Schedule.empty("reduce_scatter", n, chunks)
    inside = empty
    for node in range(nodes):
        ranks = node * local + np.arange(local)
        inside |= ring_reduce_scatter(local).split(nodes).on(ranks, n=n, total_chunks=chunks)
    across = Schedule.empty("all_reduce", n, chunks)
    for shard in range(local):
        ranks, its_chunks = shard + local * np.arange(nodes), shard * nodes + np.arange(nodes)
        across |= ring(nodes).on(ranks, its_chunks, n=n, total_chunks=chunks)
    assert proved(inside >> across >> inside.reversed()).collective == "all_reduce"


def test_relabelling_keeps_ranges_whole_where_it_can() -> None:
    b = Builder("all_reduce", 2, 4)
    b.send(0, 0, 0, 1, count=4, reduce=True)
    schedule = b.build()
    assert schedule.on(chunks=[4, 5, 6, 7], total_chunks=8).table["count"].tolist() == [4]
    torn = schedule.on(chunks=[4, 5, 0, 1], total_chunks=8)
    assert torn.table["count"].tolist() == [1, 1, 1, 1]
    assert torn.table["src_chunk"].tolist() == torn.table["dst_chunk"].tolist() == [4, 5, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": [0, 1]}, "ranks must be 3 integers"),
        ({"ranks": [0, 1, 1]}, "ranks repeats"),
        ({"ranks": [0, 1, 3]}, "expected 0 to 2"),
        ({"ranks": [0, 1, -1]}, "expected 0 to 2"),
        ({"chunks": [0, 1, 2.5]}, "chunks must be 3 integers"),
        ({"total_chunks": 2}, "do not fit into 2"),
        ({"n": 2}, "do not fit into 2"),
    ],
)
def test_wrong_relabelling(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        ring(3).on(**arguments)  # type: ignore[arg-type]


PAIRS = [("reduce_scatter", "all_gather"), ("reduce", "broadcast"), ("gather", "scatter")]


@pytest.mark.parametrize("name", [name for pair in PAIRS for name in pair] + ["all_to_all", "ring", "tree", "two-shot"])
def test_mirror_images(name: str) -> None:
    schedule = SAMPLES[name]()
    image = proved(schedule.reversed())
    partner = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
    assert image.collective == partner.get(str(schedule.collective), schedule.collective)
    assert image.reversed() == schedule
    assert proved(dissemination(5).reversed()).reversed() == dissemination(5)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_split_and_pipelined(name: str, k: int) -> None:
    schedule = SAMPLES[name]()
    copies = proved(schedule.split(k))
    assert (copies.steps, copies.channels) == (schedule.steps, k * schedule.channels)
    assert copies.chunks == schedule.chunks * k
    segments = proved(schedule.pipelined(k))
    assert (segments.steps, segments.channels) == (schedule.steps + k - 1, schedule.channels)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_split_over_different_rank_orders(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from([ring(4), ring_reduce_scatter(4), direct_all_to_all(4), two_shot(4)]))
    orders = data.draw(st.lists(st.permutations(range(4)), min_size=1, max_size=3))
    proved(schedule.split(len(orders), orders).pipelined(data.draw(st.integers(1, 2))))


def test_split_must_keep_the_root_and_get_an_order_for_each_copy() -> None:
    proved(binomial_broadcast(4).split(2, [[0, 1, 2, 3], [0, 3, 2, 1]]))
    with pytest.raises(ScheduleError, match="moves the root from 0 to 1"):
        binomial_broadcast(4).split(2, [[0, 1, 2, 3], [1, 0, 2, 3]])
    with pytest.raises(ScheduleError, match="needs 2 rank orders"):
        ring(3).split(2, [[0, 1, 2]])
    for k in (0, -1, 1.5, True):
        with pytest.raises(ScheduleError, match="factor of at least 1"):
            ring(3).split(k)  # type: ignore[arg-type]
        with pytest.raises(ScheduleError, match="factor of at least 1"):
            ring(3).pipelined(k)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="channels"):
        ring(3).split(40000)
    with pytest.raises(ScheduleError, match="chunks"):
        ring(3).pipelined(1 << 30)


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize("make", [binomial_broadcast, linear_gather])
def test_other_roots(make: object, root: int) -> None:
    schedule = make(5)  # type: ignore[operator]
    assert proved(schedule.with_root(root)).root == root
    assert proved(schedule.reversed().with_root(root)).root == root
    assert schedule.with_root(root).with_root(0) == schedule


def test_roots_that_do_not_exist() -> None:
    with pytest.raises(ScheduleError, match="expected a rank from 0 to 3"):
        binomial_broadcast(4).with_root(4)
    with pytest.raises(ScheduleError, match="has no root"):
        ring(4).with_root(1)


def test_as_collective() -> None:
    fold = doubling(4).as_collective("reduce", root=2)
    assert proved(fold).root == 2
    assert binomial_broadcast(4, root=1).as_collective("all_reduce").root == 0
    assert binomial_broadcast(4, root=1).as_collective("scatter").root == 1
