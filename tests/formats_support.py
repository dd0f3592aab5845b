"""Files of other projects that tests read: those of this repository, and more where a folder of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ringleader.tune.formats.ompi_algorithms import COLLECTIVES
from ringleader.tune.rules import RuleSet, Situation

HERE = Path(__file__).resolve().parent / "data"
_REAL = Path(os.environ.get("RINGLEADER_REALDATA") or Path(__file__).resolve().parents[2] / "shared" / "realdata")


def files(kind: str, suffix: str) -> list[Path]:
    """All files of a kind, each once."""
    found = {path.name: path for folder in (_REAL, HERE) for path in sorted((folder / kind).glob(f"*{suffix}"))}
    return [found[name] for name in sorted(found)]


ALLREDUCE = COLLECTIVES[2]
NODES = {"shm": lambda n: (0,) * n, "net": lambda n: tuple(range(n)), "mixed": lambda n: (*range(n - 1), 0)}


def chosen(rules: RuleSet, collective: str, nbytes: int, nodes: tuple[int, ...]) -> tuple[str, int] | None:
    """Algorithm and segment of the first rule that fits."""
    rule = next(rules.fitting(Situation(collective, nbytes, nodes)), None)
    return None if rule is None else (rule.algorithm, rule.segment)


def text_of(notes: tuple[Any, ...]) -> str:
    return "\n".join(map(str, notes))


# The same in each format: all_reduce by ring for 4 to 8 ranks, reduce by a tree.
WHOLE = {
    "ompi": """rule-file-version-2
2 # collectives
2 # allreduce
2 # communicator sizes
4 # ranks and more
1 # message sizes: bytes, algorithm, fan-out, segment size, requests
0 4 0 0 0 # ring
9
1
0 0 0 0 0
11 # reduce
1
1
1
0 5 0 0 0 # binomial
""",
    "ompi-json": """{
  "rule_file_version": 3,
  "module": "tuned",
  "collectives": {
    "allreduce": [
      {"comm_size_min": 4, "comm_size_max": 8, "comm_rank_distribution": "any", "rules": [{"alg": "ring"}]}
    ],
    "reduce": [{"rules": [{"alg": "binomial"}]}]
  }
}
""",
    "nccl-csv": """# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,4294967295,ring,simple,-1,-1,8,-1,-1
reduce,0,4294967295,ring,simple,-1,-1,-1,-1,-1
""",
}
