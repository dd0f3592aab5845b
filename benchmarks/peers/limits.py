"""The limits of the machine, by a small native helper that is compiled when first needed: see limits.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peers.turns import PeerError

__all__ = ["Limits", "State", "compile_helper"]

_SOURCE = Path(__file__).with_name("limits.c")
_PROBED = 32 << 20


@dataclass(frozen=True)
class State:
    """`flag_us`: a flag's round trip between two cores; GB/s of one thread, for copies and additions of 32 MiB."""

    flag_us: float
    copy_gbs: float
    add_gbs: float

    def __str__(self) -> str:
        return f"flag {self.flag_us:.2f} us, copy {self.copy_gbs:.1f} GB/s, add {self.add_gbs:.1f} GB/s"


def compile_helper(folder: Path) -> Path:
    """Compile it below `folder`, unless that is newer than the source.

    Raises
    ------
    PeerError
        No compiler, or it failed.
    """
    program = folder / "limits"
    if program.exists() and program.stat().st_mtime > _SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise PeerError("no C compiler (cc, or the one that CC names): the machine's limits are not measured")
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O3", "-march=native", "-pthread", str(_SOURCE), "-o", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise PeerError(f"{compiler} failed: {ran.stderr.strip()[:500]}")
    return program


class Limits:
    """The helper, running; between commands it waits in a read. A contender with one contestant, the ideal."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._nbytes = 0

    def _ask(self, line: str) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
        except BrokenPipeError:
            raise PeerError("the helper ended") from None
        numbers = [float(word) for word in self._process.stdout.readline().split()]
        if not numbers:
            raise PeerError(f"the helper did not answer {line!r}")
        return numbers

    def state(self) -> State:
        """Of the machine, now; takes about 50 ms."""
        return State(self._ask("flag 2000")[0] / 1e3, self._ask(f"copy {_PROBED}")[0], self._ask(f"add {_PROBED}")[0])

    def prepare(self, contestant: str, nbytes: int, dtype: str) -> dict[str, Any]:
        self._nbytes = nbytes
        return {"wrong": None, "choice": "two threads, each adds one half and writes it into both buffers"}

    def block(self, contestant: str, iterations: int, warmup: int, rewrite: bool) -> NDArray[np.float64]:
        return np.array([self._ask(f"ideal {self._nbytes} {iterations} {warmup} {int(rewrite)}")]) / 1e3

    def release(self) -> None:
        pass

    def close(self) -> None:
        """End the helper."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
