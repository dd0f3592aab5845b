"""What is imported when it is first used, and what is said where it cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["install", "lazily", "need_torch"]


def lazily(
    package: str, names: Mapping[str, str] | None = None, needs: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose modules, and names of them, are imported when first used.

    Parameters
    ----------
    package
        Name of the package. All its modules without ``_`` before their names are attributes of it.
    names
        Further attributes: name to the module, of this package or of another, that has it.
    needs
        Modules that need a package which may be missing, and its name: `dir` does not list them then.

    Examples
    --------
    >>> import ringleader as rl
    >>> rl.schedule.formats.msccl.__name__, "nccl_tuner" in dir(rl.tune.formats), "Communicator" in dir(rl)
    ('ringleader.schedule.formats.msccl', True, True)
    """
    homes = dict(names or {})
    namespace = sys.modules[package].__dict__

    def modules() -> Iterable[str]:
        found = (each.name for each in pkgutil.iter_modules(namespace["__path__"]))
        return (name for name in found if not name.startswith("_"))

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        elif not name.startswith("_") and name in modules():
            value = importlib.import_module(f"{package}.{name}")
        else:
            message = f"module {package!r} has no attribute {name!r}"
            if not name.startswith("_"):
                from ringleader._names import did_you_mean

                message += did_you_mean(name, listed())
            raise AttributeError(message)
        namespace[name] = value
        return value

    def listed() -> list[str]:
        absent = {name for name, other in (needs or {}).items() if importlib.util.find_spec(other) is None}
        return sorted({*namespace["__all__"], *homes, *modules()} - absent)

    return get, listed


def install(extra: str, *packages: str) -> str:
    """How to get packages of an extra of this one, which is not on PyPI yet.

    Examples
    --------
    >>> install("cli", "typer", "rich")
    "pip install typer rich (or, in Ringleader's source tree: pip install '.[cli]')"
    """
    return f"pip install {' '.join(packages)} (or, in Ringleader's source tree: pip install '.[{extra}]')"


def need_torch(what: str) -> None:
    """Raise ModuleNotFoundError with one sentence if there is no PyTorch."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        how = install("torch", "torch")
        raise ModuleNotFoundError(f"{what} needs PyTorch, which is not installed; {how}", name="torch")
