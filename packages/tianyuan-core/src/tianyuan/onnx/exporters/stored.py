"""How linear maps of floats with stored integer weights are written."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...graph.graph import Node
from ...ops.quantized_linear import unpacked_int4
from ..writer import UnsupportedError, Writer, exporter, result_of, spec_of

# Of MatMulNBits, which takes blocks of 16 and its doubles.
_LEAST_BLOCK = 16


def _transposed(w: Writer, name: str) -> str:
    """Return a matrix with its axes swapped, as a constant where it is one."""
    if name in w.arrays:
        return w.constant(np.ascontiguousarray(w.arrays[name].T), name=f"{name}_transposed")
    return w.op("Transpose", name, perm=[1, 0])


def _added(w: Writer, y: str, bias: tuple[str, ...]) -> str:
    return w.op("Add", y, bias[0]) if bias else y


@exporter("linear_dynamic")
def linear_dynamic(w: Writer, node: Node, x: str, weight: str, scales: str, *bias: str) -> str:
    """Write a product of integers that the range of the input makes."""
    rows, terms = map(int, spec_of(node, 1).shape)
    if terms == 0:
        # ONNX Runtime leaves integer sums without terms unset, and knows those of floats.
        empty = w.constant(np.zeros((0, rows), np.float32), name=f"{weight}_empty")
        return _added(w, w.op("MatMul", x, empty), bias)
    q, scale, zero = w.ops(3, "DynamicQuantizeLinear", x)
    sums = w.op("MatMulInteger", q, _transposed(w, weight), zero)
    factor = w.op("Mul", scale, scales)
    return _added(w, w.op("Mul", w.cast(sums, np.float32), factor), bias)


@exporter("linear_int4")
def linear_int4(w: Writer, node: Node, x: str, weight: str, scales: str, *bias: str) -> str:
    """Write a product with weights of four bits that lie in blocks."""
    if weight not in w.arrays or scales not in w.arrays:
        raise UnsupportedError("its weight must be constant")
    group, inner = node.attrs.group, int(spec_of(node).shape[-1])
    if w.opset < 21:
        return _added(w, _by_blocks(w, node, x, weight, scales), bias)
    integers = unpacked_int4(w.arrays[weight], inner).T.astype(ml_dtypes.int4)
    factors = np.ascontiguousarray(w.arrays[scales].T)
    floats = w.op(
        "DequantizeLinear", w.constant(integers, name=f"{weight}_int4"),
        w.constant(factors, name=f"{scales}_transposed"), axis=0, block_size=min(group, inner),
    )  # fmt: skip
    return _added(w, w.op("MatMul", x, floats), bias)


def _by_blocks(w: Writer, node: Node, x: str, weight: str, scales: str) -> str:
    """Write ONNX Runtime's own operator, for operator sets without types of four bits."""
    group, inner = node.attrs.group, int(spec_of(node).shape[-1])
    if group < _LEAST_BLOCK or group & (group - 1):
        w.needs(21, f"a group of {group} neighbours")
    stored, rows = w.arrays[weight], int(spec_of(node, 1).shape[0])
    blocks = -(-inner // group)
    padded = np.full((rows, blocks * group // 2), 0x88, np.uint8)  # stands for zeros
    padded[:, : stored.shape[1]] = stored
    before, after = spec_of(node).shape, result_of(node).shape
    if len(before) == 1:
        x = w.reshape(x, before, (1, inner))
    y = w.op(
        "MatMulNBits", x, w.constant(padded.reshape(rows, blocks, group // 2), name=weight),
        scales, domain="com.microsoft", K=inner, N=rows, bits=4, block_size=group,
    )  # fmt: skip
    return w.reshape(y, (1, rows), after) if len(before) == 1 else y
