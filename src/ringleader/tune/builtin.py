"""The built-in rules: which algorithm and protocol for which collective, layout, number of ranks and size.

The first rule that fits decides. This table is the only place with thresholds. Between nodes they are about the bytes
that travel, so that a wire format moves them (`Rule.wire_bytes`). One host, two hosts, and up to 9 ranks: as measured.
More: as simulated (`ringleader.simulate`, benchmarks/results/scale.md), so as to be near the best at any link speed
from 1 to 400 Gbit/s.
"""

from __future__ import annotations

from ringleader.tune.rules import ANY as ANY_RANGE
from ringleader.tune.rules import Range, Rule, RuleSet

__all__ = ["BUILT_IN"]

KIB, MIB = 1 << 10, 1 << 20
ANY = ANY_RANGE.high


def _rule(
    collective: str, layouts: str, ranks: int, nbytes: int, algorithm: str, protocol: str, segment: int = 0, *,
    fewest: int = 0, nodes: Range = ANY_RANGE, ranks_per_node: Range = ANY_RANGE, even: bool | None = None,
) -> Rule:  # fmt: skip
    """A rule for at most so many ranks and bytes, and no fewer ranks than `fewest`."""
    size = Range(0, nbytes)
    local = layouts == "shm"
    return Rule(
        collective,
        tuple(layouts.split()),
        ranks=Range(fewest, ranks),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        even=even,
        nbytes=size if local else ANY_RANGE,
        wire_bytes=ANY_RANGE if local else size,
        algorithm=algorithm,
        protocol=protocol,
        segment=segment,
    )


_POWERS = tuple(1 << bits for bits in range(2, 9))  # numbers of ranks
_MANY = 10  # ranks; fewer were measured
_SEVERAL = Range(3, ANY)  # hosts
_FEW = Range(3, 8)
_SOME = Range(3, 24)  # few enough that each sends to all others at once
# From so many ranks, or hosts, up to so many bytes: the steps of a ring, of which there are as many as ranks, cost more
# than its bytes.
_STEPS_COUNT = ((10, 4 * MIB), (33, 32 * MIB), (129, 256 * MIB), (1025, ANY))
_RING_TOO_LONG = (257, ANY)  # hosts of several ranks: a ring of them has millions of transfers, made in seconds

