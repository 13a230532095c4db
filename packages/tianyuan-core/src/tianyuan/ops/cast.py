"""Ops that keep every value: conversion of dtype, copies and repacking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype, is_complex, is_float
from ..errors import DTypeError
from ..op import GradContext, Op, Specs
from ..registry import get_op
from . import attrs as a


def _cast_infer(specs: Specs, attrs: a.Cast) -> Specs:
    want = as_dtype(attrs.dtype)
    if is_complex(specs[0].dtype) and not is_complex(want):
        raise DTypeError(
            f"cast: complex numbers cannot become real, got {specs[0].dtype.name} to {want.name}, "
            "expected functional.real, imag or abs"
        )
    return (specs[0].with_dtype(want),)


def _cast_reference(arrays: Sequence[np.ndarray], attrs: a.Cast) -> Sequence[np.ndarray]:
    with np.errstate(all="ignore"):
        return (arrays[0].astype(as_dtype(attrs.dtype)),)


def _cast_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, y, g = ctx.inputs[0], ctx.outputs[0], grads[0]
    if g is None or not (_has_slope(x.dtype) and _has_slope(y.dtype)):
        return (None,)
    if is_complex(y.dtype) and not is_complex(x.dtype):
        g = get_op("real")(g)
    return (CAST(g, dtype=x.dtype.name),)


def _has_slope(dtype: np.dtype) -> bool:
    return is_float(dtype) or is_complex(dtype)


def _same(specs: Specs, attrs: Any) -> Specs:
    return (specs[0],)


def _copy_reference(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    return (arrays[0].copy(),)


def _pass_on(ctx: GradContext, grads: Any) -> Sequence[Any]:
    return (grads[0],)


CAST = Op(
    "cast",
    infer=_cast_infer,
    reference=_cast_reference,
    grad=_cast_grad,
    attrs=a.Cast,
    family="elementwise",
    takes_complex=True,
)
COPY = Op("copy", infer=_same, reference=_copy_reference, grad=_pass_on, family="movement")
RELAYOUT = Op(
    "relayout",
    infer=_same,
    reference=_copy_reference,
    grad=_pass_on,
    attrs=a.Relayout,
    family="movement",
)

OPS: tuple[Op, ...] = (CAST, COPY, RELAYOUT)
