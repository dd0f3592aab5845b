"""From any array to an address: NumPy arrays, torch tensors, DLPack and the buffer protocol.

Everything the engine is given is contiguous, in native byte order and (for a target) writable. What is not becomes so
through a contiguous temporary: `Buffer.load` fills it, `Buffer.store` copies the result back into exactly the viewed
elements. `store` is native: of an asynchronous operation it is made by the thread that completes it, before anybody can
see that it is complete. torch is never imported here: a tensor can only come from a caller who has imported it.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ringleader import _core, errors
from ringleader.runtime import dtypes

__all__ = [
    "Buffer",
    "copy",
    "empty",
    "is_read_only",
    "new_like",
    "numpy_address",
    "source",
    "target",
    "tensor_copy",
    "torch_tensor_type",
    "user_shape",
]


class Buffer:
    """Contiguous memory standing for a user's array.

    Attributes
    ----------
    ptr
        Address of the first element (0 when empty).
    elements
        Number of the user's elements.
    code
        Native type code (`dtypes.BYTES` for types that can only be moved).
    count, itemsize
        Elements as the core counts them, and their size: for `dtypes.BYTES` these are bytes.
    shape
        The array's shape; for `dtypes.BYTES` with the bytes of an element as a further dimension.
    keep
        Objects that own the memory.
    load, store
        Copy between the user's elements and the temporary; None when `ptr` is the user's own memory.
    """

    __slots__ = ("code", "count", "dtype_name", "elements", "itemsize", "keep", "load", "obj", "ptr", "shape", "store")

    def __init__(self, obj: Any, ptr: int, shape: tuple[int, ...], code: int, dtype_name: str, itemsize: int) -> None:
        self.obj = obj
        self.ptr = ptr
        self.elements = math.prod(shape)
        opaque = code == dtypes.BYTES
        self.shape = (*shape, itemsize) if opaque else shape
        self.count = self.elements * itemsize if opaque else self.elements
        self.code = code
        self.dtype_name = dtype_name
        self.itemsize = 1 if opaque else itemsize
        self.keep: tuple[Any, ...] = (obj,)
        self.load: Callable[[], object] | None = None
        self.store: _core.StridedCopy | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.itemsize

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share a byte of memory."""
        return self.ptr < other.ptr + other.nbytes and other.ptr < self.ptr + self.nbytes


_char_at = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def numpy_address(array: NDArray[Any]) -> int:
    """Address of a NumPy array's first element."""
    try:
        return _addressof(_char_at(cast(Any, array)))  # 0.15 us; array.ctypes.data takes 0.8 us
    except (TypeError, ValueError, BufferError):  # empty, read-only or not exportable
        return int(array.__array_interface__["data"][0])


def torch_tensor_type() -> Any:
    """``torch.Tensor`` if the program has imported torch, else None."""
    torch = sys.modules.get("torch")
    return getattr(torch, "Tensor", None)


def _is_torch(x: Any) -> bool:
    tensor = torch_tensor_type()
    return tensor is not None and isinstance(x, tensor)


