"""How matrix products and convolutions are written."""

from __future__ import annotations

import numpy as np

from ...graph.graph import Node
from ..writer import UnsupportedError, Writer, exporter, spec_of


@exporter("matmul")
def matmul(w: Writer, node: Node, a: str, b: str) -> str:
    """Write a product of matrices; narrow integers are multiplied as int32, which wraps alike."""
    left, right, attrs = spec_of(node, 0), spec_of(node, 1), node.attrs
    narrow = left.dtype.kind in "iu" and left.dtype.itemsize < 4
    if narrow:
        a, b = w.cast(a, np.int32), w.cast(b, np.int32)
    if left.ndim == right.ndim == 2 and (attrs.transpose_a or attrs.transpose_b):
        found = w.op("Gemm", a, b, transA=int(attrs.transpose_a), transB=int(attrs.transpose_b))
    else:
        a = _transposed(w, a, left.ndim) if attrs.transpose_a else a
        b = _transposed(w, b, right.ndim) if attrs.transpose_b else b
        found = w.op("MatMul", a, b)
    return w.cast(found, left.dtype) if narrow else found


def _transposed(w: Writer, x: str, ndim: int) -> str:
    perm = [*range(ndim - 2), ndim - 1, ndim - 2]
    return w.op("Transpose", x, perm=perm)


@exporter("conv2d")
def conv2d(w: Writer, node: Node, x: str, weight: str) -> str:
    """Write a convolution."""
    attrs = node.attrs
    return w.op(
        "Conv", x, weight, kernel_shape=[int(n) for n in spec_of(node, 1).shape[2:]],
        strides=list(attrs.stride), pads=list(attrs.padding), dilations=list(attrs.dilation),
        group=attrs.groups,
    )  # fmt: skip


@exporter("conv2d_backward_data")
def conv_transpose2d(w: Writer, node: Node, g: str, weight: str) -> str:
    """Write a transposed convolution; what strides leave open is padded at the end."""
    attrs = node.attrs
    top, left, bottom, right = attrs.padding
    pads = ((top, bottom), (left, right))
    kernel = [int(n) for n in spec_of(node, 1).shape[2:]]
    open_ends = []
    for axis in range(2):
        reach = (kernel[axis] - 1) * attrs.dilation[axis] + 1
        covered = attrs.stride[axis] * (int(spec_of(node).shape[2 + axis]) - 1) + reach
        rest = int(attrs.size[axis]) - (covered - sum(pads[axis]))
        if not 0 <= rest < max(attrs.stride[axis], attrs.dilation[axis]):
            raise UnsupportedError(f"a transposed convolution cannot end {rest} elements later")
        open_ends.append(rest)
    return w.op(
        "ConvTranspose", g, weight, kernel_shape=kernel, strides=list(attrs.stride),
        pads=[top, left, bottom, right], dilations=list(attrs.dilation), group=attrs.groups,
        output_padding=open_ends,
    )  # fmt: skip
