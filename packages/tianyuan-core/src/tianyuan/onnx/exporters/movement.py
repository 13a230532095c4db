"""How ops that move elements are written: reshapes, transposes, slices, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import dtypes, shapes
from ...graph.graph import Node
from ..writer import UnsupportedError, Writer, exporter, result_of, spec_of

_BEFORE_ALL = -(2**63)  # where a slice with a negative step ends that takes the first element too


@exporter("reshape")
def reshape(w: Writer, node: Node, x: str) -> str:
    """Write the same elements in another shape."""
    return w.reshape(x, spec_of(node).shape, node.attrs.shape)


@exporter("transpose")
def transpose(w: Writer, node: Node, x: str) -> str:
    """Write a permutation of the axes."""
    return w.op("Transpose", x, perm=list(node.attrs.perm))


@exporter("broadcast_to")
def broadcast_to(w: Writer, node: Node, x: str) -> str:
    """Write a repetition along axes of extent 1."""
    return w.op("Expand", x, w.extents(node.attrs.shape))


@exporter("concat")
def concat(w: Writer, node: Node, *xs: str) -> str:
    """Write values behind each other along an axis."""
    return w.op("Concat", *xs, axis=node.attrs.axis)


def pad(
    w: Writer, x: str, before: Sequence[int], after: Sequence[int], mode: str, value: str
) -> str:
    """Write padding; reflection and repetition of the edge take no value."""
    return w.op(
        "Pad", x, w.extents([*before, *after]), *((value,) if mode == "constant" else ()), mode=mode
    )


@exporter("pad")
def padded(w: Writer, node: Node, x: str) -> str:
    """Write padding of all axes."""
    attrs, dtype = node.attrs, spec_of(node).dtype
    value = w.constant(np.array(attrs.value).astype(dtype))
    return pad(w, x, attrs.before, attrs.after, attrs.mode, value)


@exporter("pad_backward")
def pad_backward(w: Writer, node: Node, g: str) -> str:
    """Write the gradient of padding with a constant: the part in the middle."""
    attrs = node.attrs
    if attrs.mode != "constant":
        raise UnsupportedError(f"the gradient of padding by {attrs.mode}")
    return cut(w, g, spec_of(node).shape, attrs.before, result_of(node).shape)


def cut(
    w: Writer,
    x: str,
    shape: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> str:
    """Write a slice of the axes that are not taken whole."""
    rows = [
        (axis, *_ends(start, size, step, have), step)
        for axis, (have, start, size, step) in enumerate(
            zip(shape, starts, sizes, steps or (1,) * len(shape), strict=True)
        )
        if (shapes.expr_of(start), shapes.expr_of(size), step) != (0, shapes.expr_of(have), 1)
    ]
    if not rows:
        return x
    axes, begins, ends, strides = zip(*rows, strict=True)
    return w.op(
        "Slice", x, w.extents(begins), w.extents(ends), w.constant(list(axes), np.int64),
        *((w.constant(list(strides), np.int64),) if set(strides) != {1} else ()),
    )  # fmt: skip


def _ends(start: int, size: int, step: int, extent: int) -> tuple[int, int]:
    """Return start and end of a slice; negative ones in ONNX count from the end of the axis."""
    if isinstance(start, shapes.Dim) and not shapes.range_of(start.expr)[0] >= 0:  # none is taken
        start = shapes.Dim(max(int(start), 0), ("max", start.expr, 0))
    end: int = start + size * step
    if step < 0 and isinstance(end, shapes.Dim):
        end = end - extent
    elif step < 0 and end < 0:
        end = _BEFORE_ALL
    return start, end


@exporter("slice")
def sliced(w: Writer, node: Node, x: str) -> str:
    """Write a slice with steps."""
    attrs = node.attrs
    return cut(w, x, spec_of(node).shape, attrs.starts, attrs.sizes, attrs.steps)


def place(
    w: Writer,
    v: str,
    sizes: Sequence[int],
    shape: Sequence[int],
    starts: Sequence[int],
    steps: Sequence[int],
    zero: str,
) -> str:
    """Write zeros of a shape in which a value stands where a slice would be taken."""
    if not shape:
        return v
    if any(step < 0 for step in steps):
        last = [size - 1 if step < 0 else 0 for size, step in zip(sizes, steps, strict=True)]
        v = cut(w, v, sizes, last, sizes, [-1 if step < 0 else 1 for step in steps])
        starts = [start + n * step for start, n, step in zip(starts, last, steps, strict=True)]
        steps = [abs(step) for step in steps]
    spread = [size if step == 1 else size * step for size, step in zip(sizes, steps, strict=True)]
    if any(step > 1 for step in steps):
        pairs = [n for size in sizes for n in (size, 1)]
        gaps = [n for step in steps for n in (0, step - 1)]
        v = w.reshape(v, sizes, pairs)
        v = pad(w, v, [0] * len(pairs), gaps, "constant", zero)
        v = w.reshape(v, [n + gap for n, gap in zip(pairs, gaps, strict=True)], spread)
    # The gap behind the last element may reach beyond the end, which negative padding cuts off.
    after = [whole - start - size for whole, start, size in zip(shape, starts, spread, strict=True)]
    return pad(w, v, starts, after, "constant", zero)


@exporter("slice_backward")
def slice_backward(w: Writer, node: Node, g: str) -> str:
    """Write zeros with a value placed among them."""
    attrs, spec = node.attrs, spec_of(node)
    zero = w.constant(np.zeros((), spec.dtype))
    return place(w, g, spec.shape, attrs.shape, attrs.starts, attrs.steps, zero)


@exporter("slice_set")
def slice_set(w: Writer, node: Node, x: str, v: str) -> str:
    """Write a value over a region: chosen by a mask that has its place."""
    attrs, spec = node.attrs, spec_of(node)
    target = (attrs.sizes, spec.shape, attrs.starts, attrs.steps)
    dtype = spec.dtype
    if dtypes.is_bool(dtype):
        x, v, dtype = w.cast(x, np.int32), w.cast(v, np.int32), np.dtype(np.int32)
    placed = place(w, v, *target, w.constant(np.zeros((), dtype)))
    if any(map(shapes.symbols_of, (*spec.shape, *attrs.starts, *attrs.sizes))):
        ones = w.op("Expand", w.constant(1, np.int32), w.extents(attrs.sizes))
        mask = w.cast(place(w, ones, *target, w.constant(0, np.int32)), np.bool_)
    else:
        held = np.zeros(tuple(map(int, spec.shape)), bool)
        places = zip(attrs.starts, attrs.sizes, attrs.steps, strict=True)
        held[np.ix_(*(start + np.arange(size) * step for start, size, step in places))] = True
        mask = w.constant(held, name="mask")
    found = w.op("Where", mask, placed, x)
    return w.cast(found, np.bool_) if dtypes.is_bool(spec.dtype) else found
