"""A depthwise convolution with the pointwise ones around it as one op, so that a kernel need not
write the wide planes between them to memory."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import (
    Floats,
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
from .conv import CONV2D, Conv2d, check_ints, convolved
from .epilogue import ACTIVATIONS, activate
from .shape import RESHAPE

OP = "bottleneck"


@record()
class Bottleneck:
    """Stride and padding of the depthwise convolution, and what follows each convolution.

    ``lower`` and ``upper`` bound the values after the expanding, the depthwise and the projecting
    convolution where their activation is ``clip``.
    """

    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    expands: bool = True
    has_residual: bool = False
    expanded: str = "identity"
    filtered: str = "identity"
    projected: str = "identity"
    lower: Floats = (0.0, 0.0, 0.0)
    upper: Floats = (0.0, 0.0, 0.0)


def _check_attrs(specs: Specs, attrs: Bottleneck) -> None:
    for name in (attrs.expanded, attrs.filtered, attrs.projected):
        if name not in ACTIVATIONS:
            raise AttrError(
                f"{OP}: unknown activation, got {name!r}, expected one of {', '.join(ACTIVATIONS)}"
            )
    for what, values in (("lower", attrs.lower), ("upper", attrs.upper)):
        if len(values) != 3:
            raise AttrError(f"{OP}: {what} is wrong, got {values}, expected 3 numbers")
    count = 5 + 2 * int(attrs.expands) + int(attrs.has_residual)
    if len(specs) != count:
        raise AttrError(
            f"{OP}: wrong number of inputs, got {len(specs)}, expected {count} with "
            f"expands={attrs.expands}, has_residual={attrs.has_residual}"
        )


def _pointwise(x: TensorSpec, w: TensorSpec) -> TensorSpec:
    expect_rank(OP, w, 4, "weight")
    if tuple(map(int, w.shape[2:])) != (1, 1):
        raise ShapeError(
            f"{OP}: a pointwise weight is wrong, got {shapes.format_shape(w.shape)}, expected a "
            "kernel of 1 x 1"
        )
    return x.with_shape(convolved(OP, x, w, Conv2d()))


def _expect_shape(what: str, spec: TensorSpec, shape: shapes.Shape) -> None:
    if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
        raise ShapeError(
            f"{OP}: {what} has the wrong shape, got {shapes.format_shape(spec.shape)}, expected "
            f"{shapes.format_shape(shape)}"
        )


def _geometry(attrs: Bottleneck, channels: int) -> dict[str, Any]:
    return {
        "stride": attrs.stride,
        "padding": attrs.padding,
        "dilation": (1, 1),
        "groups": max(int(channels), 1),
    }


def _infer(specs: Specs, attrs: Bottleneck) -> Specs:
    _check_attrs(specs, attrs)
    y, rest = specs[0], list(specs[1:])
    expect_rank(OP, y, 4)
    expect_float(OP, y)
    expect_same_dtype(OP, specs)
    check_ints(OP, "stride", attrs.stride, 2, 1)
    check_ints(OP, "padding", attrs.padding, 4, 0)
    if attrs.expands:
        y = _pointwise(y, rest.pop(0))
        _expect_shape("bias", rest.pop(0), y.shape[1:2])
    w = rest.pop(0)
    expect_rank(OP, w, 4, "weight")
    _expect_shape("the depthwise weight", w, (y.shape[1], 1, *w.shape[2:]))
    y = y.with_shape(convolved(OP, y, w, Conv2d(**_geometry(attrs, w.shape[0]))))
    _expect_shape("bias", rest.pop(0), y.shape[1:2])
    y = _pointwise(y, rest.pop(0))
    _expect_shape("bias", rest.pop(0), y.shape[1:2])
    if attrs.has_residual:
        _expect_shape("residual", rest.pop(0), y.shape)
    return (y,)


def _convolve(x: Any, rest: list[Any], **geometry: Any) -> Any:
    """Take a weight and a bias off the inputs."""
    y = CONV2D(x, rest.pop(0), **geometry)
    bias = rest.pop(0)
    return y + RESHAPE(bias, shape=(1, bias.shape[0], 1, 1))


def _decompose(inputs: tuple[Any, ...], attrs: Bottleneck) -> Any:
    y, *rest = inputs
    bounds = list(zip(attrs.lower, attrs.upper, strict=True))
    if attrs.expands:
        y = activate(_convolve(y, rest), attrs.expanded, *bounds[0])
    y = _convolve(y, rest, **_geometry(attrs, rest[0].shape[0]))
    y = _convolve(activate(y, attrs.filtered, *bounds[1]), rest)
    if attrs.has_residual:
        y = y + rest.pop(0)
    return activate(y, attrs.projected, *bounds[2])


def _work(inputs: Specs, outputs: Specs, attrs: Bottleneck) -> Work:
    x, y = inputs[0], outputs[0]
    weights = [spec for spec in inputs[1:] if spec.ndim == 4]
    expand = weights.pop(0).size if attrs.expands else 0
    read, written = (spec.shape[0] * shapes.volume(spec.shape[2:]) for spec in (x, y))
    return Work(read * expand + written * (weights[0].size + weights[1].size))


# Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, 2018.
BOTTLENECK = Op(
    OP,
    infer=_infer,
    decompose=_decompose,
    attrs=Bottleneck,
    n_inputs=(5, 8),
    work=_work,
    family="conv",
)
OPS: tuple[Op, ...] = (BOTTLENECK,)
