"""What the tuned choice costs against the best possible one. ``make bench-regret`` runs this.

First the tuner runs, as `ringleader tune` does, on part of the budget. Then everything sensible is measured anew at
other sizes than the tuner's: every algorithm that the model does not expect to take several times longer than the best,
by push and by pull. Each point is measured in two halves of alternating blocks; the best algorithm is the one that won
one half, and its time that of the other half: so luck does not make it faster than it is. Regret is the time of the
choice over that. Where the choice does not look as good as the best, all that may be the best are measured in further
such pairs of halves, so that an hour's weather on the machine is not taken for a wrong choice. What is another name for
the same schedule is not measured twice.

Rows are written as they come, to results/regret.csv and (every algorithm) results/regret_raw.csv; at the end a summary,
results/regret.md, and a plot, results/regret.png. ``--keep`` keeps the rows of places that are not measured now, so a
long measurement can be done in parts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import regret_report
from rich.console import Console

from ringleader import _core
from ringleader.cli.machine import Machine
from ringleader.cli.tune import tune_places
from ringleader.cli.words import format_size, parse_size
from ringleader.cli.worlds import LocalWorlds
from ringleader.errors import RingleaderError
from ringleader.tune import RuleSet, select
from ringleader.tune.candidates import Experience, distinct, ranked
from ringleader.tune.place import Place, parse_places
from ringleader.tune.trials import Trial
from ringleader.tune.tuner import COLLECTIVES, Settings, rules_of

PLACES = ",".join(f"{ranks}:{transport}" for transport in ("shm", "tcp") for ranks in (2, 3, 4, 6, 8))
# None but the ends is one of the tuner's own.
SIZES = "8,64,512,2K,12K,48K,192K,1536K,8M,64M"
SENSIBLE = 3.0  # times the best expectation
TUNED_SHARE = 0.4  # of the budget
BLOCK = 2e-3  # seconds
FEWEST_BLOCKS, MOST_BLOCKS = 3, 8  # of a half
FEW = 4  # algorithms, where there is no time for all
FAST = 2.0  # times the fastest of the first look: what is slower is not measured further
DOUBTFUL, MOST_ROUNDS = 1.05, 4  # a regret above this is measured again, in so many rounds altogether
CONTENDER = 1.15  # times the best: what is slower is left out of the further rounds


@dataclass
class Evaluation:
    """Measures points, within a budget."""

    worlds: LocalWorlds
    experience: Experience
    rules: RuleSet
    largest: int  # bytes

    def choose(self, place: Place, collective: str, nbytes: int, tuned: bool = True) -> Trial:
        """What runs with the tuner's rules, or without."""
        rules = (self.rules,) if tuned else ()
        choice = select(collective, nbytes, place.ranks, place.nodes, 4, env={}, rules=rules)
        return Trial(collective, choice.algorithm, choice.protocol, nbytes)

    def point(self, place: Place, collective: str, nbytes: int, seconds: float) -> tuple[dict[str, Any], list[Any]]:
        """One row of the summary, and those of the raw data; takes about `seconds`."""
        tuned, built_in = self.choose(place, collective, nbytes), self.choose(place, collective, nbytes, tuned=False)
        if len(distinct([tuned, built_in], place.nodes)) == 1:
            built_in = tuned
        field = ranked(self.experience, collective, nbytes, place.nodes, [tuned, built_in])
        trials = [trial for trial, expected in field if expected <= SENSIBLE * field[0][1]]
        trials = list(dict.fromkeys([tuned, built_in, *(trials if seconds > _least(field) else trials[:FEW])]))
        looked = self.worlds.measure(trials, BLOCK / 2, 2)
        first = {trial: min(blocks) for trial, blocks in zip(trials, looked.blocks, strict=True)}
        fastest = min(first.values())
        field_left = [trial for trial in trials if first[trial] <= FAST * fastest or trial in (tuned, built_in)]
        twice = self.choose(place, collective, 2 * nbytes)
        extra = [twice] if 2 * nbytes <= self.largest else []
        blocks = _blocks([first[trial] for trial in field_left], (seconds - looked.elapsed) / 2)
        samples = [self._blocks([*field_left, *extra], blocks) for _ in range(2)]
        rounds = self._again(samples, field_left, (tuned, built_in), blocks)
        halves = [{trial: statistics.median(row) for trial, row in sample.items()} for sample in samples]
        times = {trial: min(half[trial] for half in halves) for trial in halves[0]}
        best = min(field_left, key=lambda trial: times[trial])
        row = {
            "ranks": place.ranks, "transport": place.transport, "collective": collective, "nbytes": nbytes,
            "tuned": tuned.name, "tuned_us": _us(times[tuned]), "built_in": built_in.name,
            "built_in_us": _us(times[built_in]), "best": best.name, "best_us": _us(times[best]),
            "regret": _regret(halves, tuned, field_left), "built_in_regret": _regret(halves, built_in, field_left),
            "twice_us": _us(times[twice]) if extra else "", "algorithms": len(trials), "blocks": 2 * blocks * rounds,
            "load": round(os.getloadavg()[0], 2),
        }  # fmt: skip
        raw = [
            (place.ranks, place.transport, collective, nbytes, trial.algorithm, trial.protocol, _us(first[trial]),
             *(_us(half[trial]) if trial in half else "" for half in halves))
            for trial in trials
        ]  # fmt: skip
        return row, raw

    def _blocks(self, trials: Sequence[Trial], blocks: int) -> dict[Trial, list[float]]:
        sample = self.worlds.measure(trials, BLOCK, blocks)
        return {trial: list(row) for trial, row in zip(trials, sample.blocks, strict=True)}

    def _again(
        self, samples: Sequence[dict[Trial, list[float]]], field: list[Trial], choices: Sequence[Trial], blocks: int
    ) -> int:
        """Measure on, while a choice looks worse than the best; returns the number of rounds in all.

        Those that are clearly slower than the best leave the field, so that it holds only what was measured as often.
        """
        for done in range(1, MOST_ROUNDS):
            halves = [{trial: statistics.median(sample[trial]) for trial in field} for sample in samples]
            if all(_regret(halves, choice, field) <= DOUBTFUL for choice in choices):
                return done
            best = min(min(half.values()) for half in halves)
            field[:] = [t for t in field if t in choices or min(half[t] for half in halves) <= CONTENDER * best]
            for sample in samples:
                for trial, row in self._blocks(field, blocks).items():
                    sample[trial] += row
        return MOST_ROUNDS


