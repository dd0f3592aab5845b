"""The commands and their options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ringleader import __version__
from ringleader.algorithms.files import VARIABLE, load_files
from ringleader.cli import choice, schedules
from ringleader.cli import rules as rule_commands
from ringleader.cli import trace as trace_commands
from ringleader.cli.bench import make_request, run_bench
from ringleader.cli.doctor import diagnose
from ringleader.cli.output import console, list_whole_sentences
from ringleader.cli.words import one_of, parse_size

__all__ = ["app"]

app = typer.Typer(
    name="ringleader",
    help="Collectives for distributed deep learning: measure, prove, draw and explain them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # else colons and brackets of help texts become emojis and styles
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(rule_commands.app, name="rules")
app.add_typer(trace_commands.app, name="trace")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ringleader {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(
            envvar=VARIABLE,
            help="Algorithms to load, a:b, each of them one's own (.py), MSCCL (.xml), MSCCL++, schedules (.json).",
        ),
    ] = None,
) -> None:
    if load is not None:
        load_files(load)
        os.environ[VARIABLE] = load  # for the ranks that a command starts


def _write(line: str) -> None:
    print(line, flush=True)


@app.command()
def bench(
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size, with K, M or G.")] = "8",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "64M",
    stepfactor: Annotated[float, typer.Option("-f", "--stepfactor", help="Each size is so many times the last.")] = 2.0,
    stepbytes: Annotated[
        str, typer.Option("-i", "--stepbytes", help="Instead: so many bytes more than the last.")
    ] = "0",
    iters: Annotated[int, typer.Option("-n", "--iters", min=0, help="Iterations; 0: as many as fit in --seconds.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time for each number, with -n 0.")] = 0.2,
    warmup: Annotated[int, typer.Option("-w", "--warmup-iters", "--warmup", min=0, help="Before each block.")] = 2,
    blocks: Annotated[int, typer.Option(min=1, help="What is compared is measured in so many alternating blocks.")] = 5,
    agg: Annotated[
        int, typer.Option("-m", "--agg-iters", min=1, help="Operations in flight at once; time is per operation.")
    ] = 1,
    op: Annotated[str, typer.Option("--op", help="Collective.")] = "all_reduce",
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help="float, half, bfloat16, int32, ...; a list.")
    ] = "float",
    redop: Annotated[
        str, typer.Option("-o", "--redop", help="sum prod min max avg band bor bxor; a list; all.")
    ] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", help="Root rank.")] = 0,
    algorithm: Annotated[
        str | None, typer.Option(help="A list of algorithms, or all: a row for each. Default: the built-in choice.")
    ] = None,
    transport: Annotated[str, typer.Option(help="auto, shm, tcp or ucx.")] = "auto",
    protocol: Annotated[str, typer.Option(help="auto, push or pull.")] = "auto",
    memory: Annotated[str, typer.Option(help="plain, or registered (Communicator.empty).")] = "plain",
    persistent: Annotated[bool, typer.Option("--persistent", help="Persistent operations.")] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Local ranks, 2 by default; not under a launcher.")
    ] = None,
    vs: Annotated[
        str | None, typer.Option(help="gloo: measure torch's Gloo too, alternately, in the same processes.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", "-c", help="Compare results with the right ones.")
    ] = True,
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


_Ranks = Annotated[int, typer.Option("-n", "--ranks", min=1, max=65536, help="Number of ranks.")]
_Collective = Annotated[
    str | None, typer.Option("--collective", "-c", help="Collective; default: the name's first one.")
]
_Nodes = Annotated[str | None, typer.Option(help="Ranks over nodes: 2x4, or 0,0,1,1. Default: one node.")]
_Rules = Annotated[Path | None, typer.Option(help="A file of rules. Default: RINGLEADER_RULES.")]
_Root = Annotated[int, typer.Option("-r", "--root", help="Root rank of rooted collectives.")]


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Algorithm, with parameters: ring:segments=4.")] = None,
    ranks: Annotated[str, typer.Option("-n", "--ranks", help="Number of ranks, a range 1..64, or a list.")] = "8",
    collective: _Collective = None,
    everything: Annotated[bool, typer.Option("--all", help="Every algorithm (of the collective).")] = False,
    nodes: Annotated[
        str | None, typer.Option(help="Prove for this layout, 2x4. Default: one node, two, and n.")
    ] = None,
    root: _Root = 0,
    mode: Annotated[str, typer.Option(help="auto, exact or fingerprint.")] = "auto",
) -> None:
    """Prove algorithms and the programs that ranks run: right, no deadlock, no race, same bits on every rank."""
    if code := schedules.verify_all(console(), name, ranks, collective, everything, nodes, root, mode):
        raise typer.Exit(code)


@app.command()
def algorithms(collective: _Collective = None) -> None:
    """List the algorithms, with parameters, cost and reference."""
    schedules.list_algorithms(console(), collective)


@app.command()
def draw(
    name: Annotated[str, typer.Argument(help="Algorithm, with parameters: ring:segments=4.")],
    ranks: _Ranks = 4,
    collective: _Collective = None,
    svg: Annotated[Path | None, typer.Option(help="Write a space-time diagram here instead.")] = None,
    program: Annotated[int | None, typer.Option(help="Show the program that this rank runs instead.")] = None,
    nodes: _Nodes = None,
    protocol: Annotated[str, typer.Option(help="Of --program: push or pull.")] = "push",
    root: _Root = 0,
) -> None:
    """Draw a schedule as text or SVG, or show a rank's program."""
    push = one_of(protocol, ("push", "pull"), "protocol") == "push"
    schedules.draw(console(), name, ranks, collective, root, svg, program, nodes, push)


