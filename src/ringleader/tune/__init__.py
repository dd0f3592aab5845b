"""Which algorithm and protocol a call uses: rules, cost model, and the environment's say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringleader._lazy import lazily
from ringleader.tune.builtin import BUILT_IN
from ringleader.tune.cost import Cost, predict
from ringleader.tune.explain import Candidate, Explanation, explain
from ringleader.tune.grammar import parse_algo, parse_proto
from ringleader.tune.matrix import matrix
from ringleader.tune.model import DEFAULT, Model
from ringleader.tune.rulefile import dumps, load, loads
from ringleader.tune.rules import PROTOCOLS, Range, Rule, RuleSet
from ringleader.tune.select import Choice, select, select_wire

if TYPE_CHECKING:
    from ringleader.tune import formats as formats

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "PROTOCOLS",
    "Candidate",
    "Choice",
    "Cost",
    "Explanation",
    "Model",
    "Range",
    "Rule",
    "RuleSet",
    "dumps",
    "explain",
    "load",
    "loads",
    "matrix",
    "parse_algo",
    "parse_proto",
    "predict",
    "select",
    "select_wire",
]

if not TYPE_CHECKING:  # a type checker shall see what there is, and nothing else
    __getattr__, __dir__ = lazily(__name__)
