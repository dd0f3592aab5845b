"""What a candidate moves between nodes, step by step, and what the cost model says that all else takes.

A candidate is an algorithm with a wire format, or a compressor. Its load does not depend on the network; `estimates`
turns it into seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ringleader.adapt.formats import Format
from ringleader.algorithms import build
from ringleader.runtime.compressed import exchanges
from ringleader.tune.cost import features, work_of
from ringleader.tune.model import Model, Parameters

__all__ = ["Candidate", "Load", "load_of"]

# Bytes of a format over those of float32.
_RATIO: Final = {"f32": 1.0, "f16": 0.5, "bf16": 0.5, "int8": 129 / 512, "onebit": 17 / 512}
_CODEC = 0.3e-9  # seconds to encode and decode a byte of float32; measured ones take its place
_WIRE = Parameters.names().index("wire_byte")


@dataclass(frozen=True)
class Candidate:
    """A way to do an all-reduce.

    Attributes
    ----------
    format
        How values travel.
    algorithm
        Spec of the algorithm; empty for a compressor, which brings its own.
    preference
        Place of the format in the user's list; lower is preferred.
    """

    format: Format
    algorithm: str
    preference: int

    @property
    def name(self) -> str:
        """For people."""
        if self.format.compressor is not None:
            return self.format.name
        return f"{self.algorithm} {self.format.name}"


@dataclass(frozen=True)
class Load:
    """Bytes between nodes, and the rest.

    Attributes
    ----------
    steps
        For each different step: how often it occurs, and its messages ``(source, destination, bytes)``, with one entry
        for each two ranks. Messages of a step travel at the same time, steps one after the other.
    rest
        Seconds that the model gives for everything but bytes on the wire.
    fan
        Most ranks from which one receives in a step: so many share its line.
    """

    steps: tuple[tuple[int, tuple[tuple[int, int, float], ...]], ...]
    rest: float
    fan: int


def load_of(candidate: Candidate, nbytes: int, nodes: Sequence[int], model: Model) -> Load:
    """The load of an all-reduce of `nbytes` bytes of float32 (or of any type, if the format is exact).

    Examples
    --------
    >>> from ringleader.adapt.formats import EXACT
    >>> from ringleader.tune.model import DEFAULT
    >>> load = load_of(Candidate(EXACT, "ring", 0), 3000, [0, 1, 2], DEFAULT)
    >>> load.fan, [(times, messages[0]) for times, messages in load.steps]
    (1, [(4, (0, 1, 1000.0))])
    """
    if candidate.format.compressor is not None:
        return _compressed(candidate.format.compressor, nbytes, nodes, model)
    ratio = _RATIO[candidate.format.wire]
    codec = 0.0 if ratio == 1.0 else _CODEC * nbytes
    return _scheduled(candidate.algorithm, nbytes, nodes, model, ratio, codec)


def _scheduled(algorithm: str, nbytes: float, nodes: Sequence[int], model: Model, ratio: float, more: float) -> Load:
    schedule = build("all_reduce", algorithm, len(nodes), nodes=nodes)
    table, place = schedule.table, np.asarray(nodes)
    crossing = table[place[table["src_rank"]] != place[table["dst_rank"]]]
    share = nbytes * ratio / schedule.chunks
    steps: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for step, src, dst, count in zip(
        crossing["step"].tolist(), crossing["src_rank"].tolist(), crossing["dst_rank"].tolist(),
        crossing["count"].tolist(), strict=True,
    ):  # fmt: skip
        steps[step][src, dst] += count * share
    counted = features(work_of(schedule, nodes), int(nbytes), model) * np.array(model.parameters.values())
    return _load(steps.values(), float(counted.sum() - counted[_WIRE]) + more)


def _load(steps: Any, rest: float) -> Load:
    kinds = Counter(tuple((src, dst, nbytes) for (src, dst), nbytes in sorted(step.items())) for step in steps)
    fan = 1
    for messages in kinds:
        fan = max([fan, *Counter(dst for _, dst, _ in messages).values()])
    return Load(tuple((times, messages) for messages, times in kinds.items()), rest, fan)


def _compressed(compressor: Any, nbytes: int, nodes: Sequence[int], model: Model) -> Load:
    """What `ringleader.runtime.compressed` sends, one exchange after the other."""
    n, elements = len(nodes), nbytes // 4
    parameters = model.parameters
    steps: list[dict[tuple[int, int], float]] = []
    rest = nbytes * compressor.seconds_per_byte
    for collective, total in exchanges(compressor, elements, n):
        if collective == "all_reduce":
            load = _scheduled("two_shot", total, nodes, model, 1.0, 0.0)
            steps += [{(a, b): each for a, b, each in messages} for times, messages in load.steps for _ in range(times)]
            rest += load.rest
            continue
        each = total / n  # of a block: each goes from its rank to every other one
        steps.append({(a, b): each for a in range(n) for b in range(n) if nodes[a] != nodes[b]})
        rest += parameters.call + parameters.net_hop + 2 * (n - 1) * parameters.net_message
        rest += 2 * (n - 1) * each * parameters.net_byte
    return _load([step for step in steps if step], rest)
