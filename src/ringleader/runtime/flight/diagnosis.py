"""What went wrong, from the recordings of all ranks: who waits for whom since which call, and who called what else."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringleader.runtime.flight.records import Operation, Recording

__all__ = ["Finding", "autopsy", "latest_job"]

_SOON = 0.5  # seconds: ranks whose operation was running for less when they were last heard of were just at work


@dataclass(frozen=True)
class Finding:
    """What is known of one communicator.

    Attributes
    ----------
    group
        Its name.
    verdict
        One sentence: who is to blame, or that nothing is wrong.
    ranks
        Whom the verdict names.
    details
        Further sentences, one thing each.
    """

    group: str
    verdict: str
    ranks: tuple[int, ...]
    details: tuple[str, ...]


def latest_job(recordings: Sequence[Recording]) -> list[Recording]:
    """Those of the job that was heard of last: a folder may hold several runs."""
    last = max(recordings, key=lambda each: each.read).job
    return [each for each in recordings if each.job == last]


def autopsy(recordings: Iterable[Recording]) -> list[Finding]:
    """Compare the ranks of each communicator; those with a fault come first.

    Parameters
    ----------
    recordings
        Of one job, see `read_recordings` and `latest_job`. Ranks may be missing.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.runtime.flight import autopsy
    >>> with rl.init(rank=0, size=1) as comm:
    ...     comm.barrier()
    ...     [finding.verdict for finding in autopsy([comm.recorded()])]
    ['nothing is wrong: 1 rank, the last operation was barrier #1']
    """
    groups: dict[str, dict[int, Recording]] = defaultdict(dict)
    for recording in recordings:
        groups[recording.group][recording.rank] = recording
    found = [_examine(name, ranks) for name, ranks in groups.items()]
    return sorted(found, key=lambda finding: not finding.ranks)


def _examine(group: str, ranks: dict[int, Recording]) -> Finding:
    size = next(iter(ranks.values())).size
    details = [_standing(ranks[rank]) for rank in sorted(ranks)]
    if absent := [rank for rank in range(size) if rank not in ranks]:
        details.append(f"there is no recording of {_named(absent)}: other hosts keep their own, or they never started")
    causes = list(dict.fromkeys(each.cause.partition("\n")[0] for each in ranks.values() if each.cause))
    details += [f"an error said: {cause}" for cause in causes[:2]]  # those of other ranks say it from their side
    verdict, blamed = _mismatch(ranks) or _late(ranks, absent) or _message(ranks) or _dead(ranks) or ("", ())
    if not verdict:
        last = max((o for each in ranks.values() for o in each.operations), key=lambda o: o.number, default=None)
        ranks_text = f"{len(ranks)} rank" + ("" if len(ranks) == 1 else "s")
        verdict = f"nothing is wrong: {ranks_text}, " + (
            "no operation was called" if last is None else f"the last operation was {last.text()}"
        )
        if causes:
            verdict = f"it failed: {causes[0]}"
            blamed = tuple(sorted(ranks))
    return Finding(group, verdict, tuple(blamed), tuple(details))


def _called(operation: Operation) -> str:
    return f", called at {operation.site}" if operation.site else ""


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown})"


def _last(recording: Recording) -> Operation | None:
    return recording.operations[-1] if recording.operations else None


def _standing(recording: Recording) -> str:
    """Where a rank was when it was heard of last."""
    last = _last(recording)
    if last is None:
        text = "has called no operation"
    elif last.state == "running":
        text = f"is in {last.text()}{_for(last, recording)}{_called(last)}"
    else:
        ago = "" if last.ended is None else f" {_seconds(recording.read - last.ended)} before it was last heard of"
        did = "failed in" if last.state == "failed" else "completed"
        text = f"{did} {last.text()}{ago}{_called(last)}"
    messages = [o for o in recording.messages if o.state == "running"]
    text += "".join(f"; {o.text()} is not over{_called(o)}" for o in messages[:3])
    if len(messages) > 3:
        text += f"; and {len(messages) - 3} more messages"
    if recording.end == "closed":
        text += "; it has closed the communicator"
    elif _gone(recording):
        text += "; its process is gone"
    return f"{recording.name} {text}"


def _for(operation: Operation, recording: Recording) -> str:
    return "" if operation.begun is None else f" for {_seconds(recording.read - operation.begun)}"


def _seconds(seconds: float) -> str:
    seconds = max(0.0, seconds)
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def _gone(recording: Recording) -> bool:
    """Whether the process is known to have ended, which only its own host can tell."""
    if recording.host != socket.gethostname() or recording.end != "live":
        return False
    try:
        os.kill(recording.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


_FIELDS = ("kind", "dtype", "shape", "count", "op", "root", "wire", "algorithm")


def _mismatch(ranks: dict[int, Recording]) -> tuple[str, Sequence[int]] | None:
    """The first operation that ranks have called differently: the fewer are to blame."""
    by_number: dict[int, dict[int, Operation]] = defaultdict(dict)
    for rank, recording in ranks.items():
        for operation in recording.operations:
            by_number[operation.number][rank] = operation
    for number in sorted(by_number):
        calls = by_number[number]
        kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank, operation in calls.items():
            kinds[(*(getattr(operation, name) for name in _FIELDS), operation.identity)].append(rank)
        if len(kinds) < 2:
            continue
        many, *others = sorted(kinds.values(), key=lambda same: (-len(same), same))
        usual = calls[many[0]]
        texts = []
        for same in others:
            odd = calls[same[0]]
            differing = [name for name in _FIELDS if getattr(odd, name) != getattr(usual, name)]
            sides = ", ".join(f"{name} {getattr(odd, name)!r}" for name in differing) or "another schedule"
            those = ", ".join(f"{name} {getattr(usual, name)!r}" for name in differing) or "its own"
            texts.append(
                f"{_who(ranks, same)} called operation #{number} with {sides}{_called(odd)}; "
                f"{_who(ranks, many)} with {those}{_called(usual)}"
            )
        return "; ".join(texts), sorted(rank for same in others for rank in same)
    return None


def _who(ranks: dict[int, Recording], some: Sequence[int]) -> str:
    return ranks[some[0]].name if len(some) == 1 else _named(some)


def _late(ranks: dict[int, Recording], absent: Sequence[int]) -> tuple[str, Sequence[int]] | None:
    """Who has not entered the operation that others wait or have failed in."""
    waiting = {
        rank: last
        for rank, each in ranks.items()
        if (last := _last(each)) is not None and (last.state == "failed" or _waits(last, each))
    }
    if not waiting:
        return None
    first = min(waiting.values(), key=lambda operation: operation.number)
    behind = [rank for rank, each in ranks.items() if (last := _last(each)) is None or last.number < first.number]
    longest = max(
        ((operation.ended or ranks[rank].read) - operation.begun)
        for rank, operation in waiting.items()
        if operation.begun is not None
    ) if any(operation.begun is not None for operation in waiting.values()) else 0.0  # fmt: skip
    whom = f"{_named(sorted(waiting))} waited {_seconds(longest)}{_called(first)}"
    if behind:
        texts = [f"{ranks[rank].name} has not entered {first.text()}{_doing(ranks[rank])}" for rank in sorted(behind)]
        return f"{'; '.join(texts)}; {whom}", sorted(behind)
    if absent:
        return f"{_named(absent)} left no recording, and {first.text()} is not over; {whom}", absent
    entered = {
        rank: operation.begun
        for rank, each in ranks.items()
        for operation in each.operations
        if operation.number == first.number and operation.begun is not None
    }
    if entered and longest > 0:
        start = min(entered.values())
        if slow := sorted(rank for rank, begun in entered.items() if begun - start > longest / 2):
            texts = [
                f"{ranks[rank].name} entered {first.text()} {_seconds(entered[rank] - start)} late" for rank in slow
            ]
            return f"{'; '.join(texts)}; {whom}", slow
    gone = [rank for rank, each in ranks.items() if _gone(each)]
    if 0 < len(gone) < len(ranks):
        return f"{_who(ranks, gone)} ended in {first.text()}; {whom}", gone
    return f"all ranks are in {first.text()}; {whom}", sorted(waiting)


def _waits(operation: Operation, recording: Recording) -> bool:
    if operation.state != "running":
        return False
    return operation.begun is None or recording.read - operation.begun > _SOON or _gone(recording)


def _doing(recording: Recording) -> str:
    last = _last(recording)
    if recording.end == "closed":
        return " and has closed the communicator"
    gone = ", and its process is gone" if _gone(recording) else ""
    if last is None:
        return f", nor any operation before{gone}"
    return f"; the last that it called is {last.text()}{_called(last)}{gone}"


def _message(ranks: dict[int, Recording]) -> tuple[str, Sequence[int]] | None:
    """A receive whose message was not sent."""
    for rank in sorted(ranks):
        for operation in ranks[rank].messages:
            peer = operation.peer
            if operation.kind != "recv" or operation.state == "done" or peer is None or peer not in ranks:
                continue
            sent = [
                each
                for each in ranks[peer].messages
                if each.kind == "send" and each.peer == rank and each.tag == operation.tag
            ]
            if any(each.state == "running" for each in sent):
                continue
            return (
                f"{ranks[peer].name} has not sent what {ranks[rank].name} waits for in {operation.text()}"
                f"{_called(operation)}"
            ), (peer,)
    return None


def _dead(ranks: dict[int, Recording]) -> tuple[str, Sequence[int]] | None:
    gone = [rank for rank, each in ranks.items() if _gone(each)]
    if not gone or all(_gone(each) or each.end == "closed" for each in ranks.values()):
        return None
    return f"the process of {_who(ranks, gone)} is gone", gone
