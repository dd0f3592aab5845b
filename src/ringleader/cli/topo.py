"""``ringleader topo``: what this host or a cluster is made of."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from ringleader.errors import InvalidArgument
from ringleader.topology import Kind, Topology, detect, draw, generate, nccl_xml
from ringleader.topology.matrix import MAX_TEXT, matrix_of, read_matrix

__all__ = ["load", "run_topo"]


def load(source: str | None, root: Path | None) -> Topology:
    """The topology that a user means: a file, a name of `generate.make`, or this host (None).

    Raises
    ------
    InvalidArgument
        Neither a file that can be read as a topology, nor a name that is known.
    """
    if source is None:
        return detect.detect(root or "/")
    if root is not None:
        raise InvalidArgument(
            f"both {source!r} and --root {root} are given; --root is where the host's own /sys is looked for"
        )
    path = Path(source)
    if not path.exists():
        if "/" in source or path.suffix:
            raise InvalidArgument(
                f"there is no file {source!r}; expected a topology of NCCL (.xml), the output of `nvidia-smi topo -m`, "
                f"or one of {', '.join(generate.presets())}"
            )
        return generate.make(source)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT + 1)
    except OSError as error:
        raise InvalidArgument(f"{source}: cannot be read: {error.strerror}") from None
    if data.lstrip().startswith(b"<"):
        return nccl_xml.read_xml(data, path.name)
    try:
        return read_matrix(data.decode(errors="replace"), path.name).topology(path.name)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error}. What can be read: NCCL's topology XML, and what `nvidia-smi topo -m` prints"
        ) from None


def run_topo(
    console: Console,
    source: str | None,
    root: Path | None,
    matrix: bool,
    as_json: bool,
    svg: Path | None,
    xml: Path | None,
) -> None:
    """Show it as a tree, a matrix or JSON, and write what is asked for."""
    topology = load(source, root)
    if as_json:
        print(json.dumps(_facts(topology), indent=1))
    elif matrix:
        print(matrix_of(topology).text(), end="")
    else:
        console.print(draw.draw_tree(topology), highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not as_json:
        for note in topology.notes:
            console.print(f"note: {note}", highlight=False, markup=False, emoji=False, soft_wrap=True)
    for path, text in ((svg, draw.draw_svg), (xml, nccl_xml.write_xml)):
        if path is not None:
            path.write_text(text(topology), encoding="utf-8")


def _facts(topology: Topology) -> dict[str, object]:
    nodes = [
        {
            "id": node.id, "kind": str(node.kind), "parent": node.parent, "name": node.name, "index": node.index,
            "numa": node.numa, "address": node.address, "bytes_per_second": node.speed, "cpus": list(node.cpus),
            "facts": dict(node.facts),
        }
        for node in topology
    ]  # fmt: skip
    links = [
        {
            "a": link.a, "b": link.b, "kind": str(link.kind), "bytes_per_second": link.bandwidth,
            "seconds": link.latency, "count": link.count, "duplex": link.duplex,
        }
        for link in topology.links
    ]  # fmt: skip
    hosts = len(topology.of(Kind.HOST))
    return {
        "name": topology.name,
        "hosts": hosts,
        "ranks": topology.ranks,
        "nodes": nodes,
        "links": links,
        "notes": topology.notes,
    }
