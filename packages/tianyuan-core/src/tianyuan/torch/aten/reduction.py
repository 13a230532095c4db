"""ATen operators that reduce, search and sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import dtypes, shapes
from ... import functional as F
from ...functional.arguments import run, run_many
from ...imperative.tensor import Tensor
from .shape import axis_of
from .table import aten

Dims = int | Sequence[int] | None


def axes_of(x: Tensor, dims: Dims) -> tuple[int, ...]:
    """Return axes from the front, sorted; none given means all of them."""
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(axis_of(x, dim) for dim in given)) if given else tuple(range(x.ndim))


def _reduced(op: str, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    return run(op, x, axes=axes_of(x, dims), keepdims=bool(keepdim)) if x.ndim else x


def _counted(x: Tensor, dtype: Any) -> Tensor:
    """Return what sums are taken of: integers and bools are summed as int64."""
    if dtype is not None:
        return x.cast(dtype)  # type: ignore[no-any-return]
    return x if dtypes.is_float(x.dtype) else x.cast("int64")


@aten("sum")
def sum_(x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _reduced("sum", _counted(x, dtype), dims, keepdim)


@aten("mean")
def mean(x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _reduced("mean", x if dtype is None else x.cast(dtype), dims, keepdim)


@aten("prod")
def prod(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _reduced("prod", _counted(x, dtype), dim, keepdim)


@aten("amax")
def amax(x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced("max", x, dims, keepdim)


@aten("amin")
def amin(x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced("min", x, dims, keepdim)


@aten("max.default")
def max_(x: Tensor) -> Tensor:
    return _reduced("max", x, None, False)


@aten("min.default")
def min_(x: Tensor) -> Tensor:
    return _reduced("min", x, None, False)


@aten("max.dim")
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amax(x, dim, keepdim), argmax(x, dim, keepdim)


@aten("min.dim")
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin(x, dim, keepdim), argmin(x, dim, keepdim)


def _searched(op: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None:
        x, dim, keepdim = F.flatten(x), 0, False
    found = run(op, x, axis=axis_of(x, dim), keepdims=bool(keepdim))
    return found.cast("int64")  # type: ignore[no-any-return]


@aten("argmax")
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _searched("argmax", x, dim, keepdim)


@aten("argmin")
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _searched("argmin", x, dim, keepdim)


@aten("any")
def any_(x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced("max", x.cast("bool"), dims, keepdim)


@aten("all")
def all_(x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduced("min", x.cast("bool"), dims, keepdim)


@aten("logsumexp")
def logsumexp(x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    return _reduced("logsumexp", x, dims, keepdim)


@aten("var_mean.correction")
def var_mean(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes = axes_of(x, dims)
    centre = _reduced("mean", x, axes, True)
    total = _reduced("sum", F.square(F.sub(x, centre)), axes, keepdim)
    count = shapes.volume(x.shape[axis] for axis in axes)
    lost = 1 if correction is None else correction
    divisor = x.extent(count, x.dtype) - lost if shapes.symbols_of(count) else int(count) - lost
    return F.div(total, divisor), _reduced("mean", x, axes, keepdim)


@aten("var.correction")
def var(x: Tensor, dims: Dims = None, **options: Any) -> Tensor:
    return var_mean(x, dims, **options)[0]


@aten("std.correction")
def std(x: Tensor, dims: Dims = None, **options: Any) -> Tensor:
    return F.sqrt(var(x, dims, **options))


@aten("linalg_vector_norm")
def vector_norm(
    x: Tensor, order: float = 2, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    x = x if dtype is None else x.cast(dtype)
    if order == 2:
        return F.sqrt(_reduced("sum", F.square(x), dims, keepdim))
    if math.isinf(order):
        return _reduced("max" if order > 0 else "min", F.abs(x), dims, keepdim)
    if order == 1:
        return _reduced("sum", F.abs(x), dims, keepdim)
    return F.pow(_reduced("sum", F.pow(F.abs(x), float(order)), dims, keepdim), 1 / order)


@aten("cumsum")
def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return run("cumsum", _counted(x, dtype), axis=axis_of(x, dim)) if x.ndim else x


@aten("cumprod")
def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return run("cumprod", _counted(x, dtype), axis=axis_of(x, dim)) if x.ndim else x


@aten("topk")
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, index = run_many("topk", x, k=k, axis=axis_of(x, dim), descending=bool(largest))
    return values, index.cast("int64")


@aten("sort")
def sort(
    x: Tensor, dim: int = -1, descending: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    if "stable" in options and "dim" in options:
        dim = options["dim"]
    values, index = run_many("sort", x, axis=axis_of(x, dim), descending=bool(descending))
    return values, index.cast("int64")
