"""``explain`` and ``rules``: what would run, by which rule; and files of rules, checked and shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringleader import tune
from ringleader.cli.schedules import parse_nodes
from ringleader.cli.words import algorithm_specs, collective_name, format_size, parse_size
from ringleader.runtime.config import Config
from ringleader.runtime.tuning import Guide, own_guide
from ringleader.runtime.wire import effective, parse_wire
from ringleader.schedule import Collective

__all__ = ["explain", "show_matrix", "show_rules"]

_FLOAT32 = 0


def _guide(rules: Path | None, layout: Sequence[int]) -> Guide:
    """By what a job with this environment chooses; `rules` is a file instead of RINGLEADER_RULES."""
    config = Config.from_environment(None, rules=None if rules is None else str(rules))
    return own_guide(config, len(set(layout)))


def explain(
    console: Console,
    collective: str,
    size: str,
    n: int | None,
    nodes: str | None,
    itemsize: int,
    algorithm: str | None,
    wire: str | None,
    rules: Path | None,
) -> None:
    """Which algorithm would run, by which rule, and what the others would cost in the model."""
    kind, nbytes = collective_name(collective), parse_size(size)
    layout = parse_nodes(nodes, n)
    guide = _guide(rules, layout)
    forced = None if algorithm is None else algorithm_specs(kind, algorithm)[0]
    ruled = tune.select_wire(kind, nbytes, layout, guide.rules)
    default = guide.config.wire or (ruled[0] if ruled else "f32")
    used = effective(parse_wire(wire), default, Collective(kind), _FLOAT32, tuple(layout))
    found = tune.explain(
        kind, nbytes, len(layout), layout, itemsize, forced=forced, rules=guide.rules, wire=used, model=guide.model
    )
    console.print(f"{kind} of {format_size(nbytes)}: {escape(found.request)}", highlight=False, soft_wrap=True)
    choice = found.choice
    channels = f", {choice.channels} channels" if choice.channels else ""
    how = f"runs [bold]{choice.algorithm}[/bold], {choice.protocol}{channels}: {escape(choice.reason)}"
    console.print(how, highlight=False, soft_wrap=True)
    for rule in found.rules:
        console.print(f"  {escape(rule)}", highlight=False, soft_wrap=True)
    console.print(_candidates(found))
    console.print(
        "Rules decide; the model is for what they leave open. `ringleader tune` fits both to this machine.",
        style="dim", highlight=False,
    )  # fmt: skip


def _candidates(found: tune.Explanation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("algorithm")
    for column in ("steps", "bytes", "model us"):
        table.add_column(column, justify="right")
    table.add_column("")
    for candidate in found.candidates:
        cost = candidate.cost
        row = (
            candidate.algorithm,
            f"{cost.steps:.0f}",
            f"{cost.nbytes:.0f}",
            f"{cost.seconds * 1e6:.1f}",
            candidate.note,
        )
        table.add_row(*map(escape, row), style="bold" if candidate.note.startswith("chosen") else "")
    return table


def show_matrix(console: Console, n: int | None, nodes: str | None, rules: Path | None) -> None:
    """All predictions for a layout, as RINGLEADER_DEBUG_SUBSYS=TUNE prints them at the start."""
    layout = parse_nodes(nodes, n)
    guide = _guide(rules, layout)
    text = tune.matrix(layout, rules=guide.rules, model=guide.model)
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def show_rules(console: Console, path: Path | None, n: int | None, nodes: str | None, as_json: bool) -> None:
    """The rules of a file, or the built-in ones; with a layout, only those that are for it."""
    found = tune.BUILT_IN if path is None else tune.load(path)
    chosen = found.rules
    if n is not None or nodes is not None:
        layout = tuple(parse_nodes(nodes, n))
        chosen = tuple(rule for rule in chosen if rule.fits_job(layout))
    if as_json:
        print(tune.dumps(tune.RuleSet(chosen, found.source)), end="")
        return
    for rule in chosen:
        console.print(f"{found.where(rule)}: {rule}", highlight=False, markup=False, soft_wrap=True)
    style = "bold green" if chosen else "bold yellow"
    console.print(
        f"{escape(found.source)}: {len(found.rules)} rules, {len(chosen)} shown", style=style, highlight=False
    )
