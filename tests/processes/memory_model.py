"""Random programs of asynchronous operations against a model of who may write which memory until when.

The rule, which docs/architecture.md states: an operation's result is in its place when the operation completes, and
with it the results of all that were called before on the same communicator, whether or not anybody looks at them.
Afterwards nothing writes there: what the program overwrites stays overwritten, and memory that it has freed and got
again is its own. What failed leaves memory alone once its failure can be seen. What is beside an array never changes.

A program follows from its number: all ranks run it with the same operations, while each decides by itself how its
arrays lie in memory, which works it drops, and when it looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ringleader as rl

Array = NDArray[Any]

GUARD, OVERWRITTEN, WATCHED = 77, 7, 55
MARGIN = 16  # elements before and behind an array that must stay as they are
BLOCKED = ("reduce_scatter", "scatter", "all_to_all")  # whose input has a block for each rank
GATHERING = ("all_gather", "gather", "all_to_all")  # whose output has


class Broken(AssertionError):
    """The library broke the rule."""


# ------------------------------------------------------------------------------------------------- memory


def _plain(flat: Array, shape: Sequence[int]) -> Array:
    return flat.reshape(shape)


def _columns(flat: Array, shape: Sequence[int]) -> Array:
    return flat.reshape(*shape[:-1], 2 * shape[-1])[..., ::2]


def _transposed(flat: Array, shape: Sequence[int]) -> Array:
    return flat.reshape(shape[::-1]).T


def _reversed(flat: Array, shape: Sequence[int]) -> Array:
    return flat.reshape(shape)[::-1]


LAYOUTS: dict[str, Callable[[Array, Sequence[int]], Array]] = {
    "plain": _plain,
    "columns": _columns,
    "transposed": _transposed,
    "reversed": _reversed,
}


class Cell:
    """An array of the program within memory of its own, and what it has to hold."""

    def __init__(self, name: str, layout: str, shape: Sequence[int], dtype: str, make: Callable[..., Array]) -> None:
        self.name = f"{name} ({layout}, {dtype}, {tuple(shape)})"
        self._view, self._shape = LAYOUTS[layout], shape
        size = int(np.prod(shape)) * (2 if layout == "columns" else 1)
        self.memory = make(size + 2 * MARGIN, dtype)
        self.memory[:] = GUARD
        self.array = self._of(self.memory)
        self.expected: Array | None = None  # None: an operation in flight may write it
        self._seen = b""

    def _of(self, memory: Array) -> Array:
        return self._view(memory[MARGIN:-MARGIN], self._shape)

    def hold(self, values: Any) -> None:
        """The program writes: from now on it is to hold that."""
        self.array[...] = values
        self.expected = self.array.copy()

    def check(self, when: str) -> None:
        """Hold the memory against what is known of it."""
        rest = self.memory.copy()
        self._of(rest)[...] = GUARD
        if not (rest == GUARD).all():
            raise Broken(f"{when}: memory beside {self.name} has changed")
        if self.expected is not None and not np.array_equal(self.array, self.expected):
            raise Broken(f"{when}: {self.name} holds {self.array.ravel()[:6]}, expected {self.expected.ravel()[:6]}")

    def note(self) -> None:
        """Remember all bytes: nothing may write here any more."""
        self._seen = self.memory.tobytes()

    def unchanged(self, when: str) -> None:
        """Nothing did."""
        if self._seen and self._seen != self.memory.tobytes():
            raise Broken(f"{when}: {self.name} was written after all operations on it were over")


# --------------------------------------------------------------------------------------------- the operations


class Step:
    """One operation of all ranks, and what it leaves: the reference."""

    def __init__(self, number: int, rng: random.Random, size: int, kinds: Sequence[str]) -> None:
        self.number, self.size = number, size
        self.kind = rng.choice(kinds)
        self.dtype = rng.choice(["f4", "f8", "i4", "i8"])
        self.shape = (rng.randint(1, 3), rng.choice([1, 2, 7, 64, 3000]))
        self.root = rng.randrange(size)
        self.op = rng.choice(["sum", "max"])
        self.in_place = rng.random() < 0.5 and self.kind == "all_reduce"

    def __repr__(self) -> str:
        return f"step {self.number}, {self.kind} of {self.dtype} {self.shape}, root {self.root}"

    def input(self, rank: int) -> Array:
        """What a rank gives: differs by operation, rank and element, and sums without rounding."""
        shape = (self.size, *self.shape) if self.kind in BLOCKED else self.shape
        values = np.arange(int(np.prod(shape))) * 7 + rank * 13 + self.number * 29
        return np.asarray(values % 101, self.dtype).reshape(shape)

    def output_shape(self) -> tuple[int, ...]:
        """Of a rank's result."""
        return (self.size, *self.shape) if self.kind in GATHERING else self.shape

    def output(self, rank: int) -> Array | None:
        """What a rank gets."""
        inputs = [self.input(r) for r in range(self.size)]
        if self.kind in ("all_reduce", "reduce", "reduce_scatter"):
            total = np.stack(inputs).max(0) if self.op == "max" else np.stack(inputs).sum(0)
            if self.kind == "reduce":
                return total if rank == self.root else None
            return np.asarray(total[rank] if self.kind == "reduce_scatter" else total)
        if self.kind == "broadcast":
            return inputs[self.root]
        if self.kind == "scatter":
            return np.asarray(inputs[self.root][rank])
        if self.kind == "gather":
            return np.stack(inputs) if rank == self.root else None
        if self.kind == "all_gather":
            return np.stack(inputs)
        if self.kind == "all_to_all":
            return np.stack([each[rank] for each in inputs])
        return inputs[(rank - 1) % self.size]  # a message from the rank before


