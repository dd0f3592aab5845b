"""How ranks come by the job's secret: it is given, or rank 0 makes a key where only this user's processes can read it.

A made key is 32 random bytes in a file, mode 0600, with a random name, the *key id*. Only the id is told to whoever
asks (in the handshake with rank 0's store, or in a store that others can read); who can open the file is the same user
on the same host, and proves with the key that it did. A name or a port is never a key.

A key for the TCP store serves one port only: whoever listens at another port and names it learns no proof that he could
pass on.

Under Slurm, whose variables hold nothing that is secret, the file lies in the home directory, which the hosts of a
cluster share. Elsewhere it lies in a directory of the host, and serves the network namespace in which it was made: two
namespaces are two hosts here as everywhere.

Ranks on several hosts that have neither a secret nor such a file are refused. Only torchrun's own store may carry the
key of several hosts, and anything may where RINGLEADER_INSECURE says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import InvalidArgument, RendezvousError
from ringleader.runtime.addresses import network_id
from ringleader.runtime.config import Config, logger
from ringleader.runtime.environment import Launch
from ringleader.runtime.handshake import AuthenticationError, UnknownKey
from ringleader.runtime.presence import start_time

__all__ = [
    "MadeKey", "find_key", "given_key", "key_finder", "make_key", "secret_key", "store_key", "tell_secret",
    "understand_secret",
]  # fmt: skip

KEY_BYTES = 32
ID_BYTES = 16
_GIVEN_ID = bytes(ID_BYTES)
_INSECURE_ID = b"insecure".ljust(ID_BYTES, b"\0")
_LEAST = 16
_EVERYWHERE = "*"

# What rank 0 tells in a store.
_GIVEN, _MADE, _FILE = b"given", b"made:", b"file:"

_REMEDY = (
    "give all ranks the same RINGLEADER_SECRET_FILE (openssl rand -hex 32 > FILE; chmod 600 FILE) or "
    "RINGLEADER_SECRET, start them with torchrun, or set RINGLEADER_INSECURE=1 on all: then all who reach them may join"
)


# --------------------------------------------------------------------------------------------------------------- given


def secret_key(secret: str | bytes) -> bytes:
    """The key that the handshakes use, from a secret as it was given."""
    raw = secret.encode() if isinstance(secret, str) else secret
    return hashlib.sha256(b"ringleader secret\0" + raw).digest()


def given_key(secret: str | bytes | None, config: Config) -> bytes | None:
    """The key from an argument or a setting; None if none was given.

    Raises
    ------
    InvalidArgument
        If it is too short, or a file of secrets cannot be read or is open to others.
    """
    if secret is None and config.secret is not None and config.secret_file is not None:
        raise InvalidArgument("RINGLEADER_SECRET and RINGLEADER_SECRET_FILE are both set; set one")
    chosen = secret if secret is not None else config.secret
    if chosen is None and config.secret_file is not None:
        chosen = _read_secret(Path(config.secret_file).expanduser())
    if chosen is None:
        return None
    raw = chosen.encode() if isinstance(chosen, str) else chosen
    if len(raw) < _LEAST:
        raise InvalidArgument(f"the secret has {len(raw)} bytes; expected at least {_LEAST}, from a random source")
    return secret_key(raw)


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o027:
                raise InvalidArgument(
                    f"RINGLEADER_SECRET_FILE={path} has mode {mode:04o}: others could read or change it; chmod 600 it"
                )
            return file.read(1 << 20).strip()
    except OSError as error:
        raise InvalidArgument(f"RINGLEADER_SECRET_FILE={path} cannot be read: {error.strerror}") from error


# ---------------------------------------------------------------------------------------------------------------- made


@dataclass
class MadeKey:
    """A key that this process has made for others of its user to find; `remove` takes the file away."""

    key: bytes = field(repr=False)
    key_id: bytes
    path: Path

    def remove(self) -> None:
        """Nobody needs to find it any more. Idempotent."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _places(home: bool) -> Iterator[Path]:
    """Directories for keys, the best one first. Their names may depend on the environment, so readers try them all."""
    if home:
        with contextlib.suppress(RuntimeError):  # no home directory
            yield Path.home() / ".config" / "ringleader" / "keys"
        return
    seen: set[str] = set()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for name in (runtime, f"/run/user/{os.geteuid()}", tempfile.gettempdir(), "/tmp", "/dev/shm"):
        if name and name not in seen and os.path.isdir(name):
            seen.add(name)
            yield Path(name)


