"""Move a scale of a result back into the layer that the result comes from."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ... import functional as F
from ... import module as M
from ...imperative.tensor import Parameter
from ..expr import (
    Expr,
    GetAttr,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
)
from ..node import Node
from .const_pass import floating
from .fuse_pass import calls_of, replace_module, scaled_conv
from .pass_base import BackwardPass, register_pass
from .utils import get_const_value, graph_of, only_reader, substitute

# f(c x) = c f(x) for c > 0; the second group for one number only.
_PER_CHANNEL_FUNCTIONS = (
    F.relu, F.nn.leaky_relu, F.nn.max_pool2d, F.nn.avg_pool2d, F.nn.adaptive_avg_pool2d,
    F.nn.adaptive_max_pool2d,
)  # fmt: skip
_PER_CHANNEL_MODULES = (
    M.ReLU, M.LeakyReLU, M.MaxPool2d, M.AvgPool2d, M.AdaptiveAvgPool2d, M.AdaptiveMaxPool2d,
    M.Identity,
)  # fmt: skip
_MOVES = (F.reshape, F.flatten, F.transpose, F.squeeze, F.expand_dims)
_MOVE_METHODS = ("reshape", "flatten", "transpose")


@register_pass("BackwardFoldScale")
class BackwardFoldScale(BackwardPass):
    """Fold a product with a positive constant into the convolution or linear map before it.

    Between the two may stand what is homogeneous: ReLU, pooling, and, for one number, reshaping.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x - 1) * 2 + x.shape[0]
    >>> from tianyuan.traced_module import optimize
    >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
    >>> optimize(traced, "BackwardFoldScale")(ty.Tensor([3.0, 4.0])).numpy()
    array([6., 8.], dtype=float32)
    """

    required_pass = ("NormElemWise",)
    run_once = False

    def run_transform(self, expr: Expr) -> bool:
        """Fold one product."""
        if not is_call_function(expr, F.mul) or not floating(expr):
            return False
        value, scale = expr.args[0], get_const_value(expr.args[1])
        graph = graph_of(expr)
        if scale is None or not isinstance(value, Node) or not _usable(value, np.asarray(scale)):
            return False
        scales = np.asarray(scale, np.float64)
        node, reader = value, expr
        while only_reader(graph, node) is reader:
            layer = node.expr
            if _foldable(layer):
                if not _fold(layer, scales):
                    return False
                substitute(graph, expr.outputs[0], value)
                graph._remove(expr)
                return True
            if not _passes(layer, scales.size == 1) or (scales <= 0).any():
                return False
            reader, node = layer, _source(layer)
        return False


def _usable(value: Any, scale: np.ndarray) -> bool:
    """Tell whether a scale is one number, or one per channel of NCHW or (N, C)."""
    if value.shape is None or scale.size == 1:
        return value.shape is not None and scale.ndim <= len(value.shape)
    rank = len(value.shape)
    wanted = {4: (1, value.shape[1], 1, 1), 2: (1, value.shape[-1])}.get(rank)
    return wanted is not None and (1,) * (rank - scale.ndim) + scale.shape == wanted


def _source(expr: Expr) -> Node:
    """Return the tensor that an expression works on."""
    return expr.inputs[1 if is_call_module(expr) else 0]


def _passes(expr: Expr, single: bool) -> bool:
    if is_call_module(expr):
        kind = type(expr.inputs[0].owner)  # type: ignore[attr-defined]
        return kind in _PER_CHANNEL_MODULES
    if is_call_function(expr, _PER_CHANNEL_FUNCTIONS):
        return True
    return single and (is_call_function(expr, _MOVES) or is_call_tensor_method(expr, _MOVE_METHODS))


def _foldable(expr: Expr) -> bool:
    if not is_call_module(expr) or not isinstance(expr.inputs[0].expr, GetAttr):
        return False
    owner: Any = expr.inputs[0]
    return type(owner.owner) in (M.Conv2d, M.Linear) and calls_of(expr) == 1


def _fold(expr: Expr, scales: np.ndarray) -> bool:
    node: Any = expr.inputs[0]
    layer = node.owner
    if isinstance(layer, M.Conv2d):
        factor = np.broadcast_to(scales.reshape(-1), (layer.out_channels,))
        made = scaled_conv(layer, factor, np.zeros(layer.out_channels))
        if layer.bias is None:
            made.bias = None
        replace_module(node, made)
        return True
    shape = expr.outputs[0].shape  # type: ignore[attr-defined]
    if scales.size != 1 and len(shape) != 2:
        return False
    weight = layer.weight.numpy()
    factor = np.broadcast_to(scales.reshape(-1), weight.shape[:1])
    made = copy.copy(layer)
    made.weight = Parameter((weight * factor[:, None]).astype(weight.dtype))
    if layer.bias is not None:
        bias = layer.bias.numpy()
        made.bias = Parameter((bias * factor.reshape(bias.shape)).astype(weight.dtype))
    replace_module(node, made)
    return True
