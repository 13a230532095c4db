"""Calls with complex numbers: their parts, and the ops that take them."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import DTypeError
from ...ops.attrs import Axis, Cast, Index, Reduce, Shape, Slice, Transpose
from . import Case, Invalid, complex_numbers, fixed, real, spec

_PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((3, 5), (3, 5)), ((2, 1, 4), (3, 1)), ((0, 3), (1, 3)),
)  # fmt: skip


def _cases() -> Iterator[Case]:
    for left, right in _PAIRS:
        yield Case("complex", (real(left), real(right)), exact=True)
        pair = (complex_numbers(left), complex_numbers(right))
        for name in ("add", "sub", "mul", "div"):
            # A product of parts cancels, and a quotient is a product by a reciprocal.
            yield Case(name, pair, magnitude=16, ulps=32)
        for name in ("real", "imag", "neg", "abs"):
            yield Case(name, (complex_numbers(left),), ulps=16)
        for name in ("equal", "not_equal"):
            yield Case(name, pair, exact=True)
    yield Case("complex", (real((2, 3), "float64"), real((3,), "float64")), grad=(0, 1))
    z, w = complex_numbers((2, 3), "complex128"), complex_numbers((3,), "complex128")
    for name in ("add", "sub", "mul", "div"):
        yield Case(name, (z, w), magnitude=16, ulps=32, grad=(0, 1))
    for name in ("real", "imag", "neg", "abs"):
        yield Case(name, (z,), ulps=16, grad=(0,))
    yield Case("cast", (complex_numbers((3, 4)),), Cast("complex128"), exact=True)
    yield Case("cast", (real((3, 4)),), Cast("complex64"), exact=True)
    yield Case("cast", (real((3,), "float64"),), Cast("complex128"), grad=(0,))
    yield Case("sum", (z,), Reduce((1,)), length=3, magnitude=4, grad=(0,))
    yield Case("sum_to", (z,), Shape((3,)), length=2, magnitude=4, grad=(0,))
    yield Case("transpose", (z,), Transpose((1, 0)), exact=True, grad=(0,))
    index = fixed([2, 0, 2], "int32")
    yield Case("take", (z, index), Axis(1), exact=True, grad=(0,))
    yield Case("index", (z, fixed([1, 1], "int32")), Index(1), exact=True, grad=(0,))
    places = fixed([[1, 0], [2, 2]], "int32")
    yield Case("gather", (z, places), Axis(1), exact=True, grad=(0,))
    yield Case("scatter_add", (z, places, complex_numbers((2, 2), "complex128")), Axis(1),
               ulps=16, magnitude=4, grad=(0, 2))  # fmt: skip
    yield Case("slice", (z,), Slice((1, 2), (1, 2), (1, -1)), exact=True, grad=(0,))


CASES: tuple[Case, ...] = tuple(_cases())

_Z = spec((3,), "complex64")
INVALID: tuple[Invalid, ...] = (
    Invalid("complex", (spec((2,)), spec((2,), "float64")), DTypeError, "one dtype"),
    Invalid("complex", (spec((2,), "int32"),) * 2, DTypeError, "got int32"),
    Invalid("complex", (_Z, _Z), DTypeError, "complex numbers are not taken"),
    Invalid("real", (spec((2,)),), DTypeError, "must be complex, got float32"),
    Invalid("imag", (spec((2,), "int32"),), DTypeError, "must be complex, got int32"),
    Invalid("cast", (_Z,), DTypeError, "cannot become real", Cast("float32")),
    Invalid("exp", (_Z,), DTypeError, "complex numbers are not taken"),
    Invalid("max", (_Z,), DTypeError, "complex numbers are not taken", Reduce((0,))),
    Invalid("less", (_Z, _Z), DTypeError, "complex numbers are not taken"),
)
