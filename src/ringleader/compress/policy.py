"""Which gradient is compressed how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ringleader import errors
from ringleader.compress.base import Compressor, State, no_compressor

__all__ = ["LEAST_ELEMENTS", "Policy"]

LEAST_ELEMENTS = 1024


class Policy:
    """A compressor for each parameter, or none: of small ones and of vectors there is little to win and much to lose.

    Parameters
    ----------
    compressor
        What compresses a parameter that no rule names.
    rules
        Pairs of a pattern of names, as in a shell (``"*.embedding.weight"``), and a compressor, or None: not
        compressed. The first that fits counts, whatever the parameter's size.
    least_elements
        Parameters with fewer are not compressed.
    vectors
        Compress vectors (biases, norms) too, and not only what has two or more dimensions.

    Examples
    --------
    >>> from ringleader.compress import FP16, ErrorFeedback, OneBit
    >>> policy = Policy(ErrorFeedback(OneBit()), rules=[("head.*", None), ("*embedding*", FP16())])
    >>> [type(policy.choose(name, shape)).__name__ for name, shape in
    ...  [("body.weight", (64, 64)), ("body.bias", (64,)), ("head.weight", (64, 64)), ("embedding.weight", (9, 2))]]
    ['ErrorFeedback', 'NoneType', 'NoneType', 'FP16']
    """

    def __init__(
        self,
        compressor: Compressor,
        rules: Sequence[tuple[str, Compressor | None]] = (),
        least_elements: int = LEAST_ELEMENTS,
        vectors: bool = False,
    ) -> None:
        for pattern, each in ("*", compressor), *rules:
            if not isinstance(each, Compressor) and (each is not None or each is compressor):
                raise errors.InvalidArgument(f"the compressor for {pattern!r} is {each!r}; {no_compressor(each)}")
        self.compressor = compressor
        self.rules = [(str(pattern), each) for pattern, each in rules]
        self.least_elements, self.vectors = least_elements, vectors

    @classmethod
    def of(
        cls, compression: Compressor | Policy, least_elements: int = LEAST_ELEMENTS, vectors: bool = False
    ) -> Policy:
        """A policy as it is, or one with this compressor.

        Examples
        --------
        >>> from ringleader.compress import FP16
        >>> Policy.of(FP16()).least_elements
        1024
        """
        return compression if isinstance(compression, Policy) else cls(compression, (), least_elements, vectors)

    def choose(self, name: str, shape: Sequence[int]) -> Compressor | None:
        """The compressor for a parameter; None where it is to be sent as it is."""
        for pattern, compressor in self.rules:
            if fnmatchcase(name, pattern):
                return compressor
        fits = math.prod(shape) >= self.least_elements and (self.vectors or len(shape) >= 2)
        return self.compressor if fits else None

    def compressors(self) -> list[Compressor]:
        """All that it may choose, each once."""
        found = {id(each): each for each in (self.compressor, *(each for _, each in self.rules)) if each is not None}
        return list(found.values())

    def state_dict(self) -> State:
        """What all its compressors remember, on this rank."""
        return {"compressors": [each.state_dict() for each in self.compressors()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of a policy with as many compressors.

        Raises
        ------
        InvalidArgument
            Another number of compressors.
        """
        mine, saved = self.compressors(), state["compressors"]
        if len(mine) != len(saved):
            raise errors.InvalidArgument(f"the state is of {len(saved)} compressors; this policy has {len(mine)}")
        for each, part in zip(mine, saved, strict=True):
            each.load_state_dict(part)
