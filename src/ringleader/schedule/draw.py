"""Drawings of a schedule: as text for a terminal, and as an SVG space-time diagram."""

from __future__ import annotations

import colorsys
from html import escape

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ScheduleError
from ringleader.schedule.table import Schedule
from ringleader.schedule.types import Buffer

__all__ = ["MAX_ARROWS", "draw_svg", "draw_text"]

MAX_ARROWS = 4096
"""Most transfers that `draw_svg` draws."""

_TEXT_RANKS = 16  # more ranks than that are summarised, step by step
_BUFFER_MARKS = {Buffer.DATA: "", Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}


def draw_text(schedule: Schedule, width: int = 120) -> str:
    """A table of what each rank receives: ranks are columns, steps are rows.

    ``2<1`` says that chunk 2 comes from rank 1 and replaces what is there, ``+2<1`` that it is reduced into it; ``4-7``
    are several chunks, ``i``, ``o`` and ``s`` before a number mean input, output and scratch; ``3>5`` names source
    and destination chunk where they differ.

    Parameters
    ----------
    schedule
        A schedule that keeps the spec.
    width
        Columns of the terminal. Cells are wrapped to fit; where that is hopeless, and beyond 16 ranks, each step is
        summarised in one line.

    Returns
    -------
    str
        Lines of at most `width` characters, without a final newline.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("all_reduce", n=2, chunks=2)
    >>> b.send(0, src=[0, 1], src_chunk=[1, 0], dst=[1, 0], reduce=True)
    >>> b.send(1, src=[0, 1], src_chunk=[0, 1], dst=[1, 0])
    >>> print(draw_text(b.build()))
    all_reduce, 2 ranks, 2 chunks, 2 steps, 4 transfers
    step | rank 0 | rank 1
    -----+--------+-------
       0 | +0<1   | +1<0
       1 | 1<1    | 0<0
    """
    channels = f", {schedule.channels} channels" if schedule.channels > 1 else ""
    root = f", root {schedule.root}" if schedule.collective.rooted else ""
    title = (
        f"{schedule.name + ': ' if schedule.name else ''}{schedule.collective}, {_plural(schedule.n, 'rank')}{root}, "
        f"{_plural(schedule.chunks, 'chunk')}, {_plural(schedule.steps, 'step')}, "
        f"{_plural(schedule.transfers, 'transfer')}{channels}"
    )
    lines = [title[:width]]
    if schedule.n > _TEXT_RANKS:
        return "\n".join(lines + _summary(schedule, width))
    cells: dict[tuple[int, int], list[str]] = {}
    for row in schedule.table:
        cells.setdefault((int(row["step"]), int(row["dst_rank"])), []).append(_cell(row))
    longest = max([3] + [len(text) for texts in cells.values() for text in texts])
    gap = " | " if 5 + schedule.n * (longest + 3) <= width else " "
    column = (width - 5) // schedule.n - len(gap)
    if column < longest:
        return "\n".join(lines + _summary(schedule, width))
    grid = [
        (step, [_wrapped(cells.get((step, rank), []), column) for rank in range(schedule.n)])
        for step in range(schedule.steps)
    ]
    heads = [f"rank {rank}" if column >= 7 else f"r{rank}" for rank in range(schedule.n)]  # n <= 16: two digits
    widths = [
        max([len(heads[rank])] + [len(text) for _, row in grid for text in row[rank]]) for rank in range(schedule.n)
    ]
    lines.append("step | " + gap.join(head.ljust(size) for head, size in zip(heads, widths, strict=True)).rstrip())
    lines.append("-----+-" + gap.replace(" ", "-").replace("|", "+").join("-" * size for size in widths))
    for step, row in grid:
        for height in range(max(1, *(len(cell) for cell in row))):
            texts = [cell[height] if height < len(cell) else "" for cell in row]
            label = f"{step:4d}" if height == 0 else "    "
            body = gap.join(text.ljust(size) for text, size in zip(texts, widths, strict=True))
            lines.append(f"{label} | {body}".rstrip())
    return "\n".join(lines)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _cell(row: np.void) -> str:
    """One transfer, as its receiver sees it."""
    count = int(row["count"])

    def chunks(end: str) -> str:
        first = int(row[f"{end}_chunk"])
        span = str(first) if count == 1 else f"{first}-{first + count - 1}"
        return _BUFFER_MARKS[Buffer(int(row[f"{end}_buffer"]))] + span

    source, target = chunks("src"), chunks("dst")
    named = target if source == target else f"{source}>{target}"
    return f"{'+' if row['reduce'] else ''}{named}<{row['src_rank']}"


