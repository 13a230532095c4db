"""Calls of the ops that make values from attributes alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import AttrError, DTypeError
from ...ops.attrs import Arange, Eye, Full
from . import FLOATS, INTEGERS, Case, Invalid


def _cases() -> Iterator[Case]:
    for dtype in ("bool", *INTEGERS, *FLOATS):
        for shape in ((), (1,), (0, 2), (3, 35)):
            yield Case("full", (), Full(shape, 3.0, dtype), exact=True)
        for rows, cols, k in ((3, 3, 0), (2, 5, 1), (5, 2, -3), (0, 4, 0), (3, 3, 7), (1, 1, 0)):
            yield Case("eye", (), Eye(rows, cols, k, dtype), exact=True)
        if dtype != "bool":
            for count in (0, 1, 33):
                yield Case("arange", (), Arange(2.0, 3.0, count, dtype), exact=True)
    for value in (np.inf, -np.inf, np.nan, -0.5):
        yield Case("full", (), Full((5,), value, "float32"), exact=True)
    yield Case("arange", (), Arange(1.0, -0.25, 37, "float32"), exact=True)
    yield Case("arange", (), Arange(0.1, 0.1, 37, "float64"))


CASES: tuple[Case, ...] = tuple(_cases())

INVALID: tuple[Invalid, ...] = (
    Invalid("full", (), AttrError, "extent is negative", Full((-1,), 0.0, "float32")),
    Invalid("full", (), DTypeError, "unknown name", Full((1,), 0.0, "string")),
    Invalid("arange", (), AttrError, "extent is negative", Arange(0.0, 1.0, -1, "float32")),
    Invalid("eye", (), AttrError, "extent is negative", Eye(-1, 2, 0, "float32")),
)
