"""Tuning a job over two hosts (network namespaces): for its layout, and for no other number of hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringleader.tune import table
from ringleader.tune.rules import Range

from .conftest import Hosts, outputs

TUNE = """
import sys
from ringleader.cli.main import main
sys.exit(main(["tune", "--budget", "3", "--collectives", "all_reduce", "--output", {path!r}]))
"""

USE = """
import json, numpy as np, os, ringleader as rl
os.environ["RINGLEADER_TUNING_FILE"] = {path!r}
with rl.init() as comm:
    assert comm.all_reduce(np.ones(4)).tolist() == [comm.size] * 4
    reasons = [comm.last_choice.reason]
    part = comm.split(comm.nodes[comm.rank])  # one host, for which nothing was tuned
    part.all_reduce(np.ones(4))
    comm.barrier()  # rank 0 serves the store: it must not leave before all groups are formed
    print(json.dumps([*reasons, part.last_choice.reason]))
"""


@pytest.mark.slow
def test_a_job_over_two_hosts_is_tuned_for_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    results = outputs(hosts.start_job(TUNE.format(path=str(path)), [2, 2]), timeout=100)
    for code, _, err in results:
        assert code == 0, err
    made = table.load(path)
    (rules,) = made.rules.values()
    assert list(made.rules) == ["2:tcp"]
    assert {(rule.layouts, rule.ranks, rule.nodes, rule.ranks_per_node) for rule in rules.rules} == {
        (("mixed",), Range(4, 4), Range(2, 2), Range(2, 2))
    }
    for code, out, err in outputs(hosts.start_job(USE.format(path=str(path)), [2, 2])):
        assert code == 0, err
        whole, part = json.loads(out)
        assert whole.startswith("tuner (rule ")
        assert part.startswith("built-in")
