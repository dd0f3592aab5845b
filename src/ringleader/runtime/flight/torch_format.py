"""Recordings in the form of PyTorch's flight recorder, which ``torchfrtrace`` reads.

What is in it: torch/csrc/distributed/c10d/FlightRecorder.hpp and torch/distributed/flight_recorder. Its analyser knows
the names of some backends only, so operations are called Gloo's.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringleader.runtime.flight.records import Operation, Recording

__all__ = ["convert", "write"]

VERSION = "2.10"
_NAMES = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all_single",
}
_STATES = {"queued": "scheduled", "running": "started", "done": "completed", "failed": "started"}
_SITE = re.compile(r"(?P<file>.*):(?P<line>\d+)(?: in (?P<name>.*))?")


def convert(recordings: Iterable[Recording]) -> dict[int, dict[str, Any]]:
    """By rank of the job, what PyTorch would have dumped for it.

    Parameters
    ----------
    recordings
        Of one job; several of one rank are those of its communicators.
    """
    dumps: dict[int, dict[str, Any]] = {}
    by_rank: dict[int, list[Recording]] = defaultdict(list)
    for recording in recordings:
        by_rank[recording.members[recording.rank]].append(recording)
    for rank, own in by_rank.items():
        entries = [
            _entry(operation, recording, place)
            for place, recording in enumerate(own)
            for operation in (*recording.operations, *recording.messages)
        ]
        entries.sort(key=lambda entry: entry["time_created_ns"])
        for number, entry in enumerate(entries):
            entry["record_id"] = number
        dumps[rank] = {
            "version": VERSION,
            "comm_lib_version": "ringleader",
            "pg_config": {
                each.group: {"name": each.group, "desc": "ringleader", "ranks": str(list(each.members))} for each in own
            },
            "pg_status": {
                str(place): {
                    "last_enqueued_collective": max((o.number for o in each.operations), default=-1),
                    "last_started_collective": max((o.number for o in each.operations), default=-1),
                    "last_completed_collective": max((o.number for o in each.operations if o.ended), default=-1),
                }
                for place, each in enumerate(own)
            },
            "entries": entries,
        }
    return dumps


def write(recordings: Iterable[Recording], prefix: str | Path) -> list[Path]:
    """Write a file ``{prefix}{rank of the job}`` for each rank; returns their paths.

    A file is replaced as a whole, so that nobody reads half of one.
    """
    paths = []
    for rank, dump in convert(recordings).items():
        path = Path(f"{prefix}{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(pickle.dumps(dump, protocol=2))
        part.replace(path)
        paths.append(path)
    return paths


def _entry(operation: Operation, recording: Recording, place: int) -> dict[str, Any]:
    created = operation.queued or operation.begun or 0.0
    kind = _NAMES.get(operation.kind, operation.kind)
    peer = operation.peer
    if peer is not None:
        source = peer if peer >= 0 else recording.rank  # any rank: PyTorch has no word for it
        kind += f" {recording.rank}->{source}" if operation.kind == "send" else f" {recording.rank}<-{source}"
    inputs, outputs = _sizes(operation, recording.size)
    return {
        "record_id": 0,
        "pg_id": place,
        "process_group": (recording.group, "ringleader"),
        "collective_seq_id": operation.number if operation.collective else 0,
        "p2p_seq_id": 0 if operation.collective else operation.number,
        "op_id": operation.number,
        "profiling_name": f"gloo:{kind}",
        "time_created_ns": round(created * 1e9),
        "input_sizes": [inputs],
        "output_sizes": [outputs],
        "input_dtypes": [operation.dtype],
        "output_dtypes": [operation.dtype],
        "state": _STATES[operation.state],
        "time_discovered_started_ns": None if operation.begun is None else round(operation.begun * 1e9),
        "time_discovered_completed_ns": None if operation.ended is None else round(operation.ended * 1e9),
        "retired": operation.state in ("done", "failed"),
        "timeout_ms": 0,
        "is_p2p": not operation.collective,
        "frames": _frames(operation.site),
    }


def _sizes(operation: Operation, ranks: int) -> tuple[list[int], list[int]]:
    """Elements of input and output; a shape where both have it."""
    count = operation.count
    if operation.kind in ("all_reduce", "broadcast", "reduce", "barrier", "send", "recv"):
        shape = list(operation.shape) if operation.shape is not None else [count]
        return (shape, shape) if math.prod(shape) == count else ([count], [count])
    if operation.kind == "all_to_all":
        return [count * ranks], [count * ranks]
    grows = operation.kind in ("all_gather", "gather")
    return ([count], [count * ranks]) if grows else ([count * ranks], [count])


def _frames(site: str) -> list[dict[str, Any]]:
    match = _SITE.fullmatch(site)
    if match is None:
        return []
    return [{"name": match["name"] or "", "filename": match["file"], "line": int(match["line"])}]
