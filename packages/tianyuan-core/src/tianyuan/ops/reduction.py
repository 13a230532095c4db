"""Ops that reduce or scan along axes: sums, extremes, softmax and cumulative products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, is_bool, is_float
from ..errors import AttrError, DTypeError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, expect_float, expect_same_dtype
from . import attrs as a
from . import elementwise_binary as two
from . import elementwise_unary as one
from . import shape as move

Arrays = Sequence[np.ndarray]


def _reduced(op: str, spec: TensorSpec, axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """Return the shape that is left after reducing axes; raise AttrError where one is wrong."""
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < spec.ndim for axis in axes):
        raise AttrError(
            f"{op}: axes are not valid, got {tuple(axes)}, "
            f"expected increasing ones from 0 to {spec.ndim - 1}"
        )
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(spec.shape))
    return tuple(n for i, n in enumerate(spec.shape) if i not in axes)


def _expect_number(op: str, spec: TensorSpec) -> None:
    if is_bool(spec.dtype):
        raise DTypeError(f"{op}: dtype is not accepted, got bool, expected integer or float")


def _expect_elements(op: str, spec: TensorSpec, axes: Sequence[int]) -> None:
    if any(int(spec.shape[axis]) == 0 for axis in axes):
        raise ShapeError(
            f"{op}: an empty axis has no extreme, got {shapes.format_shape(spec.shape)} "
            f"over axes {tuple(axes)}, expected extents of at least 1"
        )


def _number_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.Reduce) -> Specs:
        _expect_number(name, specs[0])
        return (specs[0].with_shape(_reduced(name, specs[0], attrs.axes, attrs.keepdims)),)

    return infer


def _float_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.Reduce) -> Specs:
        expect_float(name, specs[0])
        return (specs[0].with_shape(_reduced(name, specs[0], attrs.axes, attrs.keepdims)),)

    return infer


def _extreme_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.Reduce) -> Specs:
        shape = _reduced(name, specs[0], attrs.axes, attrs.keepdims)
        _expect_elements(name, specs[0], attrs.axes)
        return (specs[0].with_shape(shape),)

    return infer


def _arg_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.ArgReduce) -> Specs:
        move.expect_axis(name, attrs.axis, specs[0].ndim)
        shape = _reduced(name, specs[0], (attrs.axis,), attrs.keepdims)
        _expect_elements(name, specs[0], (attrs.axis,))
        return (TensorSpec(shape, as_dtype("int32"), specs[0].device),)

    return infer


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_float(x.dtype) else x


def _reduce_reference(function: Any) -> Any:
    """Make a reference that reduces in float64 (integers in their own dtype) and rounds once."""

    def reference(arrays: Arrays, attrs: a.Reduce) -> Arrays:
        x = arrays[0]
        with np.errstate(all="ignore"):
            result = function(_wide(x), axis=attrs.axes, keepdims=attrs.keepdims)
            return (np.asarray(result).astype(x.dtype),)

    return reference


def _wrapping(function: Any) -> Any:
    """Keep an integer sum or product in its dtype, where numpy would widen it."""
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = shapes.volume(x.shape[i] for i in axis)
    return np.sum(x, axis=axis, keepdims=keepdims) / np.float64(count)


def _logsumexp(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
    if not axis:
        return x
    reduce: Any = np.logaddexp.reduce
    return reduce(x, axis=axis, keepdims=keepdims)


def _arg_reference(function: Any) -> Any:
    def reference(arrays: Arrays, attrs: a.ArgReduce) -> Arrays:
        found = function(_wide(arrays[0]), axis=attrs.axis, keepdims=attrs.keepdims)
        return (np.asarray(found).astype(np.int32),)

    return reference


def _keepdims_shape(x: Any, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


def _restore(value: Any, x: Any, axes: Sequence[int]) -> Any:
    """Put the reduced axes back with extent 1."""
    shape = _keepdims_shape(x, axes)
    return value if value.ndim == x.ndim else move.RESHAPE(value, shape=shape)


def _spread(value: Any, x: Any, axes: Sequence[int]) -> Any:
    return move.BROADCAST_TO(_restore(value, x, axes), shape=tuple(x.shape))


def _sum_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, g = ctx.inputs[0], grads[0]
    return (None if g is None else _spread(g, x, ctx.attrs.axes),)


def count_of(x: Any, axes: Sequence[int]) -> Any:
    """Return how many elements a reduction joins: a float, or an operand where it is symbolic."""
    count = shapes.volume(x.shape[axis] for axis in axes)
    if not shapes.symbols_of(count):
        return float(int(count))
    ones = x.full(tuple(x.shape[axis] for axis in axes), 1.0)
    return SUM(ones, axes=tuple(range(len(axes))), keepdims=False)


def _mean_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, g, axes = ctx.inputs[0], grads[0], ctx.attrs.axes
    return (None if g is None else _spread(g / count_of(x, axes), x, axes),)


def _extreme_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, y, g, axes = ctx.inputs[0], ctx.outputs[0], grads[0], ctx.attrs.axes
    if g is None:
        return (None,)
    ties = two.EQUAL(x, _restore(y, x, axes)).cast(x.dtype)
    share = _restore(g, x, axes) / SUM(ties, axes=axes, keepdims=True)
    return (ties * share,)


def _others(x: Any, axis: int, reverse: bool) -> Any:
    """Multiply, for each element along an axis, all that stand before it (behind, if reverse)."""
    if reverse:
        return move.flip(_others(move.flip(x, axis), axis, False), axis)
    size = x.shape[axis]
    one_wide = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    kept = tuple(size - 1 if i == axis else n for i, n in enumerate(x.shape))
    front = move.SLICE(x, starts=(0,) * x.ndim, sizes=kept, steps=(1,) * x.ndim)
    return CUMPROD(move.CONCAT(x.full(one_wide, 1.0), front, axis=axis), axis=axis)


def _prod_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    # The product of all others, formed without division, so that zeros are no exception.
    x, g, axes = ctx.inputs[0], grads[0], ctx.attrs.axes
    if g is None:
        return (None,)
    if not axes:
        return (g,)
    if any(int(x.shape[axis]) == 0 for axis in axes):
        return (x.full(tuple(x.shape), 0.0),)
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    perm = (*kept, *axes)
    moved = move.TRANSPOSE(x, perm=perm)
    count = shapes.volume(x.shape[axis] for axis in axes)
    flat = move.RESHAPE(moved, shape=(*(x.shape[i] for i in kept), count))
    last = len(kept)
    rest = _others(flat, last, False) * _others(flat, last, True)
    rest = move.RESHAPE(rest, shape=tuple(moved.shape))
    inverse = tuple(perm.index(i) for i in range(x.ndim))
    return (move.TRANSPOSE(rest, perm=inverse) * _restore(g, x, axes),)


def _logsumexp_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, y, g, axes = ctx.inputs[0], ctx.outputs[0], grads[0], ctx.attrs.axes
    if g is None:
        return (None,)
    return (one.EXP(x - _restore(y, x, axes)) * _restore(g, x, axes),)


def _reduce(name: str, infer: Any, function: Any, grad: Any, takes_complex: bool = False) -> Op:
    return Op(
        name,
        infer=infer,
        reference=_reduce_reference(function),
        grad=grad,
        attrs=a.Reduce,
        family="reduction",
        takes_complex=takes_complex,
    )


SUM = _reduce("sum", _number_infer("sum"), _wrapping(np.sum), _sum_grad, takes_complex=True)
PROD = _reduce("prod", _number_infer("prod"), _wrapping(np.prod), _prod_grad)
MEAN = _reduce("mean", _float_infer("mean"), _mean, _mean_grad)
MAX = _reduce("max", _extreme_infer("max"), np.max, _extreme_grad)
MIN = _reduce("min", _extreme_infer("min"), np.min, _extreme_grad)
LOGSUMEXP = _reduce("logsumexp", _float_infer("logsumexp"), _logsumexp, _logsumexp_grad)


def _arg(name: str, function: Any) -> Op:
    return Op(
        name,
        infer=_arg_infer(name),
        reference=_arg_reference(function),
        attrs=a.ArgReduce,
        family="reduction",
        differentiable=False,
    )


ARGMAX = _arg("argmax", np.argmax)
ARGMIN = _arg("argmin", np.argmin)


# sum_to


def _sum_to_infer(specs: Specs, attrs: a.Shape) -> Specs:
    x, target = specs[0], attrs.shape
    _expect_number("sum_to", x)
    tail = x.shape[x.ndim - len(target) :] if len(target) <= x.ndim else None
    if tail is None or any(int(t) not in (1, int(n)) for t, n in zip(target, tail, strict=True)):
        raise ShapeError(
            f"sum_to: shape does not broadcast to the input's, got {shapes.format_shape(target)}, "
            f"expected one that broadcasts to {shapes.format_shape(x.shape)}"
        )
    return (x.with_shape(target),)


def sum_to_axes(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of ``shape`` that were broadcast from ``target``."""
    lead = len(shape) - len(target)
    grown = (i + lead for i, n in enumerate(target) if int(n) == 1 and int(shape[i + lead]) != 1)
    return (*range(lead), *grown)


