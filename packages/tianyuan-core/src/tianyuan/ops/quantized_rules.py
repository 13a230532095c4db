"""Fix the arithmetic that quantised ops share: rescaling, rounding, clamping and its checks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, name_of
from ..errors import AttrError, DTypeError, ShapeError
from ..floats import FloatList
from ..op import Floats, Ints, QuantParams, TensorSpec

EIGHT_BITS = ("int8", "uint8")
STORAGE = (*EIGHT_BITS, "int32")
ACCUMULATOR_LIMIT = 2**31 - 1

_SMALLEST = 2.0**-126  # the least normal float32: denormals may be flushed on some machines
_LARGEST = float(np.finfo(np.float32).max)


def ratio(numerator: float, denominator: float = 1.0) -> float:
    """Return numerator / denominator rounded once to float32, which may leave its range."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(float(numerator) / float(denominator)))


def ratios(numerators: np.ndarray, denominator: float) -> Floats | None:
    """Return float64 numerators over a denominator, each rounded once, or None if one is no factor.

    As ``ratio`` does for one, without its cost for each of thousands.
    """
    with np.errstate(over="ignore", under="ignore"):
        found: list[float] = (numerators / denominator).astype(np.float32).tolist()
    return tuple(found) if are_factors(tuple(found)) else None


def multiplier(numerator: float, denominator: float = 1.0) -> float:
    """Return the float32 factor that rescales an accumulator: numerator / denominator.

    Both are float64 products of float32 scales, as in ``multiplier(s_x * s_w, s_y)``, so that the
    factor is rounded once.

    Raises:
        AttrError: where it lies outside the normal range of float32.
    """
    value = ratio(numerator, denominator)
    check_factor("multiplier", "factor", value)
    return value


@cache
def quant_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of a storage dtype."""
    info = np.iinfo(as_dtype(dtype))
    return int(info.min), int(info.max)


def is_factor(value: Any) -> bool:
    """Tell whether a scale or multiplier is a positive normal float32 number."""
    if not isinstance(value, (int, float)) or not _SMALLEST <= value <= _LARGEST:
        return False
    return float(np.float32(value)) == value


def check_factor(op: str, what: str, value: float) -> None:
    """Raise AttrError unless a scale or multiplier is a positive normal float32 number."""
    if not is_factor(value):
        raise AttrError(
            f"{op}: {what} is no positive normal float32 number, got {value!r}, "
            f"expected {_SMALLEST:.3g} to {_LARGEST:.3g}, rounded to float32"
        )


def check_factors(op: str, what: str, values: Floats, counts: Sequence[int]) -> None:
    """Raise AttrError unless there are as many factors as one of ``counts``, each valid."""
    check_length(op, what, values, counts)
    if not are_factors(values):
        for value in values:
            check_factor(op, what, value)


def are_factors(values: Floats) -> bool:
    """Tell whether there are floats, and all are positive normal float32 numbers."""
    if not isinstance(values, FloatList) and set(map(type, values)) != {float}:
        return False
    # Checked first: within the range, rounding neither overflows nor underflows.
    if not (min(values) >= _SMALLEST and max(values) <= _LARGEST):
        return False
    if isinstance(values, FloatList):
        return values.is_float32
    # Not as one of numpy: that takes longer for less than thousands.
    return array("f", values).tolist() == list(values)


def check_length(op: str, what: str, values: Sequence[Any], counts: Sequence[int]) -> None:
    """Raise AttrError unless a list has one of the lengths."""
    if len(values) not in counts:
        raise AttrError(
            f"{op}: wrong number of {what}, got {len(values)}, "
            f"expected {' or '.join(map(str, sorted(set(counts))))}"
        )


def check_zero_points(op: str, what: str, values: Ints, dtype: np.dtype) -> None:
    """Raise AttrError unless every zero point is a value of the storage dtype."""
    least, largest = quant_range(name_of(dtype))
    for value in (min(values, default=least), max(values, default=least)):
        if not least <= value <= largest:
            raise AttrError(
                f"{op}: {what} is out of range, got {value}, expected {least} to {largest}"
            )


def check_storage(
    op: str, spec: TensorSpec, what: str = "input", allowed: Sequence[str] = EIGHT_BITS
) -> None:
    """Raise DTypeError unless a spec has one of the storage dtypes."""
    if name_of(spec.dtype) not in allowed:
        raise DTypeError(
            f"{op}: {what} has the wrong dtype, got {spec.dtype.name}, "
            f"expected {' or '.join(allowed)}"
        )


def check_input_zero_point(op: str, spec: TensorSpec, zero_point: int, what: str = "input") -> None:
    """Raise AttrError where attributes contradict what is known of an input's quantisation."""
    check_zero_points(op, f"zero point of the {what}", (zero_point,), spec.dtype)
    quant = spec.quant
    if quant is None:
        return
    if quant.axis >= 0:
        raise AttrError(
            f"{op}: {what} must be quantised per tensor, got axis {quant.axis}, expected -1"
        )
    if quant.zero_points[0] != zero_point:
        raise AttrError(
            f"{op}: {what} has another zero point, got {zero_point}, "
            f"expected {quant.zero_points[0]}"
        )


