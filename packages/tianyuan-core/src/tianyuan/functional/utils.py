"""Check values inside a model, where a trace runs no Python."""

from __future__ import annotations

from typing import cast

import numpy as np

from ..errors import KernelError, ShapeError
from ..imperative import dispatch
from ..imperative.tensor import Tensor
from ..shapes import format_shape
from . import elemwise, math
from .arguments import floating, run, same_shape, tensor
from .metric import topk_accuracy

__all__ = ["_assert_equal", "topk_accuracy"]


def _assert_equal(
    expect: Tensor, actual: Tensor, *, maxerr: float = 0.0001, verbose: bool = False
) -> Tensor:
    """Return the first of two tensors, and fail where they differ by more than ``maxerr``.

    The error is |expect - actual| / max(1, min(|expect|, |actual|)), so the smaller of the
    absolute and the relative one. In a trace the check becomes part of the graph, through the
    returned tensor. ``verbose`` prints the largest error, outside of a trace.

    Raises:
        ShapeError: where the shapes differ.
        KernelError: where the values differ; in a trace the run raises.

    >>> _assert_equal(Tensor([1.0]), Tensor([1.00001])).tolist()
    [1.0]
    """
    op = "_assert_equal"
    left, right = tensor(op, expect, "expect"), tensor(op, actual, "actual")
    if not same_shape(left.shape, right.shape):
        raise ShapeError(
            f"{op}: shapes must agree, got {format_shape(left.shape)} and "
            f"{format_shape(right.shape)}, "
            "expected equal ones"
        )
    a, b = floating(left), floating(right)
    least = elemwise.maximum(elemwise.minimum(elemwise.abs(a), elemwise.abs(b)), 1.0)
    error = elemwise.div(elemwise.abs(elemwise.sub(a, b)), least)
    fits = math.min(elemwise.less_equal(error, maxerr)) if int(left.size) else None
    if fits is None:
        return left
    if dispatch.is_known(error):
        largest = float(np.max(dispatch.host_array(error, error._data)))
        if verbose:
            print(f"{op}: largest error {largest:g}")
        if not fits:
            raise KernelError(f"{op}: values differ, got error {largest:g}, expected {maxerr:g}")
        return left
    # The one row that there is can be taken only where the check holds.
    row = cast(Tensor, elemwise.logical_not(fits).cast("int32"))
    return run("take", run("reshape", left, shape=(1, *left.shape)), row, axis=0)
