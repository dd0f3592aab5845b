"""The built-in rules: which algorithm and protocol for which collective, layout, number of ranks and size.

The first rule that fits decides. This table is the only place with thresholds. Between nodes they are about the bytes
that travel, so that a wire format moves them (`Rule.wire_bytes`).
"""

from __future__ import annotations

from ringleader.tune.rules import Range, Rule, RuleSet

__all__ = ["BUILT_IN"]

KIB = 1 << 10
ANY = 1 << 62


def _rule(
    collective: str, layouts: str, ranks: int, nbytes: int, algorithm: str, protocol: str, segment: int = 0
) -> Rule:
    """A rule for at most so many ranks and bytes."""
    size = Range(0, nbytes)
    local = layouts == "shm"
    return Rule(
        collective,
        tuple(layouts.split()),
        ranks=Range(0, ranks),
        nbytes=size if local else Range(),
        wire_bytes=Range() if local else size,
        algorithm=algorithm,
        protocol=protocol,
        segment=segment,
    )


# fmt: off
_RULES: tuple[Rule, ...] = (
    #     collective        layouts      ranks    bytes      algorithm             protocol  segment
    _rule("all_reduce",     "shm",           4,  16 * KIB, "one_shot",             "push"),
    _rule("all_reduce",     "shm",          16,   8 * KIB, "one_shot",             "push"),
    _rule("all_reduce",     "shm",         128,       512, "one_shot",             "push"),
    _rule("all_reduce",     "shm",         ANY,       ANY, "two_shot",             "push"),
    # With two ranks one exchange moves no more bytes than two halves, and needs one synchronisation instead of two.
    _rule("all_reduce",     "net",           2,       ANY, "one_shot",             "push"),
    _rule("all_reduce",     "net mixed",   ANY,  32 * KIB, "recursive_doubling",   "push"),
    _rule("all_reduce",     "net mixed",   ANY, 256 * KIB, "rabenseifner",         "push"),
    _rule("all_reduce",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("all_reduce",     "shm net mixed", ANY,     ANY, "rabenseifner",         "push"),

    _rule("reduce_scatter", "shm",         ANY,       ANY, "direct",               "pull"),
    _rule("reduce_scatter", "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    _rule("reduce_scatter", "net mixed",   ANY, 256 * KIB, "recursive_halving",    "push"),
    _rule("reduce_scatter", "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("reduce_scatter", "shm net mixed", ANY,     ANY, "recursive_halving",    "push"),

    _rule("all_gather",     "shm",         ANY,       ANY, "direct",               "pull"),
    _rule("all_gather",     "net mixed",     2,       ANY, "direct",               "push", 256 * KIB),
    _rule("all_gather",     "net mixed",   ANY, 256 * KIB, "bruck",                "push"),
    _rule("all_gather",     "net mixed",   ANY,       ANY, "ring",                 "push", 256 * KIB),
    _rule("all_gather",     "shm net mixed", ANY,     ANY, "bruck",                "push"),

    _rule("broadcast",      "shm",         ANY,       ANY, "linear",               "pull"),
    _rule("broadcast",      "net mixed",     2,       ANY, "linear",               "push"),
    _rule("broadcast",      "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    _rule("broadcast",      "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),

    _rule("reduce",         "shm",         ANY,  16 * KIB, "linear",               "push"),
    _rule("reduce",         "shm",         ANY,       ANY, "two_shot",             "push"),
    _rule("reduce",         "net mixed",     2,       ANY, "chain",                "push", 256 * KIB),
    _rule("reduce",         "net mixed",   ANY, 128 * KIB, "binomial",             "push"),
    _rule("reduce",         "net mixed",   ANY,       ANY, "chain",                "push", 64 * KIB),
    _rule("reduce",         "shm net mixed", ANY,     ANY, "binomial",             "push"),

    _rule("gather",         "shm",         ANY,       ANY, "linear",               "push"),
    _rule("gather",         "net mixed",   ANY,  64 * KIB, "binomial",             "push"),
    _rule("gather",         "net mixed",   ANY,       ANY, "linear",               "push"),

    _rule("scatter",        "shm",         ANY,       ANY, "linear",               "pull"),
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
