"""Conversion of dtypes, with the saturation and rounding that ONNX asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes
from ...errors import ModelFormatError
from ...imperative.tensor import Tensor
from ..interpret import array_of, tensor_of
from ..known import Known
from ..node import Node
from ..reader import dtype_of
from ..table import VALUES, operator

_TRUE = frozenset({"true", "1"})


def _is_plain(dtype: np.dtype) -> bool:
    return dtypes.name_of(dtype) in dtypes.CODES


def converted(node: Node, value: Any, want: np.dtype) -> Any:
    """Return a value in another dtype."""
    if isinstance(value, Tensor) and _is_plain(want):
        return value.cast(want)  # the integers of quantised values, as ONNX has it
    if isinstance(value, Known) and value.is_symbolic:
        if want.kind in "iu":
            return Known(value.array, want)
        return tensor_of(value).cast(want)
    array = array_of(value)
    with np.errstate(all="ignore"):
        return Known(_array_cast(node, array, want))


def _array_cast(node: Node, array: np.ndarray, want: np.dtype) -> np.ndarray:
    if array.dtype == want:
        return array
    if array.dtype == object:
        return _from_text(array, want)
    if want.kind == "O":
        return _to_text(array)
    source = array
    if not _is_plain(array.dtype):
        source = array.astype(np.float32)
    name = want.name
    if name == "float8_e8m0fnu":
        return _powers(node, source, want)
    if name.startswith("float8"):
        return _to_float8(source, want, node.flag("saturate", True))
    if name in ("int4", "uint4", "int2", "uint2"):
        bits = int(name[-1])
        signed = name.startswith("int")
        whole = source.astype(np.int32) & ((1 << bits) - 1)
        if signed:
            whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
        return whole.astype(want)
    return source.astype(want)


def _to_float8(source: np.ndarray, want: np.dtype, saturate: bool) -> np.ndarray:
    wide = source.astype(np.float32)
    import ml_dtypes

    most = float(ml_dtypes.finfo(want).max)  # type: ignore[no-untyped-call]
    rounded = wide.astype(want)
    if not saturate:
        return rounded
    clipped = np.clip(wide, -most, most).astype(want)
    over = (np.abs(wide) > most) & ~np.isnan(wide)
    return np.where(over, clipped, rounded).astype(want)


def _powers(node: Node, source: np.ndarray, want: np.dtype) -> np.ndarray:
    """Round to powers of two as ``round_mode`` says: up, down or nearest."""
    mode = node.text("round_mode", "up", ("up", "down", "nearest"))
    wide = source.astype(np.float64)
    fraction, exponent = np.frexp(np.abs(wide))
    exponent = exponent - 1
    above = fraction > 0.5
    if mode == "nearest":
        above = fraction >= 0.75
    elif mode == "down":
        above = np.zeros_like(above)
    exponent = np.clip(exponent + above, -127, 127)
    found = np.ldexp(1.0, exponent)
    found = np.where(wide == 0, 2.0**-127, found)
    found = np.where(np.isnan(wide), np.nan, found)
    saturate = node.flag("saturate", True)
    found = np.where(np.isinf(wide), 2.0**127 if saturate else np.nan, found)
    return found.astype(np.float32).astype(want)


def _from_text(array: np.ndarray, want: np.dtype) -> np.ndarray:
    items = array.reshape(-1).tolist()
    if want.kind == "O":
        return array
    if want.kind == "b":
        flat = np.array([str(item).lower() in _TRUE for item in items], bool)
    elif want.kind in "iu":
        flat = np.array([int(float(item)) if "." in item else int(item) for item in items], want)
    else:
        flat = np.array([float(item) for item in items], np.float64).astype(want)
    return flat.reshape(array.shape)


def _to_text(array: np.ndarray) -> np.ndarray:
    found = np.empty(array.size, object)
    if array.dtype.kind == "f":
        found[:] = [_float_text(item) for item in array.reshape(-1)]
    else:
        found[:] = [str(item) for item in array.reshape(-1).tolist()]
    return found.reshape(array.shape)


def _float_text(item: Any) -> str:
    if np.isnan(item):
        return "NaN"
    if np.isinf(item):
        return "INF" if item > 0 else "-INF"
    return str(item)


@operator("Cast", 6, form=VALUES, folds=True)
def cast(node: Node, runtime: Any, x: Any) -> Any:
    """Convert to the element type ``to``."""
    return converted(node, x, dtype_of(node.int("to")))


@operator("CastLike", 15, form=VALUES, folds=True)
def cast_like(node: Node, runtime: Any, x: Any, like: Any) -> Any:
    return converted(node, x, like.dtype)


@operator("BitCast", 26, form=VALUES, folds=True)
def bit_cast(node: Node, runtime: Any, x: Any) -> Any:
    """Read the bits of each element as another type of the same width."""
    want = dtype_of(node.int("to"))
    array = array_of(x)
    if array.dtype == object or want.kind == "O" or array.dtype.itemsize != want.itemsize:
        raise ModelFormatError(f"widths differ, got {array.dtype} and {want}")
    return Known(np.ascontiguousarray(array).reshape(array.shape).view(want))