def _prefix() -> str:
    return f"ringleader-key-{os.geteuid()}-"


def _processes_id() -> str:
    """Equal for processes that mean the same process by a number."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return hashlib.sha256(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}".encode()).hexdigest()[:16]


def make_key(port: int | None, home: bool = False) -> MadeKey:
    """Make a key in a file that this user alone can read.

    Parameters
    ----------
    port
        Of the TCP store whose key it is; None for the job's secret.
    home
        In the home directory, for ranks on other hosts that share it, instead of on this host.

    Raises
    ------
    RendezvousError
        If there is no directory for it.
    """
    key, key_id = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(ID_BYTES)
    where = _EVERYWHERE if home else network_id()
    text = f"{key.hex()} {where} {port} {_processes_id()} {os.getpid()} {start_time(os.getpid())}\n"
    failures = []
    for place in _places(home):
        made = MadeKey(key, key_id, place / (_prefix() + key_id.hex()))
        try:
            if home:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_stale(place)
            descriptor = os.open(made.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                file.write(text)
        except OSError as error:
            made.remove()
            failures.append(f"{place}: {error.strerror}")
            continue
        if _read_key(made.path, port) == key:
            return made
        made.remove()
        failures.append(f"{place}: its files do not belong to user {os.geteuid()}")
    raise RendezvousError(f"no place for the job's key ({'; '.join(failures) or 'no home directory'}); {_REMEDY}")


def find_key(key_id: bytes, port: int | None, home: bool = False) -> bytes | None:
    """The key of this id, if a process of this user has made it here (or, with `home`, where it shares the home)."""
    for place in _places(home):
        if (key := _read_key(place / (_prefix() + key_id.hex()), port)) is not None:
            return key
    return None


def _read_key(path: Path, port: int | None) -> bytes | None:
    """The key in a file; None if there is none that is this user's alone and meant for this network namespace."""
    fields = _read(path)
    if len(fields) != 6 or fields[1] not in (_EVERYWHERE, network_id()) or fields[2] != str(port):
        return None
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(fields[0])
        return key if len(key) == KEY_BYTES else None
    return None


