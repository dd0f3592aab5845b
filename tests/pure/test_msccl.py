"""MSCCL algorithm XML: what files mean, what is refused and why, and that what is written is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from formats_support import files
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader import algorithms, tune
from ringleader.errors import InvalidArgument, ScheduleError, VerificationError
from ringleader.executors import reference
from ringleader.schedule import Builder, Collective, Schedule, verify
from ringleader.schedule.formats import msccl

FILES = files("msccl", ".xml")


def file(*gpus: str, coll: str = "allreduce", chunks: int = 1, attributes: str = 'inplace="1"') -> str:
    """An algorithm of the given GPUs' thread blocks, all buffers being large enough."""
    sizes = f'nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}"'
    head = f'<algo name="test" proto="LL" {sizes} coll="{coll}" {attributes}>'
    body = [
        f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="4">\n{blocks}\n</gpu>'
        for rank, blocks in enumerate(gpus)
    ]
    return "\n".join([head, *body, "</algo>"])


def tb(index: int, send: int, recv: int, *steps: str, chan: int = 0) -> str:
    return f'<tb id="{index}" send="{send}" recv="{recv}" chan="{chan}">\n' + "\n".join(steps) + "\n</tb>"


Pair = tuple[int, int]


def step(s: int, kind: str, src: str = "i0", dst: str = "i0", cnt: int = 1, dep: Pair = (-1, -1), has: int = 0) -> str:
    ends = f'srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}"'
    return f'<step s="{s}" type="{kind}" {ends} cnt="{cnt}" depid="{dep[0]}" deps="{dep[1]}" hasdep="{has}"/>'


# Each rank sends what it has, and then adds what arrives: its second thread block waits for the first.
def exchange(peer: int) -> str:
    return tb(0, peer, -1, step(0, "s", has=1)) + tb(1, -1, peer, step(0, "rrc", dep=(0, 0)))


# ---------------------------------------------------------------------------------------------------------- real files


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_files_are_proved_and_compute(path: Path) -> None:
    schedule = msccl.load(path)
    assert verify(schedule).ok
    rng = np.random.default_rng(3)
    n, count = schedule.n, 2 * schedule.chunks_per_block + 3
    blocks = n if schedule.collective is Collective.ALL_TO_ALL else 1
    inputs = [rng.integers(-1000, 1000, count * blocks) for _ in range(n)]
    outputs = reference.run(schedule, inputs, 7, 0 if schedule.collective.reduces else 255)
    for rank, output in enumerate(outputs):
        if schedule.collective is Collective.ALL_REDUCE:
            wanted = np.sum(inputs, axis=0)
        elif schedule.collective is Collective.ALL_GATHER:
            wanted = np.concatenate(inputs)
        else:
            wanted = np.concatenate([x[rank * count : (rank + 1) * count] for x in inputs])
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_files_are_written_and_read_back(path: Path) -> None:
    schedule = msccl.load(path)
    again = msccl.loads(msccl.dumps(schedule))
    assert _traffic(again) == _traffic(schedule)
    assert again.steps <= schedule.steps


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_an_algorithm_like_any_other(path: Path) -> None:
    schedule = msccl.load(path)
    kind = schedule.collective.value
    name = algorithms.load_msccl(path, "from_a_file")
    try:
        assert algorithms.build(kind, name, schedule.n).table.tobytes() == schedule.table.tobytes()
        nodes = [0] * schedule.n
        assert (
            tune.select(kind, 1 << 20, schedule.n, nodes, 4, env={"RINGLEADER_ALGO": f"{kind}:{name}"}).algorithm
            == name
        )
        found = tune.explain(kind, 1 << 20, schedule.n, nodes, 4, env={})
        (cost,) = [candidate.cost for candidate in found.candidates if candidate.algorithm == name]
        assert cost.steps == schedule.steps and cost.seconds > 0
        with pytest.raises(InvalidArgument, match=f"other numbers of ranks: {schedule.n}"):
            algorithms.build(kind, name, schedule.n + 1)
        with pytest.raises(InvalidArgument, match="already has an algorithm 'from_a_file'"):
            algorithms.load_msccl(path, "from_a_file")
    finally:
        algorithms.forget(kind, name)
    assert name not in algorithms.names(kind)


