"""``verify``, ``algorithms``, ``draw`` and ``export``: what can be done with an algorithm without running it."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringleader import algorithms
from ringleader._names import unknown
from ringleader.cli.words import algorithm_specs, collective_name, one_of, parse_range
from ringleader.errors import InvalidArgument
from ringleader.schedule import Collective, Report, to_json, verify
from ringleader.schedule.draw import draw_svg, draw_text
from ringleader.schedule.formats import msccl
from ringleader.schedule.lower import lower

__all__ = ["draw", "export", "list_algorithms", "parse_nodes", "verify_all"]


def parse_nodes(text: str | None, n: int | None) -> list[int]:
    """Node of each rank from ``2x4`` (2 nodes of 4 ranks) or ``0,0,1,1``; None: all `n` ranks on one node.

    Raises
    ------
    InvalidArgument
        Neither form, or not `n` ranks.

    Examples
    --------
    >>> parse_nodes("2x3", None), parse_nodes(None, 2)
    ([0, 0, 0, 1, 1, 1], [0, 0])
    """
    if text is None:
        return [0] * (2 if n is None else n)
    nodes, times, each = text.lower().partition("x")
    if times and nodes.isdigit() and each.isdigit() and int(nodes) * int(each) > 0:
        layout = [rank // int(each) for rank in range(int(nodes) * int(each))]
    elif all(part.strip().isdigit() for part in text.split(",")):
        layout = [int(part) for part in text.split(",")]
    else:
        raise InvalidArgument(
            f"--nodes {text!r}: expected nodes x ranks of each, as in 2x4, or every rank's node, 0,0,1,1"
        )
    if n is not None and len(layout) != n:
        raise InvalidArgument(f"--nodes {text!r} is a layout of {len(layout)} ranks, but -n says {n}")
    return layout


# ---------------------------------------------------------------------------------------------------- algorithms


def list_algorithms(console: Console, collective: str | None) -> None:
    """The registry as a table."""
    wanted = None if collective is None else collective_name(collective)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (
        "collective",
        "name",
        "parameters",
        "cost (steps; bytes of the busiest rank)",
        "what it is",
        "reference",
    ):
        table.add_column(column, overflow="fold")
    previous = ""
    for entry in algorithms.all_algorithms():
        if wanted not in (None, entry.collective):
            continue
        names = ", ".join((entry.name, *entry.aliases))
        parameters = "\n".join(f"{p.name}={p.values}" for p in entry.parameters)
        shown = entry.collective if entry.collective != previous else ""
        previous = entry.collective
        table.add_row(*map(escape, (shown, names, parameters, entry.cost, entry.summary, entry.reference)))
    console.print(table)


# -------------------------------------------------------------------------------------------------------- verify


def verify_all(
    console: Console,
    name: str | None,
    ranks: str,
    collective: str | None,
    everything: bool,
    nodes: str | None,
    root: int,
    mode: str,
) -> int:
    """Prove schedules and their programs; one row each. Returns the exit code: 1 if anything is wrong."""
    if everything == (name is not None):
        raise InvalidArgument("give the name of an algorithm, or --all" + (", not both" if everything else ""))
    mode = one_of(mode, ("auto", "exact", "fingerprint"), "mode")
    sizes = parse_range(ranks, "ranks")
    if nodes is not None and len(sizes) > 1:
        raise InvalidArgument(f"--nodes is a layout of one number of ranks, but -n {ranks} are {len(sizes)}")
    pairs = _named(name, collective)
    for kind, spec in pairs:
        algorithms.check(kind, spec, min(sizes), root if Collective(kind).rooted else 0)
    console.print(
        f"{'collective':15}{'algorithm':28}{'n':>5}{'steps':>7}{'transfers':>11}{'instructions':>14}{'bytes':>9}"
        f"{'x bound':>9}  {'mode':12}result",
        style="bold",
    )
    wrong = proved = 0
    for kind, spec in pairs:
        for n in sizes:
            layout = None if nodes is None else parse_nodes(nodes, n)
            schedule = algorithms.build(kind, spec, n, root if Collective(kind).rooted else 0, layout)
            report = verify(schedule, layout, mode=mode)  # type: ignore[arg-type]
            _print_report(console, kind, spec, report)
            wrong += not report.ok
            proved += report.ok
    console.print(f"{proved} proved, {wrong} wrong", style="bold red" if wrong else "bold green")
    return 1 if wrong else 0


def _named(name: str | None, collective: str | None) -> list[tuple[str, str]]:
    """Pairs of collective and spec."""
    wanted = None if collective is None else collective_name(collective)
    if name is None:
        return [(e.collective, e.name) for e in algorithms.all_algorithms() if wanted in (None, e.collective)]
    if "/" in name:  # as in `algorithms`: all_reduce/ring
        prefix, _, name = name.partition("/")
        wanted = collective_name(prefix)
    kind = wanted or _home(name)
    return [(kind, spec) for spec in algorithm_specs(kind, name)]


def _home(name: str) -> str:
    """The first collective that has such an algorithm; for an unknown name all_reduce, which the error then names."""
    plain = algorithms.name_of(name).lower()
    for entry in algorithms.all_algorithms():
        if plain == entry.name or plain in entry.aliases:
            return entry.collective
    return Collective.ALL_REDUCE.value


def _print_report(console: Console, kind: str, spec: str, report: Report) -> None:
    instructions = max(report.instructions.values(), default=0)
    ratio = f"{report.ratio:9.3f}" if report.lower_bound else f"{'-':>9}"
    verdict = "[green]proved[/green]" if report.ok else "[red]WRONG[/red]"
    busiest = max(report.max_sent, report.max_received)
    console.print(
        f"{kind:15}{escape(spec):28}{report.schedule.n:5d}{report.steps:7d}{report.transfers:11d}{instructions:14d}"
        f"{busiest:9.3f}{ratio}  {report.mode:12}{verdict}",
        highlight=False,
    )
    for violation in report.violations:
        console.print(f"  - {escape(violation)}", highlight=False, soft_wrap=True)


# ----------------------------------------------------------------------------------------------------------- draw


def export(console: Console, name: str, n: int, collective: str | None, root: int, output: Path, protocol: str) -> None:
    """A schedule as a file: MSCCL's XML, or JSON."""
    if output.suffix not in (".xml", ".json"):
        raise InvalidArgument(
            f"--output {str(output)!r} is of no known kind; known are: MSCCL (.xml), a schedule (.json)"
        )
    for kind, spec in _named(name, collective):
        schedule = algorithms.build(kind, spec, n, root)
        if output.suffix == ".xml":
            text = msccl.dumps(schedule, protocol=one_of(protocol, msccl.PROTOCOLS, "protocol"))
        else:
            text = to_json(schedule)
        output.write_text(text)
        console.print(f"{escape(str(output))}: {kind} {spec}, {n} ranks", highlight=False, soft_wrap=True)


def draw(
    console: Console, name: str, n: int, collective: str | None, root: int, svg: Path | None, program: int | None,
    nodes: str | None, push: bool,
) -> None:  # fmt: skip
    """A schedule as text or SVG, or the program that one rank runs."""
    layout = parse_nodes(nodes, n)
    for kind, spec in _named(name, collective):
        schedule = algorithms.build(kind, spec, n, root, None if nodes is None else layout)
        if program is not None:
            if not 0 <= program < n:
                raise InvalidArgument(f"--program {program}: expected a rank from 0 to {n - 1}")
            text = lower(schedule, layout, push=push).text(program)
            console.print(f"{kind} {spec}, rank {program} of {n}", style="bold", highlight=False)
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif svg is not None:
            if svg.suffix.lower() != ".svg":
                raise InvalidArgument(f"--svg {str(svg)!r}: {unknown('kind of picture', svg.suffix, ['.svg'])}")
            svg.write_text(draw_svg(schedule))
            console.print(f"{escape(str(svg))}: {kind} {spec}, {n} ranks", highlight=False, soft_wrap=True)
        else:
            text = draw_text(schedule, max(console.width, 40))
            console.print(text, highlight=False, markup=False, soft_wrap=True)
