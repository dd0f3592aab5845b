"""UCX: where its library is, and how our settings are told to it."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from ringleader.runtime.config import Config, logger

if TYPE_CHECKING:
    from ringleader import _core

__all__ = ["environment", "libraries", "open_worker", "settings"]

_NAME = "libucp.so.0"
# What the package libucx-cu12 (or -cu11, -cu13) of PyPI installs.
_WHEEL_MODULE = "libucx"
# UCX's families of InfiniBand transports whose timeout can be set.
_TIMEOUTS = ("UCX_RC_TIMEOUT", "UCX_DC_TIMEOUT")


def libraries(config: Config) -> list[str]:
    """What to load, in this order: `RINGLEADER_UCX_LIBRARY` and nothing else; or the system's; or the wheel's.

    The system's comes first because the wheel is built without InfiniBand.

    Examples
    --------
    >>> libraries(Config(ucx_library="/opt/ucx/lib/libucp.so.0"))
    ['/opt/ucx/lib/libucp.so.0']
    """
    if config.ucx_library is not None:
        path = config.ucx_library
        return [os.path.join(path, _NAME) if os.path.isdir(path) else path]
    found = [_NAME]
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(place, "lib", _NAME)
        if os.path.exists(path):
            found.append(path)
    return found


def settings(config: Config) -> dict[str, str]:
    """UCX settings (names without ``UCX_``) that stand for ours and that UCX takes for one context.

    Large messages are read by their receiver from the sender's memory: a sender that stopped, and goes on when its
    message has been given up, must not write into memory that the receiver's program has reused (architecture.md, "Who
    may write which memory until when"). ``UCX_RNDV_SCHEME`` in the environment takes precedence (``am`` is safe too).

    Examples
    --------
    >>> settings(Config(ib_hca="mlx5_0,mlx5_1:2"))
    {'RNDV_SCHEME': 'get_zcopy', 'NET_DEVICES': 'mlx5_0:1,mlx5_1:2'}
    """
    result = {} if "UCX_RNDV_SCHEME" in os.environ else {"RNDV_SCHEME": "get_zcopy"}
    if config.ib_hca is None:
        return result
    negated = "^" if config.ib_hca.startswith("^") else ""
    names = config.ib_hca.removeprefix("^").split(",")
    return result | {"NET_DEVICES": negated + ",".join(name if ":" in name else f"{name}:1" for name in names)}


def environment(config: Config) -> dict[str, str]:
    """UCX settings that UCX takes from the environment only: those of its InfiniBand modules.

    Examples
    --------
    >>> environment(Config(ib_timeout=20))
    {'UCX_RC_TIMEOUT': '4294967us', 'UCX_DC_TIMEOUT': '4294967us'}
    """
    if config.ib_timeout is None:
        return {}
    return dict.fromkeys(_TIMEOUTS, f"{int(4.096 * 2**config.ib_timeout)}us")


def open_worker(config: Config) -> _core.UcxWorker:
    """A UCX worker for one communicator.

    Raises
    ------
    InvalidArgument
        UCX cannot be loaded (the message tells what was tried and how to install it), or refuses a setting.
    """
    from ringleader import _core

    for name, value in environment(config).items():
        os.environ.setdefault(name, value)
    worker = _core.UcxWorker(libraries(config), settings(config))
    logger("NET").info("the data of collectives between nodes go over %s", worker.library)
    return worker
