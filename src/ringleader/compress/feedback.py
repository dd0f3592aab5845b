"""Error feedback: what compression loses in one step is added in the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringleader import _core, errors
from ringleader.compress.base import Compressor, Counter, Floats, Kind, Payload, Shapes, State, as_floats, no_compressor
from ringleader.compress.blocks import QSGD, BlockCompressor
from ringleader.compress.memory import Memory
from ringleader.compress.pieces import Pieces
from ringleader.compress.sparse import TopK

__all__ = ["DGC", "EFSGD", "ErrorFeedback"]


class ErrorFeedback(Compressor):
    """A compressor with a memory: each array's lost part is added to it the next time.

    So nothing is lost for good: the sum of all that was sent, and what is remembered, is the sum of all that was to be
    sent. Infinities and NaN are sent, but not remembered. Where shards of a sum are compressed again (``"blocks"``, and
    ``"sparse"`` by scattering), what is lost by that is remembered too, by the rank that sums the shard.

    Parameters
    ----------
    compressor
        Any.

    References
    ----------
    Karimireddy et al.: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019.

    Examples
    --------
    >>> from ringleader.compress import TopK
    >>> codec = ErrorFeedback(TopK(k=1))
    >>> [codec.decompress(codec.compress(np.float32([3, 2]))).tolist() for _ in range(3)]
    [[3.0, 0.0], [0.0, 4.0], [6.0, 0.0]]
    """

    def __init__(self, compressor: Compressor) -> None:
        if not isinstance(compressor, Compressor) or isinstance(compressor, ErrorFeedback):
            hint = "" if isinstance(compressor, Compressor) else f": {no_compressor(compressor)}"
            raise errors.InvalidArgument(
                f"compressor is {compressor!r}; expected a Compressor without error feedback{hint}"
            )
        self.compressor = compressor
        self.errors = Memory("error memory")
        self.shard_errors = Memory("error memory of this rank's shard")

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {"compressor": self.compressor}

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """That of the compressor."""
        return self.compressor.kind

    @property
    def compression_ratio(self) -> float:  # type: ignore[override]
        """That of the compressor."""
        return self.compressor.compression_ratio

    @property
    def always_compressed(self) -> bool:  # type: ignore[override]
        """That of the compressor."""
        return self.compressor.always_compressed

    @property
    def seconds_per_byte(self) -> float:  # type: ignore[override]
        """That of the compressor."""
        return self.compressor.seconds_per_byte

    def error(self, key: str, elements: int) -> Floats:
        """What is remembered of the array `key`; zeros at first, and where it had another size before."""
        return self.errors.current(key, elements)

    def gather(self, x: Pieces, key: str) -> Pieces:
        """What is to be compressed, without the error, which `error` gives."""
        return x

    def sent(self, payload: Payload, key: str) -> None:
        """Called with what was sent of the array `key`."""

    def pending(self, x: Pieces, key: str) -> Floats:
        """All that is to be sent, for a step without compression: nothing is remembered then."""
        total = np.empty(x.size, np.float32)
        self.gather(x, key).add_to(total, self.error(key, x.size))
        self.errors.successor(key, x.size)[:] = 0
        return total

    def forget(self) -> None:
        """Remember nothing of any array."""
        self.errors.clear()
        self.shard_errors.clear()

    def compress(self, x: Any, key: str = "") -> Payload:
        """See `Compressor.compress`. What is lost counts at once as remembered."""
        mark = self.mark(key)
        try:
            payload = self.stage(x, key)
        except BaseException:
            self.roll_back(key, mark)
            raise
        self.commit(key)
        return payload

    def stage(self, x: Any, key: str) -> Payload:
        """`compress` within a transaction: what is lost counts as remembered after `commit`."""
        values = self.gather(Pieces([as_floats(x)]), key).joined()
        error, lost = self.error(key, values.size), self.errors.successor(key, values.size)
        payload = self.compressor.compress_with_error(values.reshape(np.shape(x)), error, lost, key)
        self.sent(payload, key)
        return payload

    def mark(self, key: str) -> Any:
        """See `Compressor.mark`."""
        return self.compressor.mark(key)

    def roll_back(self, key: str, mark: Any) -> None:
        """See `Compressor.roll_back`."""
        self.compressor.roll_back(key, mark)
        for memory in self._memories():
            memory.roll_back(key)

    def commit(self, key: str) -> None:
        """See `Compressor.commit`."""
        self.compressor.commit(key)
        for memory in self._memories():
            memory.commit(key)

    def set_shapes(self, key: str, shapes: Shapes) -> None:
        """See `Compressor.set_shapes`."""
        self.compressor.set_shapes(key, shapes)

    def common_steps(self) -> Counter | None:
        """See `Compressor.common_steps`."""
        return self.compressor.common_steps()

    def _memories(self) -> tuple[Memory, ...]:
        return self.errors, self.shard_errors

    def decompress(self, payload: Payload, out: Floats | None = None) -> Floats:
        """See `Compressor.decompress`."""
        return self.compressor.decompress(payload, out)

    def wire_bytes(self, elements: int) -> int:
        """See `Compressor.wire_bytes`."""
        return self.compressor.wire_bytes(elements)

    def state_dict(self) -> State:
        """All that is remembered, and the state of the compressor. It belongs to this rank."""
        return {
            "errors": self.errors.state_dict(),
            "shard_errors": self.shard_errors.state_dict(),
            "compressor": self.compressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Compressor.load_state_dict`. After a change of the number of ranks, shards start anew by themselves."""
        self.errors.load_state_dict(state["errors"])
        self.shard_errors.load_state_dict(state["shard_errors"])
        self.compressor.load_state_dict(state["compressor"])


