"""Bring a call's arguments into the form ops take: operands that meet, pairs, axes, shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from .. import dtypes, shapes
from ..errors import AttrError, AttrTypeError, DTypeError, ShapeError, ShapeTypeError
from ..imperative.tensor import Tensor
from ..ops.operand import Operand
from ..registry import get_op

_SCALARS = (bool, int, float, np.generic)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def run(op: str, *operands: Any, **attrs: Any) -> Tensor:
    """Apply an op that has one output."""
    return cast(Tensor, get_op(op)(*operands, **attrs))


def run_many(op: str, *operands: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Apply an op that has several outputs."""
    return tuple(get_op(op)(*operands, **attrs))


def tensor(op: str, value: Any, what: str = "input") -> Tensor:
    """Return a value that must be a tensor.

    Raises:
        DTypeError: where it is none.
    """
    if isinstance(value, Operand):
        return cast(Tensor, value)
    raise DTypeError(
        f"{op}: {what} must be a tensor, got {type(value).__name__}, "
        "expected a Tensor: Tensor(x) makes one of an array or of numbers"
    )


def tensors(op: str, *values: Any) -> list[Tensor]:
    """Turn tensors, numpy arrays and Python scalars into tensors; scalars are weak.

    Raises:
        DTypeError: where none of them is a tensor, or one cannot become a tensor.
    """
    if all(isinstance(value, Operand) for value in values):
        return list(values)
    first = next((value for value in values if isinstance(value, Operand)), None)
    if first is None:
        got = ", ".join(type(value).__name__ for value in values)
        raise DTypeError(f"{op}: no input is a tensor, got {got}, expected at least one Tensor")
    device = first.device  # type: ignore[attr-defined]
    found: list[Any] = [
        Tensor(v, device=device) if isinstance(v, (np.ndarray, list, tuple)) else v for v in values
    ]
    meeting = dtypes.promote(*(v.dtype for v in found if isinstance(v, Operand)))
    return [
        v if isinstance(v, Operand) else _from_scalar(op, v, first, meeting)  # type: ignore[misc]
        for v in found
    ]


def _from_scalar(op: str, value: Any, like: Operand, meeting: dtypes.DType) -> Tensor:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, complex):
        return cast(Tensor, like.complex_scalar(plain))
    if not isinstance(value, _SCALARS) or not isinstance(plain, (bool, int, float)):
        raise DTypeError(
            f"{op}: input cannot become a tensor, got {type(value).__name__}, "
            "expected a Tensor, an array or a number"
        )
    if isinstance(plain, shapes.Dim):
        return cast(Tensor, like.extent(plain, dtypes.promote_scalar(meeting, int)))
    return cast(Tensor, like.full((), plain, dtypes.promote_scalar(meeting, scalar_kind(plain))))


def scalar_kind(value: bool | float) -> type:
    """Return bool, int or float, whichever a scalar's class derives from."""
    return bool if isinstance(value, bool) else int if isinstance(value, int) else float


def floating(value: Tensor) -> Tensor:
    """Return a floating or complex tensor as it is and any other as float32.

    A quantised one becomes the numbers that it stands for.
    """
    if dtypes.is_float(value.dtype) or dtypes.is_complex(value.dtype):
        return value
    quant = getattr(value, "qparams", None)
    if quant is None:
        return cast(Tensor, value.cast("float32"))
    how = {"scales": quant.scales, "zero_points": quant.zero_points, "axis": quant.axis}
    return run("dequantize", value, **how)


def is_image_of_bytes(value: Tensor) -> bool:
    """Tell whether elements are bytes themselves, and not integers that stand for numbers."""
    return dtypes.name_of(value.dtype) == "uint8" and value.qparams is None


def same_dtype(op: str, *values: Tensor) -> list[Tensor]:
    """Return tensors cast to the dtype in which they meet."""
    if not values:
        raise ShapeError(f"{op}: no input was given, expected at least one")
    want = dtypes.promote(*(value.dtype for value in values))
    return [cast(Tensor, value.cast(want)) for value in values]


def numbers_of(value: Any) -> Any:
    """Return what a tensor, an array or a numpy scalar holds as numbers; others as they are."""
    if isinstance(value, Operand):
        value = value.numpy()  # type: ignore[attr-defined]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def positions(op: str, value: Any, what: str = "index") -> Tensor:
    """Return integer positions in a dtype that picking ops take.

    Raises:
        DTypeError: where they are no tensor of integers.
    """
    found = tensor(op, value, what)
    if found.dtype.kind not in "iu":
        raise DTypeError(
            f"{op}: {what} must be an integer, got {found.dtype.name}, expected an integer dtype"
        )
    if found.dtype.name in ("int32", "int64"):
        return found
    wide = "int64" if found.dtype.name in ("uint32", "uint64") else "int32"
    return cast(Tensor, found.cast(wide))


def pair(op: str, what: str, value: Any, least: int = 0) -> tuple[int, int]:
    """Turn an int or two ints into (height, width).

    Raises:
        AttrError: where it is neither, or one is smaller than ``least``.
    """
    value = numbers_of(value)
    items = list(value) if isinstance(value, (tuple, list)) else [value, value]
    if len(items) != 2 or not _all_ints(items, least):
        raise AttrError(
            f"{op}: {what} is not valid, got {value!r}, expected an int or two ints >= {least}"
        )
    return as_int(items[0]), as_int(items[1])


def triple(op: str, what: str, value: Any, least: int = 0) -> tuple[int, int, int]:
    """Turn an int or three ints into (depth, height, width).

    Raises:
        AttrError: where it is neither, or one is smaller than ``least``.
    """
    value = numbers_of(value)
    items = list(value) if isinstance(value, (tuple, list)) else [value] * 3
    if len(items) != 3 or not _all_ints(items, least):
        raise AttrError(
            f"{op}: {what} is not valid, got {value!r}, expected an int or three ints >= {least}"
        )
    return as_int(items[0]), as_int(items[1]), as_int(items[2])


