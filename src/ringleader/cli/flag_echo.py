"""The other process of `machine`: answers flags. A script of its own, so that it starts without importing anything."""

from __future__ import annotations

import mmap
import os
import signal
import sys

STOP = 255
_SPINS = 1 << 20  # between looks whether the parent is still there


def echo_flags(descriptor: int, core: int, parent: int) -> None:
    """Sleep until a byte comes, then answer flags until `STOP`; end with the input or with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it too, but the parent ends it
    os.sched_setaffinity(0, [core])
    flags = mmap.mmap(descriptor, mmap.PAGESIZE)
    while os.read(0, 1):
        os.write(1, b"s")  # spinning
        seen = spins = 0
        while seen != STOP:
            flag = flags[0]
            if flag != seen:
                flags[64] = seen = flag
            spins += 1
            if spins % _SPINS == 0 and os.getppid() != parent:
                return
        os.write(1, b"d")  # done


if __name__ == "__main__":
    echo_flags(*map(int, sys.argv[1:4]))
