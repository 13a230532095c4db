"""Read and make DLPack capsules on the host, with the dtypes and flags that numpy's lack.

The structs are those of DLPack 1.0 (https://dmlc.github.io/dlpack): a tensor's address, extents,
strides and dtype, with a function that the taker calls when it needs the memory no more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import DeviceError, DTypeError

HOSTS = {1: "cpu", 3: "cuda_host", 11: "rocm_host"}  # devices whose memory the CPU reads
_DEVICES = {
    **HOSTS, 2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda_managed",
    14: "oneapi",
}  # fmt: skip
_CPU = (1, 0)
# Dtypes by the kind and the bits of an element.
_DTYPES = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16",
    (5, 64): "complex64", (5, 128): "complex128", (6, 8): "bool",
}  # fmt: skip
_KINDS = {name: kind for kind, name in _DTYPES.items()}
_READ_ONLY, _COPIED = 1, 2  # flags
_VERSIONED, _PLAIN = b"dltensor_versioned", b"dltensor"
_VERSIONS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)  # numpy makes both kinds
_USED = {_VERSIONED: b"used_dltensor_versioned", _PLAIN: b"used_dltensor"}


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    )  # fmt: skip


class _Managed(Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


class _ManagedVersioned(Structure):
    _fields_ = (
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's C API under a prototype of its own."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_pointer = _python("PyCapsule_GetPointer", c_void_p, ctypes.py_object, c_char_p)
_capsule_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, c_char_p)
_capsule_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, c_char_p)
for _name in _USED.values():  # capsules point to their names, also while Python ends
    _python("Py_IncRef", None, ctypes.py_object)(_name)


class _Borrowed:
    """Memory of another framework's tensor, given back when the last array of it is gone."""

    def __init__(self, interface: dict[str, Any], give_back: Callable[[], None]) -> None:
        self.__array_interface__ = interface
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back()


def borrowed_array(capsule: Any) -> np.ndarray:
    """Return an array that shares memory with the tensor in a capsule, which is used up by that.

    Raises:
        DeviceError: where the memory is not the host's.
        DTypeError: where Tianyuan has no such dtype.
        ValueError: where it is no capsule of a tensor, or was used before.
        BufferError: where the capsule is of a newer major version of DLPack.
    """
    name = next((n for n in (_VERSIONED, _PLAIN) if _capsule_is(capsule, n)), None)
    if name is None:
        raise ValueError(
            "from_dlpack: the capsule is wrong, got one without a tensor or used before, "
            "expected a fresh one"
        )
    kind = _ManagedVersioned if name == _VERSIONED else _Managed
    managed: Any = kind.from_address(_capsule_pointer(capsule, name))
    if kind is _ManagedVersioned and managed.major != 1:
        raise BufferError(
            f"from_dlpack: the capsule is too new, got version {managed.major}.{managed.minor}, "
            "expected 1.x"
        )
    tensor = managed.tensor
    expect_host(tensor.device_type, tensor.device_id)
    dtype = _dtype(tensor)
    _capsule_rename(capsule, _USED[name])

    def give_back() -> None:
        if managed.deleter:
            _Deleter(managed.deleter)(ctypes.addressof(managed))

    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if 0 in shape:
        give_back()
        return np.empty(shape, dtype)
    stored = dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")
    strides = (
        tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
        if tensor.strides
        else None
    )
    read_only = kind is _ManagedVersioned and bool(managed.flags & _READ_ONLY)
    interface = {
        "version": 3, "typestr": stored.str, "shape": shape, "strides": strides,
        "data": (tensor.data + tensor.byte_offset, read_only),
    }  # fmt: skip
    return np.asarray(_Borrowed(interface, give_back)).view(dtype)


def expect_host(kind: int, number: int) -> None:
    """Raise DeviceError where a DLPack device is not the host."""
    if kind not in HOSTS:
        name = _DEVICES.get(kind, f"device type {kind}")
        raise DeviceError(
            f"from_dlpack: the data lies elsewhere, got {name}:{number}, expected the CPU; copy "
            "it to the host first"
        )


def _dtype(tensor: Any) -> np.dtype:
    name = _DTYPES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        raise DTypeError(
            f"from_dlpack: dtype is not supported, got kind {tensor.code} of {tensor.bits} bits "
            f"and {tensor.lanes} lanes, expected one of {', '.join(sorted(_KINDS))}"
        )
    return dtypes.as_dtype(name)


def lent_capsule(
    array: np.ndarray,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a capsule of an array on the host, as ``__dlpack__`` of the array API asks for it.

    numpy makes the capsule, of unsigned integers where it cannot hand the dtype over, and the
    dtype is put right in it: whatever frees a capsule may run while an exception is on its way or
    Python ends, and so must be C. Before numpy 2.1 there are only capsules without a version.

    Raises:
        BufferError: where another device is asked for, or a capsule without version for memory
            that may only be read.
    """
    if stream is not None:
        raise BufferError(
            f"Tensor.__dlpack__: stream must be None on the CPU, got {stream}, expected None"
        )
    if dl_device is not None and tuple(map(int, dl_device)) != _CPU:
        raise BufferError(
            f"Tensor.__dlpack__: the data lies on another device, got {dl_device}, expected {_CPU}"
        )
    versioned = max_version is not None and max_version[0] >= 1 and _VERSIONS
    array = array.copy() if copy else array
    if not array.flags.writeable and not versioned:
        raise BufferError(
            "Tensor.__dlpack__: the memory may only be read, which only capsules of version 1 say; "
            "got an older one asked for, expected max_version=(1, 0) or copy=True"
        )
    carrier = array if array.dtype.kind in "iufc" else array.view(f"u{array.itemsize}")
    asked: dict[str, Any] = {"max_version": (1, 0)} if versioned else {}
    capsule = carrier.__dlpack__(**asked)
    kind, name = (_ManagedVersioned, _VERSIONED) if versioned else (_Managed, _PLAIN)
    managed: Any = kind.from_address(_capsule_pointer(capsule, name))
    managed.tensor.code, managed.tensor.bits = _KINDS[array.dtype.name]
    if versioned and copy:
        managed.flags |= _COPIED
    return capsule


__all__ = ["HOSTS", "borrowed_array", "expect_host", "lent_capsule"]
