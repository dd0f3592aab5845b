"""All-reduce against MPI implementations and Gloo: sets them up, measures, writes results/peers.csv, .md and .png.

All systems of a place (a number of ranks over a transport) are alive at the same time; one runs at a time, in turn, in
short blocks. A system that fails or hangs is noted and left out from there on.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peers import report
from peers.conditions import Conditions
from peers.limits import Limits, State, compile_helper
from peers.points import MIB, Place, Plan, contestants_of, element_type, iterations_of, least_iterations, plan, timing
from peers.systems import MPI4PY, SYSTEMS, System, install, launches
from peers.turns import Contender, Group, PeerError
from ringleader.cli.words import format_size, parse_size
from ringleader.errors import RingleaderError

ROOT = Path(__file__).resolve().parents[2]
SIZES = "8,1K,8K,64K,256K,1M,4M,16M,64M,256M"
REQUEST_LIMIT = 60.0  # seconds
IDEAL = System("limits", "", "shm", ("ideal",))
LARGEST = 512 * MIB  # of one contestant's buffers, all ranks together

_BINDINGS = {
    "core": "More ranks than cores: ranks bound evenly to the cores (Ringleader: RINGLEADER_BIND=core); MPICH unbound.",
    "none": "More ranks than cores: nobody bound.",
}

COLUMNS = (
    "ranks", "transport", "dtype", "variant", "nbytes", "system", "contestant", "element_type",
    "median_us", "rank_median_us", "mean_us", "least_us", "fastest_block_us", "slowest_block_us", "iterations",
    "wrong", "choice", "flag_us", "copy_gbs", "add_gbs", "load", "error",
)  # fmt: skip


@dataclass
class Entry:
    """A contestant at a point."""

    system: System
    contestant: str
    contender: Contender
    wrong: int | None = None
    choice: str = ""
    blocks: int = 0
    iterations: int = 0
    warmup: int = 0
    times: list[NDArray[np.float64]] = field(default_factory=list)


class Room:
    """The measuring room of one place: its systems, alive."""

    def __init__(self, place: Place, arguments: argparse.Namespace, limits: Limits | None, write: Callable[..., None]):
        self.place, self._arguments, self._limits, self._write = place, arguments, limits, write
        self._alive: dict[System, Contender] = {}
        self.state: State | None = None  # of the machine, before the latest point
        if limits is not None and place == Place(2, "shm"):
            self._alive[IDEAL] = limits

    def start(self, systems: Sequence[System], folder: Path) -> None:
        """Start all; who does not come is noted."""
        worker = str(Path(__file__).with_name("worker.py"))
        for system in systems:
            meeting = folder / f"{system.name}-{self.place.ranks}"
            command = [sys.executable, worker, "--socket", str(meeting), "--system", system.name]
            starts = launches(
                system, self.place.ranks, self._arguments.prefixes, command, self._arguments.bind == "core"
            )
            try:
                self._alive[system] = Group(system, self.place.ranks, starts, meeting, REQUEST_LIMIT)
            except (PeerError, OSError) as error:
                self._note(system, error)

    def _note(self, system: System, error: Exception, point: Plan | None = None, contestant: str = "") -> None:
        where = {"ranks": self.place.ranks, "transport": self.place.transport, "system": system.name}
        if point is not None:
            where |= _columns(point)
        text = " ".join(str(error).split())
        self._write({**where, "contestant": contestant or system.contestants[0], "error": text})
        print(f"  {system.name}: {text[:200]}", flush=True)

    def _drop(self, system: System, error: Exception, point: Plan, contestant: str) -> None:
        self._note(system, error, point, contestant)
        gone = self._alive.pop(system)
        if isinstance(gone, Group):
            gone.close(force=True)

    def measure(self, point: Plan, end: float, units_left: int) -> None:
        """Measure a point. `end`: when all `units_left` contestants should be done."""
        seconds = float(np.clip(0.7 * (end - time.monotonic()) / max(units_left, 1), 0.02, self._arguments.seconds))
        self.state = None if self._limits is None else self._limits.state()
        entries = self._prepare(point, seconds)
        for block in range(max((entry.blocks for entry in entries), default=0)):
            for entry in entries:
                if block < entry.blocks and entry.system in self._alive:
                    self._guarded(entry, point, lambda it: it.times.append(self._block(it, point)))
        for entry in entries:
            if entry.times and entry.system in self._alive:
                self._write(_row(point, entry, self.state))
        for system, contender in list(self._alive.items()):
            try:
                contender.release()
            except PeerError as error:
                self._drop(system, error, point, "")
        shown = "  ".join(f"{e.system.name}/{e.contestant} {timing(e.times).median:.4g}" for e in entries if e.times)
        kind = f"{point.dtype}{' rewritten' if point.rewrite else ''}"
        print(f"{format_size(point.nbytes):>8} {kind}  {shown}  | {self.state}", flush=True)

    def _guarded(self, entry: Entry, point: Plan, act: Callable[[Entry], None]) -> bool:
        try:
            act(entry)
        except PeerError as error:
            self._drop(entry.system, error, point, entry.contestant)
            return False
        return True

    def _block(self, entry: Entry, point: Plan) -> NDArray[np.float64]:
        return entry.contender.block(entry.contestant, entry.iterations, entry.warmup, point.rewrite)

    def _prepare(self, point: Plan, seconds: float) -> list[Entry]:
        """Make ready who is alive and offers it; choose numbers of iterations by a first short block."""
        entries = []
        for system, contestant in contestants_of(point, list(self._alive)):
            if system is IDEAL and point.dtype != "float32":
                continue
            contender = self._alive.get(system)
            if contender is None:
                continue
            entry = Entry(system, contestant, contender)
            kind = element_type(point.dtype, contestant)

            def ready(it: Entry, kind: str = kind) -> None:
                told = it.contender.prepare(it.contestant, point.nbytes, kind)
                it.wrong, it.choice = told["wrong"], told["choice"]
                least = least_iterations(point.nbytes)
                it.iterations, it.warmup = max(least, 2), max(least // 3, 1)
                usual = float(np.median(self._block(it, point).max(axis=0)))
                it.blocks, it.iterations = iterations_of(seconds, self._arguments.blocks, usual, least)

            if self._guarded(entry, point, ready):
                entries.append(entry)
        return entries

    def close(self) -> None:
        """End all systems."""
        for contender in self._alive.values():
            if isinstance(contender, Group):
                contender.close()


def _columns(point: Plan) -> dict[str, Any]:
    variant = "rewritten" if point.rewrite else "repeated"
    return {**point.place._asdict(), "dtype": point.dtype, "variant": variant, "nbytes": point.nbytes}


def _row(point: Plan, entry: Entry, state: State | None) -> dict[str, Any]:
    times = asdict(timing(entry.times))
    return {
        **_columns(point),
        "system": entry.system.name,
        "contestant": entry.contestant,
        "element_type": element_type(point.dtype, entry.contestant),
        **{f"{name}_us": round(value, 3) for name, value in times.items() if name != "iterations"},
        "iterations": times["iterations"],
        "wrong": entry.wrong,
        "choice": entry.choice,
        **({} if state is None else {name: round(value, 3) for name, value in asdict(state).items()}),
        "load": round(os.getloadavg()[0], 2),
    }


def _packages(arguments: argparse.Namespace) -> list[str]:
    return sorted({system.package for system in arguments.systems if system.package})


def run(arguments: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> list[str]:
    """Set up and measure everything asked for; the conditions."""
    failures = install([*_packages(arguments), MPI4PY], arguments.prefixes)
    for package, why in failures.items():
        print(f"{package} does not install, left out: {why}", flush=True)
    lost = {system.package for system in SYSTEMS if system.package} if MPI4PY in failures else set(failures)
    usable = [system for system in arguments.systems if system.package not in lost]
    try:
        limits = Limits(compile_helper(arguments.prefixes))
    except PeerError as error:
        print(error, flush=True)
        limits = None
    conditions = Conditions()
    end = time.monotonic() + arguments.budget
    points = plan(arguments.places, arguments.sizes, arguments.dtypes, arguments.variants, LARGEST)

    def here(place: Place) -> list[System]:
        return [system for system in usable if system.transport == place.transport]

    left = {point: len(contestants_of(point, here(point.place))) for point in points}
    with tempfile.TemporaryDirectory(prefix="ringleader-peers-") as folder:
        for place in arguments.places:
            print(f"\n{place}", flush=True)
            room = Room(place, arguments, limits, write)
            try:
                room.start(here(place), Path(folder))
                mine = [point for point in points if point.place == place]
                now = time.monotonic()  # large points of one place must not eat up the time of the next
                until = now + (end - now) * sum(left[point] for point in mine) / sum(left.values())
                for at, point in enumerate(mine):
                    room.measure(point, until, sum(left[later] for later in mine[at:]))
                    conditions.states += [] if room.state is None else [room.state]
                for point in mine:
                    del left[point]
            finally:
                room.close()
    if limits is not None:
        limits.close()
    told = conditions.lines([*_packages(arguments), MPI4PY], arguments.prefixes)
    return [*told, _BINDINGS[arguments.bind]]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument("--places", default="2:shm,4:shm,8:shm,2:tcp", help="ranks:transport (default %(default)s)")
    parser.add_argument("--sizes", default=SIZES, help="bytes, with K, M or G (default %(default)s)")
    parser.add_argument("--dtypes", default="float32,16-bit", help="default %(default)s")
    parser.add_argument("--variants", default="repeated,rewritten", help="default %(default)s")
    parser.add_argument("--systems", default="all", help=f"of {', '.join(system.name for system in SYSTEMS)}")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all points (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.6, help="at most, for each number (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=7, help="turns at a point (default %(default)s)")
    parser.add_argument(
        "--bind", choices=("core", "none"), default="core", help="ranks that share cores (default %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the results of places that are not measured")
    parser.add_argument("--prefixes", type=Path, default=ROOT / "build/peers", help="where peers are installed")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", help="folder for the results")
    arguments = parser.parse_args()
    known = {system.name: system for system in SYSTEMS}
    names = list(known) if arguments.systems == "all" else arguments.systems.split(",")
    try:
        arguments.systems = [known[name] for name in names]
        arguments.sizes = [parse_size(text) for text in arguments.sizes.split(",")]
        arguments.places = [Place(int(r), t) for r, t in (text.split(":") for text in arguments.places.split(","))]
    except KeyError as error:
        parser.error(f"unknown system {error}; expected some of {', '.join(known)}")
    except (ValueError, RingleaderError) as error:
        parser.error(str(error))
    arguments.dtypes, arguments.variants = arguments.dtypes.split(","), arguments.variants.split(",")
    return arguments


def main() -> None:
    """Measure and write."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends all systems on the way out
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "peers.csv"
    noted = path.with_name("peers.conditions.txt")
    kept, told_before = [], []
    if arguments.keep and path.exists():
        again = {(str(place.ranks), place.transport) for place in arguments.places}
        with path.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if (row["ranks"], row["transport"]) not in again]
        told_before = noted.read_text().splitlines() if noted.exists() else []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(kept)

        def write(row: dict[str, Any]) -> None:
            writer.writerow(row)
            file.flush()

        told = run(arguments, write)
    if told_before:
        told = [*told_before, f"Measured again: {', '.join(map(str, arguments.places))}.", *told[1:]]
    noted.write_text("\n".join(told) + "\n")
    print(f"\nwrote {path}, {', '.join(map(str, report.write(arguments.output)))}")


if __name__ == "__main__":
    main()
