"""The collectives and algorithms of Open MPI's component `tuned`, and the algorithms here that do the same.

Numbers and names are those of its parameters ``coll_tuned_<collective>_algorithm`` (``ompi_info --param coll tuned
--level 9``, Open MPI 5.0.11) and of its documentation for 6.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.tune.rules import ANY, Range

__all__ = ["COLLECTIVES", "FIXED", "MpiAlgorithm", "MpiCollective", "collective_named"]

FIXED = 0
"""The number that leaves the decision to Open MPI."""

TWO = Range(2, 2)


@dataclass(frozen=True)
class MpiAlgorithm:
    """One of Open MPI's algorithms.

    Attributes
    ----------
    number, name
        As in its parameter.
    ours
        The algorithm here that does the same; empty if there is none.
    segmented
        It cuts the data into segments of the rule's segment size, and so does ours.
    radix
        The fan-out that 0 stands for, where the fan-out is our parameter ``radix`` (from Open MPI 6.0 on); 0: it is
        not.
    chains
        The fan-out is a number of chains, 0 is 1; only one chain is the same as ours.
    ranks
        For how many ranks it is.
    differs
        What ours does otherwise; it is taken over, with a note.
    also
        A further name.
    """

    number: int
    name: str
    ours: str = ""
    segmented: bool = False
    radix: int = 0
    chains: bool = False
    ranks: Range = ANY
    differs: str = ""
    also: str = ""


@dataclass(frozen=True)
class MpiCollective:
    """One of Open MPI's collectives; `ours` is empty if there is none like it, `also` a further name in JSON."""

    number: int
    name: str
    ours: str = ""
    algorithms: tuple[MpiAlgorithm, ...] = ()
    also: str = ""

    def numbered(self, number: int) -> MpiAlgorithm | None:
        """The algorithm of a number, None for `FIXED`.

        Raises
        ------
        InvalidArgument
            There is none; the message lists those that there are.
        """
        if number == FIXED:
            return None
        for algorithm in self.algorithms:
            if algorithm.number == number:
                return algorithm
        raise InvalidArgument(f"{self.name} has no algorithm {number}; expected {self._valid()}")

    def named(self, name: str) -> MpiAlgorithm | None:
        """As `numbered`, by name."""
        if name == "ignore":
            return None
        for algorithm in self.algorithms:
            if name in (algorithm.name, algorithm.also or algorithm.name):
                return algorithm
        raise InvalidArgument(f"{self.name} has no algorithm {name[:60]!r}; expected {self._valid()}")

    def _valid(self) -> str:
        return ", ".join(["0 (ignore)", *(f"{it.number} ({it.name})" for it in self.algorithms)])


_A = MpiAlgorithm

