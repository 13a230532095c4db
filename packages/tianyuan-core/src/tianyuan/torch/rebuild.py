"""Decide what a checkpoint's pickle may name, and how tensors and arrays come of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import ModelFormatError
from .pickled import Global

# Kinds of torch storages, by what stands before "Storage", and torch's dtypes by their own name.
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool", "Untyped": "uint8",
}  # fmt: skip
_DTYPES = {
    "float64": "float64", "double": "float64", "float32": "float32", "float": "float32",
    "float16": "float16", "half": "float16", "bfloat16": "bfloat16", "int64": "int64",
    "long": "int64", "int32": "int32", "int": "int32", "int16": "int16", "short": "int16",
    "int8": "int8", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "bool": "bool",
}  # fmt: skip
_MAX_RANK = 32
_MAX_DEPTH = 200


class Block:
    """Bytes that one or several storages lie in; None until they have been read."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: bytearray | None = None


class Storage:
    """The flat memory that tensors of a checkpoint are views of.

    Attributes:
        dtype: dtype of its elements.
        key: its name within the file.
        count: how many elements the file says it has.
        block: where its bytes are.
        start: first element of the block that belongs to it.
    """

    def __init__(self, dtype: np.dtype, key: str, count: int, block: Block, start: int = 0) -> None:
        self.dtype = dtype
        self.key = key
        self.count = count
        self.block = block
        self.start = start

    @property
    def nbytes(self) -> int:
        """How many bytes it has by what the file says."""
        return self.count * self.dtype.itemsize


class StridedTensor:
    """A tensor as its file describes it: a view of a storage."""

    def __init__(
        self,
        storage: Any,
        offset: Any,
        size: Any,
        stride: Any,
        dtype: np.dtype | None = None,
    ) -> None:
        if not isinstance(storage, Storage):
            raise ValueError("a tensor without storage")
        self.storage = storage
        self.dtype = storage.dtype if dtype is None else dtype
        self.offset = _extents((offset,))[0]
        self.size = _extents(size)
        self.stride = _extents(stride)
        if len(self.size) != len(self.stride):
            raise ValueError("a tensor with sizes and strides of different rank")

    def array(self, take: Callable[[int], None]) -> np.ndarray:
        """Return the tensor as a contiguous array; ``take(bytes)`` is asked before a copy."""
        storage, width = self.storage, self.dtype.itemsize
        data = storage.block.data
        if data is None:
            raise ValueError(f"storage {storage.key!r} without data")
        available = len(data) // width - storage.start
        if storage.dtype == self.dtype:
            available = min(available, storage.count)
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        if 0 in self.size:
            return np.empty(self.size, self.dtype)
        if self.offset + last >= available:
            raise ValueError(
                f"a tensor of shape {self.size} that reaches element {self.offset + last} "
                f"of a storage of {available}"
            )
        flat = np.frombuffer(data, self.dtype, len(data) // width)[storage.start + self.offset :]
        strides = tuple(s * width for s in self.stride)
        view = np.lib.stride_tricks.as_strided(flat, self.size, strides)
        if view.flags.c_contiguous:
            return view
        take(view.size * width)
        return np.array(view, order="C")


class ArrayState:
    """A numpy array whose shape, dtype and bytes arrive after it has been named."""

    def __init__(self) -> None:
        self._given: tuple[Any, np.dtype, tuple[int, ...], str] | None = None

    def set_state(self, state: Any) -> None:
        """Take what numpy pickles of an array: version, shape, dtype, order, bytes."""
        _, shape, dtype, fortran, raw = state
        self._given = raw, _dtype_of(dtype), _extents(shape), "F" if fortran else "C"

    def array(self, take: Callable[[int], None]) -> np.ndarray:
        """Return the array; ``take(bytes)`` is asked before it is made."""
        if self._given is None:
            raise ValueError("an array without data")
        raw, dtype, shape, order = self._given
        data = raw.encode("latin-1") if isinstance(raw, str) else raw
        if not isinstance(data, (bytes, bytearray)):
            raise ValueError(f"an array whose data is {type(data).__name__}")
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"an array of shape {shape} and {dtype} with {len(data)} bytes")
        take(len(data))
        array = np.frombuffer(data, dtype).reshape(shape, order=order)  # type: ignore[call-overload]
        return np.array(array, dtype.newbyteorder("="), order="C")


class DTypeState:
    """A numpy dtype whose byte order arrives after it has been named."""

    def __init__(self, name: Any, *_: Any) -> None:
        if isinstance(name, Global) and isinstance(name.value, np.dtype):
            self.dtype = name.value
        elif isinstance(name, str) and name[:1] in "biuf?" and name.strip("biuf?") in _WIDTHS:
            self.dtype = np.dtype(name)
        else:
            raise ValueError(f"a numpy dtype {str(name)[:40]!r}")

    def set_state(self, state: Any) -> None:
        """Take what numpy pickles of a dtype: version, byte order, and more for records."""
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


_WIDTHS = ("", "1", "2", "4", "8")


def _dtype_of(value: Any) -> np.dtype:
    if isinstance(value, DTypeState):
        return value.dtype
    raise ValueError("an array without dtype")


