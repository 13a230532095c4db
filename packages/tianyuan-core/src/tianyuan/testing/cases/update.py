"""Calls of the optimiser updates."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attrs import AdamUpdate, SgdUpdate
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


CASES: tuple[Case, ...] = tuple(_cases())

_p, _s = spec((3,)), spec(())
_sgd, _adam = SgdUpdate(0.0, 0.0, False), AdamUpdate(0.9, 0.999, 1e-8, 0.0, False)
INVALID: tuple[Invalid, ...] = (
    Invalid("sgd_update", (_p, spec((2,)), _s), ShapeError, "shapes differ", _sgd),
    Invalid("sgd_update", (_p, _p, _p), ShapeError, "must be 0-d", _sgd),
    Invalid("sgd_update", (_p, _p, _s, _p), AttrError, "velocity goes with momentum", _sgd),
    Invalid("sgd_update", (_p, spec((3,), "float64"), _s), DTypeError, "one dtype", _sgd),
    Invalid("adam_update", (spec((3,), "int32"),) * 4 + (_s, _s), DTypeError, "floating", _adam),
    Invalid(
        "adam_update", (_p,) * 4 + (spec((), "float64"), _s), DTypeError, "expected float32", _adam
    ),
)
