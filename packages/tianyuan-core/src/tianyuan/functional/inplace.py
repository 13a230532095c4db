"""Give tensors new values computed from their old ones."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..imperative.tensor import Tensor
from ..shapes import format_shape
from . import elemwise
from .arguments import same_shape, tensor

__all__ = ["_inplace_add_"]


def _inplace_add_(dest: Tensor, delta: Tensor, alpha: Any, beta: Any) -> Tensor:
    """Set ``dest`` to alpha * dest + beta * delta, in its own dtype, and return it.

    Raises:
        ShapeError: where the shapes differ.

    >>> x = Tensor([1.0, 2.0])
    >>> _inplace_add_(x, Tensor([10.0, 10.0]), 1.0, 0.5).tolist()
    [6.0, 7.0]
    """
    target, change = tensor("_inplace_add_", dest, "dest"), tensor("_inplace_add_", delta, "delta")
    if not same_shape(target.shape, change.shape):
        raise ShapeError(
            f"_inplace_add_: shapes must agree, got {format_shape(target.shape)} and "
            f"{format_shape(change.shape)}, "
            "expected equal ones"
        )
    total = elemwise.add(elemwise.mul(target, alpha), elemwise.mul(change, beta))
    target[...] = total.cast(target.dtype)
    return target