class EFSGD(ErrorFeedback):
    """Error-compensated quantisation: `QSGD` of 8 or 4 bits, or `bits=1` for signs, with error feedback.

    References
    ----------
    Karimireddy et al.: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019.
    Wu et al.: Error Compensated Quantized SGD, ICML 2018.

    Examples
    --------
    >>> codec = EFSGD(bits=4)
    >>> codec.decompress(codec.compress(np.float32([7, -1, 0])))
    array([ 7., -1.,  0.], dtype=float32)
    """

    def __init__(self, bits: int = 8, seed: int = 0) -> None:
        super().__init__(QSGD(bits, seed=seed) if bits != 1 else BlockCompressor("onebit"))


class DGC(ErrorFeedback):
    """Deep Gradient Compression: top-k with momentum correction, momentum factor masking and warm-up.

    Momentum is applied before compression, to what this rank adds; the optimiser must have none of its own. What is
    sent loses its momentum.

    Parameters
    ----------
    ratio
        Part of the elements that is sent.
    momentum
        Usually the optimiser's.
    warmup_steps
        See `TopK`; the paper takes four epochs.
    selection, exchange
        See `TopK`.

    References
    ----------
    Lin et al.: Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR 2018.

    Examples
    --------
    >>> codec = DGC(ratio=0.5, momentum=0.5)
    >>> [codec.decompress(codec.compress(np.float32([4, 3]))).tolist() for _ in range(2)]
    [[4.0, 0.0], [0.0, 7.5]]
    """

    def __init__(
        self,
        ratio: float = 0.001,
        momentum: float = 0.9,
        warmup_steps: int = 0,
        selection: str = "sampled",
        exchange: str = "auto",
    ) -> None:
        if not 0 <= momentum < 1:
            raise errors.InvalidArgument(f"momentum is {momentum!r}; expected a number from 0 to below 1")
        super().__init__(TopK(ratio, selection=selection, warmup_steps=warmup_steps, exchange=exchange))
        self.momentum = momentum
        self.velocities = Memory("velocity")

    def parameters(self) -> Mapping[str, object]:
        """See `Compressor.parameters`."""
        return {**super().parameters(), "momentum": self.momentum}

    def gather(self, x: Pieces, key: str) -> Pieces:
        """The velocity: what the optimiser's momentum would make of this rank's gradient."""
        velocity = self.velocities.successor(key, x.size)
        x.add_to(velocity, self.velocities.current(key, x.size), self.momentum)
        return Pieces([velocity])

    def sent(self, payload: Payload, key: str) -> None:
        """Stop the momentum of what was sent, and of what is not finite."""
        velocity = self.velocities.successor(key, payload.elements)
        velocity[payload.index] = 0
        if payload.index is not None and not np.isfinite(payload.data[payload.data.size // 2 :].view(np.float32)).all():
            _core.compress.clean(velocity)

    def forget(self) -> None:
        """See `ErrorFeedback.forget`."""
        super().forget()
        self.velocities.clear()

    def pending(self, x: Pieces, key: str) -> Floats:
        """See `ErrorFeedback.pending`."""
        total = super().pending(x, key)
        self.velocities.successor(key, x.size)[:] = 0
        return total

    def _memories(self) -> tuple[Memory, ...]:
        return *super()._memories(), self.velocities

    def state_dict(self) -> State:
        """See `ErrorFeedback.state_dict`."""
        return {**super().state_dict(), "velocities": self.velocities.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `ErrorFeedback.load_state_dict`."""
        super().load_state_dict(state)
        self.velocities.load_state_dict(state["velocities"])