def _least(field: Sequence[tuple[Trial, float]]) -> float:
    """Seconds that a look at all trials takes, and as much again for the halves."""
    return 2 * sum(5 * seconds + 2 * max(BLOCK, seconds) for _, seconds in field)


def _blocks(times: Sequence[float], seconds: float) -> int:
    """Blocks of a half that fit into `seconds`."""
    each = sum(max(BLOCK, t) + t for t in times)
    return min(max(int(seconds / each), FEWEST_BLOCKS), MOST_BLOCKS)


def _regret(halves: Sequence[dict[Trial, float]], choice: Trial, field: Sequence[Trial]) -> float:
    """Time of the choice over that of the best, which is found in one half and timed in the other; both ways."""
    ratios = []
    for found, timed in (halves, halves[::-1]):
        best = min(field, key=lambda trial, found=found: found[trial])
        ratios.append(timed[choice] / timed[best])
    return round(statistics.mean(ratios), 4)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


# ------------------------------------------------------------------------------------------------ everything


def measure(arguments: argparse.Namespace, results: regret_report.Results) -> None:
    """Tune, then measure every point that there is time for."""
    began = time.monotonic()
    cores = _core.usable_cores()
    console = Console()
    settings = Settings(tuple(arguments.places), arguments.budget * TUNED_SHARE, cores=cores)
    settings = replace(settings, collectives=tuple(arguments.collectives))
    with LocalWorlds(max(place.ranks for place in arguments.places)) as worlds:
        tuning = tune_places(worlds, settings, console)
    print(f"tuned in {tuning.seconds:.0f} s; cost model against what it had not seen: {tuning.errors}", flush=True)
    experience = Experience(tuning.model)
    for point in tuning.points:
        for trial, seconds in point.times.items():
            experience.learn(trial, point.place.nodes, seconds)
    rules = rules_of(tuning.points, "tuned")
    queue = [(p, c, n) for p in arguments.places for c in arguments.collectives for n in arguments.sizes]
    weights = [_weight(experience, *request) for request in queue]
    deadline = began + arguments.budget
    worlds, opened = LocalWorlds(max(place.ranks for place in arguments.places)), None
    try:
        for number, (place, collective, nbytes) in enumerate(queue):
            left = deadline - time.monotonic()
            if left < 0:
                results.note(f"the budget is used up: {len(queue) - number} of {len(queue)} points were not measured")
                break
            share = left * weights[number] / sum(weights[number:])
            try:
                if place is not opened:
                    worlds.open(place)
                    opened = place
                evaluation = Evaluation(worlds, experience, rules, max(arguments.sizes))
                row, raw = evaluation.point(place, collective, nbytes, share)
            except RingleaderError as error:  # one failure does not cost the rest
                print(f"{place} {collective} {format_size(nbytes)}: FAILED: {' '.join(str(error).split())[:200]}")
                worlds.close()
                worlds, opened = LocalWorlds(max(place.ranks for place in arguments.places)), None
                continue
            results.add(row, raw)
            print(
                f"{place!s:8} {collective:15}{format_size(nbytes):>8}  tuned {row['tuned_us']:10.1f} us "
                f"{row['regret']:5.2f}  built-in {row['built_in_us']:10.1f} us {row['built_in_regret']:5.2f}  "
                f"best {row['best_us']:10.1f} us  {row['tuned']} | {row['built_in']} | {row['best']}",
                flush=True,
            )
    finally:
        worlds.close()


