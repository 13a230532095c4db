"""Pick elements by index, and put elements where indices point."""

from __future__ import annotations

import numpy as np

from ... import shapes
from ...errors import AttrError, GradError, ShapeError
from ...imperative.state import state
from ..interpret import array_of
from ..node import Node
from ..table import operator
from .common import (
    Tensor,
    binary,
    constant,
    moved,
    normal_axis,
    permuted,
    reshaped,
    run,
)


@operator("Gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    return run("take", x, indices, axis=normal_axis(node.int("axis", 0), x.ndim))


@operator("GatherElements", 11)
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    return run("gather", x, indices, axis=normal_axis(node.int("axis", 0), x.ndim))


def _columns(indices: Tensor) -> list[Tensor]:
    """Return the components of index tuples that lie along the last axis."""
    lead, count = indices.shape[:-1], int(indices.shape[-1])
    rank = indices.ndim
    parts = []
    for k in range(count):
        starts = (*(0,) * (rank - 1), k)
        part = run("slice", indices, starts=starts, sizes=(*lead, 1), steps=(1,) * rank)
        parts.append(reshaped(part, lead))
    return parts


@operator("GatherND", 11)
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    """Pick slices by index tuples; the first ``batch_dims`` axes go side by side."""
    batch = node.int("batch_dims", 0)
    parts = _columns(indices)
    for axis in range(batch):
        extent = x.shape[axis]
        line = [extent if a == axis else 1 for a in range(indices.ndim - 1)]
        numbers = reshaped(_count(extent), line)
        parts.insert(axis, run("broadcast_to", numbers, shape=indices.shape[:-1]))
    return _pick(x, parts)


def _count(extent: int) -> Tensor:
    ones = run("broadcast_to", constant(1, np.int64), shape=(extent,))
    return binary("sub", run("cumsum", ones, axis=0), 1)


def _pick(x: Tensor, parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return run("take", x, parts[0], axis=0)
    return run("index", x, *parts, count=len(parts))


_COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
_KINDS = ("none", *_COMBINE)
# Most updates that are combined by an op each.
_MOST_TURNS = 256


def _scattered(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = normal_axis(node.int("axis", 0), x.ndim)
    kind = node.text("reduction", "none", _KINDS)
    if kind == "none":
        return run("scatter", x, indices, updates, axis=axis)
    if kind == "add":
        return run("scatter_add", x, indices, updates, axis=axis)
    # Turns: the n-th turn puts the n-th element of each place that several point at.
    parts = []
    for a in range(x.ndim):
        if a == axis:
            extent = x.shape[a]
            wrapped = binary("add", indices, int(extent))
            parts.append(run("where", binary("less", indices, 0), wrapped, indices).astype("int64"))
        else:
            line = [indices.shape[a] if b == a else 1 for b in range(x.ndim)]
            parts.append(
                run("broadcast_to", reshaped(_count(indices.shape[a]), line), shape=indices.shape)
            )
    return _combined(x, parts, updates, kind)


def _combined(x: Tensor, parts: list[Tensor], updates: Tensor, kind: str) -> Tensor:
    """Combine updates one after another with what stands at the places that indices name.

    Where much is updated this takes arrays, which a graph does not have and tapes do not see.
    """
    count = int(shapes.volume(parts[0].shape))
    if count > _MOST_TURNS:
        return _combined_arrays(x, parts, updates, kind)
    lead = len(parts)
    flat = [reshaped(part, (count,)) for part in parts]
    rest = tuple(x.shape[lead:])
    values = reshaped(updates, (count, *rest))
    op = _COMBINE[kind]
    for k in range(count):
        where = [run("slice", part, starts=(k,), sizes=(1,), steps=(1,)) for part in flat]
        have = _pick(x, where)
        new = run("slice", values, starts=(k, *(0,) * len(rest)), sizes=(1, *rest),
                  steps=(1,) * values.ndim)  # fmt: skip
        x = run("index_set", x, run(op, have, new), *where, count=lead)
    return x


def _combined_arrays(x: Tensor, parts: list[Tensor], updates: Tensor, kind: str) -> Tensor:
    if state.tapes:
        raise GradError(f"reduction {kind!r} of many updates has no gradient")
    found = array_of(x).copy()
    ufunc = getattr(np, {"mul": "multiply"}.get(kind, _COMBINE[kind]))
    ufunc.at(found, tuple(array_of(part) for part in parts), array_of(updates))
    return constant(found)


@operator("ScatterElements", 11)
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scattered(node, x, indices, updates)


@operator("Scatter", 9)
def scatter(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scattered(node, x, indices, updates)


@operator("ScatterND", 11)
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    kind = node.text("reduction", "none", _KINDS)
    parts = _columns(indices)
    if kind in ("none", "add"):
        op = "index_set" if kind == "none" else "index_add"
        return run(op, x, updates, *parts, count=len(parts))
    return _combined(x, parts, updates, kind)


@operator("TensorScatter", 24)
def tensor_scatter(node: Node, past: Tensor, update: Tensor, first: Tensor | None = None) -> Tensor:
    """Write a stretch of a sequence axis, for each item of the batch from an index of its own."""
    axis = normal_axis(node.int("axis", -2), past.ndim)
    mode = node.text("mode", "linear", ("linear", "circular"))
    if axis == 0:
        raise AttrError("axis must not be the batch axis, got 0")
    batch, length, size = past.shape[0], update.shape[axis], past.shape[axis]
    if int(length) > int(size):
        raise ShapeError(f"update is too long, got {int(length)}, expected at most {int(size)}")
    start = constant(np.zeros(int(batch), np.int64)) if first is None else first.astype("int64")
    place = run("add", reshaped(start, (batch, 1)), reshaped(_count(length), (1, length)))
    if mode == "circular":
        place = binary("mod", place, int(size))
    rows = run("broadcast_to", reshaped(_count(batch), (batch, 1)), shape=(batch, length))
    front = moved(past, axis, 1)
    changed = run("index_set", front, moved(update, axis, 1), rows, place, count=2)
    return moved(changed, 1, axis)


@operator("ReverseSequence", 10)
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first ``lengths[b]`` elements of each sequence."""
    batch, time = node.int("batch_axis", 1), node.int("time_axis", 0)
    rows, steps = x.shape[batch], x.shape[time]
    line, count = reshaped(_count(steps), (1, steps)), reshaped(lengths.astype("int64"), (rows, 1))
    back = run("sub", binary("sub", count, 1), line)
    place = run(
        "where", run("less", line, count), back, run("broadcast_to", line, shape=(rows, steps))
    )
    order = (batch, time, *(a for a in range(x.ndim) if a not in (batch, time)))
    front = permuted(x, order)
    number = run("broadcast_to", reshaped(_count(rows), (rows, 1)), shape=(rows, steps))
    found = run("index", front, number, place, count=2)
    return permuted(found, [order.index(a) for a in range(x.ndim)])


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    flat = reshaped(indices, (shapes.volume(indices.shape),))
    found = run("take", x, flat, axis=x.ndim - 1)
    return reshaped(found, (1, *found.shape)) if found.ndim == 1 else found
