"""Compute quantised ops exactly: products by BLAS, in a float that holds every sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel, bytes_cost
from ...op import Ints
from ...ops import quantized_rules as rules
from ...ops.conv import taps
from ...records import record

Arrays = Sequence[np.ndarray]

_EIGHT = "|".join(rules.EIGHT_BITS)
# A float holds every integer up to this one, so sums of products below it are exact in any order.
_EXACT_FLOAT32 = 2**24


def _exact_float(length: int, x: np.ndarray, w: np.ndarray) -> Any:
    """Return the narrower float in which sums of ``length`` products are exact."""
    return np.float32 if _reach(x) * _reach(w) * length <= _EXACT_FLOAT32 else np.float64


def _reach(centred: np.ndarray) -> int:
    return int(np.abs(centred).max()) if centred.size else 0


def _centred(array: np.ndarray, zero_points: Any) -> np.ndarray:
    return np.asarray(array.astype(np.int16) - np.asarray(zero_points, np.int16))


def _scaled(integers: np.ndarray, factor: Any) -> np.ndarray:
    values = integers.astype(np.float32)
    values *= np.asarray(factor, np.float32)
    return values


def _store(values: np.ndarray, attrs: Any, out: np.ndarray) -> None:
    """Round, add the zero point and clamp in place; what float32 cannot add exactly is clamped."""
    np.rint(values, out=values)
    values += np.float32(attrs.zero_point)
    np.fmax(values, np.float32(attrs.lower), out=values)  # fmax turns NaN into the bound
    np.fmin(values, np.float32(attrs.upper), out=values)
    np.copyto(out, values, casting="unsafe")


def _finish(sums: np.ndarray, rest: Arrays, attrs: Any, axis: int, out: np.ndarray) -> None:
    """Apply the epilogue of a product to its exact sums."""
    accumulator, extra = sums.astype(np.int32), list(rest)
    if attrs.has_bias:
        accumulator += rules.along(extra.pop(0), np.int32, axis, sums.ndim)
    values = _scaled(accumulator, rules.along(attrs.multipliers, np.float32, axis, sums.ndim))
    if attrs.has_residual:
        integers = _centred(extra.pop(0), attrs.residual_zero_point)
        values += _scaled(integers, attrs.residual_multiplier)
    _store(values, attrs, out)


def _conv2d(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    from .conv import convolve

    (out,) = outputs
    if not out.size:
        return
    x = _centred(inputs[0], attrs.x_zero_point)
    w = _centred(inputs[1], rules.along(attrs.w_zero_points, np.int16, 0, 4))
    dtype = _exact_float(w.shape[1] * w.shape[2] * w.shape[3], x, w)
    sums = np.empty(out.shape, dtype)
    convolve(x.astype(dtype), w.astype(dtype), attrs, sums)
    _finish(sums, inputs[2:], attrs, 1, out)


def _matmul(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (out,) = outputs
    if not out.size:
        return
    a = inputs[0].swapaxes(-1, -2) if attrs.transpose_a else inputs[0]
    b = inputs[1].swapaxes(-1, -2) if attrs.transpose_b else inputs[1]
    a = _centred(a, attrs.x_zero_point)
    b = _centred(b, rules.along(attrs.w_zero_points, np.int16, b.ndim - 1, b.ndim))
    dtype = _exact_float(a.shape[-1], a, b)
    sums = np.matmul(a.astype(dtype), b.astype(dtype))
    _finish(sums, inputs[2:], attrs, sums.ndim - 1, out)


def _quantize(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x,), (out,) = inputs, outputs
    least, largest = rules.quant_range(attrs.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(x / rules.along(attrs.scales, np.float32, attrs.axis, x.ndim))
        np.rint(values, out=values)
        values += rules.along(attrs.zero_points, np.float32, attrs.axis, x.ndim)
    np.fmax(values, np.float32(least), out=values)
    np.fmin(values, np.float32(largest), out=values)
    np.copyto(out, values, casting="unsafe")


def _quantize_supports(call: Call) -> str | None:
    stored = call.outputs[0].dtype.name
    return None if stored in rules.EIGHT_BITS else f"rounds to 8 bits in float32, got {stored}"


def _dequantize(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x,), (out,) = inputs, outputs
    zero = rules.along(attrs.zero_points, np.int16, attrs.axis, x.ndim)
    scale = rules.along(attrs.scales, np.float32, attrs.axis, x.ndim)
    np.multiply(_centred(x, zero), scale, out=out, dtype=np.float32)


def _requantize(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    values = _scaled(_centred(inputs[0], attrs.x_zero_point), attrs.multiplier)
    _store(values, attrs, outputs[0])


def _lookup(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, table = inputs
    if x.dtype == np.int8:
        x, table = x.view(np.uint8), np.roll(table, 128)
    np.take(table, x, out=outputs[0])


def _add(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    a = _scaled(_centred(inputs[0], attrs.a_zero_point), attrs.a_multiplier)
    b = _scaled(_centred(inputs[1], attrs.b_zero_point), attrs.b_multiplier)
    _store(np.asarray(a + b), attrs, outputs[0])


def _concat(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (out,), start = outputs, 0
    for x, zero, factor in zip(inputs, attrs.x_zero_points, attrs.multipliers, strict=True):
        stop = start + x.shape[attrs.axis]
        part = out[(slice(None),) * attrs.axis + (slice(start, stop),)]
        _store(_scaled(_centred(x, zero), factor), attrs, part)
        start = stop


@record()
class _Neighbours:
    """A window whose elements lie side by side."""

    stride: Ints
    dilation: Ints = (1, 1)


def _avg_pool2d(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    top, left, bottom, right = attrs.padding
    widths = ((0, 0), (0, 0), (top, bottom), (left, right))
    integers = np.pad(_centred(x, attrs.x_zero_point).astype(np.int32), widths)
    inside = np.pad(np.ones((1, 1, *x.shape[2:]), np.int32), widths)
    sums, counts = np.zeros(out.shape, np.int32), np.zeros((1, 1, *out.shape[2:]), np.int32)
    for _, _, (rows, cols) in taps(_Neighbours(attrs.stride), attrs.kernel, out.shape[2:]):
        sums += integers[:, :, rows, cols]
        counts += inside[:, :, rows, cols]
    if attrs.count_include_pad:
        counts[...] = attrs.kernel[0] * attrs.kernel[1]
    factors = np.float32(attrs.multiplier) / counts.astype(np.float32)
    _store(_scaled(sums, factors), attrs, out)


def _global_pool(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x,), (out,) = inputs, outputs
    count = x.shape[2] * x.shape[3]
    sums = x.sum(axis=(2, 3), dtype=np.int64, keepdims=True) - count * attrs.x_zero_point
    factor = np.float32(attrs.multiplier) / np.float32(count)
    _store(_scaled(sums, factor), attrs, out)


def _only_global(call: Call) -> str | None:
    size = tuple(map(int, call.attrs.size))
    return None if size == (1, 1) else f"averages whole images, got size {size}"


def _cost(call: Call) -> float:
    """Count a multiplication for every weight that meets an output element."""
    inner = call.inputs[1].size / max(1, call.outputs[0].shape[-1])
    if call.op.name == "conv2d_quantized":
        inner = call.inputs[1].size / max(1, call.inputs[1].shape[0])
    return 2e-5 + bytes_cost(call) * 4 + call.outputs[0].size * inner * 1e-10


KERNELS: tuple[Kernel, ...] = (
    Kernel("conv2d_q8__numpy_im2col", "conv2d_quantized", _conv2d, cost=_cost),
    Kernel("matmul_q8__numpy_blas", "matmul_quantized", _matmul, cost=_cost),
    Kernel("quantize_q8__numpy", "quantize", _quantize, supports=_quantize_supports),
    Kernel("dequantize_q8__numpy", "dequantize", _dequantize, dtypes=(_EIGHT,)),
    Kernel("requantize_q8__numpy", "requantize", _requantize, dtypes=(_EIGHT,)),
    Kernel("lookup_q8__numpy", "lookup_quantized", _lookup),
    Kernel("add_q8__numpy", "add_quantized", _add),
    Kernel("concat_q8__numpy", "concat_quantized", _concat),
    Kernel("avg_pool2d_q8__numpy_taps", "avg_pool2d_quantized", _avg_pool2d),
    Kernel(
        "adaptive_avg_pool2d_q8__numpy_global",
        "adaptive_avg_pool2d_quantized",
        _global_pool,
        supports=_only_global,
    ),
)
