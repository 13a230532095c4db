"""Calls of the optimiser updates."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attrs import AdamUpdate, MatmulSgdUpdate, SgdUpdate
from . import LARGE, Case, Invalid, fixed, real, spec

SHAPES: tuple[tuple[int, ...], ...] = ((33,), (3, 17), (), (0, 4), (1029,), LARGE)


def _cases() -> Iterator[Case]:
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        for shape in SHAPES if dtype == "float32" else SHAPES[:1]:
            values = [real(shape, dtype) for _ in range(4)]
            lr = fixed(0.125, "float32")
            for decay in (0.0, 0.25):
                yield Case("sgd_update", (*values[:2], lr), SgdUpdate(0.0, decay, False), ulps=24)
                for nesterov in (False, True):
                    inputs = (*values[:2], lr, values[2])
                    yield Case("sgd_update", inputs, SgdUpdate(0.875, decay, nesterov), ulps=24)
                for decoupled in (False, True):
                    for step in (1.0, 1000.0):
                        moments = (real(shape, dtype), real(shape, dtype, 0.5, 2))
                        inputs = (*values[:2], *moments, fixed(step, "float32"), lr)
                        attrs = AdamUpdate(0.875, 0.984375, 1e-3, decay, decoupled)
                        yield Case("adam_update", inputs, attrs, ulps=48, magnitude=4)


def _product(
    m: int,
    n: int,
    k: int,
    attrs: MatmulSgdUpdate,
    dtype: str = "float32",
    lead: tuple[int, ...] = (),
) -> Case:
    left = (k, m) if attrs.transpose_a else (m, k)
    right = (n, k) if attrs.transpose_b else (k, n)
    values = [real((*lead, *shape), dtype) for shape in (left, right, (m, n), (m, n))]
    inputs = (*values[:3], fixed(0.125, "float32"), *values[3 : 3 + bool(attrs.momentum)])
    return Case("matmul_sgd_update", inputs, attrs, length=k + 4, magnitude=4.0, ulps=24)


def _products() -> Iterator[Case]:
    """Yield products of whole and of broken tiles, of one row, and of several strips of columns."""
    for m, n, k in ((5, 7, 3), (1, 33, 9), (33, 1, 2), (0, 4, 3), (4, 3, 0), (61, 97, 40)):
        for decay, momentum, nesterov in ((0.0, 0.0, False), (0.25, 0.875, True)):
            yield _product(m, n, k, MatmulSgdUpdate(True, False, momentum, decay, nesterov))
    for m, n, k in ((200, 64, 130), (29, 1100, 17)):
        for transposed in ((True, False), (False, True), (False, False), (True, True)):
            yield _product(m, n, k, MatmulSgdUpdate(*transposed, 0.875, 0.0, False))
    for dtype in ("float16", "bfloat16", "float64"):
        yield _product(5, 7, 3, MatmulSgdUpdate(True, False, 0.875, 0.25, False), dtype)
    yield _product(5, 7, 3, MatmulSgdUpdate(True, False, 0.875, 0.25, False), lead=(2,))


CASES: tuple[Case, ...] = (*_cases(), *_products())

_p, _s = spec((3,)), spec(())
_sgd, _adam = SgdUpdate(0.0, 0.0, False), AdamUpdate(0.9, 0.999, 1e-8, 0.0, False)
_a, _b, _w = spec((4, 3)), spec((4, 5)), spec((3, 5))
_both = MatmulSgdUpdate(True, False, 0.0, 0.0, False)
INVALID: tuple[Invalid, ...] = (
    Invalid("matmul_sgd_update", (_a, _b, spec((5, 3)), _s), ShapeError, "shapes differ", _both),
    Invalid("matmul_sgd_update", (_a, _w, _w, _s), ShapeError, "inner extents differ", _both),
    Invalid("matmul_sgd_update", (_a, spec((4,)), _w, _s), ShapeError, "wrong rank", _both),
    Invalid("matmul_sgd_update", (_a, _b, _w, _p), ShapeError, "must be 0-d", _both),
    Invalid("matmul_sgd_update", (_a, _b, _w, _s, _w), AttrError, "expected 4", _both),
    Invalid(
        "matmul_sgd_update", (_a, _b, spec((3, 5), "float64"), _s), DTypeError, "one dtype", _both
    ),
    Invalid("sgd_update", (_p, spec((2,)), _s), ShapeError, "shapes differ", _sgd),
    Invalid("sgd_update", (_p, _p, _p), ShapeError, "must be 0-d", _sgd),
    Invalid("sgd_update", (_p, _p, _s, _p), AttrError, "velocity goes with momentum", _sgd),
    Invalid("sgd_update", (_p, spec((3,), "float64"), _s), DTypeError, "one dtype", _sgd),
    Invalid("adam_update", (spec((3,), "int32"),) * 4 + (_s, _s), DTypeError, "floating", _adam),
    Invalid(
        "adam_update", (_p,) * 4 + (spec((), "float64"), _s), DTypeError, "expected float32", _adam
    ),
)