def _sum_to_reference(arrays: Arrays, attrs: a.Shape) -> Arrays:
    x = arrays[0]
    total = np.sum(_wide(x), axis=sum_to_axes(x.shape, attrs.shape), dtype=_wide(x).dtype)
    return (total.reshape(attrs.shape).astype(x.dtype),)


def _sum_to_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else move.BROADCAST_TO(g, shape=tuple(ctx.inputs[0].shape)),)


SUM_TO = Op(
    "sum_to",
    infer=_sum_to_infer,
    reference=_sum_to_reference,
    grad=_sum_to_grad,
    attrs=a.Shape,
    family="reduction",
    takes_complex=True,
)


# along one axis: softmax and scans


def _axis_infer(name: str, floats_only: bool) -> Any:
    def infer(specs: Specs, attrs: a.Axis) -> Specs:
        expect_same_dtype(name, specs)
        (expect_float if floats_only else _expect_number)(name, specs[0])
        move.expect_axis(name, attrs.axis, specs[0].ndim)
        for spec in specs[1:]:
            if tuple(map(int, spec.shape)) != tuple(map(int, specs[0].shape)):
                raise ShapeError(
                    f"{name}: inputs must have one shape, got "
                    f"{' and '.join(shapes.format_shape(s.shape) for s in specs)}, "
                    "expected equal ones"
                )
        return (specs[0].with_shape(specs[0].shape),)

    return infer


