"""Keep weights as integers and take floats: int8 with activations at run time, int4 alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.ops.quantized_linear import packed_int4, unpacked_int4

from .module import QuantizedModule, emit, floats_of

# Factors of a group's widest range among which the one of least squared error is taken: with two
# bits, half of it is what serves where the least integer, -2, is twice the largest.
_SHARES = np.linspace(0.5, 1.05, 23).astype(np.float32)
_LEAST = np.float32(1e-8)
_REACH = 127  # int8 without -128, so that weights are symmetric


def rounded_rows(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 integers of a weight (out, in), and one scale per row.

    >>> rounded_rows(np.float32([[0.5, -127.0]]))
    (array([[   0, -127]], dtype=int8), array([1.], dtype=float32))
    """
    reach = np.abs(weight).max(axis=1, initial=0).astype(np.float32)
    scales = np.maximum(reach / np.float32(_REACH), _LEAST).astype(np.float32)
    q = np.clip(np.rint(weight / scales[:, None]), -_REACH, _REACH)
    return q.astype(np.int8), scales


def rounded_groups(weight: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return integers of a weight (out, in) in few bits, and one scale per group of neighbours.

    Each scale is the one of several around the widest that makes the least squared error.

    >>> q, scales = rounded_groups(np.float32([[7.0, -14.0, 0.0, 1.0]]), 4, 2)
    >>> q.shape, scales.shape
    ((1, 4), (1, 2))
    """
    rows, inner = weight.shape
    count = -(-inner // group)
    groups = np.pad(weight, ((0, 0), (0, count * group - inner))).reshape(rows, count, group)
    top = 2 ** (bits - 1) - 1
    widest = np.maximum(np.abs(groups).max(axis=2) / np.float32(top), _LEAST).astype(np.float32)
    best, least = widest, np.full(widest.shape, np.inf, np.float32)
    for share in _SHARES:
        scale = np.maximum(widest * share, _LEAST)
        q = np.clip(np.rint(groups / scale[..., None]), -top - 1, top)
        error = np.square(q * scale[..., None] - groups).sum(axis=2)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    q = np.clip(np.rint(groups / best[..., None]), -top - 1, top).astype(np.int8)
    return q.reshape(rows, -1)[:, :inner], best


class _Stored(QuantizedModule):
    """Base of linear maps of floats with a stored weight."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def _keep(self, weight: np.ndarray, scales: np.ndarray, bias: Any) -> None:
        self.weight = Tensor(weight, str(weight.dtype), name=f"{self.owner}.weight")
        self.scales = Tensor(scales, name=f"{self.owner}.scales")
        self.bias = None
        if bias is not None:
            self.bias = Tensor(bias.numpy().reshape(-1), name=f"{self.owner}.bias")

    @staticmethod
    def _weight_of(owner: str, layer: Any) -> np.ndarray:
        """Return the weight of a float linear layer."""
        if not isinstance(layer, M.Linear):
            raise AttrError(f"{owner}: layer is wrong, got {layer!r:.60}, expected module.Linear")
        return np.asarray(layer.weight.numpy())

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        """Count the product; int4 weights lie two in a byte, so the input tells the extent."""
        each = int(inputs[0].shape[-1]) + (self.bias is not None)
        return int(outputs[0].size) * each

    def _run(self, op: str, x: Tensor, **attrs: Any) -> Tensor:
        inputs = [floats_of(x), self.weight, self.scales]
        inputs += [] if self.bias is None else [self.bias]
        return emit(op, *inputs, has_bias=self.bias is not None, **attrs)


class LinearDynamic(_Stored):
    """A linear map whose weight is int8 by rows, and whose input is quantised at run time.

    The input's range and 0 fill uint8; see ``linear_dynamic`` in docs/quantization.md.

    Args:
        layer: a float ``module.Linear``.
        owner: its name in messages.

    >>> import tianyuan.module as M
    >>> layer = M.Linear(2, 1)
    >>> layer.weight[...] = Tensor([[127.0, 0.5]])  # a scale of 1
    >>> LinearDynamic(layer)(Tensor([[255.0, 0.0]])).tolist()
    [[32385.0]]
    """

    def __init__(self, layer: Any, owner: str = "") -> None:
        super().__init__(owner)
        self._keep(*rounded_rows(self._weight_of(self.owner, layer)), layer.bias)

    def float_weight(self) -> np.ndarray:
        """Return the numbers that the stored weight stands for."""
        return np.asarray(self.weight.numpy().astype(np.float32) * self.scales.numpy()[:, None])

    def forward(self, inp: Tensor) -> Tensor:
        """Map floats (..., in) to floats (..., out)."""
        return self._run("linear_dynamic", inp)


class LinearInt4(_Stored):
    """A linear map whose weight is stored in four bits, with a scale for each group of neighbours.

    Args:
        layer: a float ``module.Linear``.
        bits: 2 to 4; fewer use less of the four bits stored.
        group: how many neighbours along the input share a scale.
        owner: its name in messages.

    Raises:
        AttrError: for other counts of bits, or a group that is not positive.

    >>> import tianyuan.module as M
    >>> layer = LinearInt4(M.Linear(64, 3), group=32)
    >>> layer.weight.shape, layer.scales.shape
    ((3, 32), (3, 2))
    """

    def __init__(self, layer: Any, bits: int = 4, group: int = 32, owner: str = "") -> None:
        super().__init__(owner)
        check_int4(self.owner, bits, group)
        q, scales = rounded_groups(self._weight_of(self.owner, layer), bits, group)
        self.in_features, self.group = q.shape[1], group
        self._keep(packed_int4(q), scales, layer.bias)

    def float_weight(self) -> np.ndarray:
        """Return the numbers that the stored weight stands for."""
        q = unpacked_int4(self.weight.numpy(), self.in_features)
        wide = np.repeat(self.scales.numpy(), self.group, axis=1)[:, : self.in_features]
        return np.asarray(q.astype(np.float32) * wide)

    def forward(self, inp: Tensor) -> Tensor:
        """Map floats (..., in) to floats (..., out)."""
        return self._run("linear_int4", inp, group=self.group)


def check_int4(op: str, bits: int, group: int) -> None:
    """Raise AttrError for bits that four cannot hold, or a group that holds nothing."""
    if bits not in (2, 3, 4):
        raise AttrError(f"{op}: bits are wrong, got {bits!r}, expected 2, 3 or 4")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise AttrError(f"{op}: group is wrong, got {group!r}, expected a positive int")
