"""Quantisation, written out in exact integers and floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes, shapes
from ...errors import ShapeError
from ..interpret import array_of, tensor_of
from ..known import Known
from ..node import Node
from ..reader import dtype_of
from ..table import VALUES, operator
from .common import Tensor, binary, constant, normal_axis, reshaped, run, scalar
from .conv import centred_weight, check_kernel, convolve, expect_images, window
from .matmul import product

_NARROW = ("int4", "uint4", "int2", "uint2")


def _limits(dtype: np.dtype) -> tuple[int, int]:
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
    low, high = _limits(dtype)
    # Ranges of up to 24 bits are exact in float32.
    found = run("round", run("div", x, scale))
    if zero is not None:
        found = run("add", found, zero.astype(found.dtype))
    return binary("minimum", binary("maximum", found, low), high).astype(dtype)


@operator("QuantizeLinear", 10, form=VALUES)
def quantize_linear(node: Node, runtime: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    if node.int("output_dtype", 0):
        dtype = dtype_of(node.int("output_dtype"))
    else:
        dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if not _is_plain(dtype):
        return Known(_to_narrow(node, array_of(x), array_of(scale), array_of(zero), dtype))
    x, scale, zero = (tensor_of(value) for value in (x, scale, zero))
    wide = x if dtypes.is_float(x.dtype) else x.astype(scale.dtype)
    if wide.dtype != scale.dtype:
        wide, scale = wide.astype("float32"), scale.astype("float32")
    precision = node.int("precision", 0)
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
        low, high = _limits(dtype)
        found: np.ndarray = np.clip(np.rint(ratio) + shift, low, high).astype(np.int8)
        return found.astype(dtype)
    return _array_cast(node, (ratio + shift).astype(np.float32), dtype)


@operator("DequantizeLinear", 10, form=VALUES)
def dequantize_linear(node: Node, runtime: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    if all(isinstance(v, Known) or v is None for v in (x, scale, zero)):
        arrays = [None if v is None else v.array for v in (x, scale, zero)]
        return Known(_from_arrays(node, *arrays))  # type: ignore[arg-type]
    if isinstance(x, Known) and not _is_plain(x.dtype):
        return Known(_from_arrays(node, *(array_of(v) for v in (x, scale, zero))))
    x, scale, zero = (tensor_of(value) for value in (x, scale, zero))
    dtype = dtype_of(node.int("output_dtype")) if node.int("output_dtype", 0) else scale.dtype
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


def _shifted(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    """Return int32 values minus their zero point, of one per row or column where it is a vector."""
    wide = x.astype("int32")
    if zero is None:
        return wide
    if zero.size == 1:
        return run("sub", wide, reshaped(zero, ()).astype("int32"))
    if zero.ndim == 1 and axis is not None:
        shape = [1] * x.ndim
        shape[axis] = zero.shape[0]
        zero = reshaped(zero, shape)
    return run("sub", wide, zero.astype("int32"))


@operator("MatMulInteger", 10)
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return product(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


@operator("QLinearMatMul", 10)
def qlinear_matmul(
    node: Node, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    total = product(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))
    factor = run("mul", _factor(a_scale, a, -2), _factor(b_scale, b, -1))
    factor = run("div", factor, _factor(y_scale, total, -2))
    return _requantised(total, factor, y_zero, -2)


def _factor(scale: Tensor, like: Tensor, axis: int) -> Tensor:
    wide = scale.astype("float32")
    if scale.size == 1:
        return reshaped(wide, ())
    if scale.ndim > 1:
        return wide
    shape = [1] * max(like.ndim, 2)
    shape[axis] = scale.shape[0]
    return reshaped(wide, shape)


def _requantised(total: Tensor, factor: Tensor, zero: Tensor, axis: int) -> Tensor:
    low, high = _limits(zero.dtype)
    found = run("round", run("mul", total.astype("float32"), factor))
    shift = reshaped(zero, ()) if zero.size == 1 else zero
    found = run("add", found, shift.astype("float32"))
    return binary("minimum", binary("maximum", found, low), high).astype(zero.dtype)


@operator("QLinearConv", 10)
def qlinear_conv(
    node: Node, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve integers exactly, in float64, and requantise with one float32 factor a channel."""
    expect_images(x, w)
    at = window(node, x.shape[2:], check_kernel(node, w))
    wide = run("sub", x.astype("float64"), reshaped(x_zero, ()).astype("float64"))
    total = convolve(wide, centred_weight(w, w_zero), at, node.int("group", 1))
    if bias is not None:
        total = run(
            "add", total, reshaped(bias, (1, bias.shape[0], *(1,) * (x.ndim - 2))).astype("float64")
        )
    factor = run("mul", reshaped(x_scale, ()), w_scale)
    factor = run("div", factor, reshaped(y_scale, ()))
    channels = (1, factor.shape[0], *(1,) * (x.ndim - 2)) if factor.ndim and factor.size > 1 else ()
    return _requantised(total, reshaped(factor, channels), y_zero, 1)
