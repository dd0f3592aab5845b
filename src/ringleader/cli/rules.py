"""``ringleader rules``: files of rules, ours and other libraries', shown, checked and imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.markup import escape

from ringleader.cli import choice
from ringleader.cli.output import console, list_whole_sentences
from ringleader.cli.words import one_of
from ringleader.errors import InvalidArgument
from ringleader.tune import rulefile
from ringleader.tune.formats import nccl_tuner, ompi_rules, ompi_rules_json
from ringleader.tune.formats.exchange import Imported

__all__ = ["app"]

KINDS = {
    "ringleader": 'JSON with "rules"',
    "ompi": "numbers, and comments that begin with #",
    "ompi-json": 'JSON with "rule_file_version"',
    "nccl-csv": "lines that begin with a collective: allreduce,min_bytes,...",
}
FORMATS = tuple(KINDS)


class _ShowByDefault(typer.core.TyperGroup):
    """``ringleader rules FILE`` is ``ringleader rules show FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name before what is none."""
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ShowByDefault,
    help="Files of rules, Ringleader's, Open MPI's and NCCL's: show, check, import.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A file of rules.")]
_Format = Annotated[str, typer.Option("--format", "-f", help=f"{', '.join(FORMATS)}; or auto: by the file's content.")]
_Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write here; default: standard output.")]
_Registered = Annotated[bool, typer.Option("--registered", help="nccl-csv: lines for registered buffers, not others.")]


@app.command()
def show(
    path: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: the built-in rules.")] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", min=1, max=65536, help="Only rules for so many.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Only rules for this layout: 2x4, or 0,0,1,1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a file of rules, to start an own one from.")] = False,
) -> None:
    """Check a file of Ringleader's rules and show what it says; without a file, the built-in rules."""
    choice.show_rules(console(wide=False), path, ranks, nodes, as_json)


@app.command()
def check(path: _File, form: _Format = "auto", registered: _Registered = False) -> None:
    """Read a file of any of the formats; say what it chooses, and what of it cannot be taken over."""
    form, read = _read(path, form, registered)
    out = console(wide=False)
    out.print(f"{path}, {form}: {len(read.rules.rules)} rules", highlight=False, markup=False, soft_wrap=True)
    for rule in read.rules.rules:
        place = f"line {rule.line}: " if rule.line else ""
        out.print(f"  {escape(f'{place}{rule}')}", highlight=False, soft_wrap=True)
    _report(read.notes)


@app.command(name="import")
def import_(path: _File, form: _Format = "auto", output: _Output = None, registered: _Registered = False) -> None:
    """Turn a file of another library into a file of Ringleader's rules (for RINGLEADER_RULES)."""
    _, read = _read(path, form, registered)
    _report(read.notes)
    _write(rulefile.dumps(read.rules), output)


def _read(path: Path, form: str, registered: bool) -> tuple[str, Imported]:
    """A file, with its format."""
    text, source = rulefile.read_text(path), str(path)
    form = one_of(form, ("auto", *FORMATS), "format")
    if form == "auto":
        form = _guess(text, source)
    if form == "ringleader":
        return form, Imported(rulefile.loads(text, source), ())
    if form == "nccl-csv":
        return form, nccl_tuner.loads(text, source, registered)
    return form, (ompi_rules if form == "ompi" else ompi_rules_json).loads(text, source)


def _guess(text: str, source: str) -> str:
    """The format that a text looks like; a text without any content is one of Open MPI's.

    Raises
    ------
    InvalidArgument
        It looks like none of them; the message lists them.
    """
    if text.lstrip().startswith("{"):
        if '"rule_file_version"' in text:
            return "ompi-json"
        if '"rules"' in text or '"format"' in text:
            return "ringleader"
    else:
        content = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
        if "," in content and content.partition(",")[0].strip().lower() in (*nccl_tuner.COLLECTIVES, "*"):
            return "nccl-csv"
        if not content or content.strip()[0] in "+-0123456789" or content.strip().startswith("rule-file-version"):
            return "ompi"
    kinds = "; ".join(f"{form}: {what}" for form, what in KINDS.items())
    raise InvalidArgument(f"{source} is of no known kind. Known are {kinds}. --format reads it as one of them")


def _report(notes: tuple[object, ...]) -> None:
    """What is left out, on standard error: the file itself may go to standard output."""
    for note in notes:
        console(stderr=True, wide=False).print(escape(str(note)), highlight=False, soft_wrap=True)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise InvalidArgument(f"cannot write {output}: {error.strerror}") from None


list_whole_sentences(app)
