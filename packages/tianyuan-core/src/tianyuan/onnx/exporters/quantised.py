"""How quantised ops are written: floats between QuantizeLinear and DequantizeLinear.

An op's attributes tell products and quotients of scales. The scale of an input is what its spec
says, or 1 where nothing is known; only these products matter for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import as_dtype
from ...graph.graph import Node
from ..reader import code_of
from ..writer import UnsupportedError, Writer, exporter, spec_of
from .pool import adaptive_pool2d, window


def dequantised(
    w: Writer, x: str, scales: Sequence[float], zeros: Sequence[int], dtype: Any, axis: int = -1
) -> str:
    """Write the float32 value of integers; one scale and zero point, or one per channel."""
    several = len(scales) > 1 or len(zeros) > 1
    count = max(len(scales), len(zeros))
    given = [
        np.full(count, values, np.float64) if len(values) == 1 else np.asarray(values)
        for values in (scales, zeros)
    ]
    parts = [given[0].astype(np.float32), given[1].astype(dtype)]
    if not several:
        parts = [part.reshape(()) for part in parts]
    return w.op(
        "DequantizeLinear", x, *(w.constant(part) for part in parts), axis=axis if several else None
    )


def finished(w: Writer, value: str, attrs: Any) -> str:
    """Write the clamp and the rounding to integers that end a quantised op."""
    dtype = as_dtype(attrs.dtype)
    limits = np.iinfo(dtype)
    bounds = [
        w.constant((bound - attrs.zero_point) * attrs.scale, np.float32) if narrower else ""
        for bound, narrower in (
            (attrs.lower, attrs.lower > limits.min),
            (attrs.upper, attrs.upper < limits.max),
        )
    ]
    if any(bounds):
        value = w.op("Clip", value, *(bounds if bounds[1] else bounds[:1]))
    return w.op(
        "QuantizeLinear", value, w.constant(attrs.scale, np.float32),
        w.constant(attrs.zero_point, dtype),
    )  # fmt: skip


def _scale(node: Node, index: int) -> float:
    quant = spec_of(node, index).quant
    return quant.scales[0] if quant is not None and len(quant.scales) == 1 else 1.0


def _dtype(node: Node, index: int) -> np.dtype:
    found: np.dtype = spec_of(node, index).dtype
    return found


@exporter("quantize")
def quantize(w: Writer, node: Node, x: str) -> str:
    """Write a rounding to integers."""
    attrs = node.attrs
    dtype = as_dtype(attrs.dtype)
    if dtype == np.int32:
        raise UnsupportedError("QuantizeLinear gives no int32")
    several = attrs.axis >= 0
    scales, zeros = np.float32(attrs.scales), np.asarray(attrs.zero_points, dtype)
    if not several:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    return w.op(
        "QuantizeLinear", x, w.constant(scales), w.constant(zeros),
        axis=attrs.axis if several else None,
    )  # fmt: skip


@exporter("dequantize")
def dequantize(w: Writer, node: Node, x: str) -> str:
    """Write the value of integers."""
    attrs = node.attrs
    return dequantised(w, x, attrs.scales, attrs.zero_points, _dtype(node, 0), attrs.axis)


@exporter("requantize")
def requantize(w: Writer, node: Node, x: str) -> str:
    """Write a change of scale."""
    attrs = node.attrs
    scale = attrs.multiplier * attrs.scale
    return finished(w, dequantised(w, x, [scale], [attrs.x_zero_point], _dtype(node, 0)), attrs)


@exporter("lookup_quantized")
def lookup_quantized(w: Writer, node: Node, x: str, table: str) -> str:
    """Write the taking of table entries."""
    place = w.op("Cast", x, to=code_of(np.dtype(np.int32)))
    if _dtype(node, 0) == np.int8:
        place = w.op("Add", place, w.constant(128, np.int32))
    return w.op("Gather", table, place, axis=0)


@exporter("add_quantized")
def add_quantized(w: Writer, node: Node, a: str, b: str) -> str:
    """Write a sum."""
    attrs = node.attrs
    left = (a, attrs.a_multiplier, attrs.a_zero_point)
    right = (b, attrs.b_multiplier, attrs.b_zero_point)
    sides = [
        dequantised(w, name, [factor * attrs.scale], [zero], _dtype(node, at))
        for at, (name, factor, zero) in enumerate((left, right))
    ]
    return finished(w, w.op("Add", *sides), attrs)


@exporter("concat_quantized")
def concat_quantized(w: Writer, node: Node, *xs: str) -> str:
    """Write values behind each other, brought to one scale."""
    attrs = node.attrs
    parts = [
        dequantised(w, name, [factor * attrs.scale], [zero], _dtype(node, at))
        for at, (name, factor, zero) in enumerate(
            zip(xs, attrs.multipliers, attrs.x_zero_points, strict=True)
        )
    ]
    return finished(w, w.op("Concat", *parts, axis=attrs.axis), attrs)


@exporter("avg_pool2d_quantized")
def avg_pool2d_quantized(w: Writer, node: Node, x: str) -> str:
    """Write the mean of windows."""
    attrs = node.attrs
    scale = attrs.multiplier * attrs.scale
    value = dequantised(w, x, [scale], [attrs.x_zero_point], _dtype(node, 0))
    counts = int(attrs.count_include_pad)
    pooled = w.op("AveragePool", value, count_include_pad=counts, **window(node))
    return finished(w, pooled, attrs)


@exporter("adaptive_avg_pool2d_quantized")
def adaptive_avg_pool2d_quantized(w: Writer, node: Node, x: str) -> str:
    """Write the mean of windows for a given size."""
    attrs = node.attrs
    scale = attrs.multiplier * attrs.scale
    value = dequantised(w, x, [scale], [attrs.x_zero_point], _dtype(node, 0))
    return finished(w, adaptive_pool2d(w, node, value), attrs)


def _operands(
    w: Writer, node: Node, x: str, weight: str, rest: Sequence[str], axis: int
) -> tuple[list[str], str | None]:
    """Return both factors and the bias as floats, and the residual."""
    attrs, extra = node.attrs, list(rest)
    x_scale = _scale(node, 0)
    w_scales = [m * attrs.scale / x_scale for m in attrs.multipliers]
    made = [
        dequantised(w, x, [x_scale], [attrs.x_zero_point], _dtype(node, 0)),
        dequantised(w, weight, w_scales, attrs.w_zero_points, _dtype(node, 1), axis),
    ]
    if attrs.has_bias:
        scales = [m * attrs.scale for m in attrs.multipliers]
        made.append(dequantised(w, extra.pop(0), scales, [0], np.int32, 0))
    residual = None
    if attrs.has_residual:
        residual = dequantised(
            w, extra[0], [attrs.residual_multiplier * attrs.scale], [attrs.residual_zero_point],
            _dtype(node, len(node.inputs) - 1),
        )  # fmt: skip
    return made, residual


@exporter("conv2d_quantized")
def conv2d_quantized(w: Writer, node: Node, x: str, weight: str, *rest: str) -> str:
    """Write a convolution."""
    attrs = node.attrs
    operands, residual = _operands(w, node, x, weight, rest, 0)
    found = w.op(
        "Conv", *operands, kernel_shape=[int(n) for n in spec_of(node, 1).shape[2:]],
        strides=list(attrs.stride), pads=list(attrs.padding), dilations=list(attrs.dilation),
        group=attrs.groups,
    )  # fmt: skip
    return finished(w, w.op("Add", found, residual) if residual else found, attrs)


@exporter("matmul_quantized")
def matmul_quantized(w: Writer, node: Node, a: str, b: str, *rest: str) -> str:
    """Write a product of matrices."""
    attrs, (left, right) = node.attrs, (spec_of(node, 0), spec_of(node, 1))
    columns = right.ndim - (2 if attrs.transpose_b else 1)
    operands, residual = _operands(w, node, a, b, rest, columns)
    for at, (spec, swapped) in enumerate(((left, attrs.transpose_a), (right, attrs.transpose_b))):
        if swapped:
            perm = [*range(spec.ndim - 2), spec.ndim - 1, spec.ndim - 2]
            operands[at] = w.op("Transpose", operands[at], perm=perm)
    found = w.op("MatMul", *operands[:2])
    for extra in (*operands[2:], *((residual,) if residual else ())):
        found = w.op("Add", found, extra)
    return finished(w, found, attrs)
