"""Fold scale and shift into convolutions, and fuse bias, residual and activation with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import shapes
from ...op import TensorSpec
from ...ops.attrs import Shape
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from . import epilogue
from .epilogue import Fused
from .match import Users, add_array, emit, rewrite

BASE, FUSED = "conv2d", "conv2d_fused"


def run(graph: Graph, options: Options) -> Graph:
    """Rewrite each chain that starts at a convolution whose intermediates nobody else reads."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        fused = (
            _scaled(to, node, users)
            or _with_bias(to, node, users)
            or epilogue.with_residual(to, node, users, BASE, FUSED)
            or epilogue.with_activation(to, node, users, BASE, FUSED)
        )
        return None if fused is None else [fused.emit(to, FUSED, node.origin)]

    return rewrite(graph, visit)


def _constant(to: Rebuilder, value: Value) -> np.ndarray | None:
    constant = to.graph.constants.get(value)
    return None if constant is None else constant.array.astype(np.float64)


def _scaled(to: Rebuilder, node: Node, users: Users) -> Fused | None:
    """Fold a batch normalisation, or a product with a constant per channel, into the weight."""
    if node.op.name not in ("batch_norm", "mul"):
        return None
    for index, seen in epilogue.operands(to, node, users, BASE, FUSED):
        if node.op.name == "batch_norm":
            affine = _statistics(to, node) if index == 0 else None
        else:
            factor = _per_channel(to, node, index)
            affine = None if factor is None else (factor, np.zeros_like(factor))
        found = None if affine is None else _folded(to, seen, *affine)
        if found is not None:
            return found
    return None


def _statistics(to: Rebuilder, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and shift of a batch normalisation with constant statistics."""
    arrays = [_constant(to, value) for value in to.mapped(node.inputs[1:])]
    known = [array for array in arrays if array is not None]
    if len(known) != len(arrays):
        return None
    mean, variance, weight, bias = known
    scale = weight / np.sqrt(variance + node.attrs.eps)
    return scale, bias - mean * scale


def _per_channel(to: Rebuilder, node: Node, index: int) -> np.ndarray | None:
    """Return the other operand of a node where it is a constant per channel, as (O,)."""
    other = to.map[node.inputs[1 - index]]
    channels = int(node.inputs[index].spec.shape[1])
    array = _constant(to, other)
    if array is None or not _is_channel_shape(other.spec, channels):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,))


def _is_channel_shape(spec: TensorSpec, channels: int) -> bool:
    """Tell whether a value broadcasts along the channels of NCHW only: (O,1,1), (1,O,1,1), ()."""
    shape = tuple(shapes.expr_of(extent) for extent in spec.shape)
    if all(extent == 1 for extent in shape):
        return len(shape) <= 4
    return len(shape) <= 4 and (1,) * (4 - len(shape)) + shape == (1, channels, 1, 1)


def _folded(to: Rebuilder, seen: Fused, scale: np.ndarray, shift: np.ndarray) -> Fused | None:
    x, w = seen.operands
    weight = _constant(to, w)
    if weight is None or seen.residual is not None:
        return None
    name = to.graph.constants[w].name
    bias: np.ndarray = np.zeros_like(shift)
    if seen.bias is not None:
        known = _constant(to, seen.bias)
        if known is None:
            return None
        bias = known
    bias = bias * scale + shift
    scaled = add_array(to, (weight * scale[:, None, None, None]).astype(w.spec.dtype), name)
    added = None
    if seen.bias is not None or bias.any():
        added = add_array(to, bias.astype(w.spec.dtype), f"{name}.bias" if name else "")
    return replace(seen, operands=(x, scaled), bias=added)


def _with_bias(to: Rebuilder, node: Node, users: Users) -> Fused | None:
    """Take in an addition of one value per channel, before any residual."""
    if node.op.name != "add":
        return None
    for index, seen in epilogue.operands(to, node, users, BASE, FUSED):
        other = to.map[node.inputs[1 - index]]
        out = node.inputs[index].spec
        channels = int(out.shape[1])
        if seen.residual is not None or not _is_channel_shape(other.spec, channels):
            continue
        if node.outputs[0].spec.ndim != 4 or other.spec.dtype != out.dtype:
            continue
        array = _constant(to, other)
        old = np.zeros(channels) if seen.bias is None else _constant(to, seen.bias)
        if array is not None and old is not None:
            total = (old + np.broadcast_to(array.reshape(-1), (channels,))).astype(out.dtype)
            return replace(seen, bias=add_array(to, total, to.graph.constants[other].name))
        if seen.bias is None and int(other.spec.size) == channels:
            vector = emit(to, "reshape", [other], Shape((channels,)), node.origin)
            return replace(seen, bias=vector)
    return None
