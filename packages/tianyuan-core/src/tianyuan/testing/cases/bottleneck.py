"""Calls of bottlenecks: both forms, strides, borders, odd channels, every activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import AttrError, DTypeError, ShapeError
from ...op import Specs
from ...ops.bottleneck import Bottleneck
from ...ops.epilogue import ACTIVATIONS
from ...shapes import Shape
from . import FLOATS, Case, Invalid, Source, real, spec

ONE = (1, 1, 1, 1)
# (shape of x, wide channels, outputs, kernel, attributes)
Place = tuple[Shape, int, int, Shape, Bottleneck]
PLACES: tuple[Place, ...] = (
    ((2, 3, 7, 6), 10, 5, (3, 3), Bottleneck(padding=ONE)),
    ((1, 16, 9, 11), 32, 16, (3, 3), Bottleneck((2, 2), ONE)),
    ((1, 17, 14, 14), 70, 33, (3, 3), Bottleneck(padding=ONE)),
    ((1, 8, 30, 40), 24, 8, (3, 3), Bottleneck(padding=ONE)),
    ((1, 4, 15, 90), 33, 7, (5, 5), Bottleneck((1, 2), (2, 2, 2, 2))),
    ((1, 24, 40, 56), 144, 24, (3, 3), Bottleneck(padding=ONE)),
    ((1, 16, 33, 64), 96, 24, (3, 3), Bottleneck((2, 2), (0, 0, 1, 1))),
    ((2, 5, 6, 5), 9, 4, (2, 3), Bottleneck((3, 1), (0, 2, 1, 0))),
    ((1, 5, 5, 8), 6, 3, (1, 7), Bottleneck((1, 3), (0, 3, 0, 3))),
    ((1, 3, 4, 3), 5, 2, (3, 3), Bottleneck((1, 1), (0, 4, 0, 4))),
    ((1, 2, 1, 1), 3, 2, (5, 5), Bottleneck(padding=(2, 2, 2, 2))),
    ((0, 3, 5, 4), 6, 4, (3, 3), Bottleneck(padding=ONE)),
    ((1, 3, 5, 4), 6, 0, (3, 3), Bottleneck(padding=ONE)),
)  # fmt: skip
SMALL = PLACES[0], PLACES[7]


def _case(place: Place, attrs: Bottleneck, dtype: str = "float32", grad: int = 0) -> Case:
    """Make a call; ``attrs`` say what the place does not: form, residual and activations."""
    (n, c, h, w), wide, outputs, kernel, form = place
    attrs = replace(attrs, stride=form.stride, padding=form.padding)
    top, left, bottom, right = form.padding
    size = tuple(
        (extent + pads - taps) // stride + 1
        for extent, pads, taps, stride in zip(
            (h, w), (top + bottom, left + right), kernel, form.stride, strict=True
        )
    )
    inputs: list[Source] = [real((n, c if attrs.expands else wide, h, w), dtype)]
    if attrs.expands:
        inputs += [real((wide, c, 1, 1), dtype), real((wide,), dtype)]
    inputs += [real((wide, 1, *kernel), dtype), real((wide,), dtype)]
    inputs += [real((outputs, wide, 1, 1), dtype), real((outputs,), dtype)]
    inputs += [real((n, outputs, *size), dtype)] if attrs.has_residual else []
    # What one convolution rounds, the next multiplies by up to as many terms as it sums.
    terms = (c if attrs.expands else 1) * kernel[0] * kernel[1] + wide
    return Case(
        "bottleneck",
        tuple(inputs),
        attrs,
        length=terms + 24,
        magnitude=float(8 * kernel[0] * kernel[1] * max(c, 4)),
        ulps=64,
        grad=tuple(range(grad)),
    )


def _cases() -> Iterator[Case]:
    for place in PLACES:
        for expands in (True, False):
            for residual in (True, False):
                names = ("relu6", "relu", "identity") if residual else ("relu", "relu6", "relu")
                yield _case(place, Bottleneck((), (), expands, residual, *names))
    for index, name in enumerate(ACTIVATIONS):
        others = ACTIVATIONS[index - 1], ACTIVATIONS[index - 3]
        attrs = Bottleneck(
            (), (), True, True, name, *others, lower=(-0.5, 0.25, -1.5), upper=(0.75, 1.0, 1.5)
        )
        yield _case(PLACES[2], attrs)
        yield _case(PLACES[0], replace(attrs, expands=False))
    for dtype in FLOATS:
        for expands in (True, False):
            attrs = Bottleneck((), (), expands, True, "tanh", "sigmoid", "identity")
            yield _case(SMALL[0], attrs, dtype)
    for expands in (True, False):
        smooth = Bottleneck((), (), expands, True, "tanh", "sigmoid", "silu")
        tiny: Place = ((1, 2, 3, 4), 3, 2, (3, 3), Bottleneck((1, 2), ONE))
        yield _case(tiny, smooth, "float64", 8 if expands else 6)


CASES: tuple[Case, ...] = tuple(_cases())

_X = spec((1, 4, 5, 5))
_EXPAND = spec((6, 4, 1, 1)), spec((6,))
_REST = spec((6, 1, 3, 3)), spec((6,)), spec((3, 6, 1, 1)), spec((3,))
_ALL = (_X, *_EXPAND, *_REST)


def _with(index: int, shape: Shape, dtype: str = "float32") -> Specs:
    return (*_ALL[:index], spec(shape, dtype), *_ALL[index + 1 :])


def _invalid() -> Iterator[Invalid]:
    for attrs, match in (
        (Bottleneck(stride=(0, 1)), "stride is wrong"),
        (Bottleneck(padding=(0, 0, -1, 0)), "padding is wrong"),
        (Bottleneck(expanded="step"), "unknown activation"),
        (Bottleneck(filtered="step"), "unknown activation"),
        (Bottleneck(projected="step"), "unknown activation"),
        (Bottleneck(lower=(0.0,)), "lower is wrong"),
        (Bottleneck(upper=()), "upper is wrong"),
        (Bottleneck(has_residual=True), "number of inputs"),
        (Bottleneck(expands=False), "number of inputs"),
    ):
        yield Invalid("bottleneck", _ALL, AttrError, match, attrs)
    for index, shape, match in (
        (0, (4, 5, 5), "wrong rank"),
        (1, (6, 4, 1), "wrong rank"),
        (1, (6, 4, 3, 3), "kernel of 1 x 1"),
        (1, (6, 3, 1, 1), "input channels"),
        (2, (5,), "bias has"),
        (3, (6, 3, 3), "wrong rank"),
        (3, (6, 2, 3, 3), "the depthwise weight has"),
        (3, (5, 1, 3, 3), "the depthwise weight has"),
        (3, (6, 1, 6, 3), "larger than"),
        (4, (3,), "bias has"),
        (5, (3, 6, 3, 1), "kernel of 1 x 1"),
        (5, (3, 5, 1, 1), "input channels"),
        (6, (6,), "bias has"),
    ):
        yield Invalid("bottleneck", _with(index, shape), ShapeError, match, Bottleneck())
    residual = Bottleneck(has_residual=True)
    yield Invalid("bottleneck", (*_ALL, spec((1, 3, 5, 5))), ShapeError, "residual has", residual)
    mixed = _with(4, (6,), "float64")
    yield Invalid("bottleneck", mixed, DTypeError, "one dtype", Bottleneck())
    integers = tuple(spec(item.shape, "int32") for item in _ALL)
    yield Invalid("bottleneck", integers, DTypeError, "must be floating", Bottleneck())


INVALID: tuple[Invalid, ...] = tuple(_invalid())
