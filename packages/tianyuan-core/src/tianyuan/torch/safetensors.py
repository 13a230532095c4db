"""Decide what is believed of a safetensors file, and read its tensors as arrays of their own.

The format: a little-endian u64 with the header's length, a JSON header that gives dtype, shape and
data_offsets of every tensor, then the data without holes.
"""

from __future__ import annotations

import json
import math
import mmap
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import ModelFormatError
from ..graph.container import HEADER_LIMIT

_DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip
_MAX_RANK = 32


def looks_like_safetensors(buffer: mmap.mmap) -> bool:
    """Tell whether a file starts with a plausible length and the brace of a JSON header."""
    return len(buffer) >= 10 and buffer[8:9] == b"{" and 2 <= _length(buffer) <= HEADER_LIMIT


def _length(buffer: mmap.mmap) -> int:
    return int.from_bytes(buffer[:8], "little")


def read_safetensors(buffer: mmap.mmap, title: str) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name.

    Raises:
        ModelFormatError: where the file is damaged or a tensor has a dtype that is not supported.
    """
    length = _length(buffer)
    if length > len(buffer) - 8:
        raise ModelFormatError(
            f"{title}: the header is cut off, got {len(buffer)} bytes, expected {8 + length}"
        )
    try:
        header = json.loads(buffer[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{title}: the header is no valid JSON, got {error}") from None
    if not isinstance(header, dict):
        raise ModelFormatError(f"{title}: the header is no JSON object")
    header.pop("__metadata__", None)
    base = 8 + length
    entries = {name: _entry(name, entry, title) for name, entry in header.items()}
    _check_holes(
        [(start, stop, name) for name, (_, _, start, stop) in entries.items()],
        len(buffer) - base,
        title,
    )
    return {
        name: np.frombuffer(bytearray(buffer[base + start : base + stop]), dtype).reshape(shape)
        for name, (dtype, shape, start, stop) in entries.items()
    }


def _check_holes(places: list[tuple[int, int, str]], size: int, title: str) -> None:
    reached = 0
    for start, stop, name in sorted(places):
        if start != reached:
            raise ModelFormatError(
                f"{title}: tensor {name!r} overlaps or leaves a hole, got {start}, "
                f"expected {reached}"
            )
        reached = stop
    if reached != size:
        raise ModelFormatError(
            f"{title}: the data has the wrong size, got {size} bytes, expected {reached}"
        )


def _entry(name: str, entry: Any, title: str) -> tuple[np.dtype, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ModelFormatError(f"{title}: tensor {name!r} is described wrongly")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if kind not in _DTYPES:
        raise ModelFormatError(
            f"{title}: tensor {name!r} has an unsupported dtype, got {str(kind)[:20]!r}, expected "
            f"one of {', '.join(_DTYPES)}"
        )
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise ModelFormatError(f"{title}: tensor {name!r} has a wrong shape, got {str(shape)[:60]}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelFormatError(f"{title}: tensor {name!r} has wrong offsets")
    dtype = dtypes.as_dtype(_DTYPES[kind])
    if math.prod(n for n in shape if n) >= 2**60:
        raise ModelFormatError(f"{title}: tensor {name!r} has an absurd shape, got {shape}")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise ModelFormatError(
            f"{title}: tensor {name!r} has the wrong size, got {offsets[1] - offsets[0]} bytes, "
            f"expected {math.prod(shape) * dtype.itemsize}"
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**48 for n in value)
