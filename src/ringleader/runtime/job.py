"""Opens the job: from the environment to a store that all ranks share and the job's secret."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ringleader.algorithms import load_files
from ringleader.errors import InvalidArgument, RendezvousError
from ringleader.runtime.addresses import check_interface_choice, listen_addresses
from ringleader.runtime.config import Config, logger, setup_logging
from ringleader.runtime.environment import Launch, detect
from ringleader.runtime.filestore import FileStore
from ringleader.runtime.keys import given_key, job_secret, key_finder, store_key
from ringleader.runtime.store import LocalStore, PrefixStore, Store, StoreLost, TorchStore
from ringleader.runtime.storeserver import TcpStoreServer
from ringleader.runtime.tcpstore import TcpStoreClient

__all__ = ["Job", "open_job"]


@dataclass
class Job:
    """What a process needs to form groups with the others of its job. Closed when its last user releases it."""

    launch: Launch
    config: Config
    store: Store
    secret: bytes = field(repr=False)
    _closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)
    _users: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.launch.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.launch.size

    @property
    def route_to(self) -> str | None:
        """The master's name or address: the interface that routes to it is used."""
        return self.launch.master_addr

    def acquire(self) -> None:
        """Count a user, a communicator that needs the store."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Take back one `acquire`; after the last one the job is closed."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def on_close(self, act: Callable[[], object]) -> None:
        """Have `act` called when the job is closed."""
        self._closing.callback(act)

    def close(self) -> None:
        """Give the store back, and stop serving it. Idempotent."""
        self._closing.close()


def open_job(
    rank: int | None = None,
    size: int | None = None,
    *,
    address: str | None = None,
    store: Any = None,
    secret: str | bytes | None = None,
    config: Config | None = None,
    timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> Job:
    """Find out who this process is, reach the store, and agree on the secret.

    Parameters
    ----------
    rank, size, address
        Explicit place in the job and meeting point, see `environment.detect`.
    store
        A `Store` or a `torch.distributed.Store` to use instead; stays the caller's.
    secret
        Secret of the job, at least 16 bytes; default RINGLEADER_SECRET or _SECRET_FILE, else rank 0 makes one.
    timeout
        Seconds until all must be there; default RINGLEADER_STORE_TIMEOUT.

    Raises
    ------
    InvalidArgument
        For contradictory or incomplete information.
    RendezvousError, CollectiveTimeout
        If the store cannot be reached or served, or rank 0 does not come.
    """
    config = config if config is not None else Config.from_environment(environ)
    setup_logging(config)
    load_files(config.algorithm_files or "")
    limit = config.store_timeout if timeout is None else timeout
    launch = detect(environ, rank=rank, size=size, address=address)
    check_interface_choice(config)  # a wrong one is an error now, on every rank that has it
    given = given_key(secret, config)
    deadline = time.monotonic() + limit
    while True:
        try:
            return _open(launch, config, store, given, max(0.0, deadline - time.monotonic()))
        except StoreLost:
            # Rank 0 still served the store of its previous job, which this process has left already. It cannot have put
            # the new job's secret there, so whoever was early notices here at the latest.
            if store is not None or time.monotonic() >= deadline:
                raise


def _open(launch: Launch, config: Config, store: Any, given: bytes | None, limit: float) -> Job:
    with contextlib.ExitStack() as stack:
        shared, key, private = _open_store(launch, config, store, given, limit, stack)
        # A store may outlive this job (torchrun's, or one that was passed): a second init() must not see old keys.
        # Every rank counts its own calls, and init() is collective, so all get the same number.
        scope = f"{launch.job_id}/{launch.attempt}"
        count = shared.add(f"{scope}/init/{launch.rank}", 1)
        scoped = PrefixStore(f"{scope}/{count}", shared)
        key = job_secret(scoped, launch, config, key, private, limit, stack)
        return Job(launch, config, scoped, key, stack.pop_all())


def _open_store(
    launch: Launch, config: Config, store: Any, given: bytes | None, timeout: float, stack: contextlib.ExitStack
) -> tuple[Store, bytes | None, bool]:
    """The store that fits the launch, the key that ranks share already, and whether only they can read the store.

    `stack` gets what must be closed.
    """
    if store is not None:
        wrapped = _wrapped(store)
        # An own store is as safe as its caller has made it; torch's stores are open to whoever reaches them.
        return wrapped, given, not isinstance(wrapped, TorchStore)
    if launch.size == 1:
        return LocalStore(), given, True
    if not launch.own_address and (default := _torch_default_store(launch)) is not None:
        return default, given, False
    if launch.agent_store:
        return _agent_store(launch, timeout), given, False
    if launch.master_addr is not None:
        return _tcp_store(launch, config, given, timeout, stack)
    if launch.one_host and launch.launcher != "arguments":
        files = FileStore(f"{launch.job_id}/{_next_directory(launch)}", launch.rank, timeout)
        stack.callback(files.close)
        return files, given, True
    raise InvalidArgument(
        f"rank {launch.rank} of {launch.size} has no meeting point (from: {launch.launcher}); give master_addr= or "
        "store=, or set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there"
    )


_directories: Counter[tuple[str, int]] = Counter()
_counting = threading.Lock()


def _next_directory(launch: Launch) -> int:
    """How many stores in directories this process has opened for its rank of the job.

    Every init() has a directory of its own: a rank may be in the next one while another has not left the previous one.
    """
    with _counting:
        _directories[launch.job_id, launch.rank] += 1
        return _directories[launch.job_id, launch.rank]


def _wrapped(store: Any) -> Store:
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is not None and isinstance(store, torch_distributed.Store):
        return TorchStore(store)
    missing = [name for name in ("set", "get", "add", "delete", "close") if not callable(getattr(store, name, None))]
    if missing:
        raise InvalidArgument(
            f"store is a {type(store).__name__} without {', '.join(missing)}; expected a torch.distributed.Store or an "
            "object with set, get, add, delete and close (ringleader.runtime.store.Store)"
        )
    checked: Store = store
    return checked


def _torch_default_store(launch: Launch) -> Store | None:
    """torch.distributed's store if the program has already started it with the same ranks: it holds MASTER_PORT."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (launch.rank, launch.size):
        return None
    return TorchStore(distributed.distributed_c10d._get_default_store())


