"""Define convolution and matrix product of quantised values, with their integer epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import DTypeName, Floats, Ints, Op, Specs, TensorSpec, expect_rank
from ..records import record
from . import quantized_rules as rules
from .conv import convolved, output_size, taps
from .conv import work as work_of_conv
from .matmul import work as work_of_matmul

Arrays = Sequence[np.ndarray]


@record()
class Conv2dQuantized:
    """A convolution, what its operands stand for, and the output's form.

    Weight zero points and multipliers are one for all output channels or one for each.
    """

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    has_bias: bool
    has_residual: bool
    x_zero_point: int
    w_zero_points: Ints
    multipliers: Floats
    residual_zero_point: int
    residual_multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


@record()
class MatmulQuantized:
    """A matrix product, what its operands stand for, and the output's form.

    Zero points of the second operand and multipliers are one for all columns or one for each.
    """

    transpose_a: bool
    transpose_b: bool
    has_bias: bool
    has_residual: bool
    x_zero_point: int
    w_zero_points: Ints
    multipliers: Floats
    residual_zero_point: int
    residual_multiplier: float
    scale: float
    zero_point: int
    dtype: DTypeName
    lower: int
    upper: int


def _check_rest(op: str, specs: Specs, attrs: Any, shape: shapes.Shape, channels: int) -> None:
    """Check the optional inputs and the attributes that both products share."""
    count = 2 + int(attrs.has_bias) + int(attrs.has_residual)
    if len(specs) != count:
        raise AttrError(
            f"{op}: wrong number of inputs, got {len(specs)}, expected {count} with "
            f"has_bias={attrs.has_bias}, has_residual={attrs.has_residual}"
        )
    rest = list(specs[2:])
    if attrs.has_bias:
        bias = rest.pop(0)
        rules.check_storage(op, bias, "bias", ("int32",))
        _expect_shape(op, "bias", bias, (channels,))
    if attrs.has_residual:
        residual = rest.pop(0)
        rules.check_storage(op, residual, "residual")
        _expect_shape(op, "residual", residual, shape)
        rules.check_input_zero_point(op, residual, attrs.residual_zero_point, "residual")
        rules.check_factor(op, "residual multiplier", attrs.residual_multiplier)
    rules.check_factors(op, "multipliers", attrs.multipliers, (1, int(channels)))
    rules.check_length(op, "weight zero points", attrs.w_zero_points, (1, int(channels)))
    rules.check_zero_points(op, "zero point of the weight", attrs.w_zero_points, specs[1].dtype)
    rules.check_input_zero_point(op, specs[0], attrs.x_zero_point)
    rules.check_output(op, attrs)


def _expect_shape(op: str, what: str, spec: TensorSpec, shape: Sequence[int]) -> None:
    if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
        raise ShapeError(
            f"{op}: {what} has the wrong shape, got {rules.shape_text(spec.shape)}, "
            f"expected {rules.shape_text(shape)}"
        )


def _conv_infer(specs: Specs, attrs: Conv2dQuantized) -> Specs:
    op, (x, w) = "conv2d_quantized", specs[:2]
    rules.check_storage(op, x)
    rules.check_storage(op, w, "weight", ("int8",))
    shape = convolved(op, x, w, attrs)
    _check_rest(op, specs, attrs, shape, w.shape[0])
    length = w.shape[1] * w.shape[2] * w.shape[3]
    rules.check_reduction(
        op, length, (x.dtype, (attrs.x_zero_point,)), (w.dtype, attrs.w_zero_points)
    )
    return (rules.output_spec(x, shape, attrs),)


def _matmul_infer(specs: Specs, attrs: MatmulQuantized) -> Specs:
    op, (a, b) = "matmul_quantized", specs[:2]
    rules.check_storage(op, a)
    rules.check_storage(op, b, "second input")
    for spec, what in ((a, "first input"), (b, "second input")):
        if spec.ndim < 2:
            expect_rank(op, spec, 2, what)
    rows, inner = a.shape[-2:][:: -1 if attrs.transpose_a else 1]
    other, columns = b.shape[-2:][:: -1 if attrs.transpose_b else 1]
    if int(inner) != int(other):
        raise ShapeError(
            f"{op}: inner extents differ, got {rules.shape_text(a.shape)} and "
            f"{rules.shape_text(b.shape)} with transpose_a={attrs.transpose_a}, "
            f"transpose_b={attrs.transpose_b}, expected equal ones"
        )
    shape = (*shapes.broadcast(op, a.shape[:-2], b.shape[:-2]), rows, columns)
    _check_rest(op, specs, attrs, shape, columns)
    rules.check_reduction(
        op, inner, (a.dtype, (attrs.x_zero_point,)), (b.dtype, attrs.w_zero_points)
    )
    return (rules.output_spec(a, shape, attrs),)


def epilogue(sums: np.ndarray, rest: Arrays, attrs: Any, axis: int) -> np.ndarray:
    """Finish exact integer sums: bias, multiplier per channel of ``axis``, residual, clamp."""
    extra = list(rest)
    if attrs.has_bias:
        bias = extra.pop(0)
        sums = sums + rules.along(bias, np.int64, axis, sums.ndim)
    factors = rules.along(attrs.multipliers, np.float32, axis, sums.ndim)
    values = rules.scaled(rules.wrapped(sums), factors)
    if attrs.has_residual:
        integers = rules.centred(extra.pop(0), attrs.residual_zero_point)
        values = values + rules.scaled(integers, attrs.residual_multiplier)
    return rules.finished(values, attrs)


def _conv_reference(arrays: Arrays, attrs: Conv2dQuantized) -> Arrays:
    x = rules.centred(arrays[0], attrs.x_zero_point)
    w = rules.centred(arrays[1], rules.along(attrs.w_zero_points, np.int64, 0, 4))
    positions = output_size("conv2d_quantized", x.shape[2:], w.shape[2:], attrs, attrs.dilation)
    top, left, bottom, right = attrs.padding
    # Padding with the zero point pads the centred values with 0.
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    padded = padded.reshape(x.shape[0], attrs.groups, w.shape[1], *padded.shape[2:])
    weight = w.reshape(attrs.groups, w.shape[0] // attrs.groups, *w.shape[1:])
    sums = np.zeros((x.shape[0], *weight.shape[:2], *positions), np.int64)
    for i, j, (rows, cols) in taps(attrs, w.shape[2:], positions):
        sums += np.einsum("ngchw,goc->ngohw", padded[..., rows, cols], weight[..., i, j])
    sums = sums.reshape(x.shape[0], w.shape[0], *positions)
    return (epilogue(sums, arrays[2:], attrs, 1),)


def _matmul_reference(arrays: Arrays, attrs: MatmulQuantized) -> Arrays:
    a = rules.centred(arrays[0], attrs.x_zero_point)
    b = arrays[1].swapaxes(-1, -2) if attrs.transpose_b else arrays[1]
    b = rules.centred(b, rules.along(attrs.w_zero_points, np.int64, b.ndim - 1, b.ndim))
    a = a.swapaxes(-1, -2) if attrs.transpose_a else a
    sums = np.matmul(a, b)
    return (epilogue(sums, arrays[2:], attrs, sums.ndim - 1),)


CONV2D_QUANTIZED = Op(
    "conv2d_quantized",
    infer=_conv_infer,
    reference=_conv_reference,
    attrs=Conv2dQuantized,
    n_inputs=(2, 4),
    work=work_of_conv,
    family="quantized",
    differentiable=False,
)
MATMUL_QUANTIZED = Op(
    "matmul_quantized",
    infer=_matmul_infer,
    reference=_matmul_reference,
    attrs=MatmulQuantized,
    n_inputs=(2, 4),
    work=work_of_matmul,
    family="quantized",
    differentiable=False,
)
OPS: tuple[Op, ...] = (CONV2D_QUANTIZED, MATMUL_QUANTIZED)
