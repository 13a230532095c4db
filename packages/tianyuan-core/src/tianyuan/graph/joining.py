"""Join a depthwise convolution with its pointwise neighbours where a kernel gains by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .. import registry
from ..ops.bottleneck import Bottleneck
from ..records import record
from . import selection
from .graph import Graph, Node, Rebuilder, Value
from .options import Options
from .passes import dead
from .passes.match import Users, produced_by, rewrite

FUSED = "conv2d_fused"
_NO_PADDING = (0, 0, 0, 0)

Cost = Callable[[Node], float | None]  # in seconds; None where nothing native serves


@record()
class _Chain:
    """Nodes of the graph before, from the narrow input on."""

    expand: Node | None
    depthwise: Node
    project: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*((self.expand,) if self.expand else ()), self.depthwise, self.project)

    @property
    def inputs(self) -> list[Value]:
        """Return the inputs of the joined op, in its order."""
        found = [self.nodes[0].inputs[0]]
        for node in self.nodes:
            found += node.inputs[1:]
        return found

    @property
    def attrs(self) -> Bottleneck:
        steps = [node.attrs if node else None for node in (self.expand, *self.nodes[-2:])]
        expanded, filtered, projected = (s.activation if s else "identity" for s in steps)
        return Bottleneck(
            self.depthwise.attrs.stride,
            self.depthwise.attrs.padding,
            self.expand is not None,
            self.project.attrs.has_residual,
            expanded,
            filtered,
            projected,
            lower=tuple(s.lower if s else 0.0 for s in steps),
            upper=tuple(s.upper if s else 0.0 for s in steps),
        )


def join(graph: Graph, device: str, options: Options) -> Graph:
    """Replace the chains of a graph of concrete sizes whose joined op costs less."""
    users = Users(graph)
    known: dict[object, float | None] = {}

    def cost(node: Node) -> float | None:
        key = selection.call_of(node, options.threads).key
        if key not in known:
            known[key] = least(node, device, options)
        return known[key]

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        for chain in _chains(node, users):
            if _gains(chain, cost):
                inputs = to.mapped(chain.inputs)
                op = registry.get_op("bottleneck")
                return list(to.graph.add_node(op, inputs, chain.attrs, node.origin))
        return None

    joined = rewrite(graph, visit)
    return graph if joined is graph else dead.run(joined, options)


def _is_pointwise(node: Node | None) -> bool:
    if node is None or not node.attrs.has_bias:
        return False
    attrs, weight = node.attrs, node.inputs[1].spec.shape
    return bool(
        tuple(weight[2:]) == (1, 1)
        and attrs.groups == 1
        and tuple(attrs.stride) == (1, 1)
        and tuple(attrs.padding) == _NO_PADDING
    )


def _is_depthwise(node: Node | None) -> bool:
    if node is None or not node.attrs.has_bias or node.attrs.has_residual:
        return False
    weight = node.inputs[1].spec.shape
    return bool(
        node.attrs.groups == weight[0]
        and weight[1] == 1
        and node.inputs[0].spec.shape[1] == weight[0]
        and tuple(node.attrs.dilation) == (1, 1)
    )


def _chains(node: Node, users: Users) -> list[_Chain]:
    """Return the chains that end at a node, the longest first."""
    if node.op.name != FUSED or not _is_pointwise(node):
        return []
    depthwise = produced_by(node.inputs[0], FUSED)
    if depthwise is None or not _is_depthwise(depthwise) or not users.single(node.inputs[0]):
        return []
    found = [_Chain(None, depthwise, node)]
    expand = produced_by(depthwise.inputs[0], FUSED)
    if expand is None or not _is_pointwise(expand) or expand.attrs.has_residual:
        return found
    return [_Chain(expand, depthwise, node), *found] if users.single(expand.outputs[0]) else found


def _gains(chain: _Chain, cost_of: Cost) -> bool:
    """Tell whether a kernel serves the joined op for less than the best ones of its parts."""
    op, attrs = registry.get_op("bottleneck"), chain.attrs
    inputs, output = chain.inputs, chain.project.outputs[0]
    if not all(value.spec.dtype == output.spec.dtype for value in inputs):
        return False
    joined = Node(op, attrs, inputs, [Value(output.spec)])
    return gains(joined, chain.nodes, cost_of)


def gains(joined: Node, parts: Iterable[Node], cost_of: Cost) -> bool:
    """Tell whether a native kernel serves a joined op for less than the best of its parts."""
    cost = cost_of(joined)
    if cost is None:
        return False
    costs = [cost_of(node) for node in parts]
    return None in costs or cost < sum(part for part in costs if part is not None)


def least(node: Node, device: str, options: Options) -> float | None:
    """Return the least cost of a native kernel, in whichever layouts; None where there is none."""
    call = selection.call_of(node, options.threads)
    served, _ = selection.allowed(call, device, options)
    return next((cost for kernel, cost in served.items() if kernel.is_native), None)
