"""``ringleader trace``: the time line of a job, from the recordings of its ranks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringleader.cli.output import console
from ringleader.cli.words import format_size
from ringleader.errors import InvalidArgument
from ringleader.runtime.flight.diagnosis import latest_job
from ringleader.runtime.flight.records import read_recordings
from ringleader.runtime.flight.timeline import align, summarize, write_trace

__all__ = ["app"]

app = typer.Typer(help="Show a job's time line: RINGLEADER_TRACE records it.", no_args_is_help=True)

_Folder = Annotated[Path, typer.Argument(help="The folder that RINGLEADER_TRACE, or RINGLEADER_RECORDER_DIR, named.")]


@app.command()
def merge(
    folder: _Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write it here.")] = Path("trace.json"),
) -> None:
    """Put the ranks of the latest job into one file for ui.perfetto.dev, with their clocks aligned."""
    recordings = latest_job(read_recordings(folder))
    try:
        events = write_trace(recordings, output)
    except OSError as error:
        raise InvalidArgument(f"cannot write {output}: {error.strerror}") from None
    ranks = len({each.members[each.rank] for each in recordings})
    print(f"wrote {output}: {events} events of {ranks} ranks")


@app.command()
def summary(
    folder: _Folder,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead.")] = False,
) -> None:
    """Show what each rank of the latest job did with its time, and which ones the others waited for."""
    recordings = latest_job(read_recordings(folder))
    ranks, clocks = summarize(recordings), align(recordings)
    if as_json:
        facts = {
            "ranks": [dataclasses.asdict(each) for each in ranks],
            "clocks": {host: dataclasses.asdict(clock) for host, clock in clocks.items()},
        }
        print(json.dumps(facts, indent=1))
        return
    table = Table(title=f"{len(ranks)} ranks, the last {max((each.span for each in ranks), default=0.0):.3f} s")
    for heading in ("rank", "operations", "data", "in collectives", "waiting", "was last", "waited for"):
        table.add_column(heading, justify="right")
    for each in ranks:
        share = each.inside / each.span if each.span else 0.0
        table.add_row(
            f"{each.rank}" + ("" if each.aligned else " (clock?)"),
            f"{each.operations}",
            format_size(each.nbytes),
            f"{each.inside:.3f} s, {share:.0%}",
            f"{each.waiting:.3f} s",
            f"{each.last}",
            f"{each.awaited:.3f} s",
        )
    console().print(table)
    for host, clock in clocks.items():
        if clock.uncertainty is None:
            text = f"{host}: its clock could not be aligned: no operation was recorded with a host whose clock was"
        else:
            text = (
                f"{host}: {clock.offset * 1e3:+.3f} ms, {clock.drift * 1e6:+.2f} ppm, "
                f"within {clock.uncertainty * 1e6:.0f} us"
            )
        console().print(text, highlight=False, markup=False, soft_wrap=True)
