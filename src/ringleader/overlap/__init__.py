"""Planned overlap of communication and computing: buckets for the backward pass, partitions for the next forward pass.

Pure arithmetic over timelines; see docs/overlap.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.overlap.buckets import BucketPlan, plan_buckets, plan_of
from ringleader.overlap.cost import CostCurve
from ringleader.overlap.partitions import Launcher, Partition, Piece, partition
from ringleader.overlap.planner import Planner, Recording, Settings, measured_slowdown
from ringleader.overlap.priority import Played, PriorityPlan, plan_priority, preemptive_bound, simulate_priority
from ringleader.overlap.simulate import Conditions, Simulated, fixed_buckets, simulate
from ringleader.overlap.timeline import Timeline

__all__ = [
    "BucketPlan",
    "Conditions",
    "CostCurve",
    "Launcher",
    "Partition",
    "Piece",
    "Planner",
    "Played",
    "PriorityPlan",
    "Recording",
    "Settings",
    "Simulated",
    "Timeline",
    "fixed_buckets",
    "measured_slowdown",
    "partition",
    "plan_buckets",
    "plan_of",
    "plan_priority",
    "preemptive_bound",
    "simulate",
    "simulate_priority",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
