"""Single elements of quantised ops, on Python's integers and fractions rounded step by step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .oracles import Arrays

Place = tuple[int, ...]

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}


def rounded(value: Fraction) -> float:
    """Round an exact value to float32: to 24 bits, halves to even (normal range only)."""
    if value == 0:
        return 0.0
    exponent = 0
    size = abs(value)
    while size >= 2**24:
        size, exponent = size / 2, exponent + 1
    while size < 2**23:
        size, exponent = size * 2, exponent - 1
    return float(round(size) * Fraction(2) ** exponent * (1 if value > 0 else -1))


def _scaled(integer: int, factor: float) -> float:
    return rounded(Fraction(rounded(Fraction(integer))) * Fraction(factor))


def _stored(value: float, attrs: Any) -> int:
    if np.isnan(value):
        return int(attrs.lower)
    if np.isinf(value):
        return int(attrs.upper if value > 0 else attrs.lower)
    return int(min(max(round(value) + attrs.zero_point, attrs.lower), attrs.upper))


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if len(values) > 1 else values[0]


def _wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _finish(total: int, channel: int, place: Place, rest: Sequence[Any], attrs: Any) -> int:
    rest = list(rest)
    if attrs.has_bias:
        total = _wrap(total + int(rest.pop(0)[channel]))
    value = _scaled(total, _at(attrs.multipliers, channel))
    if attrs.has_residual:
        other = int(rest.pop(0)[place]) - attrs.residual_zero_point
        value = rounded(Fraction(value) + Fraction(_scaled(other, attrs.residual_multiplier)))
    return _stored(value, attrs)


def _conv2d_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    (x, w), (n, o, i, j) = arrays[:2], place
    first = o // (w.shape[0] // attrs.groups) * w.shape[1]
    total = 0
    for c, a, b in itertools.product(*map(range, w.shape[1:])):
        row = i * attrs.stride[0] - attrs.padding[0] + a * attrs.dilation[0]
        col = j * attrs.stride[1] - attrs.padding[1] + b * attrs.dilation[1]
        inside = 0 <= row < x.shape[2] and 0 <= col < x.shape[3]
        q = int(x[n, first + c, row, col]) if inside else attrs.x_zero_point
        total += (q - attrs.x_zero_point) * (int(w[o, c, a, b]) - _at(attrs.w_zero_points, o))
    return _finish(total, o, place, arrays[2:], attrs)


def _matmul_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    a, b = arrays[:2]
    a = a.swapaxes(-1, -2) if attrs.transpose_a else a
    b = b.swapaxes(-1, -2) if attrs.transpose_b else b
    batch = place[:-2]
    left: Any = (*batch[len(batch) - a.ndim + 2 :], place[-2])
    right: Any = (*batch[len(batch) - b.ndim + 2 :], slice(None), place[-1])
    row, column = a[left], b[right]
    zero = _at(attrs.w_zero_points, place[-1])
    pairs = zip(row.tolist(), column.tolist(), strict=True)
    total = sum((p - attrs.x_zero_point) * (q - zero) for p, q in pairs)
    return _finish(total, place[-1], place, arrays[2:], attrs)


def _quantize(arrays: Arrays, attrs: Any, place: Place) -> int:
    value, channel = float(arrays[0][place]), place[attrs.axis] if attrs.axis >= 0 else 0
    low, high = _RANGES[attrs.dtype]
    if np.isnan(value):
        return low
    if np.isinf(value):
        return high if value > 0 else low
    ratio = rounded(Fraction(value) / Fraction(_at(attrs.scales, channel)))
    return int(min(max(round(ratio) + _at(attrs.zero_points, channel), low), high))


def _dequantize(arrays: Arrays, attrs: Any, place: Place) -> float:
    channel = place[attrs.axis] if attrs.axis >= 0 else 0
    integer = int(arrays[0][place]) - _at(attrs.zero_points, channel)
    return _scaled(integer, _at(attrs.scales, channel))


def _requantize(arrays: Arrays, attrs: Any, place: Place) -> int:
    return _stored(_scaled(int(arrays[0][place]) - attrs.x_zero_point, attrs.multiplier), attrs)


def _lookup_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    x, table = arrays
    return int(table[int(x[place]) - _RANGES[x.dtype.name][0]])


def _add_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    a, b = (int(np.broadcast_to(x, shape)[place]) for x in arrays)
    left = _scaled(a - attrs.a_zero_point, attrs.a_multiplier)
    right = _scaled(b - attrs.b_zero_point, attrs.b_multiplier)
    return _stored(rounded(Fraction(left) + Fraction(right)), attrs)


def _concat_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    index, which = place[attrs.axis], 0
    while index >= arrays[which].shape[attrs.axis]:
        index -= arrays[which].shape[attrs.axis]
        which += 1
    where = (*place[: attrs.axis], index, *place[attrs.axis + 1 :])
    integer = int(arrays[which][where]) - attrs.x_zero_points[which]
    return _stored(_scaled(integer, attrs.multipliers[which]), attrs)


def _averaged(x: np.ndarray, attrs: Any, spans: Sequence[Sequence[int]], count: int | None) -> int:
    values = [int(x[r, c]) - attrs.x_zero_point for r in spans[0] for c in spans[1]]
    divisor = len(values) if count is None else count
    factor = rounded(Fraction(attrs.multiplier) / divisor)
    return _stored(_scaled(sum(values), factor), attrs)


def _avg_pool2d_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    x, size = arrays[0][place[:2]], arrays[0].shape[2:]
    spans = []
    for axis in (0, 1):
        start = place[2 + axis] * attrs.stride[axis] - attrs.padding[axis]
        spans.append([p for p in range(start, start + attrs.kernel[axis]) if 0 <= p < size[axis]])
    count = attrs.kernel[0] * attrs.kernel[1] if attrs.count_include_pad else None
    return _averaged(x, attrs, spans, count)


def _adaptive_avg_pool2d_quantized(arrays: Arrays, attrs: Any, place: Place) -> int:
    x, size = arrays[0][place[:2]], arrays[0].shape[2:]
    spans = [
        range(p * n // o, -(-(p + 1) * n // o))
        for p, n, o in zip(place[2:], size, attrs.size, strict=True)
    ]
    return _averaged(x, attrs, spans, None)


def _linear_dynamic(arrays: Arrays, attrs: Any, place: Place) -> float:
    x, w, scales = arrays[:3]
    values = [float(v) for v in x.reshape(-1)]
    if not all(map(math.isfinite, values)):
        return math.nan
    low, high = Fraction(min(*values, 0.0, 0.0)), Fraction(max(*values, 0.0, 0.0))
    span = rounded(high - low)
    if span >= 2.0**128:
        return math.nan
    scale = Fraction(max(rounded(Fraction(span) / 255), 2.0**-126))
    zero = min(max(round(rounded(-low / scale)), 0), 255)
    row = [Fraction(float(v)) for v in x[place[:-1]]]
    codes = [min(max(round(rounded(v / scale)) + zero, 0), 255) - zero for v in row]
    total = sum(q * int(v) for q, v in zip(codes, w[place[-1]].tolist(), strict=True))
    factor = rounded(Fraction(float(scales[place[-1]])) * Fraction(scale))
    value = _scaled(total, factor)
    if not attrs.has_bias:
        return value
    return rounded(Fraction(value) + Fraction(float(arrays[3][place[-1]])))


def _linear_int4(arrays: Arrays, attrs: Any, place: Place) -> float:
    x, stored, scales = arrays[:3]
    output, total = place[-1], []
    for i, value in enumerate(x[place[:-1]].tolist()):
        half = int(stored[output, i // 2]) // (16 if i % 2 else 1) % 16
        total.append(value * (half - 8) * float(scales[output, i // attrs.group]))
    bias = float(arrays[3][output]) if attrs.has_bias else 0.0
    return math.fsum((*total, bias))


# Each gives the element of the only output at a place.
EXACT: dict[str, Callable[[Arrays, Any, Place], float]] = {
    "conv2d_quantized": _conv2d_quantized,
    "matmul_quantized": _matmul_quantized,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
    "lookup_quantized": _lookup_quantized,
    "add_quantized": _add_quantized,
    "concat_quantized": _concat_quantized,
    "avg_pool2d_quantized": _avg_pool2d_quantized,
    "adaptive_avg_pool2d_quantized": _adaptive_avg_pool2d_quantized,
    "linear_dynamic": _linear_dynamic,
    "linear_int4": _linear_int4,
}
