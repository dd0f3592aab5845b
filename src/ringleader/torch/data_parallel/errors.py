"""What goes wrong with a model's gradients, in words."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["changed_graph", "ready_twice", "shorten", "without_gradient"]

_MOST = 12


def shorten(names: Sequence[str]) -> str:
    """Some names and how many more there are."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def without_gradient(names: Sequence[str], missing: int, rank: int) -> RuntimeError:
    """For parameters that a backward pass did not reach."""
    which = shorten(names) if len(names) == missing else f"{missing} of {shorten(names)}"
    return RuntimeError(
        f"on rank {rank} a backward pass gave no gradient to {missing} parameter{'s' * (missing != 1)}: {which}. "
        "Their gradients were taken as zero, so the ranks are still in step. If parameters may be unused, pass "
        "find_unused_parameters=True, or static_graph=True where they always are the same; else let all outputs "
        "of forward() take part in the loss, and checkpoint with use_reentrant=False"
    )


def changed_graph(names: Sequence[str], missing: int, rank: int) -> RuntimeError:
    """For a graph that was said to be static."""
    which = shorten(names) if len(names) == missing else f"{missing} of {shorten(names)}"
    return RuntimeError(
        f"on rank {rank} a backward pass gave no gradient to {which}, as the first one did; "
        "with static_graph=True every pass must use the same parameters equally often: pass "
        "find_unused_parameters=True instead"
    )


def ready_twice(name: str, rank: int) -> RuntimeError:
    """For a gradient that comes after its bucket has been sent."""
    return RuntimeError(
        f"on rank {rank} the gradient of {name} came after its bucket was complete: within one backward pass a "
        "parameter got its gradient more than once (a shared layer under reentrant checkpointing?), or one taken for "
        "unused was used. Pass static_graph=True, or checkpoint with use_reentrant=False"
    )
