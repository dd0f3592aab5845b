"""Which ranks are on one host: how algorithms that depend on it divide the ranks."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringleader.algorithms.parameter import Range, Separator, listed

__all__ = ["Hosts", "Nodes", "groups", "hosts_limit", "sizes"]

Hosts: TypeAlias = Annotated[
    tuple[int, ...], Range(1, 1 << 20), Separator("+"), "ranks of each host, in order; default: the node layout"
]
Nodes: TypeAlias = tuple[int, ...] | None


def hosts_limit(n: int, hosts: tuple[int, ...]) -> str:
    """Why `hosts` is no layout of n ranks, or nothing."""
    total = sum(hosts)
    return f"hosts={listed(hosts, '+')} are {total} ranks" if hosts and total != n else ""


def groups(n: int, hosts: tuple[int, ...], nodes: Nodes) -> list[NDArray[np.int64]]:
    """The ranks of each host, in ascending order; hosts in the order of their lowest ranks.

    Parameters
    ----------
    n
        Ranks.
    hosts
        Ranks of each host, numbered host by host; empty: look at `nodes`.
    nodes
        Node of each rank, or None: as many hosts as a host has ranks, or nearly so, to show the algorithm.

    Examples
    --------
    >>> [group.tolist() for group in groups(5, (2, 3), None)], [group.tolist() for group in groups(4, (), (0, 1, 0, 1))]
    ([[0, 1], [2, 3, 4]], [[0, 2], [1, 3]])
    >>> [len(group) for group in groups(11, (), None)]
    [4, 4, 3]
    """
    if hosts or nodes is None:
        return np.split(np.arange(n), np.cumsum(sizes(n, hosts, nodes))[:-1])
    order = np.argsort(np.asarray(nodes), kind="stable")
    return np.split(order, np.cumsum(np.bincount(nodes))[:-1])


def sizes(n: int, hosts: tuple[int, ...], nodes: Nodes) -> tuple[int, ...]:
    """The number of ranks of each host, see `groups`."""
    if hosts:
        return hosts
    if nodes is not None:
        return tuple(np.bincount(nodes).tolist())
    count = math.isqrt(n)
    return tuple(n // count + (host < n % count) for host in range(count))
