"""What one all-reduce costs, as a curve over its size: fitted to measurements, piecewise linear, never falling."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import InvalidArgument

__all__ = ["CostCurve"]

KIB, MIB = 1 << 10, 1 << 20
_SIZES = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)


@dataclass(frozen=True)
class CostCurve:
    """Seconds of an all-reduce over its bytes.

    Between the knots it is linear; below the first it is what the first costs (latency); beyond the last it goes on
    with the slope that it has from a quarter of the last size on.

    Attributes
    ----------
    sizes, seconds
        The knots, sizes rising, seconds never falling.

    Examples
    --------
    >>> curve = CostCurve((1000, 2000), (1e-3, 1.5e-3))
    >>> curve(10), curve(1500), round(curve(4000), 6)
    (0.001, 0.00125, 0.0025)
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.array(self.sizes, np.float64), np.array(self.seconds, np.float64)
        if not len(x) or len(x) != len(y) or not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InvalidArgument(
                f"{len(x)} sizes and {len(y)} times; expected as many of each, at least one, all finite"
            )
        if x[0] < 0 or (np.diff(x) <= 0).any() or y[0] < 0 or (np.diff(y) < 0).any():
            shown = list(zip(self.sizes, self.seconds, strict=True))[:4]
            raise InvalidArgument(
                f"knots begin with {shown}; expected sizes that rise and times that never fall, none negative "
                "(CostCurve.fit makes them so)"
            )

    @classmethod
    def affine(cls, latency: float, seconds_per_byte: float) -> CostCurve:
        """``latency + nbytes * seconds_per_byte``.

        Examples
        --------
        >>> round(CostCurve.affine(1e-5, 1e-9)(10**6), 9)
        0.00101
        """
        reach = 1 << 40
        return cls((0, reach), (latency, latency + seconds_per_byte * reach))

    @classmethod
    def fit(cls, samples: Iterable[tuple[int, float]]) -> CostCurve:
        """The curve nearest to measurements: per size the median, then the nearest sequence that never falls.

        Parameters
        ----------
        samples
            Pairs of bytes and seconds, in any order; several of a size make it robust.

        Raises
        ------
        InvalidArgument
            There are none, or one is negative or not finite.

        Notes
        -----
        The nearest is the one of least squares, each size weighted by its samples (pool adjacent violators).

        References
        ----------
        R. E. Barlow, D. J. Bartholomew, J. M. Bremner, H. D. Brunk: Statistical Inference under Order Restrictions,
        1972.

        Examples
        --------
        >>> CostCurve.fit([(100, 2.0), (100, 9.0), (100, 2.0), (200, 4.0), (300, 3.0)]).seconds
        (2.0, 3.5, 3.5)
        """
        groups: dict[int, list[float]] = {}
        for nbytes, seconds in samples:
            if not (nbytes >= 0 and 0 <= seconds < float("inf")):
                raise InvalidArgument(
                    f"a sample is {nbytes} bytes in {seconds} s; expected finite numbers, none negative"
                )
            groups.setdefault(int(nbytes), []).append(float(seconds))
        sizes = sorted(groups)
        blocks: list[tuple[float, int, int]] = []  # mean, weight, sizes in it
        for size in sizes:
            mean, weight, count = float(np.median(groups[size])), len(groups[size]), 1
            while blocks and blocks[-1][0] > mean:
                before, its_weight, its_count = blocks.pop()
                mean = (before * its_weight + mean * weight) / (its_weight + weight)
                weight, count = weight + its_weight, count + its_count
            blocks.append((mean, weight, count))
        return cls(tuple(sizes), tuple(mean for mean, _, count in blocks for _ in range(count)))

    @classmethod
    def predicted(cls, comm: Any, sizes: Sequence[int] = _SIZES) -> CostCurve:
        """What the communicator's cost model expects of its own choices; nothing is sent, all ranks get the same.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     curve = CostCurve.predicted(comm)
        >>> curve(1 << 20) >= curve(1 << 10) > 0
        True
        """
        samples = []
        for size in sizes:
            explained = comm.explain("all_reduce", size)
            chosen = next(c for c in explained.candidates if c.algorithm == explained.choice.algorithm)
            samples.append((size, chosen.cost.seconds))
        return cls.fit(samples)

    @classmethod
    def from_communicator(
        cls,
        comm: Any,
        sizes: Sequence[int] = _SIZES,
        repeats: int = 7,
        run: Callable[[NDArray[np.uint8]], object] | None = None,
    ) -> CostCurve:
        """Measure a communicator: a few all-reduces of each size, of which the slowest rank's median counts.

        Every rank must call it, with the same arguments; all get the same curve.

        Parameters
        ----------
        comm
            A `Communicator`.
        sizes
            Bytes to measure; rounded down to 4, at least 4.
        repeats
            All-reduces of each size after one that does not count.
        run
            What to measure instead of ``comm.all_reduce``: given the float32 array of that size.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     curve = CostCurve.from_communicator(comm, sizes=(1024, 4096), repeats=3)
        >>> curve.sizes
        (1024, 4096)
        """
        action = comm.all_reduce if run is None else run
        sizes = sorted({max(size // 4, 1) * 4 for size in sizes})
        x = comm.empty(max(sizes) // 4, np.float32)
        x[:] = 0
        times = np.zeros(len(sizes))
        for number, size in enumerate(sizes):
            part, taken = x[: size // 4], []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                action(part)
                taken.append(time.perf_counter() - began)
            times[number] = np.median(taken[1:])
        comm.all_reduce(times, op="max")
        return cls.fit(zip(sizes, times.tolist(), strict=True))

    @overload
    def __call__(self, nbytes: int) -> float: ...
    @overload
    def __call__(self, nbytes: NDArray[Any]) -> NDArray[np.float64]: ...
    def __call__(self, nbytes: Any) -> Any:
        """Seconds of an all-reduce of so many bytes; of an array, each."""
        x, y, slope = self._knots
        size = np.asarray(nbytes, np.float64)
        result = np.interp(size, x, y) + np.maximum(size - x[-1], 0.0) * slope
        return float(result) if result.ndim == 0 else result

    @functools.cached_property
    def _knots(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """The knots as arrays, and the seconds per byte beyond the last one."""
        x, y = np.array(self.sizes, np.float64), np.array(self.seconds, np.float64)
        start = int(np.searchsorted(x, x[-1] / 4, "right")) - 1
        start = max(start, 0)
        if start == len(x) - 1:
            return x, y, float(y[-1] / x[-1]) if x[-1] else 0.0
        return x, y, float((y[-1] - y[start]) / (x[-1] - x[start]))

    def nanoseconds(self, nbytes: ArrayLike) -> NDArray[np.int64]:
        """Whole nanoseconds of all-reduces of so many bytes.

        Examples
        --------
        >>> CostCurve.affine(1e-6, 1e-9).nanoseconds([0, 500]).tolist()
        [1000, 1500]
        """
        return np.rint(self(np.asarray(nbytes)) * 1e9).astype(np.int64)

    def scaled(self, factor: float) -> CostCurve:
        """The same with all times multiplied.

        Examples
        --------
        >>> CostCurve((0, 8), (1.0, 2.0)).scaled(2.0).seconds
        (2.0, 4.0)
        """
        return CostCurve(self.sizes, tuple(y * factor for y in self.seconds))