# ------------------------------------------------------------------------------------------------- what a file means


def test_an_exchange_is_one_step() -> None:
    schedule = msccl.loads(file(exchange(1), exchange(0)))
    assert (schedule.steps, schedule.transfers) == (1, 2)


def test_a_message_may_be_under_way_while_its_source_changes() -> None:
    """Rank 0 sends its chunk, replaces it, and sends it again; rank 1 uses the second message before the first.

    Both arrive in one scratch chunk, so the first must wait somewhere: in a chunk of its own.
    """
    sends = [
        tb(0, 1, -1, step(0, "s", has=1)),
        tb(1, -1, 2, step(0, "r", dep=(0, 0), has=1)),
        tb(2, 1, -1, step(0, "s", dep=(1, 0)), chan=1),
    ]
    takes = [
        tb(0, -1, 0, step(0, "r", dst="s0", has=1), chan=1),
        tb(1, -1, -1, step(0, "re", src="s0", dep=(0, 0), has=1), step(1, "re", src="s0", dep=(2, 0))),
        tb(2, -1, 0, step(0, "r", dst="s0", dep=(1, 0), has=1)),
    ]
    text = file("".join(sends), "".join(takes), tb(0, 0, -1, step(0, "s")))
    schedule = msccl.translate(msccl.parse(text, "x"))
    assert schedule.scratch_chunks == 2
    outputs = reference.run(schedule, [np.array([value]) for value in (1, 20, 300)], 7, 0)
    assert [int(x[0]) for x in outputs if x is not None] == [300, 321, 300]


@pytest.mark.parametrize("kind", ["rrs", "rrcs"])
def test_what_is_added_on_the_way_is_kept_or_not(kind: str) -> None:
    """A chain: rank 1 adds and passes on. With rrcs it keeps the sum, with rrs its own content is what it was."""
    chain = (tb(0, 1, -1, step(0, "s")), tb(0, 2, 0, step(0, kind)), tb(0, -1, 1, step(0, "rrc")))
    text = file(*chain, coll="reduce", attributes='inplace="1" root="2"')
    schedule = msccl.loads(text)
    assert (schedule.root, schedule.steps) == (2, 2 if kind == "rrcs" else schedule.steps)
    inputs = [np.array([value]) for value in (1, 10, 100)]
    assert reference.run(schedule, inputs, 7, 0)[2] == [111]


def test_out_of_place_the_input_stays_while_it_is_needed() -> None:
    """Rank r writes its output before the other rank's message has left its input."""
    first = tb(0, 1, -1, step(0, "s")) + tb(1, -1, 1, step(0, "rrc", src="i0", dst="o0"))
    late = tb(0, 0, -1, step(0, "s", dep=(1, 0))) + tb(1, -1, 0, step(0, "rrc", src="i0", dst="o0", has=1))
    schedule = msccl.loads(file(first, late, attributes='inplace="0" outofplace="1"'))
    outputs = reference.run(schedule, [np.array([1]), np.array([10])], 7, 0)
    assert [int(x[0]) for x in outputs if x is not None] == [11, 11]


def test_scratch_is_reused_for_chunks_of_several_sizes() -> None:
    """Both chunks go through one scratch chunk, which cannot have the size of both."""

    def both(peer: int) -> str:
        sends = tb(0, peer, -1, step(0, "s", src="i0"), step(1, "s", src="i1", has=1))
        takes = [
            step(0, "r", dst="s0", dep=(0, 1)),
            step(1, "re", src="s0", dst="i0"),
            step(2, "r", dst="s0"),
            step(3, "re", src="s0", dst="i1"),
        ]
        return sends + tb(1, -1, peer, *takes)

    schedule = msccl.loads(file(both(1), both(0), chunks=2))
    outputs = reference.run(schedule, [np.array([1, 2, 3]), np.array([10, 20, 30])], 7, 0)
    assert all(np.array_equal(x, [11, 22, 33]) for x in outputs if x is not None)


