"""Calls of the movement ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import AttrError, DTypeError, ShapeError
from ...ops import attrs as a
from . import FLOATS, INTEGERS, LARGE, Case, Invalid, number, real, spec

DTYPES = ("bool", *INTEGERS, *FLOATS)
Ints = tuple[int, ...]


def _same(name: str, shapes: tuple[Ints, ...], attrs: Any) -> Iterator[Case]:
    """Yield a movement of floats, and of one value of every other dtype."""
    yield Case(name, tuple(real(shape) for shape in shapes), attrs, exact=True)
    for dtype in ("bool", "uint8", "float16", "bfloat16", "int32", "float64"):
        yield Case(name, tuple(number(shape, dtype) for shape in shapes), attrs, exact=True)


def _gradient(name: str, shapes: tuple[Ints, ...], attrs: Any) -> Case:
    inputs = tuple(real(shape, "float64") for shape in shapes)
    return Case(name, inputs, attrs, grad=tuple(range(len(shapes))))


def _shapes() -> Iterator[Case]:
    reshapes: tuple[tuple[Ints, Ints], ...] = (
        ((6, 4), (6, 4)),
        ((6, 4), (3, 8)), ((), (1, 1)), ((0, 3), (3, 0, 2)), ((24,), (2, 3, 4)), ((5, 1), (5,)),
    )  # fmt: skip
    for source, target in reshapes:
        yield from _same("reshape", (source,), a.Shape(target))
    yield _gradient("reshape", ((2, 3),), a.Shape((3, 2)))
    transposes: tuple[tuple[Ints, Ints], ...] = (
        ((5, 33), (1, 0)), ((2, 3, 17), (2, 0, 1)), ((2, 3, 4, 5), (0, 2, 3, 1)), ((7,), (0,)),
        ((), ()), ((0, 3), (1, 0)), ((2, 3, 2, 3, 2), (4, 3, 2, 1, 0)), ((65, 70), (1, 0)),
    )  # fmt: skip
    for source, perm in transposes:
        yield from _same("transpose", (source,), a.Transpose(perm))
    yield Case("transpose", (real(LARGE),), a.Transpose((1, 0)), exact=True)
    yield _gradient("transpose", ((2, 3, 2),), a.Transpose((2, 0, 1)))
    broadcasts: tuple[tuple[Ints, Ints], ...] = (
        ((5,), (3, 5)), ((), (2, 2)), ((3, 1), (2, 3, 7)), ((4, 1), (4, 0)), ((2, 3), (2, 3)),
    )  # fmt: skip
    for source, target in broadcasts:
        yield from _same("broadcast_to", (source,), a.Shape(target))
    yield _gradient("broadcast_to", ((3, 1),), a.Shape((2, 3, 2)))


def _concats() -> Iterator[Case]:
    lists: tuple[tuple[tuple[Ints, ...], int], ...] = (
        (((2, 3), (2, 5)), 1), (((2, 3), (4, 3), (1, 3)), 0), (((7,),), 0), (((0, 3), (2, 3)), 0),
        (((2, 3, 4), (2, 9, 4)), 1), (((1,),) * 9, 0),
        (((2, 19, 3, 4), (2, 5, 3, 4), (2, 24, 3, 4)), 1), (((1, 16, 5, 1), (1, 32, 5, 1)), 1),
    )  # fmt: skip
    for shapes, axis in lists:
        yield from _same("concat", shapes, a.Axis(axis))
    yield Case("concat", (real(LARGE), real(LARGE)), a.Axis(1), exact=True)
    yield _gradient("concat", ((2, 1), (2, 3)), a.Axis(1))


def _pads() -> Iterator[Case]:
    pads: tuple[tuple[Ints, Ints, Ints], ...] = (
        ((5, 7), (1, 2), (0, 3)), ((4,), (3,), (3,)), ((2, 3, 4, 5), (0, 0, 1, 2), (0, 0, 2, 1)),
        ((3, 4), (0, 0), (0, 0)),
    )  # fmt: skip
    for shape, before, after in pads:
        for mode in ("constant", "reflect", "edge"):
            yield from _same("pad", (shape,), a.Pad(before, after, mode, 1.0))
            grown = tuple(n + p + q for n, p, q in zip(shape, before, after, strict=True))
            for dtype in ("float32", "float16", "int32"):
                attrs = a.PadBackward(before, after, mode)
                source = number(grown, dtype)
                exact = dtype == "int32" or mode == "constant"
                yield Case("pad_backward", (source,), attrs, length=9, magnitude=2, exact=exact)
    yield from _same("pad", ((0, 2),), a.Pad((1, 0), (1, 1), "constant", -1.0))
    yield from _same("pad", ((),), a.Pad((), (), "constant", 2.0))
    for mode in ("constant", "reflect", "edge"):
        yield _gradient("pad", ((3, 3),), a.Pad((2, 0), (1, 2), mode, 0.5))
        yield _gradient("pad_backward", ((6, 5),), a.PadBackward((2, 0), (1, 2), mode))


# shape, starts, sizes, steps
REGIONS: tuple[tuple[Ints, Ints, Ints, Ints], ...] = (
    ((9,), (1,), (4,), (2,)), ((9,), (8,), (9,), (-1,)), ((9,), (7,), (3,), (-3,)),
    ((5, 33), (0, 3), (5, 17), (1, 1)), ((5, 33), (4, 32), (3, 11), (-2, -3)),
    ((2, 3, 4), (1, 0, 2), (1, 3, 2), (1, 1, 1)), ((4, 5), (2, 0), (0, 5), (1, 1)),
    ((2, 35, 3, 4), (0, 5, 0, 0), (2, 19, 3, 4), (1, 1, 1, 1)),
    ((2, 35, 3, 4), (0, 34, 0, 0), (2, 9, 3, 4), (1, -3, 1, 1)),
    ((0, 3), (0, 0), (0, 3), (1, 1)), ((), (), (), ()), ((6,), (0,), (1,), (5,)),
)  # fmt: skip


def _slices() -> Iterator[Case]:
    for shape, starts, sizes, steps in REGIONS:
        yield from _same("slice", (shape,), a.Slice(starts, sizes, steps))
        yield from _same("slice_backward", (sizes,), a.SliceBackward(shape, starts, steps))
        yield from _same("slice_set", (shape, sizes), a.SliceSet(starts, sizes, steps))
    region = ((1, 3), (2, 2), (1, -2))
    yield _gradient("slice", ((3, 4),), a.Slice(*region))
    yield _gradient("slice_backward", ((2, 2),), a.SliceBackward((3, 4), (1, 3), (1, -2)))
    yield _gradient("slice_set", ((3, 4), (2, 2)), a.SliceSet(*region))


CASES: tuple[Case, ...] = (*_shapes(), *_concats(), *_pads(), *_slices())

_x = spec((2, 3))
INVALID: tuple[Invalid, ...] = (
    Invalid(
        "pad_backward", (spec((3,), "bool"),), DTypeError, "got bool", a.PadBackward((0,), (1,))
    ),
    Invalid("reshape", (_x,), ShapeError, "number of elements differs", a.Shape((4,))),
    Invalid("reshape", (_x,), AttrError, "extent is negative", a.Shape((-2, -3))),
    Invalid("transpose", (_x,), AttrError, "not a permutation", a.Transpose((0, 0))),
    Invalid("transpose", (_x,), AttrError, "not a permutation", a.Transpose((0,))),
    Invalid("broadcast_to", (_x,), ShapeError, "does not broadcast", a.Shape((2, 4))),
    Invalid("broadcast_to", (_x,), ShapeError, "does not broadcast", a.Shape((3,))),
    Invalid("concat", (_x, spec((2, 3), "int32")), DTypeError, "one dtype", a.Axis(0)),
    Invalid("concat", (_x, spec((2, 4))), ShapeError, "shapes differ", a.Axis(0)),
    Invalid("concat", (_x, spec((2,))), ShapeError, "shapes differ", a.Axis(0)),
    Invalid("concat", (_x, _x), AttrError, "axis is out of range", a.Axis(2)),
    Invalid("pad", (_x,), AttrError, "unknown mode, got 'wrap'", a.Pad((0, 0), (0, 0), "wrap")),
    Invalid("pad", (_x,), AttrError, "one entry per axis", a.Pad((0,), (0, 0))),
    Invalid("pad", (_x,), AttrError, "a pad is negative", a.Pad((0, -1), (0, 0))),
    Invalid("pad", (_x,), ShapeError, "too short", a.Pad((2, 0), (0, 0), "reflect")),
    Invalid("pad", (spec((0,)),), ShapeError, "too short", a.Pad((1,), (0,), "edge")),
    Invalid("pad_backward", (_x,), ShapeError, "exceed", a.PadBackward((2, 0), (1, 0))),
    Invalid("slice", (_x,), AttrError, "leaves the axis", a.Slice((0, 2), (2, 2), (1, 1))),
    Invalid("slice", (_x,), AttrError, "leaves the axis", a.Slice((0, 0), (2, 2), (1, -1))),
    Invalid("slice", (_x,), AttrError, "a step is 0", a.Slice((0, 0), (2, 2), (1, 0))),
    Invalid("slice", (_x,), AttrError, "one entry per axis", a.Slice((0,), (2, 2), (1, 1))),
    Invalid(
        "slice_backward",
        (_x,),
        AttrError,
        "leaves the axis",
        a.SliceBackward((2, 2), (0, 0), (1, 1)),
    ),
    Invalid(
        "slice_set",
        (_x, spec((2, 2))),
        ShapeError,
        "value has the wrong shape",
        a.SliceSet((0, 0), (2, 3), (1, 1)),
    ),
)
