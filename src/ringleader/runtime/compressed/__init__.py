"""Collectives on compressed arrays, see docs/compression.md.

`entry` has the calls, `described` what they must have in common on all ranks, `cost` says what they send and whether
that pays, `reduction` and `scatter` how payloads of each kind are reduced, `scratch` memory that is used again, `lane`
what runs beside the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.runtime.compressed.cost import exchanges, pays, sent_bytes
from ringleader.runtime.compressed.entry import all_reduce, all_reduce_pieces, all_reduce_vector
from ringleader.runtime.compressed.lane import lane_or_none
from ringleader.runtime.compressed.scatter import check_scatters, reduce_scatter_vector

__all__ = [
    "all_reduce",
    "all_reduce_pieces",
    "all_reduce_vector",
    "check_scatters",
    "exchanges",
    "lane_or_none",
    "pays",
    "reduce_scatter_vector",
    "sent_bytes",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