# --------------------------------------------------------------------------------------------------- what is refused


SEND, TAKE = tb(0, 1, -1, step(0, "s")), tb(0, -1, 0, step(0, "r"))
REFUSED = {
    "nobody receives it": file(SEND, "", coll="broadcast"),
    "nobody sends it": file("", TAKE, coll="broadcast"),
    "receives 2 chunks, but .* sends 1": file(SEND, tb(0, -1, 0, step(0, "r", cnt=2)), coll="broadcast", chunks=2),
    "expected one thread block for each connection": file(SEND + tb(1, 1, -1, step(0, "s")), TAKE, coll="broadcast"),
    "it hangs": file(*(tb(0, peer, peer, step(0, "r", dst="s0"), step(1, "s")) for peer in (1, 0))),
    "nothing says which comes first": file(
        tb(0, 1, -1, step(0, "s")) + tb(1, -1, 1, step(0, "rrc")), exchange(0)
    ),
    "holds nothing yet": file(tb(0, 1, -1, step(0, "s", src="s0")), TAKE, coll="broadcast"),
    "is not there": file(tb(0, 1, -1, step(0, "s", dep=(7, 0))), TAKE, coll="broadcast"),
    "whose hasdep is 0": file(tb(0, 1, -1, step(0, "s", dep=(1, 0))) + tb(1, -1, -1, step(0, "nop")), TAKE),
    "combines contributions|ends with 1 contribution": file(SEND, TAKE),
    "it combines chunk 0 of a block with chunk 1": file(SEND, tb(0, -1, 0, step(0, "rrc", "i1", "i1")), chunks=2),
    "is never written": file(SEND, TAKE, coll="broadcast", attributes='inplace="0"'),
    "src is chunk 1 of i, of which": file(tb(0, 1, -1, step(0, "s", src="i1")), TAKE, coll="broadcast"),
    "recv of <tb> 0 is -1": file(tb(0, 1, -1, step(0, "r")), TAKE, coll="broadcast"),
    "reduces nothing": file(tb(0, -1, -1, step(0, "re")), "", coll="broadcast"),
    "its peer is the GPU itself": file(tb(0, 0, -1, step(0, "s")), TAKE, coll="broadcast"),
    "send is '5'; expected -1 to 1": file(tb(0, 5, -1, step(0, "s")), TAKE, coll="broadcast"),
    "id is 1; expected 0": file(tb(1, 1, -1, step(0, "s")), TAKE, coll="broadcast"),
    "s is 1; expected 0": file(tb(0, 1, -1, step(1, "s")), TAKE, coll="broadcast"),
    "type is 'xyz'": file(tb(0, 1, -1, step(0, "xyz")), TAKE, coll="broadcast"),
    "depid is 0 and deps is -1": file(tb(0, 1, -1, step(0, "s", dep=(0, -1))), TAKE, coll="broadcast"),
    "coll is 'custom'": file(SEND, TAKE, coll="custom"),
    "nchunksperloop is 3; expected a multiple of ngpus=2": file(SEND, TAKE, coll="allgather", chunks=3),
    "nchunksperloop is '1099511627776'": file(SEND, TAKE, chunks=1 << 40),
    "attribute type is missing": file("<tb id='0' send='1' recv='-1' chan='0'><step s='0'/></tb>", TAKE),
    "<gpu> 1 is missing": file(SEND).replace('ngpus="1"', 'ngpus="2"'),
    "there are two with id 0": file(SEND, TAKE).replace('<gpu id="1"', '<gpu id="0"'),
    "unknown element <op>": file("<op/>", TAKE),
    "<step> inside <gpu>": file(step(0, "s"), TAKE),
    "as the root": "<gpu/>",
    "document types and entities are refused": '<!DOCTYPE algo [<!ENTITY a "b">]><algo/>',
    "the text is not XML": "<algo",
    "line 1: the text is not XML": "\x00\xff",
}  # fmt: skip


