"""What it costs to send, beside the links' own latency and bandwidth: protocols, processors, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringleader._names import unknown
from ringleader.errors import InvalidArgument
from ringleader.simulate.routes import Medium
from ringleader.tune.model import DEFAULT, Model

__all__ = ["Costs", "engine", "nccl"]


@dataclass(frozen=True)
class Costs:
    """Costs of one way of sending; seconds, bytes per second, and shares of a link's bandwidth.

    Attributes
    ----------
    name
        What results call it.
    start
        Seconds of an operation, however small.
    hop
        Seconds that a transfer takes on each medium, beside the latency of the links.
    efficiency
        Share of the links' bandwidth that data get, by medium; the rest are headers, flags and gaps.
    copy
        Bytes per second that a rank copies to others of its NUMA node or device.
    reduce
        Bytes per second that a rank combines; infinite: while they arrive.
    message
        Seconds of its processor that each end of a message between hosts takes.
    """

    name: str
    start: float = 0.0
    hop: Mapping[Medium, float] = field(default_factory=dict)
    efficiency: Mapping[Medium, float] = field(default_factory=dict)
    copy: float = 20e9
    reduce: float = float("inf")
    message: float = 0.0

    def __post_init__(self) -> None:
        for what, value, low in (("start", self.start, 0.0), ("message", self.message, 0.0)):
            if not low <= value < float("inf"):
                raise InvalidArgument(f"{what} of costs {self.name!r} is {value}; expected seconds from 0")
        for what, value in (("copy", self.copy), ("reduce", self.reduce)):
            if not value > 0:
                raise InvalidArgument(f"{what} of costs {self.name!r} is {value}; expected bytes per second above 0")
        for medium, share in self.efficiency.items():
            if not 0 < share <= 1:
                raise InvalidArgument(
                    f"efficiency of costs {self.name!r} on {medium.name.lower()} is {share}; expected 0 to 1"
                )


# NCCL 2.2x, its tuning constants: seconds of an operation and of a hop in a ring, by protocol; and what its topology
# search takes for a link's bandwidth over the line rate (NVLink 20 of 25 GB/s, PCIe 12 of 15.75). Network adapters
# are taken to reach 97% (packet headers), and the proxy thread that feeds them to take half a microsecond for each end
# of a message: it is what keeps algorithms of many messages at a time from being free.
_NCCL: Mapping[str, tuple[float, float, float, float, float]] = {
    # start, NVLink, PCIe, network, share of the bytes that are data
    "LL": (6.6e-6, 0.6e-6, 1.0e-6, 2.7e-6, 0.5),
    "LL128": (14.0e-6, 1.9e-6, 2.5e-6, 4.0e-6, 120 / 128),
    "Simple": (8.4e-6, 3.4e-6, 5.7e-6, 14.0e-6, 1.0),
}


def nccl(protocol: str) -> Costs:
    """What NCCL's own model says of a protocol: ``LL``, ``LL128`` or ``Simple``.

    References
    ----------
    NVIDIA, NCCL, src/graph/tuning.cc and src/graph/topo.h (constants of its tuning model).

    Examples
    --------
    >>> nccl("LL").start < nccl("Simple").start
    True
    """
    found = next((name for name in _NCCL if name.lower() == protocol.lower()), None)
    if found is None:
        raise InvalidArgument(unknown("protocol", protocol, _NCCL))
    start, link, bus, network, share = _NCCL[found]
    return Costs(
        f"NCCL {found}",
        start,
        {Medium.MEMORY: link, Medium.LINK: link, Medium.BUS: bus, Medium.NETWORK: network},
        {Medium.LINK: 0.8 * share, Medium.BUS: 0.76 * share, Medium.NETWORK: 0.97 * share},
        copy=600e9 * share,
        message=0.5e-6,
    )


def engine(model: Model = DEFAULT) -> Costs:
    """What this library's engine costs on a host's cores, from the numbers of `ringleader.tune`.

    The bandwidth of the network is the topology's; the model's own is not used.

    Examples
    --------
    >>> engine().hop[Medium.MEMORY] < engine().hop[Medium.NETWORK]
    True
    """
    p = model.parameters
    memory = p.shm_hop + p.shm_op
    return Costs(
        f"engine, {model.source} numbers",
        p.call,
        {Medium.MEMORY: memory, Medium.LINK: memory, Medium.BUS: memory, Medium.NETWORK: p.net_hop},
        {Medium.NETWORK: 0.95},
        copy=1 / p.push_byte,
        reduce=1 / p.reduce_byte,
        message=p.net_message,
    )
