"""What a job runs on: a model of hosts, devices and networks, read from files, found on this host, or made to order.

>>> from ringleader import topology
>>> t = topology.generate.ethernet_racks(topology.generate.cpu_host(), hosts=2)
>>> t.distance(t.ranks[0], t.ranks[-1]).path.name
'NET'
"""

from __future__ import annotations

from ringleader._lazy import lazily
from ringleader.topology.matrix import Matrix, matrix_of, read_matrix
from ringleader.topology.model import Distance, Kind, Link, LinkKind, Node, PathClass, Topology, pcie_bandwidth

__all__ = [
    "Distance", "Kind", "Link", "LinkKind", "Matrix", "Node", "PathClass", "Topology", "dump_xml", "load_xml",
    "matrix_of", "pcie_bandwidth", "read_matrix", "read_xml", "write_xml",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__, dict.fromkeys(("dump_xml", "load_xml", "read_xml", "write_xml"), "ringleader.topology.nccl_xml")
)
