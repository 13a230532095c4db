"""Hand tensors over to other frameworks and take theirs, sharing memory through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DeviceError
from ..imperative.dlpack import borrowed_array, expect_host
from ..imperative.tensor import Tensor, wrap
from ..op import TensorSpec

_NEWEST = (1, 0)


def to_dlpack(tensor: Tensor, stream: int | None = None) -> Any:
    """Return a DLPack capsule that shares memory with a tensor; it can be consumed once.

    Most frameworks take the tensor itself (``torch.from_dlpack(tensor)``). Whoever writes to the
    shared memory changes the tensor.

    Raises:
        BufferError: where the tensor's memory may only be read, as that of a loaded model file.
        TraceError: inside a trace, where the value is not known.

    >>> from_dlpack(to_dlpack(Tensor([1.0, 2.0]))).numpy()
    array([1., 2.], dtype=float32)
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
        DeviceError: where the data lies on another device than the CPU, or a stream is given.
        DTypeError: where Tianyuan has no such dtype.
        TypeError: where the object cannot hand its data over.
        ValueError: where a capsule was taken before.
        BufferError: where the other framework refuses.

    >>> array = np.zeros(2, np.float32)
    >>> tensor = from_dlpack(array)
    >>> array[0] = 3
    >>> tensor.numpy()
    array([3., 0.], dtype=float32)
    """
    if stream is not None:
        raise DeviceError(f"from_dlpack: stream must be None on the CPU, got {stream!r}")
    if type(ext_tensor).__name__ == "PyCapsule":
        capsule = ext_tensor
    elif hasattr(ext_tensor, "__dlpack__") and hasattr(ext_tensor, "__dlpack_device__"):
        expect_host(*map(int, ext_tensor.__dlpack_device__()))
        capsule = _capsule_of(ext_tensor)
    else:
        raise TypeError(
            f"from_dlpack: cannot be handed over, got {type(ext_tensor).__name__}, expected an "
            "object with __dlpack__ and __dlpack_device__, or a capsule"
        )
    data = np.asarray(borrowed_array(capsule), order="C")
    return wrap(data, TensorSpec(data.shape, data.dtype))


def _capsule_of(source: Any) -> Any:
    """Ask for the newest capsule that the source knows to make."""
    try:
        return source.__dlpack__(max_version=_NEWEST)
    except TypeError:  # it is older than versions
        return source.__dlpack__()
