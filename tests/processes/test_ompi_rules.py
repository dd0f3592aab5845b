"""Rules files, run by a real Open MPI: it does what is read here, by algorithms that send what those here send."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from pathlib import Path

import mpi_launch
import pytest
from formats_support import chosen

from ringleader.algorithms import build
from ringleader.schedule.algebra import expand
from ringleader.tune.formats import ompi_rules
from ringleader.tune.formats.ompi_algorithms import COLLECTIVES

DYNAMIC = ("--mca", "coll_tuned_use_dynamic_rules", "1")

BITS = """
    import hashlib, json
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(comm.rank)
    found = {}
    for count in (10, 1000, 5000):
        x = (rng.normal(size=count) * 10.0 ** rng.integers(-4, 5, count)).astype(np.float32)
        y = np.empty_like(x)
        comm.Allreduce(x, y)
        found[str(4 * count)] = hashlib.sha1(y.tobytes()).hexdigest()
    if comm.rank == 0:
        print(json.dumps(found))
"""

CALL = """
    import sys
    import numpy as np
    from mpi4py import MPI

    comm, name, count = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
    n = comm.size
    x, y = np.zeros(n * count, np.uint8), np.zeros(n * count, np.uint8)
    if name == "broadcast":
        comm.Bcast(x)
    elif name == "all_reduce":
        comm.Allreduce(x, y, MPI.BOR)
    elif name == "reduce":
        comm.Reduce(x, y, MPI.BOR)
    elif name == "reduce_scatter":
        comm.Reduce_scatter(x, y[:count], [count] * n, MPI.BOR)
    elif name == "all_gather":
        comm.Allgather(x[:count], y)
    elif name == "all_to_all":
        comm.Alltoall(x, y)
    elif name == "gather":
        comm.Gather(x[:count], y)
    elif name == "scatter":
        comm.Scatter(x, y[:count])
"""


@pytest.fixture(autouse=True)
def _open_mpi() -> None:
    mpi_launch.need("openmpi")


def bits(tmp_path: Path, *options: str) -> dict[str, str]:
    script = tmp_path / "bits.py"
    script.write_text(textwrap.dedent(BITS))
    found: dict[str, str] = json.loads(mpi_launch.run("openmpi", 5, [str(script)], [*DYNAMIC, *options]))
    return found


def test_rules_decide_by_size_and_number_of_ranks(tmp_path: Path):
    """A sum's last bits tell the order of addition, and so the algorithm."""
    rows = {1: [(0, 3), (20000, 1)], 5: [(0, 4), (4000, 3), (20000, 1)], 6: [(0, 1)]}
    linear, doubling, ring = (bits(tmp_path, "--mca", "coll_tuned_allreduce_algorithm", number) for number in "134")
    assert len({linear["4000"], doubling["4000"], ring["4000"]}) == 3
    names = {"linear": linear, "recursive_doubling": doubling, "ring": ring}
    file = tmp_path / "rules.conf"
    for version in (1, 2):
        file.write_text(classic("all_reduce", rows, version))
        ruled = bits(tmp_path, "--mca", "coll_tuned_dynamic_rules_filename", str(file))
        assert ruled == {"40": ring["40"], "4000": doubling["4000"], "20000": linear["20000"]}, version
        read = ompi_rules.loads(file.read_text()).rules
        for nbytes in (40, 4000, 20000):
            found = chosen(read, "all_reduce", nbytes, (0,) * 5)
            assert found is not None and names[found[0]][str(nbytes)] == ruled[str(nbytes)]


def classic(collective: str, rows: dict[int, list[tuple[int, int]]], version: int = 1, segment: int = 0) -> str:
    """A rules file: for communicators from a size on, for messages from a size on, the number of an algorithm."""
    number = next(it.number for it in COLLECTIVES if it.ours == collective)
    lines = ["rule-file-version-2"] * (version == 2) + ["1", str(number), str(len(rows))]
    for ranks, cells in rows.items():
        requests = " 0" * (version == 2)
        lines += [str(ranks), str(len(cells)), *(f"{low} {alg} 0 {segment}{requests}" for low, alg in cells)]
    return "\n".join(lines) + "\n"


