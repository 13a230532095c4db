"""Two-dimensional convolution over NCHW, its two gradients, and its fused form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import (
    GradContext,
    Ints,
    Op,
    Specs,
    TensorSpec,
    Work,
    expect_float,
    expect_rank,
    expect_same_dtype,
)
from ..records import record
from .epilogue import activate, check_epilogue
from .shape import RESHAPE


@record()
class Conv2d:
    """Stride and dilation are (h, w), padding is (top, left, bottom, right)."""

    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    groups: int = 1


@record()
class Conv2dFused:
    """A convolution followed by bias, residual and activation, in this order."""

    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    groups: int = 1
    has_bias: bool = False
    has_residual: bool = False
    activation: str = "identity"
    lower: float = 0.0
    upper: float = 0.0


@record()
class Conv2dBackwardData:
    """The convolution's attributes, and the height and width of its input."""

    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    groups: int = 1
    size: Ints = (1, 1)


@record()
class Conv2dBackwardWeight:
    """The convolution's attributes, and the height and width of its kernel."""

    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    dilation: Ints = (1, 1)
    groups: int = 1
    size: Ints = (1, 1)


def _geometry(attrs: Any) -> dict[str, Any]:
    """Return the attributes that the convolution and its gradients share."""
    return {
        "stride": attrs.stride,
        "padding": attrs.padding,
        "dilation": attrs.dilation,
        "groups": attrs.groups,
    }


def check_ints(op: str, what: str, values: Ints, count: int, least: int) -> None:
    """Raise AttrError unless an attribute is ``count`` ints of at least ``least``."""
    if len(values) != count or min(map(int, values)) < least:
        raise AttrError(
            f"{op}: {what} is wrong, got {tuple(map(int, values))}, "
            f"expected {count} ints of at least {least}"
        )


def _check_attrs(op: str, attrs: Any) -> None:
    check_ints(op, "stride", attrs.stride, 2, 1)
    check_ints(op, "padding", attrs.padding, 4, 0)
    check_ints(op, "dilation", attrs.dilation, 2, 1)
    if attrs.groups < 1:
        raise AttrError(f"{op}: groups is wrong, got {attrs.groups}, expected at least 1")


