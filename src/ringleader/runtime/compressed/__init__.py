"""Collectives on compressed arrays, see docs/compression.md.

`entry` has the calls, `reduction` how payloads of each kind are reduced, `lane` what runs beside the caller.
"""

from ringleader.runtime.compressed.entry import all_reduce, all_reduce_vector, pays, transaction
from ringleader.runtime.compressed.lane import lane_or_none
from ringleader.runtime.compressed.reduction import Reduction, shards

__all__ = ["Reduction", "all_reduce", "all_reduce_vector", "lane_or_none", "pays", "shards", "transaction"]
