"""MSCCL algorithm XML as it is written: GPUs, thread blocks and steps, read safely, each with its line.

The reader is expat with every document type and entity refused, and takes nothing on trust: sizes are bounded before
anything is made of them, and each error names the line and the element.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from ringleader.errors import ScheduleError
from ringleader.schedule import Collective
from ringleader.schedule.formats.buffers import buffer_size

__all__ = [
    "COLLECTIVES",
    "MAX_CHUNKS",
    "MAX_GPUS",
    "MAX_MOVES",
    "MAX_STEPS",
    "MAX_TEXT",
    "RECEIVING",
    "REDUCING",
    "SENDING",
    "Program",
    "Step",
    "ThreadBlock",
    "fail",
    "parse",
]

MAX_TEXT = 1 << 24
"""Longest text that is read, in bytes: 16 MiB, some hundred thousand steps."""
MAX_STEPS = 1 << 17
"""Most steps of all thread blocks together."""
MAX_MOVES = 1 << 18
"""Most chunks that all steps move (sum of ``cnt``)."""
MAX_GPUS = 1024
MAX_CHUNKS = 1 << 16
"""Most chunks of one buffer of one GPU."""
MAX_PLACES = 1 << 22
"""Most chunks of all GPUs together."""
MAX_CHANNEL = 255

COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
}
"""Values of ``coll``."""

SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVING = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
REDUCING = frozenset({"rrs", "rrc", "rrcs", "re"})
_TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
_BUFFERS = {"i": "i", "o": "o", "s": "s", "input": "i", "output": "o", "scratch": "s"}
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


@dataclass(slots=True)
class Step:
    """One ``<step>``. `depends` is the (thread block, step) that it waits for, if any."""

    line: int
    gpu: int
    block: int
    index: int
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    depends: tuple[int, int] | None
    awaited: bool

    def __str__(self) -> str:
        return f"<step> {self.index} ({self.type}) of <tb> {self.block} of <gpu> {self.gpu}"


@dataclass(slots=True)
class ThreadBlock:
    """One ``<tb>``: its steps run one after the other. Peers are -1 where there is none."""

    line: int
    gpu: int
    index: int
    send: int
    recv: int
    channel: int
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """An ``<algo>``; `gpus[r]` are the thread blocks of rank r, and `limits[r]` the chunks of its buffers i, o, s."""

    source: str
    line: int
    name: str
    collective: Collective
    protocol: str
    n: int
    chunks: int
    root: int
    in_place: bool
    nbytes: tuple[int, int]  # the sizes that the algorithm is meant for; (0, 0): not said
    gpus: dict[int, list[ThreadBlock]] = field(default_factory=dict)
    limits: dict[int, dict[str, int]] = field(default_factory=dict)  # gpu -> buffer -> declared chunks


def fail(source: str, line: int, what: str) -> NoReturn:
    """Raise the error of all readers: the place, then what is wrong there.

    Raises
    ------
    ScheduleError
        Always.
    """
    raise ScheduleError(f"{source}, line {line}: {what}")


def parse(text: str | bytes, source: str = "MSCCL XML") -> Program:
    """Read an algorithm.

    Parameters
    ----------
    text
        The XML.
    source
        What errors call it.

    Raises
    ------
    ScheduleError
        With line and element: not XML, a document type or entity, an unknown element, a missing attribute, a value that
        is no number, out of range, or does not agree with the others.

    Examples
    --------
    >>> parse('<algo name="x" ngpus="0"/>')
    Traceback (most recent call last):
    ...
    ringleader.errors.ScheduleError: MSCCL XML, line 1: <algo>: ngpus is '0'; expected 1 to 1024
    """
    if len(text) > MAX_TEXT:
        fail(source, 1, f"the text has {len(text)} characters; at most {MAX_TEXT} are read")
    return _Reader(source).read(text)


class _Reader:
    """Handlers of expat. Elements are turned into the program as they are met; no tree is kept."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.stack: list[str] = []
        self.program: Program | None = None
        self.block: ThreadBlock | None = None
        self.gpu = -1
        self.steps = 0
        self.moves = 0
        self.places = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.EntityDeclHandler = self._refuse_doctype
        self.parser.ExternalEntityRefHandler = self._refuse_doctype
        self.parser.CharacterDataHandler = self._text

    def read(self, text: str | bytes) -> Program:
        try:
            self.parser.Parse(text, True)
        except expat.ExpatError as error:
            fail(self.source, error.lineno, f"the text is not XML: {expat.ErrorString(error.code)}")
        except (UnicodeError, ValueError) as error:
            if isinstance(error, ScheduleError):
                raise
            fail(self.source, self.line, f"the text is not XML: {error}")
        assert self.program is not None  # expat wants exactly one root, and _start takes no other than <algo>
        _check_complete(self.program)
        return self.program

    @property
    def line(self) -> int:
        return self.parser.CurrentLineNumber

    def fail(self, what: str) -> NoReturn:
        fail(self.source, self.line, what)

    def _refuse_doctype(self, *_: object) -> NoReturn:
        self.fail("document types and entities are refused; an algorithm needs none")

    def _text(self, text: str) -> None:
        if not text.isspace():
            self.fail(f"text {text[:40]!r} outside of elements; an algorithm has elements and attributes only")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self.stack[-1] if self.stack else ""
        if name not in _PARENTS:
            self.fail(f"unknown element <{name[:40]}>; known are <algo>, <gpu>, <tb> and <step>")
        if _PARENTS[name] != parent:
            inside = f"inside <{_PARENTS[name]}>" if _PARENTS[name] else "as the root"
            self.fail(f"<{name}> {f'inside <{parent}>' if parent else 'as the root'}; expected {inside}")
        self.stack.append(name)
        {"algo": self._algo, "gpu": self._gpu, "tb": self._tb, "step": self._step}[name](
            _Attributes(self, name, attributes)
        )

    def _end(self, name: str) -> None:
        self.stack.pop()

    # ------------------------------------------------------------------------------------------------- the elements

    def _algo(self, get: _Attributes) -> None:
        n = get.integer("ngpus", 1, MAX_GPUS)
        chunks = get.integer("nchunksperloop", 1, MAX_CHUNKS)
        coll = get.text("coll")
        if coll not in COLLECTIVES:
            self.fail(f"<algo>: coll is {coll[:40]!r}; those that can be expressed are {', '.join(COLLECTIVES)}")
        collective = COLLECTIVES[coll]
        if collective.blocked and chunks % n:
            self.fail(f"<algo>: nchunksperloop is {chunks}; expected a multiple of ngpus={n} for {coll}")
        in_place = bool(get.integer("inplace", 0, 1, default=0))
        sizes = (get.integer("minBytes", 0, 1 << 64, default=0), get.integer("maxBytes", 0, 1 << 64, default=0))
        root = get.integer("root", 0, n - 1 if collective.rooted else 0, default=0)
        name, protocol = get.text("name", "")[:200], get.text("proto", "")
        self.program = Program(self.source, self.line, name, collective, protocol, n, chunks, root, in_place, sizes)

    def _gpu(self, get: _Attributes) -> None:
        program = self._program
        self.gpu = get.integer("id", 0, program.n - 1)
        if self.gpu in program.gpus:
            self.fail(f"<gpu>: there are two with id {self.gpu}")
        program.gpus[self.gpu] = []
        limits = {buffer: get.integer(f"{buffer}_chunks", 0, MAX_CHUNKS) for buffer in "ios"}
        program.limits[self.gpu] = limits
        self.places += sum(limits.values())
        if self.places > MAX_PLACES:
            self.fail(f"<gpu> {self.gpu}: the GPUs have more than {MAX_PLACES} chunks together")

    def _tb(self, get: _Attributes) -> None:
        program = self._program
        blocks = program.gpus[self.gpu]
        index = get.integer("id", 0, MAX_STEPS)
        if index != len(blocks):
            self.fail(f"<tb>: id is {index}; expected {len(blocks)}: thread blocks are numbered from 0 without gaps")
        send, recv = get.integer("send", -1, program.n - 1), get.integer("recv", -1, program.n - 1)
        if self.gpu in (send, recv):
            self.fail(f"<tb> {index} of <gpu> {self.gpu}: its peer is the GPU itself; expected another or -1")
        channel = get.integer("chan", 0, MAX_CHANNEL)
        self.block = ThreadBlock(self.line, self.gpu, index, send, recv, channel)
        blocks.append(self.block)

    def _step(self, get: _Attributes) -> None:
        block = self.block
        assert block is not None
        index = get.integer("s", 0, MAX_STEPS)
        if index != len(block.steps):
            self.fail(f"<step>: s is {index}; expected {len(block.steps)}: steps are numbered from 0 without gaps")
        kind = get.text("type")
        if kind not in _TYPES:
            self.fail(f"<step> {index}: type is {kind[:40]!r}; expected one of {', '.join(_TYPES)}")
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.fail(f"<step> {index}: there are more than {MAX_STEPS} steps")
        dep, deps = get.integer("depid", -1, MAX_STEPS), get.integer("deps", -1, MAX_STEPS)
        if (dep < 0) != (deps < 0):
            self.fail(f"<step> {index}: depid is {dep} and deps is {deps}; expected both, or -1 for both")
        count, src, dst = 0, ("i", 0), ("i", 0)
        if kind != "nop":
            count = get.integer("cnt", 1, MAX_CHUNKS)
            src = self._range(get, "src", count, kind in ("s", "cpy", "rrs", "rrc", "rrcs", "re"))
            dst = self._range(get, "dst", count, kind in ("r", "cpy", "rcs", "rrc", "rrcs", "re"))
            self._check_peers(block, index, kind)
        self.moves += count
        if self.moves > MAX_MOVES:
            self.fail(f"<step> {index}: the steps move more than {MAX_MOVES} chunks together")
        depends = (dep, deps) if dep >= 0 else None
        awaited = bool(get.integer("hasdep", 0, 1, default=0))
        block.steps.append(Step(self.line, self.gpu, block.index, index, kind, src, dst, count, depends, awaited))

    def _check_peers(self, block: ThreadBlock, index: int, kind: str) -> None:
        for kinds, peer, what in ((SENDING, block.send, "send"), (RECEIVING, block.recv, "recv")):
            if kind in kinds and peer < 0:
                self.fail(f"<step> {index}: type is {kind}, but {what} of <tb> {block.index} is -1; expected a GPU")
        if kind in REDUCING and not self._program.collective.reduces:
            self.fail(f"<step> {index}: type is {kind}, but {self._program.collective} reduces nothing")

    def _range(self, get: _Attributes, end: str, count: int, used: bool) -> tuple[str, int]:
        """The buffer and first chunk of one end; checked only where the step's type uses that end."""
        if not used:
            return "i", 0
        name = get.text(f"{end}buf")
        if name not in _BUFFERS:
            self.fail(f"<step>: {end}buf is {name[:40]!r}; expected i, o or s")
        buffer = _BUFFERS[name]
        program = self._program
        size = buffer_size(program, buffer)
        most = min(program.limits[self.gpu][buffer], MAX_CHUNKS if size is None else size)
        first = get.integer(f"{end}off", 0, MAX_CHUNKS)
        if first + count > most:
            span = f"{first}" if count == 1 else f"{first} to {first + count - 1}"
            self.fail(f"<step>: {end} is chunk {span} of {buffer}, of which <gpu> {self.gpu} has {most}")
        return buffer, first

    @property
    def _program(self) -> Program:
        assert self.program is not None
        return self.program


