"""Join convolutions with the normalisations that follow them, and sums and products in a row."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np

from ... import functional as F
from ... import module as M
from ...imperative.tensor import Parameter, Tensor
from ...module import Module
from ..expr import CallFunction, Expr, GetAttr, is_call_function, is_call_module
from ..members import remove, store
from ..node import ModuleNode, Node
from .const_pass import emit, floating
from .matcher import PatternMatcher
from .pass_base import ForwardPass, register_pass
from .pattern import is_op
from .utils import constant_before, get_const_value, graph_of, only_reader, substitute


def scaled_conv(conv: Any, factor: np.ndarray, shift: np.ndarray) -> Any:
    """Return a copy of a convolution whose result is ``factor * conv(x) + shift`` per channel."""
    weight = conv.weight.numpy()
    channels = conv.out_channels
    made = object.__new__(type(conv))
    vars(made).update(vars(conv))
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        vars(made)[hooks] = copy.copy(vars(conv)[hooks])
    if isinstance(conv, M.ConvTranspose2d):
        # Output channels stand behind the input channels of their group.
        per_group = factor.reshape(conv.groups, 1, -1, 1, 1)
        shaped = per_group if conv.groups > 1 else per_group[0]
    else:
        lead = weight.shape[: 1 if conv.groups == 1 else 2]
        shaped = factor.reshape(*lead, *(1,) * (weight.ndim - len(lead)))
    made.weight = Parameter((weight.astype(np.float64) * shaped).astype(weight.dtype))
    old = np.zeros(channels) if conv.bias is None else conv.bias.numpy().reshape(-1)
    bias = old.astype(np.float64) * factor + shift
    made.bias = Parameter(bias.astype(weight.dtype).reshape(1, channels, 1, 1))
    return made


def statistics(norm: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return factor and shift per channel of a batch normalisation by running statistics."""

    def flat(value: Tensor | None, default: float) -> np.ndarray:
        if value is None:
            return np.full(norm.num_features, default)
        return value.numpy().reshape(-1).astype(np.float64)

    factor = flat(norm.weight, 1.0) / np.sqrt(flat(norm.running_var, 1.0) + norm.eps)
    return factor, flat(norm.bias, 0.0) - flat(norm.running_mean, 0.0) * factor


def replace_module(node: Node, new: Module) -> None:
    """Put a module in the place of the one that a node reads."""
    assert isinstance(node, ModuleNode)
    expr = node.expr
    assert isinstance(expr, GetAttr)
    source = expr.inputs[0]
    assert isinstance(source, ModuleNode)
    store(source.owner, expr.attr_name, new)
    node.module_type = type(new)


def calls_of(expr: Expr) -> int:
    """Return how many calls the module of a call has in its whole network."""
    target: Any = expr.inputs[0]
    root = graph_of(expr)._root()
    calls: list[Any] = [found for found in root._walk(True) if is_call_module(found)]
    return sum(call.inputs[0].owner is target.owner for call in calls)


@register_pass("FuseConvBn")
class FuseConvBn(ForwardPass):
    """Fold batch normalisation that is in evaluation into the convolution before it.

    Modules (``Conv2d`` and ``ConvTranspose2d`` with ``BatchNorm2d``, and ``ConvBn2d``) and calls of
    ``functional.conv2d`` with ``functional.batch_norm`` are found. W' = W gamma / sqrt(var + eps),
    b' = (b - mean) gamma / sqrt(var + eps) + beta.
    """

    def __init__(self) -> None:
        super().__init__()
        conv = is_op(M.Conv2d) | is_op(M.ConvTranspose2d)
        self._modules = is_op(M.BatchNorm2d)(conv)
        self._functions = is_op(F.nn.batch_norm)(is_op(F.nn.conv2d))

    def run_transform(self, expr: Expr) -> bool:
        """Fold one normalisation."""
        matcher = PatternMatcher()
        if matcher.match(self._modules, expr):
            return _fold_module(expr)
        if matcher.match(self._functions, expr):
            return _fold_function(expr)
        if is_call_module(expr, (M.ConvBn2d, M.ConvTransposeBn2d)):
            return _fold_joined(expr)
        return False


def _evaluates(norm: Any) -> bool:
    if norm.running_mean is None:
        return False
    if norm.training and not norm.freeze:
        warnings.warn(
            "FuseConvBn: a batch normalisation in training is left as it is; call eval() first",
            stacklevel=2,
        )
        return False
    return True


def _fold_module(expr: Expr) -> bool:
    target, value = expr.inputs[0], expr.inputs[1]
    assert isinstance(target, ModuleNode)
    before = value.expr
    graph = graph_of(expr)
    conv: Any = before.inputs[0]
    norm: Any = target.owner
    alone = only_reader(graph, value) is expr and calls_of(before) == 1
    if not alone or not isinstance(conv.expr, GetAttr) or not _evaluates(norm):
        return False
    replace_module(conv, scaled_conv(conv.owner, *statistics(norm)))
    substitute(graph, expr.outputs[0], value)
    if isinstance(target.expr, GetAttr) and calls_of(expr) == 1:
        source: Any = target.expr.inputs[0]
        remove(source.owner, target.expr.attr_name)
    _drop(expr)
    return True


