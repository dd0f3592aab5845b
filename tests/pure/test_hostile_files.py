"""Readers of other projects' algorithms take nothing on trust: errors come soon and with little memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest
from formats_support import files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringleader.errors import ScheduleError
from ringleader.schedule.formats import msccl, mscclpp

ALGO = '<algo name="x" proto="LL" nchannels="1" nchunksperloop="{chunks}" ngpus="{n}" coll="allreduce" inplace="1">'
STEP = (
    '<step s="{s}" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="{cnt}" depid="-1" deps="-1" hasdep="0"/>'
)
BOMB = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))


def _algo(body: str, n: int = 1, chunks: int = 8) -> str:
    return ALGO.format(n=n, chunks=chunks) + body + "</algo>"


def _gpu(body: str, rank: int = 0, chunks: int = 8) -> str:
    return f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{chunks}">{body}</gpu>'


def _steps(count: int, cnt: int = 1) -> str:
    return (
        '<tb id="0" send="-1" recv="-1" chan="0">' + "".join(STEP.format(s=s, cnt=cnt) for s in range(count)) + "</tb>"
    )


def _plan(**members: object) -> str:
    gpu = {"id": 0, "input_chunks": 1, "output_chunks": 1, "scratch_chunks": 1, "threadblocks": [], "channels": []}
    return json.dumps({"name": "x", "collective": "allreduce", "inplace": True, "gpus": [gpu | members]})


def _many_peers(count: int) -> str:
    """Each GPU waits for a message of the next: a cycle of all."""
    steps = [STEP.replace("cpy", kind).format(s=s, cnt=1) for s, kind in enumerate(("r", "s"))]
    return _algo(
        "".join(
            _gpu(f'<tb id="0" send="{(r - 1) % count}" recv="{(r + 1) % count}" chan="0">{"".join(steps)}</tb>', r)
            for r in range(count)
        ),
        count,
    )


def _barriers(count: int) -> str:
    ops = [{"name": "nop"}, {"name": "barrier", "barrier_id": 0, "num_threadblocks": count}]
    return _plan(threadblocks=[{"id": 0, "ops": ops}] * count)


def _web(count: int) -> str:
    """Each thread block waits for the one before: of the last, thousands are known to be over."""
    step = (
        '<step s="0" type="nop" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="0" depid="{}" deps="{}" hasdep="1"/>'
    )
    return "".join(
        f'<tb id="{k}" send="-1" recv="-1" chan="0">{step.format(k - 1, 0 if k else -1)}</tb>' for k in range(count)
    )


# name -> (reader, what makes the text)
HOSTILE: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "entity bomb": ("msccl", lambda: f'<!DOCTYPE algo [<!ENTITY a0 "ha">{BOMB}]>' + _algo("&a11;")),
    "external entity": ("msccl", lambda: '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + _algo("&e;")),
    "2^40 chunks": ("msccl", lambda: _algo("", chunks=1 << 40)),
    "2^40 GPUs": ("msccl", lambda: _algo("", n=1 << 40)),
    "a thousand GPUs with 2^16 chunks each": (
        "msccl",
        lambda: _algo("".join(_gpu("", r, 1 << 16) for r in range(1024)), 1024, 1 << 16),
    ),
    "huge counts": ("msccl", lambda: _algo(_gpu(_steps(100, 1 << 16), chunks=1 << 16), chunks=1 << 16)),
    "a number of a million digits": ("msccl", lambda: _algo("").replace('ngpus="1"', f'ngpus="{"9" * 1000000}"')),
    "deep nesting": ("msccl", lambda: "<algo>" * 100000),
    "deep nesting of gpus": ("msccl", lambda: _algo("<gpu>" * 100000)),
    "text of 20 MiB": ("msccl", lambda: " " * (20 << 20)),
    "attributes without end": ("msccl", lambda: "<algo " + " ".join(f'a{i}="1"' for i in range(50000)) + "/>"),
    "a cycle of 500 GPUs": ("msccl", lambda: _many_peers(500)),
    "binary": ("msccl", lambda: bytes(range(256)) * 4000),
    "UTF-16": ("msccl", lambda: _algo("").encode("utf-16")),
    "zero bytes": ("msccl", lambda: b"\0" * 100000),
    "JSON nested deeply": ("mscclpp", lambda: "[" * 1000000),
    "objects nested deeply": ("mscclpp", lambda: '{"a":' * 1000000),
    "JSON of 10 MiB": ("mscclpp", lambda: " " * (10 << 20)),
    "an integer of a million digits": ("mscclpp", lambda: '{"gpus": ' + "9" * 1000000 + "}"),
    "a plan with 2^40 chunks": ("mscclpp", lambda: _plan(input_chunks=1 << 40)),
    "a plan with a hundred thousand GPUs": ("mscclpp", lambda: '{"gpus": [' + ",".join(["{}"] * 100000) + "]}"),
    "a plan that is an array": ("mscclpp", lambda: "[" + ",".join(["1"] * 500000) + "]"),
    "a plan of wrong types": ("mscclpp", lambda: _plan(threadblocks={"a": 1})),
    "a plan of empty objects": ("mscclpp", lambda: '{"gpus": [' + ",".join(["{}"] * 1300000) + "]}"),
    "a plan of channels": (
        "mscclpp",
        lambda: _plan(channels=[{"channel_type": "memory", "connected_to": [0] * 900000}]),
    ),
    "a barrier of 30000 thread blocks": ("mscclpp", lambda: _barriers(30000)),
    "30000 thread blocks that wait for each other": ("msccl", lambda: _algo(_gpu(_web(30000)))),
    "binary plan": ("mscclpp", lambda: bytes(range(256)) * 4000),
}

# The reader runs in a process of its own: its processor time and its memory beyond that of the imports are what counts.
CHILD = """
import resource, sys, time
from ringleader.errors import ScheduleError
from ringleader.schedule.formats import msccl, mscclpp
text = sys.stdin.buffer.read()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, start = peak(), time.process_time()
try:
    {"msccl": msccl, "mscclpp": mscclpp}[sys.argv[1]].loads(text, "the file")
