"""Reductions over axes, running sums, and the positions of extremes."""

from __future__ import annotations

from collections.abc import Callable

from ...ops.shape import flip
from ..node import Node
from ..table import operator
from .common import (
    Array,
    Tensor,
    binary,
    constant,
    extents,
    full,
    is_float,
    normal_axes,
    normal_axis,
    run,
    single,
    zero_padded,
)

_Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _total(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return run("sum", x, axes=axes, keepdims=keep)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if is_float(x):
        return run("mean", x, axes=axes, keepdims=keep)
    return run("mean", x.astype("float64"), axes=axes, keepdims=keep).astype(x.dtype)


def _extreme(op: str) -> _Reduce:
    def reduce(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if any(int(x.shape[axis]) == 0 for axis in axes):
            return _nothing(op, x, axes, keep)
        return run(op, x, axes=axes, keepdims=keep)

    return reduce


def _nothing(op: str, x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """Return the extreme of no elements: the least or the greatest value of the dtype."""
    import numpy as np

    if is_float(x):
        value = -np.inf if op == "max" else np.inf
    elif x.dtype.kind == "b":
        value = op == "min"
    else:
        info = np.iinfo(x.dtype)
        value = info.min if op == "max" else info.max
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
    return full(shape, value, x.dtype)


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return run("prod", x, axes=axes, keepdims=keep)


def _l1(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _total(run("abs", x) if x.dtype.kind != "u" else x, axes, keep)


def _squares(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _total(run("square", x), axes, keep)


def _l2(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    total = _squares(x, axes, keep)
    return (
        run("sqrt", total) if is_float(x) else run("sqrt", total.astype("float64")).astype(x.dtype)
    )


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    total = _total(x, axes, keep)
    return run("log", total) if is_float(x) else run("log", total.astype("float64")).astype(x.dtype)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(int(x.shape[axis]) == 0 for axis in axes):
        return run("log", _total(x, axes, keep))
    wide = x if is_float(x) else x.astype("float64")
    return run("logsumexp", wide, axes=axes, keepdims=keep).astype(x.dtype)


def _enter(name: str, reduce: _Reduce, since: int) -> None:
    def over(node: Node, x: Tensor, axes: list[int] | None) -> Tensor:
        if not axes:
            if node.flag("noop_with_empty_axes"):
                return _unreduced(name, x)
            axes = list(range(x.ndim))
        return reduce(x, tuple(sorted(normal_axes(axes, x.ndim))), node.flag("keepdims", True))

    @operator(name, 1, since - 1)
    def by_attribute(node: Node, x: Tensor) -> Tensor:
        return over(node, x, list(node.ints("axes", ())))

    @operator(name, since, known=(1,))
    def by_input(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
        return over(node, x, None if axes is None else extents(axes))


def _unreduced(name: str, x: Tensor) -> Tensor:
    """Return what reducing no axis gives: the function of each element alone."""
    found = {
        "ReduceL1": "abs",
        "ReduceL2": "abs",
        "ReduceSumSquare": "square",
        "ReduceLogSum": "log",
    }
    return run(found[name], x) if name in found else run("copy", x)


_enter("ReduceSum", _total, 13)
_enter("ReduceMean", _mean, 18)
_enter("ReduceMax", _extreme("max"), 18)
_enter("ReduceMin", _extreme("min"), 18)
_enter("ReduceProd", _product, 18)
_enter("ReduceL1", _l1, 18)
_enter("ReduceL2", _l2, 18)
_enter("ReduceSumSquare", _squares, 18)
_enter("ReduceLogSum", _log_sum, 18)
_enter("ReduceLogSumExp", _log_sum_exp, 18)


def _position(node: Node, x: Tensor, op: str) -> Tensor:
    axis = normal_axis(node.int("axis", 0), x.ndim)
    keep = node.flag("keepdims", True)
    if not node.flag("select_last_index"):
        return run(op, x, axis=axis, keepdims=keep).astype("int64")
    found = run(op, flip(x, axis), axis=axis, keepdims=keep).astype("int64")
    return run("sub", constant(int(x.shape[axis]) - 1, "int64"), found)


@operator("ArgMax")
def argmax(node: Node, x: Tensor) -> Tensor:
    return _position(node, x, "argmax")


@operator("ArgMin")
def argmin(node: Node, x: Tensor) -> Tensor:
    return _position(node, x, "argmin")


def _running(node: Node, x: Tensor, axis: Array, op: str, neutral: float) -> Tensor:
    """Scan along an axis; ``exclusive`` leaves the element itself out, ``reverse`` goes back."""
    where = normal_axis(int(single(axis)), x.ndim)
    back = node.flag("reverse")
    x = flip(x, where) if back else x
    if node.flag("exclusive") and int(x.shape[where]):
        before = [int(a == where) for a in range(x.ndim)]
        sizes = tuple(x.shape)
        x = zero_padded(x, before, [0] * x.ndim, neutral)
        x = run("slice", x, starts=(0,) * x.ndim, sizes=sizes, steps=(1,) * x.ndim)
    found = run(op, x, axis=where)
    return flip(found, where) if back else found


@operator("CumSum", 11, known=(1,))
def cumsum(node: Node, x: Tensor, axis: Array) -> Tensor:
    return _running(node, x, axis, "cumsum", 0)


@operator("CumProd", 26, known=(1,))
def cumprod(node: Node, x: Tensor, axis: Array) -> Tensor:
    return _running(node, x, axis, "cumprod", 1)


def mean_variance(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return x minus its mean, and its variance, over axes that stay."""
    centred = run("sub", x, run("mean", x, axes=axes, keepdims=True))
    return centred, run("mean", run("square", centred), axes=axes, keepdims=True)


@operator("MeanVarianceNormalization", 9)
def mean_variance_normalization(node: Node, x: Tensor) -> Tensor:
    axes = tuple(sorted(normal_axes(node.ints("axes", (0, 2, 3)), x.ndim)))
    centred, variance = mean_variance(x, axes)
    return run("div", centred, binary("add", run("sqrt", variance), 1e-9))
