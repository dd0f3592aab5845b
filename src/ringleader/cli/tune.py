"""``ringleader tune``: measures, and writes the table that every start of this machine reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from ringleader import _core
from ringleader.cli.drive import ranks_of_job
from ringleader.cli.words import collective_name, format_size
from ringleader.cli.worlds import JobWorld, LocalWorlds
from ringleader.errors import InvalidArgument
from ringleader.runtime.config import Config
from ringleader.runtime.tuning import fingerprint
from ringleader.tune import table
from ringleader.tune.place import Place, parse_places
from ringleader.tune.table import Table
from ringleader.tune.tuner import COLLECTIVES, SIZES, Point, Settings, Tuner, Tuning, rules_of

__all__ = ["LOCAL_RANKS", "Request", "make_request", "run_tune", "table_of", "tune_places"]

LOCAL_RANKS = range(2, 9)
_SHOWN = 12
_LEAST_BUDGET = 1.0
_BUSY = 0.5  # load per core


@dataclass(frozen=True)
class Request:
    """What the command line asks for. `places` is None in a job: its own layout."""

    places: tuple[Place, ...] | None
    collectives: tuple[str, ...]
    budget: float
    path: Path
    keep: bool
    report: Path | None


def make_request(
    budget: float, places: str | None, collectives: str | None, output: Path | None, keep: bool, report: Path | None
) -> Request:
    """Check the options.

    Raises
    ------
    InvalidArgument
        One is wrong, or does not fit the job that this process is in.
    """
    if not budget >= _LEAST_BUDGET:
        raise InvalidArgument(f"--budget {budget:g}: expected at least {_LEAST_BUDGET:g} seconds")
    job = ranks_of_job(None)
    if job is not None and places is not None:
        raise InvalidArgument(
            f"--places starts local ranks, but this process was launched as one of {job} ranks, whose layout is tuned; "
            "leave --places out"
        )
    chosen = None
    if job is None:
        both = [Place.local(n, transport) for transport in ("shm", "tcp") for n in LOCAL_RANKS]
        chosen = tuple(both if places is None else parse_places(places))
        if {"tcp", "ucx"} <= {place.transport for place in chosen}:
            raise InvalidArgument(f"--places {places}: tcp and ucx are fitted apart; tune one, then the other --keep")
    names = COLLECTIVES if collectives is None else tuple(map(collective_name, collectives.split(",")))
    if "barrier" in names:
        raise InvalidArgument("--collectives barrier: it has no sizes to tune; leave it out")
    if report is not None:
        from ringleader.cli.tune_report import check_report

        check_report(report)
    path = output if output is not None else _default_path()
    return Request(chosen, names, budget, path, keep, report)


def _default_path() -> Path:
    named = Config.from_environment().tuning_file
    return table.default_path(fingerprint()) if named in (None, "none") else Path(str(named))


def run_tune(request: Request, console: Console) -> int:
    """Tune, write, and say what was found. Returns the exit code."""
    if request.places is None:
        with JobWorld() as world:
            if not world.leader:
                world.follow()
                return 0
            tuning = _tune(world, [world.place], request, console)
    else:
        with LocalWorlds(max(place.ranks for place in request.places)) as worlds:
            tuning = _tune(worlds, request.places, request, console)
    made = table_of(tuning, str(request.path))
    if request.keep or request.places is None:
        made = _merged(made, request.path, console)
    table.save(made, request.path)
    _say(tuning, made, request, console)
    if request.report is not None:
        from ringleader.cli.tune_report import write_report

        for path in write_report(request.report, tuning):
            console.print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)
    return 0


def _warn_if_busy(console: Console) -> None:
    load, cores = os.getloadavg()[0], _core.usable_cores()
    if load > _BUSY * cores:
        console.print(
            f"[yellow]The machine is busy (load {load:.1f} on {cores} cores), which what is measured now depends on. "
            "Tune again when it is quiet.[/yellow]",
            highlight=False,
        )


def _tune(world: JobWorld | LocalWorlds, places: Sequence[Place], request: Request, console: Console) -> Tuning:
    _warn_if_busy(console)
    settings = Settings(tuple(places), request.budget, SIZES, request.collectives, _core.usable_cores())
    return tune_places(world, settings, console)


def tune_places(world: JobWorld | LocalWorlds, settings: Settings, console: Console) -> Tuning:
    """Run the tuner with a progress bar."""
    columns = (TextColumn("tuning"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=1.0)

        def show(share: float, text: str) -> None:
            progress.update(task, completed=min(share, 1.0), description=escape(text))

        return Tuner(world, settings, show).run()


def table_of(tuning: Tuning, source: str) -> Table:
    """The table for what was found in places of one link."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    place = next((p.place for p in tuning.points if p.place.net != "tcp"), tuning.points[0].place)
    rules = {table.link(place.hosts, place.net): rules_of(tuning.points, source)}
    return Table(fingerprint(), tuning.model, tuning.errors, rules, now)


def _merged(made: Table, path: Path, console: Console) -> Table:
    """With the rules of an older table for other jobs."""
    if not path.exists():
        return made
    try:
        return table.merge(made, table.load(path))
    except InvalidArgument as error:
        console.print(f"[yellow]the old table is replaced: {escape(str(error))}[/yellow]", soft_wrap=True)
        return made


def _say(tuning: Tuning, made: Table, request: Request, console: Console) -> None:
    measured = [point for point in tuning.points if point.times]
    console.print(
        f"{len(measured)} of {len(tuning.points)} requests were measured in {tuning.seconds:.0f} s, the others are "
        f"expected from them.\nCost model against measurements it had not seen: {tuning.errors}.",
        highlight=False,
    )
    gains = sorted(((_gain(point), point) for point in measured if _gain(point) > 1), key=lambda pair: -pair[0])
    if gains:
        grid = Grid(
            box=box.SIMPLE_HEAD, pad_edge=False, title="where the built-in choice was slowest", title_justify="left"
        )
        for column in ("ranks", "collective", "size", "tuned", "us", "built-in", "us", "faster"):
            grid.add_column(column, justify="right" if column in ("size", "us", "faster") else "left")
        for gain, point in gains[:_SHOWN]:
            chosen, built_in = point.times[point.chosen], point.times[point.built_in]
            grid.add_row(
                str(point.place), point.collective, format_size(point.nbytes), point.chosen.name, f"{chosen * 1e6:.1f}",
                point.built_in.name, f"{built_in * 1e6:.1f}", f"{gain:.2f}x",
            )  # fmt: skip
        console.print(grid)
    number = sum(len(rules.rules) for rules in made.rules.values())
    console.print(f"wrote {number} rules to {escape(str(request.path))}", highlight=False, soft_wrap=True)


def _gain(point: Point) -> float:
    """Built-in time over tuned time, as measured in the race; 1 where they are the same."""
    if point.chosen not in point.times or point.built_in not in point.times:
        return 1.0
    return point.times[point.built_in] / point.times[point.chosen]