def messages(tmp_path: Path, rules: str, collective: str, ranks: int, count: int) -> Counter[tuple[int, int]]:
    """Bytes between each two ranks in one call, as Open MPI's monitoring counts them."""
    script, file = tmp_path / "call.py", tmp_path / "rules.conf"
    script.write_text(textwrap.dedent(CALL))
    file.write_text(rules)
    monitoring = {
        "pml_monitoring_enable": "2",
        "pml_monitoring_enable_output": "3",
        "pml_monitoring_filename": str(tmp_path / "count"),
        "coll_tuned_dynamic_rules_filename": str(file),
    }
    options = [word for name, value in monitoring.items() for word in ("--mca", name, value)]
    mpi_launch.run("openmpi", ranks, [str(script), collective, str(count)], [*DYNAMIC, *options])
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        text = (tmp_path / f"count.{rank}.prof").read_text()
        for source, target, nbytes in re.findall(r"^I\t(\d+)\t(\d+)\t(\d+) bytes", text, re.MULTILINE):
            found[int(source), int(target)] += int(nbytes)
    return found


def scheduled(collective: str, algorithm: str, ranks: int, count: int) -> Counter[tuple[int, int]]:
    """The same of a schedule here."""
    schedule = build(collective, algorithm, ranks)
    whole = count if schedule.collective.blocked else ranks * count
    size, rest = divmod(whole, schedule.chunks_per_block)
    assert rest == 0
    moves, _ = expand(schedule.table)
    found: Counter[tuple[int, int]] = Counter()
    for move in moves:
        if move["src_rank"] != move["dst_rank"]:
            found[int(move["src_rank"]), int(move["dst_rank"])] += size
    return found


SAME = [
    ("broadcast", "linear", 0),
    ("broadcast", "chain", 1024),
    ("all_reduce", "ring", 0),
    ("reduce", "chain", 1024),
    ("reduce_scatter", "ring", 0),
    ("all_gather", "bruck", 0),
    ("all_to_all", "pairwise", 0),
    ("scatter", "binomial", 0),
]
# The same but for who is whose partner at which distance first.
MIRRORED = [("broadcast", "knomial", 0), ("all_reduce", "rabenseifner", 0)]


@pytest.mark.parametrize(("collective", "algorithm", "segment"), SAME + MIRRORED)
def test_the_same_bytes_go_the_same_ways(tmp_path: Path, collective: str, algorithm: str, segment: int):
    """Open MPI's algorithm sends between each two ranks what the one that it is read as sends."""
    ranks, count = 8, 4096
    (known,) = (it for it in COLLECTIVES if it.ours == collective and it.number != 13)
    same = (it for it in known.algorithms if it.ours == algorithm and not it.differs and not it.chains)
    number = next(it.number for it in same if it.segmented == bool(segment))
    rules = classic(collective, {1: [(0, number)]}, segment=segment)
    read = ompi_rules.loads(rules).rules
    assert chosen(read, collective, ranks * count, (0,) * ranks) == (algorithm, segment)
    theirs = messages(tmp_path, rules, collective, ranks, count)
    ours = scheduled(collective, algorithm + (":segments=4" if segment else ""), ranks, count)
    if (collective, algorithm, segment) in MIRRORED:
        assert sorted(theirs.values()) == sorted(ours.values())
        assert sorted(_sent(theirs)) == sorted(_sent(ours))
    else:
        assert theirs == ours


def _sent(messages: Counter[tuple[int, int]]) -> list[int]:
    totals: Counter[int] = Counter()
    for (source, _), nbytes in messages.items():
        totals[source] += nbytes
    return list(totals.values())