def output_size(op: str, size: Ints, kernel: Ints, attrs: Any, dilation: Ints = (1, 1)) -> Ints:
    """Return how many positions a window takes: floor((padded - extent) / stride) + 1.

    Raises:
        ShapeError: where the window is larger than the padded input.
    """
    top, left, bottom, right = attrs.padding
    result = []
    for axis, pads in ((0, top + bottom), (1, left + right)):
        room = size[axis] + pads - dilation[axis] * (kernel[axis] - 1) - 1
        if int(room) < 0:
            raise ShapeError(
                f"{op}: the window is larger than the padded input, got window "
                f"{shapes.format_shape(kernel)} with dilation {dilation} on input "
                f"{shapes.format_shape(size)} with padding {attrs.padding}, "
                "expected a window that fits"
            )
        result.append(room // attrs.stride[axis] + 1)
    return tuple(result)


def _check_weight(op: str, channels: int, outputs: int, per_group: int, groups: int) -> None:
    if int(per_group) * groups != int(channels):
        raise ShapeError(
            f"{op}: input channels do not fit the weight, got {int(channels)} channels, expected "
            f"{int(per_group) * groups} ({groups} groups of {int(per_group)})"
        )
    if int(outputs) % groups:
        raise ShapeError(
            f"{op}: output channels must be a multiple of groups, got {int(outputs)} with "
            f"{groups} groups, expected a multiple of {groups}"
        )


def convolved(op: str, x: TensorSpec, w: TensorSpec, attrs: Any) -> shapes.Shape:
    """Return the shape of a convolution's result.

    Raises:
        AttrError, ShapeError: where attributes or shapes do not fit.
    """
    _check_attrs(op, attrs)
    expect_rank(op, x, 4)
    expect_rank(op, w, 4, "weight")
    _check_weight(op, x.shape[1], w.shape[0], w.shape[1], attrs.groups)
    check_ints(op, "kernel", w.shape[2:], 2, 1)
    size = output_size(op, x.shape[2:], w.shape[2:], attrs, attrs.dilation)
    return (x.shape[0], w.shape[0], *size)


def _conv_spec(op: str, x: TensorSpec, w: TensorSpec, attrs: Any) -> TensorSpec:
    shape = convolved(op, x, w, attrs)
    expect_float(op, x)
    expect_same_dtype(op, (x, w))
    return x.with_shape(shape)


def _infer(specs: Specs, attrs: Conv2d) -> Specs:
    return (_conv_spec("conv2d", specs[0], specs[1], attrs),)


def _infer_fused(specs: Specs, attrs: Conv2dFused) -> Specs:
    result = _conv_spec("conv2d_fused", specs[0], specs[1], attrs)
    check_epilogue("conv2d_fused", specs, attrs, result, result.shape[1])
    return (result,)


def _expect_positions(op: str, g: TensorSpec, size: Ints) -> None:
    if tuple(map(int, g.shape[2:])) != tuple(map(int, size)):
        raise ShapeError(
            f"{op}: the gradient's size does not fit, got "
            f"{shapes.format_shape(g.shape[2:])}, expected {shapes.format_shape(size)}"
        )


def _infer_backward_data(specs: Specs, attrs: Conv2dBackwardData) -> Specs:
    op, (g, w) = "conv2d_backward_data", specs
    _check_attrs(op, attrs)
    check_ints(op, "size", attrs.size, 2, 0)
    expect_rank(op, g, 4)
    expect_rank(op, w, 4, "weight")
    expect_float(op, g)
    expect_same_dtype(op, specs)
    check_ints(op, "kernel", w.shape[2:], 2, 1)
    channels = w.shape[1] * attrs.groups
    if int(g.shape[1]) != int(w.shape[0]):
        raise ShapeError(
            f"{op}: channels do not fit the weight, got {int(g.shape[1])}, "
            f"expected {int(w.shape[0])}"
        )
    _check_weight(op, channels, w.shape[0], w.shape[1], attrs.groups)
    _expect_positions(op, g, output_size(op, attrs.size, w.shape[2:], attrs, attrs.dilation))
    return (g.with_shape((g.shape[0], channels, *attrs.size)),)


def _infer_backward_weight(specs: Specs, attrs: Conv2dBackwardWeight) -> Specs:
    op, (x, g) = "conv2d_backward_weight", specs
    _check_attrs(op, attrs)
    check_ints(op, "size", attrs.size, 2, 1)
    expect_rank(op, x, 4)
    expect_rank(op, g, 4, "gradient")
    expect_float(op, x)
    expect_same_dtype(op, specs)
    if int(x.shape[0]) != int(g.shape[0]):
        raise ShapeError(
            f"{op}: batches differ, got {int(x.shape[0])} and {int(g.shape[0])}, "
            "expected equal ones"
        )
    per_group = x.shape[1] // attrs.groups
    _check_weight(op, x.shape[1], g.shape[1], per_group, attrs.groups)
    _expect_positions(op, g, output_size(op, x.shape[2:], attrs.size, attrs, attrs.dilation))
    return (x.with_shape((g.shape[1], per_group, *attrs.size)),)


def taps(attrs: Any, kernel: Ints, positions: Ints) -> list[tuple[int, int, tuple[slice, slice]]]:
    """Return, for each kernel element, which padded pixels it meets over all positions."""
    (sh, sw), (dh, dw) = attrs.stride, attrs.dilation
    return [
        (
            i,
            j,
            (
                slice(i * dh, i * dh + sh * positions[0], sh),
                slice(j * dw, j * dw + sw * positions[1], sw),
            ),
        )
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]


def _padded(x: np.ndarray, attrs: Any) -> np.ndarray:
    """Return x in float64 with zeros around it."""
    top, left, bottom, right = attrs.padding
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))