def _as_numpy(x: Any, what: str) -> NDArray[Any]:
    """A NumPy view of anything with the buffer protocol, the array interface or DLPack. Never a copy."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, np.generic):
        raise errors.UnsupportedType(
            f"{what} is a NumPy scalar ({x!r}), which has no memory of its own; pass np.array({x!r})"
        )
    try:
        return np.asarray(memoryview(x))
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(x, "__array_interface__"):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            raise errors.UnsupportedType(
                f"{what} of type {type(x).__name__} cannot be reached through DLPack: {error}"
            ) from error
    raise errors.UnsupportedType(
        f"{what} is of type {type(x).__name__}; expected a NumPy array, a torch CPU tensor, or an object with DLPack "
        "or the buffer protocol"
    )


def _refuse_repeated(shape: Sequence[int], strides: Sequence[int], what: str) -> None:
    if 0 not in shape and any(stride == 0 and extent > 1 for extent, stride in zip(shape, strides, strict=True)):
        raise errors.InvalidArgument(
            f"{what} repeats elements in memory (shape {tuple(shape)}, a stride of 0) and cannot be written to; "
            "pass a copy"
        )


def _numpy_buffer(x: Any, what: str, write: bool) -> Buffer:
    array = _as_numpy(x, what)
    code = dtypes.code_of_numpy(array.dtype)
    native = array.dtype.isnative
    if write and not array.flags.writeable:
        raise errors.InvalidArgument(f"{what} is read-only and cannot receive a result; pass a writable copy or out=")
    memory = array
    if not (array.flags.c_contiguous and array.flags.aligned and native):
        if write:
            _refuse_repeated(array.shape, array.strides, what)
        memory = np.empty(array.shape, array.dtype.newbyteorder("="))
    ptr = numpy_address(memory) if memory.size else 0
    buffer = Buffer(x, ptr, array.shape, code, str(array.dtype), memory.dtype.itemsize)
    if array is not x:
        buffer.keep = (x, array)
    if memory is not array:
        buffer.keep = (x, array, memory)
        buffer.load = lambda: np.copyto(memory, array)
        if write:
            to = int(array.__array_interface__["data"][0])
            buffer.store = _core.StridedCopy(
                ptr, to, array.shape, array.strides, array.dtype.itemsize, _byte_order(array.dtype)
            )
    return buffer


@lru_cache(maxsize=256)
def _byte_order(dtype: np.dtype[Any]) -> list[int]:
    """Which byte in native order is each byte of an element, -1 for what lies between fields; [] if all are in order.

    NumPy's own copies tell: of elements whose bytes are numbered.
    """
    if dtype.isnative and dtype.fields is None:
        return []
    native, size = dtype.newbyteorder("="), dtype.itemsize
    numbers = np.arange(size)

    def copied(digit: NDArray[np.int_], beneath: int) -> NDArray[np.int_]:
        element = np.full(size, beneath, np.uint8)
        np.copyto(element.view(dtype), (digit % 256).astype(np.uint8).view(native))
        return element.astype(np.int_)

    order = copied(numbers, 0) + 256 * copied(numbers // 256, 0)
    untouched = copied(numbers, 0) != copied(numbers, 255)
    order = np.where(untouched, -1, order)
    return [] if np.array_equal(order, numbers) else order.tolist()


def _check_memory(x: Any, what: str) -> None:
    """Refuse tensors without elements in memory: wrappers (DTensor), fakes, and those whose storage was freed."""
    try:
        ptr = x.data_ptr()
    except RuntimeError:  # a fake's
        ptr = 0
    if ptr == 0 and x.numel():
        raise errors.UnsupportedType(
            f"{what} is a {type(x).__name__} of shape {tuple(x.shape)} without memory of its own; expected a tensor "
            "whose elements are in memory: of a DTensor (the parameters of a module after fully_shard are such) pass "
            "x.to_local(), and wrap a module in one style of data parallel training only"
        )


def _torch_buffer(x: Any, what: str, write: bool) -> Buffer:
    torch = sys.modules["torch"]
    if not x.is_cpu or x.layout is not torch.strided or x.is_quantized:
        raise errors.UnsupportedType(
            f"{what} is a {x.layout} tensor of type {x.dtype} on device {x.device}; expected a dense CPU tensor"
        )
    _check_memory(x, what)
    name = str(x.dtype).removeprefix("torch.")
    code = dtypes.code_of_name(name)
    tensor = memory = x.detach()
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        if write:
            _refuse_repeated(tensor.shape, tensor.stride(), what)
            if tensor.is_neg() and not (tensor.is_floating_point() or tensor.is_complex()):
                raise errors.UnsupportedType(
                    f"{what} is a negative view of type {x.dtype}; pass x.resolve_neg(), or a view without negation"
                )
        memory = torch.empty(tensor.shape, dtype=tensor.dtype)
    buffer = Buffer(x, memory.data_ptr(), tuple(tensor.shape), code, name, memory.element_size())
    if memory is not tensor:
        buffer.keep = (x, tensor, memory)
        buffer.load = lambda: memory.copy_(tensor)
        if write:
            buffer.store = tensor_copy(buffer.ptr, tensor)
    return buffer


def tensor_copy(ptr: int, tensor: Any) -> _core.StridedCopy:
    """A copy of contiguous elements at `ptr` into a torch tensor of their type. Whoever has it keeps the two alive."""
    size = tensor.element_size()
    flip = np.zeros(size, np.uint8)
    if tensor.is_neg():
        flip[size - 1] ^= 0x80
        if tensor.is_complex():
            flip[size // 2 - 1] ^= 0x80
    if tensor.is_conj():
        flip[size - 1] ^= 0x80
    strides = [stride * size for stride in tensor.stride()]
    return _core.StridedCopy(
        ptr, tensor.data_ptr(), list(tensor.shape), strides, size, [], flip.tolist() if flip.any() else []
    )


def source(x: Any, what: str = "the input") -> Buffer:
    """Memory to read `x` from; call `load` (if any) before the operation.

    Raises
    ------
    UnsupportedType
        `x` is no array, or of a type that cannot be sent.
    """
    return _torch_buffer(x, what, False) if _is_torch(x) else _numpy_buffer(x, what, False)


def target(x: Any, what: str = "the output") -> Buffer:
    """Memory to write `x` to; call `store` (if any) after the operation, and `load` before it if only part is written.

    Raises
    ------
    InvalidArgument
        `x` is read-only or repeats elements.
    UnsupportedType
        As for `source`.
    """
    return _torch_buffer(x, what, True) if _is_torch(x) else _numpy_buffer(x, what, True)


def user_shape(x: Any) -> tuple[int, ...]:
    """Shape of the caller's array."""
    return tuple(x.shape) if hasattr(x, "shape") else _as_numpy(x, "the input").shape


