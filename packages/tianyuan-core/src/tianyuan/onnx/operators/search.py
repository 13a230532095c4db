"""Sort, choose and find: what depends on data runs on arrays."""

from __future__ import annotations

import numpy as np

from ...errors import ShapeError
from ..node import Node
from ..table import ARRAYS, operator
from .common import Array, Tensor, normal_axis, run_many, single


@operator("TopK", 10, known=(1,))
def topk(node: Node, x: Tensor, k: Array) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis, and their positions."""
    values, places = run_many(
        "topk", x, k=int(single(k)), axis=normal_axis(node.int("axis", -1), x.ndim),
        descending=node.flag("largest", True),
    )  # fmt: skip
    return values, places.astype("int64")


@operator("TopK", 1, 9)
def topk_by_attribute(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    return topk(node, x, np.array(node.int("k")))


@operator("NonZero", 9, form=ARRAYS)
def non_zero(node: Node, x: Array) -> Array:
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


@operator("Compress", 9, form=ARRAYS)
def compress(node: Node, x: Array, condition: Array) -> Array:
    axis = node.int("axis", 0) if node.has("axis") else None
    return np.compress(condition.reshape(-1), x, axis=axis)


@operator("Unique", 11, form=ARRAYS)
def unique(node: Node, x: Array) -> tuple[Array, ...]:
    """Return the distinct elements or slices, where they first stand, and how often."""
    axis = normal_axis(node.int("axis"), x.ndim) if node.has("axis") else None
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not node.flag("sorted", True):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts = first[order], counts[order]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        inverse = places[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def _corners(boxes: Array, centred: bool) -> Array:
    """Return boxes as (y1, x1, y2, x2) with y1 <= y2 and x1 <= x2."""
    if centred:
        x, y, width, height = boxes.T
        found = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    else:
        found = boxes
    low = np.minimum(found[:, :2], found[:, 2:])
    return np.concatenate([low, np.maximum(found[:, :2], found[:, 2:])], 1)


def _kept(boxes: Array, scores: Array, most: int, overlap: float, least: float | None) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[order] - shared
        order = order[shared <= overlap * union]
    return kept


@operator("NonMaxSuppression", 10, form=ARRAYS)
def non_max_suppression(
    node: Node, boxes: Array, scores: Array, most: Array | None = None,
    overlap: Array | None = None, least: Array | None = None,
) -> Array:  # fmt: skip
    """Return (batch, class, box) of boxes that overlap no better one of their class too much."""
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[1] != scores.shape[2]:
        raise ShapeError(f"boxes and scores do not fit, got {boxes.shape} and {scores.shape}")
    count = 0 if most is None else int(single(most))
    share = 0.0 if overlap is None else float(single(overlap))
    bound = None if least is None else float(single(least))
    found = []
    for batch in range(len(boxes)):
        corners = _corners(boxes[batch], node.flag("center_point_box"))
        for label in range(scores.shape[1]):
            chosen = _kept(corners, scores[batch, label], count, share, bound)
            found += [(batch, label, box) for box in chosen]
    return np.array(found, np.int64).reshape(-1, 3)