def _weight(experience: Experience, place: Place, collective: str, nbytes: int) -> float:
    """Seconds that a point wants: long operations take longer, whatever the budget."""
    return 0.2 + 40 * ranked(experience, collective, nbytes, place.nodes)[0][1]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", default=PLACES, help="ranks:transport, ... (default %(default)s)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="(default %(default)s)")
    parser.add_argument("--sizes", default=SIZES, help="bytes, with K, M or G (default %(default)s)")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for everything (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the rows of places that are not measured now")
    parser.add_argument("--report", action="store_true", help="only write the summary of the rows that are there")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    arguments = parser.parse_args()
    try:
        arguments.places = parse_places(arguments.places)
        arguments.sizes = [parse_size(text) for text in arguments.sizes.split(",")]
    except RingleaderError as error:
        parser.error(str(error))
    arguments.collectives = arguments.collectives.split(",")
    if unknown := [name for name in arguments.collectives if name not in COLLECTIVES]:
        parser.error(f"unknown collective {unknown[0]!r}; expected some of {', '.join(COLLECTIVES)}")
    return arguments


def main() -> None:
    """Measure and write."""
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if not arguments.report:
        fresh = {(place.ranks, place.transport) for place in arguments.places}
        with regret_report.Results(arguments.output, arguments.keep, fresh) as results, Machine() as machine:
            before = machine.state()
            try:
                measure(arguments, results)
            finally:
                results.note(f"{before} before, {machine.state()} after; load {os.getloadavg()[0]:.1f}")
    written = regret_report.write(arguments.output)
    print((arguments.output / "regret.md").read_text())
    print(f"{time.monotonic() - began:.0f} s; wrote {', '.join(map(str, written))}")


if __name__ == "__main__":
    main()