except ScheduleError as error:
    print(f"{time.process_time() - start:.3f} {peak() - before} {error}")
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_cost_little(name: str) -> None:
    reader, make = HOSTILE[name]
    text = make()
    data = text.encode() if isinstance(text, str) else text
    limits = (resource.RLIMIT_CPU, (10, 10))  # far above what any takes: no test asserts how fast a machine is
    done = subprocess.run(
        [sys.executable, "-c", CHILD, reader], input=data, capture_output=True, timeout=200,
        preexec_fn=lambda: resource.setrlimit(*limits),
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr.decode()[-500:]
    seconds, kilobytes, message = done.stdout.decode().split(" ", 2)
    assert message.startswith("the file") and len(message) < 2000, message
    print(f"{name}: {seconds} s of processor time, {kilobytes} KiB")
    assert int(kilobytes) < 100 << 10, f"{kilobytes} KiB: {message}"


# ------------------------------------------------------------------------------------------------------------- fuzzing

XML = [path.read_bytes() for path in files("msccl", ".xml") if path.stat().st_size < 45000]
JSON = [path.read_bytes() for path in files("msccl", ".json")]
WORDS = [
    b"-1", b"0", b"1", b"7", b"99999999999", b'"', b"<", b">", b"/>", b"[", b"]", b"{", b"}", b",", b"null", b"1e9",
    b"true", b"cpy", b"rrcs", b"nop", b"hasdep", b"signal", b"buffer_id", b"\xff", b"&lt;", b"<!--", b"</gpu>",
    b'type="r"', b"  ",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A real file with a few places overwritten, cut out, doubled or filled with words of the format."""
    text = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(text) - 1, 0)))
        length = draw(st.sampled_from((0, 1, 2, 5, 40, 400)))
        how = draw(st.sampled_from(("word", "cut", "double", "digit", "end")))
        if how == "word":
            text = text[:start] + draw(st.sampled_from(WORDS)) + text[start + length :]
        elif how == "cut":
            text = text[:start] + text[start + length :]
        elif how == "double":
            text = text[: start + length] + text[start:]
        elif how == "end":
            text = text[:start]
        else:  # the next number in the text becomes another one
            digits = next((i for i in range(start, len(text)) if 48 <= text[i] <= 57), None)
            if digits is not None:
                text = text[:digits] + str(draw(st.integers(0, 30))).encode() + text[digits + 1 :]
    return text


SLOW = [HealthCheck.too_slow, HealthCheck.large_base_example]
FUZZ = settings(deadline=None, max_examples=120, suppress_health_check=SLOW)
KEYS = ["gpus", "name", "collective", "inplace", "id", "threadblocks", "ops", "channels"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@FUZZ
@given(mutated(XML))
def test_mutated_xml_is_read_or_refused(text: bytes) -> None:
    """Whatever is read is proved; whatever is not is an error of the one kind, with its place."""
    try:
        schedule = msccl.loads(text, "the file")
    except ScheduleError as error:
        assert str(error).startswith("the file")
    else:
        assert schedule.n >= 1


@FUZZ
@given(mutated(JSON))
def test_mutated_plans_are_read_or_refused(text: bytes) -> None:
    try:
        schedule = mscclpp.loads(text, "the file")
    except ScheduleError as error:
        assert str(error).startswith("the file")
    else:
        assert schedule.n >= 1


@FUZZ
@given(VALUES)
def test_any_json_is_refused_by_its_path(value: object) -> None:
    with pytest.raises(ScheduleError, match=r"the file: \$"):
        mscclpp.loads(json.dumps(value), "the file")
