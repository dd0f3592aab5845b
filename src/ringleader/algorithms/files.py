"""Algorithms from files: one's own Python, schedules, and those of MSCCL and MSCCL++."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path

from ringleader.algorithms.registry import register_schedule
from ringleader.errors import InvalidArgument, ScheduleError
from ringleader.schedule import from_json
from ringleader.schedule.serialize import FORMAT, MAX_TEXT

__all__ = ["VARIABLE", "load_files", "load_msccl"]

VARIABLE = "RINGLEADER_ALGORITHM_FILES"
SUFFIXES = (".py", ".xml", ".json")
KINDS = "one's own (.py), MSCCL (.xml), a schedule or an MSCCL++ plan (.json)"

_loaded: set[Path] = set()
_lock = threading.RLock()


def load_msccl(path: str | os.PathLike[str], name: str = "") -> str:
    """Register the algorithm of an MSCCL file: algorithm XML, or an MSCCL++ execution plan (``.json``).

    Parameters
    ----------
    path
        The file. It is for exactly one number of ranks.
    name
        Default: the name that the file gives itself.

    Returns
    -------
    str
        The name, for ``algorithm=`` and everywhere else.

    Raises
    ------
    ScheduleError
        The file is malformed, hangs, races or does not do what it promises; with line and element.
    InvalidArgument
        The name is taken.
    """
    from ringleader.schedule.formats import msccl, mscclpp

    file = Path(path)
    if file.suffix not in (".xml", ".json"):
        raise InvalidArgument(f"{str(file)!r} is of no known kind; known are: MSCCL (.xml), MSCCL++ (.json)")
    schedule = mscclpp.load(file) if file.suffix == ".json" else msccl.load(file)
    return register_schedule(schedule, name, reference=file.name)


def load_files(paths: str) -> None:
    """Register the algorithms of files; what RINGLEADER_ALGORITHM_FILES names is loaded by `ringleader.init`.

    Parameters
    ----------
    paths
        Separated by ``:``. ``.py``: a module that registers by `ringleader.algorithm`; ``.xml``: an MSCCL algorithm;
        ``.json``: a schedule as `ringleader.schedule.to_json` writes it, or an MSCCL++ plan. A file that was loaded
        before is left out.

    Raises
    ------
    InvalidArgument
        A file cannot be read, has another ending, or has an algorithm whose name is taken.
    ScheduleError
        A file is wrong; with line or path of the element.
    """
    for text in filter(None, paths.split(os.pathsep)):
        file = Path(text).expanduser().resolve()
        if file.suffix not in SUFFIXES:
            raise InvalidArgument(f"{VARIABLE}: {text!r} is of no known kind; known are: {KINDS}")
        with _lock:
            if file in _loaded:
                continue
            try:
                _load(file)
            except OSError as error:
                raise InvalidArgument(f"{VARIABLE}: {text!r} cannot be read: {error.strerror}") from error
            _loaded.add(file)


def _load(file: Path) -> None:
    if file.suffix == ".py":
        _import(file)
    elif file.suffix == ".xml":
        load_msccl(file)
    else:
        with file.open("rb") as stream:
            text = stream.read(MAX_TEXT + 1)
        if f'"{FORMAT}"'.encode() not in text[:1000]:
            if text.lstrip().startswith(b"{") and b'"gpus"' not in text:
                raise ScheduleError(f"{file.name}: JSON, but no schedule and no MSCCL++ plan; known are: {KINDS}")
            load_msccl(file)
            return
        try:
            schedule = from_json(text)
        except ScheduleError as error:
            raise ScheduleError(f"{file.name}: {error}") from None
        register_schedule(schedule, reference=file.name)


def _import(file: Path) -> None:
    """Import a module by its path, once, also if the program imports it by name."""
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) and Path(str(known.__file__)).resolve() == file:
        return
    name = file.stem if known is None else f"ringleader_algorithms_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a path that ends in .py always has them
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
