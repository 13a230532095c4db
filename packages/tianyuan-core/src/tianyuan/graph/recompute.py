"""Decide which values a training program computes twice instead of keeping them.

Backward reads what forward made. Keeping only some of it, and computing the rest again from there
when backward comes to it, needs memory of the order of the square root of the number of layers for
one more forward pass (Chen et al., Training deep nets with sublinear memory cost, 2016). The steps
that run twice are the same kernels on the same data, so every value stays what it was, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import layouts, plan
from .graph import Graph, Node, Rebuilder, Value
from .options import MemoryLimit, Options
from .selection import call_of, is_alias

_DEAR = ("conv2d", "matmul")  # families whose results are worth more than their memory

_SMALL = 256  # a value so many times smaller than the largest is kept: it saves next to nothing


@dataclass
class _Attempt:
    graph: Graph
    arena: int
    cost: float  # estimated seconds of the steps that run twice


def reduce(graph: Graph, options: Options, device: str) -> Graph:
    """Return a lowered graph that needs less memory, or the same one where none is found.

    Of the ways tried, that with the least recomputation is taken whose arena is within
    ``options.memory.enough``; where none is, the one with the smallest arena.
    """
    limit = options.memory
    assert limit is not None
    whole = _Attempt(graph, plan.plan(graph, options.threads, device).arena_size, 0.0)
    if whole.arena <= limit.enough or not graph.nodes:
        return graph
    attempts = [whole]
    frontier = _fullest(graph)
    for keep in _choices(graph, frontier, limit):
        made, cost = _Recomputing(graph, frontier, keep, options.threads).run()
        attempts.append(_Attempt(made, plan.plan(made, options.threads, device).arena_size, cost))
    within = [attempt for attempt in attempts if attempt.arena <= limit.enough]
    if within:
        return min(within, key=lambda attempt: (attempt.cost, attempt.arena)).graph
    return min(attempts, key=lambda attempt: (attempt.arena, attempt.cost)).graph


def _bytes(value: Value) -> int:
    return layouts.physical_bytes(value.spec, value.layout)


def _fullest(graph: Graph) -> int:
    """Return the index of the node at which most bytes are alive: where backward begins."""
    index = {node: i for i, node in enumerate(graph.nodes)}
    last: dict[Value, int] = {}
    for node in reversed(graph.nodes):  # through an alias its source lives on
        for value in node.inputs:
            own = index[node]
            if is_alias(node):
                own = max(own, last.get(node.outputs[0], own))
            last[value] = max(last.get(value, own), own)
    change = np.zeros(len(graph.nodes) + 1, np.int64)
    for node in graph.nodes:
        if is_alias(node):
            continue
        for value in node.outputs:
            change[index[node]] += _bytes(value)
            change[last.get(value, index[node]) + 1] -= _bytes(value)
    return int(np.cumsum(change).argmax())


def _choices(graph: Graph, frontier: int, limit: MemoryLimit) -> Iterator[set[Value]]:
    """Yield sets of values to keep: a value each so many bytes, and perhaps all that are dear."""
    early = graph.nodes[: frontier + 1]
    largest = max(_bytes(value) for node in early for value in node.outputs)
    least = max(limit.least, largest // _SMALL)
    fixed = {
        value
        for node in early
        for value in node.outputs
        if not node.op.pure or (_bytes(value) < least and not is_alias(node))
    }
    fixed.update(graph.roots())
    sizes = [_bytes(v) for n in early if not is_alias(n) for v in n.outputs if v not in fixed]
    if not sizes:
        return
    steps = np.geomspace(max(min(sizes), 1), sum(sizes) + 1, max(limit.tries, 1))
    for dear in (False, True):
        for step in steps:
            keep, passed = set(fixed), 0
            for node in early:
                if is_alias(node) or node.outputs[0] in fixed:
                    continue
                passed += sum(map(_bytes, node.outputs))
                costly = dear and any(name in node.op.name for name in _DEAR)
                if passed > step or costly:
                    keep.update(node.outputs)
                    passed = 0
            yield keep


class _Recomputing:
    """Rebuilds a graph so that nodes behind the frontier read recomputed values."""

    def __init__(self, graph: Graph, frontier: int, keep: set[Value], threads: int) -> None:
        self._to = Rebuilder(graph)
        self._index = {node: i for i, node in enumerate(graph.nodes)}
        self._frontier = frontier
        self._keep = keep
        self._threads = threads
        self._again: dict[Value, Value] = {}
        self._cost = 0.0

    def run(self) -> tuple[Graph, float]:
        """Return the new graph, and the estimated seconds of what it computes twice."""
        return self._to.run(self._visit), self._cost

    def _visit(self, to: Rebuilder, node: Node) -> tuple[Value, ...] | None:
        if self._index[node] <= self._frontier:
            return None
        for value in node.inputs:
            self._recompute(value)
        return self._copy(node)

    def _dropped(self, value: Value) -> bool:
        node = value.node
        return (
            node in self._index and self._index[node] <= self._frontier and value not in self._keep
        )

    def _recompute(self, value: Value) -> None:
        """Append what makes a dropped value again, its own dropped inputs first."""
        waiting = [value]
        while waiting:
            wanted = waiting[-1]
            if wanted in self._again or not self._dropped(wanted):
                waiting.pop()
                continue
            node = wanted.node
            assert node is not None
            missing = [v for v in node.inputs if self._dropped(v) and v not in self._again]
            if missing:
                waiting += missing
                continue
            self._again.update(zip(node.outputs, self._copy(node), strict=True))
            if node.kernel is not None and not is_alias(node):
                self._cost += node.kernel.cost(call_of(node, self._threads))
            waiting.pop()

    def _copy(self, node: Node) -> tuple[Value, ...]:
        inputs = [self._again.get(value, self._to.map.get(value)) for value in node.inputs]
        outputs = [Value(v.spec, v.name, v.layout) for v in node.outputs]
        copy = Node(node.op, node.attrs, inputs, outputs, node.origin)  # type: ignore[arg-type]
        copy.kernel, copy.refusals = node.kernel, node.refusals
        self._to.graph.nodes.append(copy)
        return copy.outputs
