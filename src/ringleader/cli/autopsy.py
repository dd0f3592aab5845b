"""``ringleader autopsy``: what the flight recorders of a job's ranks tell."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from ringleader.runtime.flight.diagnosis import autopsy, latest_job
from ringleader.runtime.flight.records import Operation, Recording, read_recordings

__all__ = ["run_autopsy"]


def run_autopsy(console: Console, folder: Path, last: int, everything: bool, as_json: bool, torch: str | None) -> int:
    """Show what is wrong; 1 if something is."""
    recordings = read_recordings(folder)
    if not everything:
        recordings = latest_job(recordings)
    jobs = sorted({each.job: each.read for each in recordings}.items(), key=lambda item: item[1])
    findings = {job: autopsy(each for each in recordings if each.job == job) for job, _ in jobs}
    if torch is not None:
        from ringleader.runtime.flight.torch_format import write

        for path in write(recordings, torch):
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        facts = {
            "jobs": {job: [dataclasses.asdict(finding) for finding in found] for job, found in findings.items()},
            "recordings": [dataclasses.asdict(each) for each in recordings],
        }
        print(json.dumps(facts, indent=1))
    else:
        for found in findings.values():
            for finding in found:
                _say(console, f"{finding.group}: {finding.verdict}")
                for text in finding.details:
                    _say(console, f"  {text}")
        if last:
            for recording in sorted(recordings, key=lambda each: (each.group, each.rank)):
                _say(console, f"{recording.group}, {recording.name}:")
                for operation in sorted((*recording.operations, *recording.messages), key=_begun)[-last:]:
                    _say(console, f"  {_line(operation, recording)}")
    return int(any(finding.ranks for found in findings.values() for finding in found))


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _begun(operation: Operation) -> float:
    return operation.begun or operation.queued or 0.0


def _line(operation: Operation, recording: Recording) -> str:
    began = f"{(_begun(operation) - recording.read) * 1e3:+.3f} ms" if _begun(operation) else "?"
    took = "" if operation.ended is None or operation.begun is None else (
        f", {(operation.ended - operation.begun) * 1e6:.0f} us"
    )  # fmt: skip
    by = f", {operation.algorithm}" if operation.algorithm else ""
    return f"{began:>16}  {operation.text()}{by}: {operation.state}{took}" + (
        f", at {operation.site}" if operation.site else ""
    )
