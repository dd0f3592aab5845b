"""Point-to-point messages of a process group, and the collectives made of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from ringleader import _core, errors
from ringleader.runtime import arrays
from ringleader.runtime.arrays import Buffer
from ringleader.torch.profiling import Recording, profiling
from ringleader.torch.register import NAME
from ringleader.torch.tensors import direct, single
from ringleader.torch.work import RingleaderWork, seconds_of

if TYPE_CHECKING:
    from ringleader.torch.channel import Channel

__all__ = ["Exchanges", "operation"]

# Tags of messages within collectives: beyond those that torch has, which are 32-bit.
_FIRST_TAG = 1 << 40
_TAGS = 1 << 20


_Method = TypeVar("_Method", bound=Callable[..., Any])

# What torch calls one and the same argument, in its many forms of an operation.
_SPELLINGS = (
    ("tensors", "tensor"),
    ("output", "output_tensor", "outputTensor", "outputs", "output_tensors", "outputTensors", "output_lists"),
    ("input", "input_tensor", "inputTensor", "inputs", "input_tensors", "inputTensors", "input_list"),
    ("dst", "dstRank"),
    ("src", "srcRank"),
    ("opts", "root"),
    ("op", "opts"),
)


def _other_names(method: Callable[..., Any]) -> dict[str, str]:
    """torch's other names of the method's parameters, and the parameters' own."""
    own = set(inspect.signature(method).parameters)
    return {
        other: name
        for spellings in _SPELLINGS
        for name in spellings
        for other in spellings
        if name in own and other not in own
    }


def operation(event: str, inputs: int = 0) -> Callable[[_Method], _Method]:
    """Decorate a method that torch calls to start an operation.

    An operation that cannot be started returns a work that has failed: DDP cannot bear errors at the start. Wrong
    arguments are refused at once, because that is where the program's error is.

    Parameters
    ----------
    event
        Its name in torch's profiler.
    inputs
        Which argument holds the tensors whose shapes the profiler shows.
    """
    title = f"{NAME}:{event}"

    def decorate(method: _Method) -> _Method:
        other_names = _other_names(method)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs:
                kwargs = {other_names.get(name, name): value for name, value in kwargs.items()}
            recording = Recording(title, args[inputs : inputs + 1]) if profiling() else None
            detour = self._detour
            try:
                if detour is None:
                    work = method(self, *args, **kwargs)
                else:
                    work = detour.call(method, method.__name__, args, kwargs)
            except (errors.InvalidArgument, errors.UnsupportedType, errors.ScheduleError):
                if recording is not None:
                    recording.end()
                raise
            except errors.RingleaderError as error:
                work = self._failed(error)
            if recording is not None:
                work.record(recording)
            return work

        return cast(_Method, call)

    return decorate


class _Receive(RingleaderWork):
    """Of a message that must have the tensor's size."""

    def _settle(self, error: BaseException | None) -> None:
        if isinstance(error, errors.MismatchError):
            x = self.outputs[0]
            text = f"{error}: a tensor of shape {tuple(x.shape)} and type {x.dtype}"
            error = errors.MismatchError(text, error.ranks)
        super()._settle(error)


