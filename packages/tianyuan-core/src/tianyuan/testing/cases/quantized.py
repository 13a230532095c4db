"""Calls of the quantised ops, whose results are exact: zero points, odd sizes, bounds, ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...op import QuantParams, TensorSpec
from ...ops.attrs import Axis
from ...ops.conv import output_size
from ...ops.quantized import (
    AdaptiveAvgPool2dQuantized,
    AddQuantized,
    AvgPool2dQuantized,
    ConcatQuantized,
    Dequantize,
    LookupQuantized,
    Quantize,
    Requantize,
)
from ...ops.quantized_product import Conv2dQuantized, MatmulQuantized
from ...ops.quantized_rules import multiplier, quant_range
from . import Case, Invalid, Source, fixed, real, spec

Shape = tuple[int, ...]


def stored(shape: Shape, dtype: str = "int8") -> Source:
    """Make integers over the whole range of a storage dtype, both ends included."""
    least, largest = quant_range(dtype)

    def source(rng: np.random.Generator) -> np.ndarray:
        return rng.integers(least, largest, shape, endpoint=True).astype(dtype)

    return source


def _bias(count: int) -> Source:
    def source(rng: np.random.Generator) -> np.ndarray:
        return rng.integers(-9000, 9000, (count,)).astype(np.int32)

    return source


def _form(dtype: str = "int8", scale: float = 0.0625, zero: int | None = None) -> dict[str, Any]:
    least, largest = quant_range(dtype)
    zero = (3 if dtype == "int8" else 121) if zero is None else zero
    return {
        "scale": scale, "zero_point": zero, "dtype": dtype, "lower": least, "upper": largest,
    }  # fmt: skip


_ZERO = {"int8": -5, "uint8": 118}
_OTHER = {"int8": "uint8", "uint8": "int8"}


def conv(
    x: Shape,
    w: Shape,
    x_dtype: str = "uint8",
    dtype: str = "int8",
    bias: bool = True,
    residual: bool = False,
    per_channel: bool = True,
    w_zero: int = 0,
    **places: Any,
) -> Case:
    """Return a convolution whose result covers most of the range of its dtype."""
    geometry: dict[str, Any] = {
        "stride": (1, 1),
        "padding": (0, 0, 0, 0),
        "dilation": (1, 1),
        "groups": 1,
    }
    geometry.update({key: places.pop(key) for key in list(places) if key in geometry})
    length = w[1] * w[2] * w[3]
    base = 0.015 / length**0.5
    count = w[0] if per_channel else 1
    attrs = Conv2dQuantized(
        **geometry,
        has_bias=bias,
        has_residual=residual,
        x_zero_point=_ZERO[x_dtype],
        w_zero_points=tuple(w_zero + (i % 2 if w_zero else 0) for i in range(count)),
        multipliers=tuple(multiplier(base * (1 + i % 5 / 4)) for i in range(count)),
        residual_zero_point=_ZERO[_OTHER[dtype]] if residual else 0,
        residual_multiplier=0.4375 if residual else 1.0,
        **{**_form(dtype), **places},
    )
    inputs = [stored(x, x_dtype), stored(w)]
    if bias:
        inputs.append(_bias(w[0]))
    if residual:
        inputs.append(stored(_conv_shape(x, w, attrs), _OTHER[dtype]))
    return Case("conv2d_quantized", tuple(inputs), attrs, length=length, exact=True)


def _conv_shape(x: Shape, w: Shape, attrs: Any) -> Shape:
    return (x[0], w[0], *output_size("conv2d", x[2:], w[2:], attrs, attrs.dilation))


def _convs() -> Iterator[Case]:
    for x_dtype in ("uint8", "int8"):
        for dtype in ("int8", "uint8"):
            for residual in (False, True):
                yield conv(
                    (2, 19, 9, 7), (21, 19, 3, 3), x_dtype, dtype, residual=residual,
                    padding=(1, 1, 1, 1), bias=not residual,
                )  # fmt: skip
                yield conv((1, 33, 5, 6), (34, 33, 1, 1), x_dtype, dtype, residual=residual)
    three: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    yield conv((2, 32, 8, 8), (64, 32, 3, 3), residual=True, **three)
    yield conv((1, 64, 14, 14), (16, 64, 1, 1), "int8", per_channel=False)
    yield conv((1, 3, 19, 17), (16, 3, 7, 7), stride=(2, 2), padding=(3, 3, 3, 3))
    yield conv((2, 3, 12, 12), (8, 3, 3, 3), "int8", stride=(2, 2), padding=(0, 0, 1, 1))
    yield conv((1, 24, 9, 9), (24, 1, 3, 3), groups=24, **three)
    yield conv((2, 17, 10, 9), (17, 1, 3, 3), "int8", stride=(2, 2), groups=17, **three)
    yield conv((1, 32, 7, 7), (32, 1, 5, 5), "int8", groups=32, padding=(2, 2, 2, 2), residual=True)
    yield conv((1, 12, 8, 8), (24, 1, 3, 3), groups=12, **three)
    yield conv((1, 12, 6, 6), (18, 4, 1, 1), groups=3)
    yield conv((2, 40, 6, 5), (20, 20, 3, 3), "int8", groups=2, **three)
    for groups, inputs, outputs in ((2, 12, 6), (3, 20, 7), (4, 5, 33), (8, 3, 5)):
        shapes = (1, groups * inputs, 5, 4), (groups * outputs, inputs, 1, 1)
        for bias in (False, True):
            yield conv(*shapes, bias=bias, residual=True, groups=groups)
    yield conv((1, 21, 7, 6), (21, 1, 3, 3), bias=False, residual=True, groups=21, **three)
    yield conv((1, 21, 7, 6), (21, 1, 3, 3), "int8", w_zero=-128, groups=21, **three)
    yield conv((1, 8, 12, 11), (9, 8, 3, 3), dilation=(2, 3), padding=(2, 3, 2, 3))
    yield conv((1, 7, 9, 9), (5, 7, 3, 2), stride=(2, 3), padding=(2, 0, 1, 3))
    yield conv((1, 20, 5, 5), (6, 20, 3, 3), w_zero=-7, **three)
    yield conv((1, 20, 5, 5), (6, 20, 3, 3), "int8", w_zero=11, per_channel=False, **three)
    yield conv((2, 19, 9, 7), (19, 1, 3, 3), w_zero=-99, groups=19, residual=True, **three)
    yield conv((1, 70, 6, 5), (70, 1, 5, 2), "int8", w_zero=31, groups=70, stride=(1, 2))
    yield conv((1, 16, 6, 6), (16, 16, 3, 3), lower=3, upper=99, residual=True, **three)
    yield conv((1, 16, 6, 6), (16, 16, 3, 3), dtype="uint8", lower=121, zero_point=121, **three)
    yield conv((0, 4, 6, 6), (4, 4, 3, 3))
    yield conv((1, 2048, 2, 2), (4, 2048, 2, 2))
    # A bias at either end of int32 wraps around; every multiple of 1/2 meets the tie rule.
    ends = conv((1, 4, 3, 3), (4, 4, 1, 1))
    extremes = fixed([2**31 - 1, -(2**31), 2**31 - 500, 7], "int32")
    yield replace(ends, inputs=(*ends.inputs[:2], extremes))
    yield replace(
        ends,
        inputs=(*ends.inputs[:2], fixed([0, 1, -1, 2], "int32")),
        attrs=replace(ends.attrs, multipliers=(0.5, 2.0**-9, 2.0**-8, 2.0**-7)),
    )


def matmul(
    a: Shape,
    b: Shape,
    a_dtype: str = "uint8",
    b_dtype: str = "int8",
    dtype: str = "int8",
    residual: bool = False,
    per_channel: bool = True,
    **changes: Any,
) -> Case:
    """Return a product whose result covers most of the range of its dtype."""
    flags = {key: changes.pop(key, False) for key in ("transpose_a", "transpose_b")}
    inner = a[-2] if flags["transpose_a"] else a[-1]
    rows = a[-1] if flags["transpose_a"] else a[-2]
    columns = b[-2] if flags["transpose_b"] else b[-1]
    count = columns if per_channel else 1
    bias = changes.pop("bias", per_channel)
    attrs = MatmulQuantized(
        **flags,
        has_bias=bias,
        has_residual=residual,
        x_zero_point=_ZERO[a_dtype],
        w_zero_points=(0,) if b_dtype == "int8" else (131,),
        multipliers=tuple(
            multiplier(0.012 / max(inner, 1) ** 0.5 * (1 + i % 7 / 4)) for i in range(count)
        ),
        residual_zero_point=_ZERO[dtype] if residual else 0,
        residual_multiplier=0.3125 if residual else 1.0,
        **{**_form(dtype), **changes},
    )
    inputs = [stored(a, a_dtype), stored(b, b_dtype)]
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    inputs += [_bias(columns)] if bias else []
    inputs += [stored((*batch, rows, columns), dtype)] if residual else []
    return Case("matmul_quantized", tuple(inputs), attrs, length=inner, exact=True)


def _matmuls() -> Iterator[Case]:
    for a_dtype in ("uint8", "int8"):
        for transpose in (False, True):
            w = (37, 65) if transpose else (65, 37)
            yield matmul((19, 65), w, a_dtype, transpose_b=transpose)
            yield matmul((1, 65), w, a_dtype, dtype="uint8", transpose_b=transpose, residual=True)
    yield matmul((65, 6), (65, 16), transpose_a=True)
    yield matmul((64, 128), (256, 128), "int8", transpose_b=True, lower=3)
    yield matmul((2, 3, 9, 8), (2, 3, 8, 7), "int8", "uint8", per_channel=False)
    yield matmul((2, 3, 9, 8), (2, 3, 10, 8), "uint8", per_channel=False, transpose_b=True)
    yield matmul((4, 5, 33), (33, 17), residual=True)
    yield matmul((0, 8), (8, 4))
    yield matmul((3, 0), (0, 4))
    yield matmul((3, 4096), (10, 4096), transpose_b=True)


def _scaled_pair(a: float, b: float) -> dict[str, Any]:
    return {"a_multiplier": multiplier(a), "b_multiplier": multiplier(b)}


def _elementwise() -> Iterator[Case]:
    shapes: tuple[Shape, ...] = ((2, 5, 7, 3), (1, 64, 9, 8), (1031,), (), (0, 3))
    for a in ("int8", "uint8"):
        for b in ("int8", "uint8"):
            for shape in shapes[:3]:
                zeros: dict[str, Any] = {"a_zero_point": _ZERO[a], "b_zero_point": _ZERO[b]}
                add = AddQuantized(**zeros, **_scaled_pair(0.7, 0.45), **_form(b))
                yield Case("add_quantized", (stored(shape, a), stored(shape, b)), add, exact=True)
            for shape in (*shapes, (3, 4099)):
                table = (stored(shape, a), stored((256,), b))
                entries = LookupQuantized(0.0625, _ZERO[b])
                yield Case("lookup_quantized", table, entries, exact=True)
        change = Requantize(_ZERO[a], multiplier(0.83), **_form(_OTHER[a]))
        same = Requantize(_ZERO[a], 1.0, **_form(a, zero=_ZERO[a]))
        for shape in shapes:
            for attrs in (change, same, replace(change, lower=10, upper=90)):
                yield Case("requantize", (stored(shape, a),), attrs, exact=True)
    halves = AddQuantized(0, 0, 0.5, 0.5, **_form("int8", zero=0))
    yield Case("add_quantized", (stored((256, 3)), stored((256, 3))), halves, exact=True)
    rows = replace(halves, lower=0, b_multiplier=1.5)
    yield Case("add_quantized", (stored((4, 3, 5, 6)), stored((3, 1, 1))), rows, exact=True)
    yield Case("add_quantized", (stored((0, 3)), stored((3,))), rows, exact=True)
    wide = Requantize(-7, multiplier(3e-8), **_form("uint8"))
    yield Case("requantize", (stored((5, 77), "int32"),), wide, exact=True)


def _conversions() -> Iterator[Case]:
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-44, 0.25, 0.75, -0.25, 1.25]
    for dtype in ("int8", "uint8", "int32"):
        zero = _ZERO.get(dtype, 0)
        tensor = Quantize((0.5,), (zero,), -1, dtype)
        odd = Quantize((multiplier(0.0217),), (zero,), -1, dtype)
        yield Case("quantize", (fixed(special),), tensor, exact=True)
        for shape in ((2, 5, 7, 3), (1031,), (), (0, 2)):
            yield Case("quantize", (real(shape, low=-4, high=4),), odd, exact=True)
            back = Dequantize((multiplier(0.0217),), (zero,), -1)
            yield Case("dequantize", (stored(shape, dtype),), back, exact=True)
        scales = tuple(multiplier(0.01 * (1 + i)) for i in range(5))
        zeros = tuple(zero + i for i in range(5))
        for places, axis in (((5, 3, 2, 2), 0), ((2, 5, 9), 1)):
            channels = Quantize(scales, zeros, axis, dtype)
            yield Case("quantize", (real(places),), channels, exact=True)
            back = Dequantize(scales, zeros, axis)
            yield Case("dequantize", (stored(places, dtype),), back, exact=True)


def _concats() -> Iterator[Case]:
    for axis, dtype in ((1, "int8"), (1, "uint8"), (3, "int8"), (0, "uint8")):
        parts = []
        for extent in (3, 16, 5):
            shape = [2, 4, 5, 3]
            shape[axis] = extent
            parts.append(stored(tuple(shape), "int8" if extent == 3 else "uint8"))
        factors = (multiplier(0.6), 1.0, multiplier(1.3))
        attrs = ConcatQuantized(axis, (-5, 121, 118), factors, **_form(dtype))
        yield Case("concat_quantized", tuple(parts), attrs, exact=True)
    alone = ConcatQuantized(0, (4,), (1.0,), **_form("int8", zero=4))
    for small, kind in (((7, 2), "int8"), ((7, 2), "uint8"), ((1, 1), "int8"), ((0, 2), "int8")):
        yield Case("concat_quantized", (stored(small, kind),), alone, exact=True)


_WINDOWS: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
    ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
    ((1, 5, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
    ((2, 2, 7, 9), (3, 2), (1, 2), (2, 1, 1, 0)),
    ((1, 33, 7, 7), (7, 7), (1, 1), (0, 0, 0, 0)),
    ((0, 3, 4, 4), (2, 2), (2, 2), (0, 0, 0, 0)),
)
_SIZES = (((2, 19, 8, 8), (1, 1)), ((1, 5, 9, 7), (3, 4)), ((0, 2, 4, 4), (1, 1)))


def _pools() -> Iterator[Case]:
    for dtype in ("int8", "uint8"):
        rest = {"x_zero_point": _ZERO[dtype], "multiplier": multiplier(1.6), **_form(dtype)}
        for shape, kernel, stride, padding in _WINDOWS:
            for include in (False, True):
                attrs = AvgPool2dQuantized(kernel, stride, padding, include, **rest)
                yield Case("avg_pool2d_quantized", (stored(shape, dtype),), attrs, exact=True)
        for shape, size in _SIZES:
            given = AdaptiveAvgPool2dQuantized(size, **rest)
            yield Case("adaptive_avg_pool2d_quantized", (stored(shape, dtype),), given, exact=True)


CASES: tuple[Case, ...] = (
    *_convs(), *_matmuls(), *_elementwise(), *_conversions(), *_concats(), *_pools(),
)  # fmt: skip


def _refused_products() -> Iterator[Invalid]:
    good = conv((1, 4, 6, 6), (6, 4, 3, 3))
    specs = (spec((1, 4, 6, 6), "uint8"), spec((6, 4, 3, 3), "int8"), spec((6,), "int32"))

    def bad(error: type[Exception], match: str, inputs: Any = specs, **changes: Any) -> Invalid:
        return Invalid("conv2d_quantized", inputs, error, match, replace(good.attrs, **changes))

    yield bad(DTypeError, "input has the wrong dtype", (spec((1, 4, 6, 6)), *specs[1:]))
    yield bad(DTypeError, "weight has the wrong dtype", (specs[0], spec((6, 4, 3, 3)), specs[2]))
    yield bad(DTypeError, "bias has the wrong dtype", (*specs[:2], spec((6,))))
    yield bad(ShapeError, "bias has the wrong shape", (*specs[:2], spec((5,), "int32")))
    yield bad(AttrError, "wrong number of inputs", specs[:2])
    yield bad(AttrError, "wrong number of multipliers", multipliers=(0.5,) * 4)
    yield bad(AttrError, "positive normal float32", multipliers=(1e39,))
    yield bad(AttrError, "positive normal float32", multipliers=(0.1,))
    yield bad(AttrError, "positive normal float32", multipliers=(0.0,))
    yield bad(AttrError, "positive normal float32", scale=float("nan"))
    yield bad(AttrError, "zero point of the input is out of range", x_zero_point=-1)
    yield bad(AttrError, "zero point of the weight is out of range", w_zero_points=(200,))
    yield bad(AttrError, "bounds are wrong", lower=5, upper=4)
    yield bad(AttrError, "bounds are wrong", lower=-129)
    yield bad(DTypeError, "result has the wrong dtype", dtype="int32")
    known = TensorSpec((1, 4, 6, 6), np.dtype("uint8"), quant=QuantParams((0.5,), (3,)))
    yield bad(AttrError, "another zero point", (known, *specs[1:]))
    long = (spec((1, 18000, 3, 3), "uint8"), spec((1, 18000, 3, 3), "int8"), spec((1,), "int32"))
    yield bad(ShapeError, "too long for an int32 accumulator", long, multipliers=(0.5,),
              w_zero_points=(0,))  # fmt: skip
    product = matmul((3, 8), (8, 4)).attrs
    wrong = (spec((3, 7), "uint8"), spec((8, 4), "int8"), spec((4,), "int32"))
    yield Invalid("matmul_quantized", wrong, ShapeError, "inner extents differ", product)


_Q8, _HALF = spec((2, 4, 4, 4), "int8"), Requantize(0, 0.5, **_form())
INVALID: tuple[Invalid, ...] = (
    *_refused_products(),
    Invalid("quantize", (spec((3,), "float64"),), DTypeError, "expected float32",
            Quantize((0.5,), (0,))),
    Invalid("quantize", (spec((3,)),), AttrError, "wrong number of scales",
            Quantize((0.5, 0.5), (0, 0), 0)),
    Invalid("quantize", (spec((3,)),), AttrError, "axis is out of range",
            Quantize((0.5,), (0,), 1)),
    Invalid("quantize", (spec((3,)),), AttrError, "out of range", Quantize((0.5,), (300,))),
    Invalid("quantize", (spec((3,)),), DTypeError, "wrong dtype",
            Quantize((0.5,), (0,), -1, "int64")),
    Invalid("dequantize", (spec((3,)),), DTypeError, "wrong dtype", Dequantize((0.5,), (0,))),
    Invalid("requantize", (spec((3,)),), DTypeError, "wrong dtype", _HALF),
    Invalid("lookup_quantized", (spec((3,)), spec((256,), "int8")), DTypeError, "wrong dtype",
            LookupQuantized(0.5, 0)),
    Invalid("lookup_quantized", (_Q8, spec((256,))), DTypeError, "table has the wrong dtype",
            LookupQuantized(0.5, 0)),
    Invalid("lookup_quantized", (_Q8, spec((255,), "int8")), ShapeError, "table has the wrong",
            LookupQuantized(0.5, 0)),
    Invalid("lookup_quantized", (_Q8, spec((256,), "int8")), AttrError, "zero point is out of",
            LookupQuantized(0.5, 128)),
    Invalid("lookup_quantized", (_Q8, spec((256,), "int8")), AttrError, "positive normal float32",
            LookupQuantized(0.0, 0)),
    Invalid("concat_quantized", (_Q8, spec((2, 4, 4, 5), "int8")), ShapeError, "shapes differ",
            ConcatQuantized(1, (0, 0), (0.5, 0.5), **_form())),
    Invalid("concat_quantized", (_Q8, _Q8), AttrError, "axis is out of range",
            ConcatQuantized(4, (0, 0), (0.5, 0.5), **_form())),
    Invalid("avg_pool2d_quantized", (spec((2, 4, 4, 4)),), DTypeError, "wrong dtype",
            AvgPool2dQuantized((2, 2), (2, 2), (0, 0, 0, 0), False, 0, 0.5, **_form())),
    Invalid("add_quantized", (_Q8, spec((2, 4, 4, 3), "int8")), ShapeError, "do not broadcast",
            AddQuantized(0, 0, 0.5, 0.5, **_form())),
    Invalid("add_quantized", (_Q8, spec((2, 4, 4, 4))), DTypeError, "second input has the wrong",
            AddQuantized(0, 0, 0.5, 0.5, **_form())),
    Invalid("adaptive_avg_pool2d_quantized", (_Q8,), AttrError, "size is wrong",
            AdaptiveAvgPool2dQuantized((0, 2), 0, 0.5, **_form())),
    Invalid("concat", tuple(TensorSpec((2, 3), np.dtype("int8"), quant=QuantParams((s,), (0,)))
                            for s in (0.5, 0.25)), AttrError, "quantised differently",
            Axis(0)),
)  # fmt: skip
