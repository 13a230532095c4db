"""Train products with a weight as their integer forms will compute them; linear maps."""

from __future__ import annotations

import math
from typing import Any

import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor

from ..registration import register_qat
from .module import QATModule, as_read

# A channel whose scale is smaller than this is scaled by this instead, and back again.
_LEAST_FACTOR = 1e-8
BOUNDS = {
    "identity": (-float("inf"), float("inf")),
    "relu": (0.0, float("inf")),
    "relu6": (0.0, 6.0),
}


def activate(x: Tensor, epilogue: str) -> Tensor:
    """Apply what only bounds a result."""
    if epilogue == "identity":
        return x
    result: Tensor = F.nn.relu(x) if epilogue == "relu" else F.nn.relu6(x)
    return result


def product_flops(weight: tuple[int, ...], bias: Any, outputs: Any) -> int:
    """Return a product's operations, one for each multiplication with its addition.

    ``weight`` is the shape: (outputs, ...).

    >>> product_flops((2, 3), None, (Tensor([[1.0, 2.0]]),))
    6
    """
    each = math.prod(map(int, weight[1:]))
    return int(outputs[0].size) * (each + (bias is not None))


class QATProduct(QATModule):
    """Base of layers with a weight: product, batch normalisation folded in, bound, quantised.

    In training the weight is quantised as the running statistics scale it, and the batch's
    statistics normalise what comes out (R. Krishnamoorthi, Quantizing deep convolutional networks
    for efficient inference, 2018, section 3.2.2).

    >>> form = Linear.from_float_module(M.Linear(3, 2))
    >>> isinstance(form, QATProduct), form.folded()[0].shape
    (True, (2, 3))
    """

    epilogue = "identity"
    channel_axis = -1  # of results

    def layer(self) -> Any:
        """Return the float module that holds weight and bias."""
        return self

    def norm(self) -> Any:
        """Return the batch normalisation, or None."""
        return None

    def calc(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the product with another weight and bias."""
        raise NotImplementedError

    def plain_weight(self) -> Tensor:
        """Return the weight with output channels first."""
        weight: Tensor = self.layer().weight
        return weight

    def replace_weight(self, folded: Tensor) -> None:
        """Set the weight so that ``folded`` gives this one."""
        if self.norm() is not None:
            folded = folded / F.reshape(self._factor(), (-1, *(1,) * (folded.ndim - 1)))
        weight = self.layer().weight
        weight[...] = F.reshape(self.unarranged(folded), weight.shape)

    def unarranged(self, weight: Tensor) -> Tensor:
        """Return a weight with output channels first as the float layer holds it."""
        return weight

    def channels(self, values: Tensor) -> Tensor:
        """Shape one value per output channel to meet results."""
        raise NotImplementedError

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        """Count the product; what normalises is folded into it."""
        return product_flops(self.plain_weight().shape, self.layer().bias, outputs)

    def forward(self, inp: Tensor) -> Tensor:
        """Return what the float module does, as quantised weights and results give it."""
        norm, inp = self.norm(), as_read(inp)
        if norm is None:
            weight = self.apply_quant_weight(self.plain_weight())
            y = self.calc(inp, weight, self._rounded(self.flat_bias(), inp))
        elif norm.training and not norm.freeze:
            y = self._normalised(inp, norm)
        else:
            weight, bias = self.folded()
            weight = self.apply_quant_weight(weight)
            y = self.calc(inp, weight, self._rounded(bias, inp))
        return self.apply_quant_activation(activate(y, self.epilogue))

    def flat_bias(self) -> Tensor | None:
        """Return the bias as (channels,), or None."""
        bias = self.layer().bias
        return None if bias is None else F.reshape(bias, (-1,))

    def _rounded(self, bias: Tensor | None, inp: Tensor) -> Tensor | None:
        """Return the bias as integers will have it; those are what evaluation is about."""
        return bias if self.training else self.apply_quant_bias(bias, inp)

    def _factor(self) -> Tensor:
        """Return what batch normalisation multiplies each output channel by."""
        norm = self.norm()
        spread = F.sqrt(norm.running_var + norm.eps)
        factor = 1.0 / spread if norm.weight is None else norm.weight / spread
        factor = F.reshape(factor, (-1,))
        tiny = F.less(F.abs(factor), _LEAST_FACTOR)
        result: Tensor = F.where(tiny, F.full_like(factor, _LEAST_FACTOR), factor)
        return result

    def _scaled_weight(self, factor: Tensor) -> Tensor:
        weight = self.plain_weight()
        result: Tensor = weight * F.reshape(factor, (-1, *(1,) * (weight.ndim - 1)))
        return result

    def _normalised(self, inp: Tensor, norm: Any) -> Tensor:
        factor = self._factor()
        weight = self.apply_quant_weight(self._scaled_weight(factor))
        y = self.calc(inp, weight, None) / self.channels(factor)
        bias = self.flat_bias()
        result: Tensor = norm(y if bias is None else y + self.channels(bias))
        return result

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias with the running statistics folded in, before quantisation."""
        norm, bias = self.norm(), self.flat_bias()
        if norm is None:
            return self.plain_weight(), bias
        factor, mean = self._factor(), F.reshape(norm.running_mean, (-1,))
        shift = -mean if bias is None else bias - mean
        shift = shift * factor
        if norm.bias is not None:
            shift = shift + F.reshape(norm.bias, (-1,))
        return self._scaled_weight(factor), shift


class _LinearMap(QATProduct):
    def channels(self, values: Tensor) -> Tensor:
        return values

    def calc(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = F.nn.linear(inp, weight, bias)
        return result


class _WithLinear:
    linear: Any
    bn: Any

    def layer(self) -> Any:
        return self.linear

    def norm(self) -> Any:
        return self.bn


@register_qat(M.Linear)
class Linear(_LinearMap, M.Linear):
    """``Linear`` in training form.

    >>> Linear.from_float_module(M.Linear(3, 2))(F.ones((4, 3))).shape
    (4, 2)
    """


@register_qat(M.LinearRelu)
class LinearRelu(_LinearMap, M.LinearRelu):
    """``LinearRelu`` in training form.

    >>> LinearRelu.from_float_module(M.LinearRelu(3, 2))(F.ones((4, 3))).shape
    (4, 2)
    """

    epilogue = "relu"


@register_qat(M.LinearBn1d)
class LinearBn1d(_WithLinear, _LinearMap, M.LinearBn1d):
    """``LinearBn1d`` in training form.

    >>> LinearBn1d.from_float_module(M.LinearBn1d(3, 2))(F.ones((4, 3))).shape
    (4, 2)
    """


@register_qat(M.LinearBnRelu1d)
class LinearBnRelu1d(_WithLinear, _LinearMap, M.LinearBnRelu1d):
    """``LinearBnRelu1d`` in training form.

    >>> LinearBnRelu1d.from_float_module(M.LinearBnRelu1d(3, 2))(F.ones((4, 3))).shape
    (4, 2)
    """

    epilogue = "relu"
