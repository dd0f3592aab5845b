"""The native engine keeps the suite: shared memory by every protocol, plain or registered, TCP and UCX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import drive
import pytest
from cases import Case
from suite import CollectiveConformance

import ringleader as rl

FEW = (0, 1, 2, 3, 5, 8, 12, 13, 33, 129, 1000, 4099)


class _Engine(CollectiveConformance):
    transport: ClassVar[str]
    env: ClassVar[dict[str, str]] = {}
    registered: ClassVar[bool] = False
    group: ClassVar[rl.WorkerGroup | None] = None

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _close(cls) -> Iterator[None]:
        yield
        if cls.group is not None:
            cls.group.close()
            cls.group = None

    def run_batch(self, n: int, batch: list[Case]) -> list[str]:
        """Processes are started once per n."""
        cls = type(self)
        if cls.group is None or cls.group.size != n:
            if cls.group is not None:
                cls.group.close()
            cls.group = rl.WorkerGroup(n, transport=self.transport, env=self.env)
        try:
            failures = cls.group.run(drive.run_cases, batch, self.registered, timeout=150)
            return [failure for rank in failures for failure in rank]
        except BaseException:
            cls.group.close(force=True)
            cls.group = None
            raise


class TestSharedMemory(_Engine):
    transport = "shm"


class TestRegisteredMemory(_Engine):
    transport = "shm"
    registered = True
    counts = FEW


class TestSlots(_Engine):
    """Small data through the staging slots: with the inline protocol on, they carry only what is larger."""

    transport = "shm"
    env: ClassVar[dict[str, str]] = {"RINGLEADER_INLINE_LIMIT": "0"}
    counts = FEW


class TestPull(_Engine):
    """Readers copy, whatever the rules prefer."""

    transport = "shm"
    env: ClassVar[dict[str, str]] = {"RINGLEADER_PROTO": "pull"}
    counts = (0, 1, 7, 33, 1000, 65537)


class TestPush(_Engine):
    """Writers copy."""

    transport = "shm"
    env: ClassVar[dict[str, str]] = {"RINGLEADER_PROTO": "push"}
    counts = (0, 1, 7, 33, 1000, 65537)
    registered = True


class TestTcp(_Engine):
    transport = "tcp"


@pytest.mark.ucx
class TestUcxOverTcp(_Engine):
    transport = "ucx"
    env: ClassVar[dict[str, str]] = {"UCX_TLS": "tcp,self"}


@pytest.mark.ucx
class TestUcxOverSharedMemory(_Engine):
    transport = "ucx"
    env: ClassVar[dict[str, str]] = {"UCX_TLS": "sm,self"}
    counts = (0, 1, 7, 33, 1000, 65537)