class Door:
    """How a program reaches the library."""

    KINDS: tuple[str, ...] = (
        *("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"),
        "message",
    )
    LAYOUTS = tuple(LAYOUTS)
    SWAPPED = True

    def __init__(self, comm: rl.Communicator) -> None:
        self.parent = comm
        self.rank, self.size = comm.rank, comm.size
        self.open()

    def open(self) -> None:
        """A new group of all ranks."""
        made = self.parent.split(0)
        assert made is not None
        self.comm = made

    def empty(self, registered: bool) -> Callable[..., Array]:
        """What allocates."""
        return self.comm.empty if registered else np.empty

    def start(self, step: Step, x: Cell | None, out: Cell | None) -> list[tuple[Any, bool]]:
        """Start it: works, and whether they are messages."""
        comm, a, b = self.comm, None if x is None else x.array, None if out is None else out.array
        match step.kind:
            case "message":
                tag = step.number
                receive = comm.irecv(b, (self.rank - 1) % self.size, tag)
                return [(receive, True), (comm.isend(a, (self.rank + 1) % self.size, tag), True)]
            case "all_reduce":
                return [(comm.all_reduce(a, step.op, out=None if step.in_place else b, async_op=True), False)]
            case "reduce":
                return [(comm.reduce(a, step.root, step.op, out=b, async_op=True), False)]
            case "broadcast":
                return [(comm.broadcast(b, step.root, async_op=True), False)]
            case "reduce_scatter":
                return [(comm.reduce_scatter(a, b, step.op, async_op=True), False)]
            case "all_gather" | "all_to_all":
                return [(getattr(comm, step.kind)(a, b, async_op=True), False)]
            case _:
                return [(getattr(comm, step.kind)(a, step.root, b, async_op=True), False)]

    def barrier(self) -> None:
        self.comm.barrier()

    def wait(self, work: Any) -> None:
        work.wait()

    def abort(self) -> None:
        self.comm.abort()

    def close(self) -> None:
        self.comm.close()

    def go_on(self, shrinks: bool) -> None:
        """After a failure: a new group, of the failed one or of its parent."""
        if shrinks:
            old, self.comm = self.comm, self.comm.shrink()
            old.close()
            self.comm.barrier()
            self.comm.close()
        self.open()