def _axis_reference(function: Any) -> Any:
    def reference(arrays: Arrays, attrs: a.Axis) -> Arrays:
        x = arrays[0]
        with np.errstate(all="ignore"):
            return (function(_wide(x), attrs.axis).astype(x.dtype),)

    return reference


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def _softmax_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else SOFTMAX_BACKWARD(ctx.outputs[0], g, axis=ctx.attrs.axis),)


def _log_softmax_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else LOG_SOFTMAX_BACKWARD(ctx.outputs[0], g, axis=ctx.attrs.axis),)


def _softmax_backward(inputs: tuple[Any, ...], attrs: a.Axis) -> Any:
    y, g = inputs
    return y * (g - SUM(g * y, axes=(attrs.axis,), keepdims=True))


def _log_softmax_backward(inputs: tuple[Any, ...], attrs: a.Axis) -> Any:
    y, g = inputs
    return g - one.EXP(y) * SUM(g, axes=(attrs.axis,), keepdims=True)


def _cumsum_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g, axis = grads[0], ctx.attrs.axis
    return (None if g is None else move.flip(CUMSUM(move.flip(g, axis), axis=axis), axis),)


def _cumprod_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    """Sum, over every product that holds an element, the gradient times the other factors.

    Quadratic in the extent, because a division by the element would fail where it is zero.
    """
    x, g, axis = ctx.inputs[0], grads[0], ctx.attrs.axis
    if g is None:
        return (None,)
    if int(x.shape[axis]) == 0:
        return (g,)
    size = x.shape[axis]
    # One row per element, in which that element is 1.
    grid = (*x.shape[: axis + 1], size, *x.shape[axis + 1 :])
    row = (*x.shape[:axis], 1, size, *x.shape[axis + 1 :])
    counter = (size, 1, *(1,) * (x.ndim - axis - 1))
    place = CUMSUM(x.full(counter, 1, "int32"), axis=0)
    across = move.RESHAPE(place, shape=(1, *counter[:1], *counter[2:]))
    spread = move.BROADCAST_TO(move.RESHAPE(x, shape=row), shape=grid)
    products = CUMPROD(two.WHERE(two.EQUAL(place, across), x.full((), 1.0), spread), axis=axis + 1)
    terms = products * move.RESHAPE(g, shape=row)
    held = two.WHERE(two.LESS_EQUAL(place, across), terms, x.full((), 0.0))
    return (SUM(held, axes=(axis + 1,), keepdims=False),)


def _along(name: str, function: Any, grad: Any, floats_only: bool) -> Op:
    return Op(
        name,
        infer=_axis_infer(name, floats_only),
        reference=_axis_reference(function),
        grad=grad,
        attrs=a.Axis,
        family="reduction",
    )


def _backward(name: str, decompose: Any) -> Op:
    return Op(
        name,
        infer=_axis_infer(name, True),
        decompose=decompose,
        attrs=a.Axis,
        n_inputs=2,
        family="reduction",
    )


SOFTMAX = _along("softmax", _softmax, _softmax_grad, True)
LOG_SOFTMAX = _along("log_softmax", _log_softmax, _log_softmax_grad, True)
SOFTMAX_BACKWARD = _backward("softmax_backward", _softmax_backward)
LOG_SOFTMAX_BACKWARD = _backward("log_softmax_backward", _log_softmax_backward)
CUMSUM = _along("cumsum", lambda x, axis: np.cumsum(x, axis, x.dtype), _cumsum_grad, False)
CUMPROD = _along("cumprod", lambda x, axis: np.cumprod(x, axis, x.dtype), _cumprod_grad, False)

OPS: tuple[Op, ...] = (
    SUM, MEAN, PROD, MAX, MIN, LOGSUMEXP, ARGMAX, ARGMIN, SUM_TO, SOFTMAX, LOG_SOFTMAX,
    SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD, CUMSUM, CUMPROD,
)  # fmt: skip
