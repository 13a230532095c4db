"""Join a product that is a parameter's gradient with the update, where a kernel gains by it."""

from __future__ import annotations

from collections.abc import Sequence

from .. import registry
from ..ops.attrs import MatmulSgdUpdate
from .graph import Graph, Node, Rebuilder, Value
from .joining import gains, least
from .options import Options
from .passes import dead
from .passes.match import Users, produced_by, rewrite

UPDATE, JOINED = "sgd_update", "matmul_sgd_update"


def join(graph: Graph, device: str, options: Options) -> Graph:
    """Replace updates by gradients that nobody else reads, in a graph of concrete sizes.

    The gradient then never exists in memory. The joined op counts as an update, so that it waits
    for all who read the old value.
    """
    if not any(node.op.name == UPDATE for node in graph.nodes):
        return graph
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> Sequence[Value] | None:
        joined = _joined(node, users)
        if joined is None or not _gains(joined, node, device, options):
            return None
        inputs = to.mapped(joined.inputs)
        return to.graph.add_node(joined.op, inputs, joined.attrs, node.origin)

    found = rewrite(graph, visit)
    return graph if found is graph else dead.run(found, options)


def _joined(node: Node, users: Users) -> Node | None:
    """Return the op that an update and the product before it may become."""
    if node.op.name != UPDATE:
        return None
    param, gradient, rate, *velocity = node.inputs
    product = produced_by(gradient, "matmul")
    if product is None or not users.single(gradient):
        return None
    attrs = MatmulSgdUpdate(
        product.attrs.transpose_a,
        product.attrs.transpose_b,
        node.attrs.momentum,
        node.attrs.weight_decay,
        node.attrs.nesterov,
    )
    inputs = [*product.inputs, param, rate, *velocity]
    return Node(registry.get_op(JOINED), attrs, inputs, [Value(x.spec) for x in node.outputs])


def _gains(joined: Node, update: Node, device: str, options: Options) -> bool:
    """Tell whether a native kernel serves the joined op for less than the best of its parts."""
    product = update.inputs[1].node
    assert product is not None
    return gains(joined, (product, update), lambda node: least(node, device, options))
