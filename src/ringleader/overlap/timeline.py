"""When gradients become ready and parameters are needed: what a plan is made from.

Times are seconds in the interface and whole nanoseconds in every computation: sums and comparisons of integers are
exact, so that equal costs are ties and all ranks that compute from equal numbers get the same plan, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader._names import did_you_mean
from ringleader.errors import InvalidArgument

__all__ = ["Timeline", "nanoseconds"]

_LONGEST = 1e6  # seconds; a sum of them still fits into 64 bits of nanoseconds


def nanoseconds(seconds: ArrayLike) -> NDArray[np.int64]:
    """Whole nanoseconds, rounded to nearest.

    Examples
    --------
    >>> nanoseconds([1e-9, 0.5]).tolist()
    [1, 500000000]
    """
    return np.rint(np.asarray(seconds, np.float64) * 1e9).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Timeline:
    """One training step without communication: one entry per gradient, in the order in which they become ready.

    Attributes
    ----------
    names
        Of the parameters.
    nbytes
        Size of each gradient, shape (n,).
    ready
        When it is complete, in seconds after the start of the backward pass, not decreasing, shape (n,).
    needed
        When the next forward pass first uses the parameter, in seconds after its start if it never waits, shape (n,).
    backward_end
        Length of the backward pass in seconds, at least ``ready[-1]``.
    forward
        Length of the forward pass in seconds, at least the largest of `needed`.

    Raises
    ------
    InvalidArgument
        Shapes that differ, times that are negative, decreasing, not finite, or beyond the end.

    Examples
    --------
    >>> line = Timeline(["head", "body"], [400, 800], [0.1, 0.3], [0.05, 0.0], backward_end=0.3, forward=0.1)
    >>> len(line), line.total
    (2, 1200)
    """

    names: tuple[str, ...]
    nbytes: NDArray[np.int64]
    ready: NDArray[np.float64]
    needed: NDArray[np.float64]
    backward_end: float
    forward: float = 0.0
    total: int = field(init=False)

    def __init__(
        self,
        names: Sequence[str],
        nbytes: ArrayLike,
        ready: ArrayLike,
        needed: ArrayLike | None = None,
        backward_end: float | None = None,
        forward: float | None = None,
    ) -> None:
        try:
            sizes, when = np.array(nbytes, np.int64).reshape(-1), np.array(ready, np.float64).reshape(-1)
            first_use = np.zeros(len(sizes)) if needed is None else np.array(needed, np.float64).reshape(-1)
            end = float(when.max(initial=0.0)) if backward_end is None else float(backward_end)
            length = float(first_use.max(initial=0.0)) if forward is None else float(forward)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"not the numbers of a timeline: {error}") from None
        for name, value in {
            "names": tuple(map(str, names)),
            "nbytes": sizes,
            "ready": when,
            "needed": first_use,
            "backward_end": end,
            "forward": length,
            "total": int(sizes.sum()),
        }.items():
            object.__setattr__(self, name, value)
        self._check()

    @classmethod
    def sorted(
        cls,
        names: Sequence[str],
        nbytes: ArrayLike,
        ready: ArrayLike,
        needed: ArrayLike | None = None,
        backward_end: float | None = None,
        forward: float | None = None,
    ) -> tuple[Timeline, NDArray[np.int64]]:
        """From entries in any order (that of ``model.parameters()``, say).

        Returns
        -------
        Timeline, numpy.ndarray
            The timeline, and for each of its entries the number that it had before, shape (n,). Entries that are ready
            at the same nanosecond keep their order.

        Examples
        --------
        >>> line, order = Timeline.sorted(["body", "head"], [800, 400], [0.3, 0.1])
        >>> line.names, order.tolist()
        (('head', 'body'), [1, 0])
        """
        when = np.asarray(ready, np.float64).reshape(-1)
        order = np.argsort(nanoseconds(when), kind="stable")
        # Within one nanosecond the times themselves may still decrease.
        rising = np.maximum.accumulate(when[order]) if len(when) else when
        sizes = np.asarray(nbytes, np.int64).reshape(-1)
        uses = None if needed is None else np.asarray(needed, np.float64).reshape(-1)[order]
        line = cls([names[i] for i in order], sizes[order], rising, uses, backward_end, forward)
        return line, order.astype(np.int64)

    def _check(self) -> None:
        n = len(self.names)
        for name in ("nbytes", "ready", "needed"):
            values = getattr(self, name)
            if len(values) != n:
                raise InvalidArgument(f"{name} has {len(values)} entries; expected one for each of the {n} names")
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise InvalidArgument(
                    f"{name} contains {values[~(values >= 0)][:3]}; expected finite numbers, none negative"
                )
        if (np.diff(self.ready) < 0).any():
            raise InvalidArgument(
                "ready decreases; expected gradients in order of readiness (Timeline.sorted brings them there)"
            )
        last, latest = self.ready.max(initial=0.0), self.needed.max(initial=0.0)
        if not last <= self.backward_end < _LONGEST:
            raise InvalidArgument(
                f"backward_end is {self.backward_end} s; expected at least the last ready, {last} s, "
                f"and below {_LONGEST:g} s"
            )
        if not latest <= self.forward < _LONGEST:
            raise InvalidArgument(
                f"forward is {self.forward} s; expected at least the last needed, {latest} s, and below {_LONGEST:g} s"
            )

    def __len__(self) -> int:
        return len(self.names)

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers; `from_json` reads it.

        Examples
        --------
        >>> line = Timeline(["a"], [4], [0.5])
        >>> Timeline.from_json(line.to_json()).ready.tolist()
        [0.5]
        """
        arrays = {name: getattr(self, name).tolist() for name in ("nbytes", "ready", "needed")}
        return {"names": list(self.names), **arrays, "backward_end": self.backward_end, "forward": self.forward}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Timeline:
        """The timeline that `to_json` wrote.

        Raises
        ------
        InvalidArgument
            Names are missing or unknown, or the values make no timeline.

        Examples
        --------
        >>> Timeline.from_json({"names": ["a"], "nbytes": [4], "ready": [0.5]}).backward_end
        0.5
        """
        known = ("names", "nbytes", "ready", "needed", "backward_end", "forward")
        missing = [name for name in known[:3] if name not in document]
        unknown = [name for name in document if name not in known]
        if missing or unknown:
            near = did_you_mean(unknown[0], known) if unknown else ""
            hint = f"{near} Expected" if near else "; expected"
            raise InvalidArgument(f"not a timeline: {missing} missing, {unknown} unknown{hint} {', '.join(known)}")
        return cls(**document)
