"""A timeline before the first step: from the graph of a model's forward and backward pass.

The joint graph is traced without computing anything (fake tensors); autograd visits it in the order in which it will
run. Every node is given a time by a roofline: the longer of its arithmetic and its memory traffic, and a fixed part for
its dispatch. Such times are good for the order of gradients and for their shares of the pass; their sum can be set to
what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from ringleader.errors import InvalidArgument
from ringleader.overlap import Timeline

__all__ = ["Rates", "timeline_from_graph"]


@dataclass(frozen=True)
class Rates:
    """What a device does in a second.

    Attributes
    ----------
    flops
        Floating-point operations, a multiply-add counting as two.
    nbytes
        Bytes read or written.
    dispatch
        Seconds of any operation, however small.

    Examples
    --------
    >>> Rates(flops=1e10).seconds(flops=10**7, nbytes=0)
    0.001005
    """

    flops: float = 5e10
    nbytes: float = 1e10
    dispatch: float = 5e-6

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.nbytes > 0 and self.dispatch >= 0):
            raise InvalidArgument(f"{self}; expected rates above 0 and a dispatch of at least 0 s")

    def seconds(self, flops: int, nbytes: int) -> float:
        """Time of an operation.

        Examples
        --------
        >>> Rates(nbytes=1e9, dispatch=0.0).seconds(flops=0, nbytes=1000)
        1e-06
        """
        return self.dispatch + max(flops / self.flops, nbytes / self.nbytes)

    @classmethod
    def measured(cls, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Rates:
        """Those of this device: three operations, some milliseconds each.

        Examples
        --------
        >>> Rates.measured().flops > 1e8
        True
        """
        square = torch.ones(512, 512, dtype=dtype, device=device)
        large = torch.ones(1 << 22, dtype=dtype, device=device)
        one = torch.ones(1, dtype=dtype, device=device)
        dispatch = _shortest(lambda: one + one, one)
        moved = 3 * large.nbytes
        return cls(
            2 * 512**3 / _shortest(lambda: square @ square, one),
            moved / _shortest(lambda: large + large, one),
            dispatch,
        )


def _shortest(action: Callable[[], Tensor], one: Tensor) -> float:
    """The least of some repetitions."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        action()
        if one.device.type != "cpu":
            one.item()  # waits for the device
        times.append(time.perf_counter() - began)
    return min(times)


