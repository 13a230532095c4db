"""Small calls that complete the tables: every dtype an op takes, empty values and single ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import DTypeError
from ...op import NoAttrs
from ...ops import attrs as a
from ...ops.matmul import MatmulFused
from ...ops.pool import Pool2d, Size2d
from . import FLOATS, INTEGERS, Case, Invalid, Source, fixed, flags, number, real, spec, whole
from .fused import program

COMPLEX = ("complex64", "complex128")
NUMBERS = (*INTEGERS, *FLOATS, *COMPLEX)
EVERY = ("bool", *NUMBERS)


def _movements(dtype: str) -> Iterator[tuple[str, tuple[Source, ...], Any]]:
    x, row = number((3, 5), dtype), number((5,), dtype)
    yield "copy", (x,), NoAttrs()
    yield "relayout", (x,), a.Relayout("plain", "plain")
    yield "reshape", (x,), a.Shape((5, 3))
    yield "transpose", (x,), a.Transpose((1, 0))
    yield "broadcast_to", (row,), a.Shape((2, 5))
    yield "concat", (x, number((1, 5), dtype)), a.Axis(0)
    for mode in ("constant", "edge", "reflect"):
        yield "pad", (x,), a.Pad((1, 0), (0, 2), mode)
    yield "slice", (x,), a.Slice((2, 0), (2, 3), (-2, 2))
    yield "slice_backward", (number((2, 3), dtype),), a.SliceBackward((3, 5), (2, 0), (-2, 2))
    yield "slice_set", (x, number((2, 3), dtype)), a.SliceSet((2, 0), (2, 3), (-2, 2))


def _indexings(dtype: str) -> Iterator[tuple[str, tuple[Source, ...], Any]]:
    x, where = number((3, 5), dtype), fixed([[0], [-1], [2]], "int64")
    source, rows = number((3, 1), dtype), fixed([2, -3], "int32")
    yield "take", (x, rows), a.Axis(0)
    yield "gather", (x, where), a.Axis(1)
    yield "scatter", (x, where, source), a.Axis(1)
    yield "index", (x, rows, rows), a.Index(2)
    yield "index_set", (x, number((2,), dtype), rows, rows), a.Index(2)


def _sums(dtype: str) -> Iterator[tuple[str, tuple[Source, ...], Any]]:
    x, where = number((3, 5), dtype), fixed([[0], [-1], [2]], "int64")
    rows = fixed([1, 1], "int32")
    for mode in ("constant", "edge", "reflect"):
        yield "pad_backward", (number((4, 7), dtype),), a.PadBackward((1, 0), (0, 2), mode)
    yield "take_backward", (number((2, 5), dtype), rows), a.TakeBackward(0, 3)
    yield "scatter_add", (x, where, number((3, 1), dtype)), a.Axis(1)
    yield "index_add", (x, number((2,), dtype), rows, rows), a.Index(2)
    yield "sum", (x,), a.Reduce((1,))
    yield "sum_to", (x,), a.Shape((5,))


def _every_dtype() -> Iterator[Case]:
    for dtype in EVERY:
        for name, inputs, attrs in (*_movements(dtype), *_indexings(dtype)):
            yield Case(name, inputs, attrs, exact=True)
    for dtype in NUMBERS:
        exact = dtype in INTEGERS
        for name, inputs, attrs in _sums(dtype):
            yield Case(name, inputs, attrs, length=8, magnitude=4, exact=exact)
    for name in ("equal", "not_equal"):
        pair = (fixed([1, 2 + 1j, 2j], "complex128"), fixed([1, 2 + 1j, -2j], "complex128"))
        yield Case(name, pair, exact=True)
    yield Case("cast", (number((3, 2), "complex128"),), a.Cast("complex64"), exact=True)


def _some_dtypes() -> Iterator[Case]:
    for dtype in INTEGERS:
        small = (whole((3, 5), dtype, 0, 3), whole((3, 5), dtype, 0, 3))
        lines = (("bitwise_xor", 0, 1, 0), ("add", 2, 0, 0), ("relu", 3, 0, 0))
        yield Case("fused_elementwise", small, program(*lines, outputs=(4,)), exact=True)
        sides = (number((3, 4), dtype), number((4, 5), dtype), number((5,), dtype))
        for activation in ("identity", "relu", "clip"):
            attrs = MatmulFused(has_bias=True, activation=activation, lower=0.0, upper=9.0)
            yield Case("matmul_fused", sides, attrs, exact=True)
        images = (number((1, 2, 5, 7), dtype),)
        yield Case("max_pool2d", images, Pool2d((3, 2), (2, 2), (1, 0, 1, 1)), exact=True)
        yield Case("adaptive_max_pool2d", images, Size2d((2, 3)), exact=True)
    for descending in (False, True):
        yield Case("sort", (flags((3, 7)),), a.Sort(1, descending), exact=True)
        yield Case("topk", (flags((3, 7)),), a.TopK(4, 1, descending), exact=True)
    for dtype in ("float16", "bfloat16"):
        yield Case("svd", (real((4, 3), dtype),), a.Svd(False, False), length=8, magnitude=4)


def _empty_and_single() -> Iterator[Case]:
    for shape in ((0, 3), (1, 1)):
        for name in ("isnan", "isinf", "logical_not"):
            yield Case(name, (real(shape),), exact=True)
        yield Case("bitwise_not", (whole(shape),), exact=True)
        yield Case("relayout", (real(shape),), a.Relayout("plain", "plain"), exact=True)
        yield Case("broadcast_to", (real(shape),), a.Shape((2, *shape)), exact=True)
        yield Case("pad_backward", (real(shape),), a.PadBackward((0, 0), (0, 0)), exact=True)
    for shape in ((1, 3), (0, 3)):
        x, where = real(shape), fixed([[0] * 3] * shape[0], "int32")
        where = where if shape[0] else whole(shape, "int32", 0, 0)
        yield Case("gather", (x, where), a.Axis(1), exact=True)
        yield Case("scatter", (x, where, x), a.Axis(1), exact=True)
        yield Case("scatter_add", (x, where, x), a.Axis(1), length=3, magnitude=4)


CASES: tuple[Case, ...] = (*_every_dtype(), *_some_dtypes(), *_empty_and_single())

INVALID: tuple[Invalid, ...] = (
    Invalid("logical_not", (spec((2,), "complex64"),), DTypeError, "got complex64"),
)
