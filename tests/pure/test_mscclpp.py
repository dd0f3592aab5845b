"""MSCCL++ execution plans: what they mean, and what is refused and why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from formats_support import files

from ringleader import algorithms
from ringleader.errors import ScheduleError, VerificationError
from ringleader.executors import reference
from ringleader.schedule.formats import mscclpp

(ALLREDUCE,) = [path for path in files("msccl", ".json") if path.name == "mscclpp-allreduce.json"]
(PIPELINE,) = [path for path in files("msccl", ".json") if path.name == "mscclpp-allreduce_pipeline.json"]


def test_the_real_plan_is_proved_and_computes() -> None:
    schedule = mscclpp.load(ALLREDUCE)
    assert (schedule.n, schedule.chunks, schedule.steps, schedule.name) == (2, 16, 2, "allreduce")
    inputs = [np.arange(37) * (rank + 3) for rank in range(2)]
    outputs = reference.run(schedule, inputs, 7, 0)
    assert all(np.array_equal(x, np.arange(37) * 7) for x in outputs if x is not None)


def test_a_plan_for_the_switch_is_refused_precisely() -> None:
    with pytest.raises(ScheduleError, match=r"pipeline.json: \$\.gpus\[0\]\.channels\[0\]: switch channels"):
        mscclpp.load(PIPELINE)


def test_a_plan_is_an_algorithm_like_any_other() -> None:
    name = algorithms.load_msccl(ALLREDUCE, "plan")
    try:
        assert algorithms.build("all_reduce", name, 2).transfers == 4
    finally:
        algorithms.forget("all_reduce", name)


def local(buffer: str, index: int, size: int = 1) -> dict[str, Any]:
    return {"type": buffer, "index": index, "size": size}


def there(index: int, size: int = 1) -> dict[str, Any]:
    return {"buffer_id": 0, "index": index, "size": size}


def move(name: str, src: list[dict[str, Any]], dst: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "src_buff": src, "dst_buff": dst}


PUT = move("put", [local("i", 0)], [there(0)])
ADD = move("re", [local("i", 0), local("s", 0)], [local("i", 0)])
SIGNAL = {"name": "signal", "channel_ids": [0], "channel_type": "memory"}
WAIT = {"name": "wait", "channel_ids": [0], "channel_type": "memory"}


def plan(
    *blocks: list[list[dict[str, Any]]], coll: str = "allreduce", chunks: int = 1, inplace: bool = True, to: str = "s"
) -> str:
    """A plan of two GPUs, each of which has one channel to the other and sees its buffer `to`."""
    gpus = []
    for rank, own in enumerate(blocks):
        tbs = [
            {
                "id": index,
                "ops": ops,
                "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
            }
            for index, ops in enumerate(own)
        ]
        outputs = chunks * (2 if coll == "allgather" else 1)
        gpus.append(
            {
                "id": rank, "input_chunks": chunks, "output_chunks": outputs, "scratch_chunks": 2, "threadblocks": tbs,
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
                "remote_buffers": [{"rank": 1 - rank, "type": to, "access_channel_types": ["memory"]}],
            }
        )  # fmt: skip
    return json.dumps({"name": "test", "collective": coll, "inplace": inplace, "gpus": gpus})


def test_puts_signals_and_local_reduces() -> None:
    ops = [
        move("put", [local("i", 0)], [there(0)]),
        SIGNAL,
        WAIT,
        move("re", [local("i", 0), local("s", 0)], [local("i", 0)]),
    ]
    schedule = mscclpp.loads(plan([ops], [ops]))
    assert (schedule.steps, schedule.transfers, schedule.scratch_chunks) == (2, 4, 1)
    outputs = reference.run(schedule, [np.array([1.0]), np.array([5.0])], 1, 0)
    assert outputs[0] == outputs[1] == [6.0]


def test_gets_out_of_place() -> None:
    ops = [
        [
            SIGNAL,
            WAIT,
            move("copy", [local("i", 0)], [local("o", rank)]),
            move("get", [there(0)], [local("o", 1 - rank)]),
        ]
        for rank in (0, 1)
    ]
    schedule = mscclpp.loads(plan([ops[0]], [ops[1]], coll="allgather", inplace=False, to="i"))
    assert (schedule.steps, schedule.transfers) == (1, 2)
    outputs = reference.run(schedule, [np.array([1]), np.array([5])], 7)
    assert [list(x) for x in outputs if x is not None] == [[1, 5], [1, 5]]


def test_reads_that_reduce_into_the_output() -> None:
    """Out of place, each reads the other's input until the end: the output cannot have the input's place."""
    ops = [SIGNAL, WAIT, move("rre", [local("i", 0), there(0)], [local("o", 0)])]
    schedule = mscclpp.loads(plan([ops], [ops], inplace=False, to="i"))
    assert reference.run(schedule, [np.array([1]), np.array([5])], 7, 0) == [[6], [6]]


def test_barriers_order_thread_blocks() -> None:
    barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    sends, adds = [PUT, SIGNAL, WAIT, barrier], [barrier, ADD]
    assert mscclpp.loads(plan([sends, adds], [sends, adds])).steps == 2
    alone = plan([sends, adds[1:]], [sends, adds[1:]]).replace('"num_threadblocks": 2', '"num_threadblocks": 1')
    with pytest.raises(ScheduleError, match=r"blocks\[1\]\.ops\[0\]: it uses the same chunk as .*ops\[0\], and"):
        mscclpp.loads(alone)


EMPTY = plan([[]], [[]])
READS_NOTHING = move("copy", [local("s", 1)], [local("s", 0)])
ALONE = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
REFUSED = {
    r"ops\[0\]: nobody gives it: GPU 1 signals GPU 0 0 times": plan([[WAIT]], [[]]),
    r"it hangs: wait at": plan([[WAIT, SIGNAL]], [[WAIT, SIGNAL]]),
    r"it uses the same chunk as": plan([[PUT]], [[move("copy", [local("i", 0)], [local("s", 0)])]]),
    r"ends with 1 contribution": plan([[]], [[]]),
    r"reads chunk 1 of scratch of rank 0, which holds nothing yet": plan([[READS_NOTHING]], [[]]),
    r"gpus\[0\]\.threadblocks\[0\]\.ops\[0\]: operation 'pipeline' cannot": plan([[{"name": "pipeline"}]], [[]]),
    r"ops\[0\]\.src_buff\[0\]: chunks 0 to 1 of i": plan([[move("put", [local("i", 0, 2)], [there(0)])]], [[]]),
    r"its ranges have 1, 2 chunks": plan([[move("put", [local("i", 0)], [there(0, 2)])]], [[]]),
    r"buffer_id: it is 3; expected an integer": plan([[PUT]], [[]]).replace('"buffer_id": 0', '"buffer_id": 3'),
    r"reduce_op: it is 'min'": plan([[{**ADD, "reduce_op": "min"}]], [[]]),
    r"come to this barrier, which is for 2": plan([[ALONE]], [[]]),
    r"index: it is 1099511627776": plan([[move("put", [local("i", 1 << 40)], [there(0)])]], [[]]),
    r"connected_to\[0\]: it is 7; expected an integer": EMPTY.replace('"connected_to": [1]', '"connected_to": [7]'),
    r"\$\.collective: 'alltoallv' cannot be expressed": plan([[]], [[]], coll="alltoallv"),
    r"member threadblocks is missing": EMPTY.replace("threadblocks", "blocks"),
    r"\$: the text is not JSON": "{",
    r"\$: the text is not UTF-8": b"\xff\xfe",
    r"nested more than 16 deep": "[" * 100000,
    r"some.json: \$ is an array; expected an object": "[]",
}  # fmt: skip


@pytest.mark.parametrize("problem", REFUSED)
def test_what_is_wrong_is_said_with_its_path(problem: str) -> None:
    with pytest.raises(ScheduleError, match=problem) as caught:
        mscclpp.loads(REFUSED[problem], "some.json")
    assert str(caught.value).startswith("some.json: ")
    assert isinstance(caught.value, VerificationError) or ": $" in str(caught.value)
