"""Match convolutions and matrix products of dequantised values, with bias and residual."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import registry
from ...ops import quantized_rules as rules
from ...ops.quantized import Dequantize
from ...records import record
from ..graph import Node, Rebuilder, Value
from .match import Users, add_array, emit, produced_by, same_shape
from .quantized_values import Form, Quantised, array_of, dequantised, factor

_NAMES = {"conv2d": "conv2d_quantized", "matmul": "matmul_quantized"}


@record()
class _Product:
    """A product of stored values and what is added to it."""

    node: Node
    x: Quantised
    weight: Value | np.ndarray  # a value of the new graph, or int8 data
    scales: np.ndarray  # of the weight, one or one per output channel
    zero_points: tuple[int, ...]
    bias: np.ndarray | None = None
    residual: Quantised | None = None

    @property
    def channels(self) -> int:
        """Return the extent of the axis that weight scales go along."""
        shape = self.node.outputs[0].spec.shape
        return int(shape[1] if self.node.op.name == "conv2d" else shape[-1])


def integers(to: Rebuilder, users: Users, form: Form, value: Value) -> Value | None:
    """Return the integers of a product with its additions, or None where it is none."""
    found = _match(to, users, value)
    return None if found is None else _emit(to, found, form)


def _match(to: Rebuilder, users: Users, value: Value) -> _Product | None:
    node = value.node
    if node is None or not users.single(value):
        return None
    if node.op.name in _NAMES:
        return _product(to, node)
    if node.op.name != "add":
        return None
    for index in (0, 1):
        inner, other = node.inputs[index], node.inputs[1 - index]
        if not same_shape(inner.spec.shape, value.spec.shape):
            continue
        found = _match(to, users, inner)
        found = None if found is None else _extended(to, found, other)
        if found is not None:
            return found
    return None


def _extended(to: Rebuilder, found: _Product, other: Value) -> _Product | None:
    """Take in what is added to a product: first a bias, then a residual."""
    if found.residual is not None:
        return None
    source = dequantised(to, other)
    if source is not None and same_shape(other.spec.shape, found.node.outputs[0].spec.shape):
        return replace(found, residual=source)
    if found.bias is not None or not _is_channel_shape(found, other):
        return None
    bias = _bias(to, found, other)
    return None if bias is None else replace(found, bias=bias)


def _is_channel_shape(found: _Product, other: Value) -> bool:
    out = found.node.outputs[0].spec
    axis = 1 if found.node.op.name == "conv2d" else out.ndim - 1
    shape = [int(n) for n in other.spec.shape]
    shape = [1] * (out.ndim - len(shape)) + shape
    return all(n == (found.channels if i == axis else 1) for i, n in enumerate(shape))


def _bias(to: Rebuilder, found: _Product, other: Value) -> np.ndarray | None:
    """Return a bias as integers of the accumulator's scale."""
    maker, scales = other.node, found.x.scale * found.scales
    while maker is not None and maker.op.name == "reshape":
        maker = maker.inputs[0].node
    if maker is not None and maker.op.name == "dequantize":
        stored = array_of(to.source, maker.inputs[0])
        exact = np.all(np.asarray(maker.attrs.scales, np.float32) == scales.astype(np.float32))
        if stored is not None and stored.dtype == np.int32 and exact:
            zero = np.asarray(maker.attrs.zero_points, np.int64)
            return rules.wrapped(stored.reshape(-1).astype(np.int64) - zero)
    array = array_of(to.source, other)
    if array is None:
        return None
    values = np.rint(array.reshape(-1).astype(np.float64) / scales)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > rules.ACCUMULATOR_LIMIT:
        return None
    return values.astype(np.int32)


def _product(to: Rebuilder, node: Node) -> _Product | None:
    x, maker = dequantised(to, node.inputs[0]), produced_by(node.inputs[1], "dequantize")
    if x is None or maker is None:
        return None
    attrs: Dequantize = maker.attrs
    channel = 0
    if node.op.name == "matmul":
        channel = node.inputs[1].spec.ndim - (2 if node.attrs.transpose_b else 1)
    if attrs.axis not in (-1, channel):
        return None
    weight: Value | np.ndarray = to.map[maker.inputs[0]]
    zeros = attrs.zero_points
    unsigned = maker.inputs[0].spec.dtype == np.uint8
    data = array_of(to.source, maker.inputs[0]) if unsigned else None
    if data is not None:
        # The same numbers 128 lower, with their zero points.
        weight, zeros = (data.astype(np.int16) - 128).astype(np.int8), tuple(z - 128 for z in zeros)
    allowed = ("int8",) if node.op.name == "conv2d" else rules.EIGHT_BITS
    dtype = weight.dtype if isinstance(weight, np.ndarray) else weight.spec.dtype
    if dtype.name not in allowed or not _fits(node, x, dtype, zeros):
        return None
    if len(set(zeros)) == 1:
        zeros = zeros[:1]
    return _Product(node, x, weight, np.asarray(attrs.scales, np.float64), zeros)


def _fits(node: Node, x: Quantised, dtype: np.dtype, zeros: tuple[int, ...]) -> bool:
    """Tell whether the sums of a product fit int32."""
    w = node.inputs[1].spec.shape
    if node.op.name == "conv2d":
        length = int(w[1]) * int(w[2]) * int(w[3])
    else:
        length = int(w[-1 if node.attrs.transpose_b else -2])
    return length <= rules.longest_reduction((x.value.spec.dtype, (x.zero_point,)), (dtype, zeros))


def _emit(to: Rebuilder, found: _Product, form: Form) -> Value | None:
    factors = rules.ratios(found.x.scale * found.scales, form.scale)
    residual = found.residual
    share = 1.0 if residual is None else factor(residual.scale, form.scale)
    if factors is None or share is None:
        return None
    weight = found.weight
    inputs = [
        found.x.value,
        add_array(to, weight) if isinstance(weight, np.ndarray) else weight,
    ]
    if found.bias is not None:
        inputs.append(add_array(to, np.broadcast_to(found.bias, (found.channels,)).copy()))
    if residual is not None:
        inputs.append(residual.value)
    node = found.node
    own: dict[str, Any] = {name: getattr(node.attrs, name) for name in vars(node.attrs)}
    op = registry.get_op(_NAMES[node.op.name])
    attrs = op.attrs(
        **own,
        has_bias=found.bias is not None,
        has_residual=residual is not None,
        x_zero_point=found.x.zero_point,
        w_zero_points=found.zero_points,
        multipliers=factors,
        residual_zero_point=0 if residual is None else residual.zero_point,
        residual_multiplier=share,
        **form.attrs(),
    )
    return emit(to, op.name, inputs, attrs, node.origin)
