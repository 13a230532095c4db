"""Define quantised ops without products: conversion, addition, joining and average pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, name_of
from ..errors import AxisError, DTypeError, ShapeError
from ..op import Count, DTypeName, Floats, Ints, Op, QuantParams, Specs, TensorSpec
from ..records import record
from . import quantized_rules as rules
from .conv import output_size
from .windows import Window, adapted, adaptive_windows, pooled, windows
from .windows import work as work_of_pool

Arrays = Sequence[np.ndarray]


@record()
class Quantize:
    """One scale and zero point, or one of each per extent of ``axis``; the storage dtype."""

    scales: Floats
    zero_points: Ints
    axis: int = -1
    dtype: DTypeName = "int8"


@record()
class Dequantize:
    """One scale and zero point, or one of each per extent of ``axis``."""

    scales: Floats
    zero_points: Ints
    axis: int = -1


@record()
class Requantize:
    """Zero point of the input, the factor input scale / output scale, and the output's form."""

    x_zero_point: int
    multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


@record()
class LookupQuantized:
    """What the integers of the table stand for: one scale and zero point."""

    scale: float
    zero_point: int


@record()
class AddQuantized:
    """Zero point and factor (input scale / output scale) of both inputs, and the output's form."""

    a_zero_point: int
    b_zero_point: int
    a_multiplier: float
    b_multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


@record()
class ConcatQuantized:
    """The axis, zero point and factor of each input, and the output's form."""

    axis: int
    x_zero_points: Ints
    multipliers: Floats
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


@record()
class AvgPool2dQuantized:
    """A window, zero point of the input, input scale / output scale, and the output's form."""

    kernel: Ints
    stride: Ints
    padding: Ints
    count_include_pad: bool
    x_zero_point: int
    multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


@record()
class AdaptiveAvgPool2dQuantized:
    """Height and width of the result; zero point and factor of the input; the output's form."""

    size: Ints
    x_zero_point: int
    multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


# quantize, dequantize, requantize


def _check_axis(op: str, spec: TensorSpec, attrs: Any) -> None:
    axis = attrs.axis
    if not -1 <= axis < spec.ndim:
        raise AxisError(f"{op}: axis is out of range, got {axis}, expected -1 to {spec.ndim - 1}")
    count = 1 if axis < 0 else int(spec.shape[axis])
    rules.check_factors(op, "scales", attrs.scales, (count,))
    rules.check_length(op, "zero points", attrs.zero_points, (count,))


def _quantize_infer(specs: Specs, attrs: Quantize) -> Specs:
    (x,) = specs
    if name_of(x.dtype) != "float32":
        raise DTypeError(
            f"quantize: input has the wrong dtype, got {x.dtype.name}, expected float32"
        )
    if attrs.dtype not in rules.STORAGE:
        raise DTypeError(
            f"quantize: the result has the wrong dtype, got {attrs.dtype}, "
            f"expected one of {', '.join(rules.STORAGE)}"
        )
    _check_axis("quantize", x, attrs)
    dtype = as_dtype(attrs.dtype)
    rules.check_zero_points("quantize", "zero point", attrs.zero_points, dtype)
    quant = QuantParams(attrs.scales, attrs.zero_points, attrs.axis)
    return (TensorSpec(x.shape, dtype, x.device, quant),)


