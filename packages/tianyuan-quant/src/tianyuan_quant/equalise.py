"""Spread the ranges of channels evenly over two layers that follow each other, at no loss.

M. Nagel et al., Data-free quantization through weight equalization and bias correction, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.module import Module
from tianyuan.module.conv import ConvNd

from .checks import inputs_of, network_of
from .fuse import fuse
from .registration import qat_classes
from .watch import Event, Flow, watch

_ROUNDS = 40
_SETTLED = 1e-3
_LAYERS: dict[Any, str | None] = {
    M.Conv1d: None, M.ConvRelu1d: None, M.ConvBn1d: "conv", M.ConvBnRelu1d: "conv",
    M.Conv2d: None, M.ConvRelu2d: None, M.ConvBn2d: "conv", M.ConvBnRelu2d: "conv",
    M.Conv3d: None, M.ConvRelu3d: None, M.ConvBn3d: "conv", M.ConvBnRelu3d: "conv",
    M.Linear: None, M.LinearRelu: None, M.LinearBn1d: "linear", M.LinearBnRelu1d: "linear",
}  # fmt: skip
# What commutes with positive factors by channel.
_THROUGH = frozenset({"relu", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"})


@dataclass(frozen=True)
class _Side:
    """A layer of a pair, its normalisation if it has one."""

    layer: Any
    norm: Any

    def by_output(self) -> np.ndarray:
        """Return the weight as (out, ...), as the normalisation scales it."""
        weight = self.layer.weight.numpy()
        rows = weight.reshape(-1, *weight.shape[self._lead() :])
        if self.norm is None:
            return np.asarray(rows)
        factor = 1 / np.sqrt(self.norm.running_var.numpy() + self.norm.eps)
        if self.norm.weight is not None:
            factor = factor * self.norm.weight.numpy()
        return np.asarray(rows * factor.reshape(-1, *(1,) * (rows.ndim - 1)))

    def _lead(self) -> int:
        """Return how many axes of the weight count output channels: groups may stand apart."""
        bias = self.layer._infer_bias_shape() if isinstance(self.layer, ConvNd) else (1, 1)
        return int(self.layer.weight.ndim) + 1 - len(bias)

    def output_range(self) -> np.ndarray:
        """Return the largest magnitude of what makes each output channel."""
        rows = self.by_output()
        return np.asarray(np.abs(rows).reshape(rows.shape[0], -1).max(axis=1))

    def input_range(self) -> np.ndarray:
        """Return the largest magnitude of what meets each input channel."""
        full = np.abs(self.by_output())
        apart = full.reshape(self._groups(), -1, *full.shape[1:])
        axes = tuple(axis for axis in range(apart.ndim) if axis not in (0, 2))
        return np.asarray(apart.max(axis=axes).reshape(-1))

    def _groups(self) -> int:
        return int(getattr(self.layer, "groups", 1))

    def scale_output(self, factor: np.ndarray) -> None:
        """Multiply what comes out by positive factors."""
        if self.norm is not None:
            for part in (self.norm.weight, self.norm.bias):
                _multiply(part, factor.reshape(part.shape))
            return
        weight, lead = self.layer.weight, self._lead()
        _multiply(weight, factor.reshape(*weight.shape[:lead], *(1,) * (weight.ndim - lead)))
        if self.layer.bias is not None:
            _multiply(self.layer.bias, factor.reshape(self.layer.bias.shape))

    def scale_input(self, factor: np.ndarray) -> None:
        """Multiply the weights that meet each input channel."""
        weight, lead, groups = self.layer.weight, self._lead(), self._groups()
        outputs = int(np.prod(weight.shape[:lead]))
        rows = np.repeat(factor.reshape(groups, -1), outputs // groups, axis=0)
        _multiply(weight, rows.reshape(*weight.shape[: lead + 1], *(1,) * (weight.ndim - lead - 1)))


def _multiply(target: Any, factor: np.ndarray) -> None:
    target[...] = target * Tensor(np.ascontiguousarray(factor, np.float32))


def equalize(net: Module, example: Any) -> Module:
    """Equalise the channels of a float network in place, and return it.

    Where a layer alone reads another through nothing but ReLU and pooling, output channel i of the
    first is divided and input channel i of the second multiplied by sqrt(r1 / r2), where r1 and r2
    are the largest magnitudes of their weights: both ranges become sqrt(r1 r2), and the network's
    results stay the same. Layers are joined with normalisation and ReLU on the way.

    Args:
        net: the network, which is put into evaluation form.
        example: an input, a tuple of them, or a dict of them by name.

    Raises:
        AttrError: where no two layers follow each other so.

    >>> net = M.Sequential(M.Linear(2, 2), M.ReLU(), M.Linear(2, 1))
    >>> net[0].weight[...] = Tensor([[100.0, 0.0], [0.0, 1.0]])
    >>> net[2].weight[...] = Tensor([[1.0, 1.0]])
    >>> _ = equalize(net, Tensor([[1.0, 1.0]]))
    >>> net[0].weight.tolist()
    [[10.0, 0.0], [0.0, 1.0]]
    """
    network_of("equalize", net)
    if not equalized(net, inputs_of("equalize", net, example)):
        raise AttrError(
            "equalize: no two layers follow each other through ReLU or pooling only, got "
            f"{type(net).__name__}, expected a network that has such layers"
        )
    return net


def equalized(net: Module, inputs: Sequence[Tensor]) -> bool:
    """Equalise a network in place; tell whether any layers follow each other so.

    >>> net = M.Sequential(M.Linear(2, 2), M.GELU(), M.Linear(2, 1))
    >>> equalized(net, [Tensor([[1.0, 1.0]])])
    False
    """
    net.eval()
    fuse(net, inputs, frozenset(qat_classes()))
    pairs = _pairs(watch(net, inputs, lambda module: type(module) in _LAYERS))
    balance(pairs)
    return bool(pairs)


class Side(Protocol):
    """One of two layers that follow each other."""

    def output_range(self) -> np.ndarray:
        """Return the largest magnitude of what makes each output channel."""

    def input_range(self) -> np.ndarray:
        """Return the largest magnitude of what meets each input channel."""

    def scale_output(self, factor: np.ndarray) -> None:
        """Multiply what comes out by positive factors."""

    def scale_input(self, factor: np.ndarray) -> None:
        """Multiply the weights that meet each input channel."""


def balance(pairs: Sequence[tuple[Side, Side]]) -> None:
    """Equalise pairs of layers until nothing changes any more."""
    for _ in range(_ROUNDS):
        if max((_balanced(first, second) for first, second in pairs), default=0.0) < _SETTLED:
            break


def _balanced(first: Side, second: Side) -> float:
    """Equalise one pair; return by how much the factors differ from one."""
    before, after = first.output_range(), second.input_range()
    known = (before > 0) & (after > 0)
    ratio = np.where(known, before, 1) / np.where(known, after, 1)
    factor = np.sqrt(ratio).astype(np.float32)
    first.scale_output(1 / factor)
    second.scale_input(factor)
    return float(np.abs(np.log(factor)).max(initial=0))


def _pairs(flow: Flow) -> list[tuple[_Side, _Side]]:
    found = []
    for event in flow.events:
        first = _side(flow, event)
        reader = _reader(flow, event) if first is not None else None
        second = None if reader is None else _side(flow, reader)
        if first is None or second is None or not _scalable(first):
            continue
        count = len(first.output_range())
        if count == len(second.input_range()):
            found.append((first, second))
    return found


def _side(flow: Flow, event: Event) -> _Side | None:
    module: Any = event.module
    if type(module) not in _LAYERS or sum(e.module is module for e in flow.events) != 1:
        return None
    inner = _LAYERS[type(module)]
    layer = module if inner is None else getattr(module, inner)
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        return None
    return _Side(layer, None if inner is None else module.bn)


def _scalable(side: _Side) -> bool:
    """Tell whether what comes out can be scaled: by the layer, or by a learned normalisation."""
    return side.norm is None or (side.norm.weight is not None and side.norm.bias is not None)


def _reader(flow: Flow, event: Event) -> Event | None:
    """Return the layer that alone reads a result, through what commutes with factors."""
    found = flow.only_reader(event.outputs[0])
    while found is not None and (found.kind in _THROUGH or isinstance(found.module, M.ReLU)):
        found = flow.only_reader(found.outputs[0])
    return found
