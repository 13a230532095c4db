"""Ops that address values by integer arrays: take, gather, scatter, index and one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, is_bool, is_float
from ..errors import AttrError, DTypeError, IndexRangeError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, expect_same_dtype
from . import attrs as a
from .creation import ARANGE
from .elementwise_binary import EQUAL, WHERE
from .shape import RESHAPE, expect_axis

Arrays = Sequence[np.ndarray]


def wrap_indices(op: str, indices: np.ndarray, size: int) -> np.ndarray:
    """Return indices counted from the front.

    Raises:
        IndexRangeError: where one lies outside the axis.
    """
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        got = int(indices[wrong].reshape(-1)[0])
        raise IndexRangeError(
            f"{op}: index out of range, got {got}, "
            + (f"expected {-size} to {size - 1}" if size else "expected none on an empty axis")
        )
    return np.where(indices < 0, indices + size, indices).astype(np.int64)


def _expect_index(op: str, spec: TensorSpec) -> None:
    if spec.dtype.name not in ("int32", "int64"):
        raise DTypeError(
            f"{op}: indices must be int32 or int64, got {spec.dtype.name}, expected an index dtype"
        )


def _expect_shape(op: str, what: str, spec: TensorSpec, shape: Sequence[int]) -> None:
    if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
        raise ShapeError(
            f"{op}: {what} has the wrong shape, got {shapes.format_shape(spec.shape)}, "
            f"expected {shapes.format_shape(shape)}"
        )


def _expect_addable(op: str, spec: TensorSpec) -> None:
    if is_bool(spec.dtype):
        raise DTypeError(f"{op}: dtype is not accepted, got bool, expected integer or float")


def _wide_copy(x: np.ndarray) -> np.ndarray:
    """Return a copy in which sums are exact enough to be rounded once."""
    return x.astype(np.float64) if is_float(x.dtype) else x.copy()


# take


def _take_infer(specs: Specs, attrs: a.Axis) -> Specs:
    x, indices = specs
    expect_axis("take", attrs.axis, x.ndim)
    _expect_index("take", indices)
    shape = (*x.shape[: attrs.axis], *indices.shape, *x.shape[attrs.axis + 1 :])
    return (x.moved(shape),)


def _take_reference(arrays: Arrays, attrs: a.Axis) -> Arrays:
    x, indices = arrays
    where = wrap_indices("take", indices, x.shape[attrs.axis])
    return (np.asarray(np.take(x, where, attrs.axis)),)


def _take_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, indices), g, axis = ctx.inputs, grads[0], ctx.attrs.axis
    if g is None or not ctx.needs[0]:
        return (None, None)
    return (TAKE_BACKWARD(g, indices, axis=axis, size=x.shape[axis]), None)


def _take_backward_infer(specs: Specs, attrs: a.TakeBackward) -> Specs:
    g, indices = specs
    _expect_addable("take_backward", g)
    _expect_index("take_backward", indices)
    if not 0 <= attrs.axis <= g.ndim - indices.ndim:
        raise AttrError(
            f"take_backward: axis is out of range, got {attrs.axis}, "
            f"expected 0 to {g.ndim - indices.ndim}"
        )
    end = attrs.axis + indices.ndim
    expected = (*g.shape[: attrs.axis], *indices.shape, *g.shape[end:])
    _expect_shape("take_backward", "the gradient", g, expected)
    return (g.with_shape((*g.shape[: attrs.axis], attrs.size, *g.shape[end:])),)


def _take_backward_reference(arrays: Arrays, attrs: a.TakeBackward) -> Arrays:
    g, indices = arrays
    where = wrap_indices("take_backward", indices, int(attrs.size))
    axis, end = attrs.axis, attrs.axis + indices.ndim
    result = _wide_copy(np.zeros((*g.shape[:axis], int(attrs.size), *g.shape[end:]), g.dtype))
    lead: tuple[Any, ...] = (slice(None),) * axis
    for place in np.ndindex(*indices.shape):
        target = (*lead, where[place])
        source = (*lead, *place)
        result[target] += g[source]
    return (result.astype(g.dtype),)


def _take_backward_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g, indices = grads[0], ctx.inputs[1]
    if g is None or not ctx.needs[0]:
        return (None, None)
    return (TAKE(g, indices, axis=ctx.attrs.axis), None)


# gather, scatter, scatter_add


def _check_gather(op: str, x: TensorSpec, indices: TensorSpec, axis: int) -> None:
    expect_axis(op, axis, x.ndim)
    _expect_index(op, indices)
    fits = indices.ndim == x.ndim and all(
        int(indices.shape[i]) <= int(x.shape[i]) for i in range(x.ndim) if i != axis
    )
    if not fits:
        raise ShapeError(
            f"{op}: indices do not fit, got {shapes.format_shape(indices.shape)}, expected no "
            f"extent beyond {shapes.format_shape(x.shape)} on axes other than {axis}"
        )


def _gather_infer(specs: Specs, attrs: a.Axis) -> Specs:
    x, indices = specs
    _check_gather("gather", x, indices, attrs.axis)
    return (x.with_shape(indices.shape),)


def _scatter_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.Axis) -> Specs:
        x, indices, source = specs
        expect_same_dtype(name, (x, source))
        if name == "scatter_add":
            _expect_addable(name, x)
        _check_gather(name, x, indices, attrs.axis)
        _expect_shape(name, "the source", source, indices.shape)
        return (x.with_shape(x.shape),)

    return infer


def _gather_reference(arrays: Arrays, attrs: a.Axis) -> Arrays:
    x, indices = arrays
    where = wrap_indices("gather", indices, x.shape[attrs.axis])
    result = np.empty(indices.shape, x.dtype)
    for place in np.ndindex(*indices.shape):
        source = (*place[: attrs.axis], where[place], *place[attrs.axis + 1 :])
        result[place] = x[source]
    return (result,)


def _scatter_reference(name: str, add: bool) -> Any:
    def reference(arrays: Arrays, attrs: a.Axis) -> Arrays:
        x, indices, source = arrays
        where = wrap_indices(name, indices, x.shape[attrs.axis])
        result = _wide_copy(x) if add else x.copy()
        for place in np.ndindex(*indices.shape):
            target = (*place[: attrs.axis], where[place], *place[attrs.axis + 1 :])
            result[target] = result[target] + source[place] if add else source[place]
        return (result.astype(x.dtype),)

    return reference


def _gather_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, indices), g = ctx.inputs, grads[0]
    if g is None or not ctx.needs[0]:
        return (None, None)
    zeros = x.full(tuple(x.shape), 0.0)
    return (SCATTER_ADD(zeros, indices, g, axis=ctx.attrs.axis), None)


def _numbers(indices: Any) -> Any:
    """Number the elements of an index array in row-major order."""
    count = shapes.volume(indices.shape)
    flat = indices._apply(ARANGE, (), a.Arange(0.0, 1.0, count, "int64"))
    return RESHAPE(flat, shape=tuple(indices.shape))


def _only(mask: Any, g: Any) -> Any:
    return WHERE(mask, g, g.full((), 0.0))


def _scatter_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, indices, source), g, axis = ctx.inputs, grads[0], ctx.attrs.axis
    if g is None:
        return (None, None, None)
    dx = dsource = None
    if ctx.needs[0]:
        dx = SCATTER(g, indices, g.full(tuple(source.shape), 0.0), axis=axis)
    if ctx.needs[2]:
        # Of several writes to one place only the last reached the result.
        numbers = _numbers(indices)
        last = SCATTER(x.full(tuple(x.shape), -1, "int64"), indices, numbers, axis=axis)
        wrote = EQUAL(GATHER(last, indices, axis=axis), numbers)
        dsource = _only(wrote, GATHER(g, indices, axis=axis))
    return (dx, None, dsource)


def _scatter_add_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    indices, g = ctx.inputs[1], grads[0]
    if g is None:
        return (None, None, None)
    dsource = GATHER(g, indices, axis=ctx.attrs.axis) if ctx.needs[2] else None
    return (g if ctx.needs[0] else None, None, dsource)


# index, index_set, index_add


def _index_shape(op: str, x: TensorSpec, indices: Specs, count: int) -> tuple[int, ...]:
    """Return the shape that indexing the first ``count`` axes gives."""
    if not 1 <= count <= x.ndim or len(indices) != count:
        raise AttrError(
            f"{op}: wrong number of indices, got count {count} and {len(indices)} index arrays, "
            f"expected as many arrays as count, 1 to {x.ndim}"
        )
    for spec in indices:
        _expect_index(op, spec)
        _expect_shape(op, "an index array", spec, indices[0].shape)
    return (*indices[0].shape, *x.shape[count:])


def _index_infer(specs: Specs, attrs: a.Index) -> Specs:
    x = specs[0]
    return (x.with_shape(_index_shape("index", x, specs[1:], attrs.count)),)


def _index_write_infer(name: str) -> Any:
    def infer(specs: Specs, attrs: a.Index) -> Specs:
        x, value = specs[:2]
        expect_same_dtype(name, (x, value))
        if name == "index_add":
            _expect_addable(name, x)
        expected = _index_shape(name, x, specs[2:], attrs.count)
        _expect_shape(name, "the value", value, expected)
        return (x.with_shape(x.shape),)

    return infer


def wrap_all(op: str, indices: Arrays, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return one array of indices counted from the front per leading axis of ``shape``."""
    return tuple(wrap_indices(op, idx, shape[axis]) for axis, idx in enumerate(indices))


