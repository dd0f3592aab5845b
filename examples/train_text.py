"""Train a small GPT on the documentation that every Python carries, on two ranks, over Ringleader and then over Gloo.

    python examples/train_text.py                 # both backends one after the other, a table and a plot
    torchrun --nproc-per-node 2 examples/train_text.py --backend ringleader      # one of them

The text is the standard library's docstrings and Python's licence. The model has about 10 million parameters. Both
runs start from the same weights and see the same data, so their losses can be compared number by number.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 6, 384, 6, 64, 256
BATCH = 4  # sequences per rank and step
PROBE_EVERY = 10  # every so many steps one pass without communication is timed


def standard_library_text() -> bytes:
    """All docstrings of the standard library's modules, in a fixed order, and Python's licence."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(errors="ignore") for path in sorted(root.glob("LICENSE*"))]
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or "tests" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node)
                if doc:
                    texts.append(doc)
    return "\n\n".join(texts).encode()


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) -> the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A byte-level GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) of bytes -> (batch, context, vocabulary) of logits."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def batches(text: Tensor, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows of the text; each rank draws its own."""
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        window = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
        yield window[:, :-1], window[:, 1:]


class Step:
    """One training step, and the same pass without communication to compare with."""

    def __init__(self, model: DistributedDataParallel, text: Tensor, rank: int) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.data = batches(text, rank)

    def run(self, communicate: bool = True) -> tuple[float, float]:
        """(seconds of the pass, loss). Without communication the gradients are thrown away."""
        tokens, targets = next(self.data)
        started = time.perf_counter()
        with nullcontext() if communicate else self.model.no_sync():
            logits = self.model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
        passed = time.perf_counter() - started
        if communicate:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return passed, loss.item()


def train(backend: str, steps: int, result: Path | None) -> None:
    """One rank's part of one run; rank 0 shows progress and writes the measurements to `result`."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    text = torch.frombuffer(bytearray(standard_library_text()), dtype=torch.uint8)
    step = Step(DistributedDataParallel(Gpt(), gradient_as_bucket_view=True), text, rank)
    if rank == 0:
        parameters = sum(p.numel() for p in step.model.parameters())
        print(
            f"{backend}: {world} ranks, {parameters / 1e6:.1f} M parameters, {len(text) / 1e6:.1f} MB of text",
            flush=True,
        )
    losses, times, passes, local = [], [], [], []
    for number in range(1, steps + 1):
        if number % PROBE_EVERY == 0:
            dist.barrier()
            local.append(step.run(communicate=False)[0])
            dist.barrier()
        started = time.perf_counter()
        passed, loss = step.run()
        times.append(time.perf_counter() - started)
        passes.append(passed)
        losses.append(loss)
        if rank == 0 and (number % 25 == 0 or number == steps):
            recent = statistics.median(times[-25:])
            exposed = share_exposed(passes[-25:], local[-3:])
            print(
                f"  step {number:4d}/{steps}  loss {statistics.mean(losses[-25:]):.3f}  "
                f"{world * BATCH * CONTEXT / recent:6.0f} tokens/s  exposed communication {exposed:5.1%}",
                flush=True,
            )
    if rank == 0 and result:
        record = {
            "backend": backend,
            "losses": losses,
            "times": times,
            "passes": passes,
            "local": local,
            "world": world,
        }
        result.write_text(json.dumps(record))
    del step
    dist.destroy_process_group()
    if backend == "gloo":  # a thread that it leaves running aborts some processes while Python ends
        sys.stdout.flush()
        os._exit(0)


def share_exposed(passes: list[float], local: list[float]) -> float:
    """Share of a pass that is communication which overlap did not hide: (pass - pass without it) / pass."""
    whole = statistics.median(passes)
    return max(0.0, (whole - statistics.median(local)) / whole) if local else 0.0


def launch(backend: str, steps: int, folder: Path, ranks: int) -> dict[str, object]:
    """Run one backend under torchrun and return its measurements."""
    result = folder / f"{backend}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [__file__, "--backend", backend, "--steps", str(steps), "--result", str(result)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    record: dict[str, object] = json.loads(result.read_text())
    return record


def report(runs: dict[str, dict], folder: Path) -> None:
    """The final table and plot."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The same training, two backends")
    for column in ("backend", "final loss", "step (ms)", "tokens/s", "exposed communication"):
        table.add_column(column, justify="left" if column == "backend" else "right")
    for name, run in runs.items():
        step = statistics.median(run["times"])
        table.add_row(
            name,
            f"{statistics.mean(run['losses'][-25:]):.4f}",
            f"{step * 1e3:.1f}",
            f"{run['world'] * BATCH * CONTEXT / step:.0f}",
            f"{share_exposed(run['passes'], run['local']):.1%}",
        )
    console = Console()
    console.print(table)
    first, second = (run["losses"] for run in runs.values())
    difference = max(abs(a - b) for a, b in zip(first, second, strict=True))
    console.print(f"largest difference of a step's loss between the two: {difference:.2g}")
    plot(runs, folder / "train_text.png")
    console.print(f"plot: {folder / 'train_text.png'}")


def plot(runs: dict[str, dict], path: Path) -> None:
    """Loss over time, and where a step's time goes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1))
    for position, (name, run) in enumerate(runs.items()):
        elapsed = torch.tensor(run["times"]).cumsum(0)
        smooth = torch.tensor(run["losses"]).unfold(0, 10, 1).mean(1)
        left.plot(elapsed[9:], smooth, label=name)
        step, whole = statistics.median(run["times"]) * 1e3, statistics.median(run["passes"]) * 1e3
        exposed = whole * share_exposed(run["passes"], run["local"])
        right.bar(position, step - exposed, color=f"C{position}")
        right.bar(position, exposed, bottom=step - exposed, color=f"C{position}", alpha=0.45, hatch="//")
    left.set(
        xlabel="seconds of training", ylabel="loss (mean of 10 steps)", title="GPT on Python's documentation, 2 ranks"
    )
    left.legend()
    right.set(ylabel="ms (hatched: exposed communication)", title="median step")
    right.set_xticks(range(len(runs)), list(runs))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Parse the command line; without a launcher, run and compare both backends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default=None, help="ringleader or gloo; without it, both are run and compared")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2, help="ranks when this program launches the runs itself")
    parser.add_argument("--result", type=Path, default=None, help="file for the measurements (JSON)")
    parser.add_argument("--folder", type=Path, default=Path("out"), help="where table data and plot go")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        train(arguments.backend or "ringleader", arguments.steps, arguments.result)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = [arguments.backend] if arguments.backend else ["ringleader", "gloo"]
    runs = {name: launch(name, arguments.steps, arguments.folder, arguments.ranks) for name in names}
    if len(runs) == 2:
        report(runs, arguments.folder)


if __name__ == "__main__":
    main()