def _wrapped(texts: list[str], width: int) -> list[str]:
    """Texts joined by spaces, broken into lines of at most `width` characters; no text is longer."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 1 + len(text) <= width:
            lines[-1] += " " + text
        else:
            lines.append(text)
    return lines


def _summary(schedule: Schedule, width: int) -> list[str]:
    """One line a step: how much moves, and between which distances of ranks."""
    lines = ["step | copies | reduces | chunks | senders | receivers | destination - source, modulo n"]
    steps = schedule.table["step"]
    shown = np.unique(steps)
    skipped = 0
    if len(shown) > 40:
        skipped = len(shown) - 39
        shown = np.concatenate([shown[:20], shown[-19:]])
    for i, step in enumerate(shown):
        if skipped and i == 20:
            lines.append(f" ... | {skipped} more steps")
        rows = schedule.table[np.searchsorted(steps, step) : np.searchsorted(steps, step, side="right")]
        distances = np.unique((rows["dst_rank"] - rows["src_rank"]) % schedule.n)
        listed = ", ".join(f"{int(distance)}" for distance in distances[:8]) + (", ..." if len(distances) > 8 else "")
        reduces = int(rows["reduce"].sum())
        lines.append(
            f"{step:4d} | {len(rows) - reduces:6d} | {reduces:7d} | {int(rows['count'].sum()):6d} | "
            f"{len(np.unique(rows['src_rank'])):7d} | {len(np.unique(rows['dst_rank'])):9d} | {listed}"
        )
    return [line[:width] for line in lines]


# ---------------------------------------------------------------------------------------------------------- SVG

_LANE, _STEP, _LEFT, _TOP, _LEGEND = 56, 104, 76, 76, 64  # pixels


def draw_svg(schedule: Schedule) -> str:
    """A space-time diagram: each rank is a lane, time runs to the right, each transfer is an arrow.

    Arrows have the colour of their chunk; thin ones copy, bold ones (with a filled head and a dot) reduce. Transfers
    within one rank are arcs above its lane. A title on each arrow, shown by browsers, describes the transfer.

    Raises
    ------
    ScheduleError
        If there are more than `MAX_ARROWS` transfers; draw fewer ranks of the same algorithm, or use `draw_text`.

    Examples
    --------
    >>> from ringleader.schedule import Builder
    >>> b = Builder("broadcast", n=2, chunks=1)
    >>> b.send(0, src=0, src_chunk=0, dst=1)
    >>> draw_svg(b.build()).count("<title>transfer 0 ")
    1
    """
    if schedule.transfers > MAX_ARROWS:
        raise ScheduleError(
            f"{schedule!r} has {schedule.transfers} transfers; at most {MAX_ARROWS} can be drawn. Draw fewer ranks"
        )
    classes = _colour_classes(schedule)
    colours = _colours(int(classes.max(initial=0)) + 1)
    height = _TOP + _LANE * schedule.n + _LEGEND
    parts = [*_background(schedule, height)]
    # Reduces are drawn last: they are what one looks for.
    for index in np.argsort(schedule.table["reduce"], kind="stable"):
        parts.append(_arrow(schedule, int(index), colours[int(classes[index])]))
    parts.extend(_dots(schedule))
    parts.extend(_legend(schedule, classes, colours, height - _LEGEND + 20))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _canvas_width(schedule: Schedule) -> int:
    return max(_LEFT + _STEP * max(schedule.steps, 1) + 32, 620)


def _lane(rank: int) -> float:
    return _TOP + _LANE * (rank + 0.5)


def _colour_classes(schedule: Schedule) -> NDArray[np.int64]:
    """For each transfer the number of its colour: the chunk it carries; for an all_to_all the rank it comes from."""
    result: NDArray[np.int64] = schedule.table["src_chunk"].astype(np.int64)
    scratch = schedule.table["src_buffer"] == Buffer.SCRATCH
    result[scratch] = schedule.table["dst_chunk"][scratch]
    return result % max(schedule.chunks, 1)


def _colours(count: int) -> list[str]:
    """Colours that neighbours differ in: hues of equal distance, two alternating lightnesses when there are many."""
    if count == 1:
        return ["#1f6fb4"]
    result = []
    for i in range(count):
        hue = (205 / 360 + i / count) % 1
        # Yellow and green look lighter than blue: take some light out of them.
        lightness = 0.47 - (0.12 if 0.11 <= hue <= 0.53 else 0) - (0.09 if count > 8 and i % 2 else 0)
        red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, 0.72))
        result.append(f"#{red:02x}{green:02x}{blue:02x}")
    return result


def _background(schedule: Schedule, height: int) -> list[str]:
    width = _canvas_width(schedule)
    title = f"{schedule.name + ' - ' if schedule.name else ''}{schedule.collective}"
    root = f", root {schedule.root}" if schedule.collective.rooted else ""
    subtitle = (
        f"{_plural(schedule.n, 'rank')}{root}, {_plural(schedule.chunks, 'chunk')}, {_plural(schedule.steps, 'step')}, "
        f"{_plural(schedule.transfers, 'transfer')}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        "<style>.lane{stroke:#c9ced6;stroke-width:1.5} .tick{stroke:#eceff3} .label{fill:#38414d} .quiet{fill:#7b8694}"
        " .copy,.reduce{fill:none} .copy{stroke-width:1.4} .reduce{stroke-width:3.2}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="16" font-weight="bold" class="label">{escape(title)}</text>',
        f'<text x="16" y="42" class="quiet">{escape(subtitle)}</text>',
    ]
    bottom = _TOP + _LANE * schedule.n
    for step in range(schedule.steps):
        x = _LEFT + _STEP * step
        if step % 2 == 0:
            parts.append(f'<rect x="{x}" y="{_TOP}" width="{_STEP}" height="{bottom - _TOP}" fill="#f6f8fa"/>')
        parts.append(f'<text x="{x + _STEP / 2}" y="{_TOP - 6}" text-anchor="middle" class="quiet">step {step}</text>')
    end = _LEFT + _STEP * max(schedule.steps, 1)
    for rank in range(schedule.n):
        y = _lane(rank)
        parts.append(f'<line x1="{_LEFT - 10}" y1="{y}" x2="{end + 10}" y2="{y}" class="lane"/>')
        weight = ' font-weight="bold"' if schedule.collective.rooted and rank == schedule.root else ""
        text = f'<text x="{_LEFT - 18}" y="{y + 4}" text-anchor="end" class="label"{weight}>rank {rank}</text>'
        parts.append(text)
    return parts


def _arrow(schedule: Schedule, index: int, colour: str) -> str:
    """One transfer: a path with a head, and a title."""
    row = schedule.table[index]
    kind = "reduce" if row["reduce"] else "copy"
    start, end = _LEFT + _STEP * int(row["step"]) + 14.0, _LEFT + _STEP * (int(row["step"]) + 1) - 14.0
    source, target = _lane(int(row["src_rank"])), _lane(int(row["dst_rank"]))
    if source == target:
        middle = (start + end) / 2
        path = f"M{start:.1f},{source} Q{middle:.1f},{source - _LANE * 0.75:.1f} {end:.1f},{target}"
        direction = (end - middle, _LANE * 0.75)
    else:
        path = f"M{start:.1f},{source} L{end:.1f},{target}"
        direction = (end - start, target - source)
    head = _head(end, target, direction, 10.0 if kind == "reduce" else 8.0)
    filled = colour if kind == "reduce" else "#ffffff"
    return (
        f'<g stroke="{colour}"><title>{escape(schedule.describe(index))}</title><path class="{kind}" d="{path}"/>'
        f'<path d="{head}" fill="{filled}" stroke-width="1.2" stroke-linejoin="round"/></g>'
    )


def _head(x: float, y: float, direction: tuple[float, float], size: float) -> str:
    """The triangle of an arrow's head whose tip is at (x, y)."""
    length = float(np.hypot(*direction))
    ux, uy = direction[0] / length, direction[1] / length
    bx, by = x - ux * size, y - uy * size
    wx, wy = -uy * size * 0.42, ux * size * 0.42
    return f"M{x:.1f},{y:.1f} L{bx + wx:.1f},{by + wy:.1f} L{bx - wx:.1f},{by - wy:.1f} Z"


