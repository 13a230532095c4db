"""Hold what several passes need: reading constants and putting new expressions in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ...imperative.tensor import Tensor
from ..expr import Constant, Expr
from ..graph import InternalGraph
from ..node import Node, NodeMixin, TensorNode

_Value = TypeVar("_Value")


def get_const_value(expr: Any, fall_back: Any = None) -> Any:
    """Return the array or number that an expression, node or fixed argument holds.

    Args:
        fall_back: returned where it is no constant.

    >>> get_const_value(2.5)
    2.5
    """
    found = expr.expr if isinstance(expr, Node) else expr
    if isinstance(found, Constant):
        return found.value.numpy() if isinstance(found.value, Tensor) else fall_back
    if isinstance(found, Expr):
        return fall_back
    if isinstance(found, (bool, int, float, np.ndarray, np.generic)):
        return found
    return fall_back


def register_obj(objs: Any, _dict: dict[Any, Any]) -> Callable[[_Value], _Value]:
    """Return a decorator that puts what it decorates into a dict, under each of some keys.

    >>> table = {}
    >>> @register_obj([int, bool], table)
    ... def whole(value): ...
    >>> table[int] is table[bool] is whole
    True
    """
    keys = tuple(objs) if isinstance(objs, (list, tuple, set, frozenset)) else (objs,)

    def register(value: _Value) -> _Value:
        for key in keys:
            _dict[key] = value
        return value

    return register


def insert_before(graph: InternalGraph, place: Expr, expr: Expr) -> Expr:
    """Insert an expression in front of another."""
    expr._top_graph = graph
    graph._exprs.insert(graph._exprs.index(place), expr)
    graph._namespace.auto_naming_for_outputs(expr)
    return expr


def constant_before(
    graph: InternalGraph, place: Expr, value: np.ndarray | Tensor, name: str = ""
) -> Node:
    """Insert a constant in front of an expression and return its node."""
    held = value if isinstance(value, Tensor) else Tensor(value, dtype=value.dtype)
    expr = insert_before(graph, place, Constant(held, name))
    node = expr.outputs[0]
    describe(node, held)
    return node


def describe(node: Any, value: Any) -> None:
    """Give a node shape, dtype and device of a value."""
    NodeMixin.wrap(value, node)
    NodeMixin.clear_node(value)


def new_output(expr: Expr, like: Node) -> Node:
    """Give an expression one output, described as another node is; return it."""
    assert isinstance(like, TensorNode)
    node = TensorNode(expr, None, None, like.shape, like.dtype, like.qparams)
    node.device = like.device
    expr.return_val = node
    return node


def substitute(graph: InternalGraph, old: Node, new: Node) -> None:
    """Let all that reads a node, and the graph's result, read another."""
    graph._outputs[:] = [new if node is old else node for node in graph._outputs]
    graph._touch()
    for user in list(old.users):
        user._replace_input(old, new)


def only_reader(graph: InternalGraph, node: Node) -> Expr | None:
    """Return the only expression that reads a node, or None."""
    if len(node.users) != 1 or node in graph._outputs:
        return None
    return node.users[0]


def graph_of(expr: Expr) -> InternalGraph:
    """Return the graph of an expression."""
    graph = expr.top_graph
    assert graph is not None
    return graph
