"""The collective operations of a communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload

import numpy as np
from numpy import ndarray

from ringleader import errors
from ringleader.compress.base import Compressor, Keyed
from ringleader.runtime import calls, compressed
from ringleader.runtime.dtypes import ReduceOp
from ringleader.runtime.runner import MISS, NO_OP, Runner, seconds, simple_address
from ringleader.runtime.wire import Wire, parse_wire
from ringleader.runtime.work import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from typing_extensions import Unpack

    from ringleader.runtime.communicator import Communicator

__all__ = ["Collectives"]

# What a call returns, to type checkers: the array that it was given (A), or a new one like it of another shape: a NumPy
# array of the same elements (S), a tensor (T), or for other objects a NumPy array.
A = TypeVar("A")
S = TypeVar("S", bound=np.generic)
T = TypeVar("T", bound="Tensor")


class Options(TypedDict, total=False):
    """Arguments of all verbs that say nothing about the result."""

    algorithm: str | None
    wire: Wire
    timeout: float | None


class Compressible(Options, total=False):
    """Those of `all_reduce`."""

    compression: Compressor | Keyed | None


class Collectives(Runner):
    """The verbs that every rank of a communicator calls together, in the same order.

    All take ``timeout`` (seconds; None = the communicator's), ``algorithm`` (a name of `ringleader algorithms`, or
    None to let Ringleader choose), ``wire`` (the format in which float32 values travel between nodes: ``"bf16"``,
    ``"f16"``, ``"int8"`` or ``"onebit"``, also as ``{"inter": ...}``; see docs/wire.md) and ``async_op`` (return a
    `Work` at once). `barrier` has no ``wire``.

    Arrays may be NumPy arrays, torch CPU tensors, or objects with the buffer protocol or DLPack. They need not be
    contiguous. Where ranks disagree about shape, type, operator, root or the operation itself, all of them get a
    `MismatchError`.
    """

    @overload
    def all_reduce(
        self,
        x: A,
        op: ReduceOp | str = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[Compressible],
    ) -> A: ...
    @overload
    def all_reduce(
        self,
        x: Any,
        op: ReduceOp | str = "sum",
        *,
        out: A,
        async_op: Literal[False] = False,
        **rest: Unpack[Compressible],
    ) -> A: ...
    @overload
    def all_reduce(
        self,
        x: Any,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        async_op: Literal[True],
        **rest: Unpack[Compressible],
    ) -> Work: ...
    @overload
    def all_reduce(
        self, x: Any, op: ReduceOp | str = "sum", *, out: Any = None, async_op: bool, **rest: Unpack[Compressible]
    ) -> Any: ...
    def all_reduce(
        self,
        x: Any,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        wire: Wire = None,
        compression: Compressor | Keyed | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine every rank's `x` elementwise; every rank gets the result.

        Parameters
        ----------
        x
            This rank's contribution, any shape; overwritten by the result unless `out` is given.
        op
            A `ReduceOp` or its name. Integer AVG truncates toward zero; on bool, SUM means OR and PROD means AND.
        out
            Array of the same type and number of elements for the result; `x` is then left as it is.
        compression
            A compressor of `ringleader.compress`, for "sum" and "avg" of floating-point numbers;
            ``compressor.at(name)`` where it remembers something about several arrays. Without `algorithm` and `wire`.

        Returns
        -------
        array or Work
            `x` or `out`; with ``async_op=True`` a `Work` whose ``wait()`` returns it.

        Raises
        ------
        UnsupportedType
            `op` is not offered for the type; nothing was sent.
        InvalidArgument
            Wrong argument; nothing was sent.
        MismatchError, CollectiveTimeout, PeerLost, AbortedError, ClosedError, ForkError
            See `ringleader.errors`.

        References
        ----------
        Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.all_reduce(np.array([1.0, 2.0]))
        array([1., 2.])
        """
        if compression is not None:
            if algorithm is not None or wire is not None:
                raise errors.InvalidArgument("compression= cannot be combined with algorithm= or wire=")
            return compressed.all_reduce(cast("Communicator", self), x, op, compression, out, async_op, timeout)
        wire = parse_wire(wire)
        if out is None:
            # The most frequent call of all, so the short way (`_repeat`) is written out: 1 us instead of 1.5.
            ptr = simple_address(x)
            if ptr != -1:
                known = self._known.get((("all_reduce", op, 0, algorithm, wire), type(x), x.dtype, x.shape))
                if known is not None:
                    self._last_choice = known.choice
                    limit = 0.0 if timeout is None else seconds(timeout)
                    if async_op:
                        return Work(known.plan.start(ptr, ptr, limit, x), x)
                    if type(x) is ndarray:
                        # The native lane has forgotten the call, or cannot take it.
                        self._teach(("all_reduce", op, 0, algorithm, wire), x, None, known)
                    known.plan.run(ptr, ptr, limit)
                    return x
        head = ("all_reduce", op, 0, algorithm, wire)
        if out is not None and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        return self._run(calls.all_reduce(self, x, op, out, algorithm, wire), async_op, timeout, (head, x, out))

    @overload
    def reduce(
        self,
        x: A,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: None = None,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> A | None: ...
    @overload
    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: A,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> A | None: ...
    @overload
    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        async_op: Literal[True],
        **rest: Unpack[Options],
    ) -> Work: ...
    @overload
    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        async_op: bool,
        **rest: Unpack[Options],
    ) -> Any: ...
    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: ReduceOp | str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine every rank's `x` elementwise; the root gets the result.

        Parameters
        ----------
        x
            This rank's contribution. On the root it is overwritten unless `out` is given; elsewhere it is left as it
            is.
        root
            Rank that gets the result.
        op, out
            As for `all_reduce`; `out` on the root only.

        Returns
        -------
        array, None or Work
            The result on the root, None elsewhere (or a `Work` for it).

        Raises
        ------
        UnsupportedType, InvalidArgument
            As for `all_reduce`, and for all errors of `ringleader.errors` that it lists.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.reduce(np.array([1, 2]), root=0, op="max")
        array([1, 2])
        """
        wire = parse_wire(wire)
        head = ("reduce", op, root, algorithm, wire)
        if (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        return self._run(calls.reduce(self, x, root, op, out, algorithm, wire), async_op, timeout, (head, x, out))

    @overload
    def broadcast(self, x: A, root: int = 0, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> A: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, *, async_op: Literal[True], **rest: Unpack[Options]) -> Work: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, *, async_op: bool, **rest: Unpack[Options]) -> Any: ...
    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Copy the root's `x` into every rank's `x`.

        Parameters
        ----------
        x
            Any type, the same shape and type on all ranks. Types other than the numeric ones (structured, dates,
            strings) are moved as bytes.
        root
            Rank whose array is sent.

        Returns
        -------
        array or Work
            `x`.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.broadcast(np.array(["a", "b"]), root=0)
        array(['a', 'b'], dtype='<U1')
        """
        wire = parse_wire(wire)
        head = ("broadcast", NO_OP, root, algorithm, wire)
        if (result := self._repeat(head, x, None, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        return self._run(calls.broadcast(self, x, root, algorithm, wire), async_op, timeout, (head, x, None))

    @overload
    def all_gather(
        self, x: NDArray[S], out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[S]: ...
    @overload
    def all_gather(self, x: T, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> T: ...
    @overload
    def all_gather(self, x: Any, out: A, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> A: ...
    @overload
    def all_gather(
        self, x: Any, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[Any]: ...
    @overload
    def all_gather(self, x: Any, out: Any = None, *, async_op: Literal[True], **rest: Unpack[Options]) -> Work: ...
    @overload
    def all_gather(self, x: Any, out: Any = None, *, async_op: bool, **rest: Unpack[Options]) -> Any: ...
    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give every rank the `x` of all ranks.

        Parameters
        ----------
        x
            This rank's block, any type, the same shape on all ranks.
        out
            Array of ``size * x.size`` elements, any shape. `x` may be this rank's block of it.

        Returns
        -------
        array or Work
            `out`, or a new array of shape ``(size, *x.shape)``.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.all_gather(np.array([1, 2]))
        array([[1, 2]])
        """
        wire = parse_wire(wire)
        head = ("all_gather", NO_OP, 0, algorithm, wire)
        if out is not None and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        known_by = None if out is None else (head, x, out)
        return self._run(calls.all_gather(self, x, out, algorithm, wire), async_op, timeout, known_by)

    @overload
    def reduce_scatter(
        self,
        x: NDArray[S],
        out: None = None,
        op: ReduceOp | str = "sum",
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> NDArray[S]: ...
    @overload
    def reduce_scatter(
        self,
        x: T,
        out: None = None,
        op: ReduceOp | str = "sum",
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> T: ...
    @overload
    def reduce_scatter(
        self, x: Any, out: A, op: ReduceOp | str = "sum", *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> A: ...
    @overload
    def reduce_scatter(
        self,
        x: Any,
        out: None = None,
        op: ReduceOp | str = "sum",
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> NDArray[Any]: ...
    @overload
    def reduce_scatter(
        self, x: Any, out: Any = None, op: ReduceOp | str = "sum", *, async_op: Literal[True], **rest: Unpack[Options]
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self, x: Any, out: Any = None, op: ReduceOp | str = "sum", *, async_op: bool, **rest: Unpack[Options]
    ) -> Any: ...
    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: ReduceOp | str = "sum",
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine every rank's `x` elementwise; rank r gets block r of the result.

        Parameters
        ----------
        x
            ``size`` blocks of equal size, one after another; left as it is.
        out
            Array for one block. It may lie within `x`.
        op
            As for `all_reduce`.

        Returns
        -------
        array or Work
            `out`, or a new array: of shape ``x.shape[1:]`` if `x` has several dimensions of which the first is
            ``size``, else of `x`'s shape with the first dimension divided by ``size``.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.reduce_scatter(np.array([[1.0, 2.0]]))
        array([1., 2.])
        """
        wire = parse_wire(wire)
        head = ("reduce_scatter", op, 0, algorithm, wire)
        if out is not None and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        known_by = None if out is None else (head, x, out)
        return self._run(calls.reduce_scatter(self, x, out, op, algorithm, wire), async_op, timeout, known_by)

    @overload
    def gather(
        self,
        x: NDArray[S],
        root: int = 0,
        out: None = None,
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> NDArray[S] | None: ...
    @overload
    def gather(
        self, x: T, root: int = 0, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> T | None: ...
    @overload
    def gather(
        self, x: Any, root: int = 0, *, out: A, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> A | None: ...
    @overload
    def gather(
        self, x: Any, root: int, out: A, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> A | None: ...
    @overload
    def gather(
        self, x: Any, root: int = 0, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[Any] | None: ...
    @overload
    def gather(
        self, x: Any, root: int = 0, out: Any = None, *, async_op: Literal[True], **rest: Unpack[Options]
    ) -> Work: ...
    @overload
    def gather(self, x: Any, root: int = 0, out: Any = None, *, async_op: bool, **rest: Unpack[Options]) -> Any: ...
    def gather(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give the root the `x` of all ranks.

        Parameters
        ----------
        x
            This rank's block, any type, the same shape on all ranks.
        root
            Rank that gets the result.
        out
            On the root only: array of ``size * x.size`` elements.

        Returns
        -------
        array, None or Work
            On the root `out` or a new array of shape ``(size, *x.shape)``; None elsewhere.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.gather(np.array([1, 2]), root=0)
        array([[1, 2]])
        """
        wire = parse_wire(wire)
        head = ("gather", NO_OP, root, algorithm, wire)
        own = out is None and root == self.rank
        if not own and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        known_by = None if own else (head, x, out)
        return self._run(calls.gather(self, x, root, out, algorithm, wire), async_op, timeout, known_by)

    @overload
    def scatter(
        self,
        x: NDArray[S],
        root: int = 0,
        out: None = None,
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[Options],
    ) -> NDArray[S]: ...
    @overload
    def scatter(
        self, x: T, root: int = 0, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> T: ...
    @overload
    def scatter(
        self, x: Any, root: int = 0, *, out: A, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> A: ...
    @overload
    def scatter(self, x: Any, root: int, out: A, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> A: ...
    @overload
    def scatter(
        self, x: Any, root: int = 0, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[Any]: ...
    @overload
    def scatter(
        self, x: Any, root: int = 0, out: Any = None, *, async_op: Literal[True], **rest: Unpack[Options]
    ) -> Work: ...
    @overload
    def scatter(self, x: Any, root: int = 0, out: Any = None, *, async_op: bool, **rest: Unpack[Options]) -> Any: ...
    def scatter(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Give rank r block r of the root's `x`.

        Parameters
        ----------
        x
            On the root: ``size`` blocks of equal size, any type. None elsewhere.
        root
            Rank that sends.
        out
            Array for this rank's block; required on all ranks but the root, because only the root knows the shape.

        Returns
        -------
        array or Work
            `out`; on the root, without it, a new array of the shape described at `reduce_scatter`.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.scatter(np.linspace(0, 5, 6)[::2], root=0)
        array([0., 2., 4.])
        """
        wire = parse_wire(wire)
        head = ("scatter", NO_OP, root, algorithm, wire)
        if out is not None and x is not None and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        known_by = None if out is None else (head, x, out)
        return self._run(calls.scatter(self, x, root, out, algorithm, wire), async_op, timeout, known_by)

    @overload
    def all_to_all(
        self, x: NDArray[S], out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[S]: ...
    @overload
    def all_to_all(self, x: T, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> T: ...
    @overload
    def all_to_all(self, x: Any, out: A, *, async_op: Literal[False] = False, **rest: Unpack[Options]) -> A: ...
    @overload
    def all_to_all(
        self, x: Any, out: None = None, *, async_op: Literal[False] = False, **rest: Unpack[Options]
    ) -> NDArray[Any]: ...
    @overload
    def all_to_all(self, x: Any, out: Any = None, *, async_op: Literal[True], **rest: Unpack[Options]) -> Work: ...
    @overload
    def all_to_all(self, x: Any, out: Any = None, *, async_op: bool, **rest: Unpack[Options]) -> Any: ...
    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        algorithm: str | None = None,
        wire: Wire = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send block d of `x` to rank d; block s of the result comes from rank s.

        Parameters
        ----------
        x
            ``size`` blocks of equal size, one after another, any type; left as it is.
        out
            Array of as many elements; it may be `x`.

        Returns
        -------
        array or Work
            `out` or a new array of `x`'s shape.

        Examples
        --------
        >>> import numpy as np, ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.all_to_all(np.array([7]))
        array([7])
        """
        wire = parse_wire(wire)
        head = ("all_to_all", NO_OP, 0, algorithm, wire)
        if out is not None and (result := self._repeat(head, x, out, async_op, timeout)) is not MISS:
            return result
        self._check_usable()
        known_by = None if out is None else (head, x, out)
        return self._run(calls.all_to_all(self, x, out, algorithm, wire), async_op, timeout, known_by)

    @overload
    def barrier(
        self, timeout: float | None = None, *, algorithm: str | None = None, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def barrier(
        self, timeout: float | None = None, *, algorithm: str | None = None, async_op: Literal[True]
    ) -> Work: ...
    @overload
    def barrier(self, timeout: float | None = None, *, algorithm: str | None = None, async_op: bool) -> Work | None: ...
    def barrier(self, timeout: float | None = None, *, algorithm: str | None = None, async_op: bool = False) -> Any:
        """Wait until every rank has called it.

        Raises
        ------
        CollectiveTimeout
            Names the ranks that did not come.

        Examples
        --------
        >>> import ringleader as rl
        >>> with rl.init(rank=0, size=1) as comm:
        ...     comm.barrier(timeout=5)
        """
        self._check_usable()
        call = self._barriers.get(algorithm)
        if call is None:
            call = self._barriers[algorithm] = calls.barrier(self, algorithm)
        return self._run(call, async_op, timeout, (("barrier", NO_OP, 0, algorithm, None), None, None))
