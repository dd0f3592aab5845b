"""The command line where no ranks are needed: what it prints, what it refuses and how."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from ringleader import algorithms, tune
from ringleader.cli import operands, table, words
from ringleader.cli.main import main
from ringleader.cli.measure import Contestant, Measured, Result, Timing
from ringleader.cli.patterns import DTYPES, OPS, PERIOD, REDUCED, Patterns, Segment, check_pair, kind_of
from ringleader.errors import InvalidArgument, UnsupportedType
from ringleader.schedule import Collective


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


# ------------------------------------------------------------------------------------------------- verify


def test_verify_proves_a_range(capsys):
    code, out, _ = run(capsys, "verify", "ring:segments=2", "-n", "1..5,9")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("all_reduce")]
    assert [int(row[2]) for row in rows] == [1, 2, 3, 4, 5, 9]
    assert all(row[1] == "ring:segments=2" and row[-1] == "proved" for row in rows)
    assert int(rows[3][3]) == 7  # 2(n-1) steps and one more for the second segment
    assert out.splitlines()[-1] == "6 proved, 0 wrong"


def test_verify_all_of_a_collective(capsys):
    code, out, _ = run(capsys, "verify", "--all", "--collective", "Broadcast", "-n", "3", "--root", "2")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:-1]] == list(algorithms.names("broadcast"))


def test_verify_finds_the_collective_of_a_name(capsys):
    assert "barrier        dissemination" in run(capsys, "verify", "dissemination", "-n", "3")[1]
    assert "reduce_scatter ring" in run(capsys, "verify", "reduce_scatter/ring", "-n", "3")[1]


def test_verify_fails_with_the_violation(capsys, monkeypatch):
    """A ring whose last transfer is lost must be refused with exit code 1."""
    entry = algorithms.get("all_reduce", "ring")
    whole = entry.function

    def broken(n, **parameters):
        from ringleader.schedule import Schedule

        schedule = whole(n, **parameters)
        return Schedule("all_reduce", n, schedule.chunks, schedule.table[:-1], name=schedule.name)

    algorithms.registry._build.cache_clear()
    monkeypatch.setitem(entry.__dict__, "function", broken)
    try:
        code, out, _ = run(capsys, "verify", "ring", "-n", "4")
    finally:
        algorithms.registry._build.cache_clear()
    assert code == 1
    assert "WRONG" in out and "0 proved, 1 wrong" in out
    assert "expected all contributions to chunk" in out


# --------------------------------------------------------------------------------- algorithms, draw, explain


def test_algorithms_lists_the_registry(capsys):
    code, out, _ = run(capsys, "algorithms")
    assert code == 0
    for entry in algorithms.all_algorithms():
        assert entry.name in out
    assert "Thakur" in out and "segments=1..1024" in out
    only = run(capsys, "algorithms", "-c", "barrier")[1]
    assert "dissemination" in only and "all_reduce" not in only


def test_draw_as_text_program_and_svg(capsys, tmp_path):
    code, out, _ = run(capsys, "draw", "ring", "-n", "3")
    assert code == 0 and "+0<2" not in out.splitlines()[0] and "step | rank 0" in out
    code, out, _ = run(capsys, "draw", "two_shot", "-n", "2", "--program", "1")
    assert code == 0 and "rank 1 of 2" in out and "#0 reduce" in out
    path = tmp_path / "ring.svg"
    code, out, _ = run(capsys, "draw", "ring", "-n", "4", "--svg", str(path))
    assert code == 0 and str(path) in out.replace("\n", "")
    assert path.read_text().startswith("<svg") and path.read_text().count('class="reduce"') >= 12


def test_explain_names_the_choice_and_all_candidates(capsys):
    code, out, _ = run(capsys, "explain", "allreduce", "1M", "--nodes", "2x4")
    assert code == 0
    assert "8 ranks, mixed" in out and "chosen" in out
    assert all(name in out for name in algorithms.names("all_reduce"))
    small = run(capsys, "explain", "all_reduce", "64", "-n", "2")[1]
    assert "runs one_shot" in small


def test_explain_reads_rules_and_wire_formats(capsys, tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    path.write_text(
        '{"format": "ringleader-rules", "version": 1, "rules": [\n'
        '  {"collective": "all_reduce", "bytes": "1M-", "algorithm": "linear", "channels": 2, "wire": "bf16"}\n]}'
    )
    out = run(capsys, "explain", "all_reduce", "1M", "--nodes", "2x1", "--rules", str(path))[1]
    assert "runs linear, push, 2 channels" in out and "mine.json, line 2 (rule 1)" in out and "bf16 between" in out
    assert "decided by built-in" in run(capsys, "explain", "all_reduce", "1K", "-n", "2", "--rules", str(path))[1]
    monkeypatch.setenv("RINGLEADER_RULES", str(path))
    assert "runs linear" in run(capsys, "explain", "all_reduce", "1M", "-n", "2")[1]
    assert "int8 between nodes" in run(capsys, "explain", "all_reduce", "1M", "--nodes", "2x1", "--wire", "int8")[1]


def test_rules_are_checked_and_shown(capsys, tmp_path):
    code, out, _ = run(capsys, "rules", "--json")
    assert code == 0 and tune.loads(out, "built-in") == tune.BUILT_IN
    path = tmp_path / "mine.json"
    path.write_text(out)
    out = run(capsys, "rules", str(path), "--nodes", "2x4")[1]
    assert f"{path}, line " in out and "layout=shm" not in out and "layout=net mixed" in out


def test_matrix_has_a_row_for_every_algorithm_and_protocol(capsys):
    code, out, _ = run(capsys, "matrix", "--nodes", "2x2")
    assert code == 0 and out.startswith("4 ranks on 2 nodes (mixed)")
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("  ")]
    assert sorted(rows) == sorted(
        [entry.name, protocol] for entry in algorithms.all_algorithms() for protocol in tune.PROTOCOLS
    )
    assert out.count("*") == 1 + 8 * 8 + 1  # the legend; a choice for each size, and barrier's


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "words_of_the_error"),
    [
        (["verify", "rng", "-n", "4"], ["unknown all_reduce algorithm 'rng'", "did you mean 'ring'", "two_shot"]),
        (["verify", "ring:segmnts=4"], ["segmnts=4", "segments=1..1024"]),
        (["verify", "ring", "-n", "8..4"], ["'8..4'", "1..64"]),
        (["verify", "ring", "-n", "x"], ["'x'", "ranks"]),
        (["verify"], ["--all"]),
        (["verify", "ring", "--mode", "fast"], ["'fast'", "fingerprint"]),
        (["verify", "binomial", "-c", "broadcast", "-r", "9"], ["root=9", "0..7"]),
        (["draw", "ring", "--program", "7"], ["--program 7", "0 to 3"]),
        (["draw", "ring", "-c", "all_gater"], ["unknown collective 'all_gater'", "did you mean 'all_gather'"]),
        (["draw", "ring", "-n", "100", "--svg", "x.svg"], ["at most 4096 can be drawn"]),
        (["explain", "all_reduce", "1T"], ["'1T' is not a size", "K, M or G"]),
        (["explain", "all_reduce", "1M", "--nodes", "2y4"], ["2y4", "2x4"]),
        (["explain", "all_reduce", "1M", "--rules", "/nowhere"], ["cannot read /nowhere", "No such file"]),
        (["explain", "all_reduce", "1M", "--wire", "int9"], ["int9", "bf16"]),
        (["rules", "/nowhere"], ["cannot read /nowhere", "No such file"]),
        (["explain", "all_reduce", "1M", "--nodes", "2x4", "-n", "9"], ["8 ranks", "-n says 9"]),
        (["bench", "--op", "allreduc"], ["unknown collective 'allreduc'", "did you mean 'all_reduce'"]),
        (["bench", "--algorithm", "rign"], ["unknown all_reduce algorithm 'rign'", "did you mean 'ring'"]),
        (["bench", "-d", "floot"], ["unknown data type 'floot'", "did you mean 'float'", "bfloat16"]),
        (["bench", "-o", "summ"], ["unknown reduction 'summ'", "did you mean 'sum'"]),
        (["bench", "-d", "float", "-o", "bxor"], ["bxor is not offered for float32"]),
        (["bench", "--vs", "nccl"], ["unknown library to compare with 'nccl'", "gloo"]),
        (["bench", "--vs", "gloo", "-d", "uint16"], ["Gloo does not offer uint16"]),
        (["bench", "--transport", "rdma"], ["unknown transport 'rdma'", "auto, shm, tcp"]),
        (["bench", "--memory", "pinned"], ["unknown kind of memory 'pinned'"]),
        (["bench", "-b", "1M", "-e", "1K"], ["1048576 bytes, is above the largest, 1024"]),
        (["bench", "-f", "1"], ["step factor is 1"]),
        (["bench", "--root", "2"], ["--root 2", "0 to 1"]),
        (["bench", "--plot", "/nowhere/x.png"], ["/nowhere/x.png", "does not exist"]),
        (["bench", "--plot", "x.xls"], ["'.xls'", "png"]),
        (["bench", "--json", "/nowhere/x.json"], ["/nowhere/x.json", "does not exist"]),
        (["bench", "--iters", "many"], ["--iters", "integer"]),
        (["bench", "--nonsense"], ["--nonsense"]),
        (["benhc"], ["benhc"]),
    ],
)
def test_wrong_arguments_are_one_clear_line(capsys, arguments, words_of_the_error):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == "" and "Traceback" not in err
    assert err.startswith("ringleader: ") and len(err.splitlines()) == 1
    for word in words_of_the_error:
        assert word in err


def test_bench_refuses_ranks_under_a_launcher(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29511")
    code, _, err = run(capsys, "bench", "--ranks", "2")
    assert code == 2
    assert "one of 4 ranks (torchrun variables (RANK, WORLD_SIZE))" in err


def test_a_misspelt_variable_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("RINGLEADER_ALGOO", "ring")
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "did you mean RINGLEADER_ALGO?" in out


def test_without_the_extra_it_says_what_to_install(capsys, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "rich" else there(name, *a))
    code, _, err = run(capsys, "algorithms")
    assert code == 2
    assert "pip install rich" in err and "pip install '.[cli]'" in err and "rich" in err


def test_help_and_version(capsys):
    assert run(capsys, "--version")[1].startswith("ringleader ")
    code, out, _ = run(capsys, "bench", "--help")
    assert code == 0 and all(option in out for option in ("--minbytes", "--vs", "--json", "--persistent"))


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "ringleader", "verify", "ring", "-n", "2"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0 and "1 proved, 0 wrong" in done.stdout


# --------------------------------------------------------------------------------------- sizes, patterns, table


def test_sizes():
    assert words.size_steps(8, 8, 2, 0) == [8]
    assert words.size_steps(1, 4, 1.1, 0) == [1, 2, 3, 4]
    assert words.size_steps(1 << 20, 3 << 20, 2, 1 << 20) == [1 << 20, 2 << 20, 3 << 20]
    with pytest.raises(InvalidArgument, match="expected more than 1"):
        words.size_steps(1, 4, 1, 0)
    for bad in ("", "-1", "1.5.2", "K"):
        with pytest.raises(InvalidArgument, match="not a size"):
            words.parse_size(bad)


def _as_numbers(kind, array):
    if kind.name == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array


def _combined(kind, op, vectors):
    """The reduction in the type itself, rank by rank in the order given: any order has to give the same."""
    total = _as_numbers(kind, vectors[0]).copy()
    steps = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    steps |= {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    for vector in vectors[1:]:
        total = steps[op](total, _as_numbers(kind, vector)).astype(total.dtype)
        if kind.name == "bfloat16":  # 8 significant bits: every partial result has to be one of these
            bits = total.astype(np.float32).view(np.uint32)
            assert not (bits & 0xFFFF).any()
    if op != "avg":
        return total
    return (
        total.real / len(vectors) + 1j * (total.imag / len(vectors))
        if kind.storage.kind == "c"
        else total / len(vectors)
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", [name for name in DTYPES if name != "bool"])
def test_patterns_are_exact_in_every_order(name, op):
    kind = kind_of(name)
    try:
        check_pair(kind, op)
    except UnsupportedType:
        return
    for n in (1, 2, 3, 8, 17, 100, 300):
        patterns = Patterns(kind, op, n)
        vectors = [np.zeros(1500, kind.storage) for _ in range(n)]
        for rank, vector in enumerate(vectors):
            patterns.fill(vector, [Segment(rank, 10, 1500)])
        expected = np.zeros(1500, kind.storage)
        patterns.fill(expected, [Segment(REDUCED, 10, 1500)])
        wanted = _as_numbers(kind, expected)
        shuffled = [vectors[i] for i in np.random.default_rng(n).permutation(n)]
        with np.errstate(all="raise"):
            for order in (vectors, vectors[::-1], shuffled):
                np.testing.assert_array_equal(_combined(kind, op, order), wanted)
        if 1 < n <= 17:  # they differ from rank to rank and from element to element
            assert len({vector.tobytes() for vector in vectors}) > 1
            assert len(set(vectors[0].tolist())) > 1


def test_patterns_notice_what_is_wrong():
    for dtype, op in (("float32", "sum"), ("int8", "prod"), ("bfloat16", "max"), ("float64", "avg"), ("bool", "sum")):
        patterns = Patterns(kind_of(dtype), op, 3)
        vector = np.zeros(5000, kind_of(dtype).storage)
        patterns.fill(vector, [Segment(REDUCED, 0, 5000)])
        assert patterns.wrong(vector, [Segment(REDUCED, 0, 5000)]) == 0
        for shift in (1, 16, 512, PERIOD - 1):  # a chunk in the wrong place
            assert patterns.wrong(np.roll(vector, shift), [Segment(REDUCED, 0, 5000)]) > 100
        vector[4321] = vector[4321] == 0
        assert patterns.wrong(vector, [Segment(REDUCED, 0, 5000)]) == 1


@pytest.mark.parametrize("collective", list(Collective))
def test_operands_cover_what_the_collective_says(collective):
    """The segments of input and result have the sizes that the collective prescribes."""
    n, count, root = 3, 7, 1
    kind = kind_of("int32")
    total = count * (n if collective.blocked else 1)
    for in_place in operands.places(collective):
        for rank in range(n):
            buffers = operands.Buffers.make(kind, total, registered=False)
            given = operands.operands(collective, in_place, buffers, count, rank, n, root)
            if given.x is not None:
                assert sum(s.length for s in given.inputs) == len(given.x)
            if given.result is not None:
                assert sum(s.length for s in given.expected) == len(given.result)
            overlap = given.x is not None and given.out is not None and np.shares_memory(given.x, given.out)
            rooted_elsewhere = collective in (Collective.GATHER, Collective.SCATTER) and rank != root
            if given.x is not None and given.out is not None:
                assert overlap == (in_place and not rooted_elsewhere)


def _result(collective: str, n: int, microseconds: float) -> Result:
    timing = Timing(microseconds, microseconds, microseconds, microseconds, microseconds, microseconds, 10)
    measured = Measured(Contestant(in_place=False), timing, 0, "ring", "push", 1, "")
    return Result(collective, "float32", "sum", -1, n, 1 << 20, 1 << 18, (measured,))


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)],
)
def test_bandwidths_are_those_of_nccl_tests(collective, factor):
    algorithm, bus = table.bandwidths(_result(collective, 4, 100.0), 100.0)
    assert algorithm == pytest.approx((1 << 20) / 100e-6 / 1e9)
    assert bus == pytest.approx(factor * algorithm)


def test_rows_line_up_with_the_header():
    result = _result("all_reduce", 4, 123456.7)
    for columns in (table.Columns(False, False), table.Columns(True, True)):
        head = table.header(columns)[1]
        row = table.row(result, result.measured[0], None, None, columns)
        assert row.split()[:5] == ["1048576", "262144", "float", "sum", "-1"]
        assert row.split()[9:13] == ["N/A"] * 4
        for word in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"):
            assert row[head.index(word) + len(word) - 1] != " "
