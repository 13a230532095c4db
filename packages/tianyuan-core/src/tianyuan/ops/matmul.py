"""Matrix products: plain, and fused with bias, residual and activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import is_float
from ..errors import DTypeError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, Work, expect_same_dtype
from ..records import record
from .epilogue import activate, check_epilogue
from .operand import unbroadcast
from .shape import RESHAPE


@record()
class Matmul:
    """Whether the last two axes of each input are swapped first."""

    transpose_a: bool = False
    transpose_b: bool = False


@record()
class MatmulFused:
    """A product followed by bias, residual and activation, in this order."""

    transpose_a: bool = False
    transpose_b: bool = False
    has_bias: bool = False
    has_residual: bool = False
    activation: str = "identity"
    lower: float = 0.0
    upper: float = 0.0


def product_spec(op: str, a: TensorSpec, b: TensorSpec, attrs: Any) -> TensorSpec:
    """Return the spec of a product of two operands, for an op whose attributes transpose them."""
    for what, spec in (("first input", a), ("second input", b)):
        if spec.ndim < 2:
            raise ShapeError(
                f"{op}: {what} has the wrong rank, got shape {shapes.format_shape(spec.shape)}, "
                "expected at least 2 dimensions"
            )
        if spec.dtype.kind == "b":
            raise DTypeError(
                f"{op}: {what} must be a float or an integer, got bool, expected a number dtype"
            )
    expect_same_dtype(op, (a, b))
    rows, inner = a.shape[-2:] if not attrs.transpose_a else reversed(a.shape[-2:])
    inner_b, cols = b.shape[-2:] if not attrs.transpose_b else reversed(b.shape[-2:])
    if int(inner) != int(inner_b):
        raise ShapeError(
            f"{op}: inner extents differ, got {shapes.format_shape(a.shape)} and "
            f"{shapes.format_shape(b.shape)} with transpose_a={attrs.transpose_a}, "
            f"transpose_b={attrs.transpose_b}, expected equal ones"
        )
    batch = shapes.broadcast(op, a.shape[:-2], b.shape[:-2])
    return a.with_shape((*batch, rows, cols))


def _infer(specs: Specs, attrs: Matmul) -> Specs:
    return (product_spec("matmul", specs[0], specs[1], attrs),)


def _reference(arrays: Sequence[np.ndarray], attrs: Matmul) -> Sequence[np.ndarray]:
    # Integers wrap: a sum modulo 2**64 is also right modulo every smaller width.
    wide = np.float64 if is_float(arrays[0].dtype) else np.int64
    a, b = (array.astype(wide) for array in arrays)
    left = "...ki" if attrs.transpose_a else "...ik"
    right = "...jk" if attrs.transpose_b else "...kj"
    return (np.einsum(f"{left},{right}->...ij", a, b).astype(arrays[0].dtype),)


def _rows(x: Any) -> Any:
    """Lay all leading axes of an operand on top of each other."""
    return RESHAPE(x, shape=(shapes.volume(x.shape[:-1]), x.shape[-1]))


def _grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (a, b), (g,), attrs = ctx.inputs, grads, ctx.attrs
    if g is None:
        return (None, None)
    ta, tb = attrs.transpose_a, attrs.transpose_b
    da = db = None
    if ctx.needs[0]:
        if ta:
            da = MATMUL(b, g, transpose_a=tb, transpose_b=True)
        else:
            da = MATMUL(g, b, transpose_a=False, transpose_b=not tb)
        da = unbroadcast(da, a.shape)
    if ctx.needs[1]:
        if b.ndim == 2 and a.ndim > 2 and not ta:
            # One product over all rows instead of one per batch item and a sum.
            a, g = _rows(a), _rows(g)
        if tb:
            db = MATMUL(g, a, transpose_a=True, transpose_b=ta)
        else:
            db = MATMUL(a, g, transpose_a=not ta, transpose_b=False)
        db = unbroadcast(db, b.shape)
    return (da, db)


def _infer_fused(specs: Specs, attrs: MatmulFused) -> Specs:
    result = product_spec("matmul_fused", specs[0], specs[1], attrs)
    check_epilogue("matmul_fused", specs, attrs, result, result.shape[-1])
    return (result,)


def _decompose_fused(inputs: tuple[Any, ...], attrs: MatmulFused) -> Any:
    y = MATMUL(*inputs[:2], transpose_a=attrs.transpose_a, transpose_b=attrs.transpose_b)
    rest = list(inputs[2:])
    if attrs.has_bias:
        y = y + rest.pop(0)
    if attrs.has_residual:
        y = y + rest.pop(0)
    return activate(y, attrs.activation, attrs.lower, attrs.upper)


def work(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    """Count a matrix product: each output takes as many products as a row holds."""
    return Work(outputs[0].size * inputs[0].shape[-2 if attrs.transpose_a else -1])


MATMUL = Op(
    "matmul",
    infer=_infer,
    reference=_reference,
    grad=_grad,
    attrs=Matmul,
    n_inputs=2,
    work=work,
    family="matmul",
)
MATMUL_FUSED = Op(
    "matmul_fused",
    infer=_infer_fused,
    decompose=_decompose_fused,
    attrs=MatmulFused,
    n_inputs=(2, 4),
    work=work,
    family="matmul",
)
OPS: tuple[Op, ...] = (MATMUL, MATMUL_FUSED)
