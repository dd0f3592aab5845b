"""``ringleader doctor``: what Ringleader finds on this machine, and what would go wrong."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ringleader import _core
from ringleader.cli.machine import Machine
from ringleader.cli.system import package_version, system_info
from ringleader.errors import RingleaderError
from ringleader.runtime import addresses
from ringleader.runtime.binding import short_slices
from ringleader.runtime.config import PREFIX, SETTINGS, Config
from ringleader.runtime.environment import detect, format_hostport
from ringleader.runtime.spawn import WorkerGroup

__all__ = ["diagnose"]

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_COMM_WORLD_", "PMI_", "SLURM_PROCID", "SLURM_NTASKS")
_PACKAGES = ("numpy", "torch", "typer", "rich", "matplotlib")

Finding = tuple[bool | None, str]  # all right, wrong, or just said


def diagnose(console: Console) -> int:
    """Print every section; exit code 1 if something is wrong."""
    wrong = 0
    for title, section in _SECTIONS.items():
        console.print(title, style="bold")
        for good, text in _caught(section):
            mark = {True: "[green]ok[/green]   ", False: "[red]WRONG[/red]", None: "     "}[good]
            console.print(f"  {mark} {escape(text)}", highlight=False, soft_wrap=True)
            wrong += good is False
    console.print(f"{wrong} wrong" if wrong else "nothing wrong", style="bold red" if wrong else "bold green")
    return 1 if wrong else 0


def _caught(section: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from section()
    except (RingleaderError, OSError) as error:
        yield False, str(error)


def _versions() -> Iterator[Finding]:
    info = system_info()
    yield None, f"ringleader {info['ringleader']}, native core: {info['compiler']}, {_core.build_info()['build_type']}"
    yield None, f"Python {info['python']}, {info['kernel']}"
    yield None, ", ".join(f"{name} {package_version(name) or 'not installed'}" for name in _PACKAGES)
    for group in ("torch.backends", "torch.distributed.backends"):
        found = [e for e in importlib.metadata.entry_points(group=group) if e.name == "ringleader"]
        text = f"entry point {group}: {found[0].value if found else 'missing; reinstall ringleader'}"
        yield bool(found), text


def _processor() -> Iterator[Finding]:
    info = system_info()
    yield None, f"{info['cpu']}, {info['cores']} cores of which this process may use {info['usable_cores']}"
    yield None, f"reduction kernels: {info['isa']} (compiled and available: {_core.build_info()['isa_available']})"
    yield None, f"memory {info['memory_gib']} GiB, transparent huge pages {info['huge_pages'] or 'unknown'}"
    with Machine() as machine:
        yield None, str(machine.state())
    yield None, short_slices(Config.from_environment(None).time_slice)
    load = os.getloadavg()[0]
    cores = _core.usable_cores()
    crowded = "; other work competes with ranks, expect slow and unsteady collectives" if load > cores else ""
    yield None, f"load {load:.1f}{crowded}"


def _memory() -> Iterator[Finding]:
    descriptor = os.memfd_create("ringleader-doctor")
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as memory:
            memory[0] = 1
    finally:
        os.close(descriptor)
    yield True, "memfd: can be made, reserved and mapped"
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists():
        yield None, f"cgroup memory limit: {limit.read_text().strip()}"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft >= 1024, f"open files: at most {soft}{'' if soft >= 1024 else '; raise it with ulimit -n'}"


def _network() -> Iterator[Finding]:
    config = Config.from_environment()
    for interface in addresses.interfaces():
        kinds = [name for name in ("up", "loopback", "virtual") if getattr(interface, name)]
        ips = ", ".join(address.ip for address in interface.addresses)
        yield None, f"{interface.name}: {ips or 'no address'} ({', '.join(kinds) or 'down'})"
    launch = detect()
    for several, what in ((False, "ranks on this host only"), (True, "ranks on several hosts")):
        try:
            chosen = addresses.select(config, launch.master_addr, several)
        except RingleaderError as error:
            yield (None if several else False), f"{what}: {error}"
        else:
            yield True, f"{what}: {chosen.interface}, {chosen.why}"


def _environment() -> Iterator[Finding]:
    Config.from_environment()
    seen = sorted(name for name in os.environ if name.startswith((PREFIX, *_LAUNCHERS)))
    known = {setting.variable for setting in SETTINGS}
    for name in seen:
        value = "(not shown)" if name.endswith("SECRET") else os.environ[name]
        yield (True if name in known else None), f"{name}={value}"
    if not seen:
        yield None, "no RINGLEADER_* variable and none of a launcher is set"
    launch = detect()
    meeting = (
        ""
        if launch.master_addr is None
        else f", meeting at {format_hostport(launch.master_addr, launch.master_port or 0)}"
    )
    yield None, f"so rl.init() here would be rank {launch.rank} of {launch.size} (from: {launch.launcher}){meeting}"


def _joined() -> list[str]:
    import numpy as np

    from ringleader.runtime.start import init

    with init() as comm:
        total = comm.all_reduce(np.arange(1000.0) + comm.rank)
        if total.tolist() != [2 * i + 1 for i in range(1000)]:
            raise ArithmeticError("an all-reduce of two ranks gives a wrong sum")
        return ["shared memory" if len(set(comm.nodes)) == 1 else "TCP", str(comm.last_choice)]


def _ranks() -> Iterator[Finding]:
    unset = {name: None for name in os.environ if name.startswith(_LAUNCHERS)}
    for transport in ("shm", "tcp"):
        with WorkerGroup(2, transport=transport, env={**unset, "RINGLEADER_SHM_DISABLE": None}) as group:
            way, choice = group.run(_joined, timeout=60)[0]
        yield True, f"two ranks over {way}: {choice}"


_SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": _versions,
    "processor and memory": _processor,
    "shared memory": _memory,
    "network": _network,
    "environment": _environment,
    "a collective": _ranks,
}
