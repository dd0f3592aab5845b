"""Several hosts on one machine: network namespaces joined by veth pairs to a bridge. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

PREFIX = "10.77.0"  # private to the namespaces


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


@dataclass
class Hosts:
    """`count` namespaces; host i has the address `address(i)` on interface eth0."""

    count: int
    tag: str = field(default_factory=lambda: f"rl{os.getpid() % 100000}")
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def name(self, host: int) -> str:
        return f"{self.tag}h{host}"

    def address(self, host: int) -> str:
        return f"{PREFIX}.{host + 1}"

    def create(self) -> None:
        switch = f"{self.tag}sw"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for host in range(self.count):
            name = self.name(host)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{host}", "netns", switch)
            ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            # A second interface that leads nowhere: nobody may choose it.
            ip("-n", name, "link", "add", "docker0", "type", "veth", "peer", "name", "nowhere")
            ip("-n", name, "link", "set", "nowhere", "up")
            ip("-n", name, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            ip("-n", name, "link", "set", "docker0", "up")

    def destroy(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        for name in [*(self.name(h) for h in range(self.count)), f"{self.tag}sw"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def start(
        self, host: int, script: str, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Run Python code on a host, with stdout and stderr captured."""
        command = ["ip", "netns", "exec", self.name(host), sys.executable, "-c", script, *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.running.append(process)
        return process

    def start_job(
        self, script: str, ranks_per_host: Sequence[int], env: dict[str, str] | None = None
    ) -> list[subprocess.Popen[str]]:
        """One process per rank, with the variables that torchrun sets; rank 0 on host 0 serves the store."""
        size = sum(ranks_per_host)
        processes = []
        for host, local in enumerate(ranks_per_host):
            for local_rank in range(local):
                variables = {
                    "RANK": str(len(processes)),
                    "WORLD_SIZE": str(size),
                    "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(local),
                    "MASTER_ADDR": self.address(0),
                    "MASTER_PORT": "29650",
                    "RINGLEADER_SECRET": "a secret of the test, 32 bytes!!",
                    "OMP_NUM_THREADS": "1",
                    **(env or {}),
                }
                processes.append(self.start(host, script, env=variables))
        return processes


def outputs(processes: list[subprocess.Popen[str]], timeout: float = 150) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    results = []
    for process in processes:
        out, err = process.communicate(timeout=timeout)
        results.append((process.returncode, out, err))
    return results


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Parametrise indirectly with the number of hosts (default 2)."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    group = Hosts(getattr(request, "param", 2))
    try:
        group.create()
    except subprocess.CalledProcessError as error:
        group.destroy()
        pytest.skip(f"cannot make network namespaces: {error.stderr.strip()}")
    try:
        yield group
    finally:
        group.destroy()
