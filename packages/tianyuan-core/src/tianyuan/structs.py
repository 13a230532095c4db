"""Mirror for ctypes what native plugins offer by capsules: tables of kernels, and thread pools."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from .abi import ABI_VERSION
from .errors import PluginError
from .kernel import CFunction

KERNEL_TABLE_CAPSULE = b"tianyuan.kernel_table.v1"
THREAD_POOL_CAPSULE = b"tianyuan.thread_pool.v1"


class TyKernel(ctypes.Structure):
    """``ty_kernel`` of abi.h."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
    ]


class TyKernelTable(ctypes.Structure):
    """``ty_kernel_table`` of abi.h."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("count", ctypes.c_int64),
        ("kernels", ctypes.c_void_p),
    ]


class TyThreadPool(ctypes.Structure):
    """``ty_thread_pool`` of abi.h."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("self", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("size", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)),
        ("resize", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def capsule_pointer(capsule: Any, name: bytes) -> int:
    try:
        address: int = _get_pointer(capsule, name)
    except ValueError as error:
        raise PluginError(
            f"native: not the capsule that is needed, got {type(capsule).__name__} ({error}), "
            f"expected a capsule named {name.decode()!r}"
        ) from None
    return address


class KernelFunctions(Mapping[str, CFunction]):
    """The functions of a ``ty_kernel_table`` capsule by kernel name, in the table's order.

    A process runs few of a table's kernels, so that of the others no more is kept here than what
    finds them: the hash of the name.

    Raises:
        PluginError: where it is another capsule, or of another ABI version.
    """

    def __init__(self, capsule: Any) -> None:
        table = TyKernelTable.from_address(capsule_pointer(capsule, KERNEL_TABLE_CAPSULE))
        if table.abi_version != ABI_VERSION:
            raise PluginError(
                f"kernel table: ABI version differs, got {table.abi_version}, "
                f"expected {ABI_VERSION}"
            )
        self._capsule = capsule
        self._entries = table.kernels
        # An entry may be longer than ours where a later minor version added fields.
        self._stride = TyKernel.from_address(table.kernels).struct_size if table.count else 0
        self._count: int = table.count
        self._hashes = b"".join(map(_hashed, self._names()))

    def _entry(self, index: int) -> TyKernel:
        return TyKernel.from_address(self._entries + index * self._stride)

    def _names(self) -> Iterator[bytes]:
        for index in range(self._count):
            entry = self._entry(index)
            if entry.abi_version != ABI_VERSION:
                raise PluginError(
                    f"kernel table: entry {index} has another ABI version, "
                    f"got {entry.abi_version}, expected {ABI_VERSION}"
                )
            yield entry.name

    def __getitem__(self, name: str) -> CFunction:
        encoded = name.encode()
        wanted = _hashed(encoded)
        at = self._hashes.find(wanted)
        while at >= 0:
            index, beyond = divmod(at, len(wanted))
            if beyond == 0 and self._entry(index).name == encoded:
                return CFunction(self._entry(index).run, self._capsule)
            at = self._hashes.find(wanted, at + 1)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self._names())

    def __len__(self) -> int:
        return self._count


def _hashed(name: bytes) -> bytes:
    return hash(name).to_bytes(8, "little", signed=True)
