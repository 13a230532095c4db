"""Load a state dict as a whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from ..errors import StateDictError
from ..imperative.tensor import Tensor
from ..shapes import format_shape

Source = dict[str, Any] | Callable[[str, Tensor], "np.ndarray | None"]


def load(
    owner: str,
    tensors: dict[str, Tensor],
    source: Source,
    strict: bool,
    flat: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Give tensors the values of a state dict; return missing and unexpected names.

    ``flat`` names the tensors that take an array of another shape and as many elements.

    Raises:
        StateDictError: where names are missing or unexpected and ``strict`` is set, or a value
            has another shape; nothing has been changed then.
    """
    found = {}
    for name, tensor in tensors.items():
        value = source(name, tensor) if callable(source) else source.get(name)
        if value is not None:
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            shape = tuple(map(int, tensor.shape))
            fits = name in flat and array.size == math.prod(shape)
            found[name] = array.reshape(shape) if fits else array
    missing = [name for name in tensors if name not in found]
    unexpected = [] if callable(source) else [name for name in source if name not in tensors]
    misshaped = [
        f"{name} got {format_shape(value.shape)}, expected {format_shape(tensors[name].shape)}"
        for name, value in found.items()
        if value.shape != tuple(map(int, tensors[name].shape))
    ]
    _check(owner, missing if strict else (), unexpected if strict else (), misshaped)
    for name, value in found.items():
        tensor = tensors[name]
        tensor._reset(Tensor(value, dtype=tensor.dtype, device=tensor.device))
    return missing, unexpected


def _check(
    owner: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    misshaped: Iterable[str],
) -> None:
    """Raise StateDictError that names all that does not fit."""
    problems = [
        f"{what}: {', '.join(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshaped),
        )
        if names
    ]
    if problems:
        raise StateDictError(
            f"{owner}.load_state_dict: the state dict does not fit, got " + "; ".join(problems)
        )
