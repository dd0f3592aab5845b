"""Few elements out of many: the largest, or random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ringleader import _core, errors
from ringleader.compress.base import Counter, Counting, Floats, Kind, Payload, as_floats

__all__ = ["RandomK", "TopK", "pack", "unpack"]

_WARM_UP_START: Final = 0.25
_WARM_UP_STAGES: Final = 5


def _check_amount(ratio: float | None, k: int | None) -> None:
    if (ratio is None) == (k is None):
        raise errors.InvalidArgument(f"ratio is {ratio!r} and k is {k!r}; give one of them")
    if ratio is not None and not 0 < ratio <= 1:
        raise errors.InvalidArgument(f"ratio is {ratio!r}; expected a number above 0 and up to 1")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 0):
        raise errors.InvalidArgument(f"k is {k!r}; expected an integer from 0")


def _amount(ratio: float | None, k: int | None, elements: int, parts: int = 1) -> int:
    """How many of each of the parts, of so many elements, are sent."""
    return min(elements, math.ceil(ratio * elements) if ratio is not None else -(-(k or 0) // parts))


def pack(index: NDArray[np.uint32], value: Floats) -> NDArray[np.uint32]:
    """Indices and values as one array: first all indices, then all values, bit for bit.

    Examples
    --------
    >>> pack(np.uint32([3]), np.float32([1.0])).tolist()
    [3, 1065353216]
    """
    return np.concatenate([index, value.view(np.uint32)])


def unpack(data: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], Floats]:
    """Indices and values of what `pack` made; views."""
    k = data.size // 2
    return data[:k], data[k:].view(np.float32)


class TopK(Counting):
    """The k elements of largest magnitude, with their places: 8 bytes each.

    Of equal magnitudes the lower place is taken. Infinities and NaN count as largest. With k = 0 nothing is sent.

    Parameters
    ----------
    ratio
        Part of the elements that is sent, rounded up; or `k`, their number.
    selection
        ``"exact"``, or ``"sampled"``: those above a threshold estimated from a sample, as in DGC, at most k.
    warmup_steps
        During so many first steps more is sent: 25% at first, and in five stages down to `ratio`.
    exchange
        How payloads are reduced: ``"gather"`` from all ranks; ``"scatter"``: each rank sums its part of the array,
        selects again (in `ErrorFeedback`), and parts are gathered, which sends less; ``"auto"``: that from 5 ranks
        on, if there is error feedback.

    References
    ----------
    Lin et al.: Deep Gradient Compression, ICLR 2018. Li and Hoefler: Near-Optimal Sparse Allreduce, PPoPP 2022.

    Examples
    --------
    >>> codec = TopK(k=1)
    >>> codec.decompress(codec.compress(np.float32([1, -3, 2])))
    array([ 0., -3.,  0.], dtype=float32)
    """

    kind: ClassVar[Kind] = "sparse"
    seconds_per_byte = 6e-10

    def __init__(
        self,
        ratio: float | None = None,
        k: int | None = None,
        selection: str = "exact",
        warmup_steps: int = 0,
        exchange: str = "auto",
    ) -> None:
        _check_amount(ratio, k)
        if selection not in ("exact", "sampled"):
            raise errors.InvalidArgument(f"selection is {selection!r}; expected 'exact' or 'sampled'")
        if exchange not in ("auto", "gather", "scatter"):
            raise errors.InvalidArgument(f"exchange is {exchange!r}; expected 'auto', 'gather' or 'scatter'")
        if warmup_steps < 0 or (warmup_steps and ratio is None):
            raise errors.InvalidArgument(f"warmup_steps is {warmup_steps!r}; expected an integer from 0, with a ratio")
        self.ratio, self.k = ratio, k
        self.selection, self.exchange, self.warmup_steps = selection, exchange, warmup_steps
        self.compression_ratio = 1.0 if ratio is None else 0.5 / ratio
        self._counter = Counter(0)

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {
            "ratio": self.ratio,
            "k": self.k,
            "selection": self.selection,
            "warmup_steps": self.warmup_steps,
            "exchange": self.exchange,
        }

    def ratio_at(self, step: int) -> float | None:
        """Part of the elements that is sent in a step."""
        if self.ratio is None or step >= self.warmup_steps or self.ratio >= _WARM_UP_START:
            return self.ratio
        stage = step * _WARM_UP_STAGES // self.warmup_steps
        return float(_WARM_UP_START * (self.ratio / _WARM_UP_START) ** (stage / _WARM_UP_STAGES))

    def compress(self, x: Any, key: str = "") -> Payload:
        """See `Compressor.compress`."""
        return self.select_next(as_floats(x), False, key)

    def compress_with_error(self, x: Any, error: Floats, lost: Floats, key: str = "") -> Payload:
        """See `Compressor.compress_with_error`."""
        _core.compress.add(lost, error, as_floats(x))
        return self.select_next(lost, True, key)

    def select_next(self, x: Floats, clear: bool, key: str) -> Payload:
        """What the next step of `key` sends of `x`; see `select`."""
        k, seed = self.next_amount(key, x.size)
        return self.select(x, k, clear, seed)

    def next_amount(self, key: str, elements: int, parts: int = 1) -> tuple[int, int]:
        """How many of each part of an array, of so many elements, the next step of `key` sends, and its seed."""
        step = self._counter.next(key)
        return _amount(self.ratio_at(step), self.k, elements, parts), self._counter.random(key, step)

    def select(self, x: Floats, k: int, clear: bool, seed: int = 0) -> Payload:
        """The payload of `k` elements of `x`; with `clear` these become zero in `x`, and so does what is not finite."""
        data = np.zeros(2 * k, np.uint32)
        index, value = unpack(data)
        found = _core.compress.select(x, index, self.selection == "sampled", seed)
        index[found:] = 0  # places that stand for nothing: 0.0 is added there
        if not clear:
            value[:found] = x[index[:found]]
        elif not _core.compress.take(x, index[:found], value[:found]):
            _core.compress.clean(x)
        return Payload(data, x.size, index[:found])

    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """See `Compressor.decompress`."""
        result = np.empty(payload.elements, np.float32) if out is None else out
        result[:] = 0
        _core.compress.scatter_add(result, *unpack(payload.data))
        return result

    def wire_bytes(self, elements: int) -> int:
        """See `Compressor.wire_bytes`; after the warm-up."""
        return 8 * _amount(self.ratio, self.k, elements)

    def common_steps(self) -> Counter | None:
        """During the warm-up: all ranks send equally many."""
        return self._counter if self.warmup_steps else None


class RandomK(Counting):
    """One random element from each of k equal parts of the array. All ranks take the same: payloads can be summed.

    Parameters
    ----------
    ratio
        Part of the elements that is sent, rounded up; or `k`, their number.
    seed
        The same on all ranks.
    unbiased
        Multiply by elements / k, so that the expectation is the array. Not with `ErrorFeedback`.

    References
    ----------
    Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018.

    Examples
    --------
    >>> codec = RandomK(k=4)
    >>> codec.decompress(codec.compress(np.float32([1, -3, 2])))
    array([ 1., -3.,  2.], dtype=float32)
    """

    kind: ClassVar[Kind] = "linear"
    seconds_per_byte = 2e-10

    def __init__(self, ratio: float | None = None, k: int | None = None, seed: int = 0, unbiased: bool = False) -> None:
        _check_amount(ratio, k)
        self.ratio, self.k, self.unbiased = ratio, k, unbiased
        self.compression_ratio = 1.0 if ratio is None else 1 / ratio
        self._counter = Counter(seed)

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {"ratio": self.ratio, "k": self.k, "unbiased": self.unbiased}

    def compress(self, x: Any, key: str = "") -> Payload:
        """See `Compressor.compress`."""
        return self._select(as_floats(x), False, key)

    def compress_with_error(self, x: Any, error: Floats, lost: Floats, key: str = "") -> Payload:
        """See `Compressor.compress_with_error`."""
        if self.unbiased:
            raise errors.InvalidArgument("RandomK(unbiased=True) in ErrorFeedback diverges; leave out unbiased")
        _core.compress.add(lost, error, as_floats(x))
        payload = self._select(lost, True, key)
        _core.compress.clean(lost)
        return payload

    def _select(self, x: Floats, clear: bool, key: str) -> Payload:
        index = self.next_places(key, x.size)
        return Payload(self.take(x, index, clear), x.size, index)

    def next_places(self, key: str, elements: int, parts: int = 1) -> NDArray[np.uint32]:
        """Which elements of each part of an array, of so many, the next step of `key` sends; the same on all ranks."""
        step = self._counter.next(key)
        index = np.empty(_amount(self.ratio, self.k, elements, parts), np.uint32)
        _core.compress.select_random(elements, index, self._counter.random(key, step))
        return index

    def take(self, x: Floats, index: NDArray[np.uint32], clear: bool) -> Floats:
        """What is sent of the elements at these places of `x`; with `clear` they become zero."""
        value: Floats = x[index]
        if clear:
            x[index] = 0
        if self.unbiased and index.size:
            value *= np.float32(x.size / index.size)
        return value

    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """See `Compressor.decompress`."""
        if payload.index is None:
            raise errors.InvalidArgument("the payload has no index; a sum of payloads keeps that of its terms")
        result = np.empty(payload.elements, np.float32) if out is None else out
        result[:] = 0
        _core.compress.scatter_add(result, payload.index, payload.data)
        return result

    def wire_bytes(self, elements: int) -> int:
        """See `Compressor.wire_bytes`."""
        return 4 * _amount(self.ratio, self.k, elements)

    def common_steps(self) -> Counter | None:
        """All ranks take the same places."""
        return self._counter
