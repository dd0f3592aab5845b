"""Every collective algorithm, as a pure function that returns a `Schedule`, and the registry that names them.

One family a file. See docs/algorithms.md for the table.
"""

from ringleader.algorithms import bruck, composed, direct, hierarchical, linear, recursive, ring, tree
from ringleader.algorithms.registry import (
    COLLECTIVES,
    MAX_TRANSFERS,
    Algorithm,
    Parameter,
    algorithm,
    algorithm_hash,
    all_algorithms,
    build,
    canonical,
    check,
    get,
    names,
    parse_spec,
)
from ringleader.algorithms.user import forget, load_msccl, register_schedule

__all__ = [
    "COLLECTIVES",
    "MAX_TRANSFERS",
    "Algorithm",
    "Parameter",
    "algorithm",
    "algorithm_hash",
    "all_algorithms",
    "bruck",
    "build",
    "canonical",
    "check",
    "composed",
    "direct",
    "forget",
    "get",
    "hierarchical",
    "linear",
    "load_msccl",
    "names",
    "parse_spec",
    "recursive",
    "register_schedule",
    "ring",
    "tree",
]
