"""A barrier that names the ranks which do not come. It goes by the store, so it works where the engine is stuck."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ringleader import errors

__all__ = ["monitored_barrier"]


def monitored_barrier(store: Any, rank: int, size: int, number: int, limit: float, wait_all_ranks: bool) -> None:
    """Wait for all ranks; rank 0 says which are missing.

    Parameters
    ----------
    store
        torch's store of the group.
    rank, size
        Place in the group.
    number
        How many monitored barriers the group has had before; the same on all ranks.
    limit
        Seconds to wait, on each rank.
    wait_all_ranks
        Wait for every rank before failing, so that all missing ones are named; else the first missing one ends it.

    Raises
    ------
    CollectiveTimeout
        Not all ranks came. The texts are those of torch's own monitored barrier, which programs look for.
    """
    deadline = time.monotonic() + limit
    place = f"monitored/{number}"
    if rank != 0:
        store.set(f"{place}/{rank}", b"")
        if not _there(store, f"{place}/passed", deadline):
            raise errors.CollectiveTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: it did not answer within {limit:g} s; see what rank 0 reports",
                (0,),
            )
        return
    missing: list[int] = []
    for peer in range(1, size):
        if time.monotonic() >= deadline and not missing:
            raise errors.CollectiveTimeout(f"Rank 0 timed out in monitoredBarrier after {limit * 1e3:g} ms", (peer,))
        if not _there(store, f"{place}/{peer}", deadline):
            missing.append(peer)
            if not wait_all_ranks:
                break
    if missing:
        named = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise errors.CollectiveTimeout(f"{named} failed to pass monitoredBarrier in {limit * 1e3:g} ms", missing)
    store.set(f"{place}/passed", b"")
    # Everybody is here, so nobody waits for the barrier before any more.
    for peer in range(1, size):
        store.delete_key(f"{place}/{peer}")
    if number:
        store.delete_key(f"monitored/{number - 1}/passed")


def _there(store: Any, key: str, deadline: float) -> bool:
    """Whether the key is set before the deadline; asked once if that has passed."""
    if store.check([key]):
        return True
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    try:
        store.wait([key], timedelta(seconds=left))
    except RuntimeError:  # too late: each kind of store has an error of its own for that
        return bool(store.check([key]))  # which fails again if the store is not there any more
    return True