def check_output(op: str, attrs: Any, allowed: Sequence[str] = EIGHT_BITS) -> None:
    """Check the scale, zero point, dtype and bounds that an op's result has."""
    if attrs.dtype not in allowed:
        raise DTypeError(
            f"{op}: the result has the wrong dtype, got {attrs.dtype}, "
            f"expected {' or '.join(allowed)}"
        )
    check_factor(op, "scale", attrs.scale)
    check_zero_points(op, "zero point", (attrs.zero_point,), as_dtype(attrs.dtype))
    least, largest = quant_range(attrs.dtype)
    if not least <= attrs.lower <= attrs.upper <= largest:
        raise AttrError(
            f"{op}: bounds are wrong, got [{attrs.lower}, {attrs.upper}], "
            f"expected an interval inside [{least}, {largest}]"
        )


def output_spec(spec: TensorSpec, shape: Sequence[int], attrs: Any) -> TensorSpec:
    """Return the spec of a result quantised per tensor as the attributes say."""
    quant = QuantParams((attrs.scale,), (attrs.zero_point,))
    return TensorSpec(tuple(shape), as_dtype(attrs.dtype), spec.device, quant)


def longest_reduction(x: tuple[np.dtype, Ints], w: tuple[np.dtype, Ints]) -> int:
    """Return how many products fit an int32 sum; ``x`` and ``w`` are dtype and zero points."""
    return ACCUMULATOR_LIMIT // (_reach(*x) * _reach(*w))


def check_reduction(
    op: str, length: int, x: tuple[np.dtype, Ints], w: tuple[np.dtype, Ints]
) -> None:
    """Raise ShapeError where a sum of ``length`` products may leave int32."""
    if int(length) > longest_reduction(x, w):
        raise ShapeError(
            f"{op}: the reduction is too long for an int32 accumulator, got {int(length)} terms, "
            f"expected at most {longest_reduction(x, w)}"
        )


def _reach(dtype: np.dtype, zero_points: Ints) -> int:
    """Return how far a stored value can lie from its zero point."""
    least, largest = quant_range(name_of(dtype))
    points = zero_points or (0,)  # none where there are no outputs
    return max(largest - min(points), max(points) - least)


def along(values: Sequence[Any] | np.ndarray, dtype: Any, axis: int, rank: int) -> np.ndarray:
    """Return per-channel values shaped to broadcast along an axis; one value fits anything."""
    array = np.asarray(values, dtype)
    if array.size == 1:
        return array.reshape(())
    return array.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


def centred(array: np.ndarray, zero_point: Any) -> np.ndarray:
    """Return the exact integers q - z."""
    return np.asarray(array.astype(np.int64) - np.asarray(zero_point, np.int64))


def scaled(integers: np.ndarray, factor: Any) -> np.ndarray:
    """Convert exact integers to float32 and multiply in float32, each rounded once."""
    return np.asarray(integers.astype(np.float32) * np.asarray(factor, np.float32))


def finished(values: np.ndarray, attrs: Any) -> np.ndarray:
    """Round half to even, add the zero point, clamp and store; NaN becomes the lower bound."""
    with np.errstate(invalid="ignore"):
        found = np.rint(values.astype(np.float64)) + attrs.zero_point
    found = np.where(np.isnan(found), attrs.lower, np.clip(found, attrs.lower, attrs.upper))
    return np.asarray(found.astype(as_dtype(attrs.dtype)))


def wrapped(integers: np.ndarray) -> np.ndarray:
    """Return exact integers modulo 2^32 as int32 holds them."""
    return np.asarray(integers.astype(np.int64).astype(np.int32))


def shape_text(shape: Sequence[int]) -> str:
    """Write a shape for an error message."""
    return shapes.format_shape(tuple(shape))