# fmt: off
_RULES: tuple[Rule, ...] = (
    #     collective        layouts      ranks    bytes      algorithm             protocol  segment
    _rule("all_reduce",     "shm",           4,  16 * KIB, "one_shot",             "push"),
    _rule("all_reduce",     "shm",          16,   8 * KIB, "one_shot",             "push"),
    _rule("all_reduce",     "shm",         128,       512, "one_shot",             "push"),
    _rule("all_reduce",     "shm",         ANY,       ANY, "two_shot",             "push"),
    # Many hosts of several ranks.
    _rule("all_reduce",     "mixed",       ANY,   8 * KIB, "hierarchical:outer=one_shot", "push",
          nodes=_FEW, fewest=_MANY, even=True),
    _rule("all_reduce",     "mixed",       ANY,   8 * KIB, "hierarchical:outer=recursive_multiplying", "push",
          nodes=_SEVERAL, fewest=_MANY, even=True),
    _rule("all_reduce",     "mixed",       ANY,   8 * KIB, "hierarchical_leader:outer=recursive_multiplying", "push",
          nodes=_SEVERAL, fewest=_MANY),
    _rule("all_reduce",     "mixed",       ANY,   4 * MIB, "hierarchical:outer=bcube", "push",
          nodes=_SEVERAL, fewest=_MANY, even=True),
    _rule("all_reduce",     "mixed",       ANY,   4 * MIB, "hierarchical_leader:outer=bcube", "push",
          nodes=_SEVERAL, fewest=_MANY),
    *(_rule("all_reduce",   "mixed",       ANY,      most, "hierarchical:outer=bcube", "push", nodes=Range(hosts, ANY),
            even=True) for hosts, most in (*_STEPS_COUNT, _RING_TOO_LONG)),
    # Hosts of several ranks: every byte crosses the network as rarely as can be (benchmarks/results/hierarchical.md).
    # Shards of uneven hosts have different bounds, so the data is cut into as many chunks as the least common multiple
    # of their numbers of ranks: few only if these are small.
    _rule("all_reduce",     "mixed",       ANY,  64 * KIB, "hierarchical_leader", "push"),
    _rule("all_reduce",     "mixed",       ANY, 512 * KIB, "hierarchical:outer=rabenseifner", "push", even=True),
    _rule("all_reduce",     "mixed",       ANY, 512 * KIB, "hierarchical_leader:outer=rabenseifner", "push"),
    _rule("all_reduce",     "mixed",       ANY,       ANY, "hierarchical",        "push", even=True),
    _rule("all_reduce",     "mixed",       ANY,       ANY, "hierarchical",        "push", ranks_per_node=Range(1, 4)),
    _rule("all_reduce",     "mixed",       ANY,       ANY, "hierarchical_leader:outer=ring", "push"),
    # With two ranks one exchange moves no more bytes than two halves, and needs one synchronisation instead of two. But
    # both ranks then reduce everything, which costs more as long as halves stay in the caches between the steps
    # (docs/performance.md).
    _rule("all_reduce",     "net",           2, 512 * KIB, "one_shot",             "push"),
    _rule("all_reduce",     "net",           2, 8192 * KIB, "two_shot",            "push"),
    _rule("all_reduce",     "net",           2,       ANY, "one_shot",             "push"),
    _rule("all_reduce",     "net",         ANY,   8 * KIB, "recursive_multiplying", "push", fewest=_MANY),
    *(_rule("all_reduce",   "net",         ANY,      most, "bcube",                "push", fewest=ranks)
      for ranks, most in _STEPS_COUNT),
    _rule("all_reduce",     "net mixed",   ANY,  32 * KIB, "recursive_doubling",   "push"),
    _rule("all_reduce",     "net mixed",   ANY, 256 * KIB, "rabenseifner",         "push"),
    _rule("all_reduce",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("all_reduce",     "shm net mixed", ANY,     ANY, "rabenseifner",         "push"),

    _rule("reduce_scatter", "shm",         ANY,       ANY, "direct",               "pull"),
    _rule("reduce_scatter", "mixed",       ANY,   4 * MIB, "hierarchical:outer=direct", "push",
          nodes=_SOME, fewest=_MANY),
    *(_rule("reduce_scatter", "mixed",     ANY,      most, "hierarchical:outer=pat", "push", nodes=Range(hosts, ANY))
      for hosts, most in _STEPS_COUNT),
    _rule("reduce_scatter", "mixed",       ANY, 256 * KIB, "hierarchical:outer=recursive_halving", "push"),
    _rule("reduce_scatter", "mixed",       ANY,       ANY, "hierarchical",        "push"),
    _rule("reduce_scatter", "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    _rule("reduce_scatter", "net",          24,   4 * MIB, "direct",               "push", fewest=_MANY),
    *(_rule("reduce_scatter", "net",       ANY,      most, "pat",                  "push", fewest=ranks)
      for ranks, most in _STEPS_COUNT),
    _rule("reduce_scatter", "net mixed",   ANY, 256 * KIB, "recursive_halving",    "push"),
    _rule("reduce_scatter", "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("reduce_scatter", "shm net mixed", ANY,     ANY, "recursive_halving",    "push"),

    _rule("all_gather",     "shm",         ANY,       ANY, "direct",               "pull"),
    _rule("all_gather",     "mixed",       ANY,   4 * MIB, "hierarchical:outer=direct", "push",
          nodes=_SOME, fewest=_MANY),
    *(_rule("all_gather",   "mixed",       ANY,      most, "hierarchical:outer=bruck", "push", nodes=Range(hosts, ANY))
      for hosts, most in _STEPS_COUNT),
    _rule("all_gather",     "mixed",       ANY, 256 * KIB, "hierarchical:outer=bruck", "push"),
    _rule("all_gather",     "mixed",       ANY,       ANY, "hierarchical",        "push"),
    _rule("all_gather",     "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    _rule("all_gather",     "net",          24,   4 * MIB, "direct",               "push", fewest=_MANY),
    # As many messages and bytes as bruck, but with a power of two the blocks of each lie side by side.
    *(_rule("all_gather",   "net mixed",     n, 256 * KIB, "recursive_doubling",   "push", fewest=n) for n in _POWERS),
    *(_rule("all_gather",   "net",         ANY,      most, "bruck",                "push", fewest=ranks)
      for ranks, most in _STEPS_COUNT),
    _rule("all_gather",     "net mixed",   ANY, 256 * KIB, "bruck",                "push"),
    _rule("all_gather",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("all_gather",     "shm net mixed", ANY,     ANY, "bruck",                "push"),

    _rule("broadcast",      "shm",         ANY,       ANY, "linear",               "pull"),
    _rule("broadcast",      "mixed",       ANY,   8 * KIB, "hierarchical:outer=knomial", "pull",
          nodes=_SEVERAL, fewest=_MANY),
    _rule("broadcast",      "mixed",       ANY,  64 * KIB, "hierarchical",        "pull", nodes=_SEVERAL, fewest=_MANY),
    _rule("broadcast",      "mixed",       ANY, 512 * KIB, "hierarchical:outer=chain", "pull",
          nodes=_FEW, fewest=_MANY),
    _rule("broadcast",      "mixed",       ANY,       ANY, "hierarchical:outer=double_binary_tree", "pull",
          nodes=_SEVERAL, fewest=_MANY),
    _rule("broadcast",      "mixed",       ANY, 128 * KIB, "hierarchical",        "push"),
    _rule("broadcast",      "mixed",       ANY,       ANY, "hierarchical:outer=chain", "push"),
    _rule("broadcast",      "net mixed",     2,       ANY, "linear",               "push"),
    _rule("broadcast",      "net",         ANY,   8 * KIB, "knomial",              "push", fewest=_MANY),
    _rule("broadcast",      "net",         ANY,  64 * KIB, "binary_tree",          "push", fewest=_MANY),
    _rule("broadcast",      "net",         ANY, 512 * KIB, "double_binary_tree:segments=4", "push", fewest=_MANY),
    _rule("broadcast",      "net",         ANY,  32 * MIB, "double_binary_tree:segments=16", "push", fewest=_MANY),
    _rule("broadcast",      "net",         ANY,       ANY, "double_binary_tree:segments=64", "push", fewest=_MANY),
    _rule("broadcast",      "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    _rule("broadcast",      "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),

    _rule("reduce",         "shm",         ANY,  16 * KIB, "linear",               "push"),
    _rule("reduce",         "shm",         ANY,       ANY, "two_shot",             "push"),
    _rule("reduce",         "mixed",       ANY, 128 * KIB, "hierarchical",        "push"),
    _rule("reduce",         "mixed",       ANY,       ANY, "hierarchical:outer=chain", "push"),
    _rule("reduce",         "net mixed",     2,       ANY, "chain",                "push", 256 * KIB),
    _rule("reduce",         "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    _rule("reduce",         "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),
    _rule("reduce",         "shm net mixed", ANY,     ANY, "binomial",             "push"),

    _rule("gather",         "shm",         ANY,       ANY, "linear",               "push"),
    _rule("gather",         "mixed",       ANY,  64 * KIB, "hierarchical",        "push"),
    _rule("gather",         "net mixed",   ANY,  64 * KIB, "binomial",             "push"),
    _rule("gather",         "net mixed",   ANY,       ANY, "linear",               "push"),

    _rule("scatter",        "shm",         ANY,       ANY, "linear",               "pull"),
    _rule("scatter",        "mixed",       ANY,  64 * KIB, "hierarchical",        "push"),
    _rule("scatter",        "net mixed",   ANY,  64 * KIB, "binomial",             "push"),
    _rule("scatter",        "net mixed",   ANY,       ANY, "linear",               "push"),

    _rule("all_to_all",     "shm",         ANY,       ANY, "direct",               "pull"),
    _rule("all_to_all",     "net mixed",     8,       ANY, "direct",               "push"),
    _rule("all_to_all",     "net mixed",   256,  16 * KIB, "bruck",                "push"),
    _rule("all_to_all",     "net mixed",   ANY,       ANY, "pairwise",             "push"),

    _rule("barrier",        "shm",          16,       ANY, "direct",               "push"),
    _rule("barrier",        "shm net mixed", ANY,     ANY, "dissemination",        "push"),
)
# fmt: on

BUILT_IN = RuleSet(_RULES, "built-in")
