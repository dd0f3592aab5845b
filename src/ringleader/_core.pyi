"""The native core (C++20, nanobind). Everything here is private; the public API is `ringleader`.

Integers named `*_ptr` are addresses; the caller keeps the memory alive until the operation is complete.
Every call that may block releases the GIL, and returns to Python at least every 100 ms to let signals be handled.
Errors are raised as the classes given to `set_error_types`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

def set_error_types(types: dict[str, type[BaseException]]) -> None:
    """Keys: invalid timeout peer_lost mismatch aborted closed forked memory internal (ErrorKind in base/types.hpp).

    Each class is constructed as `cls(message, ranks)`, ranks being a tuple of the ranks that caused it.
    """

def set_failure_hook(hook: Callable[[], None] | None) -> None:
    """Called whenever the failure of a communicator becomes an exception."""

def build_info() -> dict[str, str]:
    """Keys: version, compiler, build_type, isa (chosen at run time), isa_available (what can run here, best first)."""

# ---------------------------------------------------------------- schedules (bind/bind_schedule.cpp)

class Lowered:
    """A schedule lowered to one program per rank (core/program.hpp)."""

    @property
    def collective(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def root(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def nodes(self) -> list[int]: ...
    def instruction_count(self, rank: int) -> int: ...
    def text(self, rank: int) -> str:
        """One instruction per line, with waits and dependencies."""
    def check(self, seed: int = 0) -> list[str]:
        """Violations of: deadlock freedom with rendezvous (zero-slot) links, race freedom (vector clocks over waits and
        dependencies), matched order per connection, right content on every rank, identical association on every
        rank. Empty = proved."""

def lower(
    table: NDArray[np.void],
    collective: int,
    n: int,
    root: int,
    chunks: int,
    nodes: list[int],
    push: bool,
    wire: bool = False,
) -> Lowered:
    """`table` has dtype ringleader.schedule.TRANSFER_DTYPE (29 bytes, packed). Errors (invalid) name the transfer."""

# ---------------------------------------------------------------- reduction kernels (bind/bind_reduce.cpp)

def reduce_supported(dtype: int, op: int) -> bool: ...
def reduce_into(
    dst_ptr: int,
    src_ptrs: list[int],
    count: int,
    dtype: int,
    op: int,
    final_n: int = 0,
    factor: float = 1.0,
    raw: list[bool] | None = None,
) -> None:
    """dst = fold(srcs), left to right. `final_n` > 0 with AVG divides by it; PREMUL_SUM multiplies the sources marked
    `raw` (None = all). For tests and the reference executor."""

def round_to_wire(dst_ptr: int, src_ptr: int, count: int, wire: int) -> None:
    """dst = what a wire format (its code) makes of src, f32; blocks count from its start. Same memory or disjoint."""

def kernel_isa() -> str:
    """'avx512', 'avx2', 'neon' or 'baseline': chosen at run time, lowered by RINGLEADER_ISA."""

# ---------------------------------------------------------------- memory (bind/bind_memory.cpp)

def arena_info() -> tuple[int, int, bytes]:
    """(file descriptor of this process's memfd arena, its bytes, its 16-byte identity). Created on first use."""

def arena_expect(ranks: int) -> None:
    """How many ranks will be on this host, as far as is known: counts until the arena is made."""

def arena_bytes(machine_bytes: int, room: int, ranks: int) -> int:
    """Address space of one of `ranks` arenas on a machine, where each process may map `room` bytes."""

def arena_alloc(nbytes: int, align: int = 64) -> int:
    """Address of `nbytes` reserved bytes in the arena (pages are reserved at once: never a bus error later).
    Raises errors.memory with needed and free bytes."""

def arena_adopt(ptr: int, nbytes: int) -> int:
    """Move the pages at `ptr`, the start of a mapping of one's own, into the arena: address of the same memory there.

    Release that with `arena_free` once the mapping at `ptr` is gone. If it raises, nothing has changed.
    """

def arena_free(ptr: int) -> None: ...
def arena_used() -> int: ...
def arena_contains(ptr: int, nbytes: int) -> bool: ...
def usable_cores() -> int:
    """Cores this process may use: the smaller of its affinity mask and its cgroup CPU quota, at least 1."""

def time_slice_refusal(microseconds: int) -> str:
    """Why the kernel does not give threads of this process a slice of the core of that length; empty if it does."""

def quota_cores() -> int:
    """The cgroup CPU quota in whole cores, at least 1; 0 if there is none."""

class PeerProcess:
    """Another process of this host: its mapped arena and the socket whose closing tells that it died.

    Process-wide: the same identity gives the same object, so communicators share mappings. Both descriptors are owned
    from the call on, also when it raises (pass `socket.detach()`); `arena_fd` is closed at once. `live_fd` -1 = none,
    `pid` 0 = unknown. Raises errors.invalid if the file's size or seals are not those of an arena.
    """

    def __init__(self, identity: bytes, arena_fd: int, arena_size: int, live_fd: int, pid: int) -> None: ...
    @staticmethod
    def find(identity: bytes) -> PeerProcess | None:
        """A live one that is already mapped, or this process itself, or None."""
    @property
    def identity(self) -> bytes: ...
    @property
    def alive(self) -> bool: ...

class StridedCopy:
    """A copy of contiguous elements at `from_ptr` into an array at `to_ptr` with strides in bytes; call it to make it.

    `order`: which byte of an element goes to each byte, -1 to leave one as it is; `flip`: what each is xor-ed with."""

    def __init__(
        self,
        from_ptr: int,
        to_ptr: int,
        shape: Sequence[int],
        strides: Sequence[int],
        itemsize: int,
        order: Sequence[int] = ...,
        flip: Sequence[int] = ...,
    ) -> None: ...
    def __call__(self) -> None: ...

# ---------------------------------------------------------------- communicator (bind/bind_comm.cpp)

class UcxWorker:
    """One UCX worker: a communicator's way to other nodes instead of data connections over TCP.

    `libraries`: paths or names of libucp; the first that loads is taken, once per process. `settings`: UCX settings
    without "UCX_", which override its environment. Raises errors.invalid with what was tried or what UCX said.
    """

    def __init__(self, libraries: list[str], settings: dict[str, str]) -> None: ...
    @property
    def address(self) -> bytes:
        """What peers need to reach it."""
    @property
    def library(self) -> str:
        """Version and path, for messages."""

class Communicator:
    """One rank's end of a group. Construct on every rank, exchange `control_offset()`, then `connect`."""

    def __init__(self, rank: int, size: int, timeout: float, options: dict[str, int]) -> None:
        """options: slot_bytes (staging slot, two per rank), inline_bytes (most that goes beside a flag), spin_us,
        yield_us, p2p_ring_bytes, oversubscribed (0 or 1: ranks share cores), bound (0 or 1: threads of the communicator
        get the cores of the calling thread)."""
    def control_offset(self) -> int:
        """Offset of this rank's control block in its arena; peers need it in `connect`."""
    def connect(
        self,
        nodes: list[int],
        peers: list[PeerProcess | None],
        control_offsets: list[int],
        sockets: list[list[int]],
        names: list[str],
        ucx: UcxWorker | None = None,
        ucx_addresses: list[bytes] = [],
        ucx_channels: int = 0,
    ) -> None:
        """Per rank: node id; for ranks of my node their process and control offset; for other ranks connected,
        authenticated TCP descriptors [control, p2p, data channel 0, data channel 1, ...] (owned from here on); a name
        for messages ("rank 2 (host b, pid 77)"). Entries of my own rank: process itself, my offset, [], my name.
        With `ucx` there are no data channels among the sockets; `ucx_channels` links per rank of another node go to the
        worker whose address `ucx_addresses` holds for it."""
    def plan(
        self,
        lowered: Lowered,
        collective: int,
        count: int,
        dtype: int,
        op: int,
        root: int,
        algorithm: int,
        shape: tuple[int, ...] | None,
        factor: float = 1.0,
        wire: int = 0,
        algorithm_name: str = "",
    ) -> Plan:
        """Bind a lowered schedule. `count`: elements of the whole vector (all_reduce, broadcast, reduce) or per block.
        dtype `bytes` moves any type; then count is in bytes. AVG divides by size. A barrier is planned with count 1,
        dtype u8, op bor, and run on one byte. `wire`: code of a format (native/wire/wire.hpp) for network messages of
        f32 elements; the schedule must be lowered with `wire`. Raises errors.invalid."""
    def isend(self, ptr: int, nbytes: int, dst: int, tag: int, timeout: float = 0, keep: object = None) -> Work: ...
    def irecv(
        self,
        ptr: int,
        nbytes: int,
        src: int,
        tag: int,
        timeout: float = 0,
        keep: object = None,
        copies: Sequence[StridedCopy] = (),
        exact: bool = False,
    ) -> Work:
        """src -1 = any source. A longer message than `nbytes` is errors.mismatch, with `exact` a shorter one too."""
    def join(self, works: list[Work], keep: object = None, copies: Sequence[StridedCopy] = ()) -> Work:
        """Messages as one operation in the order of this communicator's: over when all are, and later ones come after
        it. It fails with the first error among them."""
    def reserve(self) -> Turn:
        """An operation in the order of the others that is over when its `end` is called, or this communicator ends."""
    def abort(self, reason: str) -> None:
        """Fail every operation in flight here and on all peers; callable from any thread; first cause wins."""
    def close(self, timeout: float = 2.0) -> None:
        """Leave: pending work fails with errors.closed; returns within `timeout`. Idempotent."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def state(self) -> str:
        """'new' 'live' 'aborted' 'closed'"""
    @property
    def abort_reason(self) -> str: ...
    @property
    def lost_ranks(self) -> list[int]: ...
    @property
    def timeout(self) -> float: ...
    @timeout.setter
    def timeout(self, seconds: float) -> None: ...
    def record(self, entries: int, path: str, host: str, group: str) -> None:
        """How much the flight recorder keeps (0: what error messages need), and in which new file ("": in memory).
        Before the first operation. Raises errors.invalid if the file cannot be made; then it records in memory."""
    def recorded(self) -> bytes:
        """What the flight recorder has, as it lies in a file (native/core/recorder.hpp)."""
    def status(self) -> list[dict[str, object]]:
        """Per rank: rank, name, alive, last operation entered (text) and its number, as far as visible from here."""
    def links(self) -> list[dict[str, Any]]: ...
    def counters(self) -> dict[str, int]:
        """operations, bytes_sent_net, bytes_received_net, bytes_staged_in, bytes_staged_out, bytes_written_peer,
        bytes_read_peer, sleeps, windows."""

class Plan:
    """A lowered schedule bound to count, dtype and op on one communicator. Reusable, any number of times."""

    def run(self, in_ptr: int, out_ptr: int, timeout: float = 0) -> None:
        """Synchronous. In place when equal. Pointers may be 0 where this rank has no such buffer (e.g. reduce's output
        away from the root). timeout 0 = the communicator's."""
    def start(
        self,
        in_ptr: int,
        out_ptr: int,
        timeout: float = 0,
        keep: object = None,
        copies: Sequence[StridedCopy] = (),
    ) -> Work:
        """Asynchronous, on the progress thread; operations of a communicator run in the order they were started. `keep`
        stays alive until it is over; `copies` are made when it completes, before anybody can see that it has. Waits
        while 1024 operations wait for their turn."""
    def beside(self, slices: list[tuple[Plan, int]]) -> Plan:
        """This plan and others, on other communicators of the same ranks, as one operation. Each other one works from a
        number of bytes behind the pointers on, on its communicator's progress thread."""
    @property
    def nbytes(self) -> int: ...
    @property
    def inlined(self) -> bool:
        """Whether peers read this operation's data from mailboxes: the inline protocol, for small one-step programs."""
    @property
    def windows(self) -> int:
        """How many windows the operation runs in (1 = no segmentation by the staging slot)."""

class Turn:
    def end(self) -> None: ...

class Work:
    def poll(self) -> bool: ...
    def wait(self, timeout: float = 0) -> bool:
        """False if not complete within `timeout` seconds (0 = no limit of its own); raises the operation's error."""
    def error(self) -> BaseException | None: ...
    @property
    def source(self) -> int:
        """Source rank of a completed receive, else -1."""
    @property
    def tag(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

# ---------------------------------------------------------------- the short way (bind/bind_calls.cpp)

class Lane:
    """Base class of communicators: remembers calls on plain NumPy arrays, for `Verb`."""

    _last_choice: Any
    def _learn(
        self,
        verb: int,
        words: tuple[Any, ...],
        x: object,
        out: object,
        plan: Plan,
        choice: object,
        writes: bool,
        distance: int | None,
        in_ptr: int,
        keep: object,
    ) -> None:
        """Remember a call by its verb's code, `words` (op, root, algorithm, wire; compared by identity) and the arrays'
        types and shapes. `distance`: bytes from x to out at which they may overlap. `in_ptr`: memory of a call without
        arrays, kept alive by `keep`. Arrays that are not plain are ignored."""
    def _forget(self) -> None:
        """Forget all calls."""

class Verb:
    """A method descriptor: runs a call that the `Lane` knows, else calls `function` with the same arguments."""

    def __init__(self, function: Callable[..., Any], code: int, positional: tuple[str, ...]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Operation:
    """Base class of persistent operations: calling one runs the plan it is bound to, or `_run()` if it is not."""

    def _bind(self, plan: Plan, in_ptr: int, out_ptr: int, result: object, timeout: float) -> None: ...
    def __call__(self) -> Any:
        """Run to the end; returns the result array."""

class CompletionQueue:
    """Completed works in completion order, for a thread that finishes framework futures."""

    def watch(self, work: Work, token: int) -> None:
        """Deliver `token` through `next` when the work completes (at once if it has)."""
    def next(self, timeout: float) -> int:
        """A token, or -1 after `timeout` seconds."""
    def close(self) -> None: ...

# ---------------------------------------------------------------- compression (bind/bind_compress.cpp)

# One vector, or several that stand for one.
_Pieces: TypeAlias = NDArray[np.float32] | Sequence[NDArray[np.float32]]

class compress:  # noqa: N801 - a submodule
    """Kernels of gradient compression (native/compress/compress.hpp) on contiguous arrays of exactly these types."""

    @staticmethod
    def block_elements(scheme: str) -> int: ...
    @staticmethod
    def encoded_bytes(scheme: str, elements: int) -> int: ...
    @staticmethod
    def encode(
        scheme: str,
        dst: NDArray[np.uint8] | None,
        src: _Pieces,
        error: NDArray[np.float32] | None = None,
        lost: NDArray[np.float32] | None = None,
        decoded: NDArray[np.float32] | None = None,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        """dst = encoding of (src + error) * scale; lost = what is lost, unscaled; decoded = what dst stands for."""
    @staticmethod
    def decode(scheme: str, dst: _Pieces, src: NDArray[np.uint8], accumulate: bool = False) -> None: ...
    @staticmethod
    def decode_sum(scheme: str, dst: NDArray[np.float32], rows: NDArray[np.uint8], factor: float = 1.0) -> None:
        """dst = factor * the sum, row by row, of what the rows stand for; rows may be longer than their encodings."""
    @staticmethod
    def encode_sum(
        scheme: str,
        dst: NDArray[np.uint8],
        rows: NDArray[np.uint8],
        elements: int,
        factor: float = 1.0,
        error: NDArray[np.float32] | None = None,
        lost: NDArray[np.float32] | None = None,
        seed: int = 0,
    ) -> None:
        """dst = encoding of what decode_sum gives + error; lost = what is lost by that."""
    @staticmethod
    def select(x: NDArray[np.float32], index: NDArray[np.uint32], sampled: bool = False, seed: int = 0) -> int:
        """index = places, ascending, of the len(index) elements of largest magnitude; how many were found."""
    @staticmethod
    def select_random(elements: int, index: NDArray[np.uint32], seed: int) -> None: ...
    @staticmethod
    def take(x: NDArray[np.float32], index: NDArray[np.uint32], value: NDArray[np.float32]) -> bool:
        """value = x[index], which become 0 there. Whether all were finite."""
    @staticmethod
    def scatter_add(dst: _Pieces, index: NDArray[np.uint32], value: NDArray[np.float32], scale: float = 1.0) -> None:
        """dst[index] += scale * value. Raises errors.invalid for an index out of range; nothing is written then."""
    @staticmethod
    def add(out: NDArray[np.float32], a: NDArray[np.float32], b: _Pieces, scale: float = 1.0) -> None:
        """out = scale * a + b."""
    @staticmethod
    def clean(x: NDArray[np.float32]) -> None:
        """What is not finite becomes 0."""
    @staticmethod
    def orthonormalise(p: NDArray[np.float32]) -> None:
        """Columns of p, shape (rows, rank); equal bits on every machine. Dependent columns become zero."""
    @staticmethod
    def project(
        m: NDArray[np.float32],
        q: NDArray[np.float32],
        p: NDArray[np.float32],
        error: NDArray[np.float32] | None = None,
        sum: NDArray[np.float32] | None = None,
    ) -> None:
        """p = m q, shapes (rows, columns), (columns, rank), (rows, rank); or sum = m + error, p = sum q."""
    @staticmethod
    def project_back(m: NDArray[np.float32], p: NDArray[np.float32], q: NDArray[np.float32]) -> None:
        """q = m^T p. Equal bits on every machine."""
    @staticmethod
    def expand(
        p: NDArray[np.float32],
        q: NDArray[np.float32],
        out: NDArray[np.float32],
        error: NDArray[np.float32] | None = None,
    ) -> None:
        """out = p q^T; error -= out. Equal bits on every machine."""
