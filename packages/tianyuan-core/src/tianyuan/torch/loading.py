"""Decide which tensor of a torch state dict belongs to which tensor of a Tianyuan module."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import StateDictError
from ..imperative.tensor import Tensor
from ..module import (
    GRU,
    LSTM,
    RNN,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    Module,
    MultiHeadAttention,
)
from .checkpoint import load_checkpoint
from .handover import from_torch

_BATCH_NORMS = (BatchNorm1d, BatchNorm2d)
_CONVOLUTIONS = (Conv1d, Conv2d, Conv3d, ConvTranspose2d)


def load_into(
    module: Module,
    checkpoint: str | os.PathLike[str] | Mapping[str, Any],
    *,
    key: str | None = None,
    prefix: str = "",
    strict: bool = True,
) -> tuple[list[str], list[str]]:
    """Give a module the weights of a torch state dict, as a whole or not at all.

    The module must name its layers as the torch module does. What the two frameworks shape
    differently is translated: biases of convolutions (O,) to (1, O, 1, 1), weights of grouped
    convolutions (O, I/g, …) to (g, O/g, I/g, …), weight, bias and statistics of batch norms (C,)
    to (1, C, 1, 1), the joined projections of multi-head attention, and the cells of recurrent
    layers. ``num_batches_tracked`` is dropped. A batch norm's momentum is no weight: Tianyuan's is
    1 - torch's.

    Args:
        module: what to load into.
        checkpoint: the path of a checkpoint, or a state dict of arrays or torch tensors.
        key: which entry of the file is the state dict; see ``load_checkpoint``.
        prefix: what every name starts with, such as ``"module."``; it is taken off.
        strict: False lets names be missing or unexpected.

    Returns:
        Missing names, as the module calls them, and unexpected ones, as the checkpoint does.

    Raises:
        StateDictError: names everything missing, unexpected and of another shape; nothing has been
            changed then.
        ModelFormatError: where the file cannot be read.

    >>> import tianyuan as ty, tianyuan.module as M
    >>> net = M.Linear(1, 1)
    >>> load_into(net, {"weight": np.array([[2.0]]), "bias": np.array([1.0])})
    ([], [])
    >>> net(ty.Tensor([[3.0]])).item()
    7.0
    """
    if isinstance(checkpoint, (str, os.PathLike)):
        given: Mapping[str, Any] = load_checkpoint(checkpoint, key)
    else:
        given = checkpoint
    source = {_stripped(name, prefix): _as_array(name, value) for name, value in given.items()}
    return module.load_state_dict(_translated(module, source), strict)


def _stripped(name: str, prefix: str) -> str:
    if not name.startswith(prefix):
        raise StateDictError(
            f"load_into: a name lacks the prefix, got {name!r}, expected it to start with "
            f"{prefix!r}"
        )
    return name[len(prefix) :]


def _as_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.numpy()
    if hasattr(value, "detach"):
        held: np.ndarray = from_torch(value)
        return held
    array = np.asarray(value)
    if array.dtype == object:
        raise StateDictError(
            f"load_into: {name!r} is no tensor, got {type(value).__name__}, expected an array"
        )
    return array


def _translated(module: Module, source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a state dict under the module's names and shapes, with what does not fit left in."""
    left = {
        name: value
        for name, value in source.items()
        if name.rpartition(".")[2] != "num_batches_tracked"
    }
    found: dict[str, np.ndarray] = {}
    for path, part in module.named_modules():
        start = f"{path}." if path else ""
        for kinds, rename in _RENAMED:
            if isinstance(part, kinds):
                for old, new, take in rename(part):
                    if start + old in left:
                        found[start + new] = take(left[start + old])
                for old in {old for old, _, _ in rename(part)}:
                    left.pop(start + old, None)
    found.update(left)
    owners: dict[str, tuple[Module, Tensor]] = {}
    for path, part in module.named_modules():
        for name, tensor in part.named_tensors(recursive=False):
            owners.setdefault(f"{path}.{name}" if path else name, (part, tensor))
    for name, (part, tensor) in owners.items():
        if name in found and isinstance(part, (*_BATCH_NORMS, *_CONVOLUTIONS)):
            found[name] = _reshaped(part, found[name], tuple(map(int, tensor.shape)))
    return found


def _reshaped(part: Module, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Give a value the shape that the layer wants, where torch only writes it otherwise."""
    wide = value.ndim == 1 and shape == (1, value.size, *(1,) * (len(shape) - 2))
    grouped = (
        isinstance(part, _CONVOLUTIONS)
        and len(shape) == value.ndim + 1
        and value.shape[1:] == shape[2:]  # (O, I/g, …) becomes (g, O/g, I/g, …)
        and value.size == int(np.prod(shape))
    )
    return value.reshape(shape) if wide or grouped else value


_Rename = tuple[str, str, Callable[[np.ndarray], np.ndarray]]


def _same(value: np.ndarray) -> np.ndarray:
    return value


def _third(number: int) -> Callable[[np.ndarray], np.ndarray]:
    def take(value: np.ndarray) -> np.ndarray:
        if value.ndim == 0 or value.shape[0] % 3:
            return value
        rows = value.shape[0] // 3
        return value[number * rows : (number + 1) * rows]

    return take


def _attention_names(part: Module) -> Iterator[_Rename]:
    for number, letter in enumerate("qkv"):
        yield "in_proj_weight", f"{letter}_proj.weight", _third(number)
        yield "in_proj_bias", f"{letter}_proj.bias", _third(number)
        yield f"{letter}_proj_weight", f"{letter}_proj.weight", _same


def _recurrent_names(part: Module) -> Iterator[_Rename]:
    for name, _ in part.named_tensors():
        match = re.fullmatch(r"cells\.(\d+)\.(\d+)\.(weight|bias)_(ih|hh)", name)
        if match is not None:
            layer, way, kind, side = match.groups()
            yield f"{kind}_{side}_l{layer}{'_reverse' if way == '1' else ''}", name, _same


_RENAMED: tuple[tuple[tuple[type, ...], Callable[[Module], Iterator[_Rename]]], ...] = (
    ((MultiHeadAttention,), _attention_names),
    ((RNN, LSTM, GRU), _recurrent_names),
)