def _all_ints(items: Iterable[Any], least: int | None) -> bool:
    return all(_is_int(item) and (least is None or int(item) >= least) for item in items)


def is_pair(value: Any) -> bool:
    """Tell whether a value is a pair of ints of at least 0."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and _all_ints(value, 0)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def whole(op: str, what: str, value: Any, least: int | None = None) -> int:
    """Return an attribute that must be an int, keeping a symbolic extent.

    Raises:
        AttrError: where it is none, or smaller than ``least``; a fraction is not cut off, a text
            not read.
    """
    expected = "an int" if least is None else f"an int >= {least}"
    if not _is_int(value) and not _is_scalar_tensor(value):
        raise AttrTypeError(f"{op}: {what} must be an int, got {value!r}, expected {expected}")
    found = as_int(value)
    if least is not None and found < least:
        raise AttrError(f"{op}: {what} is out of range, got {found}, expected {expected}")
    return found


def real_number(
    op: str, what: str, value: Any, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return an attribute that must be a number from ``low`` to ``high``, and not NaN if bounded.

    Raises:
        AttrError: where it is none.
    """
    plain = isinstance(value, (int, float, np.integer, np.floating))
    if not plain and not (isinstance(value, (Operand, np.ndarray)) and len(value.shape) == 0):
        raise AttrTypeError(
            f"{op}: {what} must be a number, got {value!r}, expected {_numbers(low, high)}"
        )
    found = value if isinstance(value, (int, float)) else float(value)
    if (low > -math.inf or high < math.inf) and not low <= found <= high:
        raise AttrError(
            f"{op}: {what} is out of range, got {found}, expected {_numbers(low, high)}"
        )
    return found


def _numbers(low: float, high: float) -> str:
    if high < math.inf:
        return f"a number from {low} to {high}"
    return "a number" if low == -math.inf else f"a number >= {low}"


def share(op: str, what: str, value: Any) -> float:
    """Return an attribute that must be a number in [0, 1), such as a probability of dropping.

    Raises:
        AttrError: where it is none.
    """
    found = real_number(op, what, value, 0.0, 1.0)
    if found == 1:
        raise AttrError(f"{op}: {what} is out of range, got {found}, expected less than 1")
    return found


def extents(op: str, what: str, value: Any, least: int | None = 0) -> tuple[int, ...]:
    """Return an int, or several in a list, tuple or array, as a tuple of ints.

    Raises:
        AttrError: where it is neither, or one is smaller than ``least``.
    """
    value = numbers_of(value)
    items = value if isinstance(value, (tuple, list)) else (value,)
    if not _all_ints(items, least):
        bound = "" if least is None else f" >= {least}"
        raise AttrError(
            f"{op}: {what} is not valid, got {value!r}, expected an int{bound} or several"
        )
    return tuple(map(as_int, items))


def as_int(value: Any) -> int:
    """Turn an int-like into an int, keeping a symbolic extent."""
    return value if isinstance(value, int) else int(value)


def shape_of(op: str, shape: Any, what: str = "shape") -> shapes.Shape:
    """Turn an int, a sequence of ints or an integer tensor into a shape.

    Raises:
        ShapeTypeError: where it holds something else than ints.
    """
    if isinstance(shape, (Operand, np.ndarray)):
        array = shape.numpy() if isinstance(shape, Operand) else shape  # type: ignore[attr-defined]
        shape = array.reshape(-1).tolist()
    items = [shape] if _is_int(shape) else list(shape) if isinstance(shape, Iterable) else [None]
    if not all(_is_int(item) or _is_scalar_tensor(item) for item in items):
        raise ShapeTypeError(f"{op}: {what} is not valid, got {shape!r}, expected ints")
    return tuple(as_int(item) for item in items)


def _is_scalar_tensor(item: Any) -> bool:
    return isinstance(item, Operand) and len(item.shape) == 0 and item.dtype.kind in "iu"


def non_negative(op: str, shape: shapes.Shape) -> shapes.Shape:
    """Return a shape after checking that no extent is negative.

    Raises:
        ShapeError: where one is.
    """
    if any(int(extent) < 0 for extent in shape):
        raise ShapeError(
            f"{op}: an extent is negative, got {shapes.format_shape(shape)}, expected >= 0"
        )
    return shape


def same_shape(left: Sequence[int], right: Sequence[int]) -> bool:
    """Tell whether two shapes are equal, without fixing a symbolic extent."""
    return len(left) == len(right) and all(
        int(a) == int(b) for a, b in zip(left, right, strict=True)
    )


def choice(op: str, what: str, value: Any, allowed: Sequence[str]) -> str:
    """Return that of the allowed words which a given one is, whatever its case.

    Raises:
        AttrError: where it is none.

    >>> choice("interpolate", "mode", "BILINEAR", ("bilinear", "nearest"))
    'bilinear'
    """
    if value in allowed:
        return str(value)
    small = value.lower() if isinstance(value, str) else None
    for word in allowed:
        if word.lower() == small:
            return word
    raise AttrError(f"{op}: {what} is unknown, got {value!r}, expected {' or '.join(allowed)}")


def accepts_keepdim(function: _Function) -> _Function:
    """Let a function understand ``keepdim`` as another spelling of ``keepdims``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "keepdim" in kwargs:
            kwargs["keepdims"] = kwargs.pop("keepdim")
        return function(*args, **kwargs)

    return cast(_Function, wrapper)


def fixed(size: int) -> int:
    """Return an extent as plain int; a trace is told that its result depends on it."""
    return int(size) if size >= 0 else 0
