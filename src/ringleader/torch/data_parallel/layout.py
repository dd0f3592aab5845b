"""Which gradients share a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringleader.overlap import fixed_buckets
from ringleader.torch.data_parallel.buckets import Slot, group_by_kind

__all__ = ["FIRST_CAP", "by_kind", "fixed"]

FIRST_CAP: Final = 1 << 20
"""Bytes of the first bucket: communication begins early."""


def fixed(slots: Sequence[Slot], order: Sequence[int], cap_bytes: int) -> list[list[int]]:
    """Buckets of a fixed size for gradients that come in `order` (indices of parameters), each of one type.

    They are sent in the order in which they are complete.

    Examples
    --------
    >>> import torch
    >>> slots = [Slot(i, str(i), torch.nn.Parameter(torch.ones(64))) for i in range(4)]
    >>> fixed(slots, [3, 2, 1, 0], 512)
    [[3, 2], [1, 0]]
    """
    place = {index: i for i, index in enumerate(order)}
    buckets: list[list[int]] = []
    for kind in group_by_kind([slots[i] for i in order]):
        sizes = [slot.parameter.nbytes for slot in kind]
        for bucket in fixed_buckets(sizes, cap_bytes, min(cap_bytes, FIRST_CAP)):
            buckets.append([kind[i].index for i in bucket])
    return sorted(buckets, key=lambda bucket: max(place[i] for i in bucket))


def by_kind(slots: Sequence[Slot], buckets: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same buckets, those that mix types divided.

    Examples
    --------
    >>> import torch
    >>> dtypes = (torch.float32, torch.float64, torch.float32)
    >>> slots = [Slot(i, str(i), torch.nn.Parameter(torch.ones(1, dtype=dtype))) for i, dtype in enumerate(dtypes)]
    >>> by_kind(slots, [[0, 1, 2]])
    [[0, 2], [1]]
    """
    return [[slot.index for slot in kind] for bucket in buckets for kind in group_by_kind([slots[i] for i in bucket])]
