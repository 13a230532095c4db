"""Decide what a layout means for a value: physical extents, and who may work in it unawares."""

from __future__ import annotations

from .. import registry, shapes
from ..kernel import PLAIN, Call
from ..op import TensorSpec


def extents(shape: shapes.Shape, layout: str) -> tuple[int, ...]:
    """Return the physical shape of a concrete logical shape."""
    if layout == PLAIN:
        return tuple(int(n) for n in shape)
    return tuple(int(n) for n in registry.get_layout(layout).extents(shape))


def fits(spec: TensorSpec, layout: str) -> bool:
    """Tell whether a value of this rank and these last extents can lie in the layout."""
    if layout == PLAIN:
        return True
    found = registry.get_layout(layout)
    axes = spec.ndim - len(found.trailing)
    return found.ndim == spec.ndim and tuple(spec.shape[axes:]) == found.trailing


def physical_bytes(spec: TensorSpec, layout: str) -> int:
    """Return how many bytes a value takes in the layout, padding included."""
    return shapes.volume(extents(spec.shape, layout)) * spec.dtype.itemsize


def is_padded(spec: TensorSpec, layout: str) -> bool:
    """Tell whether a value has lanes beyond its logical shape in the layout."""
    return shapes.volume(extents(spec.shape, layout)) != int(spec.size)


def same_layouts(call: Call, layout: str) -> tuple[str, ...] | None:
    """Return the input layouts under which a kernel that walks memory flat works in ``layout``.

    None where it cannot. Such a kernel counts the elements of the logical shape and works on them,
    so there must be no padding, which it would also leave unwritten, and the layout must not
    transform; each input has the outputs' shape or is a single element, for broadcasting along an
    axis needs to know where the axis lies.
    """
    if layout == PLAIN:
        return (PLAIN,) * len(call.inputs)
    if not registry.get_layout(layout).exact:
        return None
    full = call.outputs[0].shape
    for spec in call.outputs:
        if spec.shape != full or not fits(spec, layout) or is_padded(spec, layout):
            return None
    if any(spec.shape != full and spec.size != 1 for spec in call.inputs):
        return None
    found = tuple(layout if spec.shape == full else PLAIN for spec in call.inputs)
    return found if layout in found else None
