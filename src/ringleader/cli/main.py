"""The way in: ``ringleader``, and ``python -m ringleader``."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from ringleader._lazy import install
from ringleader.errors import InvalidArgument, RingleaderError, ScheduleError, UnsupportedType

__all__ = ["main"]

_NEEDED = ("typer", "rich")
_USAGE = 2
_FAILED = 1
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 (it failed, or what was checked is wrong), 2 (wrong arguments).

    Errors are one line on standard error; RINGLEADER_DEBUG=TRACE adds the traceback.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _complain(f"the command line needs {' and '.join(missing)}; {install('cli', *missing)}", _USAGE)
    import typer

    from ringleader.cli.app import app

    # typer has no public name for the base of its usage errors (it was click's once).
    usage_error = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="ringleader", standalone_mode=False)
    except (InvalidArgument, UnsupportedType, ScheduleError) as error:
        return _complain(str(error), _USAGE)
    except RingleaderError as error:
        return _complain(str(error), _FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:  # `ringleader algorithms | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(str(error), _FAILED)
    except Exception as error:
        if isinstance(error, usage_error):
            return _complain(str(getattr(error, "format_message", error.__str__)()), _USAGE)
        raise
    if code == _INTERRUPTED:  # newer versions of typer turn Ctrl-C into this
        return _complain("interrupted", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    if os.environ.get("RINGLEADER_DEBUG") == "TRACE" and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    print(f"ringleader: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
