"""Which interface and addresses are chosen: on this machine's real interfaces, and on described ones."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from ringleader.errors import InvalidArgument, RendezvousError
from ringleader.runtime import addresses
from ringleader.runtime.addresses import Address, Interface, host_id, interfaces, listen_addresses, network_id, select
from ringleader.runtime.config import Config

UP, LOOPBACK = 0x1, 0x8


def interface(name: str, *ips: str, flags: int = UP) -> Interface:
    return Interface(name, flags, [Address(ip, 9 if ip.startswith("fe80") else 0) for ip in ips])


LO = interface("lo", "127.0.0.1", "::1", flags=UP | LOOPBACK)
DOCKER = interface("docker0", "172.17.0.1")
DOWN = interface("eth9", "10.9.9.9", flags=0)
ETH0 = interface("eth0", "fe80::5", "10.0.0.5", "fd00::5")
ETH1 = interface("eth1", "10.1.0.5")
BARE = interface("eth5")


@pytest.fixture
def machine(monkeypatch):
    """A machine with the given interfaces; the route to a host leaves by the address `routes[host]`."""

    def describe(*present: Interface, routes: dict[str, str] | None = None, default: str | None = None) -> None:
        monkeypatch.setattr(addresses, "interfaces", lambda: list(present))
        monkeypatch.setattr(addresses, "_route_source", lambda host, family: (routes or {}).get(host))
        monkeypatch.setattr(addresses, "_default_route_interface", lambda: default)

    return describe


def test_real_interfaces_are_those_of_the_kernel():
    found = {i.name: i for i in interfaces()}
    assert set(found) == {path.name for path in Path("/sys/class/net").iterdir()}
    loopback = next(i for i in found.values() if i.loopback)
    assert loopback.up and Address("127.0.0.1") in loopback.addresses
    listed = Path("/proc/net/if_inet6").read_text().split("\n") if Path("/proc/net/if_inet6").exists() else []
    theirs = {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])) for line in listed if line}
    assert {a.ip for i in found.values() for a in i.addresses if a.family == socket.AF_INET6} == theirs
    for i in found.values():
        for a in i.addresses:
            assert a.scope == (socket.if_nametoindex(i.name) if a.link_local and ":" in a.ip else 0)


def test_addresses_can_be_bound():
    for i in interfaces():
        for address in i.addresses:
            with socket.socket(address.family) as sock:
                sock.bind(address.sockaddr(0))


def test_one_host_uses_loopback(machine):
    machine(LO, ETH0)
    chosen = select(Config(), None, several_hosts=False)
    assert (chosen.interface, chosen.addresses) == ("lo", (Address("127.0.0.1"), Address("::1")))


def test_the_route_to_the_master_decides_and_its_address_comes_first(machine):
    machine(LO, ETH0, ETH1, routes={"m": "10.1.0.5", "m6": "fd00::5"}, default="eth0")
    assert select(Config(), "m", True).interface == "eth1"
    chosen = select(Config(), "m6", True)
    assert [a.ip for a in chosen.addresses] == ["fd00::5", "10.0.0.5", "fe80::5"]
    assert "routes to the master m6" in chosen.why


def test_master_that_resolves_to_loopback_is_not_followed(machine):
    machine(LO, DOCKER, ETH0, routes={"me": "127.0.1.1"}, default="eth0")
    assert select(Config(), "me", True).interface == "eth0"


def test_virtual_interfaces_come_last(machine):
    machine(LO, DOCKER, interface("veth12", "10.2.0.1"), interface("tun0", "10.8.0.1"), DOWN, BARE, ETH1)
    assert select(Config(), None, True).interface == "eth1"
    machine(LO, DOCKER)
    assert select(Config(), None, True).interface == "docker0"
    machine(LO, DOCKER, ETH1, routes={"m": "172.17.0.1"})
    assert select(Config(), "m", True).interface == "docker0"


def test_only_loopback_left_with_several_hosts(machine):
    machine(LO, DOWN, BARE)
    with pytest.raises(RendezvousError, match="RINGLEADER_SOCKET_IFNAME") as caught:
        select(Config(), None, True)
    assert "eth9 (10.9.9.9, down)" in str(caught.value) and "eth5 (no address)" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("eth", "eth0"),
        ("eth1", "eth1"),
        ("=eth1,eth0", "eth1"),
        ("docker", "docker0"),
        ("lo", "lo"),
        ("^eth0,docker", "eth1"),
    ],
)
def test_explicit_choice(machine, spec, chosen):
    machine(LO, DOCKER, ETH0, ETH1, routes={"m": "10.0.0.5"})
    assert select(Config(socket_ifname=spec), "m", True).interface == chosen


@pytest.mark.parametrize("spec", ["nope0", "=eth", "^lo,docker,eth"])
def test_wrong_explicit_choice_lists_the_interfaces(machine, spec):
    machine(LO, DOCKER, ETH0)
    with pytest.raises(InvalidArgument, match=re.escape(f"RINGLEADER_SOCKET_IFNAME={spec}")) as caught:
        select(Config(socket_ifname=spec), None, True)
    assert "eth0 (fe80::5, 10.0.0.5, fd00::5)" in str(caught.value)


def test_explicit_choice_that_is_down_or_has_no_such_family(machine):
    machine(LO, DOWN, ETH1)
    with pytest.raises(InvalidArgument, match="down or has no address"):
        select(Config(socket_ifname="eth9"), None, True)
    with pytest.raises(InvalidArgument, match="no address of AF_INET6"):
        select(Config(socket_ifname="eth1", socket_family="AF_INET6"), None, True)


def test_family(machine):
    machine(LO, ETH0)
    assert [a.ip for a in select(Config(socket_family="AF_INET"), None, True).addresses] == ["10.0.0.5"]
    assert [a.ip for a in select(Config(socket_family="AF_INET6"), None, True).addresses] == ["fd00::5", "fe80::5"]
    assert select(Config(socket_family="AF_INET6"), None, False).addresses == (Address("::1"),)


def test_host_without_ipv6(machine):
    machine(interface("lo", "127.0.0.1", flags=UP | LOOPBACK), ETH1)
    assert select(Config(), None, False).addresses == (Address("127.0.0.1"),)
    assert listen_addresses("203.0.113.7", one_host=False) == ["0.0.0.0"]


def test_where_the_store_listens(machine, monkeypatch):
    machine(LO, ETH0)
    assert listen_addresses("127.0.0.1", one_host=False) == ["127.0.0.1"]
    assert listen_addresses("10.0.0.5", one_host=False) == ["10.0.0.5"]
    assert listen_addresses("::1", one_host=False) == ["::1"]
    # Not an address of this machine (translated): everywhere, the secret guards it.
    assert listen_addresses("203.0.113.7", one_host=False) == ["0.0.0.0", "::"]

    def resolve(host, *_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # A host name that /etc/hosts maps to 127.0.1.1: other hosts resolve it to something else.
    assert listen_addresses("myhost", one_host=False) == ["0.0.0.0", "::"]
    assert listen_addresses("myhost", one_host=True) == ["127.0.1.1"]


def test_unresolvable_master():
    with pytest.raises(RendezvousError, match="MASTER_ADDR"):
        listen_addresses("no-such-host.invalid", one_host=False)


def test_identities_are_stable_and_differ():
    assert host_id() == host_id() and network_id() == network_id() and host_id() != network_id()
