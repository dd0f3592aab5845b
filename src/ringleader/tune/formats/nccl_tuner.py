"""Configuration files of NCCL's example tuner plugin (CSV).

One line per choice, the first fitting one decides; ``#`` begins a line of comment:
``collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]``, where -1
stands for any (docs/rules-formats.md). NCCL takes unknown words for others without a word; here they are errors.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Imported, Note
from ringleader.tune.rulefile import MAX_BYTES, MAX_RULES
from ringleader.tune.rules import ANY, MAX_CHANNELS, Range, Rule, RuleSet

__all__ = ["loads"]

COLUMNS = (
    "collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks", "numPipeOps",
    "regBuff",
)  # fmt: skip
REQUIRED = 8
LONGEST_LINE = 255  # NCCL cuts longer ones
NO_LIMIT = (1 << 32) - 1  # how the files say that there is no upper limit

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# What NCCL runs by these names, as it is called here. Its broadcast and reduce by ring are pipelined chains.
OURS = {
    ("all_reduce", "ring"): "ring",
    ("all_reduce", "tree"): "double_binary_tree",
    ("all_gather", "ring"): "ring",
    ("all_gather", "pat"): "pat",
    ("reduce_scatter", "ring"): "ring",
    ("reduce_scatter", "pat"): "pat",
    ("broadcast", "ring"): "chain",
    ("reduce", "ring"): "chain",
}
IN_THE_NETWORK = {
    "collnet_direct": "switches that reduce",
    "collnet_chain": "switches that reduce",
    "nvls": "NVLink switches that reduce",
    "nvls_tree": "NVLink switches that reduce",
}


class _Line(NamedTuple):
    """A line of the file; what is left out is -1."""

    collective: str
    nbytes: Range
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    operations: int
    registered: int
    line: int


def loads(text: str, source: str = "nccl tuner", registered: bool = False) -> Imported:
    """Read a configuration file of NCCL's example tuner plugin.

    Parameters
    ----------
    text
        At most 1 MiB and 4096 lines with choices.
    source
        Where it comes from, for messages.
    registered
        Whether the rules are for registered buffers: lines with ``regBuff`` 1 are for those only, with 0 for others.

    Returns
    -------
    Imported
        Rules in the order of the file, and what they cannot say. Lines whose algorithm only hardware or NCCL has are
        left out; as in NCCL where it cannot run one, the next fitting line decides. NCCL's protocols (ll, ll128,
        simple) are about how GPUs signal and have no counterpart.

    Raises
    ------
    InvalidArgument
        The file is not of this form; the message names the line and the column.

    References
    ----------
    NVIDIA: NCCL, plugins/tuner/example, README, 2026.

    Examples
    --------
    >>> read = loads("allreduce,0,65536,tree,simple,2,1,-1\\nallreduce,65537,4294967295,ring,ll128,-1,-1,-1\\n")
    >>> print(*read.rules.rules, sep="\\n")
    all_reduce[nodes=1,bytes=0-64K]: double_binary_tree channels=2
    all_reduce[bytes=65537-]: ring
    """
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{source} has {len(text)} characters; expected at most {MAX_BYTES}")
    rules: list[Rule] = []
    notes: list[Note] = []
    count = 0
    for number, content in enumerate(text.split("\n"), 1):
        line = _line(content, number, source, first=count == 0)
        if line is None:
            continue
        count += 1
        if count > MAX_RULES:
            raise InvalidArgument(f"{source}, line {number}: more than {MAX_RULES} choices; expected fewer")
        rule, problem = _rule(line, registered)
        if problem:
            notes.append(Note(number, problem))
        if rule is not None:
            rules.append(rule)
    if not rules:
        notes.append(Note(0, "nothing in the file chooses an algorithm: no rule is left"))
    return Imported(RuleSet(tuple(rules), source), tuple(notes))


def _line(content: str, number: int, source: str, first: bool) -> _Line | None:
    """The choice of a line, None for comments, empty lines and the header."""

    def fail(problem: str) -> NoReturn:
        raise InvalidArgument(f"{source}, line {number}{problem}")

    if len(content) > LONGEST_LINE:
        fail(f": {len(content)} characters; NCCL reads at most {LONGEST_LINE}")
    words = [word.strip(" \t\r") for word in content.split(",")]
    if words == [""] or words[0].startswith("#"):
        return None
    if first and words == list(COLUMNS[: len(words)]) and len(words) >= REQUIRED:
        return None
    if first and {"cost_metric", "size_bytes"} & set(words):
        fail(": this is a table of measurements; NCCL's optimize_config.py makes a configuration of it")
    if not REQUIRED <= len(words) <= len(COLUMNS):
        fail(f": {len(words)} columns; expected {REQUIRED} to {len(COLUMNS)}: {','.join(COLUMNS)}")

    def word(index: int, valid: tuple[str, ...]) -> str:
        if words[index] not in valid:
            fail(f", {COLUMNS[index]}: {unknown('word', words[index], valid)}")
        return words[index]

    def whole(index: int, least: int = -1, most: int = 1 << 31) -> int:
        if index >= len(words):
            return -1
        if not re.fullmatch(r"-?\d{1,20}", words[index], re.ASCII) or not least <= int(words[index]) <= most:
            fail(f", {COLUMNS[index]}: {words[index][:40]!r}; expected a number from {least} to {most}")
        return int(words[index])

    low, high = whole(1, 0, 1 << 62), whole(2, 0, (1 << 64) - 1)
    high = ANY.high if high == NO_LIMIT or high > ANY.high else high
    if low > high:
        fail(f", max_bytes: {high} is less than min_bytes, {low}")
    channels = whole(5)
    for index in (5, 6, 7):
        if whole(index) == 0:
            fail(f", {COLUMNS[index]}: 0; expected a number from 1, or -1 for any")
    collective, algorithm = word(0, tuple(COLLECTIVES)), word(3, ALGORITHMS)
    protocol, operations, registered = word(4, PROTOCOLS), whole(8), whole(9, -1, 1)
    return _Line(
        COLLECTIVES[collective], Range(low, high), algorithm, protocol, channels, whole(6), whole(7), operations,
        registered, number,
    )  # fmt: skip


def _rule(line: _Line, registered: bool) -> tuple[Rule | None, str]:
    """The rule that says the same, and what it does not say."""
    if line.operations not in (-1, 1):
        return None, f"numPipeOps={line.operations} is for groups of so many operations, a call here is one; left out"
    if line.registered not in (-1, int(registered)):
        buffers = "registered buffers" if line.registered else "buffers that are not registered"
        return None, f"regBuff={line.registered} is for {buffers} only; left out (import with or without registered)"
    if line.algorithm in IN_THE_NETWORK:
        return None, f"{line.algorithm} needs {IN_THE_NETWORK[line.algorithm]}; left out"
    ours = OURS.get((line.collective, line.algorithm))
    if ours is None:
        return None, f"NCCL has no {line.algorithm} for {line.collective}, so the line never decides; left out"
    channels, problem = max(line.channels, 0), ""
    if channels > MAX_CHANNELS:
        channels, problem = MAX_CHANNELS, f"channels={channels} taken as {MAX_CHANNELS}, the most here"
    return Rule(
        line.collective,
        ranks=ANY if line.ranks < 0 else Range(line.ranks, line.ranks),
        nodes=ANY if line.nodes < 0 else Range(line.nodes, line.nodes),
        nbytes=line.nbytes,
        algorithm=ours,
        channels=channels,
        line=line.line,
    ), problem  # fmt: skip
