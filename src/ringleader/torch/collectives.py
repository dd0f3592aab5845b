"""The collectives of a process group, by the names under which torch calls them.

Invariant: what every rank must do alike - which native operation is used - depends only on what torch requires to be
alike on all ranks, never on strides or addresses of one rank's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from ringleader import _core, errors
from ringleader.runtime import calls
from ringleader.runtime.calls import Call
from ringleader.runtime.dtypes import ReduceOp, premul_sum
from ringleader.torch.exchange import Exchanges, operation
from ringleader.torch.registered import address_of
from ringleader.torch.sparse import sparse_all_reduce
from ringleader.torch.tensors import as_block, copies_into, direct, equal_sizes, pack, single
from ringleader.torch.work import CompositeWork, RingleaderWork, seconds_of

__all__ = ["Collectives"]

Copies: TypeAlias = tuple[_core.StridedCopy, ...]

_OPS: dict[int, ReduceOp] = {
    hash(dist.ReduceOp(getattr(dist.ReduceOp, theirs))): getattr(ReduceOp, ours)
    for theirs, ours in {
        "SUM": "SUM",
        "AVG": "AVG",
        "PRODUCT": "PROD",
        "MIN": "MIN",
        "MAX": "MAX",
        "BAND": "BAND",
        "BOR": "BOR",
        "BXOR": "BXOR",
    }.items()
}


_PREMUL_SUM = hash(c10d._make_nccl_premul_sum(1.0))


def reduce_op(op: Any) -> ReduceOp:
    """Ringleader's operator for torch's.

    Raises
    ------
    UnsupportedType
        An operator that is not known.
    """
    found = _OPS.get(hash(op))  # torch defines the hash as the operator's number
    if found is not None:
        return found
    if hash(op) == _PREMUL_SUM:
        return premul_sum(float(op.factor if hasattr(op, "factor") else op.__getstate__()[1]))  # not yet in torch 2.6
    raise errors.UnsupportedType(f"unknown reduction {op!r}; expected an operator of torch.distributed.ReduceOp")


def _op_of(opts: Any) -> ReduceOp:
    return ReduceOp.SUM if opts is None else reduce_op(opts.reduceOp)


class Collectives(Exchanges):
    """Mixin with all collectives; see `exchange.Exchanges` for what it needs of the class it is mixed into."""

    # ------------------------------------------------------------------------------------------------ running

    def _run(self, plan: _core.Plan, in_ptr: int, out_ptr: int, opts: Any, outputs: list[Tensor], keep: Any) -> Any:
        """Run or start a plan on memory that needs no copies."""
        limit = 0.0 if opts is None else seconds_of(opts.timeout)
        if opts is not None and getattr(opts, "asyncOp", True) is False:
            # torch waits at once, so this thread does the work itself.
            plan.run(in_ptr, out_ptr, limit)
            return RingleaderWork(None, outputs)
        native = plan.start(in_ptr, out_ptr, limit, keep)
        return self._hold(RingleaderWork(native, outputs))

    def _run_call(self, call: Call, opts: Any, outputs: list[Tensor], copies: Copies = ()) -> Any:
        """Run or start a prepared call; `copies` are made after its own, to `outputs`."""
        self._channel().comm._last_choice = call.choice
        if not call.loads and not call.stores and not copies:
            return self._run(call.plan, call.in_ptr, call.out_ptr, opts, outputs, call.keep)
        call.stores += copies
        call.keep += tuple(outputs)
        limit = 0.0 if opts is None else seconds_of(opts.timeout)
        if opts is not None and getattr(opts, "asyncOp", True) is False:
            call.run(limit)
            return RingleaderWork(None, outputs)
        return self._hold(RingleaderWork(call.start(limit), outputs))

    def _all(self, works: list[RingleaderWork], outputs: list[Tensor]) -> Any:
        return works[0] if len(works) == 1 else self._hold(CompositeWork(works, outputs))

    # ----------------------------------------------------------------------------------------------- reducing

    @operation("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce a tensor in place on all ranks. `opts` may be an operator, as in torch's short form."""
        if type(tensors) is not list and isinstance(tensors, Tensor):
            tensors = [tensors]
        if type(opts) is not c10d.AllreduceOptions and (opts is None or not hasattr(opts, "reduceOp")):
            opts = _options(c10d.AllreduceOptions(), timeout, reduceOp=opts)
        x = single(tensors, "allreduce's list")
        return self._all_reduce(x, _op_of(opts), opts, tensors)

    def _all_reduce(self, x: Tensor, op: ReduceOp, opts: Any, outputs: Any) -> Any:
        if x.layout is not torch.strided:
            return self._sparse_all_reduce(x, op, opts, outputs)
        channel = self._channel()
        key = ("all_reduce", op, x.dtype, x.shape)
        known = channel.plans.get(key)
        if known is not None and direct(x):
            plan, channel.comm._last_choice = known
            ptr = address_of(x)
            return self._run(plan, ptr, ptr, opts, outputs, x)
        call = calls.all_reduce(channel.comm, x, op, None, None)
        channel.remember(key, call)
        return self._run_call(call, opts, outputs)

    @operation("all_reduce")
    def average(self, x: Tensor) -> RingleaderWork:
        """Start to average a tensor in place over all ranks; the future's value is the tensor. For DDP's hooks."""
        work: RingleaderWork = self._all_reduce(x, ReduceOp.AVG, None, x)
        return work

    def _sparse_all_reduce(self, x: Tensor, op: ReduceOp, opts: Any, outputs: list[Tensor]) -> Any:
        """On this thread: each of its steps needs the results of the one before."""
        sparse_all_reduce(self._channel().comm, x, op, seconds_of(opts.timeout) or None)
        return self._hold(RingleaderWork(None, outputs))

    @operation("all_reduce")
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce several tensors in place, as one work."""
        op = _op_of(opts)
        return self._all([self._all_reduce(x, op, opts, [x]) for x in tensors], tensors)

    @operation("reduce")
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce a tensor to the root; the other ranks' tensors stay as they are."""
        if isinstance(tensors, Tensor):
            tensors, opts = [tensors], _options(c10d.ReduceOptions(), timeout, rootRank=opts, reduceOp=op)
        x, operator, root = single(tensors, "reduce's list"), _op_of(opts), opts.rootRank
        channel = self._channel()
        key = ("reduce", operator, root, x.dtype, x.shape)
        known = channel.plans.get(key)
        if known is not None and direct(x):
            plan, channel.comm._last_choice = known
            ptr = x.data_ptr()
            return self._run(plan, ptr, ptr if root == channel.comm.rank else 0, opts, tensors, x)
        call = calls.reduce(channel.comm, x, root, operator, None, None)
        channel.remember(key, call)
        return self._run_call(call, opts, tensors)

    @operation("reduce_scatter", 1)
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduce `input`, one block per rank, and leave block r in rank r's `output`."""
        op = _op_of(opts)
        channel = self._channel()
        key = ("reduce_scatter", op, input.dtype, input.shape, output.shape)
        known = channel.plans.get(key)
        if known is not None and output.dtype is input.dtype and direct(input) and direct(output):
            source, target = input.data_ptr(), output.data_ptr()
            if _apart(source, input, target, output) or target == source + channel.comm.rank * output.nbytes:
                plan, channel.comm._last_choice = known
                return self._run(plan, source, target, opts, [output], (input, output))
        call = calls.reduce_scatter(channel.comm, input, output, op, None)
        channel.remember(key, call)
        return self._run_call(call, opts, [output])

    @operation("reduce_scatter", 1)
    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Several of `reduce_scatter_single` as one work."""
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._all(works, outputs)

    @operation("reduce_scatter", 1)
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Reduce a list of tensors, of which rank r gets the r-th. The tensors may differ in size."""
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
            opts = _options(c10d.ReduceScatterOptions(), timeout, reduceOp=opts)
        output, blocks = single(outputs, "reduce_scatter's output list"), single(inputs, "reduce_scatter's input list")
        self._check_length(blocks, "reduce_scatter's input list")
        if equal_sizes(blocks):
            call = calls.reduce_scatter(self._channel().comm, pack(blocks), output, _op_of(opts), None)
            return self._run_call(call, opts, [output])
        return self._uneven_reduce_scatter(output, blocks, _op_of(opts), opts)

    def _uneven_reduce_scatter(self, output: Tensor, blocks: list[Tensor], op: ReduceOp, opts: Any) -> Any:
        """One reduction per rank."""
        comm = self._channel().comm
        works = []
        for root, block in enumerate(blocks):
            out = output if root == comm.rank else None
            if out is not None and out.numel() != block.numel():
                raise errors.InvalidArgument(
                    f"the output has shape {tuple(output.shape)}; expected that of input {root}, {tuple(block.shape)}"
                )
            works.append(self._run_call(calls.reduce(comm, block.detach(), root, op, out, None), opts, [output]))
        return self._all(works, [output])

    # ----------------------------------------------------------------------------------------------- copying

    @operation("broadcast")
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Copy the root's tensor into all others."""
        if isinstance(tensors, Tensor):
            tensors, opts = [tensors], _options(c10d.BroadcastOptions(), timeout, rootRank=opts)
        x, root = single(tensors, "broadcast's list"), opts.rootRank
        channel = self._channel()
        key = ("broadcast", root, x.dtype, x.shape)
        known = channel.plans.get(key)
        if known is not None and direct(x):
            plan, channel.comm._last_choice = known
            ptr = x.data_ptr()
            return self._run(plan, ptr, ptr, opts, tensors, x)
        call = calls.broadcast(channel.comm, x, root, None)
        channel.remember(key, call)
        return self._run_call(call, opts, tensors)

    @operation("all_gather", 1)
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Gather every rank's `input` into `output`, one block per rank."""
        channel = self._channel()
        key = ("all_gather", input.dtype, input.shape, output.shape)
        known = channel.plans.get(key)
        if known is not None and output.dtype is input.dtype and direct(input) and direct(output):
            source, target = input.data_ptr(), output.data_ptr()
            if _apart(source, input, target, output) or source == target + channel.comm.rank * input.nbytes:
                plan, channel.comm._last_choice = known
                return self._run(plan, source, target, opts, [output], (input, output))
        call = calls.all_gather(channel.comm, input, output, None)
        channel.remember(key, call)
        return self._run_call(call, opts, [output])

    @operation("all_gather", 1)
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Several of `all_gather_single` as one work."""
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._all(works, outputs)

    @operation("all_gather", 1)
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gather every rank's tensor into a list. The tensors may differ in size, if all ranks' lists say so."""
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
            opts = _options(c10d.AllgatherOptions(), opts or timeout)
        return self._all_gather(single(outputs, "allgather's output list"), single(inputs, "allgather's inputs"), opts)

    def _all_gather(self, outputs: list[Tensor], x: Tensor, opts: Any) -> Any:
        self._check_length(outputs, "all_gather's output list")
        if not equal_sizes(outputs):
            return self._exchange([x] * len(outputs), outputs, opts, outputs)
        block, copies = self._row_target(outputs)
        call = calls.all_gather(self._channel().comm, x, block, None)
        return self._run_call(call, opts, outputs, copies)

    @operation("all_gather", 1)
    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Gather several tensors; ``outputs[r][i]`` is rank r's i-th (torch passes one list per rank)."""
        works = [self._all_gather([row[i] for row in outputs], x, opts) for i, x in enumerate(inputs)]
        return self._all(works, [x for row in outputs for x in row])

    @operation("gather", 1)
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gather every rank's tensor in the root's list."""
        if isinstance(inputs, Tensor):
            outputs, inputs, opts = [outputs], [inputs], _options(c10d.GatherOptions(), timeout, rootRank=opts)
        x, root, comm = single(inputs, "gather's inputs"), opts.rootRank, self._channel().comm
        if comm.rank != root:
            return self._run_call(calls.gather(comm, x, root, None, None), opts, [])
        targets = single(outputs, "gather's output list")
        self._check_length(targets, "gather's output list")
        if not equal_sizes(targets):
            raise errors.InvalidArgument(
                f"gather's output list has tensors of different sizes: {[tuple(t.shape) for t in targets]}"
            )
        block, copies = self._row_target(targets)
        return self._run_call(calls.gather(comm, x, root, block, None), opts, targets, copies)

    @operation("scatter", 1)
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Give rank r the r-th tensor of the root's list."""
        if isinstance(outputs, Tensor):
            outputs, inputs, opts = [outputs], [inputs], _options(c10d.ScatterOptions(), timeout, rootRank=opts)
        output, root, comm = single(outputs, "scatter's output list"), opts.rootRank, self._channel().comm
        block = None
        if comm.rank == root:
            blocks = single(inputs, "scatter's input list")
            self._check_length(blocks, "scatter's input list")
            if not equal_sizes(blocks):
                raise errors.InvalidArgument(
                    f"scatter's input list has tensors of different sizes: {[tuple(t.shape) for t in blocks]}"
                )
            block = pack(blocks)
        return self._run_call(calls.scatter(comm, block, root, output, None), opts, [output])

    @operation("all_to_all", 1)
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send block d of `input` to rank d, into its block for this rank; blocks are rows, equal ones by default."""
        if opts is None or isinstance(opts, timedelta):
            opts = _options(c10d.AllToAllOptions(), opts or timeout)
        if output_split_sizes or input_split_sizes:
            # Split sizes differ between ranks, and even ones here tell nothing of the others: always by messages.
            sources = self._split(input, input_split_sizes, "input")
            targets = self._split(output, output_split_sizes, "output")
            return self._exchange(sources, targets, opts, [output])
        channel = self._channel()
        key = ("all_to_all", input.dtype, input.shape, output.shape)
        known = channel.plans.get(key)
        if known is not None and output.dtype is input.dtype and direct(input) and direct(output):
            source, target = input.data_ptr(), output.data_ptr()
            if _apart(source, input, target, output):
                plan, channel.comm._last_choice = known
                return self._run(plan, source, target, opts, [output], (input, output))
        call = calls.all_to_all(channel.comm, input, output, None)
        channel.remember(key, call)
        return self._run_call(call, opts, [output])

    @operation("all_to_all", 1)
    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Send tensor d of `inputs` to rank d; tensor s of `outputs` comes from rank s. Sizes may differ."""
        if opts is None or isinstance(opts, timedelta):
            opts = _options(c10d.AllToAllOptions(), opts or timeout)
        self._check_length(inputs, "all_to_all's input list")
        self._check_length(outputs, "all_to_all's output list")
        return self._exchange(inputs, outputs, opts, outputs)

    # ------------------------------------------------------------------------------------------------- others

    @operation("barrier")
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Wait for all ranks."""
        if opts is None or isinstance(opts, timedelta):
            opts = _options(c10d.BarrierOptions(), opts or timeout)
        channel = self._channel()
        if channel.barrier is None:
            channel.barrier = calls.barrier(channel.comm, None)
        return self._run_call(channel.barrier, opts, [])

    def _row_target(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Copies]:
        """One block for the tensors of a list, and how to copy it into them if it is not their own memory."""
        block = as_block(tensors)
        if block is not None:
            return block, ()
        block = torch.empty((len(tensors), tensors[0].numel()), dtype=tensors[0].dtype)
        return block, copies_into(tensors, block)

    # Names by which older and newer torch, and its C++ side, call the same.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _apart(a: int, x: Tensor, b: int, y: Tensor) -> bool:
    return a + x.nbytes <= b or b + y.nbytes <= a


def _options(options: Any, timeout: timedelta | None, **values: Any) -> Any:
    """torch's options for its short forms, e.g. ``group.broadcast(tensor, root)``; None leaves a default."""
    if timeout is not None:
        options.timeout = timeout
    for name, value in values.items():
        if value is not None:
            setattr(options, name, dist.ReduceOp(value) if name == "reduceOp" else value)
    return options
