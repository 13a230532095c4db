"""Products of floats with weights that are stored in few bits, as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import AttrError, ShapeError
from ..interpret import tensor_of
from ..node import Node
from ..table import VALUES, operator
from .common import Tensor, constant, run
from .matmul import product

_MICROSOFT = "com.microsoft"


def _unpacked(stored: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return unsigned integers (rows, count) of bytes that hold several each, lowest bits first."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    parts = stored[..., None] >> shifts & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(stored.shape[0], -1)[:, :count])


def _zeros(zeros: np.ndarray | None, bits: int, rows: int, blocks: int) -> np.ndarray:
    """Return the zero point of each block."""
    if zeros is None:
        return np.full((rows, blocks), 2 ** (bits - 1), np.float32)
    if zeros.dtype == np.uint8:
        return _unpacked(zeros.reshape(rows, -1), bits, blocks).astype(np.float32)
    return zeros.astype(np.float32).reshape(rows, blocks)


@operator("MatMulNBits", form=VALUES, known=(1, 2, 3, 4), domain=_MICROSOFT)
def matmul_nbits(
    node: Node, runtime: Any, a: Any, b: Any, scales: Any, zeros: Any = None, order: Any = None,
    bias: Any = None,
) -> Tensor:  # fmt: skip
    """Multiply by (N, K) integers of few bits, with a scale and zero point for each block of K."""
    inner, rows = node.int("K"), node.int("N")
    bits, block = node.int("bits", 4), node.int("block_size")
    if bits not in (2, 4, 8) or block < 1 or inner < 1 or rows < 1:
        raise AttrError(f"bits, block_size, K or N is wrong, got {bits}, {block}, {inner}, {rows}")
    if order is not None:
        raise AttrError("an order of groups is given, expected groups of neighbours")
    blocks = -(-inner // block)
    stored, factors = b.array, scales.array
    if stored.size * 8 != rows * blocks * block * bits or factors.size != rows * blocks:
        raise ShapeError(
            f"weight or scales have the wrong size, got {stored.shape} and {factors.shape} for "
            f"{rows} rows of {blocks} blocks"
        )
    stored, factors = stored.reshape(rows, -1), factors.reshape(rows, blocks)
    x, rest = tensor_of(a), () if bias is None else (tensor_of(bias),)
    plain = x.dtype == np.float32 and factors.dtype == np.float32 and zeros is None
    if bits == 4 and plain:
        kept = np.ascontiguousarray(stored[:, : -(-inner // 2)])
        return run("linear_int4", x, constant(kept), constant(factors), *rest, group=block,
                   has_bias=bool(rest))  # fmt: skip
    shifts = _zeros(None if zeros is None else zeros.array, bits, rows, blocks)
    wide = np.repeat(np.stack([shifts, factors.astype(np.float32)]), block, axis=2)[..., :inner]
    weight = (_unpacked(stored, bits, inner).astype(np.float32) - wide[0]) * wide[1]
    y = product(x, constant(weight.astype(x.dtype)), transpose_b=True)
    return run("add", y, *rest) if rest else y
