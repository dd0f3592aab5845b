"""Forms a group: from a store that all ranks can reach to connected descriptors in the native core.

Three rounds through the store (`meeting.py`):

1. cards: who am I - host, process, what I may use. All ranks compute the same layout from the same cards.
2. ends: where I listen (only where a connection is really needed) and my control block.
   Then connections are made and authenticated, the higher rank to the lower.
3. ready: nobody returns before all are connected, so a group is formed on all ranks or on none.

A rank that fails says so in the store, and all others raise its reason instead of waiting for their limit.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ringleader import _core
from ringleader.errors import InvalidArgument, RendezvousError, RingleaderError
from ringleader.runtime import processes
from ringleader.runtime.addresses import Address, Selection, select
from ringleader.runtime.binding import NONE, Binding, bind, format_cores
from ringleader.runtime.cards import (
    Card,
    Cohabitants,
    End,
    agreed_workers,
    cohabitants,
    my_card,
    node_ids,
    read_card,
    read_end,
)
from ringleader.runtime.config import Config, logger
from ringleader.runtime.environment import format_hostport
from ringleader.runtime.handshake import Purpose
from ringleader.runtime.job import Job, open_job
from ringleader.runtime.links import Key, Target, establish
from ringleader.runtime.meeting import Meeting, Reported
from ringleader.runtime.store import Store, no_longer_than
from ringleader.runtime.tuning import Guide, check_agreement, tell, understand
from ringleader.runtime.ucx import open_worker

__all__ = ["Card", "Connected", "Job", "connect_group", "node_ids", "open_job"]


@dataclass
class Connected:
    """A group that was formed; `core` is connected."""

    core: _core.Communicator
    rank: int
    size: int
    nodes: list[int]
    names: list[str]
    hostnames: list[str]
    channels: int
    workers: int  # of every rank: threads beside each other, see `workers`
    guide: Guide
    interface: Selection | None = None
    binding: Binding | None = None  # of the thread that formed it, if it was bound for it
    beside: tuple[_core.Communicator, ...] = ()  # of the further workers
    extras: list[Any] = field(default_factory=list)  # what each rank's caller told the others
    members: list[int] = field(default_factory=list)  # ranks of the job

    @property
    def local_ranks(self) -> list[int]:
        """Ranks that share memory with this one, itself included."""
        return [r for r in range(self.size) if self.nodes[r] == self.nodes[self.rank]]


def connect_group(
    store: Store,
    rank: int,
    size: int,
    *,
    group_id: str,
    secret: bytes,
    config: Config,
    timeout: float,
    native_comm_factory: Callable[[Cohabitants], _core.Communicator],
    route_to: str | None = None,
    watch: Callable[[], None] | None = None,
    told: Mapping[str, Any] | None = None,
    extra: Any = None,
) -> Connected:
    """Form a group of `size` ranks; every member calls it with the same `group_id`.

    Who returns needs nobody any more: the last step is an answer of rank 0 that all wait for. So whatever a member does
    afterwards - leave, abort, die - the others return as well.

    Parameters
    ----------
    store
        Reached by all members.
    group_id
        Names this group in the store; never used twice in one store.
    secret
        At least 16 bytes, equal on all members.
    timeout
        Seconds for everything.
    native_comm_factory
        Called once with the ranks of this host, this thread being bound; makes the unconnected native communicator.
    route_to
        Name or address of the master host: the interface that routes to it is used.
    watch
        Called now and then while waiting; raises if a member is known to be dead.
    told
        What the job's rank 0 has told about the choice of algorithms, if this is not the job's first group.
    extra
        What JSON can hold, for the callers of all ranks: `Connected.extras`.

    Raises
    ------
    CollectiveTimeout
        Naming the ranks that did not arrive.
    PeerLost
        Naming a rank that died.
    RendezvousError, InvalidArgument, OutOfMemory
        On all ranks if one of them cannot take part; the message tells why.
    """
    meeting = Meeting(store, group_id, rank, size, timeout, watch)
    with contextlib.ExitStack() as undo, no_longer_than(meeting.deadline):
        try:
            connected = _form(meeting, secret, config, native_comm_factory, route_to, undo, told, extra)
        except BaseException as error:
            cause = meeting.cause_of(error) if size > 1 else error
            clear = _clear(cause, rank)
            meeting.give_up(clear)
            if isinstance(clear, Reported):
                raise clear.error from None
            if clear is error:
                raise
            raise clear from error
        undo.pop_all()
    return connected


def _clear(error: BaseException, rank: int) -> BaseException:
    """An operating system's error, told as one of ours."""
    if not isinstance(error, OSError) or isinstance(error, RingleaderError):
        return error
    remedy = "; raise `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return RendezvousError(f"rank {rank} failed while the group was formed: {error}{remedy}", (rank,))


