"""Runs examples/integrations over Ringleader and over Gloo and compares them: ``make test-integrations``.

Each example is started by torchrun with two ranks, once for each backend, from the same seeds. It fails if a run fails,
if it does not learn, or if a loss differs by more than `TOLERANCE` from Gloo's. What was found is written into
docs/integrations.md, between its two marks.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/integrations.md"
BEGIN, END = "<!-- last run -->", "<!-- end of last run -->"
TOLERANCE = 1e-5
"""Two ranks add the same two numbers over either backend; what is left are divisions before or after the addition."""
LIMIT = 300.0  # seconds for a run


@dataclass(frozen=True)
class Example:
    """A script, what it shows, and the packages whose versions are told."""

    script: str
    shows: str
    packages: tuple[str, ...]


EXAMPLES = (
    Example("accelerate_digits", "Hugging Face Accelerate, DDP", ("accelerate",)),
    Example("lightning_digits", "Lightning, DDP", ("lightning", "torchmetrics")),
    Example("fsdp2_text", "FSDP2 as in torchtitan, compiled", ("torch",)),
)


@dataclass(frozen=True)
class Run:
    """What one run printed and wrote."""

    said: str
    result: dict[str, Any]
    seconds: float


def run(example: Example, backend: str, folder: Path) -> Run:
    """Run an example; raises RuntimeError with its output if it fails."""
    path = folder / f"{example.script}-{backend}.json"
    script = ROOT / "examples/integrations" / f"{example.script}.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(script), "--backend", backend, "--result", str(path)]
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False)
    if done.returncode or not path.exists():
        raise RuntimeError(f"{example.script} over {backend} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    said = next(line for line in done.stdout.splitlines() if f" on {backend}, 2 ranks" in line)
    return Run(said, json.loads(path.read_text()), time.monotonic() - started)


def difference(ours: Run, gloo: Run) -> float:
    """The largest difference of two losses; raises RuntimeError if it is too large or nothing was learned."""
    mine, theirs = ours.result["losses"], gloo.result["losses"]
    if len(mine) != len(theirs):
        raise RuntimeError(f"{len(mine)} losses, but {len(theirs)} over Gloo")
    if mine[-1] > 0.7 * mine[0]:
        raise RuntimeError(f"the loss went from {mine[0]} to {mine[-1]}; expected at most 70% of it")
    found = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
    if not found <= TOLERANCE:
        raise RuntimeError(f"losses differ by {found} from Gloo's; expected at most {TOLERANCE}")
    if ours.result.get("accuracy") != gloo.result.get("accuracy"):
        raise RuntimeError(f"accuracy {ours.result['accuracy']}, over Gloo {gloo.result['accuracy']}")
    return found


def main() -> int:
    """Run all examples and write the page; 1 if one failed."""
    rows, printed, failed = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for example in EXAMPLES:
            versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in example.packages)
            try:
                ours, gloo = (run(example, backend, Path(folder)) for backend in ("ringleader", "gloo"))
                largest = difference(ours, gloo)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{example.script}: FAILED: {error}", flush=True)
                rows.append(f"| {example.shows} | {versions} | **fails** | | |")
                continue
            losses = ours.result["losses"]
            print(f"{ours.said}\n{gloo.said}\n  losses differ by at most {largest:.1e}", flush=True)
            printed += [ours.said, gloo.said]
            rows.append(
                f"| {example.shows} | {versions} | {len(losses)} | {losses[0]:.4f} to {losses[-1]:.4f} "
                f"| {largest:.1e} |"
            )
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    torch = importlib.metadata.version("torch")
    table = [
        f"{today}, torch {torch}, two ranks:", "",
        "| trained with | versions | losses compared | loss | largest difference from Gloo |", "|---|---|---|---|---|",
        *rows, "", "```text", *printed, "```",
    ]  # fmt: skip
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text("\n".join([before + BEGIN, *table, END]) + rest.partition(END)[2])
    print(f"{len(EXAMPLES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