def _read(path: Path) -> list[str]:
    """The words of a file that is this user's alone; none if it is not there, or somebody else's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, errors="replace") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return []
            return file.read(1000).split()
    except OSError:
        return []


def _remove_stale(place: Path) -> None:
    """Remove keys whose makers have died without doing so; never those of others, or of processes out of sight."""
    here = _processes_id()
    for path in place.glob(_prefix() + "*"):
        fields = _read(path)
        if len(fields) != 6 or fields[3] != here or not fields[4].isdecimal():
            continue
        if start_time(int(fields[4])) != fields[5]:
            with contextlib.suppress(OSError):
                path.unlink()


# ------------------------------------------------------------------------------------------------ the TCP store's key


def _insecure_key(launch: Launch) -> bytes:
    """No secret: it only keeps jobs apart."""
    return hashlib.sha256(b"ringleader job\0" + launch.job_id.encode()).digest()


def store_key(launch: Launch, given: bytes | None, config: Config, stack: contextlib.ExitStack) -> tuple[bytes, bytes]:
    """The key of the TCP store that this process is about to serve, and its id; what was made goes when `stack` closes.

    Raises
    ------
    RendezvousError
        If a key has to be made and there is no place for it.
    """
    if given is not None:
        return given, _GIVEN_ID
    if config.insecure:
        return _insecure_key(launch), _INSECURE_ID
    made = make_key(launch.master_port, launch.slurm and not launch.one_host)
    stack.callback(made.remove)
    return made.key, made.key_id


def key_finder(launch: Launch, given: bytes | None, config: Config) -> Callable[[bytes], bytes]:
    """For a client of the TCP store: a function from the id that the server tells to the key.

    It raises `UnknownKey` if this process cannot have it, `AuthenticationError` if ranks were told differently.
    """

    def find(key_id: bytes) -> bytes:
        if (key_id == _GIVEN_ID) != (given is not None):
            raise AuthenticationError(_one_was_given(launch.rank, given is not None))
        if given is not None:
            return given
        if (key_id == _INSECURE_ID) != config.insecure:
            raise AuthenticationError(_one_is_insecure(launch.rank, config.insecure))
        return _insecure_key(launch) if config.insecure else _found(key_id, launch.master_port, launch)

    return find


def _found(key_id: bytes, port: int | None, launch: Launch) -> bytes:
    key = find_key(key_id, port)
    if key is None and launch.slurm:
        key = find_key(key_id, port, home=True)
    if key is None:
        raise UnknownKey(
            f"no secret was given, and rank {launch.rank} cannot read the key that rank 0 has made: it is on another "
            f"host (or in another container, or another user's); {_REMEDY}"
        )
    return key


def _one_was_given(rank: int, here: bool) -> str:
    with_secret, without = (rank, 0) if here else (0, rank)
    return (
        f"rank {with_secret} was given a secret and rank {without} was not; set RINGLEADER_SECRET (or "
        "RINGLEADER_SECRET_FILE) on all or none"
    )


def _one_is_insecure(rank: int, here: bool) -> str:
    with_it, without = (rank, 0) if here else (0, rank)
    return f"rank {with_it} has RINGLEADER_INSECURE=1 and rank {without} has not; set it on all or none"


# -------------------------------------------------------------------------------------------- the key through a store


def tell_secret(
    launch: Launch, config: Config, given: bytes | None, private: bool, stack: contextlib.ExitStack
) -> tuple[bytes, bytes]:
    """Rank 0's: what it tells the others through the store, and the secret of the job: `given`, or one that it makes.

    Parameters
    ----------
    private
        Whether only ranks can read the store: then the secret itself is put there, else the id of a file.
    stack
        Removes the file when it is closed.

    Raises
    ------
    RendezvousError
        If a file has to be made and there is no place for it.
    """
    made = secrets.token_bytes(KEY_BYTES)
    if launch.size == 1 or given is not None:
        return _GIVEN, given or made
    if private or config.insecure or launch.torchrun_hosts:
        if not private:
            _warn_of_open_store(launch)
        return _MADE + made, made
    file = make_key(None, launch.slurm and not launch.one_host)
    stack.callback(file.remove)
    return _FILE + file.key_id, file.key


def understand_secret(told: bytes, launch: Launch, config: Config, given: bytes | None, private: bool) -> bytes:
    """The secret of the job, from what rank 0 has told in the store.

    Raises
    ------
    RendezvousError
        If only some ranks were given a secret, or ranks on several hosts have none.
    """
    if (told == _GIVEN) != (given is not None):
        raise RendezvousError(_one_was_given(launch.rank, given is not None))
    if given is not None:
        return given
    if told.startswith(_FILE):
        return _found(told.removeprefix(_FILE), None, launch)
    if not (private or config.insecure or launch.torchrun_hosts):
        # Whoever can write into the store could have put that there.
        raise RendezvousError(_one_is_insecure(launch.rank, False))
    return told.removeprefix(_MADE)


def _warn_of_open_store(launch: Launch) -> None:
    whose = "torchrun's" if launch.torchrun_hosts else "torch's"
    logger("INIT").warning(
        "the job's key is in %s store, which everybody can read who reaches it; set RINGLEADER_SECRET_FILE (or "
        "RINGLEADER_SECRET) on all ranks unless the network is trusted",
        whose,
    )
