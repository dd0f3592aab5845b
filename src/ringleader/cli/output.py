"""Where commands print: text as it is, so that ``a:b:`` stays what it is."""

from __future__ import annotations

import typer
from rich.console import Console

__all__ = ["console", "list_whole_sentences"]

_WIDE = 200  # into a pipe


def console(*, stderr: bool = False, wide: bool = True) -> Console:
    """Standard output, or standard error; into a pipe, lines may be long. Colons never become emojis."""
    found = Console(stderr=stderr, emoji=False)
    return found if found.is_terminal or not wide else Console(stderr=stderr, emoji=False, width=_WIDE)


def list_whole_sentences(app: typer.Typer) -> None:
    """Let the list of an app's commands show their first lines whole, not cut off at 45 letters."""
    for command in app.registered_commands:
        command.short_help = str(command.callback.__doc__).partition("\n")[0]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        group.short_help = str(group.typer_instance.info.help)