@app.command()
def explain(
    collective: Annotated[str, typer.Argument(help="Collective.")],
    nbytes: Annotated[str, typer.Argument(metavar="BYTES", help="Size of the whole data, with K, M or G.")],
    ranks: Annotated[int | None, typer.Option("-n", "--ranks", min=1, max=65536, help="Number of ranks.")] = None,
    nodes: _Nodes = None,
    itemsize: Annotated[int, typer.Option(min=1, max=16, help="Bytes of an element.")] = 4,
    algorithm: Annotated[str | None, typer.Option(help="As if the call asked for it.")] = None,
    wire: Annotated[str | None, typer.Option(help="As if the call asked for this wire format.")] = None,
    rules: _Rules = None,
) -> None:
    """Say which algorithm would run, by which rule, and what the others would cost in the model."""
    choice.explain(console(), collective, nbytes, ranks, nodes, itemsize, algorithm, wire, rules)


@app.command()
def matrix(
    ranks: Annotated[int | None, typer.Option("-n", "--ranks", min=1, max=1024, help="Number of ranks.")] = None,
    nodes: _Nodes = None,
    rules: _Rules = None,
) -> None:
    """Show what the model predicts for every algorithm, protocol and size, and what would be chosen."""
    choice.show_matrix(console(), ranks, nodes, rules)


@app.command()
def tune(
    budget: Annotated[float, typer.Option(help="Seconds for everything.")] = 120.0,
    places: Annotated[
        str | None,
        typer.Option(help="Local worlds: 2:shm,4:tcp. Default: 2 to 8 ranks over each; not under a launcher."),
    ] = None,
    collectives: Annotated[
        str | None, typer.Option(help="A list. Default: all_reduce, reduce_scatter, all_gather, broadcast.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the table here. Default: where a start looks for it.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep older rules for what is not tuned now.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write plots and numbers into this folder.")] = None,
) -> None:
    """Measure this machine, fit the cost model, and write the rules that later starts use.

    Starts local ranks; under torchrun, mpirun or srun it tunes for their layout.
    """
    from ringleader.cli.tune import make_request, run_tune

    run_tune(make_request(budget, places, collectives, output, keep, report), console())


