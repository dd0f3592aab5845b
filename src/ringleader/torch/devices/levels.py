"""The steps of collectives in two levels, on the calling thread and its current stream.

Of an all-reduce, every host first leaves one part of its sum on each of its ranks (reduce-scatter inside), then the
ranks with the same part reduce it between the hosts (the engine, with its wire format), then each host shares the parts
(all-gather inside). So every byte crosses the network once per host, not once per rank, and the fast links inside a
host are used by the library that knows them best. Segments of a large tensor are in different stages at one time.

References
----------
- M. Cho et al., "BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous Network Hierarchy", MLSys 2019.
- E. Chan et al., "Collective communication: theory, practice, and experience", Concurrency Computat.: Pract. Exper.
  19(13), 2007.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.runtime.communicator import Communicator
from ringleader.torch.devices.inside import Inside
from ringleader.torch.devices.layout import Layout
from ringleader.torch.devices.rail import Part

__all__ = ["OPERATORS", "Levels", "name_of"]

OPERATORS: Final = {"SUM": "sum", "AVG": "sum", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}
"""Operators of torch that are offered, and what the engine does for them; AVG is a sum, divided once at the end."""


class Levels:
    """The operations, on contiguous tensors where the backend inside can move them.

    Parameters
    ----------
    layout
        Who is on which host.
    rail
        The communicator of the ranks that carry the same part between hosts as this one; None if this carries none.
    inside
        The ranks of this host.
    segment
        Most bytes of a part of a segment; the same on all ranks.
    """

    def __init__(self, layout: Layout, rail: Communicator | None, inside: Inside, segment: int) -> None:
        self.layout, self.rail, self.inside, self._segment = layout, rail, inside, segment
        self.size = sum(map(len, layout.members))
        # By rail, host and round: whose block is at a place, and at which place a rank's block is.
        places = [r for by_host in layout.table() for turns in by_host for r in turns]
        self._table = torch.tensor([0 if r is None else r for r in places])
        self._order = torch.tensor([places.index(r) for r in range(self.size)])

    def all_reduce(self, x: Tensor, op: Any) -> None:
        """Reduce in place on all ranks."""
        inner = dist.ReduceOp.SUM if name_of(op) == "AVG" else op
        flat = x.view(-1)
        if flat.numel() == 0:
            return
        if len(self.layout.members) == 1:
            self.inside.all_reduce(flat, inner)()
            self._average(flat, op)
            return
        segments = [_Segment(piece, self.layout.rails) for piece in torch.split(flat, self._step(flat))]
        parts = [self._part(each.whole) for each in segments]
        waits = [self.inside.reduce_parts(s.whole, _value(p), inner) for s, p in zip(segments, parts, strict=True)]
        shared = []
        ahead = self.inside.ahead
        for k in range(len(segments) + ahead):
            if k < len(segments):
                waits[k]()
                _fetch(parts[k])
            if k >= ahead:
                part = parts[k - ahead]
                if part is not None:
                    part.between(lambda comm, host: comm.all_reduce(host, OPERATORS[name_of(op)]))
                    self._average(part.value, op)
                shared.append(self.inside.share_parts(segments[k - ahead].whole, _value(part)))
        for wait, segment in zip(shared, segments, strict=True):
            wait()
            segment.store()
        _release(parts)

    def broadcast(self, x: Tensor, root: int) -> None:
        """Copy the tensor of rank `root` into all others."""
        host, local = self.layout.place(root)
        flat = x.view(-1)
        if flat.numel() == 0:
            return
        here = host == self.layout.host
        if here:
            self.inside.broadcast(flat, local)()
        if len(self.layout.members) == 1:
            return
        segment = _Segment(flat, self.layout.rails)
        part = self._part(segment.whole)
        if part is not None:
            if here:
                part.value.copy_(segment.whole.view(self.layout.rails, -1)[self.layout.local])
            part.fetch()
            part.between(lambda comm, memory: comm.broadcast(memory, host))
        if not here:
            self.inside.share_parts(segment.whole, _value(part))()
            segment.store()
        _release([part])

    def all_gather(self, out: Tensor, x: Tensor) -> None:
        """Gather every rank's `x` in the rows of `out`."""
        layout, block = self.layout, x.numel()
        if block == 0:
            return
        shape = (layout.rails, len(layout.members), layout.rounds, block)
        parts = torch.empty(shape, dtype=x.dtype, device=x.device)
        mine = self._mine(x)
        part = self._part(parts.view(-1))
        if part is not None:
            part.send(mine, lambda comm, memory, result: comm.all_gather(memory, result))
        self.inside.share_parts(parts.view(-1), _value(part))()
        torch.index_select(parts.view(-1, block), 0, self._order.to(x.device), out=out.view(self.size, block))
        _release([part])

    def _mine(self, x: Tensor) -> Tensor:
        """The blocks that this rank carries between hosts: its own, and those of ranks beyond the rails."""
        layout = self.layout
        mine = torch.zeros((layout.rounds, x.numel()), dtype=x.dtype, device=x.device)
        mine[0] = x.view(-1)
        if len(layout.mine) > layout.rails:
            rows = torch.empty((len(layout.mine), x.numel()), dtype=x.dtype, device=x.device)
            self.inside.all_gather(rows, x.view(-1))()
            carried = rows[layout.local :: layout.rails]
            mine[: len(carried)] = carried
        return mine

    def reduce_scatter(self, out: Tensor, x: Tensor, op: Any) -> None:
        """Reduce the rows of `x`; row r goes to rank r's `out`."""
        layout, block = self.layout, out.numel()
        if block == 0:
            return
        inner = dist.ReduceOp.SUM if name_of(op) == "AVG" else op
        parts = x.view(self.size, block).index_select(0, self._table.to(x.device)).view(-1)
        part = self._part(parts)
        self.inside.reduce_parts(parts, _value(part), inner)()
        reduced = torch.empty(layout.rails * layout.rounds * block, dtype=x.dtype, device=x.device)
        mine: Tensor | None = None
        if part is not None:
            mine = torch.empty(layout.rounds * block, dtype=x.dtype, device=x.device)
            part.receive(mine, lambda comm, memory, result: comm.reduce_scatter(memory, result, OPERATORS[name_of(op)]))
            self._average(mine, op)
        if len(layout.mine) == layout.rails:
            assert mine is not None
            out.view(-1).copy_(mine[:block])
        else:
            self.inside.share_parts(reduced, mine)()
            turn, rail = divmod(layout.local, layout.rails)
            out.view(-1).copy_(reduced.view(layout.rails, layout.rounds, block)[rail, turn])
        _release([part])

    # ------------------------------------------------------------------------------------------------- helpers

    def _step(self, flat: Tensor) -> int:
        """Elements of a segment: so many that a part of it has the size of a segment."""
        return max(1, self._segment // flat.element_size()) * self.layout.rails

    def _part(self, whole: Tensor) -> Part | None:
        """Memory for this rank's part of a tensor that the rails carry; None if this rank carries none."""
        if self.rail is None:
            return None
        return Part(self.rail, self.inside.device_at(whole.device), whole.numel() // self.layout.rails, whole)

    def _average(self, x: Tensor, op: Any) -> None:
        if name_of(op) == "AVG":
            torch.div(x, self.size, rounding_mode=None if x.is_floating_point() else "trunc", out=x)


class _Segment:
    """A piece of a flat tensor that the rails can divide: itself, or a copy with something at its end."""

    def __init__(self, piece: Tensor, rails: int) -> None:
        self._piece = piece
        missing = -piece.numel() % rails
        self.whole = piece
        if missing:
            self.whole = torch.cat([piece, piece[-1:].expand(missing)])

    def store(self) -> None:
        """Copy the result back, if it is not there already."""
        if self.whole is not self._piece:
            self._piece.copy_(self.whole[: self._piece.numel()])


def _fetch(part: Part | None) -> None:
    if part is not None:
        part.fetch()


def _value(part: Part | None) -> Tensor | None:
    return None if part is None else part.value


def _release(parts: list[Part | None]) -> None:
    for part in parts:
        if part is not None:
            part.release()


def name_of(op: Any) -> str:
    """Name of torch's operator; of PREMUL_SUM and what else is not offered one that is not in the table."""
    return _NAMES.get(hash(op), "")  # torch defines the hash as the operator's number


_NAMES: Final = {hash(dist.ReduceOp(getattr(dist.ReduceOp, name))): name for name in OPERATORS}
