"""Hand tensors over to other frameworks and take theirs, sharing memory through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..errors import DeviceError, DTypeError
from ..imperative.tensor import Tensor, wrap
from ..op import TensorSpec

_CPU, _CPU_PINNED = 1, 3  # DLDeviceType


class _Holder:
    """What numpy wants to be given in place of a bare capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)


def to_dlpack(tensor: Tensor, stream: int | None = None) -> Any:
    """Return a DLPack capsule that shares memory with a tensor; it can be consumed once.

    Most frameworks take the tensor itself (``torch.from_dlpack(tensor)``). Whoever writes to the
    shared memory changes the tensor.

    Raises:
        BufferError: where DLPack knows no such dtype to numpy, as for bfloat16.
        TraceError: inside a trace, where the value is not known.
    """
    return tensor.__dlpack__(stream=stream)


def from_dlpack(ext_tensor: Any, stream: int | None = None) -> Tensor:
    """Return a tensor that shares memory with another framework's, where its order is C.

    A tensor in another order is copied. What the other framework writes to the memory later shows
    in the tensor; a program that updates the tensor in place gives it memory of its own first.

    Args:
        ext_tensor: an object with ``__dlpack__``, such as a numpy array or a torch tensor on the
            CPU, or a capsule of one on the CPU.
        stream: must be None on the CPU.

    Raises:
        DeviceError: where the data lies on another device than the CPU.
        DTypeError: where Tianyuan has no such dtype.
        TypeError: where the object cannot hand its data over.
    """
    source = ext_tensor
    if type(ext_tensor).__name__ == "PyCapsule":
        source = _Holder(ext_tensor)
    elif not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(
            f"from_dlpack: cannot be handed over, got {type(ext_tensor).__name__}, expected an "
            "object with __dlpack__ or a capsule"
        )
    kind, number = source.__dlpack_device__()
    if kind not in (_CPU, _CPU_PINNED):
        raise DeviceError(
            f"from_dlpack: the data lies on device ({kind}, {number}), expected the CPU"
        )
    try:
        array: np.ndarray = np.from_dlpack(source)
    except BufferError as error:
        raise DTypeError(f"from_dlpack: {error}") from error
    if array.dtype.name not in dtypes.CODES:
        raise DTypeError(f"from_dlpack: dtype is not supported, got {array.dtype}")
    data = np.asarray(array, order="C")
    return wrap(data, TensorSpec(data.shape, data.dtype))
