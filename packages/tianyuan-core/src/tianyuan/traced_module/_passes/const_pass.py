"""Make constants of what does not change, and bring arithmetic with constants to one form."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional as F
from ...dtypes import is_float
from ...imperative.tensor import Tensor
from .. import names
from ..expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    is_call_function,
    is_call_tensor_method,
    is_getattr,
)
from ..graph import InternalGraph
from ..members import lookup
from ..node import ModuleNode, Node, Size, TensorNode
from ..scope import paused
from .pass_base import ForwardPass, register_pass
from .utils import (
    constant_before,
    get_const_value,
    graph_of,
    insert_before,
    new_output,
    substitute,
)


@register_pass("AttrToConstant")
class AttrToConstant(ForwardPass):
    """Replace tensors that are read from modules by constants; for inference only.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "AttrToConstant")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    def run_transform(self, expr: Expr) -> None:
        """Replace one read."""
        node = expr.outputs[0] if expr.outputs else None
        if not is_getattr(expr) or isinstance(node, ModuleNode):
            return
        source: Any = expr.inputs[0]
        value = lookup(source.owner, expr.attr_name)  # type: ignore[attr-defined]
        graph = graph_of(expr)
        held = Tensor(value.numpy(), dtype=value.dtype, device=value.device)
        assert node is not None
        substitute(graph, node, constant_before(graph, expr, held, node.name))


@register_pass("FixInputShape")
class FixInputShape(ForwardPass):
    """Replace reads of extents by the extents met when the module was traced.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "FixInputShape")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    def run_transform(self, expr: Expr) -> None:
        """Replace the extents that one expression makes."""
        graph = graph_of(expr)
        for node in expr.outputs:
            if not isinstance(node, TensorNode) or not isinstance(node.value, Size):
                continue
            for user in list(node.users):
                fix_argument(user, node, int(node.value))
            if node in graph._outputs:
                return


def fix_argument(expr: Expr, node: Node, value: Any) -> None:
    """Put a fixed value in the place of a node among an expression's arguments."""
    from ..pytree import tree_map

    args, kwargs = tree_map(lambda leaf: value if leaf is node else leaf, (expr.args, expr.kwargs))
    expr.set_args_kwargs(*args, **kwargs)


@register_pass("FlodConstant")
class FlodConstant(ForwardPass):
    """Compute what depends on constants only; spelt as in MegEngine.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "FlodConstant")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    def run_transform(self, expr: Expr) -> None:
        """Compute one expression."""
        graph = graph_of(expr)
        if not _computable(expr) or any(node in graph._outputs for node in expr.outputs):
            return
        with paused():
            given = [node.expr.value for node in expr.inputs]  # type: ignore[attr-defined]
            values = expr.interpret(*given)
        if not all(isinstance(value, Tensor) for value in values):
            return
        for node, value in zip(expr.outputs, values, strict=True):
            substitute(graph, node, constant_before(graph, expr, value.detach(), node.name))


def _computable(expr: Expr) -> bool:
    if not isinstance(expr, (CallFunction, CallMethod, Apply)) or not expr.inputs:
        return False
    if any(not isinstance(node.expr, Constant) for node in expr.inputs):
        return False
    if any(isinstance(node, ModuleNode) for node in expr.inputs) or expr._disable_remove:
        return False
    if isinstance(expr, CallFunction):
        name = names.function_name(expr.func) or ""
        return not name.startswith("tianyuan.random.") and expr.func is not F.dropout
    return not isinstance(expr, CallMethod) or expr.method not in names.IN_PLACE


@register_pass("NormElemWise")
class NormElemWise(ForwardPass):
    """Write sums and products with a constant as ``add(x, c)`` and ``mul(x, c)``.

    x - c becomes x + (-c), x / c becomes x * (1 / c), -x becomes x * (-1), c - x becomes
    x * (-1) + c.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "NormElemWise")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    def run_transform(self, expr: Expr) -> None:
        """Rewrite one expression."""
        found = _affine(expr)
        if found is None or not floating(expr):
            return
        value, factor, shift = found
        graph = graph_of(expr)
        if factor is not None:
            value = emit(graph, expr, F.mul, value, factor)
        if shift is not None:
            value = emit(graph, expr, F.add, value, shift)
        substitute(graph, expr.outputs[0], value)


def floating(expr: Expr) -> bool:
    """Tell whether an expression gives floats."""
    node = expr.outputs[0]
    return isinstance(node, TensorNode) and node.dtype is not None and is_float(node.dtype)


def _affine(expr: Expr) -> tuple[Node, Any, Any] | None:
    """Return x, factor and shift where an expression is x * factor + shift, not in normal form."""
    kind, args = _operation(expr)
    if kind == "neg":
        return (args[0], -1.0, None) if isinstance(args[0], Node) else None
    if kind is None or len(args) != 2:
        return None
    first, second = get_const_value(args[0]), get_const_value(args[1])
    if (first is None) is (second is None):
        return None
    x, c = (args[0], second) if first is None else (args[1], first)
    if not isinstance(x, Node) or isinstance(x.expr, Constant):
        return None
    swapped = first is not None
    if kind == "add":
        return None if is_call_function(expr, F.add) and not swapped else (x, None, c)
    if kind == "mul":
        return None if is_call_function(expr, F.mul) and not swapped else (x, c, None)
    if kind == "sub":
        return (x, -1.0, c) if swapped else (x, None, _negative(c))
    return (x, _inverse(c), None) if kind == "div" and not swapped else None


def _negative(c: Any) -> Any:
    return np.negative(c) if isinstance(c, np.ndarray) else -c


def _inverse(c: Any) -> Any:
    return np.asarray(1 / c, c.dtype) if isinstance(c, np.ndarray) else 1.0 / c


_FUNCTIONS = {F.add: "add", F.mul: "mul", F.sub: "sub", F.div: "div", F.neg: "neg"}
_METHODS = {
    "__add__": "add", "__radd__": "add", "__mul__": "mul", "__rmul__": "mul", "__sub__": "sub",
    "__rsub__": "rsub", "__truediv__": "div", "__rtruediv__": "rdiv", "__neg__": "neg",
}  # fmt: skip


def _operation(expr: Expr) -> tuple[str | None, tuple[Any, ...]]:
    if is_call_function(expr):
        return _FUNCTIONS.get(expr.func), tuple(expr.named_args.values())  # type: ignore[attr-defined]
    if is_call_tensor_method(expr):
        kind = _METHODS.get(expr.method)  # type: ignore[attr-defined]
        if kind in ("rsub", "rdiv"):
            return kind[1:], expr.args[::-1]
        return kind, expr.args
    return None, ()


def emit(graph: InternalGraph, place: Expr, function: Any, x: Node, c: Any) -> Node:
    """Insert ``function(x, c)`` in front of an expression and return its node."""
    if isinstance(c, np.ndarray):
        c = constant_before(graph, place, c)
    made = CallFunction(function)
    made.set_args_kwargs(x, c)
    node = new_output(made, place.outputs[0])
    insert_before(graph, place, made)
    return node
