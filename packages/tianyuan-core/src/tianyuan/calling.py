"""Run C kernels by ctypes, with abi.h's structures mirrored, where no native plugin does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from .abi import ABI_VERSION
from .dtypes import CODES
from .errors import KernelError
from .kernel import MAX_DIMS
from .native import FAILURES

_ERROR_SIZE = 512


class TyTensor(ctypes.Structure):
    """``ty_tensor`` of abi.h."""

    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("struct_size", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("scales", ctypes.c_void_p),
        ("zero_points", ctypes.c_void_p),
        ("quant_count", ctypes.c_int32),
        ("quant_axis", ctypes.c_int32),
    ]


class TyCtx(ctypes.Structure):
    """``ty_ctx`` of abi.h."""


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
_ParallelFor = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(TyCtx),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
TyCtx._fields_ = [
    ("abi_version", ctypes.c_uint32),
    ("struct_size", ctypes.c_uint32),
    ("threads", ctypes.c_int32),
    ("reserved", ctypes.c_int32),
    ("parallel_for", _ParallelFor),
    ("pool", ctypes.c_void_p),
    ("error", ctypes.c_void_p),
    ("error_size", ctypes.c_int64),
    ("ahead", ctypes.c_void_p),
]

_Run = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(TyCtx),
    ctypes.POINTER(TyTensor),
    ctypes.POINTER(TyTensor),
    ctypes.c_void_p,
    ctypes.c_void_p,
)


def _serial_for(ctx: Any, n: int, grain: int, task: int, arg: int) -> None:
    if n > 0:
        _Task(task)(arg, 0, n, 0)


_serial_callback = _ParallelFor(_serial_for)


def _describe(arrays: Sequence[np.ndarray]) -> Any:
    tensors = (TyTensor * max(len(arrays), 1))()
    for tensor, array in zip(tensors, arrays, strict=False):
        if not array.flags.c_contiguous:
            raise KernelError(
                f"kernel: array is not C-contiguous, got strides {array.strides} of shape "
                f"{array.shape}"
            )
        if array.ndim > MAX_DIMS:
            raise KernelError(
                f"kernel: too many dimensions, got {array.ndim}, expected at most {MAX_DIMS}"
            )
        tensor.abi_version = ABI_VERSION
        tensor.struct_size = ctypes.sizeof(TyTensor)
        tensor.data = array.ctypes.data
        tensor.dtype = CODES[array.dtype.name]
        tensor.ndim = array.ndim
        tensor.shape[: array.ndim] = array.shape
        tensor.quant_axis = -1
    return tensors


def invoke(
    address: int,
    attrs: bytes,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    workspace: np.ndarray | None,
) -> None:
    """Run a C kernel on one thread without any native plugin.

    Raises:
        KernelError: where an array cannot be passed or the kernel reports failure; one of
            ``FAILURES`` where its code says so.
    """
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    ctx = TyCtx(
        ABI_VERSION,
        ctypes.sizeof(TyCtx),
        1,
        0,
        _serial_callback,
        None,
        ctypes.addressof(error),
        _ERROR_SIZE,
    )
    code = _Run(address)(
        ctypes.byref(ctx),
        _describe(inputs),
        _describe(outputs),
        ctypes.cast(ctypes.c_char_p(attrs), ctypes.c_void_p),
        None if workspace is None else workspace.ctypes.data,
    )
    if code != 0:
        text = error.value.decode(errors="replace") or f"kernel failed with code {code}"
        raise FAILURES.get(code, KernelError)(text)
