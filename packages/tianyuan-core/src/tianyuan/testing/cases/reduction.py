"""Calls of the reductions and scans: each axis, several axes, none, and empty ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attrs import ArgReduce, Axis, Reduce, Shape
from . import (
    FLOATS,
    INTEGERS,
    LARGE,
    Case,
    Invalid,
    Source,
    distinct,
    fixed,
    number,
    real,
    spec,
    whole,
)

PLACES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((7,), (0,)), ((1,), (0,)), ((5, 33), (1,)), ((33, 5), (0,)), ((3, 5, 17), (0, 2)),
    ((3, 5, 17), (1,)), ((2, 3, 4, 5), (2, 3)), ((2, 3, 4, 5), (0, 2, 3)), ((4, 3), ()),
    ((0, 3), (1,)), ((1029,), (0,)), ((3, 1031), (1,)), ((6, 4), (0, 1)),
)  # fmt: skip
SOME = (((5, 33), (1,)), ((3, 5, 17), (0, 2)))
EXTREMES = ("max", "min")


def _length(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return int(np.prod([shape[axis] for axis in axes], dtype=np.int64))


def _values(name: str, shape: tuple[int, ...], dtype: str) -> Source:
    if name == "prod":
        return real(shape, dtype, 0.8, 1.2) if dtype in FLOATS else whole(shape, dtype, -2, 2)
    return number(shape, dtype)


def _reduces() -> Iterator[Case]:
    kinds: dict[str, tuple[str, ...]] = {
        "sum": (*INTEGERS, *FLOATS), "prod": (*INTEGERS, *FLOATS), "mean": FLOATS,
        "logsumexp": FLOATS, "max": ("bool", *INTEGERS, *FLOATS),
        "min": ("bool", *INTEGERS, *FLOATS),
    }  # fmt: skip
    for name, dtypes in kinds.items():
        exact = name in EXTREMES
        for dtype in dtypes:
            for shape, axes in PLACES if dtype == "float32" else SOME:
                for keepdims in (False, True):
                    yield Case(
                        name,
                        (_values(name, shape, dtype),),
                        Reduce(axes, keepdims),
                        length=_length(shape, axes),
                        magnitude=2.0,
                        exact=exact or dtype not in FLOATS,
                    )
    for name in ("sum", "mean", "max"):
        for axes in ((0,), (1,), (0, 1)):
            length, exact = _length(LARGE, axes), name == "max"
            source = real(LARGE, "float32", 0.5, 1.5)
            yield Case(name, (source,), Reduce(axes), length=length, exact=exact)
    for name in kinds:
        nans = fixed([[1, np.nan, 3, 2], [np.nan, -1, 0, np.inf], [4, 3, -2, 1]])
        yield Case(name, (nans,), Reduce((1,)))
        yield Case(name, (nans,), Reduce((0,), True))
    for name in ("sum", "prod", "mean", "logsumexp"):
        yield Case(name, (real((3, 0)),), Reduce((1,)))
        yield Case(name, (real((0,)),), Reduce((0,), True))


def _reduce_gradients() -> Iterator[Case]:
    for shape, axes in (((3, 4), (1,)), ((2, 3, 2), (0, 2)), ((4,), (0,)), ((2, 2), ())):
        for keepdims in (False, True):
            attrs = Reduce(axes, keepdims)
            for name in ("sum", "mean"):
                yield Case(name, (real(shape, "float64"),), attrs, grad=(0,))
            for name in ("prod", "logsumexp"):
                yield Case(name, (real(shape, "float64"),), attrs, grad=(0,))
            for name in EXTREMES:
                yield Case(name, (distinct(shape, "float64"),), attrs, grad=(0,))
    # A product with one and with two zeros still has a gradient.
    zeros = fixed([[0.0, 2.0, -1.5], [0.0, 0.0, 3.0]], "float64")
    yield Case("prod", (zeros,), Reduce((1,)), grad=(0,))


def _args() -> Iterator[Case]:
    for name in ("argmax", "argmin"):
        for dtype in ("bool", *INTEGERS, *FLOATS):
            for shape, axis in (
                ((5, 33), 1),
                ((33, 5), 0),
                ((3, 5, 17), 1),
                ((1,), 0),
                ((0, 3), 1),
            ):
                for keepdims in (False, True):
                    # Small integers repeat, so that the first occurrence matters.
                    source = number(shape, dtype, -1, 1)
                    yield Case(name, (source,), ArgReduce(axis, keepdims), exact=True)
        nans = fixed([[1, np.nan, 3, np.nan], [2, 0, 2, 0]])
        yield Case(name, (nans,), ArgReduce(1), exact=True)


def _sum_to() -> Iterator[Case]:
    targets: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((4, 67), (67,)), ((4, 67), ()), ((4, 67), (4, 67)), ((2, 3, 17), (3, 1)),
        ((2, 3, 17), (1, 1, 17)), ((5, 1), (1, 1)), ((0, 3), (3,)), ((8, 16, 7, 7), (16, 1, 1)),
    )  # fmt: skip
    for shape, target in targets:
        length = max(1, _length(shape, tuple(range(len(shape)))))
        for dtype in (*INTEGERS, *FLOATS):
            exact = dtype in INTEGERS
            source = number(shape, dtype)
            yield Case("sum_to", (source,), Shape(target), length=length, magnitude=2, exact=exact)
    for shape, target in targets[:1] + targets[3:5]:
        small = tuple(min(n, 3) for n in shape)
        to = tuple(min(n, 3) for n in target)
        yield Case("sum_to", (real(small, "float64"),), Shape(to), grad=(0,))


def _along() -> Iterator[Case]:
    places = (((7,), 0), ((5, 33), 1), ((33, 5), 0), ((3, 5, 17), 1), ((2, 1031), 1), ((4, 1), 1),
              ((0, 3), 1), ((3, 0), 1))  # fmt: skip
    kinds: dict[str, tuple[str, ...]] = {
        "softmax": FLOATS, "log_softmax": FLOATS, "cumsum": (*INTEGERS, *FLOATS),
        "cumprod": (*INTEGERS, *FLOATS),
    }  # fmt: skip
    for name, dtypes in kinds.items():
        for dtype in dtypes:
            for shape, axis in places if dtype == "float32" else places[1:4]:
                source = _values("prod" if name == "cumprod" else name, shape, dtype)
                exact = dtype not in FLOATS
                yield Case(name, (source,), Axis(axis), length=shape[axis], exact=exact)
        for shape, axis in (((3, 4), 1), ((3, 2), 0), ((2, 3, 2), 1)):
            source = real(shape, "float64")
            yield Case(name, (source,), Axis(axis), grad=(0,))
    for name in ("softmax", "log_softmax"):
        yield Case(name, (real(LARGE),), Axis(1), length=LARGE[1])
    yield Case("softmax", (real((3, 40), "float32", -300, 300),), Axis(1), length=40)
    yield Case("log_softmax", (real((3, 40), "float32", -300, 300),), Axis(1), length=40, ulps=600)
    yield Case("cumprod", (fixed([[2, 0, 3, 4], [0, 1, 0, 5]], "float64"),), Axis(1), grad=(0,))
    for name in ("softmax_backward", "log_softmax_backward"):
        for dtype in FLOATS:
            for shape, axis in places if dtype == "float32" else places[1:4]:
                low, high = (0.01, 0.5) if name == "softmax_backward" else (-3, -1)
                inputs = (real(shape, dtype, low, high), real(shape, dtype))
                yield Case(name, inputs, Axis(axis), length=shape[axis], magnitude=2, ulps=16)
        inputs = (real((3, 4), "float64", -2, -0.5), real((3, 4), "float64"))
        yield Case(name, inputs, Axis(1), grad=(0, 1))


CASES: tuple[Case, ...] = (
    *_reduces(), *_reduce_gradients(), *_args(), *_sum_to(), *_along(),
)  # fmt: skip


def _invalid_axes(names: tuple[str, ...], attrs: Any) -> Iterator[Invalid]:
    for name in names:
        yield Invalid(name, (spec((2, 3)),), AttrError, "axes are not valid", attrs)


INVALID: tuple[Invalid, ...] = (
    *_invalid_axes(("sum", "mean", "prod", "max", "min", "logsumexp"), Reduce((2,))),
    *_invalid_axes(("sum", "mean", "prod", "max", "min", "logsumexp"), Reduce((1, 1))),
    *(
        Invalid(name, (spec((2,), "bool"),), DTypeError, "got bool", Reduce((0,)))
        for name in ("sum", "prod")
    ),
    *(
        Invalid(name, (spec((2,), "int32"),), DTypeError, "must be floating", Reduce((0,)))
        for name in ("mean", "logsumexp")
    ),
    *(
        Invalid(name, (spec((2, 0)),), ShapeError, "empty axis has no extreme", Reduce((1,)))
        for name in EXTREMES
    ),
    *(
        Invalid(name, (spec((2, 0)),), ShapeError, "empty axis has no extreme", ArgReduce(1))
        for name in ("argmax", "argmin")
    ),
    *(
        Invalid(name, (spec((2, 3)),), AttrError, "axis is out of range", ArgReduce(2))
        for name in ("argmax", "argmin")
    ),
    Invalid("sum_to", (spec((2, 3)),), ShapeError, "does not broadcast", Shape((2,))),
    Invalid("sum_to", (spec((3,)),), ShapeError, "does not broadcast", Shape((1, 1, 3))),
    Invalid("sum_to", (spec((2, 3), "bool"),), DTypeError, "got bool", Shape((3,))),
    *(
        Invalid(name, (spec((2, 3)),), AttrError, "axis is out of range", Axis(2))
        for name in ("softmax", "log_softmax", "cumsum", "cumprod")
    ),
    *(
        Invalid(name, (spec((2,), "int32"),), DTypeError, "must be floating", Axis(0))
        for name in ("softmax", "log_softmax")
    ),
    *(
        Invalid(name, (spec((2,)), spec((3,))), ShapeError, "must have one shape", Axis(0))
        for name in ("softmax_backward", "log_softmax_backward")
    ),
)
