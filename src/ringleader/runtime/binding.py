"""On which cores ranks run: RINGLEADER_BIND, and what follows from the affinity masks that all ranks tell.

Where each rank of a host ends up is a function of what the ranks tell (`Seat`), so every rank knows it of all others
without asking again.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringleader import _core
from ringleader.errors import InvalidArgument

__all__ = [
    "BIND_FORM", "NONE", "Binding", "Cores", "Seat", "bind", "crowded", "fair_share", "format_cores", "held_here",
    "my_cores", "parse_bind", "parse_cores", "physical_order", "seats", "short_slices",
]  # fmt: skip

Cores = frozenset[int]

NONE, CORE = "none", "core"
BIND_FORM = "none, core, or cores of each local rank: `0-3:4-7`"
_MOST_CORES = 1 << 16


@functools.lru_cache(maxsize=1024)
def parse_cores(text: str) -> Cores:
    """Cores from a list of numbers and ranges, as `taskset -c` takes it.

    Raises
    ------
    ValueError
        For anything else.

    Examples
    --------
    >>> sorted(parse_cores("0-2,8"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", item)
        if match is None:
            raise ValueError(text)
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < _MOST_CORES:
            raise ValueError(text)
        cores.update(range(low, high + 1))
    return frozenset(cores)


def format_cores(cores: Collection[int]) -> str:
    """The inverse of `parse_cores`.

    Examples
    --------
    >>> format_cores({0, 1, 2, 8})
    '0-2,8'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_bind(value: str) -> str:
    """The value of RINGLEADER_BIND in its one form.

    Raises
    ------
    ValueError
        If it has none.

    Examples
    --------
    >>> parse_bind("Core"), parse_bind("0,1,2,3:4-7")
    ('core', '0-3:4-7')
    """
    word = value.strip().lower()
    if word in (NONE, CORE):
        return word
    return ":".join(format_cores(parse_cores(part)) for part in word.split(":"))


def my_cores() -> Cores:
    """The cores that the calling thread may run on."""
    return frozenset(os.sched_getaffinity(0))


def physical_order(cores: Collection[int], root: str = "/sys/devices/system/cpu") -> list[int]:
    """Cores in the order of packages and physical cores, so that hardware threads of one core are neighbours.

    By number where the kernel does not tell.
    """

    def place(core: int) -> tuple[int, ...]:
        topology = Path(root, f"cpu{core}", "topology")
        names = ("physical_package_id", "die_id", "core_id")
        return (*(int((topology / name).read_text()) for name in names), core)

    try:
        return sorted(cores, key=place)
    except (OSError, ValueError):
        return sorted(cores)


def short_slices(microseconds: int) -> str:
    """What becomes of RINGLEADER_TIME_SLICE on this machine, for logs.

    Examples
    --------
    >>> short_slices(0)
    'waiting threads keep the usual slice of the core (RINGLEADER_TIME_SLICE=0)'
    """
    if microseconds == 0:
        return "waiting threads keep the usual slice of the core (RINGLEADER_TIME_SLICE=0)"
    if refusal := _core.time_slice_refusal(microseconds):
        return f"waiting threads keep the usual slice of the core: {refusal}"
    return f"waiting threads get slices of {microseconds} us of the core"


@dataclass(frozen=True)
class Seat:
    """What a rank tells of its cores: its `name`, the `cores` that it may use before it is bound, and its setting."""

    name: str
    cores: Cores
    bind: str = NONE


def seats(host: Sequence[Seat], order: Callable[[Collection[int]], list[int]] = sorted) -> list[Cores]:
    """The cores of each rank of a host once they are bound; the position in `host` is the local rank.

    With ``core``, ranks that have the same cores to choose from share them evenly: contiguous blocks where there are
    enough, else neighbours share a core. So ranks that a launcher has bound to different cores stay where they are.

    Parameters
    ----------
    order
        Puts cores into the order in which they are neighbours.

    Raises
    ------
    InvalidArgument
        If a list has no entry for a local rank.

    Examples
    --------
    >>> [sorted(cores) for cores in seats([Seat(f"rank {r}", frozenset(range(8)), "core") for r in range(3)])]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    >>> [sorted(cores) for cores in seats([Seat(f"rank {r}", frozenset(range(2)), "core") for r in range(4)])]
    [[0], [0], [1], [1]]
    """
    together = Counter(seat.cores for seat in host if seat.bind == CORE)
    in_order = {cores: order(cores) for cores in together}
    taken: Counter[Cores] = Counter()
    found = []
    for local, seat in enumerate(host):
        if seat.bind == CORE:
            cores, n, i = in_order[seat.cores], together[seat.cores], taken[seat.cores]
            taken[seat.cores] += 1
            first = i * len(cores) // n
            found.append(frozenset(cores[first : max(first + 1, (i + 1) * len(cores) // n)]))
        elif seat.bind == NONE:
            found.append(seat.cores)
        else:
            listed = seat.bind.split(":")
            if local >= len(listed):
                raise InvalidArgument(
                    f"RINGLEADER_BIND={seat.bind} names cores for {len(listed)} rank(s) of a host, but {seat.name} is "
                    f"number {local} of {len(host)} on its host, from 0; name cores for each, or use `core`"
                )
            found.append(parse_cores(listed[local]))
    return found


def crowded(taken: Sequence[Cores], each: int = 1, quota: int = 0) -> bool:
    """Whether ranks of a host cannot have `each` cores of their own, within a `quota` of cores (0: none).

    Exact where the ranks' cores are the same, nested or disjoint. Where they overlap otherwise it may say yes too
    often, and ranks then give way to others that do not need it.

    Examples
    --------
    >>> crowded([frozenset({0}), frozenset({1})]), crowded([frozenset({0, 1})] * 3)
    (False, True)
    """
    if quota and len(taken) * each > quota:
        return True
    wanted = Counter(core for cores in taken for core in cores)
    free = set(wanted)
    for cores in sorted(taken, key=len):  # who has least choice chooses first, and what the fewest others could take
        mine = sorted(cores & free, key=lambda core: (wanted[core], core))[:each]
        if len(mine) < each:
            return True
        free.difference_update(mine)
    return False


def fair_share(taken: Sequence[Cores], local: int, quota: int = 0) -> int:
    """How many cores a rank has for itself if each core is divided evenly among the ranks that may use it.

    Examples
    --------
    >>> fair_share([frozenset(range(8))] * 2, 0), fair_share([frozenset({0, 1}), frozenset({2})], 0)
    (4, 2)
    """
    users = Counter(core for cores in taken for core in cores)
    share = int(sum(1 / users[core] for core in taken[local]) + 1e-6)
    return min(share, quota // len(taken)) if quota else share


# ---------------------------------------------------------------------------------------------------------- this thread

_held: dict[int, Binding] = {}  # by the thread's number
_lock = threading.Lock()


@dataclass(frozen=True)
class Binding:
    """A thread that was bound; threads that it has started since are bound likewise."""

    thread: int
    before: Cores
    after: Cores

    def release(self) -> None:
        """Give the thread its former cores, if it still runs and nobody has changed them. Idempotent, any thread."""
        with _lock:
            if _held.get(self.thread) is not self:
                return
            del _held[self.thread]
        # A number may belong to another process's thread by now.
        if Path(f"/proc/self/task/{self.thread}").exists() and os.sched_getaffinity(self.thread) == self.after:
            os.sched_setaffinity(self.thread, self.before)


def held_here() -> Binding | None:
    """The calling thread's binding by `bind`, if nobody has changed it since."""
    found = _held.get(threading.get_native_id())
    return found if found is not None and my_cores() == found.after else None


def bind(cores: Cores, setting: str, name: str) -> Binding | None:
    """Bind the calling thread to `cores`, as `setting` asks of the rank `name`; None if it is bound to them already.

    Raises
    ------
    InvalidArgument
        The machine does not have all of them, or the process may not use them.
    """
    before = my_cores()
    if before == cores:
        return None
    try:
        os.sched_setaffinity(0, cores)
        refused = "" if my_cores() == cores else "not all of them exist or may be used"
    except OSError as error:
        refused = error.strerror or str(error)
    if refused:
        os.sched_setaffinity(0, before)
        raise InvalidArgument(
            f"RINGLEADER_BIND={setting}: {name} cannot run on cores {format_cores(cores)} ({refused}); it may use "
            f"{format_cores(before)} of {os.cpu_count()} cores"
        )
    binding = Binding(threading.get_native_id(), before, cores)
    with _lock:
        _held[binding.thread] = binding
    return binding
