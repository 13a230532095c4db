"""Calls of the sorting ops: ties, NaN, both orders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import AttrError
from ...ops.attrs import Sort, TopK
from . import FLOATS, INTEGERS, Case, Invalid, distinct, fixed, number, spec


def _cases() -> Iterator[Case]:
    places = (((7,), 0), ((5, 33), 1), ((33, 5), 0), ((2, 3, 17), 1), ((1,), 0), ((0, 3), 1),
              ((3, 0), 1))  # fmt: skip
    for descending in (False, True):
        for dtype in (*INTEGERS, *FLOATS):
            for shape, axis in places if dtype == "float32" else places[1:3]:
                # Narrow ranges, so that there are ties.
                source = number(shape, dtype, -1, 1)
                yield Case("sort", (source,), Sort(axis, descending), exact=True)
                for k in sorted({0, min(1, shape[axis]), shape[axis] // 2, shape[axis]}):
                    yield Case("topk", (source,), TopK(k, axis, descending), exact=True)
        nans = fixed([[2, np.nan, -1, np.inf, np.nan, -np.inf, 0]])
        yield Case("sort", (nans,), Sort(1, descending), exact=True)
        yield Case("topk", (nans,), TopK(4, 1, descending), exact=True)
        apart = (distinct((3, 4), "float64"),)
        yield Case("sort", apart, Sort(1, descending), grad=(0,))
        yield Case("topk", apart, TopK(2, 0, descending), grad=(0,))


CASES: tuple[Case, ...] = tuple(_cases())

INVALID: tuple[Invalid, ...] = (
    Invalid("sort", (spec((3,)),), AttrError, "axis is out of range", Sort(1)),
    Invalid("topk", (spec((3,)),), AttrError, "k is out of range, got 4", TopK(4, 0)),
    Invalid("topk", (spec((3,)),), AttrError, "axis is out of range", TopK(1, 1)),
)