def _quantize_reference(arrays: Arrays, attrs: Quantize) -> Arrays:
    (x,) = arrays
    scale = rules.along(attrs.scales, np.float32, attrs.axis, x.ndim)
    zero = rules.along(attrs.zero_points, np.int64, attrs.axis, x.ndim)
    least, largest = rules.quant_range(attrs.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.rint((x / scale).astype(np.float64)) + zero
    found = np.where(np.isnan(found), least, np.clip(found, least, largest))
    return (found.astype(as_dtype(attrs.dtype)),)


def _dequantize_infer(specs: Specs, attrs: Dequantize) -> Specs:
    (x,) = specs
    rules.check_storage("dequantize", x, allowed=rules.STORAGE)
    _check_axis("dequantize", x, attrs)
    rules.check_zero_points("dequantize", "zero point", attrs.zero_points, x.dtype)
    return (TensorSpec(x.shape, as_dtype("float32"), x.device),)


def _dequantize_reference(arrays: Arrays, attrs: Dequantize) -> Arrays:
    (x,) = arrays
    zero = rules.along(attrs.zero_points, np.int64, attrs.axis, x.ndim)
    scale = rules.along(attrs.scales, np.float32, attrs.axis, x.ndim)
    return (rules.scaled(rules.centred(x, zero), scale),)


def _requantize_infer(specs: Specs, attrs: Requantize) -> Specs:
    (x,) = specs
    rules.check_storage("requantize", x, allowed=rules.STORAGE)
    rules.check_input_zero_point("requantize", x, attrs.x_zero_point)
    rules.check_factor("requantize", "multiplier", attrs.multiplier)
    rules.check_output("requantize", attrs)
    return (rules.output_spec(x, x.shape, attrs),)


def _requantize_reference(arrays: Arrays, attrs: Requantize) -> Arrays:
    integers = rules.centred(arrays[0], attrs.x_zero_point)
    return (rules.finished(rules.scaled(integers, attrs.multiplier), attrs),)


def _lookup_infer(specs: Specs, attrs: LookupQuantized) -> Specs:
    op, (x, table) = "lookup_quantized", specs
    rules.check_storage(op, x)
    rules.check_storage(op, table, "table")
    if tuple(map(int, table.shape)) != (256,):
        raise ShapeError(
            f"{op}: table has the wrong shape, got {rules.shape_text(table.shape)}, expected (256,)"
        )
    rules.check_factor(op, "scale", attrs.scale)
    rules.check_zero_points(op, "zero point", (attrs.zero_point,), table.dtype)
    quant = QuantParams((attrs.scale,), (attrs.zero_point,))
    return (TensorSpec(x.shape, table.dtype, x.device, quant),)


def _lookup_reference(arrays: Arrays, attrs: LookupQuantized) -> Arrays:
    x, table = arrays
    least, _ = rules.quant_range(x.dtype.name)
    return (np.asarray(table[x.astype(np.int64) - least]),)


# add_quantized, concat_quantized


def _add_infer(specs: Specs, attrs: AddQuantized) -> Specs:
    op, (a, b) = "add_quantized", specs
    for what, spec in (("first input", a), ("second input", b)):
        rules.check_storage(op, spec, what)
    rules.check_input_zero_point(op, a, attrs.a_zero_point, "first input")
    rules.check_input_zero_point(op, b, attrs.b_zero_point, "second input")
    rules.check_factor(op, "multiplier", attrs.a_multiplier)
    rules.check_factor(op, "multiplier", attrs.b_multiplier)
    rules.check_output(op, attrs)
    return (rules.output_spec(a, shapes.broadcast(op, a.shape, b.shape), attrs),)


def _add_reference(arrays: Arrays, attrs: AddQuantized) -> Arrays:
    a = rules.scaled(rules.centred(arrays[0], attrs.a_zero_point), attrs.a_multiplier)
    b = rules.scaled(rules.centred(arrays[1], attrs.b_zero_point), attrs.b_multiplier)
    return (rules.finished(a + b, attrs),)


def _concat_infer(specs: Specs, attrs: ConcatQuantized) -> Specs:
    op, first, axis = "concat_quantized", specs[0], attrs.axis
    if not 0 <= axis < first.ndim:
        raise AxisError(f"{op}: axis is out of range, got {axis}, expected 0 to {first.ndim - 1}")
    rules.check_length(op, "zero points", attrs.x_zero_points, (len(specs),))
    rules.check_factors(op, "multipliers", attrs.multipliers, (len(specs),))
    rules.check_output(op, attrs)
    extent: int = 0
    for spec, zero in zip(specs, attrs.x_zero_points, strict=True):
        rules.check_storage(op, spec)
        rules.check_input_zero_point(op, spec, zero)
        rest = [int(n) for i, n in enumerate(spec.shape) if i != axis]
        if spec.ndim != first.ndim or rest != [
            int(n) for i, n in enumerate(first.shape) if i != axis
        ]:
            raise ShapeError(
                f"{op}: shapes differ on an axis other than {axis}, got "
                f"{rules.shape_text(spec.shape)}, expected like {rules.shape_text(first.shape)}"
            )
        extent = spec.shape[axis] + extent
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
    return (rules.output_spec(first, shape, attrs),)


def _concat_reference(arrays: Arrays, attrs: ConcatQuantized) -> Arrays:
    parts = [
        rules.finished(rules.scaled(rules.centred(x, zero), factor), attrs)
        for x, zero, factor in zip(arrays, attrs.x_zero_points, attrs.multipliers, strict=True)
    ]
    return (np.concatenate(parts, axis=attrs.axis),)


# average pooling


def _check_average(op: str, x: TensorSpec, attrs: Any, window: int) -> None:
    rules.check_storage(op, x)
    rules.check_input_zero_point(op, x, attrs.x_zero_point)
    rules.check_factor(op, "multiplier", attrs.multiplier)
    rules.check_output(op, attrs)
    if window * 255 > rules.ACCUMULATOR_LIMIT:
        raise ShapeError(
            f"{op}: the window is too large for an int32 accumulator, got {window} elements, "
            f"expected at most {rules.ACCUMULATOR_LIMIT // 255}"
        )


def _avg_infer(specs: Specs, attrs: AvgPool2dQuantized) -> Specs:
    op, (x,) = "avg_pool2d_quantized", specs
    shape = pooled(op, x, attrs).shape
    _check_average(op, x, attrs, attrs.kernel[0] * attrs.kernel[1])
    return (rules.output_spec(x, shape, attrs),)


def _adaptive_infer(specs: Specs, attrs: AdaptiveAvgPool2dQuantized) -> Specs:
    op, (x,) = "adaptive_avg_pool2d_quantized", specs
    shape = adapted(op, x, attrs).shape
    _check_average(op, x, attrs, int(x.shape[2]) * int(x.shape[3]))
    return (rules.output_spec(x, shape, attrs),)


def _averaged(
    x: np.ndarray, out: Ints, walk: Iterator[Window], attrs: Any, count: int | None
) -> Arrays:
    """Average over windows; ``count`` is the divisor where it is not what the window covers."""
    integers = rules.centred(x, attrs.x_zero_point)
    y = np.empty((*x.shape[:2], *out), as_dtype(attrs.dtype))
    for i, j, rows, cols in walk:
        patch = integers[:, :, rows, cols]
        divisor = patch.shape[2] * patch.shape[3] if count is None else count
        factor = np.float32(attrs.multiplier) / np.float32(divisor)
        y[:, :, i, j] = rules.finished(rules.scaled(patch.sum(axis=(2, 3)), factor), attrs)
    return (y,)


def _avg_reference(arrays: Arrays, attrs: AvgPool2dQuantized) -> Arrays:
    (x,) = arrays
    out = output_size("avg_pool2d_quantized", x.shape[2:], attrs.kernel, attrs)
    count = attrs.kernel[0] * attrs.kernel[1] if attrs.count_include_pad else None
    return _averaged(x, out, windows(attrs, x.shape[2:], out), attrs, count)


def _adaptive_reference(arrays: Arrays, attrs: AdaptiveAvgPool2dQuantized) -> Arrays:
    (x,) = arrays
    return _averaged(x, attrs.size, adaptive_windows(x.shape[2:], attrs.size), attrs, None)


def _op(
    name: str,
    infer: Callable[[Specs, Any], Specs],
    reference: Callable[[Arrays, Any], Arrays],
    attrs: type,
    n_inputs: int | tuple[int, int] = 1,
    work: Count | None = None,
) -> Op:
    return Op(
        name,
        infer=infer,
        reference=reference,
        attrs=attrs,
        n_inputs=n_inputs,
        work=work,
        family="quantized",
        differentiable=False,
    )


QUANTIZE = _op("quantize", _quantize_infer, _quantize_reference, Quantize)
DEQUANTIZE = _op("dequantize", _dequantize_infer, _dequantize_reference, Dequantize)
REQUANTIZE = _op("requantize", _requantize_infer, _requantize_reference, Requantize)
LOOKUP_QUANTIZED = _op("lookup_quantized", _lookup_infer, _lookup_reference, LookupQuantized, 2)
ADD_QUANTIZED = _op("add_quantized", _add_infer, _add_reference, AddQuantized, 2)
CONCAT_QUANTIZED = _op(
    "concat_quantized", _concat_infer, _concat_reference, ConcatQuantized, (1, -1)
)
AVG_POOL2D_QUANTIZED = _op(
    "avg_pool2d_quantized", _avg_infer, _avg_reference, AvgPool2dQuantized, work=work_of_pool
)
ADAPTIVE_AVG_POOL2D_QUANTIZED = _op(
    "adaptive_avg_pool2d_quantized",
    _adaptive_infer,
    _adaptive_reference,
    AdaptiveAvgPool2dQuantized,
)
OPS: tuple[Op, ...] = (
    QUANTIZE,
    DEQUANTIZE,
    REQUANTIZE,
    LOOKUP_QUANTIZED,
    ADD_QUANTIZED,
    CONCAT_QUANTIZED,
    AVG_POOL2D_QUANTIZED,
    ADAPTIVE_AVG_POOL2D_QUANTIZED,
)
