"""Run any op by references alone: its own, or those of the ops that it decomposes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    """Compute an op's outputs by its reference, or by its decomposition's references."""
    if op.reference is not None:
        return tuple(np.asarray(x) for x in op.reference(arrays, attrs))
    assert op.decompose is not None, f"{op.name} has neither reference nor decomposition"
    operands: Any = tuple(ReferenceOperand(x) for x in arrays)
    found: Any = op.decompose(operands, attrs)
    results = found if isinstance(found, (tuple, list)) else (found,)
    return tuple(result.array for result in results)