class TorchDoor(Door):
    """Through torch.distributed: lists of tensors, splits, messages."""

    LAYOUTS = ("plain", "columns", "transposed")
    SWAPPED = False

    def open(self) -> None:
        import torch.distributed as dist

        self.group: Any = dist.new_group(list(range(self.size)))
        self.comm = self.group.communicator

    def start(self, step: Step, x: Cell | None, out: Cell | None) -> list[tuple[Any, bool]]:
        import torch
        import torch.distributed as dist

        a = None if x is None else torch.from_numpy(x.array)
        b = None if out is None else torch.from_numpy(out.array)
        blocks, places = (None if each is None else list(each) for each in (a, b))
        op = dist.ReduceOp.MAX if step.op == "max" else dist.ReduceOp.SUM
        named: dict[str, Any] = {"group": self.group, "async_op": True}
        match step.kind:
            case "message":
                before, behind = (self.rank - 1) % self.size, (self.rank + 1) % self.size
                receive = dist.irecv(b, before, self.group, step.number)
                return [(receive, True), (dist.isend(a, behind, self.group, step.number), True)]
            case "all_reduce":
                if not step.in_place:
                    b.copy_(a)  # torch has the form in place only
                    a = b
                return [(dist.all_reduce(a, op, **named), False)]
            case "reduce":
                if out is not None:
                    b.copy_(a)
                    a = b
                return [(dist.reduce(a, step.root, op, **named), False)]
            case "broadcast":
                return [(dist.broadcast(b, step.root, **named), False)]
            case "reduce_scatter":
                return [(dist.reduce_scatter(b, blocks, op, **named), False)]
            case "all_gather":
                return [(dist.all_gather(places, a, **named), False)]
            case "all_to_all":
                if step.number % 2:
                    return [(dist.all_to_all(places, blocks, **named), False)]
                ones = [1] * self.size
                return [(dist.all_to_all_single(b, a, ones, ones, **named), False)]
            case "gather":
                return [(dist.gather(a, places, step.root, **named), False)]
            case _:
                return [(dist.scatter(b, blocks, step.root, **named), False)]

    def barrier(self) -> None:
        import torch.distributed as dist

        dist.barrier(self.group)

    def abort(self) -> None:
        self.group.abort()

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group(self.group)

    def go_on(self, shrinks: bool) -> None:
        self.open()


# ----------------------------------------------------------------------------------------------- the programs


