"""How payloads are reduced, by the kind of their compressor.

Whatever the kind, every value of the result is computed by one rank and copied, or by all ranks from equal bits in
equal order: all ranks hold the same bits.
"""

from __future__ import annotations

import weakref
import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ringleader import _core, errors
from ringleader.compress.base import Compressor, Counter, Floats, Payload
from ringleader.compress.blocks import BlockCompressor
from ringleader.compress.casts import Cast
from ringleader.compress.feedback import ErrorFeedback
from ringleader.compress.low_rank import PowerSGD
from ringleader.compress.pieces import Pieces
from ringleader.compress.sparse import TopK, pack, unpack
from ringleader.runtime.compressed.cost import scatters
from ringleader.runtime.compressed.described import Described
from ringleader.runtime.compressed.scratch import scratch_of
from ringleader.runtime.watched import unseen

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["Reduction", "shards"]

# For which arrays the ranks of a communicator have agreed on the number of steps.
_agreed: weakref.WeakKeyDictionary[Communicator, weakref.WeakKeyDictionary[Counter, set[str]]] = (
    weakref.WeakKeyDictionary()
)


def shards(elements: int, n: int) -> list[tuple[int, int]]:
    """Begin and end of each rank's part of an array: equal but for the last ones, which may be shorter or empty.

    Examples
    --------
    >>> shards(5, 4)
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    size = -(-elements // n)
    return [(min(r * size, elements), min((r + 1) * size, elements)) for r in range(n)]


class Reduction:
    """One compressed collective.

    `out` may be the input: it is written to after the last exchange, so a call that fails leaves it as it was.
    """

    def __init__(
        self,
        comm: Communicator,
        average: bool,
        compressor: Compressor,
        key: str,
        timeout: float | None,
        description: str,
        out: Pieces | None = None,
    ) -> None:
        self.comm, self.n, self.out = comm, comm.size, out
        self.first = Described(comm, description)  # for the first exchange of payloads
        self.average, self.key, self.timeout = average, key, timeout
        self.feedback = compressor if isinstance(compressor, ErrorFeedback) else None
        self.compressor = compressor.compressor if isinstance(compressor, ErrorFeedback) else compressor
        self.scratch = scratch_of(comm)

    def dense(self, x: Pieces) -> Pieces:
        """Without compression, and nothing remembered."""
        if self.feedback is None:
            total = x.joined()
        else:
            total = self.feedback.pending(x, self.key)
            self._add_lost_of_shard(self.feedback, total)
        out = self._room(x.size)
        whole = out.parts[0] if len(out.parts) == 1 else total
        into = None if whole.ctypes.data == total.ctypes.data else whole
        self.first.all_reduce(total, "avg" if self.average else "sum", out=into, timeout=self.timeout)
        out.store(whole)
        return out

    def _add_lost_of_shard(self, feedback: ErrorFeedback, total: Floats) -> None:
        """What was lost when this rank compressed its shard of a mean (or sum) again: it adds it for all."""
        lo, hi = shards(total.size, self.n)[self.comm.rank]
        lost = feedback.shard_errors.get(self.key)
        if lost is not None and lost.size == hi - lo:
            total[lo:hi] += lost * np.float32(1 if self.compressor.kind == "sparse" and not self.average else self.n)
            feedback.shard_errors.successor(self.key, lost.size)[:] = 0

    def run(self, x: Pieces, shape: tuple[int, ...]) -> Pieces:
        """The reduction that fits the compressor."""
        self._agree_on_steps()
        compressor = self.compressor
        if isinstance(compressor, Cast) and self.feedback is None:
            return self._cast(compressor, x.joined())
        if isinstance(compressor, BlockCompressor):
            return self._blocks(compressor, x)
        if isinstance(compressor, PowerSGD):
            return self._low_rank(compressor, x, shape)
        if isinstance(compressor, TopK):
            payload = self._largest(compressor, x)
            scattered = scatters(compressor, self.n, remembers=self.feedback is not None)
            return self._scattered(compressor, payload) if scattered else self._gathered_sparse(payload)
        values = x.joined().reshape(shape)
        if self.feedback is None:
            payload = compressor.compress(values, self.key)
        else:
            payload = self.feedback.stage(values, self.key)
        return self._linear(payload) if compressor.kind == "linear" else self._gathered(payload)

    def _agree_on_steps(self) -> None:
        """Where ranks must be in the same step, make it the latest of all. Once for each array and communicator.

        They differ after a failure that only some of the ranks saw, or with checkpoints of different steps. Seeds must
        be the same: sums of what was taken at different places would look like results.

        Raises
        ------
        InvalidArgument
            Seeds differ; on all ranks.
        """
        counter = self.compressor.common_steps()
        if counter is None:
            return
        agreed = _agreed.setdefault(self.comm, weakref.WeakKeyDictionary()).setdefault(counter, set())
        if self.key not in agreed:
            seed = zlib.crc32(repr(counter.seed).encode())
            most = np.array([counter.steps.get(self.key, 0), seed, -seed], np.int64)
            with unseen(self.comm, 1):
                self.comm.all_reduce(most, "max", timeout=self.timeout)
            if most[1] != -most[2]:
                raise errors.InvalidArgument(
                    f"the seeds of the ranks' {type(self.compressor).__name__} differ (this rank has {counter.seed}): "
                    "sums of what they send would mean nothing; give all ranks the same"
                )
            counter.reset(self.key, int(most[0]))
            agreed.add(self.key)

    def _most(self, count: int) -> int:
        """The largest of the ranks' numbers."""
        most = np.array([count], np.int64)
        with unseen(self.comm, 1):
            self.comm.all_reduce(most, "max", timeout=self.timeout)
        return int(most[0])

    def _memory(self, x: Pieces) -> tuple[Pieces, Floats | None, Floats | None]:
        """With error feedback: what is to be sent without the error, the error, and room for the next one."""
        if self.feedback is None:
            return x, None, None
        x = self.feedback.gather(x, self.key)
        return x, self.feedback.error(self.key, x.size), self.feedback.errors.successor(self.key, x.size)

    def _room(self, elements: int) -> Pieces:
        """Where the result is to be."""
        return Pieces([np.empty(elements, np.float32)]) if self.out is None else self.out

    def _finish(self, total: Pieces) -> Pieces:
        """The mean, if that is asked for, of a sum."""
        if self.average:
            total.multiply(1.0 / self.n)
        return total

    # ------------------------------------------------------------------------------------------- linear

    def _cast(self, compressor: Cast, x: Floats) -> Pieces:
        total, scale = compressor.scaled(x, self.n)
        self.first.all_reduce(total, "sum", wire=compressor.scheme, timeout=self.timeout)
        factor = np.float32(1.0 / (scale * self.n) if self.average else 1.0 / scale)
        out = self._room(total.size)
        for lo, hi, part in out.placed():
            np.multiply(total[lo:hi], factor, out=part)
        return out

    def _linear(self, payload: Payload) -> Pieces:
        self.first.all_reduce(payload.data, "sum", wire="f32", timeout=self.timeout)
        out = self._room(payload.elements)
        whole = out.parts[0] if len(out.parts) == 1 else None
        out.store(self.compressor.decompress(payload, whole))
        return self._finish(out)

    def _low_rank(self, compressor: PowerSGD, x: Pieces, shape: tuple[int, ...]) -> Pieces:
        def mean(factors: Floats) -> None:
            self.first.all_reduce(factors, "avg", wire="f32", timeout=self.timeout)

        out = self._room(x.size)
        if all(out.whole(part.begin, part.end) is not None for part in compressor.parts(self.key, x.size, shape)):
            room = out
        else:  # pieces that do not consist of whole matrices
            room = Pieces([np.empty(x.size, np.float32)])
            x = Pieces([x.joined()])
        x, error, lost = self._memory(x)
        compressor.average(x, mean, self.key, shape, error, lost, room)
        if room is not out:
            out.store(room.joined())
        if not self.average:
            out.multiply(self.n)
        return out

    # ------------------------------------------------------------------------------------------- blocks

    def _blocks(self, compressor: BlockCompressor, x: Pieces) -> Pieces:
        """Each rank gets its shard from all, adds them in order of ranks, and sends the mean of it to all, compressed
        again.

        The shards are equal but for the last ones, which may be shorter; they are encoded one by one.
        """
        n, rank = self.n, self.comm.rank
        bounds = shards(x.size, n)
        nbytes = [compressor.wire_bytes(hi - lo) for lo, hi in bounds]
        seed = compressor.next_seed(self.key, rank)
        received = self.exchange_blocks(compressor, x, bounds, seed)
        error, lost, elements = None, None, bounds[rank][1] - bounds[rank][0]
        if self.feedback is not None:
            error = self.feedback.shard_errors.current(self.key, elements)
            lost = self.feedback.shard_errors.successor(self.key, elements)
        gathered = self.scratch("gathered", n, nbytes[0])
        mine = gathered[rank, : nbytes[rank]]
        gathered[rank, nbytes[rank] :] = 0
        # A mean also for a sum, which half precision might not hold.
        compressor.encode_sum(mine, received, elements, 1.0 / n, error, lost, ~seed & 0xFFFFFFFF)
        self.comm.all_gather(gathered[rank], out=gathered, timeout=self.timeout)
        result = self._room(x.size)
        for r, (lo, hi) in enumerate(bounds):
            compressor.decode(gathered[r, : nbytes[r]], result.between(lo, hi))
        if not self.average:
            result.multiply(n)
        return result

    def exchange_blocks(
        self, compressor: BlockCompressor, x: Pieces, bounds: list[tuple[int, int]], seed: int
    ) -> NDArray[np.uint8]:
        """This rank's shard as each rank encodes it: a row for each of them, whose end may be padding."""
        x, error, lost = self._memory(x)
        nbytes = [compressor.wire_bytes(hi - lo) for lo, hi in bounds]
        sent = self.scratch("sent", self.n, nbytes[0])
        for r, (lo, hi) in enumerate(bounds):
            before = None if error is None else error[lo:hi]
            after = None if lost is None else lost[lo:hi]
            compressor.encode(sent[r, : nbytes[r]], x.between(lo, hi), before, after, seed ^ r << 16)
            sent[r, nbytes[r] :] = 0
        received = self.scratch("received", self.n, nbytes[0])
        self.first.all_to_all(sent, out=received, timeout=self.timeout)
        return received

    # ------------------------------------------------------------------------------------------- sparse

    def _largest(self, compressor: TopK, x: Pieces) -> Payload:
        """What this rank sends."""
        x, error, lost = self._memory(x)
        if self.feedback is None or error is None or lost is None:
            return compressor.compress(x.joined(), self.key)
        x.add_to(lost, error)
        payload = compressor.select_next(lost, True, self.key)
        self.feedback.sent(payload, self.key)
        return payload

    def _gathered_sparse(self, payload: Payload) -> Pieces:
        table = self.first.all_gather(payload.data, timeout=self.timeout)
        return self._sum_of(table, self._room(payload.elements), 1.0 / self.n if self.average else 1.0)

    def _sum_of(self, table: NDArray[np.uint32], total: Pieces, scale: float) -> Pieces:
        total.fill(0)
        for row in table:
            _core.compress.scatter_add(total.parts, *unpack(row), scale)
        return total

    def _scattered(self, compressor: TopK, payload: Payload) -> Pieces:
        """Rank r sums what falls into the r-th part, selects the largest of it again; all get all selections.

        With error feedback each rank selects its share of k, and remembers the rest. Without, it sends all that is not
        zero. Messages have the length of the longest, on which the ranks agree first.
        """
        n, rank, elements = self.n, self.comm.rank, payload.elements
        size = -(-elements // n)
        index, value = unpack(payload.data)
        found = 0 if payload.index is None else payload.index.size
        index, value = index[:found], value[:found]
        edges = np.searchsorted(index, np.minimum(np.arange(n + 1, dtype=np.int64) * size, elements))
        room = self._most(int(np.diff(edges).max()))
        sent = np.zeros((n, 2 * room), np.uint32)
        for r in range(n):
            count = edges[r + 1] - edges[r]
            sent[r, :count] = index[edges[r] : edges[r + 1]] - np.uint32(r * size)
            sent[r, room : room + count] = value[edges[r] : edges[r + 1]].view(np.uint32)
        received = self.first.all_to_all(sent, timeout=self.timeout)
        lo, hi = min(rank * size, elements), min((rank + 1) * size, elements)
        if hi == lo:  # nothing is sent to an empty part, but its messages have places
            received = received[:, :0]
        shard = np.empty(hi - lo, np.float32)
        self._sum_of(received, Pieces([shard]), 1.0 / n if self.average else 1.0)
        chosen = self._reselect(compressor, shard, -(-payload.data.size // 2 // n))
        table = self.comm.all_gather(chosen, timeout=self.timeout)
        result = self._room(elements)
        result.fill(0)
        for r, row in enumerate(table):
            lo, hi = min(r * size, elements), min((r + 1) * size, elements)
            if hi > lo:
                _core.compress.scatter_add(result.between(lo, hi), *unpack(row))
        return result

    def _reselect(self, compressor: TopK, shard: Floats, share: int) -> NDArray[np.uint32]:
        """What this rank sends of its part of the sum: `share` places, or as many as any rank needs."""
        if self.feedback is not None:
            total = self.feedback.shard_errors.successor(self.key, shard.size)
            _core.compress.add(total, self.feedback.shard_errors.current(self.key, shard.size), shard)
            payload = compressor.select(total, min(share, shard.size), clear=True)
            index, value, room = *unpack(payload.data), share
        else:
            index = np.flatnonzero(shard).astype(np.uint32)
            value, room = shard[index], self._most(index.size)
        spare = room - index.size
        return pack(np.pad(index, (0, spare)), np.pad(value, (0, spare)))

    # ----------------------------------------------------------------------------------------- any other

    def _gathered(self, payload: Payload) -> Pieces:
        """Payloads of any length from all ranks, decompressed and added in the order of ranks."""
        data = np.ascontiguousarray(payload.data)
        lengths = self.first.all_gather(np.array([data.size], np.int64), timeout=self.timeout).reshape(-1)
        padded = np.zeros(int(lengths.max()), data.dtype)
        padded[: data.size] = data
        table = self.comm.all_gather(padded, timeout=self.timeout)
        total = np.zeros(payload.elements, np.float32)
        for row, length in zip(table, lengths, strict=True):
            other = Payload(row[:length], payload.elements, shape=payload.shape, key=payload.key)
            _core.compress.add(total, total, self.compressor.decompress(other))
        out = self._room(total.size)
        out.store(total)
        return self._finish(out)
