"""Train what has no weight of its own: stubs, elementwise functions, joining; batched products."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor

from ..config import QConfig
from ..registration import register_qat
from .module import QATModule, as_read


@register_qat(M.QuantStub)
class QuantStub(QATModule, M.QuantStub):
    """Quantise what enters a network.

    >>> QuantStub.from_float_module(M.QuantStub())(Tensor([1.5])).tolist()
    [1.5]
    """

    with_weight = False

    def forward(self, inp: Tensor) -> Tensor:
        """Return the input, watched and fake-quantised."""
        return self.apply_quant_activation(inp)


@register_qat(M.DequantStub)
class DequantStub(QATModule, M.DequantStub):
    """Leave the quantised part of a network.

    >>> DequantStub.from_float_module(M.DequantStub())(Tensor([1.5])).tolist()
    [1.5]
    """

    with_weight = False
    with_act = False

    def forward(self, inp: Tensor) -> Tensor:
        """Return the input."""
        return inp


@register_qat(M.Elemwise)
class Elemwise(QATModule, M.Elemwise):
    """An elementwise function whose result is quantised.

    >>> Elemwise.from_float_module(M.Elemwise("add"))(Tensor([1.5]), Tensor([2.0])).tolist()
    [3.5]
    """

    with_weight = False

    def forward(self, *inps: Tensor) -> Tensor:
        """Return the function of the inputs, watched and fake-quantised."""
        return self.apply_quant_activation(M.Elemwise.forward(self, *inps))


@register_qat(M.Concat)
class Concat(QATModule, M.Concat):
    """Joined tensors, brought to one scale.

    >>> Concat.from_float_module(M.Concat())([Tensor([1.5]), Tensor([2.0])]).tolist()
    [1.5, 2.0]
    """

    with_weight = False

    def forward(self, inps: Iterable[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors joined along an axis, watched and fake-quantised."""
        return self.apply_quant_activation(F.concat(list(inps), axis))


@register_qat(M.BatchMatMulActivation)
class BatchMatMulActivation(QATModule, M.BatchMatMulActivation):
    """One matrix for each item of a batch, quantised.

    >>> form = BatchMatMulActivation.from_float_module(M.BatchMatMulActivation(2, 3, 4))
    >>> form(F.ones((2, 3, 5))).shape
    (2, 4, 5)
    """

    nonlinear_mode: str
    weight: Any
    bias: Any

    def set_qconfig(self, qconfig: QConfig) -> None:
        """Take observers and fake quantisers of a configuration; the weight has one scale."""
        super().set_qconfig(qconfig)
        if getattr(self.weight_observer, "channel_axis", None) is not None:
            self.weight_observer.channel_axis = None  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        """Return the product, watched and fake-quantised."""
        x = as_read(x)
        y = F.matmul(self.apply_quant_weight(self.weight), x)
        bias = self.bias if self.training else self.apply_quant_bias(self.bias, x)
        y = y if bias is None else y + bias
        y = F.nn.relu(y) if self.nonlinear_mode == "relu" else y
        return self.apply_quant_activation(y)
