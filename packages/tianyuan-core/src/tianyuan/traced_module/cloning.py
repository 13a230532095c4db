"""Decide how a graph is copied: expression by expression, never through Python's recursion."""

from __future__ import annotations

import copy
from typing import Any

from .expr import CallMethod, Constant, Expr, Input
from .graph import InternalGraph
from .node import Node


def clone_node(node: Node, expr: Expr) -> Node:
    """Return a copy of a node as a result of another expression, read by nothing yet."""
    made: Node = object.__new__(type(node))
    made.__dict__.update(node.__dict__)
    made.expr, made.users = expr, []
    return made


def clone_expr(expr: Expr, nodes: dict[Node, Node]) -> Expr:
    """Return a copy of an expression that reads the nodes that stand for its inputs."""
    made: Expr = object.__new__(type(expr))
    made.__dict__.update(expr.__dict__)
    made._leaves = list(expr._leaves)
    made.inputs = []
    made._take_users([nodes[node] for node in expr.inputs])
    made.outputs = []
    for node in expr.outputs:
        nodes[node] = clone_node(node, made)
        made.outputs.append(nodes[node])
    return made


def clone_graph(graph: InternalGraph, memo: dict[int, Any], deep: bool) -> InternalGraph:
    """Return a copy of a graph, with constants copied too if ``deep``."""
    made = InternalGraph(graph.name, graph.qualname)
    memo[id(graph)] = made
    nodes: dict[Node, Node] = {}
    for node in graph._inputs:
        assert isinstance(node.expr, Input)
        expr = clone_expr(node.expr, nodes)
        expr._top_graph = made
        made._inputs.append(expr.outputs[0])
    for step in graph._exprs:
        expr = clone_expr(step, nodes)
        if deep and isinstance(expr, Constant):
            expr.value = copy.deepcopy(expr.value, memo)
        expr._top_graph = made
        made._exprs.append(expr)
    made._outputs = [nodes[node] for node in graph._outputs]
    for name, held in graph._namespace.used_names.items():
        made._namespace._objects[name] = nodes.get(held, held)
    return made


def link(graph: InternalGraph) -> None:
    """Tell the graphs that a graph calls by whom they are called."""
    for expr in graph._exprs:
        inner = expr.graph if isinstance(expr, CallMethod) else None
        if inner is not None and inner is not graph:
            inner._top_graph = graph
