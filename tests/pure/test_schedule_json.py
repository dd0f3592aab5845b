"""The JSON form: round trips, the published schema, and hostile texts."""

from __future__ import annotations

import copy
import json
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_samples import SAMPLES, linear_gather, ring

from ringleader.errors import ScheduleError
from ringleader.schedule import from_dict, from_json, to_dict, to_json
from ringleader.schedule.serialize import schema

jsonschema = pytest.importorskip("jsonschema")
VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name: str) -> None:
    schedule = SAMPLES[name]()
    again = from_json(to_json(schedule))
    assert again == schedule
    assert again.name == schedule.name
    assert to_json(again) == to_json(schedule)
    assert from_json(to_json(schedule).encode()) == schedule
    VALIDATOR.validate(json.loads(to_json(schedule)))


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_large_schedules_are_read_in_reasonable_time() -> None:
    schedule = ring(256)
    text = to_json(schedule)
    start = time.thread_time()
    assert from_json(text) == schedule
    assert time.thread_time() - start < 30


def with_change(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    document = copy.deepcopy(to_dict(linear_gather(4, root=1)))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


BAD = [
    (("format",), "something", "$.format"),
    (("format",), ["ringleader.schedule"], "$.format"),
    (("version",), 2, "$.version"),
    (("version",), True, "$.version"),
    (("version",), "1", "$.version"),
    (("collective",), "all_recude", "$.collective"),
    (("collective",), {}, "$.collective"),
    (("n",), 0, "$.n"),
    (("n",), -3, "$.n"),
    (("n",), 4.5, "$.n"),
    (("n",), 1 << 200, "$.n"),
    (("chunks",), 1 << 40, "$.chunks"),
    (("chunks",), None, "$.chunks"),
    (("root",), 4, "$.root"),
    (("name",), "x" * 201, "$.name"),
    (("name",), 7, "$.name"),
    (("transfers",), [], "$.transfers"),
    (("transfers", "step"), 3, "$.transfers.step"),
    (("transfers", "step", 1), "0", "$.transfers.step[1]"),
    (("transfers", "step", 1), [0], "$.transfers.step[1]"),
    (("transfers", "step", 2), -1, "$.transfers.step[2]"),
    (("transfers", "step", 2), True, "$.transfers.step[2]"),
    (("transfers", "step", 2), 1.5, "$.transfers.step[2]"),
    (("transfers", "step", 0), 1 << 31, "$.transfers.step[0]"),
    (("transfers", "step"), [0, 0], "$.transfers.src_rank"),
    (("transfers", "src_rank", 2), 4, "$.transfers.src_rank[2]"),
    (("transfers", "count", 0), 1 << 70, "$.transfers.count[0]"),
    (("transfers", "count", 0), 0, "$.transfers.count[0]"),
    (("transfers", "count", 0), (1 << 31) - 1, "transfer 0"),
    (("transfers", "src_chunk", 0), (1 << 31) - 1, "transfer 0"),
    (("transfers", "channel"), [0, 0, 1 << 15], "$.transfers.channel[2]"),
    (("transfers", "src_buffer"), [0, 9, 0], "$.transfers.src_buffer[1]"),
    (("transfers", "src_buffer"), [0, 1, 0], "transfer 1"),
    (("transfers", "reduce"), [0, 2, 0], "$.transfers.reduce[1]"),
    (("transfers", "reduce"), [0, 1, 0], "transfer 1"),
    (("transfers", "colour"), [0, 0, 0], "$.transfers"),
    (("extra",), 1, "$"),
]


@pytest.mark.parametrize(("path", "value", "where"), BAD)
def test_wrong_documents_name_the_place(path: tuple[Any, ...], value: object, where: str) -> None:
    document = with_change(path, value)
    for read in (from_dict, lambda d: from_json(json.dumps(d))):
        with pytest.raises(ScheduleError) as caught:
            read(document)
        assert where in str(caught.value)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("member", ["format", "version", "collective", "n", "chunks", "transfers"])
def test_missing_members(member: str) -> None:
    document = to_dict(ring(3))
    del document[member]
    with pytest.raises(ScheduleError, match=f"missing: {member}"):
        from_dict(document)


def test_huge_claims_cost_nothing() -> None:
    document = to_dict(ring(3))
    document |= {"n": (1 << 31) - 1, "chunks": (1 << 31) - 1}
    texts = [
        json.dumps(document),
        json.dumps(with_change(("chunks",), 1 << 40)),
        json.dumps(with_change(("n",), 10**4000)),
        '{"n": ' + "9" * 1_000_000 + "}",
        "[" * 1_000_000,
        '{"a":' * 100_000,
        "[" + "[]," * 1_000_000 + "[]]",
        '{"n": NaN}',
        '{"n": 1e999}',
        '{"n": 1, "n": 2}',
        "",
        "null",
        "\x00",
        '"' + "\\u0000" * 1000,
    ]
    for text in texts:
        tracemalloc.start()
        start = time.thread_time()
        with pytest.raises(ScheduleError, match=r"^\$"):
            from_json(text)
        assert time.thread_time() - start < 10
        assert tracemalloc.get_traced_memory()[1] < 16 * len(text) + 1_000_000
        tracemalloc.stop()


def test_bytes_that_are_not_text() -> None:
    with pytest.raises(ScheduleError, match="UTF-8"):
        from_json(b"\xff\xfe{")


def test_cycles() -> None:
    column: list[Any] = [0, 0]
    column.append(column)
    with pytest.raises(ScheduleError, match=r"step\[2\]: expected an integer, not an array"):
        from_dict(with_change(("transfers", "step"), column))
    document: dict[str, Any] = to_dict(ring(3))
    document["transfers"] = document
    with pytest.raises(ScheduleError, match=r"^\$.transfers"):
        from_dict(document)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_reader_and_published_schema_agree(data: st.DataObject) -> None:
    """What the reader accepts the schema accepts; what the schema rejects the reader rejects."""
    document = to_dict(data.draw(st.sampled_from([ring(3), linear_gather(3), SAMPLES["through scratch"]()])))
    for _ in range(data.draw(st.integers(0, 2))):
        target: Any = document
        while isinstance(target, dict | list) and len(target):
            keys = sorted(target) if isinstance(target, dict) else range(len(target))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(target[key], dict | list) or data.draw(st.booleans()):
                action = data.draw(st.sampled_from(["replace", "delete", "add"]))
                if action == "replace":
                    target[key] = data.draw(ANYTHING)
                elif action == "delete":
                    del target[key]
                elif isinstance(target, dict):
                    target[data.draw(st.text(max_size=3))] = data.draw(ANYTHING)
                else:
                    target.append(data.draw(ANYTHING))
                break
            target = target[key]
    try:
        schedule = from_dict(document)
    except ScheduleError as error:
        assert str(error).startswith("$")
        return
    assert VALIDATOR.is_valid(document)
    assert from_dict(to_dict(schedule)) == schedule


@pytest.mark.parametrize(("path", "value", "where"), BAD)
def test_schema_rejects_what_it_can_express(path: tuple[Any, ...], value: object, where: str) -> None:
    """Lengths of columns, and values that depend on others, are beyond a JSON schema."""
    dependent = where.startswith("transfer ") or path in {("root",), ("transfers", "src_rank", 2)} or value == [0, 0]
    assert VALIDATOR.is_valid(with_change(path, value)) == dependent


def test_numpy_integers_are_not_json() -> None:
    with pytest.raises(ScheduleError, match=r"\$.n"):
        from_dict(to_dict(ring(3)) | {"n": np.int64(3)})
