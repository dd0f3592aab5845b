"""Collectives in two levels: another backend inside each host, the engine between hosts.

Operations run on a thread of their own (a lane), in the order of their calls, and on groups of their own; they have no
order in common with other operations of the process group. What they do is in `levels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader import errors
from ringleader.runtime.communicator import Communicator
from ringleader.torch.devices.inside import Inside, make_backend
from ringleader.torch.devices.layout import Layout
from ringleader.torch.devices.levels import OPERATORS, Levels, name_of
from ringleader.torch.devices.pump import Pump
from ringleader.torch.devices.work import LaterWork

__all__ = ["DTYPES", "Hierarchy"]

DTYPES: Final = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    }
)
"""Types of tensors that travel in two levels: those that every backend inside can reduce."""


class Hierarchy:
    """Two-level collectives of a group. Every rank of the group makes one, at the same point of its program.

    Parameters
    ----------
    comm
        The group's communicator.
    store
        torch's store of the group.
    inside
        ``"auto"``, ``"nccl"``, ``"gloo"``, or a process group over the ranks of this host, in their order.
    hosts
        A number for each rank, equal for those of one host; default: the ranks that share memory.
    segment
        Most bytes of a segment; the same on all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        store: Any,
        inside: Any = "auto",
        hosts: Sequence[int] | None = None,
        segment: int = 4 << 20,
    ) -> None:
        hosts = list(comm.nodes if hosts is None else hosts)
        if len(hosts) != comm.size:
            raise errors.InvalidArgument(
                f"hosts is {hosts}; expected {comm.size} numbers, one for each rank of the group"
            )
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.layout = layout = Layout(hosts, comm.rank)
        rail = comm.subgroup(layout.rail(layout.local)) if layout.local < layout.rails else None
        self._rail = rail
        try:
            self.inside = self._make_inside(inside, store)
        except BaseException:
            if rail is not None:
                rail.close()
            raise
        self._levels = Levels(layout, rail, self.inside, segment)
        self._lane = Pump(f"lane-{comm.name}")

    def _make_inside(self, inside: Any, store: Any) -> Inside:
        layout = self.layout
        size = len(layout.mine)
        if not isinstance(inside, str):
            if inside.size() != size or inside.rank() != layout.local:
                raise errors.InvalidArgument(
                    f"inside is rank {inside.rank()} of {inside.size()}; expected a group of the {size} ranks "
                    f"{layout.mine} of this host, in this order, in which this is rank {layout.local}"
                )
            kinds = [each.type for each in getattr(inside, "_device_types", [torch.device("cpu")])]
            return Inside(inside, "cpu" if "cpu" in kinds else kinds[0], layout.local, size, layout.rails, False)
        number = self.comm._made["hierarchy"]
        self.comm._made["hierarchy"] += 1
        prefixed = dist.PrefixStore(f"inside/{number}/{layout.host}", store)  # type: ignore[attr-defined]
        backend, kind = make_backend(inside, prefixed, layout.local, size, self.comm.timeout)
        return Inside(backend, kind, layout.local, size, layout.rails)

    # ------------------------------------------------------------------------------------------------ verbs

    def takes(self, x: Tensor, op: Any = None) -> bool:
        """Whether a collective on `x` can be run in two levels; alike on all ranks."""
        return x.layout is torch.strided and x.dtype in DTYPES and (op is None or name_of(op) in OPERATORS)

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
        """Reduce a tensor in place on all ranks.

        Parameters
        ----------
        x
            Any strided tensor of one of `DTYPES`, of any shape.
        op
            SUM, AVG, MIN, MAX or PRODUCT of `torch.distributed.ReduceOp`.
        async_op
            Return a work at once.
        """
        self._check(x, op)
        return self._run([x], lambda local: self._levels.all_reduce(local[0], op), [x], async_op)

    def broadcast(self, x: Tensor, root: int, async_op: bool = False) -> Any:
        """Copy the tensor of rank `root` of the group into all others."""
        self._check(x)
        self.layout.place(root)
        return self._run([x], lambda local: self._levels.broadcast(local[0], root), [x], async_op)

    def all_gather(self, out: Tensor, x: Tensor, async_op: bool = False) -> Any:
        """Gather every rank's `x` in `out`, one block per rank."""
        self._check(x)
        _check_blocks(out, x, self.size)
        return self._run([out, x], lambda local: self._levels.all_gather(*local), [out], async_op)

    def all_gather_list(self, outs: list[Tensor], x: Tensor) -> Any:
        """Start to gather every rank's `x` in a list of tensors of its size; the work."""
        self._check(x)

        def body(local: list[Tensor]) -> None:
            rows = torch.empty((self.size, x.numel()), dtype=x.dtype, device=local[0].device)
            self._levels.all_gather(rows, local[0])
            for out, row in zip(outs, rows, strict=True):
                out.detach().copy_(row.view(out.shape))

        return self._run([x], body, outs, True)

    def reduce_scatter_list(self, out: Tensor, xs: list[Tensor], op: Any) -> Any:
        """Start to reduce a list of tensors of `out`'s size, of which rank r gets the r-th; the work."""
        self._check(out, op)

        def body(local: list[Tensor]) -> None:
            blocks = [self.inside.place(x.detach()).reshape(-1) for x in xs]
            self._levels.reduce_scatter(local[0], torch.cat(blocks), op)

        return self._run([out], body, [out], True)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
        """Reduce `x`, one block per rank, and leave block r in rank r's `out`."""
        self._check(x, op)
        _check_blocks(x, out, self.size)
        return self._run([out, x], lambda local: self._levels.reduce_scatter(local[0], local[1], op), [out], async_op)

    def barrier(self, async_op: bool = False) -> Any:
        """Wait for all ranks, and for all earlier operations here; without `async_op` the host waits."""
        token = self.inside.place(torch.zeros(1, dtype=torch.uint8))
        work = self._run([token], lambda local: self._levels.all_reduce(local[0], dist.ReduceOp.MAX), [], True)
        if async_op:
            return work
        work.wait()
        for event in work.arrivals:
            event.synchronize()
        return None

    def _check(self, x: Tensor, op: Any = None) -> None:
        if not self.takes(x, op):
            raise errors.UnsupportedType(
                f"a hierarchical collective on a {x.layout} tensor of {x.dtype}{'' if op is None else f' with {op}'}; "
                f"expected a dense one of {', '.join(sorted(map(str, DTYPES)))}, and one of {', '.join(OPERATORS)}"
            )

    # ----------------------------------------------------------------------------------------------- running

    def _run(
        self, tensors: list[Tensor], body: Callable[[list[Tensor]], None], outputs: list[Tensor], later: bool
    ) -> Any:
        """Let the lane run `body` on the tensors, contiguous and where the backend inside can move them."""
        elsewhere = [x.device for x in tensors if not x.is_cpu]
        device = self.inside.device_at(elsewhere[0] if elsewhere else self.inside.home())
        device.refuse_capture()
        now = device.record(device.current())
        where = sorted({x.device for x in tensors if not x.is_cpu}, key=str)
        work = LaterWork(device, None, where, self.abort, device.lane)
        work.outputs = outputs

        def start() -> list[Any]:
            with device.scope(device.lane):
                device.wait(device.lane, now)
                for x in (*tensors, *outputs):
                    device.uses(x, device.lane)
                local = [self.inside.place(x.detach().resolve_conj().resolve_neg().contiguous()) for x in tensors]
                self._guarded(body, local)
                for x, copy in zip(tensors, local, strict=True):
                    if copy.data_ptr() != x.data_ptr() and any(x is out for out in outputs):
                        x.detach().copy_(copy.view(x.shape))
                work.arrivals.append(device.record(device.lane))
            return []

        self._lane.put(lambda: work.begin(start))
        if later:
            return work
        work.wait()
        return None

    def _guarded(self, body: Callable[[list[Tensor]], None], local: list[Tensor]) -> None:
        """Run `body`; if it fails between hosts, the others of this host must not wait for this rank."""
        try:
            self.comm._check_usable()
            body(local)
        except errors.RingleaderError as error:
            self.abort(str(error))
            raise

    def abort(self, reason: str) -> None:
        """Fail what is in flight: this rank cannot go on, nobody shall wait for it."""
        text = f"rank {self.rank} failed in a hierarchical operation: {reason}"
        if self._rail is not None:
            self._rail.abort(text)
        self.comm.abort(text)
        self.inside.abort()

    def close(self) -> None:
        """Leave all groups. Called by `destroy_process_group` where the hierarchy belongs to a process group."""
        self._lane.close()
        if self._rail is not None:
            self._rail.close()
        self.inside.close()


def _check_blocks(whole: Tensor, block: Tensor, size: int) -> None:
    if whole.numel() != size * block.numel() or whole.dtype is not block.dtype:
        raise errors.InvalidArgument(
            f"one tensor has shape {tuple(whole.shape)} and type {whole.dtype}, the other {tuple(block.shape)} and "
            f"{block.dtype}; expected {size} times as many elements, of one type"
        )
