"""Quantised ops give the integers that Python's own integers and single float32 steps give."""

from __future__ import annotations

import itertools
import struct
from fractions import Fraction

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.ops import quantized, quantized_product
from tianyuan.ops.reference import evaluate
from tianyuan.testing.cases import cases_of

NAMES = [op.name for op in (*quantized.OPS, *quantized_product.OPS)]
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}


def single(value: float) -> float:
    """Round a Python float to float32 by the machine's own conversion."""
    return struct.unpack("f", struct.pack("f", value))[0]


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


def scaled(integer: int, factor: float) -> float:
    return rounded(Fraction(rounded(Fraction(integer))) * Fraction(factor))


def stored(value: float, attrs) -> int:
    if np.isnan(value):
        return attrs.lower
    if np.isinf(value):
        return attrs.upper if value > 0 else attrs.lower
    return min(max(round(value) + attrs.zero_point, attrs.lower), attrs.upper)


def at(values, index: int):
    return values[index] if len(values) > 1 else values[0]


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def finish(total: int, channel: int, place, rest, attrs) -> int:
    rest = list(rest)
    if attrs.has_bias:
        total = wrap(total + int(rest.pop(0)[channel]))
    value = scaled(total, at(attrs.multipliers, channel))
    if attrs.has_residual:
        other = int(rest.pop(0)[place]) - attrs.residual_zero_point
        value = rounded(Fraction(value) + Fraction(scaled(other, attrs.residual_multiplier)))
    return stored(value, attrs)


def conv2d_quantized(arrays, attrs, place) -> int:
    (x, w), (n, o, i, j) = arrays[:2], place
    first = o // (w.shape[0] // attrs.groups) * w.shape[1]
    total = 0
    for c, a, b in itertools.product(*map(range, w.shape[1:])):
        row = i * attrs.stride[0] - attrs.padding[0] + a * attrs.dilation[0]
        col = j * attrs.stride[1] - attrs.padding[1] + b * attrs.dilation[1]
        inside = 0 <= row < x.shape[2] and 0 <= col < x.shape[3]
        q = int(x[n, first + c, row, col]) if inside else attrs.x_zero_point
        total += (q - attrs.x_zero_point) * (int(w[o, c, a, b]) - at(attrs.w_zero_points, o))
    return finish(total, o, place, arrays[2:], attrs)


def matmul_quantized(arrays, attrs, place) -> int:
    a, b = arrays[:2]
    a = a.swapaxes(-1, -2) if attrs.transpose_a else a
    b = b.swapaxes(-1, -2) if attrs.transpose_b else b
    batch = place[:-2]
    row = a[(*batch[len(batch) - a.ndim + 2 :], place[-2])]
    column = b[(*batch[len(batch) - b.ndim + 2 :], slice(None), place[-1])]
    zero = at(attrs.w_zero_points, place[-1])
    pairs = zip(row.tolist(), column.tolist(), strict=True)
    total = sum((p - attrs.x_zero_point) * (q - zero) for p, q in pairs)
    return finish(total, place[-1], place, arrays[2:], attrs)


def quantize(arrays, attrs, place) -> int:
    value, channel = float(arrays[0][place]), place[attrs.axis] if attrs.axis >= 0 else 0
    low, high = RANGES[attrs.dtype]
    if np.isnan(value):
        return low
    if np.isinf(value):
        return high if value > 0 else low
    ratio = rounded(Fraction(value) / Fraction(at(attrs.scales, channel)))
    return min(max(round(ratio) + at(attrs.zero_points, channel), low), high)


def dequantize(arrays, attrs, place) -> float:
    channel = place[attrs.axis] if attrs.axis >= 0 else 0
    integer = int(arrays[0][place]) - at(attrs.zero_points, channel)
    return scaled(integer, at(attrs.scales, channel))


def requantize(arrays, attrs, place) -> int:
    return stored(scaled(int(arrays[0][place]) - attrs.x_zero_point, attrs.multiplier), attrs)


def add_quantized(arrays, attrs, place) -> int:
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    a, b = (int(np.broadcast_to(x, shape)[place]) for x in arrays)
    left = scaled(a - attrs.a_zero_point, attrs.a_multiplier)
    right = scaled(b - attrs.b_zero_point, attrs.b_multiplier)
    return stored(rounded(Fraction(left) + Fraction(right)), attrs)


def concat_quantized(arrays, attrs, place) -> int:
    index, which = place[attrs.axis], 0
    while index >= arrays[which].shape[attrs.axis]:
        index -= arrays[which].shape[attrs.axis]
        which += 1
    where = (*place[: attrs.axis], index, *place[attrs.axis + 1 :])
    integer = int(arrays[which][where]) - attrs.x_zero_points[which]
    return stored(scaled(integer, attrs.multipliers[which]), attrs)


def averaged(x, attrs, rows, cols, count: int | None) -> int:
    values = [int(x[r, c]) - attrs.x_zero_point for r in rows for c in cols]
    divisor = len(values) if count is None else count
    factor = rounded(Fraction(attrs.multiplier) / divisor)
    return stored(scaled(sum(values), factor), attrs)


def avg_pool2d_quantized(arrays, attrs, place) -> int:
    x, size = arrays[0][place[:2]], arrays[0].shape[2:]
    spans = []
    for axis in (0, 1):
        start = place[2 + axis] * attrs.stride[axis] - attrs.padding[axis]
        spans.append([p for p in range(start, start + attrs.kernel[axis]) if 0 <= p < size[axis]])
    count = attrs.kernel[0] * attrs.kernel[1] if attrs.count_include_pad else None
    return averaged(x, attrs, *spans, count)


def adaptive_avg_pool2d_quantized(arrays, attrs, place) -> int:
    x, size = arrays[0][place[:2]], arrays[0].shape[2:]
    spans = [
        range(p * n // o, -(-(p + 1) * n // o))
        for p, n, o in zip(place[2:], size, attrs.size, strict=True)
    ]
    return averaged(x, attrs, *spans, None)


def test_rounding_helper_is_the_machines():
    rng = np.random.default_rng(0)
    for value in (*rng.normal(size=50) * 10.0 ** rng.integers(-9, 9, 50), 2.0**24 + 1, 3.5):
        assert rounded(Fraction(value)) == single(value)


@pytest.mark.parametrize("name", NAMES)
def test_reference_agrees_with_exact_arithmetic(name: str):
    op, rng, count = registry.get_op(name), np.random.default_rng(1), 0
    for seed, case in enumerate(cases_of(name)):
        arrays = case.arrays(seed)
        (got,) = evaluate(op, arrays, case.attrs)
        places = list(np.ndindex(got.shape))
        some = rng.choice(len(places), min(len(places), 12), replace=False) if places else []
        for place in (places[index] for index in some):
            want = globals()[name](arrays, case.attrs, place)
            assert got[place] == want, f"{case} at {place}"
            count += 1
    assert count > 10


@pytest.mark.parametrize("name", ["conv2d_quantized", "matmul_quantized", "add_quantized"])
def test_cases_reach_most_of_the_range(name: str):
    for seed, case in enumerate(cases_of(name)):
        (got,) = evaluate(registry.get_op(name), case.arrays(seed), case.attrs)
        if got.size > 200:
            assert len(np.unique(got)) > 20, str(case)
