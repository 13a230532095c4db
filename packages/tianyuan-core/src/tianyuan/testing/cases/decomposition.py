"""Calls of ops that take matrices apart: tall, wide, square, stacked, empty stacks."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import DTypeError, ShapeError
from ...ops.attrs import Svd
from . import Case, Invalid, real, spec


def _cases() -> Iterator[Case]:
    for shape in ((3, 3), (5, 2), (2, 5), (2, 3, 4, 3), (0, 3, 2), (1, 1)):
        for full in (False, True):
            yield Case("svd", (real(shape),), Svd(full, True), length=8, magnitude=4)
        yield Case("svd", (real(shape, "float64"),), Svd(False, False), length=8, magnitude=4)
    # The gradients of U and Vh are large where singular values lie close together.
    for shape in ((3, 3), (4, 2), (2, 3)):
        yield Case("svd", (real(shape, "float64"),), Svd(False, True), grad=(0,))
    yield Case("svd", (real((2, 3, 2), "float64"),), Svd(False, False), grad=(0,))


CASES: tuple[Case, ...] = tuple(_cases())

INVALID: tuple[Invalid, ...] = (
    Invalid("svd", (spec((3,)),), ShapeError, "must hold matrices", Svd()),
    Invalid("svd", (spec((3, 0)),), ShapeError, "must hold matrices", Svd()),
    Invalid("svd", (spec((3, 3), "int32"),), DTypeError, "must be floating", Svd()),
)
