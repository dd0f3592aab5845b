"""Compressed reduce-scatter: every rank gets the sum of one shard, and nothing is compressed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ringleader import _core, errors
from ringleader.compress.base import Compressor, Floats, Payload
from ringleader.compress.blocks import BlockCompressor
from ringleader.compress.feedback import ErrorFeedback
from ringleader.compress.low_rank import PowerSGD
from ringleader.compress.pieces import Pieces
from ringleader.compress.sparse import RandomK, TopK, pack, unpack
from ringleader.runtime.compressed.cost import pays
from ringleader.runtime.compressed.described import AS_IT_IS, describe, same_on_all
from ringleader.runtime.compressed.entry import transaction
from ringleader.runtime.compressed.reduction import Reduction, shards

if TYPE_CHECKING:
    from ringleader.runtime.communicator import Communicator

__all__ = ["check_scatters", "reduce_scatter_vector"]


def check_scatters(compressor: Compressor) -> None:
    """Refuse a compressor that cannot work on shards.

    Raises
    ------
    InvalidArgument
        PowerSGD.

    Examples
    --------
    >>> from ringleader.compress import PowerSGD
    >>> check_scatters(PowerSGD())
    Traceback (most recent call last):
    ringleader.errors.InvalidArgument: PowerSGD needs whole matrices, and a reduce-scatter cuts them into shards; ...
    """
    inner = compressor.compressor if isinstance(compressor, ErrorFeedback) else compressor
    if isinstance(inner, PowerSGD):
        raise errors.InvalidArgument(
            f"{type(inner).__name__} needs whole matrices, and a reduce-scatter cuts them into shards; "
            "take a compressor of elements or blocks, e.g. ErrorFeedback(OneBit()) or ErrorFeedback(TopK(ratio=0.01))"
        )


def reduce_scatter_vector(
    comm: Communicator,
    x: Floats,
    average: bool,
    compressor: Compressor,
    key: str = "",
    timeout: float | None = None,
) -> Floats:
    """This rank's shard of the mean or the sum over all ranks of a contiguous vector, which is left as it is.

    Each rank compresses every shard for itself; what that loses is remembered by the rank that loses it, so memory has
    the size of the whole vector.

    Parameters
    ----------
    x
        Shape (elements,), a multiple of the number of ranks.

    Returns
    -------
    array
        New, shape (elements / ranks,).

    Raises
    ------
    InvalidArgument
        Another number of elements, or a compressor that needs whole arrays (PowerSGD).
    """
    check_scatters(compressor)
    if x.size % comm.size:
        raise errors.InvalidArgument(f"x has {x.size} elements; expected a multiple of the {comm.size} ranks")
    if comm.size == 1:
        return x.copy()
    description = describe("reduce_scatter", average, compressor, key, x.shape)
    with same_on_all(comm, description), transaction(compressor, key):
        whole = x.size == 0 or not pays(comm, compressor, x.size)
        scatter = _Scatter(comm, average, compressor, key, timeout, description + AS_IT_IS * whole)
        return scatter.whole(x) if whole else scatter.shard(x)


class _Scatter(Reduction):
    """One compressed reduce-scatter."""

    def whole(self, x: Floats) -> Floats:
        """Without compression, and nothing remembered."""
        total = x if self.feedback is None else self.feedback.pending(Pieces([x]), self.key)
        op = "avg" if self.average else "sum"
        shard: Floats = self.first.reduce_scatter(total.reshape(self.n, -1), op=op, timeout=self.timeout)
        return shard.reshape(-1)

    def shard(self, x: Floats) -> Floats:
        """The way that fits the compressor."""
        self._agree_on_steps()
        compressor, bounds = self.compressor, shards(x.size, self.n)
        if isinstance(compressor, BlockCompressor):
            seed = compressor.next_seed(self.key, self.comm.rank)
            rows = self.exchange_blocks(compressor, Pieces([x]), bounds, seed)
            return compressor.decode_sum(rows, x.size // self.n, 1.0 / self.n if self.average else 1.0)
        if isinstance(compressor, TopK):
            return self._largest_of_each(compressor, x)
        if isinstance(compressor, RandomK):
            return self._random(compressor, x)
        return self._any(x, bounds)

    def _total(self, x: Floats) -> tuple[Floats, bool]:
        """What is to be sent, as rows of shards; whether it is memory, to be cleared of what is sent."""
        values, error, lost = self._memory(Pieces([x]))
        if error is None or lost is None:
            return x.reshape(self.n, -1), False
        values.add_to(lost, error)
        return lost.reshape(self.n, -1), True

    def _largest_of_each(self, compressor: TopK, x: Floats) -> Floats:
        """The same number of each shard."""
        total, remembers = self._total(x)
        size = total.shape[1]
        k, seed = compressor.next_amount(self.key, size, self.n)
        payloads = [compressor.select(row, k, remembers, seed ^ r << 16) for r, row in enumerate(total)]
        if self.feedback is not None:
            self.feedback.sent(_joined(payloads, size), self.key)
        sent = np.stack([payload.data for payload in payloads])
        received: NDArray[np.uint32] = self.first.all_to_all(sent, timeout=self.timeout)
        shard = Pieces([np.empty(size, np.float32)])
        return self._sum_of(received, shard, 1.0 / self.n if self.average else 1.0).joined()

    def _random(self, compressor: RandomK, x: Floats) -> Floats:
        """The same places of each shard."""
        total, remembers = self._total(x)
        index = compressor.next_places(self.key, total.shape[1], self.n)
        sent = np.stack([compressor.take(row, index, remembers) for row in total])
        if remembers:
            _core.compress.clean(total.reshape(-1))
        values: Floats = self.first.reduce_scatter(sent, op="sum", wire="f32", timeout=self.timeout)
        return self._finish(Pieces([compressor.decompress(Payload(values, total.shape[1], index))])).joined()

    def _any(self, x: Floats, bounds: list[tuple[int, int]]) -> Floats:
        """Payloads of any length, one for each rank; decompressed and added in the order of ranks."""
        pieces, error, lost = self._memory(Pieces([x]))
        x, payloads = pieces.joined(), []
        for r, (lo, hi) in enumerate(bounds):
            name = f"{self.key}/{r}"
            if error is None or lost is None:
                payloads.append(self.compressor.compress(x[lo:hi], name))
            else:
                payloads.append(self.compressor.compress_with_error(x[lo:hi], error[lo:hi], lost[lo:hi], name))
        counts = np.array([payload.data.size for payload in payloads], np.int64)
        sent = np.zeros((self.n, self._most(int(counts.max()))), payloads[0].data.dtype)
        for row, payload in zip(sent, payloads, strict=True):
            row[: payload.data.size] = payload.data
        lengths = self.first.all_to_all(counts.reshape(self.n, 1), timeout=self.timeout).reshape(-1)
        received = self.comm.all_to_all(sent, timeout=self.timeout)
        mine = payloads[self.comm.rank]
        total = np.zeros(mine.elements, np.float32)
        for row, length in zip(received, lengths, strict=True):
            other = Payload(row[:length], mine.elements, shape=mine.shape, key=mine.key)
            _core.compress.add(total, total, self.compressor.decompress(other))
        return self._finish(Pieces([total])).joined()


def _joined(payloads: list[Payload], size: int) -> Payload:
    """The payloads of shards of so many elements as one of the whole array."""
    index, value = [], []
    for r, payload in enumerate(payloads):
        places, values = unpack(payload.data)
        found = 0 if payload.index is None else payload.index.size
        index.append(places[:found] + np.uint32(r * size))
        value.append(values[:found])
    places = np.concatenate(index)
    return Payload(pack(places, np.concatenate(value)), len(payloads) * size, places)
