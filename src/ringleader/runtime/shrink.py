"""Which ranks are left: agreement among the survivors of a failure, through the store.

Every survivor announces itself, with the ranks that it knows to be lost. A rank that has not announced itself is
waited for, unless it is known to be dead, here or in another's announcement, or until the deadline. Then one
survivor's list is decided on, whichever asks first (an atomic counter in the store), and all take it: so all agree,
also where some saw more than others. A rank that was given up and comes too late is told so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ringleader import errors
from ringleader.runtime.store import Store, ranks_text

__all__ = ["agree_on_lost"]

_LOOK_AGAIN = 0.05


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
    """The union of what the survivors know, once every rank has announced itself or is given up."""
    lost = set(known_lost()) - {rank}
    store.set(f"survivor/{rank}", _encode(lost))
    waiting = set(range(size)) - {rank}
    deadline = time.monotonic() + timeout
    while waiting:
        late = time.monotonic() >= deadline
        # What is dead is noted before looking: a rank that announced itself just before it died still counts as here;
        # the next group's start-up or its first operation will notice.
        lost |= set(known_lost()) - {rank}
        for peer in sorted(waiting):
            try:
                lost |= _decode(store.get(f"survivor/{peer}", 0)) - {rank}
            except errors.CollectiveTimeout:
                if late:
                    lost.add(peer)
                elif peer not in lost:
                    continue
            waiting.discard(peer)
        if waiting:
            time.sleep(_LOOK_AGAIN)
    return lost


def describe_loss(lost: Sequence[int], names: Sequence[str]) -> str:
    """The ranks that were left behind, as text.

    Examples
    --------
    >>> describe_loss([1], ["a", "b"])
    'rank 1 (b)'
    """
    if not lost:
        return "no rank"
    return ", ".join(f"rank {rank} ({names[rank]})" for rank in lost) if len(lost) <= 4 else f"ranks {ranks_text(lost)}"
