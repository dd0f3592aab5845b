"""``ringleader bench``: times of a collective over sizes, in the table of nccl-tests."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ringleader import __version__
from ringleader.cli import table
from ringleader.cli.drive import Ranks, open_ranks, ranks_of_job
from ringleader.cli.gloo import check_gloo, gloo_in_place
from ringleader.cli.machine import Machine, MachineState
from ringleader.cli.measure import Contestant, Measured, Point, Result, Setup
from ringleader.cli.operands import places
from ringleader.cli.patterns import OPS, check_pair, kind_of, require_torch
from ringleader.cli.plot import Series, check_plot, plot_times
from ringleader.cli.system import system_info
from ringleader.cli.words import algorithm_specs, collective_name, one_of, size_steps
from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective

__all__ = ["FORMAT", "Request", "run_bench"]

FORMAT = 1
"""Version of the format of ``--json``, see bench.schema.json."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for, as words; `check` makes sense of them."""

    collective: str
    sizes: Sequence[int]
    step: str
    dtypes: Sequence[str]
    ops: Sequence[str]
    root: int
    algorithms: Sequence[str | None]
    memory: str
    persistent: bool
    gloo: bool
    show_algorithm: bool
    ranks: int | None
    setup: Setup
    timing: dict[str, Any]
    json_path: Path | None = None
    plot_path: Path | None = None


def make_request(
    *,
    collective: str,
    limits: tuple[int, int, float, int],
    dtype: str,
    op: str,
    root: int,
    algorithm: str | None,
    transport: str,
    protocol: str,
    memory: str,
    versus: str | None,
    ranks: int | None,
    **rest: Any,
) -> Request:
    """Check every word before the first process starts.

    Raises
    ------
    InvalidArgument, UnsupportedType
        Naming the word, what is valid, and the nearest valid one.
    """
    name = collective_name(collective)
    kind = Collective(name)
    gloo = versus is not None and one_of(versus, ("gloo",), "library to compare with") == "gloo"
    everything = "all"
    dtypes = ["float32"] if name == "barrier" else [kind_of(word).name for word in dtype.split(",")]
    reducing = kind.reduces and name != "barrier"
    ops = ["sum"]
    if reducing:
        ops = [o for word in op.split(",") for o in (OPS if word == everything else (one_of(word, OPS, "reduction"),))]
    pairs = [(d, o) for d in dtypes for o in ops]
    for word, operator in pairs if reducing and op != everything else ():
        check_pair(kind_of(word), operator)
    for word, operator in pairs if gloo else ():
        check_gloo(name, word, operator)
    if gloo or "bfloat16" in dtypes:
        require_torch()
    size = ranks_of_job(ranks) or (2 if ranks is None else ranks)
    if not 1 <= size <= 1024:
        raise InvalidArgument(f"--ranks {size}: expected 1 to 1024")
    if not 0 <= root < size:
        raise InvalidArgument(f"--root {root}: expected a rank from 0 to {size - 1}")
    specs = [None] if algorithm is None else algorithm_specs(name, algorithm)
    least, most, factor, step = limits
    setup = Setup(
        one_of(transport, ("auto", "shm", "tcp", "ucx"), "transport"),
        one_of(protocol, ("auto", "push", "pull"), "protocol"),
        gloo,
    )
    return Request(
        collective=name,
        sizes=[0] if name == "barrier" else size_steps(least, most, factor, step),
        step=f"{step}(bytes)" if step else f"{factor:g}(factor)",
        dtypes=dtypes,
        ops=ops,
        root=root,
        algorithms=specs,
        memory=one_of(memory, ("plain", "registered"), "kind of memory"),
        gloo=gloo,
        ranks=ranks,
        setup=setup,
        **rest,
    )