def _drop(expr: Expr) -> None:
    """Drop a call, and the read of its module where nothing else needs it."""
    graph = graph_of(expr)
    target = expr.inputs[0]
    graph._remove(expr)
    if not target.users and isinstance(target.expr, GetAttr):
        graph._remove(target.expr)


_PLAIN = {
    M.ConvBn2d: M.Conv2d, M.ConvBnRelu2d: M.ConvRelu2d,
    M.ConvTransposeBn2d: M.ConvTranspose2d, M.ConvTransposeBnRelu2d: M.ConvTransposeRelu2d,
}  # fmt: skip


def _fold_joined(expr: Expr) -> bool:
    target: Any = expr.inputs[0]
    joined = target.owner
    kind: Any = _PLAIN.get(type(joined))
    if kind is None or not isinstance(target.expr, GetAttr) or not _evaluates(joined.bn):
        return False
    conv = joined.conv if hasattr(joined, "conv") else joined.conv_transpose2d
    folded = scaled_conv(conv, *statistics(joined.bn))
    made = object.__new__(kind)
    vars(made).update(vars(folded))
    replace_module(target, made)
    return True


def _fold_function(expr: Expr) -> bool:
    assert isinstance(expr, CallFunction)
    named = expr.named_args
    value: Any = named["inp"]
    before: Any = value.expr
    graph = graph_of(expr)
    parts = {
        key: get_const_value(named.get(key))
        for key in ("running_mean", "running_var", "weight", "bias")
    }
    conv = before.named_args
    weight, old = get_const_value(conv.get("weight")), get_const_value(conv.get("bias"))
    unknown = any(parts[key] is None for key in ("running_mean", "running_var")) or any(
        isinstance(named.get(key), Node) and parts[key] is None for key in ("weight", "bias")
    )
    if (
        unknown
        or weight is None
        or (isinstance(conv.get("bias"), Node) and old is None)
        or named.get("training")
        or only_reader(graph, value) is not expr
    ):
        return False
    count = parts["running_mean"].size

    def flat(array: Any, default: float) -> np.ndarray:
        return np.full(count, default) if array is None else array.reshape(-1).astype(np.float64)

    factor = flat(parts["weight"], 1.0) / np.sqrt(
        flat(parts["running_var"], 1.0) + named.get("eps", 1e-5)
    )
    shift = (flat(old, 0.0) - flat(parts["running_mean"], 0.0)) * factor + flat(parts["bias"], 0.0)
    lead = weight.shape[: 1 if weight.ndim == 4 else 2]
    scaled = weight.astype(np.float64) * factor.reshape(*lead, *(1,) * (weight.ndim - len(lead)))
    new_weight = constant_before(graph, before, scaled.astype(weight.dtype), "weight")
    new_bias = constant_before(
        graph, before, shift.astype(weight.dtype).reshape(1, count, 1, 1), "bias"
    )
    before.set_arg("weight", new_weight)
    before.set_arg("bias", new_bias)
    substitute(graph, expr.outputs[0], value)
    graph._remove(expr)
    return True


@register_pass("FuseAddMul")
class FuseAddMul(ForwardPass):
    """Join sums and products with constants that follow each other.

    (x + a) + b is x + (a + b), (x a) b is x (a b), and (x + a) b is x b + a b.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "FuseAddMul")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    required_pass = ("NormElemWise",)
    run_once = False

    def run_transform(self, expr: Expr) -> bool:
        """Join one expression with the one before it."""
        outer = _normal(expr)
        if outer is None or not floating(expr):
            return False
        value, b = outer
        inner = _normal(value.expr)
        graph = graph_of(expr)
        if inner is None or only_reader(graph, value) is not expr or not floating(value.expr):
            return False
        x, a = inner
        first, second = value.expr, expr
        if _differ(x, value) or _differ(value, expr.outputs[0]):
            return False
        if is_call_function(first, F.add) and is_call_function(second, F.add):
            made = emit(graph, expr, F.add, x, a + b)
        elif is_call_function(first, F.mul) and is_call_function(second, F.mul):
            made = emit(graph, expr, F.mul, x, a * b)
        elif is_call_function(first, F.add) and is_call_function(second, F.mul):
            made = emit(graph, expr, F.add, emit(graph, expr, F.mul, x, b), a * b)
        else:
            return False
        substitute(graph, expr.outputs[0], made)
        graph._remove(second)
        graph._remove(first)
        return True


def _normal(expr: Expr) -> tuple[Node, Any] | None:
    """Return x and c of ``add(x, c)`` and ``mul(x, c)``."""
    if not is_call_function(expr, (F.add, F.mul)) or len(expr.args) != 2:
        return None
    x, c = expr.args[0], get_const_value(expr.args[1])
    return (x, c) if isinstance(x, Node) and c is not None else None


def _differ(x: Any, result: Any) -> bool:
    """Tell whether a result has another shape or dtype than what it was made from."""
    return bool(x.shape != result.shape or x.dtype != result.dtype)
