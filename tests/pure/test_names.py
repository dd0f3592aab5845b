"""Names of the package that are imported when they are first used, and what is said of names that are not there."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ringleader as rl

PACKAGES = [rl.__name__] + [
    name
    for _, name, package in pkgutil.walk_packages(rl.__path__, "ringleader.")
    if package and not any(part.startswith("_") for part in name.split(".")[1:])
]


def run(code: str, *, torch: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; without torch, one whose importer does not find it."""
    hide = "" if torch else (
        "import importlib.machinery as m, sys\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = lambda name, *a: None if name.split('.')[0] == 'torch' else find(name, *a)\n"
    )  # fmt: skip
    return subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True, timeout=120, check=False)


def test_every_module_is_an_attribute_of_its_package() -> None:
    """In an interpreter that has imported nothing but ringleader; `dir` lists it, and so does it all of `__all__`."""
    assert "ringleader.tune.formats" in PACKAGES and "ringleader.runtime.compressed" in PACKAGES
    code = f"""
import ringleader, pkgutil
for path in {PACKAGES!r}:
    package = ringleader
    for name in path.split(".")[1:]:
        package = getattr(package, name)
    listed = dir(package)
    public = {{module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")}}
    for name in public | set(package.__all__):
        assert name in listed, f"{{path}}.{{name}} is not listed"
        assert hasattr(package, name), f"{{path}}.{{name}} is not there"
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_importing_costs_little() -> None:
    """Neither PyTorch nor the run time comes with `import ringleader`, nor with `dir`."""
    done = run(
        "import sys, ringleader; dir(ringleader); dir(ringleader.formats)\n"
        "print([n for n in sys.modules if n.startswith(('torch', 'ringleader.runtime.', 'ringleader.algorithms'))])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_schedules_need_no_network_and_no_xml() -> None:
    """What is imported beyond what NumPy imports by itself."""
    done = run(
        "import sys, numpy; before = set(sys.modules); import ringleader.schedule\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(loaded & {'urllib', 'http', 'xml', 'socket', 'ssl', 'email'}))"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import ringleader; ringleader.torch",
        "import ringleader.torch",
        "from ringleader import torch",
        "import ringleader; ringleader.torch.hooks",
        "import ringleader; ringleader.horovod",
        "import ringleader.horovod.torch",
        "import ringleader; ringleader.executors.torch_p2p",
    ],
)
def test_without_torch_one_sentence_says_so(code: str) -> None:
    done = run(code, torch=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ModuleNotFoundError: ringleader."), done.stderr
    assert "needs PyTorch, which is not installed; pip install torch" in last


def test_without_torch_all_that_is_listed_is_there() -> None:
    done = run(
        "import ringleader, inspect\nassert 'torch' not in dir(ringleader)\ninspect.getmembers(ringleader)",
        torch=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "name", "near"),
    [
        ("ringleader", "algoritms", "algorithms"),
        ("formats", "mscll", "msccl"),
        ("torch", "DataParalel", "DataParallel"),
    ],
)
def test_a_name_that_is_not_there_is_an_attribute_error_with_the_nearest(package: str, name: str, near: str) -> None:
    place = rl if package == "ringleader" else getattr(rl, package)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean '{near}'"):
        getattr(place, name)
    assert not hasattr(place, "__wrapped__") and not hasattr(place, "_nothing")


def test_types_are_shipped() -> None:
    assert (Path(rl.__file__).parent / "py.typed").exists()
