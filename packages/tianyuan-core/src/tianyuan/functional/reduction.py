"""Reductions and order statistics with MegEngine's names and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .. import dtypes, shapes
from ..errors import AttrError
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import accepts_keepdim, floating, real_number, run, run_many, tensor, whole

__all__ = [
    "amax", "amin", "argmax", "argmin", "argsort", "isfinite", "isinf", "isnan", "max", "mean",
    "min", "norm", "normalize", "prod", "sign", "sort", "std", "sum", "topk", "var",
]  # fmt: skip

Axes = int | Sequence[int] | None


def _reduce(op: str, inp: Any, axis: Axes, keepdims: bool) -> Tensor:
    axes = shapes.normalize_axes(op, axis, tensor(op, inp).ndim)
    return run(op, inp, axes=axes, keepdims=bool(keepdims))


def _counting(op: str, inp: Any) -> Tensor:
    """Return bool as int32, in which it is counted, and anything else as it is."""
    found = tensor(op, inp)
    return cast(Tensor, found.cast("int32")) if dtypes.is_bool(found.dtype) else found


@accepts_keepdim
def sum(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over axes, all of them by default; bool is counted in int32.

    >>> sum(Tensor([[1.0, 2.0], [3.0, 6.0]]), axis=0).tolist()
    [4.0, 8.0]
    """
    return _reduce("sum", _counting("sum", inp), axis, keepdims)