@pytest.mark.parametrize("problem", REFUSED)
def test_what_is_wrong_is_said_with_its_line(problem: str) -> None:
    with pytest.raises(ScheduleError, match=problem) as caught:
        msccl.loads(REFUSED[problem], "some.xml")
    assert str(caught.value).startswith("some.xml")
    assert isinstance(caught.value, VerificationError) or "some.xml, line " in str(caught.value)


def test_the_line_is_that_of_the_element() -> None:
    text = file(SEND, TAKE, coll="broadcast").replace('type="r"', 'type="q"')
    line = next(number for number, row in enumerate(text.splitlines(), 1) if 'type="q"' in row)
    with pytest.raises(ScheduleError, match=f"line {line}: <step> 0: type is 'q'"):
        msccl.loads(text)


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("collective", [c for c in algorithms.COLLECTIVES if c != "barrier"])
def test_every_algorithm_comes_back(collective: str, n: int) -> None:
    root = n - 1 if Collective(collective).rooted else 0
    for name in algorithms.names(collective):
        try:
            schedule = algorithms.build(collective, name, n, root)
        except InvalidArgument:
            continue
        again = msccl.loads(msccl.dumps(schedule))  # proves it
        assert (again.collective, again.n, again.root) == (schedule.collective, n, root)
        assert again.steps <= schedule.steps, name
        assert _traffic(again) == _traffic(schedule), name


def _traffic(schedule: Schedule) -> list[tuple[int, ...]]:
    """Chunks moved from rank to rank, by channel."""
    table = schedule.table[schedule.table["src_rank"] != schedule.table["dst_rank"]]
    keys = np.stack([table[name].astype(np.int64) for name in ("src_rank", "dst_rank", "channel")], axis=1)
    pairs, place = np.unique(keys, axis=0, return_inverse=True)
    counts = np.bincount(place.reshape(-1), table["count"], minlength=len(pairs))
    return [(*map(int, pair), int(count)) for pair, count in zip(pairs, counts, strict=True)]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_schedules_come_back_with_the_same_results(data: st.DataObject) -> None:
    """Any transfers that keep the spec, whether or not they make an all_reduce: the state at the end is the same."""
    n, chunks = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    b = Builder("all_reduce", n, chunks)
    for number in range(data.draw(st.integers(1, 5))):
        targets = set()
        for _ in range(data.draw(st.integers(1, 5))):
            src, dst = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
            chunk, reduce = data.draw(st.integers(0, chunks - 1)), data.draw(st.booleans())
            if src != dst and (dst, chunk) not in targets:
                targets.add((dst, chunk))
                b.send(number, src, chunk, dst, reduce=reduce)
    schedule = b.build()
    again = msccl.translate(msccl.parse(msccl.dumps(schedule), "x"))
    inputs = [np.arange(5) * (rank + 1) + 10**rank for rank in range(n)]
    wanted, got = (reference.run(each, inputs, 7, 0, native=False) for each in (schedule, again))
    assert all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True))


@pytest.mark.parametrize(
    ("schedule", "limit"),
    [
        (lambda: algorithms.build("all_reduce", "one_shot", 34), "peers that GPU 0 has to send on one channel is 33"),
        (lambda: algorithms.build("all_gather", "ring:segments=300", 2), "steps of a thread block of GPU 0 is 300"),
        (lambda: algorithms.build("all_gather", "ring", 2).split(33), "number of channels is 33"),
        (lambda: algorithms.build("barrier", "tree", 2), "MSCCL has no barrier"),
    ],
)
def test_limits_of_msccl_are_kept(schedule, limit: str) -> None:
    with pytest.raises(ScheduleError, match=limit):
        msccl.dumps(schedule())


def test_transfers_of_many_chunks_are_cut() -> None:
    b = Builder("broadcast", 2, 200)
    b.send(0, src=0, src_chunk=0, dst=1, count=200)
    text = msccl.dumps(b.build())
    assert [int(part.split('"')[0]) for part in text.split('cnt="')[1:]] == [71, 71, 58] * 2
    assert msccl.loads(text) == b.build()
