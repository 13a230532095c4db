"""Quantisation, written out in exact integers and floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes, shapes
from ...errors import ShapeError
from ...ops import quantized_rules as rules
from ..interpret import array_of, tensor_of
from ..known import Known
from ..node import Node
from ..reader import dtype_of
from ..table import VALUES, operator
from .common import Tensor, binary, constant, normal_axis, reshaped, run, scalar

_NARROW = ("int4", "uint4", "int2", "uint2")


def limits_of(dtype: np.dtype) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type, narrow ones included."""
    if dtype.name in _NARROW:
        bits = int(dtype.name[-1])
        return (
            (0, 2**bits - 1) if dtype.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _is_plain(dtype: np.dtype) -> bool:
    return dtypes.name_of(dtype) in dtypes.CODES


def _laid(value: Any, x: Any, node: Node) -> Any:
    """Shape a scale or zero point so that it meets the values it belongs to."""
    if value is None:
        return None
    if int(shapes.volume(value.shape)) == 1 and len(value.shape) <= 1:
        return _reshape(value, ())
    axis, rank = normal_axis(node.int("axis", 1), len(x.shape)), len(x.shape)
    block = node.int("block_size", 0)
    if len(value.shape) == 1 and not block:
        return _reshape(value, [value.shape[0] if a == axis else 1 for a in range(rank)])
    if len(value.shape) != rank or block < 1:
        raise ShapeError(f"scale does not fit, got {tuple(value.shape)} for {tuple(x.shape)}")
    return _repeated(value, axis, block, x.shape[axis])


def _reshape(value: Any, shape: Any) -> Any:
    return reshaped(value, shape) if isinstance(value, Tensor) else value.reshape(shape)


def _repeated(value: Any, axis: int, block: int, extent: int) -> Any:
    if isinstance(value, np.ndarray):
        return np.repeat(value, block, axis)[(slice(None),) * axis + (slice(0, int(extent)),)]
    index = np.arange(int(extent)) // block
    return run("take", value, constant(index), axis=axis)


def quantised(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: np.dtype) -> Tensor:
    """Return saturate(round(x / scale) + zero) with halves rounded to even."""
    low, high = limits_of(dtype)
    # Ranges of up to 24 bits are exact in float32.
    found = run("round", run("div", x, scale))
    if zero is not None:
        found = run("add", found, zero.astype(found.dtype))
    return binary("minimum", binary("maximum", found, low), high).astype(dtype)


def stored_form(
    x: Any, scale: Any, zero: Any, axis: int, block: int = 0
) -> tuple[tuple[float, ...], tuple[int, ...], int] | None:
    """Return scales, zero points and axis as core's quantised values have them, or None.

    None where they depend on data, come in blocks, or are no positive normal float32 numbers.
    """
    if not isinstance(scale, Known) or not (zero is None or isinstance(zero, Known)):
        return None
    if dtypes.name_of(scale.dtype) != "float32" or len(scale.shape) > 1 or block:
        return None
    scales: tuple[float, ...] = tuple(scale.array.reshape(-1).tolist())
    zeros = (0,) * len(scales) if zero is None else tuple(map(int, zero.array.reshape(-1).tolist()))
    if (scales and not rules.are_factors(scales)) or len(zeros) != len(scales):
        return None
    if len(scales) == 1:
        return scales, zeros, -1
    axis = normal_axis(axis, len(x.shape))
    return (scales, zeros, axis) if int(x.shape[axis]) == len(scales) else None


@operator("QuantizeLinear", 10, form=VALUES, known=(1, 2))
def quantize_linear(node: Node, runtime: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    if node.int("output_dtype", 0):
        dtype = dtype_of(node.int("output_dtype"))
    else:
        dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if not _is_plain(dtype):
        return Known(_to_narrow(node, array_of(x), array_of(scale), array_of(zero), dtype))
    precision = node.int("precision", 0)
    form = stored_form(x, scale, zero, node.int("axis", 1), node.int("block_size", 0))
    fits = dtypes.name_of(dtype) in rules.STORAGE and dtypes.name_of(x.dtype) == "float32"
    if form and fits and not precision:
        scales, zeros, axis = form
        return run("quantize", tensor_of(x), scales=scales, zero_points=zeros, axis=axis,
                   dtype=dtype.name)  # fmt: skip
    x, scale, zero = (tensor_of(value) for value in (x, scale, zero))
    wide = x if dtypes.is_float(x.dtype) else x.astype(scale.dtype)
    if wide.dtype != scale.dtype:
        wide, scale = wide.astype("float32"), scale.astype("float32")
    if precision:
        wide, scale = (v.astype(dtype_of(precision)) for v in (wide, scale))
    return quantised(wide, _laid(scale, x, node), _laid(zero, x, node), dtype)


def _to_narrow(
    node: Node, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, dtype: np.dtype
) -> np.ndarray:
    """Quantise to types of fewer than 8 bits or 8-bit floats."""
    from .cast import _array_cast

    ratio = (x / _laid(scale, x, node).astype(x.dtype)).astype(np.float32)
    shift = 0.0 if zero is None else _laid(zero, x, node).astype(np.float32)
    if dtype.name in _NARROW:
        low, high = limits_of(dtype)
        found: np.ndarray = np.clip(np.rint(ratio) + shift, low, high).astype(np.int8)
        return found.astype(dtype)
    return _array_cast(node, (ratio + shift).astype(np.float32), dtype)


@operator("DequantizeLinear", 10, form=VALUES, known=(1, 2))
def dequantize_linear(node: Node, runtime: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = dtype_of(node.int("output_dtype")) if node.int("output_dtype", 0) else scale.dtype
    form = stored_form(x, scale, zero, node.int("axis", 1), node.int("block_size", 0))
    fits = dtypes.name_of(x.dtype) in rules.STORAGE and dtypes.name_of(dtype) == "float32"
    if form and fits:
        scales, zeros, axis = form
        return run("dequantize", tensor_of(x), scales=scales, zero_points=zeros, axis=axis)
    if isinstance(x, Known) and not _is_plain(x.dtype):
        return Known(_from_arrays(node, *(array_of(v) for v in (x, scale, zero))))
    x, scale, zero = (tensor_of(value) for value in (x, scale, zero))
    wide = x if dtypes.is_float(x.dtype) else x.astype("int32")
    shift = _laid(zero, x, node)
    if shift is not None:
        wide = run("sub", wide, shift.astype(wide.dtype))
    factor = _laid(scale, x, node)
    return run("mul", wide.astype(factor.dtype), factor).astype(dtype)


def _from_arrays(
    node: Node, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None
) -> np.ndarray:
    code = node.int("output_dtype", 0)
    dtype = dtype_of(code) if code else scale.dtype
    wide = x.astype(np.float32) if x.dtype.kind not in "iu" else x.astype(np.int32)
    if zero is not None:
        shift = _laid(zero, x, node)
        wide = wide - shift.astype(wide.dtype)
    factor = _laid(scale, x, node).astype(np.float32)
    found: np.ndarray = (wide.astype(np.float32) * factor).astype(dtype)
    return found


@operator("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise to uint8 by the range of the data, zero included."""
    axes = tuple(range(x.ndim))
    high = binary("maximum", run("max", x, axes=axes, keepdims=False), 0)
    low = binary("minimum", run("min", x, axes=axes, keepdims=False), 0)
    scale = binary("div", run("sub", high, low), 255)
    safe = run("where", binary("equal", scale, 0), scalar(x, 1), scale)
    zero = run(
        "round", binary("minimum", binary("maximum", run("neg", run("div", low, safe)), 0), 255)
    )
    zero = zero.astype("uint8")
    return quantised(x, safe, zero, np.dtype(np.uint8)), scale, zero
