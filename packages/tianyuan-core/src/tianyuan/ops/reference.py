"""Run any op by references alone: its own, or those of the ops that it decomposes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import is_float
from ..op import Op, TensorSpec
from .operand import Operand


class ReferenceOperand(Operand):
    """A plain array on which ops run by their references, with nothing recorded."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @classmethod
    def _apply(cls, op: Op, operands: tuple[Any, ...], attrs: Any) -> Any:
        arrays = [operand.array for operand in operands]
        op.check_count(len(arrays))
        op.infer(tuple(TensorSpec(x.shape, x.dtype) for x in arrays), attrs)
        results = tuple(cls(x) for x in evaluate(op, arrays, attrs))
        return results[0] if len(results) == 1 else results


def evaluate(op: Op, arrays: Sequence[np.ndarray], attrs: Any) -> tuple[np.ndarray, ...]:
    """Compute an op's outputs by its reference, or by its decomposition's references.

    A decomposition of 16-bit floats is computed in float32 and rounded at the end, as kernels do:
    a sum of squares would overflow long before the norm that it is for.
    """
    if op.reference is not None:
        return tuple(np.asarray(x) for x in op.reference(arrays, attrs))
    assert op.decompose is not None, f"{op.name} has neither reference nor decomposition"
    specs = op.infer(tuple(TensorSpec(x.shape, x.dtype) for x in arrays), attrs)
    operands: Any = tuple(ReferenceOperand(_widened(x)) for x in arrays)
    found: Any = op.decompose(operands, attrs)
    results = found if isinstance(found, (tuple, list)) else (found,)
    return tuple(
        result.array.astype(spec.dtype, copy=False)
        for result, spec in zip(results, specs, strict=True)
    )


def _widened(array: np.ndarray) -> np.ndarray:
    short = is_float(array.dtype) and array.dtype.itemsize == 2
    return array.astype(np.float32) if short else array