class Exchanges:
    """Mixin with send and receive, and with exchanges of blocks of any sizes."""

    _detour: Any = None  # of groups with devices, see `devices.detour`

    def _channel(self) -> Channel:
        """The communicator for the calling thread."""
        raise NotImplementedError

    def _hold(self, work: RingleaderWork) -> RingleaderWork:
        """Keep a new work alive, and let it belong to this group."""
        raise NotImplementedError

    def _failed(self, error: errors.RingleaderError) -> RingleaderWork:
        """A work that has failed."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------- messages

    @operation("send")
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Any:
        """Send a tensor to rank `dst`."""
        x = single(tensors, "send's list")
        return self._hold(self._isend(self._channel(), x, dst, tag, 0.0))

    @operation("recv")
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Any:
        """Receive a tensor from rank `src`."""
        x = single(tensors, "recv's list")
        return self._hold(self._irecv(self._channel(), x, src, tag, 0.0))

    @operation("recvAnySource")
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        """Receive a tensor from any rank; the work's `source_rank` tells which."""
        x = single(tensors, "recv's list")
        return self._hold(self._irecv(self._channel(), x, -1, tag, 0.0))

    recvAnysource = recv_anysource  # noqa: N815 - older torch

    def _isend(self, channel: Channel, x: Tensor, dst: int, tag: int, limit: float) -> RingleaderWork:
        core = channel.comm._core
        if direct(x):
            return RingleaderWork(core.isend(x.data_ptr(), x.nbytes, dst, tag, limit, x), [x])
        return RingleaderWork(_send_from(core, _loaded(x), dst, tag, limit), [x])

    def _irecv(self, channel: Channel, x: Tensor, src: int, tag: int, limit: float) -> RingleaderWork:
        buffer = arrays.target(x, "the tensor to receive into")
        return _Receive(_receive_into(channel.comm._core, buffer, src, tag, limit), [x])

    # ---------------------------------------------------------------------------------------------- exchanges

    def _exchange(self, sources: Sequence[Tensor], targets: Sequence[Tensor], opts: Any, outputs: list[Tensor]) -> Any:
        """Send tensor d of `sources` to rank d and receive tensor s of `targets` from rank s, all at once."""
        channel = self._channel()
        core, rank, size = channel.comm._core, channel.comm.rank, channel.comm.size
        limit = 0.0 if opts is None else seconds_of(opts.timeout)
        own, target = sources[rank].detach(), targets[rank].detach()
        if own.numel() != target.numel() or own.dtype is not target.dtype:
            raise errors.InvalidArgument(
                f"rank {rank}'s block for itself has shape {tuple(own.shape)} and type {own.dtype} in the input, but "
                f"{tuple(target.shape)} and {target.dtype} in the output"
            )
        # Everything is checked and read before the first message: none may be under way when this raises.
        into = [arrays.target(x, f"the block from rank {source}") for source, x in enumerate(targets)]
        out = [_loaded(x) for x in sources]
        copies: tuple[_core.StridedCopy, ...] = ()
        if own.numel() and own.data_ptr() != target.data_ptr():
            row = torch.empty(own.shape, dtype=own.dtype).copy_(own)  # what is received may lie where it was
            out[rank].keep += (row, target)
            copies = (arrays.tensor_copy(row.data_ptr(), target),)
        tag = _FIRST_TAG + channel.exchanges % _TAGS
        channel.exchanges += 1
        # Everybody begins with the next rank, so that not all send to rank 0 first.
        steps = range(1, size)
        works = [_receive_into(core, into[(rank - i) % size], (rank - i) % size, tag, limit) for i in steps]
        works += [_send_from(core, out[(rank + i) % size], (rank + i) % size, tag, limit) for i in steps]
        return self._hold(RingleaderWork(core.join(works, out[rank].keep, copies), outputs))

    def _check_length(self, tensors: Sequence[Tensor], what: str) -> None:
        size = self._channel().comm.size
        if len(tensors) != size:
            raise errors.InvalidArgument(f"{what} has {len(tensors)} tensors; expected {size}, one per rank")

    def _split(self, x: Tensor, sizes: list[int] | None, what: str) -> list[Tensor]:
        """Rows of `x` for each rank: as many as `sizes` says, or equally many."""
        size = self._channel().comm.size
        rows = x.shape[0] if x.dim() else 1
        if not sizes:
            if rows % size:
                raise errors.InvalidArgument(
                    f"all_to_all_single: the {what} has {rows} rows, which cannot be divided among {size} ranks; give "
                    f"{what}_split_sizes"
                )
            sizes = [rows // size] * size
        if len(sizes) != size or sum(sizes) != rows or min(sizes) < 0:
            raise errors.InvalidArgument(
                f"all_to_all_single: {what}_split_sizes is {list(sizes)}; expected {size} numbers with the sum {rows}, "
                f"the rows of the {what}"
            )
        return list(torch.split(x.detach(), list(sizes)))


def _loaded(x: Tensor) -> Buffer:
    """Memory from which a tensor can be sent."""
    buffer = arrays.source(x, "the tensor to send")
    if buffer.load is not None:
        buffer.load()
    return buffer


def _send_from(core: _core.Communicator, buffer: Buffer, dst: int, tag: int, limit: float) -> _core.Work:
    return core.isend(buffer.ptr, buffer.nbytes, dst, tag, limit, buffer.keep)


def _receive_into(core: _core.Communicator, buffer: Buffer, src: int, tag: int, limit: float) -> _core.Work:
    """Start to receive exactly what fits."""
    copies = () if buffer.store is None else (buffer.store,)
    return core.irecv(buffer.ptr, buffer.nbytes, src, tag, limit, buffer.keep, copies, True)