def _grouped(array: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """Split an axis of channels into (groups, channels of a group)."""
    shape = array.shape
    inner = shape[axis] // groups
    return array.reshape(*shape[:axis], groups, inner, *shape[axis + 1 :])


def _reference(arrays: Sequence[np.ndarray], attrs: Conv2d) -> Sequence[np.ndarray]:
    x, w = arrays
    kernel = w.shape[2:]
    positions = output_size("conv2d", x.shape[2:], kernel, attrs, attrs.dilation)
    padded = _grouped(_padded(x, attrs), attrs.groups, 1)
    weight = _grouped(w.astype(np.float64), attrs.groups, 0)
    out = np.zeros((x.shape[0], *weight.shape[:2], *positions))
    for i, j, (rows, cols) in taps(attrs, kernel, positions):
        pixels = padded[..., rows, cols]
        out += np.einsum("ngchw,goc->ngohw", pixels, weight[..., i, j])
    return (out.reshape(x.shape[0], w.shape[0], *positions).astype(x.dtype),)


def _reference_data(
    arrays: Sequence[np.ndarray], attrs: Conv2dBackwardData
) -> Sequence[np.ndarray]:
    g, w = arrays
    channels = w.shape[1] * attrs.groups
    weight = _grouped(w.astype(np.float64), attrs.groups, 0)
    grad = _grouped(g.astype(np.float64), attrs.groups, 1)
    zeros = np.zeros((g.shape[0], channels, *attrs.size))
    padded = _padded(zeros, attrs)
    view = _grouped(padded, attrs.groups, 1)
    for i, j, (rows, cols) in taps(attrs, w.shape[2:], g.shape[2:]):
        view[..., rows, cols] += np.einsum("ngohw,goc->ngchw", grad, weight[..., i, j])
    top, left = attrs.padding[:2]
    inner = padded[:, :, top : top + attrs.size[0], left : left + attrs.size[1]]
    return (np.ascontiguousarray(inner.astype(g.dtype)),)


def _reference_weight(
    arrays: Sequence[np.ndarray], attrs: Conv2dBackwardWeight
) -> Sequence[np.ndarray]:
    x, g = arrays
    padded = _grouped(_padded(x, attrs), attrs.groups, 1)
    grad = _grouped(g.astype(np.float64), attrs.groups, 1)
    out = np.zeros((attrs.groups, grad.shape[2], padded.shape[2], *attrs.size))
    for i, j, (rows, cols) in taps(attrs, attrs.size, g.shape[2:]):
        out[..., i, j] = np.einsum("ngohw,ngchw->goc", grad, padded[..., rows, cols])
    return (out.reshape(g.shape[1], padded.shape[2], *attrs.size).astype(x.dtype),)


def _grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, w), (g,), shared = ctx.inputs, grads, _geometry(ctx.attrs)
    if g is None:
        return (None, None)
    return (
        CONV2D_BACKWARD_DATA(g, w, size=x.shape[2:], **shared) if ctx.needs[0] else None,
        CONV2D_BACKWARD_WEIGHT(x, g, size=w.shape[2:], **shared) if ctx.needs[1] else None,
    )


def _grad_data(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (g, w), (gx,), shared = ctx.inputs, grads, _geometry(ctx.attrs)
    if gx is None:
        return (None, None)
    return (
        CONV2D(gx, w, **shared) if ctx.needs[0] else None,
        CONV2D_BACKWARD_WEIGHT(gx, g, size=w.shape[2:], **shared) if ctx.needs[1] else None,
    )


def _grad_weight(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, g), (gw,), shared = ctx.inputs, grads, _geometry(ctx.attrs)
    if gw is None:
        return (None, None)
    return (
        CONV2D_BACKWARD_DATA(g, gw, size=x.shape[2:], **shared) if ctx.needs[0] else None,
        CONV2D(x, gw, **shared) if ctx.needs[1] else None,
    )


def _decompose_fused(inputs: tuple[Any, ...], attrs: Conv2dFused) -> Any:
    y = CONV2D(*inputs[:2], **_geometry(attrs))
    rest = list(inputs[2:])
    if attrs.has_bias:
        bias = rest.pop(0)
        y = y + RESHAPE(bias, shape=(1, bias.shape[0], 1, 1))
    if attrs.has_residual:
        y = y + rest.pop(0)
    return activate(y, attrs.activation, attrs.lower, attrs.upper)


def work(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    """Count a convolution: each output takes as many products as a filter holds."""
    return Work(outputs[0].size * _filter_size(inputs[1]))


def _work_data(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    return Work(inputs[0].size * _filter_size(inputs[1]))


def _work_weight(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    return Work(inputs[1].size * _filter_size(outputs[0]))


def _filter_size(weight: TensorSpec) -> int:
    return shapes.volume(weight.shape[1:])


CONV2D = Op(
    "conv2d",
    infer=_infer,
    reference=_reference,
    grad=_grad,
    attrs=Conv2d,
    n_inputs=2,
    work=work,
    family="conv",
)
CONV2D_FUSED = Op(
    "conv2d_fused",
    infer=_infer_fused,
    decompose=_decompose_fused,
    attrs=Conv2dFused,
    n_inputs=(2, 4),
    work=work,
    family="conv",
)
CONV2D_BACKWARD_DATA = Op(
    "conv2d_backward_data",
    infer=_infer_backward_data,
    reference=_reference_data,
    grad=_grad_data,
    attrs=Conv2dBackwardData,
    n_inputs=2,
    work=_work_data,
    family="conv",
)
CONV2D_BACKWARD_WEIGHT = Op(
    "conv2d_backward_weight",
    infer=_infer_backward_weight,
    reference=_reference_weight,
    grad=_grad_weight,
    attrs=Conv2dBackwardWeight,
    n_inputs=2,
    work=_work_weight,
    family="conv",
)
OPS: tuple[Op, ...] = (CONV2D, CONV2D_FUSED, CONV2D_BACKWARD_DATA, CONV2D_BACKWARD_WEIGHT)
