"""Which algorithm and protocol a call uses: rules, cost model, and the environment's say."""

from ringleader.tune.cost import Cost, predict
from ringleader.tune.grammar import PROTOCOLS, parse_algo, parse_proto
from ringleader.tune.select import Candidate, Choice, Explanation, explain, select

__all__ = [
    "PROTOCOLS",
    "Candidate",
    "Choice",
    "Cost",
    "Explanation",
    "explain",
    "parse_algo",
    "parse_proto",
    "predict",
    "select",
]
