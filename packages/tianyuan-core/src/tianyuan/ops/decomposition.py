"""Ops that take matrices apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DataError, GradError, ShapeError
from ..op import GradContext, Op, Specs, expect_float
from ..shapes import format_shape
from . import attrs as a
from .creation import EYE
from .elementwise import EQUAL, WHERE
from .matmul import MATMUL
from .shape import RESHAPE, TRANSPOSE


def _svd_infer(specs: Specs, attrs: a.Svd) -> Specs:
    x = specs[0]
    expect_float("svd", x)
    if x.ndim < 2 or int(x.shape[-1]) == 0 or int(x.shape[-2]) == 0:
        raise ShapeError(
            f"svd: input must hold matrices, got shape {format_shape(x.shape)}, "
            "expected (..., M, N) with M and N of at least 1"
        )
    lead, (m, n) = x.shape[:-2], x.shape[-2:]
    k = m if int(m) <= int(n) else n
    values = x.with_shape((*lead, k))
    if not attrs.compute_uv:
        return (values,)
    left, right = (m, n) if attrs.full_matrices else (k, k)
    return (x.with_shape((*lead, m, left)), values, x.with_shape((*lead, right, n)))


def _svd_reference(arrays: Sequence[np.ndarray], attrs: a.Svd) -> Sequence[np.ndarray]:
    x = arrays[0]
    decompose: Any = np.linalg.svd
    try:
        found = decompose(x.astype(np.float64), attrs.full_matrices, attrs.compute_uv)
    except np.linalg.LinAlgError as error:
        raise DataError(f"svd: {error}, expected finite matrices") from None
    parts = tuple(found) if attrs.compute_uv else (found,)
    return tuple(np.ascontiguousarray(part).astype(x.dtype) for part in parts)


def _swapped(x: Any) -> Any:
    """Exchange the last two axes."""
    return TRANSPOSE(x, perm=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _product(*factors: Any) -> Any:
    found = factors[0]
    for factor in factors[1:]:
        found = MATMUL(found, factor, transpose_a=False, transpose_b=False)
    return found


def _svd_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    """Follow Townsend, Differentiating the singular value decomposition, 2016."""
    x = ctx.inputs[0]
    if ctx.attrs.compute_uv:
        (u, s, vh), (gu, gs, gvh) = ctx.outputs, grads
    else:
        u, s, vh = SVD(x, full_matrices=False, compute_uv=True)
        gu, gs, gvh = None, grads[0], None
    if ctx.attrs.full_matrices and int(x.shape[-1]) != int(x.shape[-2]):
        if gu is not None or gvh is not None:
            raise GradError(
                "svd: U and Vh have no gradient with full_matrices=True where matrices are not "
                "square, expected full_matrices=False"
            )
        u, s, vh = SVD(x, full_matrices=False, compute_uv=True)
    v, k = _swapped(vh), s.shape[-1]
    eye = _eye(s, k)
    row, column = RESHAPE(s, shape=(*s.shape[:-1], 1, k)), RESHAPE(s, shape=(*s.shape, 1))
    inner = None if gs is None else RESHAPE(gs, shape=(*s.shape, 1)) * eye
    gap = row * row - column * column
    # The diagonal, and values that are equal, have no part in how vectors turn.
    same = EQUAL(gap, gap.full((), 0.0))
    turn = WHERE(same, gap.full((), 0.0), 1.0 / WHERE(same, gap.full((), 1.0), gap))
    outer = None
    if gu is not None:
        j = turn * _product(_swapped(u), gu)
        inner = _plus(inner, (j + _swapped(j)) * row)
        rest = gu - _product(u, _swapped(u), gu)
        outer = _product(rest / row, vh)
    if gvh is not None:
        gv = _swapped(gvh)
        j = turn * _product(vh, gv)
        inner = _plus(inner, column * (j + _swapped(j)))
        rest = gvh - _product(gvh, v, vh)
        outer = _plus(outer, _product(u, rest / column))
    if inner is None:
        return (None,)
    return (_plus(outer, _product(u, inner, vh)),)


def _plus(total: Any, part: Any) -> Any:
    return part if total is None else total + part


def _eye(like: Any, size: int) -> Any:
    """Return a unit matrix in the runtime and dtype of another value."""
    return like._apply(EYE, (), EYE.attrs(size, size, 0, like.dtype.name))


SVD = Op(
    "svd",
    infer=_svd_infer,
    reference=_svd_reference,
    grad=_svd_grad,
    attrs=a.Svd,
    family="decomposition",
)

OPS: tuple[Op, ...] = (SVD,)
