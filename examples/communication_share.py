"""Does hierarchical all-reduce take an A100 cluster's communication share from 35% to 18%? It depends on the adapters.

For clusters of DGX A100 that differ in adapters, the computing of a step is set so that a flat ring's communication is
35% of it, and the same step is simulated with a hierarchical all-reduce:

    python examples/communication_share.py model.json
"""

from __future__ import annotations

import argparse

from ringleader.simulate import Fabric, Layout, simulate_step
from ringleader.topology import generate

BERT_LARGE = Layout("24 layers of 12.6 million", tuple(f"layer{i}" for i in range(24))[::-1], (12_600_000,) * 24)
CLAIMED = 0.35


def compute_for(layout: Layout, share: float, fabric: Fabric, overlap: bool, channels: int) -> float:
    """Seconds of computing at which a flat ring's exposed communication is `share` of the step."""
    low, high = 1e-4, 1e3
    for _ in range(25):
        middle = (low * high) ** 0.5
        line = layout.timeline(middle, element_bytes=2)
        step = simulate_step(line, "ring", fabric, overlap=overlap, channels=channels, bucket_bytes=25 << 20)
        low, high = (middle, high) if step.exposed_share > share else (low, middle)
    return high


def main() -> None:
    """Print a line for each cluster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a JSON list of [name, shape], last layer first")
    parser.add_argument("--hosts", type=int, default=8)
    arguments = parser.parse_args()
    layout = BERT_LARGE if arguments.model is None else Layout.read(arguments.model)
    print(f"{layout.name}: {layout.parameters / 1e6:.0f} million parameters, bf16, {arguments.hosts} hosts of 8 A100")
    print("adapters  rings  overlap  compute ms  flat   hierarchical")
    for nics in (1, 2, 4, 8):
        fabric = Fabric(generate.fat_tree(generate.dgx_a100(nics), arguments.hosts))
        for channels in sorted({1, nics}):
            for overlap in (False, True):
                compute = compute_for(layout, CLAIMED, fabric, overlap, channels)
                line = layout.timeline(compute, element_bytes=2)
                shares = [
                    simulate_step(
                        line, spec, fabric, overlap=overlap, channels=channels if spec == "ring" else 1,
                        bucket_bytes=25 << 20,
                    ).exposed_share
                    for spec in ("ring", "hierarchical")
                ]  # fmt: skip
                print(
                    f"{nics:8}  {channels:5}  {'yes' if overlap else 'no':>7}  {compute * 1e3:10.1f}"
                    f"  {shares[0]:5.1%}  {shares[1]:11.1%}"
                )


if __name__ == "__main__":
    main()
