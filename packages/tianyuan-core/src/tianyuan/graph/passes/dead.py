"""Drop the nodes whose outputs nobody needs; effects stay."""

from __future__ import annotations

from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options


def run(graph: Graph, options: Options) -> Graph:
    """Return a graph without dead nodes, or the same graph where all are alive."""
    needed: set[Value] = set(graph.roots())
    alive: set[Node] = set()
    for node in reversed(graph.nodes):
        if not node.op.pure or any(value in needed for value in node.outputs):
            alive.add(node)
            needed.update(node.inputs)
    if len(alive) == len(graph.nodes) and all(value in needed for value in graph.constants):
        return graph

    # A dead node's outputs stand for themselves: nothing that stays refers to them.
    def visit(to: Rebuilder, node: Node) -> tuple[Value, ...] | None:
        return None if node in alive else node.outputs

    return Rebuilder(graph).run(visit)
