"""Collectives on compressed arrays, see docs/compression.md.

`entry` has the calls, `reduction` and `scatter` how payloads of each kind are reduced, `lane` what runs beside the
caller.
"""

from ringleader.runtime.compressed.entry import all_reduce, all_reduce_vector, pays
from ringleader.runtime.compressed.lane import lane_or_none
from ringleader.runtime.compressed.scatter import check_scatters, reduce_scatter_vector

__all__ = ["all_reduce", "all_reduce_vector", "check_scatters", "lane_or_none", "pays", "reduce_scatter_vector"]
