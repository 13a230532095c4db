"""Spread the ranges of channels evenly over products of a graph that follow each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tianyuan.graph.graph import Constant, Graph, Node, Value

from .equalise import balance

_PRODUCTS = ("conv2d_fused", "matmul_fused")
_THROUGH = ("relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "copy")


@dataclass(frozen=True)
class _Side:
    """A product with a constant weight."""

    graph: Graph
    node: Node

    def _rows(self) -> np.ndarray:
        """Return the weight as (out, in, ...); a view where the graph holds it otherwise."""
        array = self.graph.constants[self.node.inputs[1]].array
        turned = self.node.op.name == "matmul_fused" and not self.node.attrs.transpose_b
        return array.T if turned else array

    def output_range(self) -> np.ndarray:
        """Return the largest magnitude of what makes each output channel."""
        rows = self._rows()
        return np.asarray(np.abs(rows).reshape(rows.shape[0], -1).max(axis=1))

    def input_range(self) -> np.ndarray:
        """Return the largest magnitude of what meets each input channel."""
        apart = np.abs(self._by_group())
        axes = tuple(axis for axis in range(apart.ndim) if axis not in (0, 2))
        return np.asarray(apart.max(axis=axes).reshape(-1))

    def _by_group(self) -> np.ndarray:
        rows = self._rows()
        groups = int(getattr(self.node.attrs, "groups", 1))
        return rows.reshape(groups, -1, *rows.shape[1:])

    def scale_output(self, factor: np.ndarray) -> None:
        """Multiply weight and bias by positive factors."""
        rows = self._rows()
        self._keep(rows * factor.reshape(-1, *(1,) * (rows.ndim - 1)))
        if self.node.attrs.has_bias:
            value = self.node.inputs[2]
            old = self.graph.constants[value]
            new = (old.array.reshape(-1) * factor).reshape(old.array.shape)
            self.graph.constants[value] = Constant(new.astype(np.float32), old.name)

    def scale_input(self, factor: np.ndarray) -> None:
        """Multiply the weights that meet each input channel."""
        apart = self._by_group()
        shape = [1] * apart.ndim
        shape[0], shape[2] = apart.shape[0], apart.shape[2]
        self._keep((apart * factor.reshape(shape)).reshape(self._rows().shape))

    def _keep(self, rows: np.ndarray) -> None:
        value = self.node.inputs[1]
        turned = self.node.op.name == "matmul_fused" and not self.node.attrs.transpose_b
        new = np.ascontiguousarray(rows.T if turned else rows, np.float32)
        self.graph.constants[value] = Constant(new, self.graph.constants[value].name)


def equalize_graph(graph: Graph) -> bool:
    """Equalise the channels of a prepared graph in place, as ``equalize`` does of a network.

    Tells whether any two products follow each other through ReLU or pooling only.
    """
    users = graph.users()
    pairs = []
    for node in graph.nodes:
        after = _reader(graph, users, node)
        if after is not None and _usable(graph, users, node) and _usable(graph, users, after):
            first, second = _Side(graph, node), _Side(graph, after)
            if len(first.output_range()) == len(second.input_range()):
                pairs.append((first, second))
    balance(pairs)
    return bool(pairs)


Users = dict[Value, list[Node]]


def _usable(graph: Graph, users: Users, node: Node) -> bool:
    if node.op.name not in _PRODUCTS:
        return False
    held = node.inputs[1:3] if node.attrs.has_bias else node.inputs[1:2]
    alone = all(v in graph.constants and len(users[v]) == 1 for v in held)
    return alone and graph.constants[node.inputs[1]].array.ndim in (2, 4)


def _reader(graph: Graph, users: Users, node: Node) -> Node | None:
    """Return the product that alone reads a node's result, through what commutes with factors."""
    if node.op.name not in _PRODUCTS or node.attrs.has_residual:
        return None
    if node.attrs.activation not in ("identity", "relu"):
        return None
    value = node.outputs[0]
    while value not in graph.outputs and len(users.get(value, [])) == 1:
        after = users[value][0]
        if after.op.name in _PRODUCTS and after.inputs[0] is value:
            return after
        if after.op.name not in _THROUGH:
            return None
        value = after.outputs[0]
    return None
