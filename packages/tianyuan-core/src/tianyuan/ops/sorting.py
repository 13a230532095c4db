"""Ops that order values along an axis; equal values keep their order, NaN counts as the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..errors import AttrError
from ..op import GradContext, Op, Specs, TensorSpec
from . import attrs as a
from .indexing import SCATTER_ADD
from .shape import expect_axis


def _pair(spec: TensorSpec, shape: Sequence[int]) -> Specs:
    indices = TensorSpec(tuple(shape), as_dtype("int32"), spec.device)
    return (spec.with_shape(shape), indices)


def _sort_infer(specs: Specs, attrs: a.Sort) -> Specs:
    expect_axis("sort", attrs.axis, specs[0].ndim)
    return _pair(specs[0], specs[0].shape)


def _topk_infer(specs: Specs, attrs: a.TopK) -> Specs:
    x, axis = specs[0], attrs.axis
    expect_axis("topk", axis, x.ndim)
    if not 0 <= int(attrs.k) <= int(x.shape[axis]):
        raise AttrError(
            f"topk: k is out of range, got {int(attrs.k)}, expected 0 to {int(x.shape[axis])}"
        )
    return _pair(x, (*x.shape[:axis], attrs.k, *x.shape[axis + 1 :]))


def _order(lane: np.ndarray, descending: bool) -> list[int]:
    """Return the stable order of a lane's elements."""
    values = [float(v) if lane.dtype.kind not in "iub" else int(v) for v in lane]

    def rank(i: int) -> tuple[bool, float]:
        value = values[i]
        missing = math.isnan(value)
        key = 0.0 if missing else -value if descending else value
        return (missing != descending, key)

    return sorted(range(len(values)), key=rank)


def _ordered(x: np.ndarray, axis: int, descending: bool, keep: int) -> Sequence[np.ndarray]:
    lanes = np.moveaxis(x, axis, -1)
    order = np.empty((*lanes.shape[:-1], keep), np.int32)
    values = np.empty(order.shape, x.dtype)
    for place in np.ndindex(*lanes.shape[:-1]):
        order[place] = _order(lanes[place], descending)[:keep]
        values[place] = lanes[place][order[place]]
    results = (np.moveaxis(values, -1, axis), np.moveaxis(order, -1, axis))
    return tuple(np.ascontiguousarray(result) for result in results)


def _sort_reference(arrays: Sequence[np.ndarray], attrs: a.Sort) -> Sequence[np.ndarray]:
    return _ordered(arrays[0], attrs.axis, attrs.descending, arrays[0].shape[attrs.axis])


def _topk_reference(arrays: Sequence[np.ndarray], attrs: a.TopK) -> Sequence[np.ndarray]:
    return _ordered(arrays[0], attrs.axis, attrs.descending, int(attrs.k))


def _back_to_place(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, indices, g = ctx.inputs[0], ctx.outputs[1], grads[0]
    if g is None:
        return (None,)
    return (SCATTER_ADD(x.full(tuple(x.shape), 0.0), indices, g, axis=ctx.attrs.axis),)


SORT = Op(
    "sort",
    infer=_sort_infer,
    reference=_sort_reference,
    grad=_back_to_place,
    attrs=a.Sort,
    family="sorting",
)
TOPK = Op(
    "topk",
    infer=_topk_infer,
    reference=_topk_reference,
    grad=_back_to_place,
    attrs=a.TopK,
    family="sorting",
)

OPS: tuple[Op, ...] = (SORT, TOPK)