def _agent_store(launch: Launch, timeout: float) -> Store:
    """torchrun's store, which outlives every rank."""
    if importlib.util.find_spec("torch") is None:
        raise RendezvousError(
            "TORCHELASTIC_USE_AGENT_STORE=True, but torch, whose store that is, cannot be imported here; install it, "
            "or set RINGLEADER_STORE=host:port to a free port of rank 0's host"
        )
    import torch.distributed as dist

    assert launch.master_addr is not None and launch.master_port is not None
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            launch.master_addr,
            launch.master_port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        raise RendezvousError(
            f"cannot reach torchrun's store at {launch.master_addr}:{launch.master_port}: {error}"
        ) from error
    return TorchStore(store)


def _tcp_store(
    launch: Launch, config: Config, given: bytes | None, timeout: float, stack: contextlib.ExitStack
) -> tuple[Store, bytes | None, bool]:
    assert launch.master_addr is not None and launch.master_port is not None
    if launch.rank == 0 and not launch.store_served:
        addresses = listen_addresses(launch.master_addr, launch.one_host)
        key, key_id = store_key(launch, given, config, stack)
        if config.insecure and not all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in addresses):
            logger("INIT").warning(
                "RINGLEADER_INSECURE=1: whoever can reach %s:%d may join the job",
                launch.master_addr,
                launch.master_port,
            )
        server = TcpStoreServer([(a, launch.master_port) for a in addresses], key, key_id)
        stack.callback(server.close)
        logger("INIT").info("store of job %r at %s, port %d", launch.job_id, ", ".join(addresses), server.port)
    find = key_finder(launch, given, config)
    client = TcpStoreClient([launch.master_addr], launch.master_port, find, timeout, launch.rank)
    stack.callback(client.close)
    # The key that let this rank in is the job's secret; it does not travel. Without one, what travels is no worse.
    return client, None if config.insecure and given is None else client.key, True
