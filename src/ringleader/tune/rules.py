"""The built-in rules: which algorithm and protocol for which collective, layout, number of ranks and size.

The first rule that fits decides. This table is the only place with thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.algorithms import check, get
from ringleader.errors import InvalidArgument

__all__ = ["LAYOUTS", "RULES", "Rule", "fitting", "layout_of"]

KIB, MIB = 1 << 10, 1 << 20
ANY = 1 << 62

LAYOUTS = ("shm", "net", "mixed")
MAX_SEGMENTS = 8

# Chunks of the unsegmented algorithm; all others that can be segmented have one per rank.
_FEW_CHUNKS = {"chain": 1, "double_binary_tree": 2}


@dataclass(frozen=True)
class Rule:
    """One line of the table.

    Attributes
    ----------
    layouts
        ``shm`` (one node), ``net`` (each rank on a node of its own), ``mixed``, joined by blanks.
    ranks, nbytes
        Most ranks, and most bytes of the whole data (all blocks together), that it is for.
    algorithm, protocol
        What it chooses.
    piece
        If not 0, chunks are cut into segments of about so many bytes (at most 8 segments), so that sending one overlaps
        reducing another.
    """

    collective: str
    layouts: str
    ranks: int
    nbytes: int
    algorithm: str
    protocol: str
    piece: int = 0

    def spec(self, nbytes: int, n: int, itemsize: int) -> str:
        """The algorithm with its number of segments, a power of two."""
        if not self.piece:
            return self.algorithm
        chunk = nbytes // _FEW_CHUNKS.get(self.algorithm, n)
        wanted = min(chunk // max(self.piece, itemsize), MAX_SEGMENTS)
        segments = 1 << (wanted.bit_length() - 1) if wanted > 0 else 1
        while segments > 1 and not _buildable(self.collective, f"{self.algorithm}:segments={segments}", n):
            segments //= 2
        return f"{self.algorithm}:segments={segments}"


# fmt: off
RULES: tuple[Rule, ...] = (
    #    collective        layouts      ranks    bytes      algorithm             protocol  piece
    Rule("all_reduce",     "shm",           4,  16 * KIB, "one_shot",             "push"),
    Rule("all_reduce",     "shm",          16,   8 * KIB, "one_shot",             "push"),
    Rule("all_reduce",     "shm",         128,       512, "one_shot",             "push"),
    Rule("all_reduce",     "shm",         ANY,       ANY, "two_shot",             "push"),
    # With two ranks one exchange moves no more bytes than two halves, and needs one synchronisation instead of two.
    Rule("all_reduce",     "net",           2,       ANY, "one_shot",             "push"),
    Rule("all_reduce",     "net mixed",   ANY,  32 * KIB, "recursive_doubling",   "push"),
    Rule("all_reduce",     "net mixed",   ANY, 256 * KIB, "rabenseifner",         "push"),
    Rule("all_reduce",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    Rule("all_reduce",     "shm net mixed", ANY,     ANY, "rabenseifner",         "push"),

    Rule("reduce_scatter", "shm",         ANY,       ANY, "direct",               "pull"),
    Rule("reduce_scatter", "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    Rule("reduce_scatter", "net mixed",   ANY, 256 * KIB, "recursive_halving",    "push"),
    Rule("reduce_scatter", "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    Rule("reduce_scatter", "shm net mixed", ANY,     ANY, "recursive_halving",    "push"),

    Rule("all_gather",     "shm",         ANY,       ANY, "direct",               "pull"),
    Rule("all_gather",     "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    Rule("all_gather",     "net mixed",   ANY, 256 * KIB, "bruck",                "push"),
    Rule("all_gather",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    Rule("all_gather",     "shm net mixed", ANY,     ANY, "bruck",                "push"),

    Rule("broadcast",      "shm",         ANY,       ANY, "linear",               "pull"),
    Rule("broadcast",      "net mixed",     2,       ANY, "linear",               "push"),
    Rule("broadcast",      "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    Rule("broadcast",      "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),

    Rule("reduce",         "shm",         ANY,  16 * KIB, "linear",               "push"),
    Rule("reduce",         "shm",         ANY,       ANY, "two_shot",             "push"),
    Rule("reduce",         "net mixed",     2,       ANY, "chain",                "push", 256 * KIB),
    Rule("reduce",         "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    Rule("reduce",         "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),
    Rule("reduce",         "shm net mixed", ANY,     ANY, "binomial",             "push"),

    Rule("gather",         "shm",         ANY,       ANY, "linear",               "push"),
    Rule("gather",         "net mixed",   ANY,  64 * KIB, "binomial",             "push"),
    Rule("gather",         "net mixed",   ANY,       ANY, "linear",               "push"),

    Rule("scatter",        "shm",         ANY,       ANY, "linear",               "pull"),
    Rule("scatter",        "net mixed",   ANY,  64 * KIB, "binomial",             "push"),
    Rule("scatter",        "net mixed",   ANY,       ANY, "linear",               "push"),

    Rule("all_to_all",     "shm",         ANY,       ANY, "direct",               "pull"),
    Rule("all_to_all",     "net mixed",     8,       ANY, "direct",               "push"),
    Rule("all_to_all",     "net mixed",   256,  16 * KIB, "bruck",                "push"),
    Rule("all_to_all",     "net mixed",   ANY,       ANY, "pairwise",             "push"),

    Rule("barrier",        "shm",          16,       ANY, "direct",               "push"),
    Rule("barrier",        "shm net mixed", ANY,     ANY, "dissemination",        "push"),
)
# fmt: on


def layout_of(nodes: tuple[int, ...]) -> str:
    """``shm`` if all ranks are on one node, ``net`` if each is on its own, else ``mixed``.

    Examples
    --------
    >>> layout_of((0, 0)), layout_of((0, 1)), layout_of((0, 0, 1, 1))
    ('shm', 'net', 'mixed')
    """
    distinct = len(set(nodes))
    if distinct <= 1:
        return "shm"
    return "net" if distinct == len(nodes) else "mixed"


def fitting(collective: str, nbytes: int, n: int, layout: str, itemsize: int) -> Iterator[tuple[Rule, str]]:
    """The rules that fit a request, in order, each with the spec that it chooses; those over a limit are left out."""
    for rule in RULES:
        if (
            rule.collective == collective
            and layout in rule.layouts.split()
            and n <= rule.ranks
            and nbytes <= rule.nbytes
        ):
            spec = rule.spec(nbytes, n, itemsize)
            if _buildable(collective, spec, n):
                yield rule, spec


def _buildable(collective: str, spec: str, n: int) -> bool:
    try:
        check(collective, spec, n)
    except InvalidArgument:
        return False
    return True


for _rule in RULES:
    get(_rule.collective, _rule.algorithm)  # a name that does not exist must not wait for its first use
