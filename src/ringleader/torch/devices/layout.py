"""Which ranks share a host, and which of them carry data between hosts."""

from __future__ import annotations

from collections.abc import Sequence

from ringleader import errors

__all__ = ["Layout"]


class Layout:
    """The ranks of a group by their hosts.

    The data between hosts is cut into as many parts as the smallest host has ranks; part j travels between the j-th
    ranks of the hosts, which form *rail* j. Ranks beyond that number, on larger hosts, give their data to the others.

    Parameters
    ----------
    hosts
        A number for each rank; equal ones are one host.
    rank
        This rank.

    Attributes
    ----------
    members
        The ranks of each host, in the order of the hosts' first ranks.
    host, local
        This rank's host and its number there.
    rails
        Number of parts.
    rounds
        How many ranks of one host one rail serves at most: 1 if all hosts are of one size.

    Examples
    --------
    >>> layout = Layout([7, 7, 7, 3, 3], rank=2)
    >>> layout.members, layout.host, layout.local, layout.rails, layout.rounds
    ([[0, 1, 2], [3, 4]], 0, 2, 2, 2)
    >>> layout.table()
    [[[0, 2], [3, None]], [[1, None], [4, None]]]
    """

    def __init__(self, hosts: Sequence[int], rank: int) -> None:
        if not 0 <= rank < len(hosts):
            raise errors.InvalidArgument(
                f"hosts is {list(hosts)}, which are {len(hosts)} numbers; expected one for each rank, but this is rank "
                f"{rank}"
            )
        groups: dict[int, list[int]] = {}
        for each, host in enumerate(hosts):
            groups.setdefault(host, []).append(each)
        self.members = list(groups.values())
        self.host = list(groups).index(hosts[rank])
        self.local = self.members[self.host].index(rank)
        sizes = [len(ranks) for ranks in self.members]
        self.rails = min(sizes)
        self.rounds = -(-max(sizes) // self.rails)

    @property
    def mine(self) -> list[int]:
        """The ranks of this rank's host."""
        return self.members[self.host]

    def rail(self, number: int) -> list[int]:
        """The ranks of a rail, by host."""
        return [ranks[number] for ranks in self.members]

    def place(self, rank: int) -> tuple[int, int]:
        """Host and number there of any rank."""
        for host, ranks in enumerate(self.members):
            if rank in ranks:
                return host, ranks.index(rank)
        raise errors.InvalidArgument(f"root {rank} is no rank of this group")

    def table(self) -> list[list[list[int | None]]]:
        """By rail, host and round the rank whose block that rail carries; None where there is none."""
        return [
            [[self._at(ranks, rail + self.rails * turn) for turn in range(self.rounds)] for ranks in self.members]
            for rail in range(self.rails)
        ]

    @staticmethod
    def _at(ranks: list[int], index: int) -> int | None:
        return ranks[index] if index < len(ranks) else None
