"""Calls of the convolutions: odd sizes, strides, paddings, dilations, groups, and empty batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.conv import (
    Conv2d,
    Conv2dBackwardData,
    Conv2dBackwardWeight,
    Conv2dFused,
    output_size,
)
from ...ops.epilogue import ACTIVATIONS
from . import FLOATS, Case, Invalid, Source, real, spec

Shape = tuple[int, ...]

# (batch, channels, height, width), outputs, kernel, attributes
PLACES: tuple[tuple[Shape, int, Shape, Conv2d], ...] = (
    ((1, 3, 9, 11), 8, (3, 3), Conv2d((1, 1), (1, 1, 1, 1))),
    ((2, 16, 14, 14), 16, (3, 3), Conv2d((1, 1), (1, 1, 1, 1))),
    ((2, 5, 13, 7), 7, (3, 3), Conv2d((2, 2), (1, 1, 1, 1))),
    ((1, 3, 23, 19), 19, (7, 7), Conv2d((2, 2), (3, 3, 3, 3))),
    ((3, 17, 6, 5), 33, (1, 1), Conv2d()),
    ((2, 8, 9, 9), 4, (1, 1), Conv2d((2, 2))),
    ((2, 6, 10, 8), 4, (2, 3), Conv2d((1, 2), (0, 1, 1, 2), (2, 1))),
    ((1, 4, 12, 12), 4, (3, 3), Conv2d((1, 1), (2, 2, 2, 2), (2, 2))),
    ((2, 8, 7, 9), 12, (3, 3), Conv2d((1, 1), (1, 1, 1, 1), (1, 1), 4)),
    ((2, 19, 8, 8), 19, (3, 3), Conv2d((1, 1), (1, 1, 1, 1), (1, 1), 19)),
    ((1, 16, 9, 7), 32, (5, 5), Conv2d((2, 2), (2, 2, 2, 2), (1, 1), 16)),
    ((1, 32, 8, 8), 32, (3, 3), Conv2d((1, 1), (1, 1, 1, 1), (1, 1), 2)),
    ((1, 1, 5, 5), 1, (5, 5), Conv2d()),
    ((0, 3, 6, 6), 4, (3, 3), Conv2d((1, 1), (1, 1, 1, 1))),
    ((1, 64, 7, 7), 64, (3, 3), Conv2d((1, 1), (1, 1, 1, 1))),
    ((2, 3, 4, 4), 5, (2, 2), Conv2d((3, 3), (0, 0, 0, 0))),
    ((1, 20, 5, 6), 38, (1, 1), Conv2d(groups=2)),
    ((2, 60, 7, 19), 51, (1, 1), Conv2d(groups=3)),
    ((1, 24, 3, 5), 80, (1, 1), Conv2d(groups=4)),
    ((1, 40, 4, 4), 24, (1, 1), Conv2d(groups=8)),
    ((2, 48, 3, 6), 40, (1, 1), Conv2d(groups=8)),
    ((1, 7, 18, 21), 21, (3, 5), Conv2d((2, 1), (1, 0, 1, 3))),
    ((2, 35, 11, 9), 35, (7, 7), Conv2d((1, 1), (3, 3, 3, 3), (1, 1), 35)),
    ((1, 18, 12, 13), 18, (3, 3), Conv2d((2, 2), (0, 1, 1, 0), (1, 1), 18)),
    ((1, 64, 7, 8), 32, (1, 1), Conv2d((2, 2))),
    ((2, 0, 7, 8), 33, (3, 3), Conv2d((1, 1), (1, 1, 1, 1))),
    ((1, 0, 6, 5), 64, (1, 1), Conv2d()),
    ((2, 32, 4, 7), 96, (1, 1), Conv2d()),
)
SOME = (PLACES[0], PLACES[6], PLACES[8])
SMALL: tuple[tuple[Shape, int, Shape, Conv2d], ...] = (
    ((2, 2, 4, 3), 2, (2, 2), Conv2d((1, 1), (1, 0, 0, 1))),
    ((1, 2, 5, 4), 4, (3, 2), Conv2d((2, 1), (1, 1, 1, 1), (1, 2), 2)),
    ((1, 2, 4, 4), 2, (2, 2), Conv2d((3, 3))),
)


def _weight(channels: int, outputs: int, kernel: Shape, attrs: Conv2d) -> Shape:
    return (outputs, channels // attrs.groups, *kernel)


def _result(shape: Shape, outputs: int, kernel: Shape, attrs: Conv2d) -> Shape:
    size = output_size("conv2d", shape[2:], kernel, attrs, attrs.dilation)
    return (shape[0], outputs, *size)


def _with(attrs: Conv2d, cls: type, size: Shape) -> object:
    return cls(attrs.stride, attrs.padding, attrs.dilation, attrs.groups, size)


def _three(place: tuple[Shape, int, Shape, Conv2d], dtype: str, grad: bool) -> Iterator[Case]:
    """Make one call of the convolution and one of each of its gradients."""
    shape, outputs, kernel, attrs = place
    x = real(shape, dtype)
    w = real(_weight(shape[1], outputs, kernel, attrs), dtype)
    result = _result(*place)
    g = real(result, dtype)
    taps, both = kernel[0] * kernel[1], (0, 1) if grad else ()
    per_group = shape[1] // attrs.groups * taps
    yield Case("conv2d", (x, w), attrs, length=per_group, magnitude=4, grad=both)
    yield Case(
        "conv2d_backward_data",
        (g, w),
        _with(attrs, Conv2dBackwardData, shape[2:]),
        length=outputs // attrs.groups * taps,
        magnitude=4,
        grad=both,
    )
    yield Case(
        "conv2d_backward_weight",
        (x, g),
        _with(attrs, Conv2dBackwardWeight, kernel),
        length=max(1, result[0] * result[2] * result[3]),
        magnitude=4,
        grad=both,
    )


def _plain() -> Iterator[Case]:
    for dtype in FLOATS:
        for place in PLACES if dtype == "float32" else SOME:
            yield from _three(place, dtype, False)
    for place in SMALL:
        yield from _three(place, "float64", True)


def _fused_case(
    place: tuple[Shape, int, Shape, Conv2d],
    fused: Conv2dFused,
    dtype: str,
    grad: tuple[int, ...] = (),
) -> Case:
    shape, outputs, kernel, conv = place
    attrs = replace(
        fused,
        stride=conv.stride,
        padding=conv.padding,
        dilation=conv.dilation,
        groups=conv.groups,
    )
    inputs: tuple[Source, ...] = (
        real(shape, dtype),
        real(_weight(shape[1], outputs, kernel, conv), dtype),
    )
    inputs += (real((outputs,), dtype),) if attrs.has_bias else ()
    inputs += (real(_result(*place), dtype),) if attrs.has_residual else ()
    length = shape[1] // conv.groups * kernel[0] * kernel[1] + 8
    # The decomposition rounds after each of its ops, a kernel once.
    return Case("conv2d_fused", inputs, attrs, length=length, magnitude=4, ulps=32, grad=grad)


def _fused() -> Iterator[Case]:
    for dtype in FLOATS:
        for activation in ACTIVATIONS:
            for bias, residual in ((False, False), (True, False), (False, True), (True, True)):
                fused = Conv2dFused(
                    has_bias=bias,
                    has_residual=residual,
                    activation=activation,
                    lower=-0.5,
                    upper=1.5,
                )
                yield _fused_case(PLACES[0], fused, dtype)
    for place in PLACES:
        yield _fused_case(place, Conv2dFused(has_bias=True, activation="relu"), "float32")
        yield _fused_case(
            place, Conv2dFused(has_bias=True, has_residual=True, activation="relu6"), "float32"
        )
    strided, first, depthwise, pointwise = (PLACES[i] for i in (2, 3, 9, -1))
    for place in (strided, first, depthwise, pointwise):
        yield _fused_case(place, Conv2dFused(has_residual=True, activation="relu"), "float32")
    for place, activation in zip(SMALL, ("identity", "sigmoid", "silu"), strict=True):
        fused = Conv2dFused(has_bias=True, has_residual=True, activation=activation)
        yield _fused_case(place, fused, "float64", (0, 1, 2, 3))


CASES: tuple[Case, ...] = (*_plain(), *_fused())

_X, _W = spec((1, 4, 5, 5)), spec((6, 4, 3, 3))


def _invalid_geometry(name: str, inputs: tuple[object, ...], attrs: object) -> Iterator[Invalid]:
    """Refuse what no convolution has."""
    for change, match in (
        ({"stride": (0, 1)}, "stride is wrong"),
        ({"stride": (1,)}, "stride is wrong"),
        ({"padding": (0, 0, -1, 0)}, "padding is wrong"),
        ({"dilation": (1, 0)}, "dilation is wrong"),
        ({"groups": 0}, "groups is wrong"),
    ):
        yield Invalid(name, inputs, AttrError, match, replace(attrs, **change))  # type: ignore[arg-type, type-var]


_G = spec((1, 6, 3, 3))
INVALID: tuple[Invalid, ...] = (
    *_invalid_geometry("conv2d", (_X, _W), Conv2d()),
    *_invalid_geometry("conv2d_backward_data", (_G, _W), Conv2dBackwardData(size=(5, 5))),
    *_invalid_geometry("conv2d_backward_weight", (_X, _G), Conv2dBackwardWeight(size=(3, 3))),
    *(
        case
        for name, attrs in (("conv2d", Conv2d()), ("conv2d_fused", Conv2dFused()))
        for case in (
            Invalid(name, (spec((4, 5, 5)), _W), ShapeError, "wrong rank", attrs),
            Invalid(name, (_X, spec((6, 4, 3))), ShapeError, "weight has the wrong rank", attrs),
            Invalid(name, (_X, spec((6, 3, 3, 3))), ShapeError, "input channels", attrs),
            Invalid(name, (_X, spec((6, 4, 6, 3))), ShapeError, "larger than", attrs),
            Invalid(name, (_X, spec((6, 4, 3, 3), "float64")), DTypeError, "one dtype", attrs),
            Invalid(
                name,
                (spec((1, 4, 5, 5), "int32"), spec((6, 4, 3, 3), "int32")),
                DTypeError,
                "must be floating",
                attrs,
            ),
        )
    ),
    Invalid(
        "conv2d", (_X, spec((5, 2, 3, 3))), ShapeError, "multiple of groups", Conv2d(groups=2)
    ),
    Invalid("conv2d_fused", (_X, _W), AttrError, "activation", Conv2dFused(activation="step")),
    Invalid("conv2d_fused", (_X, _W), AttrError, "number of inputs", Conv2dFused(has_bias=True)),
    Invalid(
        "conv2d_fused", (_X, _W, spec((4,))), ShapeError, "bias has", Conv2dFused(has_bias=True)
    ),
    Invalid(
        "conv2d_fused",
        (_X, _W, spec((1, 6, 3, 4))),
        ShapeError,
        "residual has",
        Conv2dFused(has_residual=True),
    ),
    Invalid(
        "conv2d_backward_data", (_G, _W), ShapeError, "size does not fit",
        Conv2dBackwardData(size=(6, 5)),
    ),
    Invalid(
        "conv2d_backward_data", (spec((1, 5, 3, 3)), _W), ShapeError, "channels do not fit",
        Conv2dBackwardData(size=(5, 5)),
    ),
    Invalid(
        "conv2d_backward_weight", (_X, spec((2, 6, 3, 3))), ShapeError, "batches differ",
        Conv2dBackwardWeight(size=(3, 3)),
    ),
    Invalid(
        "conv2d_backward_weight", (_X, _G), ShapeError, "size does not fit",
        Conv2dBackwardWeight(size=(2, 3)),
    ),
)  # fmt: skip
