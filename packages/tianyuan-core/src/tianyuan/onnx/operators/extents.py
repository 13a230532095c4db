"""Shape arithmetic on known values: extents that may be symbolic, text, and dtypes tensors lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import shapes
from ...shapes import Dim
from ..node import Node
from ..table import symbolic
from .common import Array, extents, normal_axes, normal_axis
from .joining import slice_region
from .shape import resolve


def _objects(items: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _spread(*arrays: Array) -> tuple[list[list[Any]], tuple[int, ...]]:
    wide = np.broadcast_arrays(*arrays)
    return [list(array.reshape(-1)) for array in wide], wide[0].shape


def _number(item: Any) -> Any:
    return item if isinstance(item, Dim) else int(item)


def _whole(*arrays: Array) -> bool:
    return all(array.dtype == object or array.dtype.kind in "iub" for array in arrays)


def _enter_arithmetic(name: str, function: Any) -> None:
    @symbolic(name)
    def apply(node: Node, *arrays: Array) -> Any:
        if not _whole(*arrays):
            return NotImplemented
        total = arrays[0]
        for array in arrays[1:]:
            (left, right), shape = _spread(total, array)
            pairs = zip(left, right, strict=True)
            total = _objects([function(_number(a), _number(b)) for a, b in pairs], shape)
        return total


def _divided(a: Any, b: Any) -> Any:
    if int(b) == 0:
        raise ZeroDivisionError("division of an extent by zero")
    return a // b if (int(a) >= 0) == (int(b) > 0) else -(-a // b)


def _extreme(name: str) -> Any:
    def choose(a: Any, b: Any) -> Any:
        if not shapes.symbols_of(a) and not shapes.symbols_of(b):
            return max(int(a), int(b)) if name == "max" else min(int(a), int(b))
        value = max(int(a), int(b)) if name == "max" else min(int(a), int(b))
        return Dim(value, (name, shapes.expr_of(a), shapes.expr_of(b)))

    return choose


_enter_arithmetic("Add", lambda a, b: a + b)
_enter_arithmetic("Sub", lambda a, b: a - b)
_enter_arithmetic("Mul", lambda a, b: a * b)
_enter_arithmetic("Div", _divided)
_enter_arithmetic("Mod", lambda a, b: a % b)
_enter_arithmetic("Max", _extreme("max"))
_enter_arithmetic("Min", _extreme("min"))


@symbolic("Neg")
def _neg(node: Node, x: Array) -> Any:
    return _objects([-item for item in x.reshape(-1)], x.shape)


@symbolic("Equal")
def _equal(node: Node, a: Array, b: Array) -> Any:
    (left, right), shape = _spread(a, b)
    return np.array([_same(x, y) for x, y in zip(left, right, strict=True)], bool).reshape(shape)


def _same(a: Any, b: Any) -> bool:
    # No extent is negative, whatever its symbols stand for.
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Dim) and not isinstance(other, Dim) and int(other) < 0:
            return False
    return bool(a == b)


@symbolic("Where")
def _where(node: Node, mask: Array, x: Array, y: Array) -> Any:
    (chosen, left, right), shape = _spread(mask, x, y)
    return _objects([a if c else b for c, a, b in zip(chosen, left, right, strict=True)], shape)


@symbolic("Squeeze")
def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Any:
    given = node.ints("axes", None) if axes is None else tuple(extents(axes))
    return np.squeeze(x, None if given is None else normal_axes(given, x.ndim))


@symbolic("Unsqueeze")
def _unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Any:
    given = node.ints("axes") if axes is None else tuple(extents(axes))
    return np.expand_dims(x, normal_axes(given, x.ndim + len(given)))


@symbolic("Reshape")
def _reshape(node: Node, x: Array, target: Array) -> Any:
    if target.dtype == object:
        return NotImplemented
    return x.reshape(tuple(map(int, resolve(x.shape, extents(target), node.flag("allowzero")))))


@symbolic("Flatten")
def _flatten(node: Node, x: Array) -> Any:
    axis = node.int("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@symbolic("Transpose")
def _transpose(node: Node, x: Array) -> Any:
    return x.transpose(node.ints("perm", None))


@symbolic("Concat")
def _concat(node: Node, *arrays: Array) -> Any:
    return np.concatenate(arrays, axis=node.int("axis"))


@symbolic("Gather")
def _gather(node: Node, x: Array, indices: Array) -> Any:
    if indices.dtype == object:
        return NotImplemented
    # A single element would lose its symbol, so it is picked as a vector first.
    axis = normal_axis(node.int("axis", 0), x.ndim)
    found = np.take(x, indices.reshape(-1), axis=axis)
    return found.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


@symbolic("Slice")
def _slice(node: Node, x: Array, *bounds: Array | None) -> Any:
    if any(bound is not None and bound.dtype == object for bound in bounds):
        return NotImplemented
    if bounds:
        starts, ends = extents(bounds[0]), extents(bounds[1])  # type: ignore[arg-type]
        axes = extents(bounds[2]) if len(bounds) > 2 and bounds[2] is not None else None
        steps = extents(bounds[3]) if len(bounds) > 3 and bounds[3] is not None else None
    else:
        starts, ends = list(node.ints("starts")), list(node.ints("ends"))
        axes, steps = node.ints("axes", None), None
    chosen = normal_axes(range(len(starts)) if axes is None else axes, x.ndim)
    for place, axis in enumerate(chosen):
        step = 1 if steps is None else int(steps[place])
        first, count = slice_region(starts[place], ends[place], step, x.shape[axis])
        x = np.take(x, [int(first) + step * k for k in range(int(count))], axis=axis)
    return x


@symbolic("Split")
def _split(node: Node, x: Array, sizes: Array | None = None) -> Any:
    if sizes is not None and sizes.dtype == object:
        return NotImplemented
    axis = node.int("axis", 0)
    given = list(node.ints("split", ())) if sizes is None else extents(sizes)
    if not given:
        return tuple(np.array_split(x, node.int("num_outputs", len(node.outputs)), axis))
    return tuple(np.split(x, np.cumsum([int(n) for n in given])[:-1], axis))


@symbolic("Expand")
def _expand(node: Node, x: Array, target: Array) -> Any:
    shape = np.broadcast_shapes(x.shape, tuple(map(int, extents(target))))
    if any(isinstance(n, Dim) for n in extents(target)):
        return NotImplemented
    return np.broadcast_to(x, shape).copy()


@symbolic("Tile")
def _tile(node: Node, x: Array, repeats: Array) -> Any:
    return NotImplemented if repeats.dtype == object else np.tile(x, repeats)


def _enter_reduction(name: str, function: Any) -> None:
    @symbolic(name)
    def apply(node: Node, x: Array, axes: Array | None = None) -> Any:
        given = node.ints("axes", None) if axes is None else tuple(extents(axes))
        if x.ndim != 1 or given not in (None, (), (0,), (-1,)):
            return NotImplemented
        total = x[0]
        for item in x[1:]:
            total = function(total, item)
        return _objects([total], (1,) if node.flag("keepdims", True) else ())


_enter_reduction("ReduceProd", lambda a, b: a * b)
_enter_reduction("ReduceSum", lambda a, b: a + b)
_enter_reduction("ReduceMax", _extreme("max"))
_enter_reduction("ReduceMin", _extreme("min"))