class Program:
    """Runs the program of a number on this rank, and holds memory against the model."""

    def __init__(self, number: int, door: Door) -> None:
        self.door = door
        self.shared = random.Random(number)  # what all ranks do alike
        self.own = random.Random(number * 1000 + door.rank)  # what is this rank's affair
        self.cells: list[Cell] = []
        self.results: list[tuple[int, Cell, Array, bool]] = []  # of operations in flight: step, where, what, message
        self.works: list[tuple[int, Any, bool]] = []  # those that are not dropped
        self.ends = self.shared.choices(["barrier", "wait", "abort", "close"], [4, 2, 1, 1])[0]
        self.when = f"program {number} on rank {door.rank}, which ends by {self.ends}"

    def cell(self, name: str, shape: Sequence[int], dtype: str) -> Cell:
        own, door = self.own, self.door
        layout = own.choice(door.LAYOUTS) if own.random() < 0.6 else "plain"
        if door.SWAPPED and own.random() < 0.2:
            dtype = np.dtype(dtype).newbyteorder(">").str
        made = Cell(name, layout, shape, dtype, door.empty(own.random() < 0.4))
        self.cells.append(made)
        return made

    def operate(self, step: Step) -> None:
        """Start an operation; a part of the works is dropped at once."""
        rank = self.door.rank
        x = out = None
        if step.kind != "broadcast" and (step.kind != "scatter" or rank == step.root):
            x = self.cell(f"the input of {step}", step.input(rank).shape, step.dtype)
            x.hold(step.input(rank))
        result = step.output(rank)
        if result is not None:
            out = x if step.in_place else self.cell(f"the result of {step}", step.output_shape(), step.dtype)
            assert out is not None
            if step.kind == "broadcast" and rank == step.root:
                out.hold(step.input(rank))
            elif out is not x:
                out.array[...] = 0
            out.expected = None
        works = self.door.start(step, x, out)
        for i, (work, message) in enumerate(works):
            if self.own.random() < 0.5:
                self.works.append((step.number, work, message and i == 0))
        if out is not None and result is not None:
            self.results.append((step.number, out, result, step.kind == "message"))

    def completed(self, last: int, message: bool = False) -> None:
        """Operations up to one are complete: their results are there, and this rank does as it likes with them."""
        left = []
        for entry in self.results:
            number, cell, result, by_message = entry
            if by_message != message or (number != last if message else number > last):
                left.append(entry)
                continue
            cell.expected = result
            cell.check(f"{self.when}, after operation {last}")
            if self.own.random() < 0.4:
                cell.hold(OVERWRITTEN)
            elif self.own.random() < 0.4:
                self.give_back(cell)
        self.results = left

    def give_back(self, cell: Cell) -> None:
        """Free memory, and get some of the same kind and size: as a rule the same."""
        registered = rl._core.arena_contains(cell.memory.ctypes.data, cell.memory.nbytes)
        elements, dtype = cell.memory.size - 2 * MARGIN, cell.memory.dtype.str
        self.cells.remove(cell)
        cell.memory = cell.array = np.empty(0)
        again = Cell(f"memory that was {cell.name}", "plain", (elements,), dtype, self.door.empty(registered))
        again.hold(WATCHED)
        self.cells.append(again)

    def forget(self) -> None:
        """Drop everything of an operation in flight, works and arrays: the library keeps what it needs."""
        if self.results and self.own.random() < 0.3:
            number, cell, _, _ = self.results.pop(self.own.randrange(len(self.results)))
            self.works = [each for each in self.works if each[0] != number]
            self.cells.remove(cell)
            elements, dtype = cell.memory.size - 2 * MARGIN, cell.memory.dtype.str
            del cell
            watched = Cell("memory allocated meanwhile", "plain", (elements,), dtype, np.empty)
            watched.hold(WATCHED)
            self.cells.append(watched)

    def look(self) -> None:
        """Wait for one of the works that this rank still has, or ask whether it is complete."""
        if not self.works:
            return
        number, work, message = self.works.pop(self.own.randrange(len(self.works)))
        if self.own.random() < 0.5 and not work.is_completed():
            self.works.append((number, work, message))
            return
        self.door.wait(work)
        self.completed(number, message) if message or not self.is_message(number) else None

    def is_message(self, number: int) -> bool:
        return number in self.messages

    def run(self) -> None:
        self.messages = set()
        steps = [Step(i, self.shared, self.door.size, self.door.KINDS) for i in range(self.shared.randint(3, 12))]
        pauses = [self.shared.random() < 0.15 for _ in steps]
        try:
            for step, pause in zip(steps, pauses, strict=True):
                self.go(step, pause)
        except (rl.errors.RingleaderError, RuntimeError):
            if self.ends in ("barrier", "wait"):
                raise
            # The others may have come to the program's end already, and have left.
        self.end(len(steps))
        for cell in self.cells:
            cell.check(f"{self.when}, at the end")

    def go(self, step: Step, pause: bool) -> None:
        if step.kind == "message":
            self.messages.add(step.number)
        self.operate(step)
        if pause:
            self.door.barrier()
            self.completed(step.number)
        self.forget()
        while self.own.random() < 0.4 and self.works:
            self.look()

    def end(self, last: int) -> None:
        if self.ends in ("abort", "close"):
            self.fail(last)
            return
        if self.ends == "barrier":
            self.door.barrier()
            self.completed(last)
        for number, work, message in self.works:
            self.door.wait(work)
            if message or not self.is_message(number):
                self.completed(number, message)
        self.works = []
        self.door.barrier()
        self.completed(last)

    def fail(self, last: int) -> None:
        """End the group in the middle: what is over stays as it is, whatever others do meanwhile and later."""
        if self.ends == "abort" and self.shared.randrange(self.door.size) == self.door.rank:
            self.door.abort()
        if self.ends == "abort":
            for number, work, message in self.works:
                try:
                    self.door.wait(work)
                except (rl.errors.RingleaderError, RuntimeError):
                    continue
                if message or not self.is_message(number):
                    self.completed(number, message)
        shrinks = self.ends == "abort" and self.shared.random() < 0.3
        if not shrinks or type(self.door) is not Door:
            self.door.close()
        self.works = []
        over = list(self.cells)
        for cell in over:
            if not shrinks:
                cell.note()
        self.door.go_on(shrinks)
        for _ in range(5):  # others of all kinds, in memory that may have been freed
            x = self.door.empty(self.own.random() < 0.5)(500, "f4")
            x[:] = 1
            self.door.parent.all_reduce(x)
            if x[0] != self.door.size:
                raise Broken(f"{self.when}: a later sum is {x[0]}")
        for cell in over:
            cell.unchanged(self.when)


def run_programs(first: int, last: int, torch_store: str | None = None) -> int:
    """Run programs on a rank of a group of workers; with a store through torch."""
    comm = rl.init()
    if torch_store is None:
        door = Door(comm)
    else:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("ringleader", init_method=torch_store, rank=comm.rank, world_size=comm.size)
        door = TorchDoor(comm)
    for number in range(first, last):
        Program(number, door).run()
    door.close()
    comm.barrier()
    return last - first