@app.command()
def overlap(
    timeline: Annotated[Path, typer.Argument(help="JSON of a Timeline: when gradients are ready.")],
    bench_json: Annotated[
        Path | None, typer.Option("--bench", help="What bench --json wrote: the cost of all-reduces.")
    ] = None,
    latency: Annotated[float, typer.Option(help="Without --bench: microseconds of any all-reduce.")] = 50.0,
    bandwidth: Annotated[float, typer.Option(help="Without --bench: GB/s of a large one.")] = 1.0,
    overhead: Annotated[float, typer.Option(min=0, help="More microseconds of each bucket.")] = 0.0,
    launch: Annotated[float, typer.Option(min=0, help="Microseconds that starting one takes from computing.")] = 0.0,
    slowdown: Annotated[float, typer.Option(min=1, help="Computing takes so many times as long beside it.")] = 1.0,
    priority: Annotated[bool, typer.Option("--priority", help="Overlap the next forward pass instead.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan here (png, svg, pdf).")] = None,
) -> None:
    """Show the buckets with the least exposed communication for a timeline, against fixed ones."""
    from ringleader.cli.overlap import Costs, run_overlap

    run_overlap(timeline, Costs(bench_json, latency, bandwidth, overhead, launch, slowdown), priority, picture)


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="Algorithm, with parameters: ring:segments=4.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File: .xml for MSCCL, .json for a schedule.")],
    ranks: _Ranks = 4,
    collective: _Collective = None,
    root: _Root = 0,
    protocol: Annotated[str, typer.Option(help="Of MSCCL: Simple, LL or LL128.")] = "Simple",
) -> None:
    """Write an algorithm for a number of ranks as an MSCCL algorithm, or as a schedule."""
    schedules.export(console(), name, ranks, collective, root, output, protocol)


