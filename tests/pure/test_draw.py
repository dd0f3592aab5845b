"""Drawings: every transfer is there, nothing is wider than asked, and the SVG is well formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from test_schedule_samples import SAMPLES, dissemination, doubling, one_shot, ring, through_scratch

from ringleader.errors import ScheduleError
from ringleader.schedule import Schedule, draw_svg, draw_text

SVG = "{http://www.w3.org/2000/svg}"


def test_text_of_a_small_ring() -> None:
    lines = draw_text(ring(3)).splitlines()
    assert lines[0] == "ring: all_reduce, 3 ranks, 3 chunks, 4 steps, 12 transfers"
    assert lines[1].split() == ["step", "|", "rank", "0", "|", "rank", "1", "|", "rank", "2"]
    assert [cell.strip() for cell in lines[3].split("|")] == ["0", "+1<2", "+2<0", "+0<1"]
    assert [cell.strip() for cell in lines[6].split("|")] == ["3", "2<1", "0<2", "1<0"]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [60, 120])
def test_text_shows_every_transfer_and_keeps_its_width(name: str, width: int) -> None:
    schedule = SAMPLES[name]()
    text = draw_text(schedule, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.count("<") == schedule.transfers
    assert text.count("+") - text.splitlines()[2].count("+") == int(schedule.table["reduce"].sum())


def test_text_with_scratch_and_sixteen_ranks() -> None:
    assert "+s2-3>0-1<0" in draw_text(through_scratch(3))
    assert draw_text(doubling(16), 120).count("<") == 64
    assert "r15" in draw_text(doubling(16), 120)
    assert draw_text(one_shot(16), 120).count("<") == 240


@pytest.mark.parametrize("schedule", [ring(40), doubling(16), dissemination(100), one_shot(17)])
def test_summary_where_a_grid_would_not_fit(schedule: Schedule) -> None:
    text = draw_text(schedule, 60)
    assert "<" not in text
    assert all(len(line) <= 60 for line in text.splitlines())
    assert len(text.splitlines()) <= 43


def test_empty_schedules() -> None:
    empty = Schedule.empty("all_reduce", 1, 1)
    assert draw_text(empty).startswith("all_reduce, 1 rank, 1 chunk, 0 steps, 0 transfers")
    ElementTree.fromstring(draw_svg(empty))


@pytest.mark.parametrize("name", SAMPLES)
def test_svg_has_an_arrow_for_each_transfer(name: str) -> None:
    schedule = SAMPLES[name]()
    root = ElementTree.fromstring(draw_svg(schedule))
    arrows = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    titles = {group.find(f"{SVG}title").text for group in arrows}  # type: ignore[union-attr]
    assert titles == {schedule.describe(i) for i in range(schedule.transfers)}
    reduces = [group for group in arrows if group.find(f"{SVG}path").get("class") == "reduce"]  # type: ignore[union-attr]
    assert len(reduces) == int(schedule.table["reduce"].sum())


def test_svg_stays_on_its_canvas() -> None:
    text = draw_svg(ring(6))
    root = ElementTree.fromstring(text)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for match in re.finditer(r"[ML](-?[\d.]+),(-?[\d.]+)", text):
        assert 0 <= float(match[1]) <= width
        assert 0 <= float(match[2]) <= height


def test_svg_colours_differ_between_chunks_and_names_are_escaped() -> None:
    root = ElementTree.fromstring(draw_svg(ring(5).with_name("<b>&\"'")))
    strokes = {group.get("stroke") for group in root.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None}
    assert len(strokes) == 5


def test_svg_of_too_many_transfers_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"7832 transfers; at most 4096"):
        draw_svg(one_shot(89))
