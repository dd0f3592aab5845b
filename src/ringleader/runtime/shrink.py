"""Which ranks are left: agreement among the survivors of a failure, through the store.

Every survivor announces itself, with the ranks that it takes for lost. A rank that announces itself is alive, whatever
others think: over a network, a survivor that closes its connections looks like a dead one for a moment. A rank that
does not is waited for until the deadline, or shortly if somebody takes it for lost. Then one survivor's list is
decided on, whichever asks first (an atomic counter in the store), and all take it: so all agree, also where some saw
more than others. A rank that was given up and comes too late is told so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from ringleader import errors
from ringleader.runtime.store import Store, ranks_text

__all__ = ["agree_on_lost"]

_LOOK_AGAIN = 0.02
# Seconds that a rank which somebody takes for lost has to announce itself; on a crowded host a live one may need long.
_GRACE = 2.0


def _encode(ranks: set[int]) -> bytes:
    return ",".join(map(str, sorted(ranks))).encode()


def _decode(text: bytes) -> set[int]:
    return {int(part) for part in text.decode().split(",") if part}


def agree_on_lost(
    store: Store,
    rank: int,
    size: int,
    known_lost: Callable[[], Sequence[int]],
    timeout: float,
) -> list[int]:
    """The ranks that all survivors give up.

    Parameters
    ----------
    store
        Keys of this one agreement only.
    known_lost
        Ranks that this rank knows to be dead, at this moment.
    timeout
        Seconds to wait for ranks that are neither here nor known to be dead.

    Raises
    ------
    PeerLost
        The others have given up this rank.
    RendezvousError
        The store died; usually with the rank that served it.
    """
    try:
        lost = _collect(store, rank, size, known_lost, timeout)
        if store.add("decided", 1) == 1:
            store.set("decision", _encode(lost))
        decision = _decode(store.get("decision", timeout))
    except errors.RendezvousError as error:
        raise errors.RendezvousError(
            f"cannot shrink: the store, through which the survivors agree, is lost as well ({error}); "
            "serve the store outside the ranks (ringleader.spawn and torchrun do) to survive the loss of any rank"
        ) from error
    if rank in decision:
        raise errors.PeerLost(
            f"rank {rank} came too late to shrink(): the other survivors had given it up; raise their timeout",
            [rank],
        )
    return sorted(decision)


def _collect(store: Store, rank: int, size: int, known_lost: Callable[[], Sequence[int]], timeout: float) -> set[int]:
    """The ranks that have not announced themselves when all others have and they are given up."""
    claimed = set(known_lost()) - {rank}
    store.set(f"survivor/{rank}", _encode(claimed))
    missing = set(range(size)) - {rank}
    start = time.monotonic()
    while missing:
        elapsed = time.monotonic() - start
        claimed |= set(known_lost())
        for peer in sorted(missing):
            with contextlib.suppress(errors.CollectiveTimeout):
                claimed |= _decode(store.get(f"survivor/{peer}", 0))
                missing.discard(peer)
        if elapsed >= timeout or (elapsed >= min(_GRACE, timeout) and missing <= claimed):
            break
        time.sleep(_LOOK_AGAIN)
    return missing


def describe_loss(lost: Sequence[int], names: Sequence[str]) -> str:
    """The ranks that were left behind, as text.

    Examples
    --------
    >>> describe_loss([1], ["rank 0 (host a, pid 7)", "rank 1 (host b, pid 8)"])
    'rank 1 (host b, pid 8)'
    """
    if not lost:
        return "no rank"
    return ", ".join(names[rank] for rank in lost) if len(lost) <= 4 else f"ranks {ranks_text(lost)}"
