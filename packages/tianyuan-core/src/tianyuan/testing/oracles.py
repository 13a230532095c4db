"""Answers that share no code with the ops: scalar formulas in Python, sums by fsum, index loops."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype, is_float, part_of
from ..ops.codes import ELEMENTWISE
from .oracles_attention import attention, attention_backward, attention_heads
from .special import NUMPY

Arrays = Sequence[np.ndarray]
Oracle = Callable[[Arrays, Any], Sequence[np.ndarray]]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def _erf(x: float) -> float:
    """Integrate the density by Gauss-Legendre quadrature."""
    t = x * (_NODES + 1) / 2
    return float(2 / math.sqrt(math.pi) * np.sum(_WEIGHTS * np.exp(-t * t)) * x / 2)


def _share_below(x: float) -> float:
    """Integrate the normal density from the far left to x."""
    if x > 0:
        return 1 - _share_below(-x)
    t = x - 4 * (_NODES + 1)
    return float(4 / math.sqrt(2 * math.pi) * np.sum(_WEIGHTS * np.exp(-t * t / 2)))


def _gelu_backward(g: float, x: float) -> float:
    # Slopes do not vanish as shares do on the far left, so the shorter way from 0 is the exacter.
    share = 0.5 + _erf(x / math.sqrt(2)) / 2
    return g * (share + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _sigmoid(x: float) -> float:
    return math.exp(x) / (1 + math.exp(x))


def _hsigmoid(x: float) -> float:
    return min(max(x + 3, 0), 6) / 6


def _floor_div(a: Any, b: Any) -> Any:
    return a // b if b else 0


def _mod(a: Any, b: Any) -> Any:
    return a % b if b else 0


def _logaddexp(a: float, b: float) -> float:
    return max(a, b) + math.log(math.exp(a - max(a, b)) + math.exp(b - max(a, b)))


SCALAR: dict[str, Callable[..., Any]] = {
    "abs": abs, "neg": operator.neg, "sign": lambda x: (x > 0) - (x < 0), "floor": math.floor,
    "ceil": math.ceil, "round": round, "square": lambda x: x * x, "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5, "reciprocal": lambda x: 1 / x, "exp": math.exp,
    "expm1": math.expm1, "log": math.log, "log1p": math.log1p, "sin": math.sin, "cos": math.cos,
    "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "asinh": math.asinh, "acosh": math.acosh,
    "atanh": math.atanh, "erf": _erf, "relu": lambda x: x if x > 0 else 0,
    "relu6": lambda x: min(max(x, 0), 6), "sigmoid": _sigmoid, "hsigmoid": _hsigmoid,
    "hswish": lambda x: x * _hsigmoid(x), "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * _share_below(x),
    "gelu_backward": _gelu_backward,
    "softplus": lambda x: math.log1p(math.exp(x)), "isnan": lambda x: x != x,
    "isinf": lambda x: x in (math.inf, -math.inf), "logical_not": operator.not_,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floor_div": _floor_div, "mod": _mod, "pow": operator.pow, "maximum": max, "minimum": min,
    "atan2": math.atan2, "logaddexp": _logaddexp, "equal": operator.eq, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_xor": lambda a, b: bool(a) != bool(b), "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "left_shift": operator.lshift,
    "right_shift": operator.rshift, "bitwise_not": operator.invert,
    "where": lambda mask, x, y: x if mask else y, "complex": complex,
    "real": operator.attrgetter("real"), "imag": operator.attrgetter("imag"),
}  # fmt: skip
_TO_BOOL = frozenset(
    {"isnan", "isinf", "logical_not", "equal", "not_equal", "less", "less_equal", "greater",
     "greater_equal", "logical_and", "logical_or", "logical_xor"}
)  # fmt: skip


def _values(array: np.ndarray) -> list[Any]:
    """Return an array's elements as Python numbers."""
    wide = array.astype(np.float64) if is_float(array.dtype) else array
    found: list[Any] = wide.reshape(-1).tolist()
    return found