def _form(
    meeting: Meeting,
    secret: bytes,
    config: Config,
    native_comm_factory: Callable[[Cohabitants], _core.Communicator],
    route_to: str | None,
    undo: contextlib.ExitStack,
    told: Mapping[str, Any] | None,
    extra: Any,
) -> Connected:
    rank, size = meeting.rank, meeting.size
    processes.expect_ranks(size)
    meeting.doing = "told what it can do"
    card = my_card(rank, config, (told or tell(config)) if rank == 0 else None, extra)
    cards = [read_card(raw) for raw in meeting.gather("cards", asdict(card))]
    # Choices of algorithms go by the cores that the ranks of rank 0's host have together, not by its own alone.
    shared = {**(cards[0].told or {}), "cores": cohabitants(cards, 0).cores}
    guide = understand(shared, config, len({card.network for card in cards}))
    nodes = node_ids(cards)
    if len(set(nodes)) > 1 and any(card.transport == "shm" for card in cards):
        raise InvalidArgument(
            "RINGLEADER_TRANSPORT=shm, but not all ranks can share memory: "
            f"{'; '.join(f'{c.name} on node {n}' for c, n in zip(cards, nodes, strict=True))}"
        )
    if len(set(nodes)) > 1 and len({card.net for card in cards}) > 1:
        raise InvalidArgument(
            "the ranks disagree about RINGLEADER_NET (or RINGLEADER_TRANSPORT): "
            f"{'; '.join(f'{c.name} uses {c.net}' for c in cards)}"
        )
    # Each rank cuts operations into windows by its own setting, and reads those of the others at the same places.
    if other := next((card for card in cards if card.buffsize != cards[0].buffsize), None):
        raise InvalidArgument(
            "the ranks disagree about RINGLEADER_BUFFSIZE: "
            f"{cards[0].name} has {cards[0].buffsize} bytes, {other.name} has {other.buffsize}; give all ranks the same"
        )
    plan = _Plan(cards, nodes, rank)
    ucx = open_worker(config) if plan.remote and config.network == "ucx" else None
    here = cohabitants(cards, rank)
    binding = _bound(cards[rank], here, undo)
    native = native_comm_factory(here)
    undo.callback(native.close, 0.0)
    with contextlib.ExitStack() as listening:
        unix, tcp, selection = _listen(plan, config, route_to, listening)
        mine = End(
            native.control_offset(),
            unix.getsockname()[1:].decode() if unix is not None else None,
            tuple((a.ip, int(a.scope != 0), sock.getsockname()[1]) for a, sock in tcp),
            selection.interface if selection is not None else None,
            ucx.address.hex() if ucx is not None else None,
        )
        meeting.doing = "told where it listens"
        ends = [read_end(raw) for raw in meeting.gather("ends", asdict(mine))]
        meeting.doing = "made connections"
        _connect_processes(plan, ends, unix, secret, meeting)
        sockets = _connect_network(plan, ends, [sock for _, sock in tcp], selection, secret, meeting, undo)
    peers = [
        processes.wait_for_process(bytes.fromhex(card.identity), meeting.left, meeting.check)
        if nodes[card.rank] == nodes[rank]
        else None
        for card in cards
    ]
    names = [card.name for card in cards]
    descriptors = [[sock.detach() for sock in row] for row in sockets]  # the native core owns them from here on
    given: tuple[Any, ...] = (nodes, peers, [end.control_offset for end in ends], descriptors, names)
    if ucx is not None:
        given += (ucx, [bytes.fromhex(end.ucx or "") for end in ends], plan.channels)
    native.connect(*given)
    meeting.doing = "was connected"
    check_agreement([told["digest"] for told in meeting.gather("ready", {"digest": guide.digest})], names)
    meeting.finish()
    logger("INIT").info(
        "group %r: rank %d of %d, node %d with ranks on %d node(s)",
        meeting.group,
        rank,
        size,
        nodes[rank],
        len(set(nodes)),
    )
    workers = agreed_workers(cards, len(set(nodes)))
    hostnames = [card.hostname for card in cards]
    return Connected(
        native, rank, size, nodes, names, hostnames, plan.channels, workers, guide, selection, binding,
        extras=[card.extra for card in cards],
    )  # fmt: skip


