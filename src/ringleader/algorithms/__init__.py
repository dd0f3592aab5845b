"""Every collective algorithm, as a pure function that returns a `Schedule`, and the registry that names them.

One family a file. See docs/algorithms.md for the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.algorithms import (
    bruck,
    butterfly,
    composed,
    direct,
    hierarchical,
    knomial,
    linear,
    orders,
    pat,
    rails,
    recursive,
    ring,
    torus,
    tree,
)
from ringleader.algorithms.files import load_files, load_msccl
from ringleader.algorithms.parameter import Of, Parameter, Range, Separator
from ringleader.algorithms.registry import (
    COLLECTIVES,
    MAX_TRANSFERS,
    Algorithm,
    Spec,
    Terms,
    algorithm,
    algorithm_hash,
    all_algorithms,
    build,
    canonical,
    check,
    forget,
    get,
    name_of,
    names,
    parse_spec,
    register_schedule,
    terms,
)

__all__ = [
    "COLLECTIVES",
    "MAX_TRANSFERS",
    "Algorithm",
    "Of",
    "Parameter",
    "Range",
    "Separator",
    "Spec",
    "Terms",
    "algorithm",
    "algorithm_hash",
    "all_algorithms",
    "bruck",
    "build",
    "butterfly",
    "canonical",
    "check",
    "composed",
    "direct",
    "forget",
    "get",
    "hierarchical",
    "knomial",
    "linear",
    "load_files",
    "load_msccl",
    "name_of",
    "names",
    "orders",
    "parse_spec",
    "pat",
    "rails",
    "recursive",
    "register_schedule",
    "ring",
    "terms",
    "torus",
    "tree",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
