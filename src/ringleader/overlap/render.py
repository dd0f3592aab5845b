"""Plans as text and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringleader._lazy import install
from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.overlap.simulate import Simulated

if TYPE_CHECKING:
    from ringleader.overlap.buckets import BucketPlan
    from ringleader.overlap.priority import PriorityPlan

__all__ = ["picture", "priority_table", "table"]

_MOST_LINES = 40


def _bytes(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} B"


def _span(names: tuple[str, ...], bucket: tuple[int, ...]) -> str:
    first, last = names[bucket[0]], names[bucket[-1]]
    return first if len(bucket) == 1 else f"{first} ... {last}"


def table(plan: BucketPlan) -> str:
    """A line a bucket, and the comparison; times in milliseconds after the start of backward."""
    line, played = plan.timeline, plan.simulated
    lines = [
        f"{len(played.buckets)} buckets of {len(line)} gradients, {_bytes(line.total)}: "
        f"exposed {played.exposed * 1e3:.2f} ms of a {line.backward_end * 1e3:.2f} ms backward pass"
        + ("" if plan.exact else " (not proved best)"),
        f"{'bucket':>6} {'gradients':>9} {'size':>10} {'ready':>9} {'start':>9} {'end':>9} {'waits':>9}  parameters",
    ]
    for number, bucket in enumerate(played.buckets):
        if number == _MOST_LINES and len(played.buckets) > _MOST_LINES + 1:
            lines.append(f"{'...':>6} and {len(played.buckets) - number} more")
            break
        ready = float(line.ready[list(bucket)].max())
        start, end = float(played.start[number]), float(played.end[number])
        waits = max(0.0, start - ready)  # simulated times are whole nanoseconds
        times = "".join(f" {value * 1e3:9.2f}" for value in (ready, start, end, waits))
        size = _bytes(int(line.nbytes[list(bucket)].sum()))
        lines.append(f"{number:6} {len(bucket):9} {size:>10}{times}  {_span(line.names, bucket)}")
    lines.append(f"{'':16} {'buckets':>8} {'exposed ms':>11} {'busy ms':>9}")
    for name, other in {"this plan": played, **plan.compared}.items():
        lines.append(f"{name:16} {len(other.buckets):8} {other.exposed * 1e3:11.2f} {other.communication * 1e3:9.2f}")
    return "\n".join(lines)


def priority_table(plan: PriorityPlan) -> str:
    """What is sent first, and the comparison."""
    line = plan.timeline
    lines = [
        f"{len(plan.partitions)} partitions of at most {_bytes(plan.size)}, {plan.credit // plan.size} in flight: "
        f"exposed {plan.exposed * 1e3:.2f} ms of {(line.backward_end + line.forward) * 1e3:.2f} ms backward and next "
        "forward"
    ]
    rows = {**plan.compared, "max(0, communication - computing)": plan.yardstick, "bound for any order": plan.bound}
    lines += [f"  {name:34} {seconds * 1e3:9.2f} ms" for name, seconds in {"this plan": plan.exposed, **rows}.items()]
    return "\n".join(lines)


def picture(plan: BucketPlan, path: Path) -> None:
    """Backward pass, transfers of this plan and of fixed buckets; what is exposed is shaded."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InvalidArgument(f"a picture needs matplotlib; {install('cli', 'matplotlib')}") from None
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise InvalidArgument(f"{path}: {unknown('kind of picture', path.suffix, ('.' + kind for kind in kinds))}")
    shown = {"this plan": plan.simulated, "fixed 25 MiB": plan.compared["fixed 25 MiB"]}
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(shown), 1, sharex=True)
    for axes, (name, played) in zip(all_axes, shown.items(), strict=True):
        _lane(axes, plan, played, name)
    all_axes[-1].set_xlabel("ms after the start of backward")
    figure.savefig(path, dpi=150)


def _lane(axes: Any, plan: BucketPlan, played: Simulated, name: str) -> None:
    end = plan.timeline.backward_end * 1e3
    axes.broken_barh([(0.0, played.backward * 1e3)], (1.1, 0.8), facecolors="#9db7d5")
    axes.vlines(plan.timeline.ready * 1e3, 1.1, 1.9, colors="#5b7fa6", linewidth=0.4)
    spans = [(s * 1e3, (e - s) * 1e3) for s, e in zip(played.start, played.end, strict=True)]
    axes.broken_barh(spans, (0.1, 0.8), facecolors="#e0a458", edgecolors="white", linewidth=0.5)
    axes.axvspan(end, max(played.finish * 1e3, end), color="#d9534f", alpha=0.2, linewidth=0)
    axes.set_yticks([0.5, 1.5], ["all-reduce", "backward"], fontsize=8)
    axes.set_ylim(0, 2)
    axes.set_title(
        f"{name}: {len(played.buckets)} buckets, exposed {played.exposed * 1e3:.2f} ms", fontsize=9, loc="left"
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
