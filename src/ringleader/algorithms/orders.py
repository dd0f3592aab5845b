"""From measured bandwidths to parameters: the order of a ring, and the shares of a direct all-reduce."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringleader.errors import InvalidArgument

__all__ = ["EXACT_RING", "bandwidth_shares", "bottleneck", "ring_order"]

EXACT_RING = 16
"""Up to this number of ranks `ring_order` finds the best ring; beyond it, a good one."""

_ROUNDS = 64  # of improving moves beyond EXACT_RING


def bottleneck(bandwidth: ArrayLike, order: ArrayLike) -> float:
    """The slowest link of a ring.

    Parameters
    ----------
    bandwidth
        ``bandwidth[i][j]`` from rank i to rank j, shape (n, n).
    order
        The ranks in the order of the ring, shape (n,).
    """
    ring = np.asarray(order)
    return float(np.asarray(bandwidth, float)[ring, np.roll(ring, -1)].min())


def ring_order(bandwidth: ArrayLike) -> tuple[int, ...]:
    """The order of the ranks in a ring whose slowest link is as fast as can be, for ``ring:order=...``.

    Parameters
    ----------
    bandwidth
        ``bandwidth[i][j]`` from rank i to rank j in any unit, shape (n, n); the diagonal does not matter.

    Returns
    -------
    tuple of int
        All ranks, beginning with 0; each sends to the next one, the last to rank 0. Up to `EXACT_RING` ranks it is
        optimal, beyond that improved step by step from a ring of nearest neighbours.

    Raises
    ------
    InvalidArgument
        The matrix is not square, or an entry is negative or not finite.

    References
    ----------
    R. Garfinkel, K. Gilbert: The bottleneck traveling salesman problem, JACM 25(3), 1978;
    M. Held, R. Karp: A dynamic programming approach to sequencing problems, SIAM 10(1), 1962.

    Examples
    --------
    The links between 0 and 1 and between 2 and 3 are slow; a ring can do without them:

    >>> ring_order([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]])
    (0, 2, 1, 3)
    """
    matrix = np.array(bandwidth, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InvalidArgument(f"bandwidth has shape {matrix.shape}; expected (n, n) with n of at least 1")
    np.fill_diagonal(matrix, 0.0)
    if not bool(np.isfinite(matrix).all()) or bool((matrix < 0).any()):
        raise InvalidArgument("bandwidth has an entry that is negative or not finite; expected 0 or more")
    n = len(matrix)
    if n <= 2:
        return tuple(range(n))
    return _exact(matrix) if n <= EXACT_RING else _improved(matrix)


def _exact(matrix: NDArray[np.float64]) -> tuple[int, ...]:
    """The best slowest link allows a ring, and the next better one does not: bisection over the links' bandwidths.

    Among the rings that keep it, the one whose ranks come first in order.
    """
    levels = np.unique(matrix[~np.eye(len(matrix), dtype=bool)])
    low, high = 0, len(levels) - 1  # levels[low] always allows a ring
    while low < high:
        middle = (low + high + 1) // 2
        if _ring_within(matrix >= levels[middle]) is not None:
            low = middle
        else:
            high = middle - 1
    ring = _ring_within(matrix >= levels[low])
    assert ring is not None  # every link is allowed at the lowest level
    return ring


def _ring_within(allowed: NDArray[np.bool_]) -> tuple[int, ...] | None:
    """A ring through all ranks that uses allowed links only, or None.

    ``home[s]`` has bit j set if from rank j a path over exactly the ranks of the set s (a bit each; neither j nor rank
    0 is in s) leads back to rank 0. Bit 0 stands for rank 1.
    """
    n = len(allowed)
    others = n - 1
    into = [sum(1 << j for j in range(others) if allowed[j + 1, k + 1]) for k in range(others)]
    home = np.zeros(1 << others, np.int64)
    home[0] = sum(1 << j for j in range(others) if allowed[j + 1, 0])
    sets = np.arange(1 << others)
    size = np.array([value.bit_count() for value in range(1 << others)])
    for count in range(1, others):
        chosen = sets[size == count]
        reach = np.zeros(len(chosen), np.int64)
        for k in range(others):
            inside = chosen >> k & 1 == 1
            possible = inside & (home[chosen & ~(1 << k)] >> k & 1 == 1)
            reach |= np.where(possible, into[k], 0)
        home[chosen] = reach & ~chosen
    left, at, ring = (1 << others) - 1, 0, [0]
    while left:
        for k in range(others):
            if left >> k & 1 and allowed[at, k + 1] and home[left & ~(1 << k)] >> k & 1:
                left, at = left & ~(1 << k), k + 1
                ring.append(at)
                break
        else:
            return None
    return tuple(ring)


def _improved(matrix: NDArray[np.float64]) -> tuple[int, ...]:
    """Nearest neighbours, then moves that raise the slowest link: reversing a part of the ring, or moving one rank."""
    n = len(matrix)
    ring = [0]
    left = set(range(1, n))
    while left:
        ring.append(max(left, key=lambda rank: (matrix[ring[-1], rank], -rank)))
        left.remove(ring[-1])

    def quality(order: list[int]) -> tuple[float, float]:
        links = matrix[order, np.roll(order, -1)]
        slowest = float(links.min())
        return slowest, -float((links == slowest).sum())

    best = quality(ring)
    for _ in range(_ROUNDS):
        links = matrix[ring, np.roll(ring, -1)]
        cut = int(np.argmin(links))
        turned = ring[cut + 1 :] + ring[: cut + 1]  # the slowest link is the one that closes the ring
        moves = [turned[:k][::-1] + turned[k:] for k in range(2, n)]
        moves += [turned[1:k] + turned[:1] + turned[k:] for k in range(2, n)]
        moves += [[*turned[:k], turned[-1], *turned[k:-1]] for k in range(1, n - 1)]
        found = max(moves, key=quality)
        if quality(found) <= best:
            break
        ring, best = found, quality(found)
    start = ring.index(0)
    return tuple(int(rank) for rank in ring[start:] + ring[:start])


def bandwidth_shares(bandwidth: ArrayLike, parts: int = 64) -> tuple[int, ...]:
    """Shares for ``unequal_two_shot:shares=...`` by which all ranks finish together, or as nearly so as can be.

    A rank with the share s of the data sends, and receives, 1 - s + (n-1)s times the data in all. So that the longest
    time is least, faster ranks get more: s = (T b - 1) / (n - 2), or 0, with the T for which the shares add up to 1.

    Parameters
    ----------
    bandwidth
        Of each rank, to and from all others together, in any unit, shape (n,).
    parts
        Into how many parts the data is divided, at least 1.

    Returns
    -------
    tuple of int
        Parts of each rank; their sum is `parts`.

    Raises
    ------
    InvalidArgument
        A bandwidth is not positive and finite, or `parts` is below 1.

    Examples
    --------
    >>> bandwidth_shares([1, 1, 1, 1], parts=8), bandwidth_shares([2, 2, 2, 1], parts=8)
    ((2, 2, 2, 2), (3, 3, 2, 0))
    """
    speed = np.asarray(bandwidth, float)
    if speed.ndim != 1 or not len(speed) or not bool(np.isfinite(speed).all()) or bool((speed <= 0).any()):
        raise InvalidArgument(f"bandwidth is {bandwidth!r}; expected one positive number for each rank")
    if parts < 1:
        raise InvalidArgument(f"parts is {parts}; expected at least 1")
    n = len(speed)
    if n <= 2:
        share = np.full(n, 1 / n)  # with two ranks the shares do not change what is sent
    else:
        # The k fastest have a share; T follows from their sum. The largest k whose slowest member keeps one is right.
        fastest = np.sort(speed)[::-1]
        count = np.arange(1, n + 1)
        times = (n - 2 + count) / np.cumsum(fastest)
        time = times[np.flatnonzero(times * fastest >= 1)[-1]]
        share = np.maximum(time * speed - 1, 0) / (n - 2)
    exact = share / share.sum() * parts
    whole = np.floor(exact + 1e-9).astype(np.int64)
    behind = np.argsort(-(exact - whole), kind="stable")[: parts - int(whole.sum())]
    whole[behind] += 1
    return tuple(int(value) for value in whole)
