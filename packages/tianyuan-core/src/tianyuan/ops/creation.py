"""Ops that make values from attributes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, expect_fits
from ..errors import AttrError
from ..op import Op, Specs, TensorSpec
from . import attrs as a


def _expect_counts(op: str, counts: Sequence[int]) -> None:
    if any(int(count) < 0 for count in counts):
        raise AttrError(
            f"{op}: an extent is negative, got {shapes.format_shape(tuple(counts))}, "
            "expected 0 or more"
        )


def _full_infer(specs: Specs, attrs: a.Full) -> Specs:
    _expect_counts("full", attrs.shape)
    dtype = as_dtype(attrs.dtype)
    expect_fits("full", attrs.value, dtype)
    return (TensorSpec(tuple(attrs.shape), dtype),)


def _full_reference(arrays: Sequence[np.ndarray], attrs: a.Full) -> Sequence[np.ndarray]:
    with np.errstate(over="ignore"):
        value = np.float64(attrs.value).astype(as_dtype(attrs.dtype))
    return (np.full(tuple(map(int, attrs.shape)), value),)


def _arange_infer(specs: Specs, attrs: a.Arange) -> Specs:
    _expect_counts("arange", (attrs.count,))
    return (TensorSpec((attrs.count,), as_dtype(attrs.dtype)),)


def _arange_reference(arrays: Sequence[np.ndarray], attrs: a.Arange) -> Sequence[np.ndarray]:
    values = [attrs.start + i * attrs.step for i in range(int(attrs.count))]
    return (np.array(values, np.float64).astype(as_dtype(attrs.dtype)),)


def _eye_infer(specs: Specs, attrs: a.Eye) -> Specs:
    _expect_counts("eye", (attrs.rows, attrs.cols))
    return (TensorSpec((attrs.rows, attrs.cols), as_dtype(attrs.dtype)),)


def _eye_reference(arrays: Sequence[np.ndarray], attrs: a.Eye) -> Sequence[np.ndarray]:
    result = np.zeros((int(attrs.rows), int(attrs.cols)), as_dtype(attrs.dtype))
    for row, col in np.ndindex(*result.shape):
        if col - row == attrs.k:
            result[row, col] = 1
    return (result,)


def _creation(name: str, infer: Any, reference: Any, attrs: type) -> Op:
    return Op(
        name,
        infer=infer,
        reference=reference,
        attrs=attrs,
        n_inputs=0,
        family="creation",
        differentiable=False,
    )


FULL = _creation("full", _full_infer, _full_reference, a.Full)
ARANGE = _creation("arange", _arange_infer, _arange_reference, a.Arange)
EYE = _creation("eye", _eye_infer, _eye_reference, a.Eye)

OPS: tuple[Op, ...] = (FULL, ARANGE, EYE)