def _extents(value: Any) -> tuple[int, ...]:
    sizes = tuple(value)
    if len(sizes) > _MAX_RANK:
        raise ValueError(f"{len(sizes)} dimensions, expected at most {_MAX_RANK}")
    if not all(type(n) is int and 0 <= n < 2**48 for n in sizes):
        raise ValueError(f"sizes {str(sizes)[:60]}")
    return sizes


def _ordered_dict(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = [(key, value) for key, value in items]
    # Hashing a deeply nested key could exhaust the stack.
    if not all(key is None or isinstance(key, (str, int, float)) for key, _ in pairs):
        raise ValueError("a key that is no text or number")
    return OrderedDict(pairs)


def _encode(text: Any, encoding: Any) -> bytes:
    """Stand for ``_codecs.encode``, by which old protocols write bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are not encoded as latin1")
    return text.encode("latin-1")


def _bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    return _encode(text, encoding) if text else b""


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> StridedTensor:
    return StridedTensor(storage, offset, size, stride)


def _tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
) -> StridedTensor:
    if not isinstance(dtype, Global) or not isinstance(dtype.value, np.dtype):
        raise ValueError("a tensor without dtype")
    return StridedTensor(storage, offset, size, stride, dtype.value)


def _scalar(dtype: Any, raw: Any) -> ArrayState:
    made = ArrayState()
    made.set_state((1, (), dtype, False, raw))
    return made


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> ArrayState:
    made = ArrayState()
    made.set_state((1, shape, dtype, order == "F", raw))
    return made


def _allowed() -> dict[str, Global]:
    found: dict[str, Global] = {}

    def enter(title: str, value: Any = None, call: Callable[..., Any] | None = None) -> None:
        found[title] = Global(title, value, call)

    enter("collections.OrderedDict", call=_ordered_dict)
    enter("_codecs.encode", call=_encode)
    for builtins in ("builtins", "__builtin__"):
        enter(f"{builtins}.bytes", call=_bytes)
    enter("torch._utils._rebuild_tensor", call=_tensor)
    enter("torch._utils._rebuild_tensor_v2", call=_tensor)
    enter("torch._utils._rebuild_tensor_v3", call=_tensor_of_dtype)
    enter("torch._utils._rebuild_parameter", call=lambda data, *_: data)
    enter("torch._utils._rebuild_parameter_with_state", call=lambda data, *_: data)
    enter("torch.Size", call=lambda sizes=(): tuple(sizes))
    for kind, name in _STORAGES.items():
        for module in ("torch", "torch.storage", "torch.cuda"):
            enter(f"{module}.{kind}Storage", dtypes.as_dtype(name))
    for alias, name in _DTYPES.items():
        enter(f"torch.{alias}", dtypes.as_dtype(name))
    enter("numpy.ndarray", value=np.ndarray)
    enter("numpy.dtype", call=DTypeState)
    enter("ml_dtypes.bfloat16", dtypes.as_dtype("bfloat16"))
    for core in ("numpy.core", "numpy._core"):
        enter(f"{core}.multiarray._reconstruct", call=lambda *_: ArrayState())
        enter(f"{core}.multiarray.scalar", call=_scalar)
        enter(f"{core}.numeric._frombuffer", call=_frombuffer)
    return found


_ALLOWED = _allowed()


def allowed(title: str) -> Global | None:
    """Return what stands for a name of a checkpoint's pickle, None where it is refused."""
    return _ALLOWED.get(title)


class Resolver:
    """Turns what a pickle described into arrays and plain containers.

    Args:
        title: what the file is called in messages.
        budget: how many bytes arrays and copies of non-contiguous tensors may take.
    """

    def __init__(self, title: str, budget: int) -> None:
        self._title = title
        self._budget = budget
        self._done: dict[int, Any] = {}
        self._alive: list[Any] = []

    def resolve(self, value: Any, depth: int = 0) -> Any:
        """Return the finished value; what stood twice in the file is one object again.

        Raises:
            ModelFormatError: where a tensor does not fit its storage, a container holds itself, or
                a name stands where a value should be.
        """
        if value is None or type(value) in (bool, int, float, str, bytes, bytearray):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if depth > _MAX_DEPTH:
            raise ModelFormatError(
                f"{self._title}: nested too deeply, expected at most {_MAX_DEPTH}"
            )
        self._done[id(value)] = made = self._make(value, depth)
        self._alive.append(value)
        return made

    def _make(self, value: Any, depth: int) -> Any:
        if isinstance(value, (StridedTensor, ArrayState)):
            try:
                return value.array(self._take)
            except ValueError as error:
                raise ModelFormatError(f"{self._title}: damaged, got {error}") from None
        if isinstance(value, dict):
            return type(value)(
                (key, self.resolve(item, depth + 1)) for key, item in list(value.items())
            )
        if isinstance(value, (list, tuple)):
            return type(value)(self.resolve(item, depth + 1) for item in value)
        name = value.title if isinstance(value, Global) else type(value).__name__
        raise ModelFormatError(f"{self._title}: refused, got {name!r} as a value")

    def _take(self, nbytes: int) -> None:
        self._budget -= nbytes
        if self._budget < 0:
            raise ValueError("tensors that are far larger than the file itself")
