"""Hand arrays and tensors to PyTorch and take its tensors, sharing memory where dtypes allow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import BackendError
from ..imperative.dispatch import host_array
from ..imperative.tensor import Tensor


def torch_module() -> Any:
    """Return the torch package.

    Raises:
        BackendError: where it is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise BackendError(
            f"tianyuan.torch: needs PyTorch, which cannot be imported ({error}); expected "
            '`pip install "torch>=2.6"`'
        ) from error


def to_torch(state_dict: Any) -> Any:
    """Turn a state dict, an array or a tensor into torch tensors that share its memory.

    Args:
        state_dict: arrays or tensors by name, or one of them. Read-only arrays are copied, because
            torch knows no such tensors.

    Returns:
        torch tensors by name in the same order, or one torch tensor. Keep to reading them, or
        clone them: the memory is that of the given arrays.

    Raises:
        BackendError: where torch is not installed.
        TypeError: for anything else, with its name.

    >>> to_torch({"weight": np.array([1.0, 2.0])})
    {'weight': tensor([1., 2.], dtype=torch.float64)}
    """
    if isinstance(state_dict, Mapping):
        return type(state_dict)(
            (name, _to_torch(value, name)) for name, value in state_dict.items()
        )  # type: ignore[call-arg]
    return _to_torch(state_dict, "value")


def _to_torch(value: Any, name: str) -> Any:
    torch = torch_module()
    if isinstance(value, Tensor):
        value = host_array(value, value._concrete("to_torch"))
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(
            f"to_torch: {name} cannot be handed over, got {type(value).__name__}, expected an "
            "array or a Tensor"
        )
    array = np.asarray(value, order="C")
    array = array if array.flags.writeable else array.copy()
    if dtypes.name_of(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(value: Any) -> Any:
    """Return numpy arrays that share memory with torch tensors on the CPU, bfloat16 included.

    Takes a tensor, or a mapping of names to tensors such as a ``state_dict()``, of which it returns
    an ``OrderedDict``. A tensor on another device is copied to the host first.

    Raises:
        TypeError: where something is no tensor; it is named.

    >>> import torch
    >>> from_torch(torch.tensor([1.0, 2.0]))
    array([1., 2.], dtype=float32)
    >>> list(from_torch(torch.nn.Linear(2, 1).state_dict()))
    ['weight', 'bias']
    """
    if isinstance(value, Mapping):
        return OrderedDict((name, _from_torch(item, name)) for name, item in value.items())
    return _from_torch(value, "the value")


def _from_torch(value: Any, name: str) -> np.ndarray:
    torch = torch_module()
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"from_torch: {name} cannot be handed over, got {type(value).__name__}, expected a "
            "torch tensor"
        )
    host = value.detach().cpu()
    if host.dtype == torch.bfloat16:
        found: np.ndarray = host.view(torch.int16).numpy().view(dtypes.as_dtype("bfloat16"))
        return found
    array: np.ndarray = host.numpy()
    return array
