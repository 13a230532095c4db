"""Ops between complex numbers and their parts.

The gradient of a complex value holds its slopes in the real and in the imaginary part, as the parts
of one complex number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype, is_complex, part_of
from ..errors import DTypeError
from ..op import GradContext, Op, Specs, TensorSpec, expect_same_dtype
from ..shapes import broadcast
from .operand import unbroadcast


def _complex_infer(specs: Specs, attrs: Any) -> Specs:
    expect_same_dtype("complex", specs)
    if specs[0].dtype.name not in ("float32", "float64"):
        raise DTypeError(
            f"complex: dtype is not accepted, got {specs[0].dtype.name}, "
            "expected float32 or float64"
        )
    name = "complex64" if specs[0].dtype.name == "float32" else "complex128"
    shape = broadcast("complex", *(spec.shape for spec in specs))
    return (TensorSpec(shape, as_dtype(name), specs[0].device),)


def _complex_reference(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    real, imag = np.broadcast_arrays(*arrays)
    found = np.empty(real.shape, np.complex64 if real.dtype == np.float32 else np.complex128)
    found.real, found.imag = real, imag
    return (found,)


def _complex_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None, None)
    parts = (REAL(grads[0]), IMAG(grads[0]))
    return [unbroadcast(part, x.shape) for part, x in zip(parts, ctx.inputs, strict=True)]


def _part_infer(name: str) -> Callable[[Specs, Any], Specs]:
    def infer(specs: Specs, attrs: Any) -> Specs:
        if not is_complex(specs[0].dtype):
            raise DTypeError(
                f"{name}: input must be complex, got {specs[0].dtype.name}, "
                "expected complex64 or complex128"
            )
        return (specs[0].with_dtype(part_of(specs[0].dtype)),)

    return infer


def _real_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else COMPLEX(g, g.full((), 0.0)),)


def _imag_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else COMPLEX(g.full((), 0.0), g),)


COMPLEX = Op(
    "complex",
    infer=_complex_infer,
    reference=_complex_reference,
    grad=_complex_grad,
    n_inputs=2,
    family="elementwise",
)
REAL = Op(
    "real",
    infer=_part_infer("real"),
    reference=lambda arrays, attrs: (arrays[0].real.copy(),),
    grad=_real_grad,
    family="elementwise",
    takes_complex=True,
)
IMAG = Op(
    "imag",
    infer=_part_infer("imag"),
    reference=lambda arrays, attrs: (arrays[0].imag.copy(),),
    grad=_imag_grad,
    family="elementwise",
    takes_complex=True,
)

OPS: tuple[Op, ...] = (COMPLEX, REAL, IMAG)