def _dots(schedule: Schedule) -> list[str]:
    """Where something is reduced, and how many transfers arrive there."""
    parts = []
    reduces = schedule.table[schedule.table["reduce"] == 1]
    places, operands = np.unique(reduces[["step", "dst_rank"]], return_counts=True)
    for place, count in zip(places, operands, strict=True):
        x, y = _LEFT + _STEP * (int(place["step"]) + 1) - 8, _lane(int(place["dst_rank"]))
        parts.append(f'<circle cx="{x}" cy="{y}" r="6.5" fill="#38414d"/>')
        parts.append(f'<text x="{x}" y="{y + 3.5}" text-anchor="middle" font-size="10" fill="#ffffff">{count}</text>')
    return parts


def _legend(schedule: Schedule, classes: NDArray[np.int64], colours: list[str], y: int) -> list[str]:
    parts = [
        f'<g stroke="#38414d"><path class="copy" d="M16,{y} L52,{y}"/></g>',
        f'<text x="60" y="{y + 4}" class="label">copy</text>',
        f'<g stroke="#38414d"><path class="reduce" d="M104,{y} L140,{y}"/></g>',
        f'<text x="148" y="{y + 4}" class="label">reduce</text>',
        f'<circle cx="214" cy="{y}" r="6.5" fill="#38414d"/>'
        f'<text x="214" y="{y + 3.5}" text-anchor="middle" font-size="10" fill="#ffffff">k</text>',
        f'<text x="226" y="{y + 4}" class="label">k transfers reduced into this rank</text>',
        f'<text x="16" y="{y + 28}" class="label">chunk</text>',
    ]
    x = 60
    used = np.unique(classes)
    for place, chunk in enumerate(used):
        if x > _canvas_width(schedule) - 70 and place < len(used) - 1:
            parts.append(f'<text x="{x}" y="{y + 28}" class="quiet">... {int(used[-1])}</text>')
            break
        parts.append(f'<rect x="{x}" y="{y + 18}" width="12" height="12" rx="2" fill="{colours[int(chunk)]}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 28}" class="label">{int(chunk)}</text>')
        x += 26 + 7 * len(str(int(chunk)))
    return parts