def _index_reference(arrays: Arrays, attrs: a.Index) -> Arrays:
    x, indices = arrays[0], arrays[1:]
    where = wrap_all("index", indices, x.shape)
    result = np.empty((*indices[0].shape, *x.shape[attrs.count :]), x.dtype)
    for place in np.ndindex(*indices[0].shape):
        result[place] = x[tuple(idx[place] for idx in where)]
    return (result,)


def _index_write_reference(name: str, add: bool) -> Any:
    def reference(arrays: Arrays, attrs: a.Index) -> Arrays:
        x, value, indices = arrays[0], arrays[1], arrays[2:]
        where = wrap_all(name, indices, x.shape)
        result = _wide_copy(x) if add else x.copy()
        for place in np.ndindex(*indices[0].shape):
            target = tuple(idx[place] for idx in where)
            result[target] = result[target] + value[place] if add else value[place]
        return (result.astype(x.dtype),)

    return reference


def _index_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, indices, g = ctx.inputs[0], ctx.inputs[1:], grads[0]
    nothing = (None,) * len(indices)
    if g is None or not ctx.needs[0]:
        return (None, *nothing)
    zeros = x.full(tuple(x.shape), 0.0)
    return (INDEX_ADD(zeros, g, *indices, count=ctx.attrs.count), *nothing)


