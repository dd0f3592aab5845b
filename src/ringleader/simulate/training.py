"""How long a training step takes on a cluster: a model's gradients, the time to compute them, and their all-reduces.

The step is played by `ringleader.overlap`, the model that also plans buckets while training; what an all-reduce costs
comes from `Simulation`. So a plan made here is the plan that `ringleader.torch.DataParallel` would make at these times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ringleader.errors import InvalidArgument
from ringleader.overlap import BucketPlan, Conditions, CostCurve, Timeline, fixed_buckets, plan_buckets, plan_of
from ringleader.schedule import Schedule
from ringleader.simulate.collective import Simulation
from ringleader.simulate.routes import Fabric
from ringleader.topology import Topology, generate

__all__ = ["Layout", "Option", "Step", "frontier", "plan_cluster", "simulate_step"]

_BACKWARD = 2 / 3  # of a step's computing: the gradients of the inputs and of the weights, each as long as the forward
_SMALLEST = 1 << 10


@dataclass(frozen=True)
class Layout:
    """The gradients of a model, in the order in which the backward pass makes them.

    Attributes
    ----------
    name
        Of the model.
    names, elements
        Of each gradient: its parameter's name and its number of elements.

    Examples
    --------
    >>> layout = Layout("two layers", ("head", "body"), (1000, 3000))
    >>> layout.parameters
    4000
    >>> line = layout.timeline(0.3, element_bytes=2)
    >>> line.nbytes.tolist(), [round(t, 3) for t in line.ready.tolist()], round(line.forward, 3)
    ([2000, 6000], [0.05, 0.2], 0.1)
    """

    name: str
    names: tuple[str, ...]
    elements: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.elements) or min(self.elements) < 1:
            raise InvalidArgument(
                f"layout {self.name!r} has {len(self.names)} names and {len(self.elements)} sizes; expected as many of "
                "each, at least one, and 1 element or more in each"
            )

    @property
    def parameters(self) -> int:
        """Elements of all gradients."""
        return sum(self.elements)

    @classmethod
    def read(cls, path: str | Path) -> Layout:
        """A JSON file: a list of ``[name, shape]``, in the order of the backward pass.

        Raises
        ------
        InvalidArgument
            The file cannot be read, or holds something else.
        """
        path = Path(path)
        expected = 'expected a JSON list of [name, shape], as in [["head.weight", [1000, 2048]]], last layer first'
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(f"{path}: cannot be read: {error.strerror}; {expected}") from None
        except ValueError as error:
            raise InvalidArgument(f"{path}: is no JSON: {error}; {expected}") from None
        names, elements = [], []
        for entry in document if isinstance(document, list) else [document]:
            match entry:
                case [str(name), [*shape]] if all(type(side) is int and side > 0 for side in shape):
                    names.append(name)
                    elements.append(int(np.prod(shape, dtype=object)))
                case _:
                    raise InvalidArgument(f"{path}: holds {str(entry)[:60]!r}; {expected}")
        return cls(path.stem, tuple(names), tuple(elements))

    @classmethod
    def of(cls, module: Any, name: str | None = None) -> Layout:
        """The layout of a torch module: parameters that need gradients, the last registered first.

        Raises
        ------
        InvalidArgument
            No parameter needs a gradient.

        Examples
        --------
        >>> from torch import nn
        >>> Layout.of(nn.Linear(4, 2)).elements
        (2, 8)
        """
        found = [(key, int(value.numel())) for key, value in module.named_parameters() if value.requires_grad][::-1]
        return cls(name or type(module).__name__, tuple(key for key, _ in found), tuple(count for _, count in found))

    def compute_seconds(self, tokens: float, flops: float) -> float:
        """Seconds in which one rank computes a step: six operations for each parameter and token.

        Parameters
        ----------
        tokens
            Tokens in the rank's batch.
        flops
            Operations per second that the rank attains, not its peak.

        Notes
        -----
        For transformers, without attention's own part. Convolutions use a weight many times for each sample: give their
        times instead.

        References
        ----------
        J. Kaplan et al., "Scaling Laws for Neural Language Models", arXiv 2001.08361, section 2.1.

        Examples
        --------
        >>> round(Layout("7B", ("all",), (7_000_000_000,)).compute_seconds(4096, 150e12), 3)
        1.147
        """
        if not (0 < tokens < float("inf") and 0 < flops < float("inf")):
            raise InvalidArgument(f"{tokens} tokens at {flops} operations per second; expected numbers above 0")
        return 6.0 * self.parameters * tokens / flops

    def timeline(self, compute: float | Sequence[float], element_bytes: int = 4) -> Timeline:
        """When the gradients of one step are ready.

        Parameters
        ----------
        compute
            Seconds in which a rank computes the step, of which a third is the forward pass, shared out by elements; or
            the backward seconds of each gradient, shape (gradients,), to which half is added for the forward pass.
        element_bytes
            Bytes of an element of a gradient.
        """
        if element_bytes < 1:
            raise InvalidArgument(f"element_bytes is {element_bytes}; expected 1 or more")
        if isinstance(compute, (int, float)):
            each = float(compute) * _BACKWARD * np.array(self.elements, float) / self.parameters
        else:
            each = np.array(compute, float)
        if each.shape != (len(self.names),) or not (np.isfinite(each).all() and (each >= 0).all()):
            raise InvalidArgument(
                f"compute is {str(compute)[:60]}; expected seconds from 0, one number or one for each of the "
                f"{len(self.names)} gradients"
            )
        ready = np.cumsum(each)
        # The forward pass takes half as long, and uses the parameters in the opposite order.
        needed = (ready[-1] - ready) / 2
        sizes = np.array(self.elements, np.int64) * element_bytes
        return Timeline(self.names, sizes, ready, needed, float(ready[-1]), float(ready[-1]) / 2)


@dataclass(frozen=True)
class Step:
    """A simulated training step; times in seconds.

    Attributes
    ----------
    plan
        Its buckets, when they are sent, and what other buckets would do.
    algorithm
        Of the all-reduces.
    warnings
        Of their simulation.
    """

    plan: BucketPlan = field(repr=False)
    algorithm: str
    warnings: tuple[str, ...] = field(repr=False)

    @property
    def compute(self) -> float:
        """Forward and backward pass without communication."""
        return self.plan.timeline.forward + self.plan.timeline.backward_end

    @property
    def exposed(self) -> float:
        """What the step is longer than `compute`."""
        return self.plan.exposed

    @property
    def seconds(self) -> float:
        """The whole step; the optimizer is not in it."""
        return self.compute + self.exposed

    @property
    def communication(self) -> float:
        """How long all-reduces are in flight, hidden or not."""
        return self.plan.simulated.communication

    @property
    def exposed_share(self) -> float:
        """Share of the step in which nothing but communication happens."""
        return self.exposed / self.seconds if self.seconds else 0.0


def simulate_step(
    timeline: Timeline,
    schedule: Schedule | str,
    topology: Topology | Fabric,
    *,
    bucket_bytes: int | None = None,
    overlap: bool = True,
    conditions: Conditions | None = None,
    ratio: float = 1.0,
    codec: float = 0.0,
    **options: Any,
) -> Step:
    """Play one step of data-parallel training on a cluster.

    Parameters
    ----------
    timeline
        When gradients are ready: `Layout.timeline`, or what was recorded of a real model.
    schedule, topology
        The all-reduce, and what it runs on; see `Simulation`.
    bucket_bytes
        Buckets of this size, the first of at most 1 MiB, as DistributedDataParallel has them; by default the best ones.
    overlap
        Whether buckets are sent during the backward pass; False: after it.
    conditions
        What sending costs besides the all-reduces.
    ratio
        Bytes sent for each byte of gradient, of a compression: 0.5 for bf16 of float32.
    codec
        Seconds that compressing and restoring a byte of gradient takes, in the place where it is sent.
    options
        Of `Simulation`: ``channels``, ``protocol``, ``wire``, ...

    Returns
    -------
    Step
        Its ``plan`` has the buckets.

    Raises
    ------
    InvalidArgument
        Numbers out of range, or what `Simulation` refuses.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13(12), 2020.

    Examples
    --------
    >>> from ringleader.topology import generate
    >>> line = Layout("two layers", ("head", "body"), (1 << 20, 3 << 20)).timeline(30e-3)
    >>> cluster = generate.ethernet_racks(generate.cpu_host(), 4)
    >>> step = simulate_step(line, "hierarchical", cluster)
    >>> late = simulate_step(line, "hierarchical", cluster, overlap=False)
    >>> step.plan.buckets, step.exposed < late.exposed
    (((0,), (1,)), True)
    """
    if not 0 < ratio <= 1 or not 0 <= codec < float("inf"):
        raise InvalidArgument(
            f"ratio {ratio}, codec {codec}; expected bytes sent per byte, above 0, at most 1, and seconds from 0"
        )
    simulation = Simulation(schedule, topology, **options)
    if simulation.collective != "all_reduce":
        raise InvalidArgument(f"gradients are all-reduced, but the schedule is for {simulation.collective}")
    sizes = _sizes(timeline.total)
    seconds = simulation.seconds(sizes * ratio) + codec * sizes
    cost = CostCurve.fit(zip(sizes.tolist(), seconds.tolist(), strict=True))
    line = timeline
    if not overlap:
        late = np.full(len(timeline), timeline.backward_end)
        line = Timeline(timeline.names, timeline.nbytes, late, timeline.needed, timeline.backward_end, timeline.forward)
    conditions = conditions or Conditions()
    if bucket_bytes is None:
        plan = plan_buckets(line, cost, conditions.overhead, launch=conditions.launch, slowdown=conditions.slowdown)
    else:
        buckets = fixed_buckets(line.nbytes, bucket_bytes, min(bucket_bytes, 1 << 20))
        plan = plan_of(line, buckets, cost, conditions)
    return Step(plan, simulation.steps.name if not isinstance(schedule, str) else schedule, tuple(simulation.warnings))


def _sizes(total: int) -> Any:
    """What the cost curve is simulated at: powers of two, and all gradients together."""
    last = max(total, _SMALLEST)
    powers = [1 << bits for bits in range(_SMALLEST.bit_length() - 1, last.bit_length()) if 1 << bits < last]
    return np.array([*powers, last], np.int64)


@dataclass(frozen=True)
class Option:
    """A cluster and an algorithm that could train the model.

    Attributes
    ----------
    hosts, ranks
        How many there are.
    gigabits
        Gbit/s of each adapter; None: the host's own.
    step
        What the step takes there.
    """

    hosts: int
    ranks: int
    gigabits: float | None
    step: Step


def plan_cluster(
    layout: Layout,
    compute: float,
    host: Topology,
    *,
    network: Callable[[Topology, int], Topology] = generate.fat_tree,
    hosts: Sequence[int] = (1, 2, 4, 8),
    gigabits: Sequence[float | None] = (None,),
    algorithms: Sequence[str] = ("ring", "hierarchical"),
    element_bytes: int = 4,
    report: Callable[[int, int], None] = lambda done, of: None,
    **options: Any,
) -> list[Option]:
    """Every step that a model could have: over numbers of hosts, speeds of adapters and algorithms.

    Parameters
    ----------
    layout
        The model.
    compute
        Rank-seconds of a step: each of n ranks computes an n-th of it, so the batch of a step is always the same.
    host, network
        One host; what makes a cluster of hosts and their number.
    hosts, gigabits, algorithms
        What is tried, each with each. Gbit/s of every adapter, or None for the host's own.
    element_bytes
        Of gradients.
    report
        Called with what is done, and how many there are.
    options
        Of `simulate_step`.

    Returns
    -------
    list of Option
        In the order of hosts, gigabits, algorithms.

    Raises
    ------
    InvalidArgument
        Numbers out of range; the host has no adapters to give a speed to; an algorithm cannot run there.

    Examples
    --------
    >>> from ringleader.topology import generate
    >>> model = Layout("small", ("head", "body"), (1 << 20, 3 << 20))
    >>> found = plan_cluster(model, 1.0, generate.cpu_host(), hosts=[1, 4], gigabits=[10, 100], algorithms=["ring"])
    >>> [(option.hosts, option.gigabits) for option in frontier(found)]
    [(1, 10), (4, 10), (4, 100)]
    """
    if not compute > 0 or not hosts or min(hosts) < 1:
        raise InvalidArgument(
            f"compute is {compute} s, hosts are {list(hosts)}; expected seconds above 0, and 1 host or more"
        )
    found: list[Option] = []
    total = len(hosts) * len(gigabits) * len(algorithms)
    for count in hosts:
        for speed in gigabits:
            one = host if speed is None else host.with_port_speed(speed * generate.GIGABIT)
            fabric = Fabric(network(one, count) if count > 1 else one)
            line = layout.timeline(compute / fabric.size, element_bytes)
            for spec in algorithms:
                step = simulate_step(line, spec, fabric, **options)
                found.append(Option(count, fabric.size, speed, step))
                report(len(found), total)
    return found


def frontier(options: Iterable[Option]) -> list[Option]:
    """Those that are worth their hardware: no other has at most as many hosts and as fast adapters, and a shorter step.

    Returns
    -------
    list of Option
        The fewest hosts and slowest adapters first; of equal ones the first.
    """
    ordered = sorted(options, key=lambda o: (o.hosts, o.gigabits or 0.0, o.step.seconds))
    kept: list[Option] = []
    for option in ordered:
        rivals = (o for o in kept if (o.gigabits or 0.0) <= (option.gigabits or 0.0))
        if all(option.step.seconds < rival.step.seconds for rival in rivals):
            kept.append(option)
    return kept
