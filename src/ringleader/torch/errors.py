"""Ringleader's errors as torch programs expect them: each is also a `torch.distributed.DistBackendError`.

That makes it a `RuntimeError`, which is what training loops and launchers catch around collectives. The message is
unchanged, but for the word "timeout" at the end of its first line where programs look for it, and
``except ringleader.errors.CollectiveTimeout`` catches it as before.
"""

from __future__ import annotations

import torch.distributed as dist

from ringleader import errors

__all__ = ["torch_error"]

_TYPES: dict[type, type[errors.RingleaderError]] = {}


def _define(base: type[errors.RingleaderError]) -> type[errors.RingleaderError]:
    names = {"__module__": __name__, "__doc__": f"`{base.__name__}` and `torch.distributed.DistBackendError` in one."}
    kind = type(base.__name__, (base, dist.DistBackendError), names)
    globals()[base.__name__] = kind  # so that it can be pickled
    return kind


for _base in (
    errors.RendezvousError,
    errors.CollectiveTimeout,
    errors.PeerLost,
    errors.MismatchError,
    errors.AbortedError,
    errors.ClosedError,
    errors.ForkError,
    errors.OutOfMemory,
    errors.InternalError,
):
    _TYPES[_base] = _define(_base)


def torch_error(error: BaseException) -> BaseException:
    """The error to raise in a torch program for `error`: itself, or one that is a `DistBackendError` as well.

    Examples
    --------
    >>> isinstance(torch_error(errors.PeerLost("rank 1 is gone", [1])), RuntimeError)
    True
    """
    kind = _TYPES.get(type(error))
    if kind is None or not isinstance(error, errors.RingleaderError):
        return error
    text = str(error)
    if isinstance(error, errors.CollectiveTimeout) and " timeout " not in text:
        cause, *details = text.split("\n", 1)
        text = "\n".join((f"{cause}; the timeout has passed", *details))
    converted = kind(text, error.ranks)
    converted.__cause__ = error.__cause__
    return converted
