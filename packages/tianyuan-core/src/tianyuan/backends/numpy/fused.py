"""Fused elementwise programs, run block by block so that intermediate values stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import is_bool
from ...kernel import Kernel
from ...op import NoAttrs, Op, TensorSpec
from ...ops.fused import constant_dtype, instructions
from .elementwise import BLOCK, compute

Instruction = tuple[Op, tuple[int, ...]]


def _evaluate(
    arrays: Sequence[np.ndarray], code: Sequence[Instruction], constants: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return all registers of a program for one block."""
    registers = [*arrays, *constants]
    for op, operands in code:
        read = [registers[i] for i in operands]
        specs = tuple(TensorSpec(x.shape, x.dtype) for x in read)
        (spec,) = op.infer(specs, NoAttrs())
        out = np.empty(spec.shape, spec.dtype)
        compute(op.name, read, out)
        registers.append(out)
    return registers


def _run(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    code = instructions(attrs)
    dtype = constant_dtype([x.dtype for x in inputs])
    kind = np.bool_ if is_bool(dtype) else dtype
    constants = [np.asarray(value).astype(kind) for value in attrs.constants]
    shape = outputs[0].shape
    flat = all(x.shape == shape for x in outputs) and all(
        x.shape == shape or x.ndim == 0 for x in inputs
    )
    with np.errstate(all="ignore"):
        if not flat or not shape:
            registers = _evaluate(inputs, code, constants)
            for out, index in zip(outputs, attrs.outputs, strict=True):
                np.copyto(out, registers[index])
            return
        for start in range(0, outputs[0].size, BLOCK):
            block = slice(start, start + BLOCK)
            pieces = [x if x.ndim == 0 else x.reshape(-1)[block] for x in inputs]
            registers = _evaluate(pieces, code, constants)
            for out, index in zip(outputs, attrs.outputs, strict=True):
                np.copyto(out.reshape(-1)[block], registers[index])


KERNELS: tuple[Kernel, ...] = (
    Kernel("fused_elementwise_any__numpy_blocks", "fused_elementwise", _run),
)
