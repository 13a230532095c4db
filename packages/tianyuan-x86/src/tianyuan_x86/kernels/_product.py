"""Read the extents of a matrix product."""

from __future__ import annotations

from tianyuan.kernel import Call
from tianyuan.shapes import volume


def extents(call: Call) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and inner extent of a product."""
    a, out = call.inputs[0].shape, call.outputs[0].shape
    inner = a[-2] if call.attrs.transpose_a else a[-1]
    return volume(out[:-2]), int(out[-2]), int(out[-1]), int(inner)
