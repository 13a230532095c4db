"""Compute once what is computed twice: equal ops on equal inputs, and equal constants."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import exact

SMALL = 64  # bytes: constants up to this size are compared by content


def run(graph: Graph, options: Options) -> Graph:
    """Merge pure nodes whose op, attributes, inputs and layouts agree."""
    # Attributes are long where networks are in integers, and compared only where the rest agrees.
    seen: dict[Any, list[tuple[Node, tuple[Value, ...]]]] = {}
    rebuilder = Rebuilder(graph)
    merged = _merge_constants(rebuilder)

    def visit(to: Rebuilder, node: Node) -> tuple[Value, ...] | None:
        if not node.op.pure:
            return None
        nonlocal merged
        layouts = tuple(value.layout for value in node.outputs)
        rivals = seen.setdefault((node.op.name, tuple(to.mapped(node.inputs)), layouts), [])
        wanted = exact(node.attrs) if rivals else None
        for other, outputs in rivals:
            if exact(other.attrs) == wanted:
                merged = True
                return outputs
        kept = to.keep(node)
        rivals.append((node, kept))
        return kept

    rebuilt = rebuilder.run(visit)
    if merged:
        return rebuilt
    rebuilt.dissolve()
    return graph


def _merge_constants(to: Rebuilder) -> bool:
    """Let equal constants stand for each other; tell whether there were any."""
    seen: dict[Any, Value] = {}
    for old, constant in to.source.constants.items():
        key: Any = (id(constant), old.layout)
        if old.spec.nbytes <= SMALL:
            key = (constant.array.tobytes(), old.layout, old.spec)
        to.map[old] = seen.setdefault(key, to.map[old])
    return len(seen) < len(to.source.constants)