def _index_set_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, value, *indices), g, count = ctx.inputs, grads[0], ctx.attrs.count
    nothing = (None,) * len(indices)
    if g is None:
        return (None, None, *nothing)
    dx = dvalue = None
    if ctx.needs[0]:
        dx = INDEX_SET(g, g.full(tuple(value.shape), 0.0), *indices, count=count)
    if ctx.needs[1]:
        numbers = _numbers(indices[0])
        unwritten = x.full(tuple(x.shape[:count]), -1, "int64")
        last = INDEX_SET(unwritten, numbers, *indices, count=count)
        wrote = EQUAL(INDEX(last, *indices, count=count), numbers)
        trailing = (1,) * (x.ndim - count)
        wrote = RESHAPE(wrote, shape=(*wrote.shape, *trailing))
        dvalue = _only(wrote, INDEX(g, *indices, count=count))
    return (dx, dvalue, *nothing)


def _index_add_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    indices, g = ctx.inputs[2:], grads[0]
    nothing = (None,) * len(indices)
    if g is None:
        return (None, None, *nothing)
    dvalue = INDEX(g, *indices, count=ctx.attrs.count) if ctx.needs[1] else None
    return (g if ctx.needs[0] else None, dvalue, *nothing)


# one_hot


def _one_hot_infer(specs: Specs, attrs: a.OneHot) -> Specs:
    _expect_index("one_hot", specs[0])
    if int(attrs.depth) < 1:
        raise AttrError(f"one_hot: depth is too small, got {attrs.depth}, expected at least 1")
    shape = (*specs[0].shape, attrs.depth)
    return (TensorSpec(shape, as_dtype(attrs.dtype), specs[0].device),)


def expect_classes(indices: np.ndarray, depth: int) -> None:
    """Raise IndexRangeError where a class index is not in [0, depth)."""
    wrong = (indices < 0) | (indices >= depth)
    if wrong.any():
        raise IndexRangeError(
            f"one_hot: index out of range, got {int(indices[wrong].reshape(-1)[0])}, "
            f"expected 0 to {depth - 1}"
        )


def _one_hot_reference(arrays: Arrays, attrs: a.OneHot) -> Arrays:
    expect_classes(arrays[0], int(attrs.depth))
    hot = arrays[0][..., None] == np.arange(int(attrs.depth))
    return (hot.astype(as_dtype(attrs.dtype)),)


def _indexing(
    name: str, infer: Any, reference: Any, grad: Any, attrs: type, n: int | tuple[int, int]
) -> Op:
    return Op(
        name,
        infer=infer,
        reference=reference,
        grad=grad,
        attrs=attrs,
        n_inputs=n,
        family="indexing",
        differentiable=grad is not None,
    )


TAKE = _indexing("take", _take_infer, _take_reference, _take_grad, a.Axis, 2)
TAKE_BACKWARD = _indexing(
    "take_backward",
    _take_backward_infer,
    _take_backward_reference,
    _take_backward_grad,
    a.TakeBackward,
    2,
)
GATHER = _indexing("gather", _gather_infer, _gather_reference, _gather_grad, a.Axis, 2)


def _scatter_op(name: str, add: bool, grad: Any) -> Op:
    return _indexing(name, _scatter_infer(name), _scatter_reference(name, add), grad, a.Axis, 3)


def _index_write_op(name: str, add: bool, grad: Any) -> Op:
    infer, reference = _index_write_infer(name), _index_write_reference(name, add)
    return _indexing(name, infer, reference, grad, a.Index, (3, -1))


SCATTER = _scatter_op("scatter", False, _scatter_grad)
SCATTER_ADD = _scatter_op("scatter_add", True, _scatter_add_grad)
INDEX = _indexing("index", _index_infer, _index_reference, _index_grad, a.Index, (2, -1))
INDEX_SET = _index_write_op("index_set", False, _index_set_grad)
INDEX_ADD = _index_write_op("index_add", True, _index_add_grad)
ONE_HOT = _indexing("one_hot", _one_hot_infer, _one_hot_reference, None, a.OneHot, 1)

OPS: tuple[Op, ...] = (
    TAKE, TAKE_BACKWARD, GATHER, SCATTER, SCATTER_ADD, INDEX, INDEX_SET, INDEX_ADD, ONE_HOT,
)  # fmt: skip
