"""Keeps torch.compile out of this package: dynamo would try to compile our frames when C++ calls them."""

from __future__ import annotations

import types
from collections.abc import Iterable

__all__ = ["skip_frames"]


def skip_frames(modules: Iterable[types.ModuleType]) -> None:
    """Mark all functions and methods that the modules define as not to be traced, nor what they call."""
    try:
        # Not from torch._dynamo, whose import takes a second.
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:  # another torch: dynamo then gives up on these frames by itself, with warnings
        return
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for module in modules:
        for code in _codes(module, module.__name__):
            set_code_exec_strategy(code, strategy)


def _codes(owner: object, module: str) -> Iterable[types.CodeType]:
    for value in vars(owner).values():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            yield function.__code__
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(value, module)
