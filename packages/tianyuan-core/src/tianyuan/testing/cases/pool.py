"""Calls of the poolings: odd sizes, overlaps, paddings, ties, NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.conv import output_size
from ...ops.pool import AvgPool2d, AvgPool2dBackward, Pool2d, Size2d
from . import FLOATS, Case, Invalid, Source, distinct, fixed, number, real, spec, whole

Shape = tuple[int, ...]
PLACES: tuple[tuple[Shape, Pool2d], ...] = (
    ((2, 3, 8, 8), Pool2d((2, 2), (2, 2))),
    ((1, 5, 9, 7), Pool2d((3, 3), (2, 2), (1, 1, 1, 1))),
    ((2, 2, 7, 9), Pool2d((3, 2), (1, 2), (2, 1, 1, 0))),
    ((1, 19, 6, 6), Pool2d((3, 3), (1, 1), (1, 1, 1, 1))),
    ((1, 1, 5, 4), Pool2d((5, 4), (1, 1))),
    ((1, 2, 9, 9), Pool2d((2, 2), (3, 3))),
    ((2, 32, 14, 13), Pool2d((2, 2), (2, 2))),
    ((0, 3, 4, 4), Pool2d((2, 2), (2, 2))),
    ((3, 17, 1, 1), Pool2d((1, 1), (1, 1))),
)
SOME = PLACES[:3]
SMALL = (
    ((1, 2, 4, 3), Pool2d((2, 2), (1, 1), (1, 0, 0, 1))),
    ((2, 1, 5, 4), Pool2d((3, 2), (2, 2))),
)
ADAPTIVE: tuple[tuple[Shape, Shape], ...] = (
    ((2, 3, 8, 8), (1, 1)), ((1, 5, 9, 7), (3, 4)), ((2, 2, 7, 9), (7, 9)), ((1, 2, 4, 5), (6, 7)),
    ((2, 19, 13, 13), (6, 6)), ((0, 2, 4, 4), (2, 2)),
)  # fmt: skip


def _out(shape: Shape, attrs: Pool2d) -> Shape:
    return (*shape[:2], *output_size("pool", shape[2:], attrs.kernel, attrs))


def _special() -> Source:
    values = np.linspace(-1, 1, 72).reshape(1, 2, 6, 6)
    values[0, 0, 2, 3] = np.nan
    values[0, 0, 3, 2] = np.nan
    values[0, 1, :3, :3] = -np.inf
    values[0, 1, 4, 4:] = np.inf
    return fixed(values)


def _max_pools() -> Iterator[Case]:
    for dtype in ("int8", "int32", "uint8", *FLOATS):
        for shape, attrs in PLACES if dtype == "float32" else SOME:
            x = number(shape, dtype)
            yield Case("max_pool2d", (x,), attrs, exact=True)
            if dtype not in FLOATS:
                continue
            taps = attrs.kernel[0] * attrs.kernel[1]
            # Small whole numbers repeat, so that the first of equals matters.
            ties = whole(shape, dtype, -2, 2)
            for source in (x, ties):
                g = real(_out(shape, attrs), dtype)
                yield Case("max_pool2d_backward", (source, g), attrs, length=taps, magnitude=2)
                yield Case("max_pool2d_pick", (source, real(shape, dtype)), attrs, exact=True)
    window = Pool2d((3, 3), (2, 2), (1, 1, 1, 1))
    yield Case("max_pool2d", (_special(),), window, exact=True)
    yield Case("max_pool2d_backward", (_special(), real((1, 2, 3, 3))), window, length=9)
    yield Case("max_pool2d_pick", (_special(), real((1, 2, 6, 6))), window, exact=True)
    for shape, attrs in SMALL:
        x, t = distinct(shape, "float64"), real(shape, "float64")
        g = real(_out(shape, attrs), "float64")
        yield Case("max_pool2d", (x,), attrs, grad=(0,))
        yield Case("max_pool2d_backward", (x, g), attrs, grad=(1,))
        yield Case("max_pool2d_pick", (x, t), attrs, grad=(1,))


def _average(shape: Shape, pool: Pool2d, dtype: str, include: bool, grad: bool) -> Iterator[Case]:
    attrs = AvgPool2d(pool.kernel, pool.stride, pool.padding, include)
    back = AvgPool2dBackward(pool.kernel, pool.stride, pool.padding, include, shape[2:])
    length, which = pool.kernel[0] * pool.kernel[1], (0,) if grad else ()
    x, g = real(shape, dtype), real(_out(shape, pool), dtype)
    yield Case("avg_pool2d", (x,), attrs, length=length, magnitude=2, grad=which)
    yield Case("avg_pool2d_backward", (g,), back, length=length, magnitude=2, grad=which)


def _avg_pools() -> Iterator[Case]:
    for include in (False, True):
        for dtype in FLOATS:
            for shape, pool in PLACES if dtype == "float32" else SOME:
                yield from _average(shape, pool, dtype, include, False)
        for shape, pool in SMALL:
            yield from _average(shape, pool, "float64", include, True)


def _adaptive() -> Iterator[Case]:
    for dtype in FLOATS:
        for shape, size in ADAPTIVE if dtype == "float32" else ADAPTIVE[:3]:
            x, t = real(shape, dtype), real(shape, dtype)
            g = real((*shape[:2], *size), dtype)
            length = shape[2] * shape[3]
            out, back = Size2d(size), Size2d(shape[2:])
            yield Case("adaptive_avg_pool2d", (x,), out, length=length, magnitude=2)
            yield Case("adaptive_avg_pool2d_backward", (g,), back, length=length, magnitude=2)
            yield Case("adaptive_max_pool2d", (x,), out, exact=True)
            yield Case("adaptive_max_pool2d_backward", (x, g), out, length=length, magnitude=2)
            yield Case("adaptive_max_pool2d_pick", (x, t), out, exact=True)
    yield Case("adaptive_max_pool2d", (_special(),), Size2d((4, 2)), exact=True)
    for shape, size in (((1, 2, 4, 3), (2, 2)), ((1, 1, 3, 5), (4, 3))):
        x, t = distinct(shape, "float64"), real(shape, "float64")
        g = real((*shape[:2], *size), "float64")
        out, back = Size2d(size), Size2d(shape[2:])
        yield Case("adaptive_avg_pool2d", (t,), out, grad=(0,))
        yield Case("adaptive_avg_pool2d_backward", (g,), back, grad=(0,))
        yield Case("adaptive_max_pool2d", (x,), out, grad=(0,))
        yield Case("adaptive_max_pool2d_backward", (x, g), out, grad=(1,))
        yield Case("adaptive_max_pool2d_pick", (x, t), out, grad=(1,))


CASES: tuple[Case, ...] = (*_max_pools(), *_avg_pools(), *_adaptive())

_X, _WINDOW = spec((1, 2, 4, 4)), Pool2d((2, 2), (2, 2))
_BAD_WINDOWS = (
    ((0, 2), (1, 1), (0, 0, 0, 0), AttrError, "kernel is wrong"),
    ((2, 2), (1, 0), (0, 0, 0, 0), AttrError, "stride is wrong"),
    ((2, 2), (1, 1), (0, 0, 0), AttrError, "padding is wrong"),
    ((2, 2), (1, 1), (0, 0, 2, 0), AttrError, "padding must be smaller"),
    ((5, 2), (1, 1), (0, 0, 0, 0), ShapeError, "larger than the padded input"),
)
INVALID: tuple[Invalid, ...] = (
    *(
        Invalid(name, (_X,), error, match, cls(kernel, stride, padding))
        for kernel, stride, padding, error, match in _BAD_WINDOWS
        for name, cls in (("max_pool2d", Pool2d), ("avg_pool2d", AvgPool2d))
    ),
    *(
        Invalid(name, (spec((2, 4, 4)),), ShapeError, "wrong rank", attrs)
        for name, attrs in (
            ("max_pool2d", _WINDOW),
            ("avg_pool2d", AvgPool2d((2, 2), (2, 2))),
            ("adaptive_avg_pool2d", Size2d((2, 2))),
            ("adaptive_avg_pool2d_backward", Size2d((2, 2))),
            ("adaptive_max_pool2d", Size2d((2, 2))),
        )
    ),
    *(
        Invalid(name, (spec((1, 2, 4, 4), "int32"),), DTypeError, "must be floating", attrs)
        for name, attrs in (
            ("avg_pool2d", AvgPool2d((2, 2), (2, 2))),
            ("adaptive_avg_pool2d", Size2d((2, 2))),
        )
    ),
    *(
        Invalid(name, (spec((1, 2, 4, 4), "bool"),), DTypeError, "got bool", attrs)
        for name, attrs in (("max_pool2d", _WINDOW), ("adaptive_max_pool2d", Size2d((2, 2))))
    ),
    *(
        Invalid(f"{prefix}max_pool2d_{part}", (_X, _X if part == "backward" else _G), ShapeError,
                "has the wrong shape", attrs)
        for prefix, attrs in (("", _WINDOW), ("adaptive_", Size2d((2, 2))))
        for part, _G in (("backward", _X), ("pick", spec((1, 2, 2, 2))))
    ),
    Invalid("max_pool2d", (spec((1, 2, 0, 4)),), ShapeError, "image is empty", _WINDOW),
    Invalid("adaptive_avg_pool2d", (_X,), AttrError, "size is wrong", Size2d((0, 2))),
    Invalid("adaptive_max_pool2d", (_X,), AttrError, "size is wrong", Size2d((2,))),
    Invalid(
        "avg_pool2d_backward", (_X,), ShapeError, "gradient has the wrong shape",
        AvgPool2dBackward((2, 2), (2, 2), size=(4, 4)),
    ),
)  # fmt: skip
