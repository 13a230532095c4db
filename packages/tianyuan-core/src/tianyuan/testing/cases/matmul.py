"""Calls of the matrix products: odd tails, every orientation, batches that broadcast, and empty."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.epilogue import ACTIVATIONS
from ...ops.matmul import Matmul, MatmulFused
from . import FLOATS, INTEGERS, Case, Invalid, Source, number, real, spec

# (rows, inner, columns)
SIZES = (
    (1, 1, 1), (3, 5, 7), (6, 64, 16), (17, 33, 65), (13, 257, 31), (64, 48, 96), (1, 70, 33),
    (33, 70, 1), (2, 1, 40), (5, 1030, 3), (0, 4, 5), (4, 0, 5), (4, 5, 0), (129, 65, 130),
    (28, 0, 128),
)  # fmt: skip
SOME = ((3, 5, 7), (17, 33, 65))
ORIENTATIONS = ((False, False), (False, True), (True, False), (True, True))
BATCHES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((1,), (4,)), ((0,), ()),
    ((2, 2, 2), (2,)),
)  # fmt: skip
# Halves that are whole panels of vectors, for methods that multiply quarters, and rows that are
# whole steps of pairs.
EVEN = (30, 64, 128)


def _pair(
    size: tuple[int, int, int],
    attrs: Matmul | MatmulFused,
    dtype: str,
    batches: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> tuple[Source, Source]:
    rows, inner, columns = size
    a = (inner, rows) if attrs.transpose_a else (rows, inner)
    b = (columns, inner) if attrs.transpose_b else (inner, columns)
    return number((*batches[0], *a), dtype), number((*batches[1], *b), dtype)


def _plain() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        for size in SIZES if dtype in ("float32", "float64") else SOME:
            for orientation in ORIENTATIONS:
                attrs = Matmul(*orientation)
                inputs = _pair(size, attrs, dtype)
                exact = dtype in INTEGERS
                yield Case("matmul", inputs, attrs, length=size[1], magnitude=4, exact=exact)
    for batches in BATCHES:
        for orientation in ORIENTATIONS:
            attrs = Matmul(*orientation)
            inputs = _pair((5, 19, 6), attrs, "float32", batches)
            yield Case("matmul", inputs, attrs, length=19, magnitude=4)
            small = _pair((2, 3, 2), attrs, "float64", batches)
            yield Case("matmul", small, attrs, grad=(0, 1))
    for transpose_b in (False, True):
        attrs = Matmul(False, transpose_b)
        for batch in ((2,), ()):
            inputs = _pair(EVEN, attrs, "float32", (batch, ()))
            yield Case("matmul", inputs, attrs, length=EVEN[1], magnitude=4)


def _fused() -> Iterator[Case]:
    for dtype in FLOATS:
        for activation in ACTIVATIONS:
            for bias, residual in ((False, False), (True, False), (False, True), (True, True)):
                attrs = MatmulFused(False, bias, bias, residual, activation, -0.5, 1.5)
                yield _fused_case((7, 33, 35), attrs, dtype)
    for size in (*SIZES[:8], (0, 4, 5), (4, 0, 5), (28, 0, 128)):
        for transpose_a, transpose_b in ORIENTATIONS:
            attrs = MatmulFused(transpose_a, transpose_b, True, False, "relu")
            yield _fused_case(size, attrs, "float32")
    for batches in BATCHES[:4]:
        attrs = MatmulFused(has_bias=True, activation="silu")
        inputs = (*_pair((5, 19, 6), attrs, "float32", batches), real((6,)))
        yield Case("matmul_fused", inputs, attrs, length=19, magnitude=4)
    for transpose_b in (False, True):
        for activation in ("clip", "gelu"):
            attrs = MatmulFused(False, transpose_b, True, True, activation, -0.5, 1.5)
            alone = MatmulFused(False, transpose_b, True, False, activation, -0.5, 1.5)
            for batch in ((2,), ()):
                both = _pair(EVEN, attrs, "float32", (batch, ()))
                all_of = (*both, real(EVEN[2:]), real((*batch, EVEN[0], EVEN[2])))
                yield Case("matmul_fused", all_of, attrs, EVEN[1] + 8, magnitude=4, ulps=32)
                yield Case("matmul_fused", all_of[:3], alone, EVEN[1] + 8, magnitude=4, ulps=32)
    for activation in ("identity", "sigmoid", "gelu", "silu"):
        attrs = MatmulFused(False, True, True, True, activation)
        yield _fused_case((2, 3, 2), attrs, "float64", (0, 1, 2, 3))


def _fused_case(
    size: tuple[int, int, int], attrs: MatmulFused, dtype: str, grad: tuple[int, ...] = ()
) -> Case:
    inputs: tuple[Source, ...] = _pair(size, attrs, dtype)
    inputs += (real(size[2:], dtype),) if attrs.has_bias else ()
    inputs += (real((size[0], size[2]), dtype),) if attrs.has_residual else ()
    # The decomposition rounds after each of its ops, a kernel once.
    return Case("matmul_fused", inputs, attrs, length=size[1] + 8, magnitude=4, ulps=32, grad=grad)


CASES: tuple[Case, ...] = (*_plain(), *_fused())

_A, _B = spec((2, 3)), spec((3, 4))
INVALID: tuple[Invalid, ...] = (
    *(
        case
        for name, attrs in (("matmul", Matmul()), ("matmul_fused", MatmulFused()))
        for case in (
            Invalid(name, (spec((3,)), _B), ShapeError, "at least 2 dimensions", attrs),
            Invalid(name, (_A, spec((2, 4))), ShapeError, "inner extents differ", attrs),
            Invalid(name, (_A, spec((3, 4), "float64")), DTypeError, "one dtype", attrs),
            Invalid(
                name, (spec((2, 2, 3)), spec((3, 3, 4))), ShapeError, "do not broadcast", attrs
            ),
        )
    ),
    Invalid(
        "matmul", (spec((2, 3), "bool"), spec((3, 4), "bool")), DTypeError, "got bool", Matmul()
    ),
    Invalid(
        "matmul_fused", (_A, _B), AttrError, "wrong number of inputs", MatmulFused(has_bias=True)
    ),
    Invalid("matmul_fused", (_A, _B), AttrError, "activation", MatmulFused(activation="step")),
    Invalid(
        "matmul_fused", (_A, _B, spec((2,))), ShapeError, "bias has", MatmulFused(has_bias=True)
    ),
    Invalid(
        "matmul_fused",
        (_A, _B, spec((4,))),
        ShapeError,
        "residual has",
        MatmulFused(has_residual=True),
    ),
)
