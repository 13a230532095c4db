"""Decide in which precision each op computes while autocast is on.

The lists are MegEngine's: products in low precision, what loses too much there in high.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from .. import dtypes
from .state import state

if TYPE_CHECKING:
    from .tensor import Tensor

LOW_OPS = frozenset(
    {
        "matmul", "matmul_fused", "conv2d", "conv2d_fused", "conv2d_backward_data",
        "conv2d_backward_weight",
    }
)  # fmt: skip
HIGH_OPS = frozenset(
    {
        "pow", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "logaddexp",
        "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "erf", "softplus", "mean", "logsumexp", "softmax", "log_softmax",
        "layer_norm", "group_norm", "batch_norm", "batch_norm_train",
    }
)  # fmt: skip


def meet(op: str, operands: Sequence[Any], low: str, high: str) -> Sequence[Any]:
    """Return an op's inputs in the precision that it computes in; float64 stays as it is."""
    want = low if op in LOW_OPS else high if op in HIGH_OPS else None
    if want is None or not all(_may_move(operand, low, high) for operand in operands):
        return operands
    return [operand.cast(want) for operand in operands]


def _may_move(operand: Any, low: str, high: str) -> bool:
    dtype = getattr(operand, "dtype", None)
    return dtype is not None and dtype.name in (low, high, "float32", "float16", "bfloat16")


@contextmanager
def as_given() -> Iterator[None]:
    """Let ops compute in the dtypes of their inputs: gradients follow those of forward."""
    saved, state.precision = state.precision, None
    try:
        yield
    finally:
        state.precision = saved


def raised(value: Tensor) -> Tensor:
    """Return a value in high precision where autocast is on."""
    return _moved(value, 1)


def lowered(value: Tensor) -> Tensor:
    """Return a value in low precision where autocast is on."""
    return _moved(value, 0)


def _moved(value: Tensor, index: int) -> Tensor:
    if state.precision is None or not _may_move(value, *state.precision):
        return value
    return cast("Tensor", value.cast(state.precision[index]))


def beside(product: Tensor, bias: Tensor) -> Tensor:
    """Return a bias in the dtype of the product it is added to, where autocast lowered that."""
    if state.precision is None or not dtypes.is_float(bias.dtype):
        return bias
    return cast("Tensor", bias.cast(product.dtype))
