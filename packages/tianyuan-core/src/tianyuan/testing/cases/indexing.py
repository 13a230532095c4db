"""Calls of the indexing ops: negative and repeated indices, both index dtypes, empty arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import AttrError, DTypeError, ShapeError
from ...ops import attrs as a
from . import LARGE, Case, Invalid, Source, fixed, number, real, spec, whole

DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
SUMMABLE = DTYPES[1:]
Ints = tuple[int, ...]


def indices(shape: Sequence[int], size: int, dtype: str = "int32") -> Source:
    """Make indices into an axis, negative ones among them."""
    if size == 0:
        return lambda rng: rng.integers(0, 1, tuple(shape)).astype(dtype)
    return whole(shape, dtype, -size, size - 1)


def _takes() -> Iterator[Case]:
    places: tuple[tuple[Ints, Ints, int], ...] = (
        ((9, 33), (5,), 0), ((9, 33), (2, 3), 1), ((9,), (), 0), ((4, 3), (0,), 0),
        ((2, 5, 7), (4,), 1), ((50, 16), (200,), 0), ((0, 3), (0,), 0), ((1, 4), (6,), 0),
        ((2, 19, 3, 4), (37,), 1),
    )  # fmt: skip
    for shape, index_shape, axis in places:
        size = shape[axis]
        grown = (*shape[:axis], *index_shape, *shape[axis + 1 :])
        back = a.TakeBackward(axis, size)
        for index_dtype in ("int32", "int64"):
            where = indices(index_shape, size, index_dtype)
            yield Case("take", (real(shape), where), a.Axis(axis), exact=True)
            inputs = (real(grown), where)
            yield Case("take_backward", inputs, back, length=200, magnitude=2)
        for dtype in DTYPES:
            inputs = (number(shape, dtype), indices(index_shape, size))
            yield Case("take", inputs, a.Axis(axis), exact=True)
        for dtype in SUMMABLE:
            exact = "float" not in dtype
            inputs = (number(grown, dtype), indices(index_shape, size))
            yield Case("take_backward", inputs, back, length=200, magnitude=2, exact=exact)
    yield Case("take", (real(LARGE), indices((700,), LARGE[0])), a.Axis(0), exact=True)
    inputs = (real((700, LARGE[1])), indices((700,), LARGE[0]))
    yield Case("take_backward", inputs, a.TakeBackward(0, LARGE[0]), length=700, magnitude=2)
    where = fixed([2, -1, 0, 2], "int32")
    yield Case("take", (real((2, 3), "float64"), where), a.Axis(1), grad=(0,))
    inputs = (real((2, 4), "float64"), where)
    yield Case("take_backward", inputs, a.TakeBackward(1, 3), grad=(0,))


def _gathers() -> Iterator[Case]:
    places: tuple[tuple[Ints, Ints, int], ...] = (
        ((9, 33), (4, 33), 0), ((9, 33), (9, 40), 1), ((5, 6), (3, 2), 1), ((7,), (3,), 0),
        ((2, 5, 7), (2, 3, 7), 1), ((4, 3), (0, 3), 0), ((3, 4, 2), (2, 4, 9), 2),
    )  # fmt: skip
    for shape, index_shape, axis in places:
        for index_dtype in ("int32", "int64"):
            for dtype in DTYPES if index_dtype == "int32" else ("float32",):
                where = indices(index_shape, shape[axis], index_dtype)
                x, source = number(shape, dtype), number(index_shape, dtype)
                at = a.Axis(axis)
                yield Case("gather", (x, where), at, exact=True)
                yield Case("scatter", (x, where, source), at, exact=True)
                if dtype != "bool":
                    exact = "float" not in dtype
                    inputs = (x, where, source)
                    yield Case("scatter_add", inputs, at, length=40, magnitude=2, exact=exact)
    x, where = real((3, 3), "float64"), fixed([[0, 2], [2, 2], [-1, 0]], "int64")
    source = real((3, 2), "float64")
    yield Case("gather", (x, where), a.Axis(1), grad=(0,))
    for name in ("scatter", "scatter_add"):
        yield Case(name, (x, where, source), a.Axis(1), grad=(0, 2))


def _indexes() -> Iterator[Case]:
    places: tuple[tuple[Ints, Ints, int], ...] = (
        ((9, 33), (5,), 1), ((9, 33), (2, 3), 2), ((4, 5, 6), (7,), 2), ((7,), (), 1),
        ((4, 3), (0,), 1), ((3, 4, 5), (6,), 3), ((2, 3, 0), (4,), 1),
    )  # fmt: skip
    for shape, index_shape, count in places:
        for index_dtype in ("int32", "int64"):
            for dtype in DTYPES if index_dtype == "int32" else ("float32",):
                where = tuple(indices(index_shape, n, index_dtype) for n in shape[:count])
                x = number(shape, dtype)
                value = number((*index_shape, *shape[count:]), dtype)
                at = a.Index(count)
                yield Case("index", (x, *where), at, exact=True)
                yield Case("index_set", (x, value, *where), at, exact=True)
                if dtype != "bool":
                    exact = "float" not in dtype
                    inputs = (x, value, *where)
                    yield Case("index_add", inputs, at, length=9, magnitude=2, exact=exact)
    x, value = real((3, 2, 2), "float64"), real((3, 2), "float64")
    rows, cols = fixed([0, -1, 2], "int32"), fixed([1, 0, 0], "int32")
    yield Case("index", (x, rows, cols), a.Index(2), grad=(0,))
    for name in ("index_set", "index_add"):
        yield Case(name, (x, value, rows, cols), a.Index(2), grad=(0, 1))


def _one_hots() -> Iterator[Case]:
    for shape in ((), (7,), (2, 5), (0,)):
        for dtype in DTYPES:
            yield Case("one_hot", (whole(shape, "int32", 0, 8),), a.OneHot(9, dtype), exact=True)
        yield Case("one_hot", (whole(shape, "int64", 0, 0),), a.OneHot(1, "float32"), exact=True)


CASES: tuple[Case, ...] = (*_takes(), *_gathers(), *_indexes(), *_one_hots())

_x, _i = spec((3, 4)), spec((2,), "int32")
INVALID: tuple[Invalid, ...] = (
    Invalid("take", (_x, spec((2,))), DTypeError, "must be int32 or int64", a.Axis(0)),
    Invalid("take", (_x, _i), AttrError, "axis is out of range", a.Axis(2)),
    Invalid("take_backward", (spec((3, 4)), _i), ShapeError, "wrong shape", a.TakeBackward(0, 5)),
    Invalid("take_backward", (spec((2,), "bool"), _i), DTypeError, "bool", a.TakeBackward(0, 5)),
    Invalid("gather", (_x, _i), ShapeError, "indices do not fit", a.Axis(0)),
    Invalid("gather", (_x, spec((3, 5), "int32")), ShapeError, "do not fit", a.Axis(0)),
    Invalid(
        "scatter", (_x, spec((3, 2), "int32"), spec((3, 3))), ShapeError, "wrong shape", a.Axis(1)
    ),
    Invalid(
        "scatter_add",
        (_x, spec((3, 2), "int32"), spec((3, 2), "float64")),
        DTypeError,
        "one dtype",
        a.Axis(1),
    ),
    Invalid("index", (_x, _i), AttrError, "wrong number of indices", a.Index(2)),
    Invalid("index", (_x, _i, spec((3,), "int32")), ShapeError, "wrong shape", a.Index(2)),
    Invalid("index_set", (_x, spec((2, 3)), _i), ShapeError, "value has the wrong", a.Index(1)),
    Invalid("index_add", (_x, spec((2, 4), "int32"), _i), DTypeError, "one dtype", a.Index(1)),
    Invalid("one_hot", (spec((2,)),), DTypeError, "must be int32", a.OneHot(3, "float32")),
    Invalid("one_hot", (_i,), AttrError, "depth is too small", a.OneHot(0, "float32")),
)
