"""The native engine keeps the suite, over shared memory, over TCP and over UCX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import drive
import pytest
from cases import Case
from suite import CollectiveConformance

import ringleader as rl


class _Engine(CollectiveConformance):
    transport: ClassVar[str]
    env: ClassVar[dict[str, str]] = {}
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
            return [failure for rank in cls.group.run(drive.run_cases, batch, timeout=100) for failure in rank]
        except BaseException:
            cls.group.close(force=True)
            cls.group = None
            raise


class TestSharedMemory(_Engine):
    transport = "shm"


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