def new_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised array of `shape` and `x`'s type: a torch tensor for a tensor, else a NumPy array."""
    if _is_torch(x):
        return sys.modules["torch"].empty(shape, dtype=x.dtype)
    return np.empty(shape, _as_numpy(x, "the input").dtype)


def copy(destination: Any, origin: Any) -> None:
    """Copy all elements between two arrays of one shape and kind."""
    if _is_torch(destination):
        destination.copy_(origin.detach())
    else:
        np.copyto(destination, _as_numpy(origin, "the input"))


def is_read_only(x: Any) -> bool:
    """Whether `x` may not be written to."""
    return not _is_torch(x) and not _as_numpy(x, "the input").flags.writeable


class _Reservation:
    """Owner of a piece of the arena; NumPy keeps it alive as the base of the arrays over it."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, ptr: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (ptr, False)}
        weakref.finalize(self, _release, ptr, os.getpid()).atexit = False


def _release(ptr: int, pid: int) -> None:
    # A forked child has a copy of the handle, but the memory itself is shared with its parent, who still uses it.
    if os.getpid() == pid:
        _core.arena_free(ptr)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32, align: int = 64) -> NDArray[Any]:
    """An uninitialised NumPy array in registered memory; see `ringleader.Communicator.empty`."""
    kind = np.dtype(dtype)
    dtypes.code_of_numpy(kind)  # refuses objects
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in extents):
        raise errors.InvalidArgument(f"shape {extents} has a negative extent")
    nbytes = math.prod(extents) * kind.itemsize
    if nbytes == 0:
        return np.empty(extents, kind)
    memory = np.asarray(_Reservation(_core.arena_alloc(nbytes, align), nbytes))
    return memory.view(kind).reshape(extents)