def timeline_from_graph(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    rates: Rates | None = None,
    forward: float | None = None,
    backward: float | None = None,
) -> Timeline:
    """When each gradient will be ready and each parameter needed, without running the model.

    Parameters
    ----------
    module
        Any model whose control flow does not depend on values in tensors; also a `torch.fx.GraphModule`.
    args, kwargs
        Inputs like those of a step; only their shapes, types and devices count.
    loss
        From what the model returns to a scalar. Default: the sum of all its floating-point tensors.
    rates
        Of the device.
    forward, backward
        Seconds that the passes take, if known: all times are scaled to them.

    Returns
    -------
    Timeline
        Of the parameters with ``requires_grad``; one that the loss does not depend on is ready at the end.

    Raises
    ------
    InvalidArgument
        The model cannot be traced, gives nothing to differentiate, or no parameter has a gradient.

    Notes
    -----
    These are the times of autograd's own operations. `torch.compile` makes one operation of each compiled backward
    graph: its gradients all come at its end.

    References
    ----------
    S. Williams, A. Waterman, D. Patterson: Roofline: An Insightful Visual Performance Model for Multicore
    Architectures, CACM 52(4), 2009.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    >>> line = timeline_from_graph(model, [torch.ones(32, 64)], backward=2e-3)
    >>> line.names[:2], line.backward_end  # the last layer's gradients come first
    (('2.bias', '2.weight'), 0.002)
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not parameters:
        raise InvalidArgument(f"no parameter of {type(module).__name__} has requires_grad; expected at least one")
    graph, produced = _joint_graph(module, parameters, args, dict(kwargs or {}), loss or _sum_of)
    rates = rates or Rates()
    spans, boundary, end = _schedule(graph, produced[0], rates)
    users = _first_uses(graph, len(parameters), spans, boundary)
    ready = [end - boundary if node is None else spans[node][1] - boundary for node in produced[1:]]
    back = 1.0 if backward is None else backward / max(end - boundary, 1e-12)
    ahead = 1.0 if forward is None else forward / max(boundary, 1e-12)
    place = {node: number for number, node in enumerate(graph.nodes)}
    # Among gradients that are ready at the same time, views of what took the time, their order in the graph counts.
    order = sorted(range(len(ready)), key=lambda i: len(place) if (node := produced[1 + i]) is None else place[node])
    names = list(parameters)
    line, _ = Timeline.sorted(
        [names[i] for i in order],
        [parameters[names[i]].nbytes for i in order],
        [max(ready[i], 0.0) * back for i in order],
        [users[i] * ahead for i in order],
        (end - boundary) * back,
        boundary * ahead,
    )
    return line


def _sum_of(outputs: Any) -> Tensor:
    found = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    if not found and hasattr(outputs, "__dict__"):
        found = [x for x in vars(outputs).values() if isinstance(x, Tensor) and x.is_floating_point()]
    if not found:
        raise InvalidArgument(f"the model returns {type(outputs).__name__} without floating-point tensors; pass loss=")
    return torch.stack([x.float().sum() for x in found]).sum()


def _joint_graph(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Tensor],
) -> tuple[Graph, list[Node | None]]:
    """The graph, whose first inputs are the parameters, and its results: the loss and every gradient."""
    held = {name: x for name, x in [*module.named_parameters(), *module.named_buffers()] if name not in parameters}

    def joint(values: list[Tensor], others: dict[str, Tensor], inputs: Any) -> tuple[Tensor, Any]:
        given = {**dict(zip(parameters, values, strict=True)), **others}
        result = loss(functional_call(module, given, tuple(inputs[0]), inputs[1]))
        return result, torch.autograd.grad(result, values, allow_unused=True)

    values = [p.detach().requires_grad_() for p in parameters.values()]
    try:
        with torch.enable_grad():
            traced = make_fx(joint, tracing_mode="fake", _allow_non_fake_inputs=True)(values, held, (args, kwargs))
    except InvalidArgument:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InvalidArgument(
            f"{type(module).__name__} cannot be traced ({type(error).__name__}: {reason}); expected control flow "
            "that does not depend on values, and a loss with a gradient. A recorded step needs neither"
        ) from error
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    produced = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None or isinstance(x, Node))
    return traced.graph, produced


def _schedule(graph: Graph, loss: Node | None, rates: Rates) -> tuple[dict[Node, tuple[float, float]], float, float]:
    """Start and end of every node if they run one after another, the end of the loss, and that of all."""
    spans: dict[Node, tuple[float, float]] = {}
    now = boundary = 0.0
    for node in graph.nodes:
        if node.op == "call_function":
            before, now = now, now + _seconds(node, rates)
            spans[node] = (before, now)
        else:
            spans[node] = (now, now)
        if node is loss:
            boundary = now
    return spans, boundary, now


def _first_uses(graph: Graph, count: int, spans: Mapping[Node, tuple[float, float]], boundary: float) -> list[float]:
    """When the forward pass first uses each of the first `count` inputs; at its end if it does not."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"][:count]
    return [min([boundary, *(spans[user][0] for user in node.users)]) for node in inputs]


def _seconds(node: Node, rates: Rates) -> float:
    """Time of one operation; views take none."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return 0.0
    if any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns):
        return 0.0
    inputs, named = pytree.tree_map(
        lambda x: x.meta.get("val") if isinstance(x, Node) else x, (list(node.args), dict(node.kwargs))
    )
    result = node.meta.get("val")
    tensors = [x for x in pytree.tree_leaves((inputs, named, result)) if isinstance(x, Tensor)]
    counter = flop_registry.get(target.overloadpacket)
    flops = int(counter(*inputs, **named, out_val=result)) if counter is not None else 0
    return rates.seconds(flops, sum(x.numel() * x.element_size() for x in tensors))
