"""Arrays that are remembered from step to step, and change only when a step succeeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ringleader.compress.base import Floats, log

__all__ = ["Memory"]


class Memory(Mapping[str, Floats]):
    """One array of float32 for each name, and while a step runs its successor.

    Invariant: what `current` gives is changed by `commit` alone. The array that a successor replaces becomes
    the room of the next successor of its size.

    Examples
    --------
    >>> memory = Memory("error memory")
    >>> memory.successor("w", 2)[:] = [1, 2]
    >>> memory.current("w", 2)
    array([0., 0.], dtype=float32)
    >>> memory.commit("w")
    >>> memory["w"]
    array([1., 2.], dtype=float32)
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._values: dict[str, Floats] = {}
        self._successors: dict[str, Floats] = {}
        self._spare: dict[int, Floats] = {}

    def current(self, key: str, elements: int) -> Floats:
        """The array called `key`, not to be written to; zeros if there is none of this size."""
        found = self._values.get(key)
        if found is not None and found.size == elements:
            return found
        if found is not None:
            log.warning(
                "%s of array %r starts anew: it has %d elements now, %d before", self.what, key, elements, found.size
            )
            self._spare.pop(found.size, None)
        zeros = self._values[key] = np.zeros(elements, np.float32)
        return zeros

    def successor(self, key: str, elements: int) -> Floats:
        """Room for what `commit` will make of the array; in a step, always the same."""
        room = self._successors.get(key)
        if room is None or room.size != elements:
            room = self._spare.pop(elements, None)
            room = self._successors[key] = np.empty(elements, np.float32) if room is None else room
        return room

    def commit(self, key: str) -> None:
        """Let the successor, if there is one, take the place of the array."""
        successor = self._successors.pop(key, None)
        if successor is not None:
            former = self._values.get(key)
            self._values[key] = successor
            if former is not None:
                self._spare[former.size] = former

    def roll_back(self, key: str) -> None:
        """Forget the successor."""
        successor = self._successors.pop(key, None)
        if successor is not None:
            self._spare[successor.size] = successor

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._successors.clear()
        self._spare.clear()

    def state_dict(self) -> dict[str, Floats]:
        """Copies of all arrays."""
        return {key: value.copy() for key, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember copies of these arrays, and nothing else."""
        self.clear()
        self._values = {key: np.array(value, np.float32).reshape(-1) for key, value in state.items()}

    def __getitem__(self, key: str) -> Floats:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