def _bound(card: Card, here: Cohabitants, undo: contextlib.ExitStack) -> Binding | None:
    """Bind this thread as its card says, before the native communicator and its threads are made."""
    if card.bind == NONE:
        return None
    cores = here.cores_of(card.rank)
    binding = bind(cores, card.bind, card.name)
    if binding is not None:
        undo.callback(binding.release)
    logger("INIT").info("%s is bound to cores %s (RINGLEADER_BIND=%s)", card.name, format_cores(cores), card.bind)
    return binding


@dataclass
class _Plan:
    """Which connections this rank needs; a function of the cards, so both ends of each agree."""

    cards: list[Card]
    nodes: list[int]
    rank: int
    # Processes of this node with which a Unix socket must be made: identity -> rank that speaks for the process.
    processes: dict[str, int] = field(default_factory=dict)
    remote: list[int] = field(default_factory=list)
    channels: int = 1

    def __post_init__(self) -> None:
        self.channels = min(card.channels for card in self.cards)
        self.remote = [r for r in range(len(self.cards)) if self.nodes[r] != self.nodes[self.rank]]
        # Ranks that are threads of one process share its socket: the lowest speaks for it.
        speakers: dict[str, Card] = {}
        for card in self.cards:
            if self.nodes[card.rank] == self.nodes[self.rank]:
                speakers.setdefault(card.identity, card)
        me = speakers[self.cards[self.rank].identity]
        if me.rank != self.rank:
            return
        for card in speakers.values():
            # Both sides must still hold the old connection, else both make a new one.
            met = card.identity in me.known and me.identity in card.known
            if card is not me and not met:
                self.processes[card.identity] = card.rank

    @property
    def several_hosts(self) -> bool:
        """Whether loopback does not reach everybody."""
        return len({card.network for card in self.cards}) > 1

    def network_keys(self, peer: int) -> list[Key]:
        """Connections with a rank of another node, in the order in which the native core takes them."""
        # UCX makes the data connections itself.
        sockets = 0 if self.cards[self.rank].net == "ucx" else self.channels
        data = [Key(peer, Purpose.DATA, index) for index in range(sockets)]
        return [Key(peer, Purpose.CONTROL), Key(peer, Purpose.P2P), *data]


