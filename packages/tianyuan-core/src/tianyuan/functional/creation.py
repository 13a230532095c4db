"""Create tensors from shapes and numbers; the dtype is float32 unless said otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .. import dtypes, shapes
from ..device import get_default_device
from ..errors import AttrError, AttrTypeError, ShapeError
from ..imperative.tensor import Tensor, create
from ..ops.operand import Operand, fill
from ..registry import get_op
from .arguments import as_int, non_negative, run, scalar_kind, shape_of, tensor

_EXACT = 2**53  # beyond, a double does not hold every integer


def _make(op: str, device: Any, **attrs: Any) -> Tensor:
    found = get_op(op)
    made = cast(Tensor, create(found, found.attrs(**attrs)))
    return made.to(get_default_device() if device is None else device)


def _shape(op: str, shape: Any) -> shapes.Shape:
    return non_negative(op, shape_of(op, shape))


def full(shape: Any, value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Create a tensor of one value; without ``dtype`` an int gives int32 and a bool bool.

    Raises:
        ShapeError: where the shape does not consist of non-negative ints.
        NumberRangeError: where the value does not fit an integer dtype.

    >>> full((2,), 7).tolist()
    [7, 7]
    """
    extents = _shape("full", shape)
    if isinstance(value, (Operand, np.ndarray)):
        filled = value if isinstance(value, Operand) else Tensor(value, device=device)
        filled = filled if dtype is None else filled.cast(dtype)
        return run("broadcast_to", filled, shape=extents)
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, (bool, int, float)):
        raise AttrTypeError(
            f"full: value must be a number, got {type(value).__name__}, expected a number"
        )
    if dtype is None:
        dtype = dtypes.promote_scalar(dtypes.as_dtype("bool"), scalar_kind(plain))
    want = dtypes.as_dtype(dtype)
    return cast(
        Tensor,
        fill(
            "full",
            plain,
            want,
            lambda number: _make("full", device, shape=extents, value=number, dtype=want.name),
        ),
    )


def ones(shape: Any, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Create a tensor of ones.

    >>> ones((2,)).tolist()
    [1.0, 1.0]
    """
    return full(_shape("ones", shape), 1, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Create a tensor of zeros.

    >>> zeros((2,), dtype="int8").tolist()
    [0, 0]
    """
    return full(_shape("zeros", shape), 0, dtype=dtype, device=device)


def full_like(inp: Tensor, value: Any) -> Tensor:
    """Create a tensor of one value with the shape, dtype and device of another.

    Of a quantised tensor, integers at the same scale that stand for the value.

    >>> full_like(Tensor([1, 2]), 5).tolist()
    [5, 5]
    """
    quant = tensor("full_like", inp).qparams
    if quant is None:
        return cast(Tensor, inp.full(inp.shape, value))
    numbers = inp.full(inp.shape, value, "float32")
    return run(
        "quantize", numbers, scales=quant.scales, zero_points=quant.zero_points, axis=quant.axis,
        dtype=inp.dtype.name,
    )  # fmt: skip


def ones_like(inp: Tensor) -> Tensor:
    """Create a tensor of ones with the shape, dtype and device of another.

    >>> ones_like(Tensor([3, 4])).tolist()
    [1, 1]
    """
    return full_like(tensor("ones_like", inp), 1)


def zeros_like(inp: Tensor) -> Tensor:
    """Create a tensor of zeros with the shape, dtype and device of another.

    >>> zeros_like(Tensor([3.0])).tolist()
    [0.0]
    """
    return full_like(tensor("zeros_like", inp), 0)


def arange(
    start: Any = 0, stop: Any = None, step: Any = 1, *, dtype: Any = "float32", device: Any = None
) -> Tensor:
    """Create the numbers from ``start`` to below ``stop`` (0 to below ``start`` without it).

    Raises:
        AttrError: where the step is zero, or a bound is NaN or infinite.
        NumberRangeError: where a number does not fit an integer dtype.

    >>> arange(1, 7, 2, dtype="int32").tolist()
    [1, 3, 5]
    """
    first, last, step = (_number("arange", v) for v in (start, 0 if stop is None else stop, step))
    if stop is None:
        first, last = 0, first
    if step == 0:
        raise AttrError("arange: step must not be zero")
    want, count = dtypes.as_dtype(dtype), _count(first, last, step)
    if int(count) > 0:
        for end in (_plain(first), _plain(first) + _plain(step) * (int(count) - 1)):
            dtypes.expect_fits("arange", end, want)
    dynamic = any(isinstance(v, shapes.Dim) for v in (first, step))
    if dynamic or (want.kind in "iu" and any(abs(_plain(v)) > _EXACT for v in (first, last, step))):
        row = _make("arange", device, start=0.0, step=1.0, count=count, dtype=want.name)
        return cast(Tensor, row * step + first)
    return _make(
        "arange", device, start=float(first), step=float(step), count=count, dtype=want.name
    )


def _number(op: str, value: Any) -> Any:
    if isinstance(value, Operand):
        value = value.item()  # type: ignore[attr-defined]
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float)):
        raise AttrTypeError(f"{op}: bounds must be numbers, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise AttrError(f"{op}: bounds must be finite, got {value}")
    return value


def _plain(value: Any) -> Any:
    """Return a number without the symbol that it may carry."""
    return int(value) if isinstance(value, shapes.Dim) else value


def _count(first: Any, last: Any, step: Any) -> int:
    """Return how many steps fit before ``last``; symbolic extents stay so."""
    if not all(isinstance(value, int) for value in (first, last, step)):
        fitting: int = math.ceil((last - first) / step)
        return max(0, fitting)
    span, stride = (last - first, step) if int(step) > 0 else (first - last, -step)
    count: int = (span + (stride - 1)) // stride
    return count if int(count) > 0 else 0


def linspace(
    start: Any, stop: Any, num: int, *, dtype: Any = "float32", device: Any = None
) -> Tensor:
    """Create ``num`` evenly spaced numbers from ``start`` to ``stop``, both included.

    Raises:
        AttrError: where ``num`` is not positive.
        NumberRangeError: where an end does not fit an integer dtype.

    >>> linspace(0, 1, 3).tolist()
    [0.0, 0.5, 1.0]
    """
    first, last = _number("linspace", start), _number("linspace", stop)
    count = as_int(_number("linspace", num))
    if int(count) <= 0:
        raise AttrError(f"linspace: num must be positive, got {count}")
    want = dtypes.as_dtype(dtype)
    for end in (_plain(first), _plain(last)):
        dtypes.expect_fits("linspace", end, want)
    step = 0.0 if int(count) == 1 else (last - first) / (int(count) - 1)
    made = "float64" if want.name == "float64" else "float32"
    row = _make("arange", device, start=float(first), step=float(step), count=count, dtype=made)
    return cast(Tensor, row.cast(want))


def eye(
    N: int | Sequence[int], M: int | None = None, *, dtype: Any = "float32", device: Any = None
) -> Tensor:
    """Create an (N, M) matrix, square without M, with ones on the main diagonal.

    Both extents may also be given as one pair, list or tensor.

    Raises:
        ShapeError: where an extent is negative, or there are more than two.

    >>> eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    extents = non_negative("eye", shape_of("eye", N if M is None else (N, M)))
    if len(extents) not in (1, 2):
        raise ShapeError(f"eye: expected one or two extents, got {shapes.format_shape(extents)}")
    rows, cols = extents[0], extents[-1]
    return _make("eye", device, rows=rows, cols=cols, k=0, dtype=dtypes.as_dtype(dtype).name)