@accepts_keepdim
def prod(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Multiply over axes, all of them by default; bool is counted in int32.

    >>> prod(Tensor([[1.0, 2.0], [3.0, 6.0]])).item()
    36.0
    """
    return _reduce("prod", _counting("prod", inp), axis, keepdims)


@accepts_keepdim
def mean(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Average over axes, all of them by default; integers in float32.

    >>> mean(Tensor([[1.0, 2.0], [3.0, 6.0]]), axis=1, keepdims=True).tolist()
    [[1.5], [4.5]]
    """
    return _reduce("mean", floating(tensor("mean", inp)), axis, keepdims)


@accepts_keepdim
def max(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over axes, all of them by default.

    >>> max(Tensor([[1.0, 2.0], [3.0, 6.0]])).item()
    6.0
    """
    return _reduce("max", inp, axis, keepdims)


@accepts_keepdim
def min(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over axes, all of them by default.

    >>> min(Tensor([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.0, 3.0]
    """
    return _reduce("min", inp, axis, keepdims)


@accepts_keepdim
def amax(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over axes: ``max`` under numpy's other name.

    >>> amax(Tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 4]
    """
    return max(inp, shapes.normalize_axes("amax", axis, tensor("amax", inp).ndim), keepdims)


@accepts_keepdim
def amin(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over axes: ``min`` under numpy's other name.

    >>> amin(Tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [1, 3]
    """
    return min(inp, shapes.normalize_axes("amin", axis, tensor("amin", inp).ndim), keepdims)


@accepts_keepdim
def var(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the biased variance over axes, all of them by default.

    >>> var(Tensor([1.0, 3.0])).item()
    1.0
    """
    return _var("var", inp, axis, keepdims)


@accepts_keepdim
def std(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the square root of the biased variance over axes, all of them by default.

    >>> std(Tensor([1.0, 3.0])).item()
    1.0
    """
    return _root(_var("std", inp, axis, keepdims))


def _var(op: str, inp: Any, axis: Axes, keepdims: bool) -> Tensor:
    """Return the variance for ``op``, which errors name."""
    inp = floating(tensor(op, inp))
    axes = shapes.normalize_axes(op, axis, inp.ndim)
    return mean(elemwise.square(elemwise.sub(inp, mean(inp, axes, True))), axes, keepdims)


def _root(value: Tensor) -> Tensor:
    """Return the square root, with the subgradient 0 at 0 instead of an infinite slope."""
    zero = elemwise.equal(value, 0)
    one, nothing = value.full((), 1.0), value.full((), 0.0)
    return run("where", zero, nothing, elemwise.sqrt(run("where", zero, one, value)))


def _arg_reduce(op: str, inp: Any, axis: Axes, keepdims: bool) -> Tensor:
    inp = tensor(op, inp)
    axes = shapes.normalize_axes(op, axis, inp.ndim)
    if len(axes) == 1:
        return run(op, inp, axis=axes[0], keepdims=bool(keepdims))
    rest = tuple(a for a in range(inp.ndim) if a not in axes)
    moved = run("transpose", inp, perm=rest + axes) if axes and rest else inp
    kept = tuple(inp.shape[a] for a in rest)
    reduced = shapes.volume(inp.shape[a] for a in axes)
    found = run(op, run("reshape", moved, shape=(*kept, reduced)), axis=len(rest), keepdims=False)
    if not keepdims:
        return found
    return run("reshape", found, shape=tuple(1 if a in axes else n for a, n in _numbered(inp)))


def _numbered(inp: Tensor) -> list[tuple[int, int]]:
    return list(enumerate(inp.shape))


@accepts_keepdim
def argmax(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the int32 index of the first largest element along an axis.

    Several axes, or None for all of them, count as one flattened axis.

    >>> argmax(Tensor([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 0]
    """
    return _arg_reduce("argmax", inp, axis, keepdims)


@accepts_keepdim
def argmin(inp: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the int32 index of the first smallest element along an axis.

    Several axes, or None for all of them, count as one flattened axis.

    >>> argmin(Tensor([3, 1, 2])).item()
    1
    """
    return _arg_reduce("argmin", inp, axis, keepdims)


@accepts_keepdim
def norm(
    inp: Tensor, ord: float | None = None, axis: int | None = None, keepdims: bool = False
) -> Tensor:
    """Return the vector norm of order ``ord`` (2 by default) along an axis, or of all elements.

    Order 0 counts the elements that are not zero; orders inf and -inf give the largest and the
    smallest absolute value; any other p gives sum(|x|**p)**(1/p). Where the norm is 0, so is its
    gradient.

    >>> norm(Tensor([3.0, 4.0])).item()
    5.0
    """
    return _norm("norm", inp, ord, axis, keepdims)


def _norm(op: str, inp: Any, ord: Any, axis: Any, keepdims: bool) -> Tensor:
    """Return the norm for ``op``, which errors name."""
    inp = floating(tensor(op, inp))
    axis = shapes.normalize_axes(op, axis, inp.ndim)
    order = 2.0 if ord is None else float(real_number(op, "ord", ord))
    if order == 0:
        return cast(Tensor, sum(elemwise.not_equal(inp, 0), axis, keepdims).cast(inp.dtype))
    if order == 2:
        return _root(sum(elemwise.square(inp), axis, keepdims))
    size = elemwise.abs(inp)
    if order == 1:
        return sum(size, axis, keepdims)
    if order in (float("inf"), float("-inf")):
        return max(size, axis, keepdims) if order > 0 else min(size, axis, keepdims)
    total = sum(elemwise.pow(size, order), axis, keepdims)
    if order < 0:
        return elemwise.pow(total, 1.0 / order)
    zero = elemwise.equal(total, 0)
    safe = run("where", zero, total.full((), 1.0), total)
    return run("where", zero, total.full((), 0.0), elemwise.pow(safe, 1.0 / order))


def normalize(
    inp: Tensor, ord: float | None = None, axis: int | None = None, eps: float = 1e-12
) -> Tensor:
    """Divide by the norm of order ``ord`` along an axis, or of all elements; at least ``eps``.

    >>> normalize(Tensor([0.0, 4.0])).tolist()
    [0.0, 1.0]
    """
    size = _norm("normalize", inp, ord, axis, axis is not None)
    return elemwise.div(inp, elemwise.clip(size, lower=eps))


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1 by the sign of each element.

    >>> sign(Tensor([-2, 0, 3])).tolist()
    [-1, 0, 1]
    """
    return run("sign", tensor("sign", x))


def isnan(inp: Tensor) -> Tensor:
    """Tell by bool which elements are not a number.

    >>> isnan(Tensor([1.0, float("nan")])).tolist()
    [False, True]
    """
    return run("isnan", floating(tensor("isnan", inp)))


def isinf(inp: Tensor) -> Tensor:
    """Tell by bool which elements are infinite.

    >>> isinf(Tensor([1.0, float("inf")])).tolist()
    [False, True]
    """
    return run("isinf", floating(tensor("isinf", inp)))


def isfinite(inp: Tensor) -> Tensor:
    """Tell by bool which elements are neither infinite nor NaN.

    >>> isfinite(Tensor([1.0, float("inf"), float("nan")])).tolist()
    [True, False, False]
    """
    found = floating(tensor("isfinite", inp))
    return elemwise.logical_not(elemwise.logical_or(isnan(found), isinf(found)))


def sort(
    inp: Tensor, descending: bool = False, dim: int = -1, *, axis: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sort along an axis, the last by default; return the values and their int32 indices.

    ``axis`` is another name for ``dim``. The sort is stable. NaN comes last, or first where
    ``descending``.

    >>> [part.tolist() for part in sort(Tensor([3, 1, 2]))]
    [[1, 2, 3], [1, 2, 0]]
    """
    place = dim if axis is None else axis
    axis = shapes.normalize_axis("sort", place, tensor("sort", inp).ndim)
    values, indices = run_many("sort", inp, axis=axis, descending=bool(descending))
    return values, indices


def argsort(inp: Tensor, descending: bool = False, *, axis: int = -1) -> Tensor:
    """Return the int32 indices that sort along an axis, the last by default; the sort is stable.

    >>> argsort(Tensor([3, 1, 2]), descending=True).tolist()
    [0, 2, 1]
    """
    axis = shapes.normalize_axis("argsort", axis, tensor("argsort", inp).ndim)
    return run_many("sort", inp, axis=axis, descending=bool(descending))[1]


def topk(
    inp: Tensor,
    k: int,
    descending: bool = True,
    kth_only: bool = False,
    no_sort: bool = False,
    *,
    axis: int = -1,
) -> Any:
    """Return the k largest elements (the smallest unless ``descending``) along an axis.

    Returns the values, sorted, and their int32 indices; with ``kth_only`` the k-th of both,
    without the axis. ``no_sort`` allows any order, which the sorted one satisfies.

    Raises:
        AttrError: where k is not between 1 and the extent.

    >>> [part.tolist() for part in topk(Tensor([3, 1, 2]), 2)]
    [[3, 2], [0, 2]]
    """
    axis = shapes.normalize_axis("topk", axis, tensor("topk", inp).ndim)
    k = whole("topk", "k", k)
    if not 1 <= int(k) <= int(inp.shape[axis]):
        raise AttrError(f"topk: k is out of range, got {k}, expected 1 to {int(inp.shape[axis])}")
    values, indices = run_many("topk", inp, k=int(k), axis=axis, descending=bool(descending))
    if kth_only:
        starts = tuple(int(k) - 1 if a == axis else 0 for a in range(values.ndim))
        sizes = tuple(1 if a == axis else n for a, n in enumerate(values.shape))
        rest = (*values.shape[:axis], *values.shape[axis + 1 :])
        last = (
            run("slice", found, starts=starts, sizes=sizes, steps=(1,) * found.ndim)
            for found in (values, indices)
        )
        values, indices = (run("reshape", found, shape=rest) for found in last)
    return values, indices
