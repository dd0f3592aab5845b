"""What a compressed all-reduce sends, and whether it is predicted to be faster than a plain one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from ringleader.compress.base import Compressor
from ringleader.compress.casts import Cast
from ringleader.compress.feedback import ErrorFeedback
from ringleader.compress.sparse import TopK

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["exchanges", "pays", "scatters", "sent_bytes"]

# From this many ranks on summing the parts of sparse arrays sends less than gathering all of them.
_SCATTER_FROM: Final = 5
# Seconds by collective and power of two of bytes.
_predictions: weakref.WeakKeyDictionary[Communicator, dict[tuple[str, int], float]] = weakref.WeakKeyDictionary()


def scatters(compressor: TopK, n: int, remembers: bool) -> bool:
    """Whether sparse arrays of `n` ranks are summed in parts.

    Without memory whatever is in any payload must be sent again: nothing is won.

    Examples
    --------
    >>> scatters(TopK(k=1), 5, remembers=True), scatters(TopK(k=1), 4, remembers=True)
    (True, False)
    """
    return compressor.exchange == "scatter" or (compressor.exchange == "auto" and n >= _SCATTER_FROM and remembers)


def exchanges(compressor: Compressor, elements: int, n: int) -> list[tuple[str, int]]:
    """The collectives that a compressed all-reduce over `n` ranks consists of, and the bytes of each.

    For ``"all_gather"`` and ``"all_to_all"`` these are the bytes of all blocks together.

    Examples
    --------
    >>> from ringleader.compress import Int8
    >>> exchanges(Int8(), 1 << 20, 4)
    [('all_to_all', 1056768), ('all_gather', 1056768)]
    >>> exchanges(ErrorFeedback(TopK(ratio=0.01)), 1 << 20, 4)
    [('all_gather', 335552)]
    """
    remembers = isinstance(compressor, ErrorFeedback)
    inner = compressor.compressor if isinstance(compressor, ErrorFeedback) else compressor
    payload = inner.wire_bytes(elements)
    if inner.kind == "low_rank" or (inner.kind == "linear" and not (isinstance(inner, Cast) and remembers)):
        return [("all_reduce", payload)]
    if inner.kind in ("blocks", "linear"):
        shard = inner.wire_bytes(-(-elements // n))
        return [("all_to_all", n * shard), ("all_gather", n * shard)]
    if isinstance(inner, TopK) and scatters(inner, n, remembers):
        return [("all_to_all", payload), ("all_gather", payload)]
    return [("all_gather", n * payload)]


def sent_bytes(compressor: Compressor, elements: int, n: int) -> float:
    """Bytes of payload that each rank sends in a compressed all-reduce over `n` ranks, on average.

    Counted are algorithms that send no more than they must, which is what runs for all but short arrays.

    Examples
    --------
    >>> from ringleader.compress import FP16, OneBit
    >>> sent_bytes(FP16(), 1 << 20, 2), sent_bytes(ErrorFeedback(OneBit()), 1 << 20, 2)
    (2097152.0, 133120.0)
    """
    times = {"all_reduce": 2.0, "all_gather": 1.0, "all_to_all": 1.0}
    return sum(times[collective] * nbytes * (n - 1) / n for collective, nbytes in exchanges(compressor, elements, n))


def pays(comm: Communicator, compressor: Compressor, elements: int) -> bool:
    """Whether to compress: always, or where the cost model says that it is faster. The same on all ranks.

    Examples
    --------
    >>> import ringleader as rl
    >>> from ringleader.compress import FP16
    >>> with rl.init(rank=0, size=1) as comm:
    ...     pays(comm, FP16(), 1 << 20)
    True
    """
    if compressor.always_compressed:
        return True
    plain = _predicted(comm, "all_reduce", 4 * elements)
    compressed = sum(_predicted(comm, *each) for each in exchanges(compressor, elements, comm.size))
    return compressed + 4 * elements * compressor.seconds_per_byte < plain


def _predicted(comm: Communicator, collective: str, nbytes: int) -> float:
    """Seconds of a collective; looked up by powers of two, so that few are computed."""
    known = _predictions.setdefault(comm, {})
    power = 1 << (max(nbytes, 1) - 1).bit_length()
    if (collective, power) not in known:
        candidates = comm.explain(collective, power).candidates
        known[collective, power] = min(each.cost.seconds for each in candidates if each.note.startswith("chosen"))
    seconds = known[collective, power]
    return seconds * nbytes / power if nbytes > 1 << 16 else seconds