@app.command()
def monitor(
    where: Annotated[
        str | None, typer.Argument(help="A process, a job's name, or a directory. Default: all jobs of this user here.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=2, max=1024, help="Start so many local ranks, and show them.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds from one look to the next.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each rank.")] = False,
    peers: Annotated[bool, typer.Option("--peers", help="A line for each two ranks, also for many ranks.")] = False,
) -> None:
    """Show bandwidth, latency and stragglers of running jobs, live. Jobs tell with RINGLEADER_MONITOR=1."""
    from ringleader.cli.monitor import run_monitor

    run_monitor(console(), where, ranks, interval, once, as_json, peers)


@app.command()
def autopsy(
    folder: Annotated[Path, typer.Argument(help="The folder that RINGLEADER_RECORDER_DIR named.")],
    last: Annotated[int, typer.Option(min=0, help="Show so many of the last operations of each rank too.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="All jobs in it, not only the latest.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All that is recorded as JSON instead.")] = False,
    torch: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Write PREFIX0, PREFIX1, ... for torchfrtrace.")
    ] = None,
) -> None:
    """Say which rank held a job up, and in which call, from its flight recorders; also if it was killed."""
    from ringleader.cli.autopsy import run_autopsy

    if code := run_autopsy(console(), folder, last, everything, as_json, torch):
        raise typer.Exit(code)


@app.command()
def topo(
    source: Annotated[
        str | None,
        typer.Argument(
            help="NCCL's XML, a matrix of nvidia-smi, or a name, fat-tree:host=hgx-h100,hosts=64. Default: this host."
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="The matrix of nvidia-smi topo -m, instead of a tree.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Nodes and links as JSON instead.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw it here.")] = None,
    xml: Annotated[Path | None, typer.Option(help="Write it here in NCCL's XML (NCCL_TOPO_FILE).")] = None,
    root: Annotated[Path | None, typer.Option(help="Look for the host's /sys below this directory.")] = None,
) -> None:
    """Show what this host, a file or a made-up cluster is made of: NUMA nodes, PCI, GPUs, adapters, switches."""
    from ringleader.cli.topo import run_topo

    run_topo(console(), source, root, matrix, as_json, svg, xml)


@app.command()
def simulate(
    topology: Annotated[
        str,
        typer.Argument(help="A name, fat-tree:host=hgx-h100,hosts=64, NCCL's XML, or a matrix of nvidia-smi."),
    ],
    algorithm: Annotated[str, typer.Option("-a", "--algorithm", help="A list of algorithms, or all.")] = "all",
    collective: Annotated[str, typer.Option("--collective", "-c", help="Collective.")] = "all_reduce",
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size, with K, M or G.")] = "1K",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "1G",
    stepfactor: Annotated[float, typer.Option("-f", "--stepfactor", help="Each size is so many times the last.")] = 4.0,
    root: _Root = 0,
    channels: Annotated[int, typer.Option(min=1, help="Copies side by side, on slices of the data.")] = 1,
    segments: Annotated[int, typer.Option(min=1, help="Segments of each chunk, one step behind the other.")] = 1,
    protocol: Annotated[str | None, typer.Option(help="NCCL's: LL, LL128, Simple. Default: the fastest.")] = None,
    straggler: Annotated[
        list[str] | None, typer.Option(help="RANK=MICROSECONDS that a rank starts late; may be given again.")
    ] = None,
    jitter: Annotated[float, typer.Option(help="Spread of the logarithm of each transfer's time.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the jitter.")] = 0,
    in_network: Annotated[bool, typer.Option("--in-network", help="Add all-reduce by switches (NVLS, SHARP).")] = False,
    best: Annotated[int, typer.Option(min=1, help="Of many algorithms, show so many for each size.")] = 3,
    trace: Annotated[
        Path | None, typer.Option(help="Write the fastest at the largest size here, for Perfetto.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All results as JSON instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot time over size here (png, svg, pdf).")] = None,
) -> None:
    """Predict what collectives take on a cluster that need not exist."""
    from ringleader.cli.simulate import run_simulate

    options: dict[str, Any] = {
        "collective": collective, "root": root, "channels": channels, "segments": segments, "protocol": protocol,
        "jitter": jitter, "seed": seed,
    }  # fmt: skip
    limits = (parse_size(minbytes), parse_size(maxbytes), stepfactor)
    run_simulate(
        console(), topology, algorithm, limits, options, straggler or [], in_network, best, as_json, plot, trace
    )


@app.command()
def plan(
    model: Annotated[Path, typer.Argument(help="Gradients: a JSON list of [name, shape], the last layer first.")],
    tokens: Annotated[float, typer.Option(min=0, help="Tokens of a step, of all ranks together.")] = 0.0,
    flops: Annotated[float, typer.Option(min=0, help="Operations per second that a rank attains, in TFLOP/s.")] = 0.0,
    compute: Annotated[
        float, typer.Option(min=0, help="Instead of both: seconds that one rank would compute for a whole step.")
    ] = 0.0,
    host: Annotated[str, typer.Option(help="A name, hgx-h100 or pcie-box:gpus=4, or a file of a host.")] = "dgx-a100",
    network: Annotated[str, typer.Option(help="A name, fat-tree:oversubscription=4.")] = "fat-tree",
    hosts: Annotated[str, typer.Option(help="A list of numbers of hosts.")] = "1,2,4,8",
    links: Annotated[str | None, typer.Option(help="Gbit/s of an adapter, a list. Default: the host's own.")] = None,
    algorithm: Annotated[str, typer.Option("-a", "--algorithm", help="A list of algorithms.")] = "ring,hierarchical",
    element_bytes: Annotated[int, typer.Option(min=1, help="Bytes of an element of a gradient.")] = 4,
    bucket: Annotated[str | None, typer.Option(help="Size of buckets, with K, M or G. Default: the best.")] = None,
    overlap: Annotated[bool, typer.Option(help="Send gradients during the backward pass, or after it.")] = True,
    ratio: Annotated[float, typer.Option(help="Bytes sent per byte of gradient, of a compression.")] = 1.0,
    channels: Annotated[int, typer.Option(min=1, help="Copies side by side, on slices of the data.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="All that was tried, not only what is worth it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All that was tried as JSON instead.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot the step's time over ranks here (png, svg, pdf).")] = None,
) -> None:
    """Find the cluster that a model's training needs: time of a step against hardware."""
    from ringleader.cli.plan import Work, run_plan

    options: dict[str, Any] = {
        "element_bytes": element_bytes, "overlap": overlap, "ratio": ratio, "channels": channels,
        "bucket_bytes": None if bucket is None else parse_size(bucket),
    }  # fmt: skip
    work = Work(tokens, flops * 1e12, compute)
    run_plan(console(), model, work, host, network, (hosts, links, algorithm), options, everything, as_json, plot)


@app.command()
def doctor() -> None:
    """Check this machine: versions, cores, memory, interfaces, variables, and two ranks over each transport."""
    if code := diagnose(console()):
        raise typer.Exit(code)


list_whole_sentences(app)
