"""Ranks started by programs that new processes cannot import: no file, a directory, a package, an archive."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None
WAYS = ["-c", "-i", "stdin", "notebook", "directory", "package", "archive"]

PROGRAM = """
import operator
import numpy as np
import ringleader as rl

class Result:
    def __init__(self, value): self.value = value

def total(x):
    with rl.init() as comm:
        return Result(comm.all_reduce(np.array([comm.rank + x]))[0])

def own(timeout=100):
    try:
        results = rl.spawn(total, 2, 3, timeout=timeout)
        assert all(type(result) is Result for result in results)
        print("own", [int(result.value) for result in results])
    except Exception as error:
        print(type(error).__name__, error)

if __name__ == "__main__":
    print("other", rl.spawn(operator.add, 2, 1, 2, timeout=100))
    own()
"""
# A notebook runs its cells so: without a file, with functions of `__main__`.
NOTEBOOK = """
import __main__
del __main__.__file__
__main__.__spec__ = None
exec(compile(open("cell.txt").read(), "<ipython-input-1>", "exec"), __main__.__dict__)
"""


def run(way: str, folder: Path, *, blocked: bool = False) -> str:
    """What the program writes."""
    program = textwrap.dedent(PROGRAM)
    given = None
    if way == "-c":
        command = ["-c", program]
    elif way == "-i":
        command, given = ["-i", "-q"], program + "\n"
    elif way == "stdin":
        command, given = ["-"], program
    elif way == "notebook":
        (folder / "cell.txt").write_text(program)
        (folder / "start.py").write_text(NOTEBOOK)
        command = ["start.py"]
    elif way == "archive":
        with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
            archive.writestr("__main__.py", program)
        command = ["app.pyz"]
    else:
        (folder / "app").mkdir()
        (folder / "app" / "__main__.py").write_text(program)
        command = ["app"] if way == "directory" else ["-m", "app"]
    env = {**os.environ}
    if blocked:
        (folder / "without").mkdir()
        (folder / "without" / "cloudpickle.py").write_text("raise ImportError('not installed')")
        env["PYTHONPATH"] = str(folder / "without")
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, input=given, capture_output=True, text=True, timeout=200
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(not CLOUDPICKLE, reason="cloudpickle is not installed")
@pytest.mark.parametrize("way", WAYS)
def test_functions_of_the_program_run_with_cloudpickle(way, tmp_path):
    output = run(way, tmp_path)
    assert "other [3, 3]" in output and "own [7, 7]" in output, output


@pytest.mark.parametrize("way", WAYS)
def test_without_it_functions_of_modules_run_and_others_are_refused_with_advice(way, tmp_path):
    output = run(way, tmp_path, blocked=True)
    assert "other [3, 3]" in output, output
    refusal = next(line for line in output.splitlines() if "InvalidArgument" in line)
    assert "'total'" in refusal and "install cloudpickle" in refusal and "define it in a module" in refusal
