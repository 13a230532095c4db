"""Calls of the ops that keep every value: all pairs of dtypes, and copies."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import DTypeError
from ...ops.attrs import Cast, Relayout
from . import FLOATS, INTEGERS, Case, Invalid, number, real, spec


def _casts() -> Iterator[Case]:
    every = ("bool", *INTEGERS, *FLOATS)
    for source in every:
        for target in every:
            # A negative float has no meaning in an unsigned integer.
            low = 0.0 if target.startswith("uint") else -2.0
            yield Case("cast", (number((3, 11), source, low, 2.0),), Cast(target), exact=True)
    for shape in ((), (0, 4), (1,), (1031,)):
        yield Case("cast", (real(shape),), Cast("float16"), exact=True)
    yield Case("cast", (real((2, 3), "float64"),), Cast("float64"), grad=(0,))


def _copies() -> Iterator[Case]:
    for dtype in ("bool", *INTEGERS, *FLOATS):
        yield Case("copy", (number((5, 7), dtype),), exact=True)
        yield Case("relayout", (number((5, 7), dtype),), Relayout("plain", "plain"), exact=True)
    for shape in ((), (0, 3), (1,), (2, 3, 5, 7)):
        yield Case("copy", (real(shape),), exact=True)
    for name, attrs in (("copy", None), ("relayout", Relayout("plain", "plain"))):
        inputs = (real((2, 3), "float64"),)
        if attrs is None:
            yield Case(name, inputs, grad=(0,))
        else:
            yield Case(name, inputs, attrs, grad=(0,))


CASES: tuple[Case, ...] = (*_casts(), *_copies())

INVALID: tuple[Invalid, ...] = (
    Invalid("cast", (spec((2,)),), DTypeError, "unknown name, got 'complex32'", Cast("complex32")),
)
