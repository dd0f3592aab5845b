"""This host's interfaces and addresses, and the choice of those at which other hosts can reach it."""

from __future__ import annotations

import ctypes
import hashlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import InvalidArgument, RendezvousError
from ringleader.runtime.config import Config

__all__ = [
    "Address",
    "Interface",
    "Selection",
    "check_interface_choice",
    "host_id",
    "interfaces",
    "listen_addresses",
    "network_id",
    "select",
]

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
# Interfaces of containers, virtual machines and tunnels: peers on other hosts are usually not reachable through them.
_VIRTUAL = (
    "docker",
    "veth",
    "br-",
    "virbr",
    "vnet",
    "cni",
    "flannel",
    "cali",
    "tun",
    "tap",
    "wg",
    "ifb",
    "dummy",
    "lxc",
)


@dataclass(frozen=True)
class Address:
    """An IP address of an interface; `scope` is the interface's index for link-local IPv6, else 0."""

    ip: str
    scope: int = 0

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET or AF_INET6."""
        return socket.AF_INET6 if ":" in self.ip else socket.AF_INET

    @property
    def link_local(self) -> bool:
        """Whether it is valid on one link only."""
        return ipaddress.ip_address(self.ip).is_link_local

    def sockaddr(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """What `bind` and `connect` take."""
        return (self.ip, port, 0, self.scope) if ":" in self.ip else (self.ip, port)


@dataclass
class Interface:
    """A network interface with its addresses."""

    name: str
    flags: int
    addresses: list[Address] = field(default_factory=list)

    @property
    def up(self) -> bool:
        """Whether it is switched on."""
        return bool(self.flags & _IFF_UP)

    @property
    def loopback(self) -> bool:
        """Whether it only reaches this host."""
        return bool(self.flags & _IFF_LOOPBACK)

    @property
    def virtual(self) -> bool:
        """Whether it looks like one of a container, virtual machine or tunnel."""
        return self.name.startswith(_VIRTUAL)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(a.ip for a in self.addresses) or 'no address'}{'' if self.up else ', down'})"


@dataclass(frozen=True)
class Selection:
    """The interface that was chosen, its addresses in the order in which peers should try them, and why."""

    interface: str
    addresses: tuple[Address, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.interface} ({', '.join(a.ip for a in self.addresses)})"


# --------------------------------------------------------------------------------------------------------- reading them


class _SockAddr(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26)]


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.c_void_p),
    ("ifu", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


_libc = ctypes.CDLL(None, use_errno=True)  # once: each is a class of its own, in a cycle that only the collector frees


def interfaces() -> list[Interface]:
    """All interfaces of this network namespace, in the kernel's order, also those without an address.

    Examples
    --------
    >>> any(interface.loopback for interface in interfaces())
    True
    """
    head = ctypes.POINTER(_IfAddrs)()
    if _libc.getifaddrs(ctypes.byref(head)) != 0:
        raise RendezvousError(f"cannot list the network interfaces: {os.strerror(ctypes.get_errno())}")
    found: dict[str, Interface] = {}
    try:
        entry = head
        while entry:
            item = entry.contents
            name = item.name.decode()
            interface = found.setdefault(name, Interface(name, item.flags))
            if item.addr and (address := _address(item.addr.contents)) is not None:
                interface.addresses.append(address)
            entry = item.next
    finally:
        _libc.freeifaddrs(head)
    return list(found.values())


def _address(raw: _SockAddr) -> Address | None:
    """Layout after the family: port (2), IPv4 address (4); or port (2), flow (4), IPv6 address (16), scope (4)."""
    data = bytes(raw.data)
    if raw.family == socket.AF_INET:
        return Address(socket.inet_ntop(socket.AF_INET, data[2:6]))
    if raw.family == socket.AF_INET6:
        ip = socket.inet_ntop(socket.AF_INET6, data[6:22])
        return Address(ip, int.from_bytes(data[22:26], sys.byteorder))
    return None


# ------------------------------------------------------------------------------------------------------------- identity


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def network_id() -> str:
    """Equal for processes that share a network: same kernel, same network namespace (so the same loopback)."""
    return _digest(Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.stat("/proc/self/ns/net").st_ino)


def host_id() -> str:
    """Equal for processes that may share memory: same network, host name and user. Two namespaces are two hosts."""
    return _digest(network_id(), socket.gethostname(), os.geteuid())


# ------------------------------------------------------------------------------------------------------------ choosing


def _matching(found: Sequence[Interface], spec: str) -> list[Interface]:
    """Interfaces that a RINGLEADER_SOCKET_IFNAME names, in the order it names them."""
    exclude, spec = spec.startswith("^"), spec.removeprefix("^")
    exact, spec = spec.startswith("="), spec.removeprefix("=")
    patterns = [pattern.strip() for pattern in spec.split(",") if pattern.strip()]

    def fits(name: str, pattern: str) -> bool:
        return name == pattern if exact else name.startswith(pattern)

    if exclude:
        return [i for i in found if not any(fits(i.name, p) for p in patterns)]
    chosen = [i for p in patterns for i in found if fits(i.name, p)]
    return list({i.name: i for i in chosen}.values())


def _listing(found: Sequence[Interface]) -> str:
    return "; ".join(map(str, found))


def check_interface_choice(config: Config) -> list[Interface]:
    """The interfaces that the settings allow.

    Raises
    ------
    InvalidArgument
        If RINGLEADER_SOCKET_IFNAME names none; the message lists those that exist.
    """
    found = interfaces()
    if config.socket_ifname is None:
        return found
    allowed = _matching(found, config.socket_ifname)
    if not allowed:
        raise InvalidArgument(
            f"RINGLEADER_SOCKET_IFNAME={config.socket_ifname} fits no network interface of this host; there are: "
            f"{_listing(found)}"
        )
    return allowed


def _route_source(host: str, family: int) -> str | None:
    """Source address of the route to `host`: connecting a datagram socket looks the route up and sends nothing."""
    try:
        for info in socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM):
            with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
                probe.connect(info[4])
                return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None
    return None


def _default_route_interface() -> str | None:
    try:
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[1] == "00000000" and columns[7] == "00000000":
                return columns[0]
    except (OSError, IndexError):
        return None
    return None


def select(config: Config, route_to: str | None, several_hosts: bool) -> Selection:
    """Choose the interface through which peers reach this rank.

    The first of: the one that RINGLEADER_SOCKET_IFNAME names; loopback if all ranks share this host; the one that
    routes to the master; the one with the default route; the first real one; the first virtual one.

    Parameters
    ----------
    route_to
        Name or address of the master, or None.
    several_hosts
        Whether some rank does not share this host's loopback.

    Raises
    ------
    InvalidArgument
        If the explicit choice fits no interface.
    RendezvousError
        If there are several hosts and only loopback is left.
    """
    allowed = check_interface_choice(config)
    usable = [Interface(i.name, i.flags, _in_family(i.addresses, config)) for i in allowed if i.up]
    usable = [i for i in usable if i.addresses]
    if config.socket_ifname is not None and not config.socket_ifname.startswith("^"):
        if not usable:
            raise InvalidArgument(
                f"RINGLEADER_SOCKET_IFNAME={config.socket_ifname}: {_listing(allowed)} is down or has no address"
                f"{' of ' + config.socket_family if config.socket_family else ''}; there are: {_listing(interfaces())}"
            )
        return _selection(usable[0], "RINGLEADER_SOCKET_IFNAME names it")
    loopback = [i for i in usable if i.loopback]
    if not several_hosts and loopback:
        return _selection(loopback[0], "all ranks are on this host")
    outer = [i for i in usable if not i.loopback]
    if not outer:
        raise RendezvousError(
            "the ranks are on several hosts, but this host has no network interface except loopback that is up and has "
            f"an address (there are: {_listing(interfaces())}); set RINGLEADER_SOCKET_IFNAME to the one to use"
        )
    if route_to is not None:
        for family in {a.family: None for i in outer for a in i.addresses}:
            source = _route_source(route_to, family)
            for interface in outer:
                if any(a.ip == source for a in interface.addresses):
                    return _selection(interface, f"it routes to the master {route_to}", source)
    default = _default_route_interface()
    for interface in outer:
        if interface.name == default:
            return _selection(interface, "it has the default route")
    real = [i for i in outer if not i.virtual]
    if real:
        return _selection(real[0], "the first interface that is not virtual")
    return _selection(outer[0], "there are only virtual interfaces")


def _in_family(addresses: Sequence[Address], config: Config) -> list[Address]:
    return [a for a in addresses if config.socket_family in (None, a.family.name)]


def _selection(interface: Interface, why: str, first: str | None = None) -> Selection:
    """Order for the peers: the address that the route uses, then IPv4, IPv6, and link-local ones last."""
    ordered = sorted(interface.addresses, key=lambda a: (a.ip != first, a.link_local, a.family == socket.AF_INET6))
    return Selection(interface.name, tuple(ordered), why)


def listen_addresses(host: str, one_host: bool) -> list[str]:
    """Where the store's server listens so that everybody who resolves `host` reaches it.

    The addresses that `host` has on this machine; all addresses ("0.0.0.0" and "::") where other hosts must get in but
    the name resolves to loopback here (127.0.1.1 in /etc/hosts) or to no address of this machine (translated, virtual).

    Examples
    --------
    >>> listen_addresses("127.0.0.1", one_host=False)
    ['127.0.0.1']
    """
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RendezvousError(f"cannot resolve the master's name {host!r}: {error}; check MASTER_ADDR") from error
    resolved = list(dict.fromkeys(str(info[4][0]) for info in infos))
    own = {a.ip for i in interfaces() for a in i.addresses}
    literal = _is_literal(host) or host == "localhost"
    here = [ip for ip in resolved if ip.partition("%")[0] in own or _is_loopback(ip)]
    outside = [ip for ip in here if not _is_loopback(ip)]
    if here and (outside or one_host or literal):
        return here
    return ["0.0.0.0", "::"] if any(":" in ip for ip in own) else ["0.0.0.0"]


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
