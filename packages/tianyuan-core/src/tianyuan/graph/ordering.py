"""Decide when optimisers' updates run: as soon as nobody misses the old value any more."""

from __future__ import annotations

from .graph import Graph, Node, Rebuilder, Value
from .selection import is_alias

UPDATE, INDEXING = "update", "indexing"


def advance_updates(graph: Graph) -> Graph:
    """Move each update behind the last step that it has to wait for.

    It then finds the gradient in the cache, whose memory serves other values afterwards. It waits
    for what makes its inputs, for all who read them, so that it may write over old values, and for
    the last step that looks at its data and may refuse it, which must leave states alone.
    """
    updates = [node for node in graph.nodes if node.op.family == UPDATE]
    if not updates:
        return graph
    place = _places(graph)
    followers: dict[int, list[Node]] = {}
    for node in updates:
        followers.setdefault(place[node], []).append(node)
    order: list[Node] = list(followers.get(-1, ()))
    for index, node in enumerate(graph.nodes):
        if node not in place:
            order.append(node)
        order += followers.get(index, ())
    return _reordered(graph, order)


def _places(graph: Graph) -> dict[Node, int]:
    """Return the position in the graph's order behind which each update may run."""
    origin: dict[Value, Value] = {}  # what a value is another shape of
    last: dict[Value, int] = {}  # who makes or reads a value, updates apart
    checks = -1
    for index, node in enumerate(graph.nodes):
        if is_alias(node):
            source = node.inputs[0]
            origin[node.outputs[0]] = origin.get(source, source)
        if node.op.family == UPDATE:
            continue
        if node.op.family == INDEXING:
            checks = index
        for value in (*node.inputs, *node.outputs):
            last[origin.get(value, value)] = index
    places: dict[Node, int] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.family != UPDATE:
            continue
        roots = [origin.get(value, value) for value in node.inputs]
        waits = max(checks, *(last.get(value, -1) for value in roots))
        chained = any(value.node in places for value in roots)  # reads what an update has made
        places[node] = index if chained or waits > index else waits
    return places


def _reordered(graph: Graph, order: list[Node]) -> Graph:
    """Return the graph with its nodes in another topological order."""
    rebuilder = Rebuilder(graph)
    for node in order:
        rebuilder.map.update(zip(node.outputs, rebuilder.keep(node), strict=True))
    found = rebuilder.graph
    found.outputs = rebuilder.mapped(graph.outputs)
    found.updates = {index: rebuilder.map[value] for index, value in graph.updates.items()}
    return found
