"""What a collective would cost on a cluster that need not exist, see docs/simulation.md.

>>> from ringleader.simulate import simulate
>>> from ringleader.topology import generate
>>> cluster = generate.fat_tree(generate.hgx_h100(), 4)
>>> simulate("ring", cluster, 1 << 30).seconds > simulate("hierarchical", cluster, 1 << 30).seconds
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.simulate.collective import LinkLoad, Result, Simulation, simulate
from ringleader.simulate.costs import Costs, engine, nccl
from ringleader.simulate.routes import Fabric, Medium
from ringleader.simulate.training import Layout, Option, Step, frontier, plan_cluster, simulate_step

__all__ = [
    "Costs", "Fabric", "Layout", "LinkLoad", "Medium", "Option", "Result", "Simulation", "Step", "engine", "frontier",
    "nccl", "plan_cluster", "simulate", "simulate_step",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