def _array(values: Sequence[Any], dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Make an array of Python numbers; integers wrap to the width of the dtype."""
    if is_float(dtype):
        return np.array(values, np.float64).astype(dtype).reshape(shape)
    if dtype.kind == "c":
        return np.array(values, np.complex128).astype(dtype).reshape(shape)
    if dtype.kind == "b":
        return np.array([bool(v) for v in values], np.bool_).reshape(shape)
    bits = 8 * dtype.itemsize
    low = 2 ** (bits - 1) if dtype.kind == "i" else 0
    wrapped = [(int(v) + low) % 2**bits - low for v in values]
    return np.array(wrapped, dtype).reshape(shape)


def elementwise(name: str, arrays: Arrays) -> np.ndarray:
    """Apply a scalar formula to every element of broadcast arrays."""
    spread = np.broadcast_arrays(*arrays)
    function = SCALAR[name]
    if name == "bitwise_not" and arrays[0].dtype.kind == "b":
        function = operator.not_
    if name in NUMPY and not all(np.isfinite(x).all() for x in spread if is_float(x.dtype)):
        function = _by_numpy(NUMPY[name])
    results = [function(*row) for row in zip(*map(_values, spread), strict=True)]
    dtype = np.dtype(np.bool_) if name in _TO_BOOL else arrays[-1].dtype
    if name in ("abs", "real", "imag"):
        dtype = part_of(dtype)
    if name == "complex":
        dtype = np.result_type(dtype, np.complex64)
    return _array(results, dtype, spread[0].shape)


def _by_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers that is numpy's, which knows NaN and infinities."""

    def apply(*numbers: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(function(*map(np.asarray, numbers))).item()

    return apply


def _elementwise(name: str) -> Oracle:
    return lambda arrays, attrs: [elementwise(name, arrays)]


def _fused(arrays: Arrays, attrs: Any) -> Arrays:
    kind = next((x.dtype for x in arrays if is_float(x.dtype)), arrays[0].dtype)
    registers = [*arrays, *(np.asarray(value).astype(kind) for value in attrs.constants)]
    for start in range(0, len(attrs.code), 4):
        name = ELEMENTWISE[attrs.code[start]]
        count = 3 if name == "where" else 2 if ELEMENTWISE.index(name) >= 39 else 1
        operands = attrs.code[start + 1 : start + 1 + count]
        registers.append(elementwise(name, [registers[i] for i in operands]))
    return [registers[i] for i in attrs.outputs]


# reductions


def _groups(x: np.ndarray, axes: Sequence[int]) -> Iterator[list[Any]]:
    """Yield the elements behind each element of a reduction's result, in row-major order."""
    kept = [i for i in range(x.ndim) if i not in axes]
    for place in np.ndindex(*(x.shape[i] for i in kept)):
        where: list[Any] = [slice(None)] * x.ndim
        for axis, index in zip(kept, place, strict=True):
            where[axis] = index
        yield _values(np.asarray(x[tuple(where)]))


def _left(x: np.ndarray, axes: Sequence[int], keepdims: bool) -> list[int]:
    if keepdims:
        return [1 if i in axes else n for i, n in enumerate(x.shape)]
    return [n for i, n in enumerate(x.shape) if i not in axes]


def _reduce(function: Callable[[list[Any]], Any]) -> Oracle:
    def oracle(arrays: Arrays, attrs: Any) -> Arrays:
        x = arrays[0]
        values = [function(group) for group in _groups(x, attrs.axes)]
        return [_array(values, x.dtype, _left(x, attrs.axes, attrs.keepdims))]

    return oracle


def _sum(values: list[Any]) -> Any:
    exact = values and isinstance(values[0], float) and all(map(math.isfinite, values))
    return math.fsum(values) if exact else sum(values)


def _mean(values: list[float]) -> float:
    return float(_sum(values)) / len(values) if values else math.nan


def _extreme(pick: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: math.nan if any(v != v for v in values) else pick(values)


def _logsumexp(values: list[float]) -> float:
    if not values:
        return -math.inf
    top = float(_extreme(max)(values))
    if not math.isfinite(top):
        return top
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def _arg(best: Callable[[Any, Any], bool]) -> Oracle:
    def search(values: list[Any]) -> int:
        found = 0
        for i, value in enumerate(values):
            if value != value:
                return i
            if best(value, values[found]):
                found = i
        return found

    def oracle(arrays: Arrays, attrs: Any) -> Arrays:
        x = arrays[0]
        values = [search(group) for group in _groups(x, (attrs.axis,))]
        return [_array(values, np.dtype(np.int32), _left(x, (attrs.axis,), attrs.keepdims))]

    return oracle


def _sum_to(arrays: Arrays, attrs: Any) -> Arrays:
    x, target = arrays[0], attrs.shape
    boxes: dict[tuple[int, ...], list[Any]] = {place: [] for place in np.ndindex(*target)}
    lead = x.ndim - len(target)
    for place, value in zip(np.ndindex(*x.shape), _values(x), strict=True):
        boxes[tuple(i % n for i, n in zip(place[lead:], target, strict=True))].append(value)
    return [_array([_sum(box) for box in boxes.values()], x.dtype, target)]


def _lanes(function: Callable[..., Sequence[Any]]) -> Oracle:
    """Apply a function of Python lists along an axis."""

    def oracle(arrays: Arrays, attrs: Any) -> Arrays:
        moved = [np.moveaxis(x, attrs.axis, -1) for x in arrays]
        result = np.empty(moved[0].shape, arrays[0].dtype)
        for place in np.ndindex(*moved[0].shape[:-1]):
            lane = function(*(_values(m[place]) for m in moved))
            result[place] = _array(lane, arrays[0].dtype, (len(lane),))
        return [np.moveaxis(result, -1, attrs.axis)]

    return oracle


def _softmax(lane: list[float]) -> list[float]:
    powers = [math.exp(v - max(lane)) for v in lane]
    return [p / math.fsum(powers) for p in powers]


def _log_softmax(lane: list[float]) -> list[float]:
    total = _logsumexp(lane)
    return [v - total for v in lane]


def _softmax_backward(y: list[float], g: list[float]) -> list[float]:
    jacobian = np.diag(y) - np.outer(y, y)
    return list(jacobian @ np.array(g))


def _log_softmax_backward(y: list[float], g: list[float]) -> list[float]:
    jacobian = np.eye(len(y)) - np.outer(np.ones(len(y)), np.exp(y))
    return list(jacobian.T @ np.array(g))


# movement


def _grid(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    return np.ix_(*(s + np.arange(n) * t for s, n, t in zip(starts, sizes, steps, strict=True)))


def _padded_numbers(shape: Sequence[int], attrs: Any) -> np.ndarray:
    """Return, for each position of the padded array, the flat number of its source, or -1."""
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))
    for axis, (n, before, after) in enumerate(zip(shape, attrs.before, attrs.after, strict=True)):
        along = np.arange(-before, n + after)
        inside = (along >= 0) & (along < n)
        if attrs.mode == "reflect":
            # A triangle wave of period 2 (n - 1).
            period = max(2 * (n - 1), 1)
            along = (n - 1) - np.abs((along % period) - (n - 1)) if n > 1 else along * 0
        elif attrs.mode == "edge":
            along = np.clip(along, 0, max(n - 1, 0))
        picked = np.take(numbers, np.where(inside, along, 0), axis) if n else None
        if attrs.mode != "constant" and n:
            numbers = np.take(numbers, along, axis)
            continue
        grown = [*numbers.shape[:axis], len(along), *numbers.shape[axis + 1 :]]
        mask = inside.reshape(-1, *(1,) * (numbers.ndim - axis - 1))
        numbers = np.full(grown, -1) if picked is None else np.where(mask, picked, -1)
    return numbers


def _pad(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    numbers = _padded_numbers(x.shape, attrs)
    values = _values(x)
    filled = [values[n] if n >= 0 else attrs.value for n in numbers.reshape(-1).tolist()]
    return [_array(filled, x.dtype, numbers.shape)]


def _pad_backward(arrays: Arrays, attrs: Any) -> Arrays:
    g = arrays[0]
    shape = [n - p - q for n, p, q in zip(g.shape, attrs.before, attrs.after, strict=True)]
    boxes: list[list[Any]] = [[] for _ in range(int(np.prod(shape)))]
    for number, value in zip(_padded_numbers(shape, attrs).reshape(-1), _values(g), strict=True):
        if number >= 0:
            boxes[number].append(value)
    return [_array([_sum(box) for box in boxes], g.dtype, shape)]


def _slice_backward(arrays: Arrays, attrs: Any) -> Arrays:
    result = np.zeros(attrs.shape, arrays[0].dtype)
    result[_grid(attrs.starts, arrays[0].shape, attrs.steps)] = arrays[0]
    return [result]


def _slice_set(arrays: Arrays, attrs: Any) -> Arrays:
    result = arrays[0].copy()
    result[_grid(attrs.starts, attrs.sizes, attrs.steps)] = arrays[1]
    return [result]


def _concat(arrays: Arrays, attrs: Any) -> Arrays:
    lanes = [list(np.moveaxis(x, attrs.axis, 0)) for x in arrays]
    return [np.stack([part for lane in lanes for part in lane], axis=attrs.axis)]


def _reshape(arrays: Arrays, attrs: Any) -> Arrays:
    return [np.array(list(arrays[0].flat), arrays[0].dtype).reshape(attrs.shape)]


def _transpose(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    result = np.empty([x.shape[axis] for axis in attrs.perm], x.dtype)
    for place in np.ndindex(*result.shape):
        result[place] = x[tuple(place[attrs.perm.index(axis)] for axis in range(x.ndim))]
    return [result]


def _broadcast_to(arrays: Arrays, attrs: Any) -> Arrays:
    return [np.array(np.ones(attrs.shape, np.bool_) * arrays[0]).astype(arrays[0].dtype)]


# indexing and sorting


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_float(x.dtype) else x.copy()


def _open(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Return the full index of each element that an index array along one axis addresses."""
    grid = np.indices(indices.shape)
    return tuple(indices if i == axis else grid[i] for i in range(indices.ndim))


def _take(arrays: Arrays, attrs: Any) -> Arrays:
    where = (*(slice(None),) * attrs.axis, arrays[1])
    return [arrays[0][where]]


def _take_backward(arrays: Arrays, attrs: Any) -> Arrays:
    g, indices = arrays
    axis, end = attrs.axis, attrs.axis + indices.ndim
    total = _wide(np.zeros((*g.shape[:axis], attrs.size, *g.shape[end:]), g.dtype))
    np.add.at(total, (*(slice(None),) * axis, indices), g.astype(total.dtype))
    return [total.astype(g.dtype)]


def _last_write(x: np.ndarray, places: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
    """Write from the last place to the first, leaving alone what is written already."""
    result, written = np.array(x), np.zeros(x.shape, np.bool_)
    for spot in reversed(list(np.ndindex(*places[0].shape))):
        target = tuple(p[spot] for p in places)
        if not np.all(written[target]):
            result[target], written[target] = values[spot], True
    return np.asarray(result)


def _added(x: np.ndarray, places: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
    total = _wide(x)
    np.add.at(total, places, values.astype(total.dtype))
    return np.asarray(total.astype(x.dtype))


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    keys = np.moveaxis(x.astype(np.float64), axis, -1)
    missing = np.isnan(keys)
    if descending:
        keys, missing = -keys, ~missing
    position = np.broadcast_to(np.arange(keys.shape[-1]), keys.shape)
    keys = np.where(np.isnan(keys), 0, keys)
    return np.asarray(np.moveaxis(np.lexsort((position, keys, missing), axis=-1), -1, axis))


def _sorted(arrays: Arrays, attrs: Any) -> Arrays:
    x, axis = arrays[0], attrs.axis
    keep = getattr(attrs, "k", x.shape[axis])
    order = np.take(_order(x, axis, attrs.descending), np.arange(keep), axis)
    return [np.take_along_axis(x, order, axis), order.astype(np.int32)]


# values from attributes, and copies


def _cast(arrays: Arrays, attrs: Any) -> Arrays:
    return [_array(_values(arrays[0]), as_dtype(attrs.dtype), arrays[0].shape)]


def _arange(arrays: Arrays, attrs: Any) -> Arrays:
    values = list(itertools.islice(itertools.count(), attrs.count))
    return [_array([attrs.start + attrs.step * i for i in values], as_dtype(attrs.dtype), (-1,))]


def _full(arrays: Arrays, attrs: Any) -> Arrays:
    count = math.prod(attrs.shape)
    return [_array([attrs.value] * count, as_dtype(attrs.dtype), attrs.shape)]


def _same(arrays: Arrays, attrs: Any) -> Arrays:
    return [arrays[0].copy()]


ORACLES: dict[str, Oracle] = {
    **{name: _elementwise(name) for name in SCALAR},
    "fused_elementwise": _fused,
    "cast": _cast,
    "copy": _same,
    "relayout": _same,
    "sum": _reduce(_sum),
    "prod": _reduce(math.prod),
    "mean": _reduce(_mean),
    "max": _reduce(_extreme(max)),
    "min": _reduce(_extreme(min)),
    "logsumexp": _reduce(_logsumexp),
    "argmax": _arg(operator.gt),
    "argmin": _arg(operator.lt),
    "sum_to": _sum_to,
    "softmax": _lanes(_softmax),
    "log_softmax": _lanes(_log_softmax),
    "softmax_backward": _lanes(_softmax_backward),
    "log_softmax_backward": _lanes(_log_softmax_backward),
    "cumsum": _lanes(lambda lane: list(itertools.accumulate(lane))),
    "cumprod": _lanes(lambda lane: list(itertools.accumulate(lane, operator.mul))),
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "pad": _pad,
    "pad_backward": _pad_backward,
    "slice": lambda arrays, at: [arrays[0][_grid(at.starts, at.sizes, at.steps)]],
    "slice_backward": _slice_backward,
    "slice_set": _slice_set,
    "take": _take,
    "take_backward": _take_backward,
    "gather": lambda arrays, at: [arrays[0][_open(arrays[1], at.axis)]],
    "scatter": lambda arrays, at: [_last_write(arrays[0], _open(arrays[1], at.axis), arrays[2])],
    "scatter_add": lambda arrays, at: [_added(arrays[0], _open(arrays[1], at.axis), arrays[2])],
    "index": lambda arrays, at: [arrays[0][tuple(arrays[1:])]],
    "index_set": lambda arrays, at: [_last_write(arrays[0], tuple(arrays[2:]), arrays[1])],
    "index_add": lambda arrays, at: [_added(arrays[0], tuple(arrays[2:]), arrays[1])],
    "one_hot": lambda arrays, at: [np.eye(at.depth)[arrays[0]].astype(as_dtype(at.dtype))],
    "sort": _sorted,
    "topk": _sorted,
    "full": _full,
    "arange": _arange,
    "eye": lambda arrays, at: [np.eye(at.rows, at.cols, at.k).astype(as_dtype(at.dtype))],
    "attention": attention,
    "attention_backward": attention_backward,
    "attention_heads": attention_heads,
}
