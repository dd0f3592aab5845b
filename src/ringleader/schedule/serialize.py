"""Schedules as JSON, version 1; `schedule.schema.json` beside this file is the published form.

The table is written column by column (`"step": [0, 0, 1, ...]`), and columns that hold only their default are left out.
The reader takes nothing on trust: it raises `ScheduleError` with the path of the offending element, in time and memory
proportional to the length of the text.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringleader._names import did_you_mean
from ringleader.errors import ScheduleError
from ringleader.schedule.spec import check_spec
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import TRANSFER_DTYPE, Buffer, Collective

__all__ = ["FORMAT", "MAX_NAME", "MAX_TEXT", "VERSION", "from_dict", "from_json", "schema", "to_dict", "to_json"]

FORMAT = "ringleader.schedule"
VERSION = 1
MAX_TEXT = 1 << 28
"""Longest text that is read, in characters (bytes): 256 MiB. A ring of 1024 ranks takes 40 MB."""
MAX_NAME = 200
"""Longest name."""

_MEMBERS = ("format", "version", "collective", "n", "chunks", "root", "name", "transfers")
_OPTIONAL_MEMBERS = ("root", "name")
_REQUIRED_COLUMNS = ("step", "src_rank", "src_chunk", "dst_rank")
_DEFAULTS = {"count": 1, "channel": 0, "src_buffer": 0, "dst_buffer": 0, "reduce": 0}  # dst_chunk: src_chunk
_COLUMNS = TRANSFER_DTYPE.names or ()
# A schedule's text has one bracket for each column and two braces; more are nonsense (or in the name).
_MAX_BRACKETS = len(_COLUMNS) + 2 + MAX_NAME


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """The JSON form as Python objects; of the name the first 200 characters."""
    table = schedule.table
    columns = {}
    for column in _COLUMNS:
        values = table[column]
        default = table["src_chunk"] if column == "dst_chunk" else _DEFAULTS.get(column)
        if column in _REQUIRED_COLUMNS or bool(np.any(values != default)):
            columns[column] = values.tolist()
    return {
        "format": FORMAT,
        "version": VERSION,
        "collective": str(schedule.collective),
        "n": schedule.n,
        "chunks": schedule.chunks,
        "root": schedule.root,
        "name": schedule.name[:MAX_NAME],
        "transfers": columns,
    }


def to_json(schedule: Schedule) -> str:
    """The JSON form as text: one line for each member and each column.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("broadcast", n=2, chunks=1)
    >>> b.send(0, src=0, src_chunk=0, dst=1)
    >>> print(to_json(b.build(name="line")))
    {
    "format": "ringleader.schedule",
    "version": 1,
    "collective": "broadcast",
    "n": 2,
    "chunks": 1,
    "root": 0,
    "name": "line",
    "transfers": {
    "step": [0],
    "src_rank": [0],
    "src_chunk": [0],
    "dst_rank": [1]
    }
    }
    """
    document = to_dict(schedule)
    columns = document.pop("transfers")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in columns.items()]
    lines.append('"transfers": {\n' + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}"


def from_json(text: str | bytes) -> Schedule:
    """Read a schedule and check it against the spec (not: verify it).

    Raises
    ------
    ScheduleError
        If the text is not a schedule; the message begins with the path of the offending element, ``$`` being the whole.

    Examples
    --------
    >>> from_json('{"format": "ringleader.schedule", "version": 1, "n": 0}')
    Traceback (most recent call last):
    ...
    ringleader.errors.ScheduleError: $: members are missing: collective, chunks, transfers
    """
    if len(text) > MAX_TEXT:
        _fail("$", f"the text has {len(text)} characters; at most {MAX_TEXT} are read")
    try:
        text = text.decode() if isinstance(text, bytes | bytearray) else text
        if text.count("[") + text.count("{") > _MAX_BRACKETS:
            _fail("$", "there are more arrays and objects than a schedule has")
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ScheduleError(f"$: the text is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ScheduleError(f"$: the text is not JSON: {error}") from None
    except ScheduleError:
        raise
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; nesting without brackets' end
        raise ScheduleError(f"$: the text cannot be read: {error}") from None
    return from_dict(document)


def from_dict(document: object) -> Schedule:
    """A schedule from the JSON form as Python objects. See `from_json`."""
    if not isinstance(document, dict):
        _fail("$", f"expected an object, not {_kind(document)}")
    _check_members("$", document, _MEMBERS, [member for member in _MEMBERS if member not in _OPTIONAL_MEMBERS])
    if document["format"] != FORMAT or not isinstance(document["format"], str):
        _fail("$.format", f"expected {FORMAT!r}, not {_shown(document['format'])}")
    if _integer("$.version", document["version"], 1, 2**31 - 1) != VERSION:
        _fail("$.version", f"this is version {document['version']}; only {VERSION} can be read")
    collective = document["collective"]
    if not isinstance(collective, str) or collective not in list(Collective):
        names = ", ".join(known.value for known in Collective)
        _fail("$.collective", f"expected one of {names}, not {_shown(collective)}")
    n = _integer("$.n", document["n"], 1, 2**31 - 1)
    chunks = _integer("$.chunks", document["chunks"], 1, 2**31 - 1)
    root = _integer("$.root", document.get("root", 0), 0, n - 1)
    name = document.get("name", "")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        _fail("$.name", f"expected a string of at most {MAX_NAME} characters, not {_shown(name)}")
    table = _read_table(document["transfers"], n)
    schedule = Schedule(collective, n, chunks, table, root, name)
    try:
        check_spec(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"$.transfers: {error}") from None
    return schedule


def schema() -> dict[str, Any]:
    """The published JSON schema (draft 2020-12)."""
    from importlib import resources  # imports urllib

    text = resources.files("ringleader.schedule").joinpath("schedule.schema.json").read_text()
    result: dict[str, Any] = json.loads(text)
    return result


def _read_table(columns: object, n: int) -> NDArray[np.void]:
    path = "$.transfers"
    if not isinstance(columns, dict):
        _fail(path, f"expected an object of columns, not {_kind(columns)}")
    _check_members(path, columns, _COLUMNS, _REQUIRED_COLUMNS)
    arrays = {column: _column(f"{path}.{column}", columns[column], column, n) for column in columns}
    length = len(arrays["step"])
    for column, array in arrays.items():
        if len(array) != length:
            _fail(f"{path}.{column}", f"it has {len(array)} elements, but step has {length}")
    table = np.empty(length, TRANSFER_DTYPE)
    for column in _COLUMNS:
        default = arrays["src_chunk"] if column == "dst_chunk" else _DEFAULTS.get(column)
        table[column] = arrays.get(column, default)
    return table


def _column(path: str, values: object, column: str, n: int) -> NDArray[np.int64]:
    """One column, every element being an integer that the table can hold (ranks: that exists)."""
    if not isinstance(values, list):
        _fail(path, f"expected an array of integers, not {_kind(values)}")
    if set(map(type, values)) - {int}:
        index = next(i for i, value in enumerate(values) if type(value) is not int)
        _fail(f"{path}[{index}]", f"expected an integer, not {_shown(values[index])}")
    low, high = int(column == "count"), int(np.iinfo(TRANSFER_DTYPE[column]).max)
    if column.endswith("rank"):
        high = n - 1
    elif column.endswith("buffer"):
        high = int(Buffer.SCRATCH)
    elif column == "reduce":
        high = 1
    try:
        array = np.array(values, np.int64)
    except OverflowError:
        index = next(i for i, value in enumerate(values) if not low <= value <= high)
    else:
        if not len(array) or (int(array.min()) >= low and int(array.max()) <= high):
            return array
        index = int(np.argmax((array < low) | (array > high)))
    return _fail(f"{path}[{index}]", f"expected {low} to {high}, not {_shown(values[index])}")


def _check_members(path: str, found: dict[Any, Any], known: tuple[str, ...], needed: Any) -> None:
    unknown = [member for member in found if member not in known]
    if unknown:
        question = did_you_mean(unknown[0], known)
        hint = f"{question} Known" if question else "; known"
        _fail(path, f"unknown member {_shown(unknown[0])}{hint} are {', '.join(known)}")
    missing = [member for member in needed if member not in found]
    if missing:
        _fail(path, f"members are missing: {', '.join(missing)}")


def _integer(path: str, value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        _fail(path, f"expected an integer from {low} to {high}, not {_shown(value)}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        _fail("$", f"member {_shown(twice)} occurs twice in one object")
    return result


def _no_constant(text: str) -> NoReturn:
    _fail("$", f"{text} is not a number that JSON has")


def _kind(value: object) -> str:
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return _kind(value)
    if isinstance(value, int) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fail(path: str, problem: str) -> NoReturn:
    raise ScheduleError(f"{path}: {problem}")
