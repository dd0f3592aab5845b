"""Configuration files of NCCL's example tuner plugin (CSV): in and out.

One line per choice, the first fitting one decides; ``#`` begins a line of comment:
``collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]``, where -1
stands for any (docs/rules-formats.md). NCCL takes unknown words for others without a word; here they are errors.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ringleader._names import unknown
from ringleader.algorithms import get, parse_spec
from ringleader.errors import InvalidArgument
from ringleader.tune.formats.exchange import Exported, Imported, Note
from ringleader.tune.rulefile import MAX_BYTES, MAX_RULES
from ringleader.tune.rules import ANY, LAYOUTS, MAX_CHANNELS, Range, Rule, RuleSet

__all__ = ["dumps", "loads"]

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


def dumps(rules: RuleSet, protocol: str = "simple") -> Exported:
    """Write rules as a configuration file of NCCL's example tuner plugin.

    Parameters
    ----------
    protocol
        What all lines say: ``simple``, ``ll`` or ``ll128``; the plugin wants one, and rules here know none of them.

    Returns
    -------
    Exported
        The text, and what it cannot say: conditions, and whole rules; where one is left out, the next
        fitting line decides.

    Raises
    ------
    InvalidArgument
        An unknown protocol.

    Examples
    --------
    >>> rule = Rule("reduce", ranks=Range(8, 8), nbytes=Range(65536), algorithm="chain", channels=2)
    >>> print(dumps(RuleSet((rule,), "mine")).text.splitlines()[-1])
    reduce,65536,4294967295,ring,simple,2,-1,8,-1,-1
    """
    if protocol not in PROTOCOLS:
        raise InvalidArgument(unknown("protocol", protocol, PROTOCOLS))
    comment = "".join(letter if letter.isprintable() else "?" for letter in rules.source)[:200]
    lines, notes = [f"# {comment}: written by Ringleader", f"# {','.join(COLUMNS)}"], []
    names = {ours: name for name, ours in COLLECTIVES.items()}
    for index, rule in enumerate(rules.rules):
        algorithm, problems = _said(rule)
        if problems:
            left = "" if algorithm else "; left out"
            notes.append(Note(rule.line, f"rule {index + 1} ({rule}): {'; '.join(problems)}{left}"))
        if algorithm is None:
            continue
        high = NO_LIMIT if rule.nbytes.high == ANY.high else rule.nbytes.high
        single = [-1 if it == ANY else it.low for it in (rule.nodes, rule.ranks)]
        if rule.layouts == ("shm",):
            single[0] = 1
        head = f"{names[rule.collective]},{rule.nbytes.low},{high},{algorithm},{protocol},{rule.channels or -1}"
        lines.append(f"{head},{single[0]},{single[1]},-1,-1")
    return Exported("\n".join(lines) + "\n", tuple(notes))


def _said(rule: Rule) -> tuple[str | None, list[str]]:
    """NCCL's algorithm for a rule, None if the rule cannot be said; and what is wrong or lost."""
    lost = [f"{what}={getattr(rule, what)} cannot be said" for what in ("protocol", "wire") if getattr(rule, what)]
    lost += [f"segment={rule.segment} cannot be said"] if rule.segment else []
    found = [name for (collective, name), ours in OURS.items() if (collective, ours) == _chosen(rule)]
    if not found:
        return None, [f"NCCL has no {rule.algorithm or 'such choice'} for {rule.collective}"]
    _, parameters = parse_spec(rule.collective, rule.algorithm)
    defaults = get(rule.collective, rule.algorithm.partition(":")[0]).defaults
    lost += [f"{name}={value} cannot be said" for name, value in parameters.items() if value != defaults[name]]
    wrong = [f"{name} is a range" for name in ("nodes", "ranks") if not _single(getattr(rule, name))]
    wrong += [
        f"NCCL has no condition on {name}" for name in ("ranks_per_node", "wire_bytes") if getattr(rule, name) != ANY
    ]
    wrong += ["NCCL has no condition on even"] if rule.even is not None else []
    if rule.layouts not in (LAYOUTS, ("shm",)) or (rule.layouts == ("shm",) and 1 not in rule.nodes):
        wrong.append(f"NCCL has no condition on layout={' '.join(rule.layouts)}")
    return (None, wrong) if wrong else (found[0], lost)


def _chosen(rule: Rule) -> tuple[str, str]:
    return rule.collective, "" if rule.excluded else rule.algorithm.partition(":")[0]


def _single(numbers: Range) -> bool:
    return numbers == ANY or numbers.low == numbers.high > 0
