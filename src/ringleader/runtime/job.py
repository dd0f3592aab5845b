"""Opens the job: from the environment to a store that all ranks share and the job's secret."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ringleader.algorithms import load_files
from ringleader.errors import InvalidArgument, PeerLost, RendezvousError, RingleaderError
from ringleader.runtime.addresses import check_interface_choice, listen_addresses
from ringleader.runtime.assembly import Assembly, name_of_start
from ringleader.runtime.config import Config, logger, setup_logging
from ringleader.runtime.environment import Launch, detect, format_hostport
from ringleader.runtime.filestore import FileStore
from ringleader.runtime.keys import given_key, key_finder, store_key, tell_secret, understand_secret
from ringleader.runtime.presence import Vigil, myself
from ringleader.runtime.store import LocalStore, PrefixStore, Store, StoreLost, TorchStore, no_longer_than
from ringleader.runtime.storeserver import TcpStoreServer
from ringleader.runtime.tcpstore import TcpStoreClient

__all__ = ["Job", "open_job"]

_LOOK_LIMIT = 2.0


@dataclass
class Job:
    """What a process needs to form groups with the others of its job. Closed when its last user releases it."""

    launch: Launch
    config: Config
    store: Store
    secret: bytes = field(repr=False)
    number: str = ""  # of its start: no other one has the same, in no store
    vigil: Vigil | None = field(default=None, repr=False)
    served_by_root: bool = False  # whether the store ends with rank 0's process
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

    def watch(self, ranks: Sequence[int]) -> None:
        """Raise if one of these ranks of the job is known to be gone.

        Raises
        ------
        PeerLost
            Naming it.
        """
        if self.vigil is not None and (gone := self.vigil.gone(ranks)) is not None:
            raise PeerLost(f"{gone.name} died", [ranks.index(gone.rank)])

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
    RendezvousError, CollectiveTimeout, PeerLost
        If the store cannot be reached or served, another process has this rank, or a rank does not come or dies.
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
            return _open(launch, config, store, given, deadline)
        except StoreLost:
            # Rank 0 still served the store of its previous job, which this process has left already. It cannot have put
            # the new job's secret there, so whoever was early notices here at the latest.
            if store is not None or time.monotonic() >= deadline:
                raise


def _open(launch: Launch, config: Config, store: Any, given: bytes | None, deadline: float) -> Job:
    with contextlib.ExitStack() as stack, no_longer_than(deadline):
        limit = max(0.0, deadline - time.monotonic())
        shared, key, private, where = _open_store(launch, config, store, given, limit, stack)
        if launch.size == 1:
            _, own = tell_secret(launch, config, key, private, stack)
            return Job(launch, config, shared, own, _closing=stack.pop_all())
        scoped = PrefixStore(f"{launch.job_id}/{launch.attempt}", shared)
        served_by_root = isinstance(shared, TcpStoreClient) and not launch.store_served
        assembly = Assembly(
            scoped,
            myself(launch.rank),
            launch.size,
            lambda: tell_secret(launch, config, key, private, stack),
            lambda told: understand_secret(told, launch, config, key, private),
            max(0.0, deadline - time.monotonic()),
            served_by_root=served_by_root,
            where=where,
        )
        stack.callback(assembly.leave)
        done = assembly.run()
        inner = PrefixStore(done.number, scoped)
        return Job(
            launch, config, inner, done.secret, done.number, done.vigil, served_by_root, _closing=stack.pop_all()
        )


def _open_store(
    launch: Launch, config: Config, store: Any, given: bytes | None, timeout: float, stack: contextlib.ExitStack
) -> tuple[Store, bytes | None, bool, str]:
    """The store that fits the launch, the key that ranks share already, and whether only they can read the store.

    `stack` gets what must be closed. The text is what to call the store in messages.
    """
    if store is not None:
        wrapped = _wrapped(store)
        # An own store is as safe as its caller has made it; torch's stores are open to whoever reaches them.
        return wrapped, given, not isinstance(wrapped, TorchStore), _name_of(store)
    if launch.size == 1:
        return LocalStore(), given, True, "the store"
    if not launch.own_address and (default := _torch_default_store(launch)) is not None:
        return default, given, False, "torch's default store"
    at = "" if launch.master_addr is None else format_hostport(launch.master_addr, launch.master_port or 0)
    if launch.agent_store:
        return _agent_store(launch, timeout), given, False, f"torchrun's store at {at}"
    if launch.master_addr is not None:
        return *_tcp_store(launch, config, given, timeout, stack), at
    if launch.one_host and launch.launcher != "arguments":
        files = FileStore(f"{launch.job_id}/{_next_directory(launch)}", launch.rank, timeout)
        stack.callback(files.close)
        return files, given, True, str(files.path)
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


def _name_of(store: Any) -> str:
    """What a store that was passed is called in messages: a file by its name."""
    inner, depth = store, 0
    while hasattr(inner, "underlying_store") and depth < 16:
        inner, depth = inner.underlying_store, depth + 1
    path, host, port = (getattr(inner, name, None) for name in ("path", "host", "port"))
    if path:
        return f"the file {path}"
    return f"torch's store at {host}:{port}" if host and port else "the store"


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


def _who_is_there(launch: Launch, find: Callable[[bytes], bytes]) -> RendezvousError | None:
    """Where the port of this rank 0 is taken by a job's store whose key this process may know: whose it is."""
    assert launch.master_addr is not None and launch.master_port is not None
    at = format_hostport(launch.master_addr, launch.master_port)
    with contextlib.suppress(RingleaderError), no_longer_than(time.monotonic() + _LOOK_LIMIT):
        client = TcpStoreClient([launch.master_addr], launch.master_port, find, _LOOK_LIMIT)
        try:
            found = name_of_start(PrefixStore(f"{launch.job_id}/{launch.attempt}", client))
        finally:
            client.close()
        if found is not None and found[1]:
            return RendezvousError(
                f"{at} is busy: this process (pid {os.getpid()}) is rank 0 of a job there already, and its "
                "communicator is open; close() it first, or make further groups with split() or subgroup()"
            )
        if found is not None:
            return RendezvousError(
                f"{at} is busy: another process ({found[0].process}) is rank 0 of a job there; choose another "
                "MASTER_PORT (or RINGLEADER_STORE) for this one"
            )
    return None


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
        try:
            server = TcpStoreServer([(a, launch.master_port) for a in addresses], key, key_id)
        except RendezvousError as error:
            raise _who_is_there(launch, key_finder(launch, given, config)) or error from error
        stack.callback(server.close)
        logger("INIT").info("store of job %r at %s, port %d", launch.job_id, ", ".join(addresses), server.port)
    find = key_finder(launch, given, config)
    client = TcpStoreClient([launch.master_addr], launch.master_port, find, timeout, launch.rank)
    stack.callback(client.close)
    # The key that let this rank in is the job's secret; it does not travel. Without one, what travels is no worse.
    return client, None if config.insecure and given is None else client.key, True
