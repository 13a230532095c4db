"""Read ONNX files: parse, check and turn tensors into arrays, believing nothing that they say."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import dtypes, shapes
from ..errors import ModelFormatError
from ..imperative.dispatch import empty
from .messages import messages
from .wire import Span, without_weights

# TensorProto.DataType -> numpy dtype, by name in ml_dtypes where numpy has none.
_DTYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
_STRING = 8


def dtype_of(code: int) -> np.dtype:
    """Return the dtype for an ONNX element type; object for strings.

    Raises:
        ModelFormatError: where there is no such type.
    """
    if code == _STRING:
        return np.dtype(object)
    name = _DTYPES.get(code)
    if name is None:
        raise ModelFormatError(f"onnx: unknown element type, got {code}")
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise ModelFormatError(f"onnx: element type {name} needs a newer ml_dtypes") from None
        found: np.dtype = np.dtype(getattr(ml_dtypes, name))
        return found


def code_of(dtype: np.dtype) -> int:
    """Return the ONNX element type of a dtype.

    Raises:
        ModelFormatError: where ONNX has none.
    """
    for code, name in _DTYPES.items():
        if name == dtype.name:
            return code
    if dtype.kind == "O":
        return _STRING
    raise ModelFormatError(f"onnx: no element type for dtype {dtype}")


@contextmanager
def opened(source: Any) -> Iterator[tuple[Any, TensorReader]]:
    """Give the ModelProto of a path, bytes or ModelProto, and what reads its tensors.

    Large weights of a file or of bytes are not in the ModelProto; the reader takes them from where
    they lie.

    Raises:
        FileNotFoundError: where there is no such file.
        ModelFormatError: where it is no ONNX model.
    """
    if isinstance(source, messages().ModelProto):
        yield source, TensorReader(None)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        with io.BytesIO(bytes(source)) as file:
            data, weights = without_weights(file)
            yield _parsed(data, "bytes"), TensorReader(None, file, weights)
    else:
        path = Path(os.fspath(source))
        with open(path, "rb") as file:
            data, weights = without_weights(file)
            yield _parsed(data, str(path)), TensorReader(path.resolve().parent, file, weights)


def _parsed(data: bytes, name: str) -> Any:
    model = messages().ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # the class of protobuf's DecodeError depends on its version
        raise ModelFormatError(f"onnx: {name} is damaged: {error}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise ModelFormatError(f"onnx: {name} is no ONNX model, it has no graph or operator set")
    return model


class TensorReader:
    """Turns TensorProtos into arrays of their own, which nobody else holds.

    Args:
        folder: where external data lies; None refuses it.
        file: what the model was read from.
        weights: where initialisers lie in it that are empty in the ModelProto, by their names.
    """

    def __init__(
        self,
        folder: Path | None,
        file: BinaryIO | None = None,
        weights: Mapping[str, Span] | None = None,
    ) -> None:
        self._folder = folder
        self._file = file
        self._weights = weights or {}

    def read_weight(self, proto: Any) -> np.ndarray:
        """Return an initialiser of the model's own graph, as ``read`` does."""
        span = self._weights.get(proto.name)
        return self.read(proto) if span is None else self.read(proto, span)

    def read(self, proto: Any, span: Span | None = None) -> np.ndarray:
        """Return a tensor as array, bit for bit; ``span`` is where its bytes lie in the file.

        Raises:
            ModelFormatError: where sizes do not fit, a type is unknown, or external data is
                missing, too short or outside of the model's folder.
        """
        title = f"tensor {proto.name!r}"
        dims = tuple(proto.dims)
        if any(d < 0 for d in dims) or len(dims) > 64:
            raise ModelFormatError(f"onnx: {title} has a wrong shape, got {dims[:8]}")
        if proto.HasField("segment"):
            raise ModelFormatError(f"onnx: {title} is stored in segments, which is not supported")
        count = shapes.volume(dims)
        if proto.data_type == _STRING:
            return _strings(proto, dims, count, title)
        dtype = dtype_of(proto.data_type)
        kind = dtypes.name_of(dtype)
        bits = _BITS.get(kind)
        size = -(-count * bits // 8) if bits else count * dtype.itemsize
        place = f"{kind}{dims}"
        if proto.data_location == 1:
            raw = self._external(proto, size, title)
        elif span is not None:
            assert self._file is not None
            _expect_bytes(span.size, size, title, place)
            raw = _read(self._file, span.start, size, title)
        elif proto.HasField("raw_data"):
            _expect_bytes(len(proto.raw_data), size, title, place)
            raw = empty((size,), np.dtype(np.uint8))
            raw[:] = np.frombuffer(proto.raw_data, np.uint8)
        else:
            return _typed(proto, dtype, dims, count, title)
        if bits:
            return _unpack(raw, count, bits, dtype).reshape(dims)
        array = raw.view(dtype).reshape(dims)
        return array if sys.byteorder == "little" else array.byteswap()

    def _external(self, proto: Any, size: int, title: str) -> np.ndarray:
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if not all(isinstance(value, str) for value in entries.values()):
            raise ModelFormatError(f"onnx: {title} names its file by what is not UTF-8")
        if self._folder is None:
            raise ModelFormatError(
                f"onnx: {title} lies in another file, expected a path instead of bytes"
            )
        path = Path(location)
        try:
            target = (self._folder / path).resolve()
            exists = target.is_file()
        except (OSError, RuntimeError, ValueError) as error:
            # a zero byte, a circle of links, a name that is too long, a folder that is closed
            raise ModelFormatError(
                f"onnx: {title} names its file wrongly, got {location[:80]!r}: {error}"
            ) from None
        if not location or path.is_absolute() or not target.is_relative_to(self._folder):
            raise ModelFormatError(
                f"onnx: {title} lies outside of the model's folder, got {location!r}"
            )
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
        except ValueError:
            raise ModelFormatError(f"onnx: {title} has a wrong offset or length") from None
        if not exists:
            raise ModelFormatError(f"onnx: {title} lies in a file that is missing: {location!r}")
        if offset < 0 or length != size or offset + size > target.stat().st_size:
            raise ModelFormatError(
                f"onnx: {title} does not fit its file, got offset {offset} and length {length}, "
                f"expected {size} bytes within {target.stat().st_size}"
            )
        with open(target, "rb") as file:
            return _read(file, offset, size, title)


def _expect_bytes(got: int, size: int, title: str, what: str) -> None:
    if got != size:
        raise ModelFormatError(
            f"onnx: {title} has the wrong size, got {got} bytes, expected {size} for {what}"
        )


def _read(file: BinaryIO, offset: int, size: int, title: str) -> np.ndarray:
    """Read bytes of a file into memory that a tensor may keep."""
    raw = empty((size,), np.dtype(np.uint8))
    file.seek(offset)
    if file.readinto(raw.data) != size:  # type: ignore[attr-defined]
        raise ModelFormatError(f"onnx: {title} cannot be read, its file has become shorter")
    return raw


def _strings(proto: Any, dims: tuple[int, ...], count: int, title: str) -> np.ndarray:
    items = list(proto.string_data)
    if len(items) != count:
        raise ModelFormatError(f"onnx: {title} has {len(items)} strings, expected {count}")
    array = np.empty(count, object)
    try:
        array[:] = [item.decode() for item in items]
    except UnicodeDecodeError:
        raise ModelFormatError(f"onnx: {title} holds text that is not UTF-8") from None
    return array.reshape(dims)


def _typed(
    proto: Any, dtype: np.dtype, dims: tuple[int, ...], count: int, title: str
) -> np.ndarray:
    """Read a tensor from the field for its type; small types share int32_data."""
    name = dtypes.name_of(dtype)
    bits = _BITS.get(name)
    if name in ("float32", "complex64"):
        data = np.array(proto.float_data, np.float32)
        data = data.view(dtype) if name == "complex64" else data
    elif name in ("float64", "complex128"):
        data = np.array(proto.double_data, np.float64)
        data = data.view(dtype) if name == "complex128" else data
    elif name == "int64":
        data = np.array(proto.int64_data, np.int64)
    elif name in ("uint32", "uint64"):
        data = np.array(proto.uint64_data, np.uint64).astype(dtype)
    else:
        values = np.array(proto.int32_data, np.int32)
        if bits:
            if len(values) < -(-count * bits // 8):
                raise ModelFormatError(f"onnx: {title} has too few elements, expected {count}")
            data = _unpack(values.astype(np.uint8), count, bits, dtype)
        elif dtype.kind in "iub":
            data = values.astype(dtype)
        else:
            width = np.uint16 if dtype.itemsize == 2 else np.uint8
            data = values.astype(width).view(dtype)
    if data.size != count:
        raise ModelFormatError(
            f"onnx: {title} has the wrong size, got {data.size} elements, expected {count}"
        )
    return data.reshape(dims)


def _unpack(raw: np.ndarray, count: int, bits: int, dtype: np.dtype) -> np.ndarray:
    """Spread packed elements, the lowest bits first, to one per byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)
    if dtype.name.startswith("float"):
        return fields.view(dtype)
    if dtype.name.startswith("int"):
        signed = fields.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(dtype)
    return fields.astype(dtype)