@dataclass
class _Report:
    """What has been measured so far, and what is made of it at the end."""

    request: Request
    ranks: list[dict[str, Any]]
    states: list[MachineState] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @property
    def _own(self) -> Iterator[tuple[Result, Measured]]:
        for result in self.results:
            for measured in result.measured:
                if measured.contestant.library == "ringleader":
                    yield result, measured

    @property
    def wrong(self) -> int:
        """Wrong elements, of all contestants."""
        return sum(measured.wrong or 0 for result in self.results for measured in result.measured)

    @property
    def average_bus(self) -> float:
        """Mean bus bandwidth of all of Ringleader's measurements, GB/s."""
        rates = [table.bandwidths(result, measured.timing.median)[1] for result, measured in self._own]
        return sum(rates) / len(rates) if rates else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything, in the format of bench.schema.json."""
        results = []
        for result in self.results:
            entry = asdict(result)
            for measured, plain in zip(result.measured, entry["measured"], strict=True):
                rates = table.bandwidths(result, measured.timing.median)
                plain["algbw_gbs"], plain["busbw_gbs"] = rates
            results.append(entry)
        states = [
            {"flag_us": s.flag_us if s.flag_us == s.flag_us else None, "copy_gbs": s.copy_gbs} for s in self.states
        ]
        return {
            "format": FORMAT,
            "ringleader": __version__,
            "system": system_info(),
            "machine": states,
            "ranks": self.ranks,
            "settings": {**self.request.timing, **asdict(self.request.setup), "memory": self.request.memory},
            "results": results,
            "out_of_bounds": self.wrong,
            "average_busbw_gbs": self.average_bus,
        }

    def series(self) -> list[Series]:
        """Lines for the plot: each way to run it, over sizes."""
        lines: dict[str, list[tuple[int, float]]] = {}
        several = len({(r.dtype, r.op) for r in self.results}) > 1
        for result in self.results:
            for measured in result.measured:
                contestant = measured.contestant
                label = "Gloo" if contestant.library == "gloo" else contestant.algorithm or "Ringleader"
                if len(places(Collective(result.collective))) > 1 and contestant.library != "gloo":
                    label += ", in place" if contestant.in_place else ", out of place"
                label += f", {result.dtype} {result.op}" if several else ""
                lines.setdefault(label, []).append((result.nbytes, measured.timing.median))
        drawn = []
        for label, points in lines.items():
            style = {"color": "black", "linestyle": "--"} if label.startswith("Gloo") else {}
            drawn.append(Series(label, [p[0] for p in points], [p[1] for p in points], style))
        return drawn


def run_bench(request: Request, write: Callable[[str], None]) -> int:
    """Measure and print; the number of wrong elements decides the exit code, 0 or 1."""
    for path in (request.json_path, request.plot_path):
        if path is not None and not path.resolve().parent.is_dir():
            raise InvalidArgument(f"{path}: its directory does not exist")
    if request.plot_path is not None:
        check_plot(request.plot_path)
        if request.collective == Collective.BARRIER:
            raise InvalidArgument("--plot draws time over size, and a barrier has no size; leave one of them out")
    ranks = open_ranks(request.setup, request.ranks)
    try:
        if ranks.leader:
            with Machine() as machine:
                report = _measure_all(request, ranks, write, machine)
        else:
            report = _measure_all(request, ranks, lambda line: None, None)
    except BaseException:
        ranks.abandon()
        raise
    ranks.close()
    if ranks.leader:
        if request.json_path is not None:
            request.json_path.write_text(json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n")
        if request.plot_path is not None:
            kind = ", ".join(dict.fromkeys(f"{r.dtype} {r.op}" for r in report.results))
            plot_times(request.plot_path, report.series(), f"{request.collective}, {ranks.size} ranks, {kind}")
    return 1 if report.wrong else 0


def _points(request: Request) -> list[Point]:
    kind = Collective(request.collective)
    ways = places(kind)
    registered = request.memory == "registered"
    contestants = [
        Contestant("ringleader", spec, way, registered, request.persistent)
        for spec in request.algorithms
        for way in ways
    ]
    if request.gloo:
        contestants.append(Contestant("gloo", None, gloo_in_place(request.collective)))
    points = []
    for dtype in request.dtypes:
        for op in request.ops:
            if len(request.ops) > 1 and not _offered(dtype, op):
                continue
            points += [
                Point(
                    request.collective,
                    size,
                    tuple(contestants),
                    dtype=dtype,
                    op=op,
                    root=request.root,
                    **request.timing,
                )
                for size in request.sizes
            ]
    return points


def _offered(dtype: str, op: str) -> bool:
    try:
        check_pair(kind_of(dtype), op)
    except TypeError:
        return False
    return True


def _measure_all(request: Request, ranks: Ranks, write: Callable[[str], None], machine: Machine | None) -> _Report:
    points = _points(request)
    report = _Report(request, ranks.ranks())
    columns = table.Columns(request.show_algorithm or request.algorithms != [None], request.gloo)
    lines = [*table.settings(points[0], request.sizes, ranks.size, request.step), "#", *table.using(report.ranks)]
    if machine is not None:
        report.states.append(machine.state())
        lines.append(f"# Machine before: {report.states[0]}")
    for line in [*lines, "#", *table.header(columns)]:
        write(line)
    with _progress(points, machine is not None) as advance:
        for point in points:
            result = ranks.measure(point)
            report.results.append(result)
            for line in _rows(request, result, columns):
                write(line)
            advance()
    if machine is not None:
        report.states.append(machine.state())
        write(f"# Machine after: {report.states[-1]}")
    for line in table.trailer(report.wrong, report.average_bus, bool(request.timing["check"])):
        write(line)
    return report


def _rows(request: Request, result: Result, columns: table.Columns) -> list[str]:
    """One row for each algorithm."""
    gloo = next((m for m in result.measured if m.contestant.library == "gloo"), None)
    rows = []
    for spec in request.algorithms:
        ours = [m for m in result.measured if m.contestant.library != "gloo" and m.contestant.algorithm == spec]
        sides = {m.contestant.in_place: m for m in ours}
        rows.append(table.row(result, sides.get(False), sides.get(True), gloo, columns))
    return rows


@contextlib.contextmanager
def _progress(points: Sequence[Point], wanted: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import Progress

    from ringleader.cli.output import console

    # Lines of the table have to go to standard output, also while the bar is drawn; they pass through the bar's
    # console only where both are the same terminal.
    with Progress(
        console=console(stderr=True, wide=False), transient=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task(points[0].collective, total=len(points))
        yield lambda: progress.advance(task)
