"""Hosts with different numbers of ranks, and vectors that nothing divides: exact results from every algorithm."""

from __future__ import annotations

import json
import os

import pytest

from .conftest import Hosts, outputs

# 2+2 is in test_two_hosts.py.
LAYOUTS = [(4, 3), (1, 5), (2, 2, 1)] + ([(4, 4)] if os.environ.get("RINGLEADER_LONG_TESTS") == "1" else [])

EVERYTHING = """
import json, numpy as np, ringleader as rl
from ringleader.algorithms import check, names

def data(rank, count):
    return (np.arange(count) * 7 + rank * 5 + 3) % 11 + 1.0

with rl.init(timeout=60) as comm:
    n, r, wrong, ran = comm.size, comm.rank, [], 0
    for count in (1, 3, 5, 7, 10_007):
        everyone = np.stack([data(q, count) for q in range(n)])
        wanted = {"sum": everyone.sum(0), "max": everyone.max(0), "avg": everyone.sum(0) / n}
        for op, want in wanted.items():
            for name in (None, *names("all_reduce")):
                x = data(r, count)
                comm.all_reduce(x, op, algorithm=name)
                ran += 1
                if not np.array_equal(x, want):
                    wrong.append(f"all_reduce {name} {op} {count}")
            for name in (None, *names("reduce")):
                got = comm.reduce(data(r, count), n - 1, op, algorithm=name)
                if r == n - 1 and not np.array_equal(got, want):
                    wrong.append(f"reduce {name} {op} {count}")
            for name in (None, *names("reduce_scatter")):
                blocks = np.concatenate([data(r + 3 * d, count) for d in range(n)])
                want_block = np.stack([data(q + 3 * r, count) for q in range(n)])
                want_block = {"sum": want_block.sum(0), "max": want_block.max(0), "avg": want_block.sum(0) / n}[op]
                if not np.array_equal(comm.reduce_scatter(blocks, op=op, algorithm=name), want_block):
                    wrong.append(f"reduce_scatter {name} {op} {count}")
        for name in (None, *names("all_gather")):
            if not np.array_equal(comm.all_gather(data(r, count), algorithm=name), everyone):
                wrong.append(f"all_gather {name} {count}")
        for name in (None, *names("broadcast")):
            x = data(r, count)
            comm.broadcast(x, root=1, algorithm=name)
            if not np.array_equal(x, everyone[1]):
                wrong.append(f"broadcast {name} {count}")
        for name in (None, *names("all_to_all")):
            blocks = np.concatenate([data(r * n + d, count) for d in range(n)])
            want = np.concatenate([data(q * n + r, count) for q in range(n)])
            if not np.array_equal(comm.all_to_all(blocks, algorithm=name), want):
                wrong.append(f"all_to_all {name} {count}")
        for name in names("barrier"):
            comm.barrier(algorithm=name)
    print(json.dumps({"nodes": comm.nodes, "wrong": wrong, "ran": ran}))
"""


@pytest.mark.parametrize(
    ("hosts", "layout"),
    [(len(layout), layout) for layout in LAYOUTS],
    indirect=["hosts"],
    ids=["+".join(map(str, layout)) for layout in LAYOUTS],
)
def test_uneven_hosts_and_lengths(hosts: Hosts, layout: tuple[int, ...]) -> None:
    nodes = [node for node, ranks in enumerate(layout) for _ in range(ranks)]
    for code, out, err in outputs(hosts.start_job(EVERYTHING, layout)):
        assert code == 0, err
        seen = json.loads(out)
        assert seen["nodes"] == nodes
        assert seen["wrong"] == []
        assert seen["ran"] >= 5 * 3 * 9