COLLECTIVES: tuple[MpiCollective, ...] = (
    MpiCollective(0, "allgather", "all_gather", (
        _A(1, "linear"),
        _A(2, "bruck", "bruck", radix=2, also="bruck-k-fanout"),
        _A(3, "recursive_doubling", "recursive_doubling"),
        _A(4, "ring", "ring"),
        _A(5, "neighbor"),
        _A(6, "two_proc", "direct", ranks=TWO),
        _A(7, "sparbit"),
        _A(8, "direct-messaging", "direct"),
    )),
    MpiCollective(1, "allgatherv"),
    MpiCollective(2, "allreduce", "all_reduce", (
        _A(1, "basic_linear", "linear"),
        _A(2, "nonoverlapping", "binomial", differs="reduces and broadcasts along binomial trees, where Open MPI "
           "chooses for both by its own rules"),
        _A(3, "recursive_doubling", "recursive_doubling"),
        _A(4, "ring", "ring"),
        _A(5, "segmented_ring", "ring", segmented=True),
        _A(6, "rabenseifner", "rabenseifner"),
        _A(7, "allgather_reduce", "allgather_reduce"),
    )),
    MpiCollective(3, "alltoall", "all_to_all", (
        _A(1, "linear", "direct"),
        _A(2, "pairwise", "pairwise"),
        _A(3, "modified_bruck", "bruck"),
        _A(4, "linear_sync", "direct", differs="has all blocks under way at once, however many requests are allowed"),
        _A(5, "two_proc", "direct", ranks=TWO),
    )),
    MpiCollective(4, "alltoallv"),
    MpiCollective(5, "alltoallw"),
    MpiCollective(6, "barrier", "barrier", (
        _A(1, "linear"),
        _A(2, "double_ring"),
        _A(3, "recursive_doubling", "dissemination", differs="signals the rank at distance 2^k instead of exchanging "
           "with it"),
        _A(4, "bruck", "dissemination"),
        _A(5, "two_proc", "direct", ranks=TWO),
        _A(6, "tree", "tree"),
    )),
    MpiCollective(7, "bcast", "broadcast", (
        _A(1, "basic_linear", "linear"),
        _A(2, "chain", "chain", segmented=True, chains=True),
        _A(3, "pipeline", "chain", segmented=True),
        _A(4, "split_binary_tree"),
        _A(5, "binary_tree", "binary_tree", segmented=True),
        _A(6, "binomial", "binomial"),
        _A(7, "knomial", "knomial"),  # of radix 4, which only a parameter of its own changes
        _A(8, "scatter_allgather", "scatter_allgather", differs="gathers along a ring, not by recursive doubling"),
        _A(9, "scatter_allgather_ring", "scatter_allgather"),
    )),
    MpiCollective(8, "exscan"),
    MpiCollective(9, "gather", "gather", (
        _A(1, "basic_linear", "linear"),
        _A(2, "binomial", "binomial"),
        _A(3, "linear_sync", "linear", differs="does not wait for the root's signal"),
    )),
    MpiCollective(10, "gatherv"),
    MpiCollective(11, "reduce", "reduce", (
        _A(1, "linear", "linear"),
        _A(2, "chain", "chain", segmented=True, chains=True),
        _A(3, "pipeline", "chain", segmented=True),
        _A(4, "binary", "binary_tree", segmented=True),
        _A(5, "binomial", "binomial"),
        _A(6, "in-order_binary"),
        _A(7, "rabenseifner", "rabenseifner"),
        _A(8, "knomial", "knomial", radix=4),
    )),
    MpiCollective(12, "reduce_scatter", "reduce_scatter", (
        _A(1, "non-overlapping"),
        _A(2, "recursive_halving", "recursive_halving"),
        _A(3, "ring", "ring"),
        _A(4, "butterfly"),
    ), also="reducescatter"),
    MpiCollective(13, "reduce_scatter_block", "reduce_scatter", (
        _A(1, "basic_linear"),
        _A(2, "recursive_doubling"),
        _A(3, "recursive_halving", "recursive_halving"),
        _A(4, "butterfly"),
    ), also="reducescatterblock"),
    MpiCollective(14, "scan"),
    MpiCollective(15, "scatter", "scatter", (
        _A(1, "basic_linear", "linear"),
        _A(2, "binomial", "binomial"),
        _A(3, "linear_nb", "linear", differs="is the same as basic_linear, as nothing here blocks"),
    )),
    MpiCollective(16, "scatterv"),
    MpiCollective(17, "neighbor_allgather"),
    MpiCollective(18, "neighbor_allgatherv"),
    MpiCollective(19, "neighbor_alltoall"),
    MpiCollective(20, "neighbor_alltoallv"),
    MpiCollective(21, "neighbor_alltoallw"),
)  # fmt: skip
"""All collectives, at their number."""


def collective_named(name: str) -> MpiCollective:
    """The collective of a name in JSON.

    Raises
    ------
    InvalidArgument
        There is none; the message lists those that there are.
    """
    for collective in COLLECTIVES:
        if name in (collective.name, collective.also or collective.name):
            return collective
    raise InvalidArgument(unknown("collective", name, (it.name for it in COLLECTIVES)))
