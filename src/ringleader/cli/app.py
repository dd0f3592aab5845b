"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ringleader import __version__
from ringleader.cli.bench import make_request, run_bench
from ringleader.cli.words import parse_size

__all__ = ["app"]

app = typer.Typer(
    name="ringleader",
    help="Collectives for distributed deep learning: measure, prove, draw and explain them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ringleader {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _write(line: str) -> None:
    print(line, flush=True)


_HOW_LONG = "How long"
_WHAT = "What is measured"
_OUTPUT = "Output"


@app.command()
def bench(
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size, with K, M or G.")] = "8",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "64M",
    stepfactor: Annotated[float, typer.Option("-f", "--stepfactor", help="Each size is so many times the last.")] = 2.0,
    stepbytes: Annotated[str, typer.Option("-i", "--stepbytes", help="Instead: so many bytes more than the last.")] = "0",
    iters: Annotated[
        int, typer.Option("-n", "--iters", min=0, help="Iterations; 0: as many as fit in --seconds.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time for each number, with -n 0.")] = 0.2,
    warmup: Annotated[int, typer.Option("-w", "--warmup-iters", "--warmup", min=0, help="Before each block.")] = 2,
    blocks: Annotated[int, typer.Option(min=1, help="What is compared is measured in so many alternating blocks.")] = 5,
    agg: Annotated[
        int, typer.Option("-m", "--agg-iters", min=1, help="Operations in flight at once; time is per operation.")
    ] = 1,
    op: Annotated[str, typer.Option("--op", help="Collective.")] = "all_reduce",
    datatype: Annotated[str, typer.Option("-d", "--datatype", help="float, half, bfloat16, int32, ...; a list.")] = "float",
    redop: Annotated[str, typer.Option("-o", "--redop", help="sum prod min max avg band bor bxor; a list; all.")] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", help="Root rank.")] = 0,
    algorithm: Annotated[
        str | None, typer.Option(help="A list of algorithms, or all: a row for each. Default: the built-in choice.")
    ] = None,
    transport: Annotated[str, typer.Option(help="auto, shm or tcp.")] = "auto",
    protocol: Annotated[str, typer.Option(help="auto, push or pull.")] = "auto",
    memory: Annotated[str, typer.Option(help="plain, or registered (Communicator.empty).")] = "plain",
    persistent: Annotated[bool, typer.Option("--persistent", help="Persistent operations.")] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Local ranks, 2 by default; not under a launcher.")
    ] = None,
    vs: Annotated[str | None, typer.Option(help="gloo: measure torch's Gloo too, alternately, in the same processes.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", "-c", help="Compare results with the right ones.")] = True,
    show_algorithm: Annotated[bool, typer.Option("--show-algorithm", help="A column that says what ran.")] = False,
    json_path: Annotated[Path | None, typer.Option("-J", "--json", help="Write everything here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot time over size here (png, svg, pdf).")] = None,
) -> None:
    """Time a collective over sizes, in the table of nccl-tests.

    Starts local ranks; under torchrun, mpirun or srun it uses theirs.
    """
    timing: dict[str, Any] = {
        "iterations": iters, "seconds": seconds, "warmup": warmup, "blocks": blocks, "together": agg, "check": check,
    }  # fmt: skip
    request = make_request(
        collective=op,
        limits=(parse_size(minbytes), parse_size(maxbytes), stepfactor, parse_size(stepbytes)),
        dtype=datatype,
        op=redop,
        root=root,
        algorithm=algorithm,
        transport=transport,
        protocol=protocol,
        memory=memory,
        persistent=persistent,
        versus=vs,
        ranks=ranks,
        show_algorithm=show_algorithm,
        timing=timing,
        json_path=json_path,
        plot_path=plot,
    )
    if code := run_bench(request, _write):
        raise typer.Exit(code)
