"""Storages of torch's tensors moved into registered memory, in place, so that peers reach them without a copy.

torch moves a storage into a mapping of its own (`UntypedStorage._share_fd_cpu_`, as `Tensor.share_memory_` does), and
all tensors over it follow. The pages behind that mapping are then replaced by pages of the arena, which from then on
are reachable at two addresses: the engine is given the arena's own.

Invariant: an address is only translated for a storage that lives and still is where it was when it was moved. The
arena's pages are freed when torch's weak reference tells that it lives no more, for then torch has unmapped it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ringleader import _core, errors

__all__ = ["LEAST_BYTES", "address_of", "move", "release_dead"]

LEAST_BYTES: Final = 32 << 10
"""Storages below this are not worth a move: one small window takes them."""

_SHARED_MEMORY: Final = "/dev/shm"
"""Where torch makes its mapping, for a moment."""


@dataclass(frozen=True)
class _Moved:
    storage: StorageWeakRef
    torch_ptr: int
    arena_ptr: int
    pid: int


_moved: dict[int, _Moved] = {}  # by torch's address of the storage object; single operations on it are atomic
_lock = threading.Lock()


def address_of(x: torch.Tensor) -> int:
    """Address to give to the engine for a tensor: in the arena if its storage was moved there, else its own."""
    ptr = x.data_ptr()
    if not _moved:
        return ptr
    storage = x.untyped_storage()
    moved = _moved.get(storage._cdata)
    # The weak reference keeps the storage object's address from being used for another one.
    if moved is None or moved.torch_ptr != storage.data_ptr() or moved.pid != os.getpid():
        return ptr
    return moved.arena_ptr + (ptr - moved.torch_ptr)


def move(x: torch.Tensor, sharers: int = 1) -> bool:
    """Move a CPU tensor's storage into registered memory. Tensors over it stay valid, raw pointers to it do not.

    Parameters
    ----------
    x
        Any tensor over the storage. Nobody may use it meanwhile, nor hold an address of it (``x.numpy()`` does).
    sharers
        Processes of this host that may do the same at this moment: the room in /dev/shm must be enough for all.

    Returns
    -------
    bool
        Whether its memory is registered now. If not, nothing has changed that a program could notice: the storage is
        too small, is shared already, or there is no room for it.

    References
    ----------
    memfd_create(2), mmap(2): MAP_FIXED replaces what is mapped at an address.

    Examples
    --------
    >>> import torch
    >>> x = torch.arange(20000.0)
    >>> move(x), address_of(x) != x.data_ptr(), x.sum().item()
    (True, True, 199990000.0)
    """
    storage = x.untyped_storage()
    if storage._cdata in _moved:
        return address_of(x) != x.data_ptr()
    nbytes = storage.nbytes()
    if x.device.type != "cpu" or nbytes < LEAST_BYTES or storage.is_shared():
        return False
    with _lock:
        _release_dead()
        return _room(nbytes * sharers) and _move(storage, nbytes)


def _room(nbytes: int) -> bool:
    """Whether the mount has it: torch does not reserve what it maps, and a full mount would be a bus error."""
    try:
        mount = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return mount.f_bavail * mount.f_frsize >= nbytes + (1 << 20)


def _move(storage: torch.UntypedStorage, nbytes: int) -> bool:
    try:
        fd = storage._share_fd_cpu_()[0]
    except (RuntimeError, AttributeError, OSError):  # private: torch may take it away
        return False
    torch_ptr = storage.data_ptr()
    try:
        arena_ptr = _core.arena_adopt(torch_ptr, nbytes)
    except errors.RingleaderError:  # no memory, or not at the start of a page: it stays as torch has made it
        return False
    # The descriptor belongs to the storage. Nothing maps its file any more: let it go, and whoever is sent it (by
    # torch.multiprocessing) shall fail, not see old values.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), fd, inheritable=False)
    weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    _moved[storage._cdata] = _Moved(weak, torch_ptr, arena_ptr, os.getpid())
    return True


def release_dead() -> None:
    """Free the registered memory of storages that live no more."""
    with _lock:
        _release_dead()


def _release_dead() -> None:
    for key, moved in list(_moved.items()):
        if moved.storage.expired():  # type: ignore[no-untyped-call]
            del _moved[key]
            if moved.pid == os.getpid():  # a forked child has a copy of the table, but the memory is its parent's
                _core.arena_free(moved.arena_ptr)
