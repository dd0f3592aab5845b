"""Which parameters a backward pass from given tensors will reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["differentiable", "reachable"]


def differentiable(outputs: object) -> list[Tensor]:
    """The tensors in what a forward pass returned that a backward pass can begin at.

    Dictionaries, sequences, dataclasses and the like are searched.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> len(differentiable({"loss": (x * x).sum(), "labels": [torch.ones(1)]}))
    1
    """
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.grad_fn is not None else []
    found = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.grad_fn is not None]
    if not found and hasattr(outputs, "__dict__"):
        found = [x for x in pytree.tree_leaves(vars(outputs)) if isinstance(x, Tensor) and x.grad_fn is not None]
    return found


def reachable(outputs: list[Tensor], index_of: Mapping[int, int]) -> set[int]:
    """Indices of the parameters that the graph behind `outputs` leads to.

    Parameters
    ----------
    index_of
        Index by ``id`` of the parameter.

    Examples
    --------
    >>> import torch
    >>> a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    >>> reachable([(a * 2).sum()], {id(a): 0, id(b): 1})
    {0}
    """
    found: set[int] = set()
    stack: list[Any] = [x.grad_fn for x in outputs]
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)  # of the nodes that accumulate
        if variable is not None:
            index = index_of.get(id(variable))
            if index is not None:
                found.add(index)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