def _listen(
    plan: _Plan, config: Config, route_to: str | None, stack: contextlib.ExitStack
) -> tuple[socket.socket | None, list[tuple[Address, socket.socket]], Selection | None]:
    """Bind before anything is published: a free port found now and bound later could be taken in between."""
    backlog = min(4096, 128 + len(plan.cards) * (2 + plan.channels))
    unix = None
    if any(peer > plan.rank for peer in plan.processes.values()):
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix.bind(f"\0ringleader-{secrets.token_hex(16)}")
        unix.listen(backlog)
        unix.setblocking(False)
    if not plan.remote:
        return unix, [], None
    selection = select(config, route_to, plan.several_hosts)
    logger("NET").info("%s uses %s: %s", plan.cards[plan.rank].name, selection, selection.why)
    tcp = []
    for address in selection.addresses:
        sock = stack.enter_context(socket.socket(address.family, socket.SOCK_STREAM))
        try:
            sock.bind(address.sockaddr(0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or len(selection.addresses) == 1:
                raise
            # A fresh IPv6 address is "tentative" for a second or two, until the kernel knows that nobody else has it.
            logger("NET").info("%s is not ready for use (%s)", address, error.strerror)
            continue
        sock.listen(backlog)
        sock.setblocking(False)
        tcp.append((address, sock))
    if not tcp:
        raise RendezvousError(f"no address of {selection} can be used yet: {', '.join(map(str, selection.addresses))}")
    return unix, tcp, selection


def _connect_processes(
    plan: _Plan, ends: Sequence[End], unix: socket.socket | None, secret: bytes, meeting: Meeting
) -> None:
    """Meet the processes of this host that are not known yet."""
    if not plan.processes:
        return
    connect = {}
    for peer in plan.processes.values():
        if peer < plan.rank:
            name = ends[peer].unix
            assert name is not None
            connect[Key(peer, Purpose.SHM)] = [Target(socket.AF_UNIX, "\0" + name, f"@{name}")]
    socks = establish(
        [unix] if unix is not None else [],
        {Key(peer, Purpose.SHM) for peer in plan.processes.values() if peer > plan.rank},
        connect,
        secret=secret, group=meeting.group, rank=plan.rank, timeout=meeting.left, check=meeting.check,
        advice="if these processes cannot share memory (separate containers), set RINGLEADER_SHM_DISABLE=1",
    )  # fmt: skip
    by_identity = {bytes.fromhex(plan.cards[key.rank].identity): sock for key, sock in socks.items()}
    processes.exchange_arenas(by_identity, meeting.left, meeting.check)


def _connect_network(
    plan: _Plan,
    ends: Sequence[End],
    listeners: Sequence[socket.socket],
    selection: Selection | None,
    secret: bytes,
    meeting: Meeting,
    undo: contextlib.ExitStack,
) -> list[list[socket.socket]]:
    """Per rank its connected sockets, none for those of this node. `undo` closes them until they are detached."""
    rows: list[list[socket.socket]] = [[] for _ in plan.cards]
    if not plan.remote:
        return rows
    assert selection is not None
    lower = [peer for peer in plan.remote if peer < plan.rank]
    connect = {
        key: t for peer in lower for t in [_targets(plan, ends, peer, selection)] for key in plan.network_keys(peer)
    }
    accept = {key for peer in plan.remote if peer > plan.rank for key in plan.network_keys(peer)}
    socks = establish(
        listeners, accept, connect,
        secret=secret, group=meeting.group, rank=plan.rank, timeout=meeting.left, check=meeting.check,
        advice=f"this rank listens at {selection}; RINGLEADER_SOCKET_IFNAME chooses another interface",
    )  # fmt: skip
    for sock in socks.values():
        undo.callback(sock.close)
        _tune(sock)
    for peer in plan.remote:
        rows[peer] = [socks[key] for key in plan.network_keys(peer)]
    return rows


def _targets(plan: _Plan, ends: Sequence[End], peer: int, selection: Selection) -> list[Target]:
    """Where to try to reach a peer: its addresses of a family that this rank has as well, in its order."""
    own = {a.family for a in selection.addresses}
    scope = next((a.scope for a in selection.addresses if a.scope), 0)
    targets = []
    for ip, link_local, port in ends[peer].tcp:
        # A link-local address is valid on the link between the two hosts, which here has this rank's number.
        address = Address(ip, scope if link_local else 0)
        if address.family in own and (not link_local or scope):
            targets.append(Target(address.family, address.sockaddr(port), format_hostport(ip, port)))
    if not targets:
        theirs = ", ".join(ip for ip, _, _ in ends[peer].tcp)
        raise RendezvousError(
            f"{plan.cards[plan.rank].name} and {plan.cards[peer].name} have no address family in common: {selection} "
            f"against {ends[peer].interface} ({theirs}); RINGLEADER_SOCKET_IFNAME and RINGLEADER_SOCKET_FAMILY choose",
            (plan.rank, peer),
        )
    return targets


def _tune(sock: socket.socket) -> None:
    """No delay for small messages; notice within half a minute that a host has vanished without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
