"""Settings from the environment, and logging.

A setting is declared once, as a field of `Config`: parsing, the error messages, `ringleader doctor` and the tables of
docs/configuration.md come from there, by way of `SETTINGS`.
Names follow NCCL's where the meaning is the same.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TextIO

from ringleader._names import nearest, unknown
from ringleader.errors import InvalidArgument
from ringleader.runtime.binding import BIND_FORM, parse_bind
from ringleader.runtime.setting_values import (
    NotAName,
    choice,
    integer,
    parse_devices,
    parse_flag,
    parse_protocols,
    parse_seconds,
    parse_text,
    secret,
    several,
    size,
    zero_or,
)

__all__ = [
    "PREFIX", "SETTINGS", "SUBSYSTEMS", "Config", "Setting", "logger", "parse_setting", "settings_table",
    "setup_logging",
]  # fmt: skip

PREFIX = "RINGLEADER_"

# Subsystems of the log, each a logger: start-up, network, choice of algorithms, collectives, adaptation, compression.
# Nothing is said as SHM and P2P; they are accepted because NCCL has them.
SUBSYSTEMS = ("INIT", "NET", "SHM", "TUNE", "COLL", "P2P", "ADAPT", "COMPRESS")

# More connections than this per peer only cost descriptors.
_MAX_CHANNELS = 64
_DEFAULT_CHANNELS = 2
_MIN_SECRET = 16


@dataclass(frozen=True)
class Setting:
    """One row of the table: an environment variable `RINGLEADER_<name>`."""

    name: str
    parse: Callable[[str], Any] = field(repr=False)
    form: str
    default: str
    meaning: str
    section: str = "settings"

    @property
    def variable(self) -> str:
        """The whole name of the environment variable."""
        return PREFIX + self.name


def _setting(default: Any, parse: Callable[[str], Any], form: str, shown: str, meaning: str, repr: bool = True) -> Any:
    """A field of `Config`: its default, how its text is parsed, and what the table says: form, default, meaning."""
    return field(
        default=default, repr=repr, metadata={"parse": parse, "form": form, "default": shown, "meaning": meaning}
    )


@dataclass(frozen=True)
class Config:
    """All settings of a process; see docs/configuration.md.

    Examples
    --------
    >>> Config.from_environment({"RINGLEADER_TIMEOUT": "3"}).timeout
    3.0
    >>> Config.from_environment({"RINGLEADER_TIMEOUT": "3"}, timeout=5).timeout
    5.0
    """

    # fmt: off
    algo: str | None = _setting(
        None, parse_text, "algorithms, `^` before them: all but these", "chosen by rules",
        "What may be chosen, per collective: `ring,tree;broadcast:binomial` (docs/selection.md).",
    )
    proto: str | None = _setting(
        None, parse_protocols, "auto, pull or push, per collective as in ALGO", "auto",
        "Who moves data in shared memory: the reader (pull) or the writer (push).",
    )
    rules: str | None = _setting(
        None, parse_text, "path of a file of rules", "none",
        "Rules that come before the tuner's and the built-in ones (docs/selection.md); rank 0 reads it for all.",
    )
    algorithm_files: str | None = _setting(
        None, parse_text, "paths separated by `:`", "none",
        "Algorithms to load at the start: one's own (.py), MSCCL (.xml), MSCCL++ plans and schedules (.json).",
    )
    tuning_file: str | None = _setting(
        None, parse_text, "path, or none", "~/.config/ringleader/tuning/(machine).json",
        "What `ringleader tune` has found on this machine (docs/tuning.md); rank 0 reads it for all.",
    )
    wire: str | None = _setting(
        None, choice("f32", "bf16", "f16", "int8", "onebit"), "f32, bf16, f16, int8 or onebit", "f32",
        "How float32 values of reductions travel between nodes, where the call does not say (docs/wire.md).",
    )
    transport: str = _setting(
        "auto", choice("auto", "shm", "tcp", "ucx"), "auto, shm, tcp or ucx", "auto",
        "auto: shared memory within a host, NET between hosts. shm: refuse anything else. tcp, ucx: that even within a "
        "host.",
    )
    net: str | None = _setting(
        None, choice("tcp", "ucx"), "tcp or ucx", "tcp",
        "What carries the data of collectives between ranks that do not share memory (ucx: InfiniBand, RoCE).",
    )
    ucx_library: str | None = _setting(
        None, parse_text, "path of libucp.so.0, or of its directory", "the system's, else that of libucx-cu12",
        "Which UCX to load.",
    )
    ib_hca: str | None = _setting(
        None, parse_devices,
        "devices separated by commas, each with or without `:port`; `^` before them: all but these",
        "all that UCX finds",
        "Devices that UCX uses: `mlx5_0,mlx5_1:2`, `^mlx5_3` (UCX_NET_DEVICES).",
    )
    ib_timeout: int | None = _setting(
        None, integer(1, 31), "1 to 31", "UCX's",
        "InfiniBand's timeout: an unanswered packet is sent again after 4.096 us * 2^value (UCX_RC_TIMEOUT).",
    )
    shm_disable: bool = _setting(
        False, parse_flag, "0 or 1", "0",
        "1: never use shared memory (the same as TRANSPORT=tcp).",
    )
    socket_ifname: str | None = _setting(
        None, parse_text,
        "prefixes separated by commas; `=` before them: exact names; `^`: all but these",
        "the interface that routes to the master",
        "Network interfaces to use: `eth`, `=eth0,eth1`, `^docker,lo`.",
    )
    socket_family: str | None = _setting(
        None, choice("AF_INET", "AF_INET6"), "AF_INET or AF_INET6", "both",
        "Use only this address family.",
    )
    min_nchannels: int = _setting(
        1, integer(1, _MAX_CHANNELS), f"1 to {_MAX_CHANNELS}", "1",
        "Lower limit of data connections per network peer.",
    )
    max_nchannels: int = _setting(
        _MAX_CHANNELS, integer(1, _MAX_CHANNELS), f"1 to {_MAX_CHANNELS}", str(_MAX_CHANNELS),
        f"Upper limit of data connections per network peer ({_DEFAULT_CHANNELS} are opened unless the limits forbid).",
    )
    workers: int | None = _setting(
        None, integer(1, 16), "1 to 16", "the rank's share of the host's cores, at most 4",
        "Threads that run slices of one large operation side by side; the lowest number of all ranks is used.",
    )
    bind: str = _setting(
        "none", parse_bind, BIND_FORM, "none",
        "Bind each rank to cores. core: the ranks of a host share evenly the cores that they may use (see Cores).",
    )
    buffsize: int = _setting(
        512 << 10, size(4096, 1 << 30), "bytes from 4K to 1G, with K, M or G", "512K",
        "Size of a staging slot in shared memory; a communicator has two per rank. "
        "The same on all ranks, else `init` fails.",
    )
    inline_limit: int = _setting(
        8 << 10, size(0, 16 << 10), "bytes from 0 to 16K, with K", "8K",
        "Up to so many bytes per rank, one-step collectives within a host carry data beside their flags; 0 never.",
    )
    p2p_buffsize: int = _setting(
        64 << 10, size(4096, 1 << 30), "bytes from 4K to 1G, with K, M or G", "64K",
        "Size of the shared-memory ring of a send/recv pair.",
    )
    device_segment: int = _setting(
        4 << 20, size(4096, 1 << 30), "bytes from 4K to 1G, with K, M or G", "4M",
        "GPU tensors travel through the host in pieces of so many bytes; the least of all ranks (docs/gpu.md).",
    )
    inside: str = _setting(
        "off", choice("off", "auto", "nccl", "gloo"), "off, auto, nccl or gloo", "off",
        "PyTorch: which other backend reduces inside a host; auto: NCCL on GPUs, else Gloo (docs/gpu.md).",
    )
    composable: bool = _setting(
        False, parse_flag, "0 or 1", "0",
        "PyTorch 2.14 and later: 1: be one of several backends of a group, as in cpu:ringleader,cuda:nccl.",
    )
    spin_us: int | None = _setting(
        None, integer(0, 10_000_000), "microseconds from 0 to 10000000", "adaptive",
        "How long a wait spins before it yields.",
    )
    yield_us: int | None = _setting(
        None, integer(0, 10_000_000), "microseconds from 0 to 10000000", "adaptive",
        "How long a wait yields before it sleeps in the kernel.",
    )
    time_slice: int = _setting(
        100, zero_or(100, 100_000), "0, or microseconds from 100 to 100000", "100",
        "Slice of the core that waiting threads ask the kernel for (Linux 6.12 or later); 0: the usual one "
        "(see Busy machines).",
    )
    timeout: float = _setting(
        600.0, parse_seconds, "seconds, above 0", "600",
        "Limit of every collective and of every wait for a peer.",
    )
    store_timeout: float = _setting(
        300.0, parse_seconds, "seconds, above 0", "300",
        "Limit of start-up: until all ranks have met.",
    )
    secret: str | None = _setting(
        None, secret(_MIN_SECRET), f"text of at least {_MIN_SECRET} bytes", "made by rank 0",
        "Secret of the job, equal on all ranks; who does not know it cannot join (see Security).", repr=False,
    )
    secret_file: str | None = _setting(
        None, parse_text, "path of a file that others cannot read", "none",
        "The secret is in this file, the same on all ranks (see Security).",
    )
    insecure: bool = _setting(
        False, parse_flag, "0 or 1", "0",
        "1: ranks on several hosts need no secret; whoever can reach them may join (see Security).",
    )
    isa: str | None = _setting(
        None, choice("baseline", "avx2", "avx512", "neon"), "baseline, avx2, avx512 or neon", "the best of the machine",
        "Highest instruction set that the reduction kernels use.",
    )
    debug: str | None = _setting(
        None, choice("VERSION", "WARN", "INFO", "TRACE"), "VERSION, WARN, INFO or TRACE", "not set: Python's logging",
        "Write a log, and how much. INFO tells per rank which interface and address were chosen, and why.",
    )
    debug_subsys: tuple[str, ...] = _setting(
        SUBSYSTEMS, several(SUBSYSTEMS), f"list of {', '.join(SUBSYSTEMS)}, ALL; `^` before it: all but these", "ALL",
        "What the log is about.",
    )
    debug_file: str | None = _setting(
        None, parse_text, "path; %h is the host's name, %p the process number", "standard error",
        "Where the log goes.",
    )
    recorder_entries: int = _setting(
        256, zero_or(16, 1 << 16), "0, or 16 to 65536", "256",
        "How many collectives, and messages, of each communicator the flight recorder keeps "
        "(docs/troubleshooting.md); 0: what error messages need.",
    )
    recorder_dir: str | None = _setting(
        None, parse_text, "path of a folder", "none: in memory",
        "The flight recorder writes here, a file for each communicator of each rank, so that it outlives the process.",
    )
    trace: str | None = _setting(
        None, parse_text, "path of a folder", "none",
        "As RECORDER_DIR, with the last 32768 operations of each communicator: for `ringleader trace` "
        "(docs/timeline.md).",
    )
    metrics: str | None = _setting(
        None, parse_text, ":port, host:port, or path of a file; %h is the host's name, %p the process number", "none",
        "Show Prometheus what is counted (docs/adaptive.md); each rank adds its number on the host to the port.",
    )
    monitor: str = _setting(
        "0", parse_text, "0, 1 or a directory", "0",
        "Write what `ringleader monitor` shows (docs/adaptive.md), every second.",
    )
    # fmt: on

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Config:
        """Read `RINGLEADER_*` from `environ` (default: the process's); `overrides` by field name win, None is ignored.

        Raises
        ------
        InvalidArgument
            For an unknown RINGLEADER_* name, an unknown override, a value of the wrong form, or two settings that
            contradict each other.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for variable, text in (os.environ if environ is None else environ).items():
            if variable.startswith(PREFIX):
                value = parse_setting(variable.removeprefix(PREFIX), text)
                if (name := variable.removeprefix(PREFIX).lower()) in known:
                    values[name] = value
        for name, override in overrides.items():
            if name not in known:
                raise InvalidArgument(unknown("setting", name, sorted(known)))
            if override is not None:
                text = ",".join(override) if isinstance(override, (tuple, list)) else str(override)
                values[name] = parse_setting(name.upper(), text)
        config = cls(**values)
        config._check()
        return config

    def _check(self) -> None:
        if self.min_nchannels > self.max_nchannels:
            raise InvalidArgument(
                f"RINGLEADER_MIN_NCHANNELS={self.min_nchannels} is above RINGLEADER_MAX_NCHANNELS={self.max_nchannels}"
            )
        if self.shm_disable and self.transport == "shm":
            raise InvalidArgument("RINGLEADER_TRANSPORT=shm and RINGLEADER_SHM_DISABLE=1 contradict; unset one of them")
        if self.trace is not None and self.recorder_dir is not None:
            raise InvalidArgument(
                f"RINGLEADER_TRACE={self.trace} and RINGLEADER_RECORDER_DIR={self.recorder_dir} contradict: the flight "
                "recorder writes to one folder; unset one of them (TRACE is the same with more operations)"
            )
        if {self.transport, self.net} == {"tcp", "ucx"}:
            raise InvalidArgument(
                f"RINGLEADER_TRANSPORT={self.transport} and RINGLEADER_NET={self.net} contradict; unset one of them"
            )

    @property
    def channels(self) -> int:
        """Data connections per network peer."""
        return max(self.min_nchannels, min(_DEFAULT_CHANNELS, self.max_nchannels))

    @property
    def use_shm(self) -> bool:
        """Whether this rank may share memory with others of its host."""
        return self.transport not in ("tcp", "ucx") and not self.shm_disable

    @property
    def network(self) -> str:
        """What carries the data between ranks that do not share memory: "tcp" or "ucx"."""
        return "ucx" if self.transport == "ucx" else self.net or "tcp"


# Who a process is comes from whoever started it, and is no part of `Config`.
_LAUNCH = (
    Setting("RANK", integer(0, 1 << 30), "integer from 0", "from the launcher", "Rank of this process.", "launch"),
    Setting("SIZE", integer(1, 1 << 30), "integer from 1", "from the launcher", "Number of ranks.", "launch"),
    Setting(
        "LOCAL_RANK", integer(0, 1 << 30), "integer from 0", "from the launcher", "Rank within this host.", "launch"
    ),
    Setting(
        "LOCAL_SIZE", integer(1, 1 << 30), "integer from 1", "from the launcher", "Ranks on this host.", "launch"
    ),
    Setting(
        "STORE", parse_text, "host:port or [v6 address]:port", "MASTER_ADDR:MASTER_PORT",
        "Where the ranks meet; rank 0 serves there unless a launcher (`ringleader.spawn`) does.", "launch",
    ),
    Setting(
        "STORE_SERVED", parse_flag, "0 or 1", "0", "1: somebody else serves at STORE, rank 0 must not.", "launch"
    ),
    Setting("JOB_ID", parse_text, "text", "from the launcher", "Name of the job: keeps jobs apart.", "launch"),
)  # fmt: skip
SETTINGS: tuple[Setting, ...] = (*(Setting(f.name.upper(), **f.metadata) for f in fields(Config)), *_LAUNCH)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def parse_setting(name: str, value: str) -> Any:
    """Parse the text of `RINGLEADER_<name>`.

    Raises
    ------
    InvalidArgument
        For an unknown name or a value of the wrong form; the message shows what is valid.

    Examples
    --------
    >>> parse_setting("BUFFSIZE", "4M")
    4194304
    """
    setting = _BY_NAME.get(name)
    if setting is None:
        variables = {s.name: s.variable for s in SETTINGS}
        near = nearest(name, variables)
        hint = f"; did you mean {variables[near]}? Valid" if near else "; valid"
        raise InvalidArgument(f"unknown setting {PREFIX}{name}{hint}: {', '.join(variables.values())}")
    try:
        return setting.parse(value)
    except ValueError as error:
        shown = "(not shown)" if name == "SECRET" else repr(value)
        question = str(error) if isinstance(error, NotAName) else ""
        hint = f"{question} Expected" if question.endswith("?") else f"{question}; expected"
        raise InvalidArgument(f"{setting.variable}={shown} is not valid{hint} {setting.form}") from None


def settings_table(section: str) -> str:
    """The settings of a section as a Markdown table, as docs/configuration.md shows it."""
    rows = ["| variable | value | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{s.variable}` | {s.form} | {s.default} | {s.meaning} |" for s in SETTINGS if s.section == section]
    return "\n".join(rows)


# ------------------------------------------------------------------------------------------------------------ logging


def logger(subsystem: str) -> logging.Logger:
    """Logger of a subsystem, a child of the logger "ringleader"."""
    if subsystem not in SUBSYSTEMS:
        raise InvalidArgument(unknown("subsystem", subsystem, SUBSYSTEMS))
    return logging.getLogger(f"ringleader.{subsystem}")


_LEVELS = {"VERSION": logging.WARNING, "WARN": logging.WARNING, "INFO": logging.INFO, "TRACE": logging.DEBUG}
_handler: logging.Handler | None = None


def setup_logging(config: Config) -> None:
    """Make the log that RINGLEADER_DEBUG asks for. Without it the logging of the application is left alone."""
    global _handler
    if config.debug is None:
        return
    root = logging.getLogger("ringleader")
    if _handler is not None:
        root.removeHandler(_handler)
        if _handler_owns_stream(_handler):
            _handler.close()
    _handler = _open_handler(config)
    host = socket.gethostname()
    _handler.setFormatter(logging.Formatter(f"{host}:%(process)d %(name)s %(levelname)s %(message)s"))
    chosen = {f"ringleader.{name}" for name in config.debug_subsys} | {"ringleader"}
    _handler.addFilter(lambda record: record.name in chosen or record.levelno >= logging.WARNING)
    root.addHandler(_handler)
    root.setLevel(_LEVELS[config.debug])
    root.propagate = False
    from ringleader import __version__  # not at the top: the package imports this module

    root.log(_LEVELS[config.debug], "Ringleader %s", __version__)


def _handler_owns_stream(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.FileHandler)


def _open_handler(config: Config) -> logging.Handler:
    """A file if asked for and writable, else standard error: a bad path for a log must not end the run."""
    if config.debug_file is None:
        stream: TextIO = sys.stderr
        return logging.StreamHandler(stream)
    path = config.debug_file.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
    try:
        return logging.FileHandler(path)
    except OSError as error:
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger("ringleader").warning(
            "RINGLEADER_DEBUG_FILE: cannot write %s (%s); the log goes to standard error", path, error.strerror
        )
        return handler