class _Attributes:
    """The attributes of one element, checked when they are asked for."""

    def __init__(self, reader: _Reader, element: str, values: dict[str, str]) -> None:
        self.reader, self.element, self.values = reader, element, values

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if value is None:
            self.reader.fail(f"<{self.element}>: attribute {name} is missing")
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        text = self.text(name)
        if re.fullmatch(r"-?[0-9]{1,20}", text) and low <= int(text) <= high:
            return int(text)
        return self.reader.fail(f"<{self.element}>: {name} is {text[:40]!r}; expected {low} to {high}")


def _check_complete(program: Program) -> None:
    """All GPUs are there, and what steps wait for exists and says that it is waited for."""
    missing = [rank for rank in range(program.n) if rank not in program.gpus]
    if missing:
        fail(program.source, program.line, f"<algo>: ngpus is {program.n}, but <gpu> {missing[0]} is missing")
    for blocks in program.gpus.values():
        for block in blocks:
            for step in block.steps:
                if step.depends is None:
                    continue
                other, index = step.depends
                waits = f"{step}: it waits for <step> {index} of <tb> {other}"
                if other >= len(blocks) or index >= len(blocks[other].steps):
                    fail(program.source, step.line, f"{waits}, which is not there")
                if not blocks[other].steps[index].awaited:
                    fail(program.source, step.line, f"{waits}, whose hasdep is 0: that step tells nobody")
