"""Train convolutions of one to three axes, plain and transposed, as integers will compute them."""

from __future__ import annotations

import math
from typing import Any

import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.functional.conv import plain_weight
from tianyuan.functional.quantized import turned_weight

from ..registration import register_qat
from .product import QATProduct


def transposed_flops(weight: tuple[int, ...], bias: Any, inputs: Any, outputs: Any) -> int:
    """Return a transposed convolution's operations, of a weight with output channels first.

    >>> x = F.zeros((1, 2, 5, 5))
    >>> transposed_flops((3, 2, 3, 3), None, (x,), (F.zeros((1, 3, 7, 7)),))
    1350
    """
    of_input = int(inputs[0].size) * math.prod(map(int, weight)) // int(inputs[0].shape[1])
    return of_input + int(outputs[0].size) * (bias is not None)


class Convolution(QATProduct):
    """Base of convolutions: channels are the second axis, of however many.

    >>> form = Conv1d.from_float_module(M.Conv1d(2, 4, 3, groups=2))
    >>> isinstance(form, Convolution), form.plain_weight().shape, form.folded()[1].shape
    (True, (4, 1, 3), (4,))
    """

    channel_axis = 1

    def _plain(self) -> Tensor:
        """Return the weight of the float layer without an axis of groups."""
        own = self.layer()
        return plain_weight(type(own).__name__, own.weight, own.groups, self._rank())

    def _rank(self) -> int:
        return len(self.layer()._infer_bias_shape())

    def plain_weight(self) -> Tensor:
        """Return the weight with output channels first."""
        return self._plain()

    def channels(self, values: Tensor) -> Tensor:
        """Shape one value per output channel to meet results."""
        result: Tensor = F.reshape(values, (1, -1, *(1,) * (self._rank() - 2)))
        return result

    def calc(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the convolution with another weight and bias."""
        result: Tensor = self.layer().calc_conv(inp, self.unarranged(weight), bias)
        return result


class Transposed(Convolution):
    """Base of transposed convolutions, which hold the weight as that of a spread input.

    >>> form = ConvTranspose1d.from_float_module(M.ConvTranspose1d(2, 4, 3))
    >>> form.plain_weight().shape
    (4, 2, 3)
    """

    def plain_weight(self) -> Tensor:
        """Return the weight with output channels first, its window turned."""
        return turned_weight(type(self).__name__, self._plain(), self.layer().groups)

    def unarranged(self, weight: Tensor) -> Tensor:
        """Return a weight with output channels first as the float layer holds it."""
        return turned_weight(type(self).__name__, weight, self.layer().groups)

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        return transposed_flops(self.plain_weight().shape, self.layer().bias, inputs, outputs)


class _WithConv:
    conv: Any
    bn: Any

    def layer(self) -> Any:
        return self.conv

    def norm(self) -> Any:
        return self.bn


class _WithTransposed:
    conv_transpose2d: Any
    bn: Any

    def layer(self) -> Any:
        return self.conv_transpose2d

    def norm(self) -> Any:
        return self.bn


@register_qat(M.Conv1d)
class Conv1d(Convolution, M.Conv1d):
    """``Conv1d`` in training form.

    >>> form = Conv1d.from_float_module(M.Conv1d(1, 2, 3))
    >>> form(F.ones((1, 1, 3))).shape
    (1, 2, 1)
    """


@register_qat(M.ConvRelu1d)
class ConvRelu1d(Convolution, M.ConvRelu1d):
    """``ConvRelu1d`` in training form.

    >>> form = ConvRelu1d.from_float_module(M.ConvRelu1d(1, 2, 3))
    >>> form(F.ones((1, 1, 3))).shape
    (1, 2, 1)
    """

    epilogue = "relu"


@register_qat(M.ConvBn1d)
class ConvBn1d(_WithConv, Convolution, M.ConvBn1d):
    """``ConvBn1d`` in training form.

    >>> form = ConvBn1d.from_float_module(M.ConvBn1d(1, 2, 3))
    >>> form(F.ones((1, 1, 3))).shape
    (1, 2, 1)
    """


@register_qat(M.ConvBnRelu1d)
class ConvBnRelu1d(_WithConv, Convolution, M.ConvBnRelu1d):
    """``ConvBnRelu1d`` in training form.

    >>> form = ConvBnRelu1d.from_float_module(M.ConvBnRelu1d(1, 2, 3))
    >>> form(F.ones((1, 1, 3))).shape
    (1, 2, 1)
    """

    epilogue = "relu"


@register_qat(M.Conv2d)
class Conv2d(Convolution, M.Conv2d):
    """``Conv2d`` in training form.

    >>> form = Conv2d.from_float_module(M.Conv2d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3))).shape
    (1, 2, 1, 1)
    """


@register_qat(M.ConvRelu2d)
class ConvRelu2d(Convolution, M.ConvRelu2d):
    """``ConvRelu2d`` in training form.

    >>> form = ConvRelu2d.from_float_module(M.ConvRelu2d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3))).shape
    (1, 2, 1, 1)
    """

    epilogue = "relu"


@register_qat(M.ConvBn2d)
class ConvBn2d(_WithConv, Convolution, M.ConvBn2d):
    """``ConvBn2d`` in training form.

    >>> form = ConvBn2d.from_float_module(M.ConvBn2d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3))).shape
    (1, 2, 1, 1)
    """


@register_qat(M.ConvBnRelu2d)
class ConvBnRelu2d(_WithConv, Convolution, M.ConvBnRelu2d):
    """``ConvBnRelu2d`` in training form.

    >>> form = ConvBnRelu2d.from_float_module(M.ConvBnRelu2d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3))).shape
    (1, 2, 1, 1)
    """

    epilogue = "relu"


@register_qat(M.Conv3d)
class Conv3d(Convolution, M.Conv3d):
    """``Conv3d`` in training form.

    >>> form = Conv3d.from_float_module(M.Conv3d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3, 3))).shape
    (1, 2, 1, 1, 1)
    """


@register_qat(M.ConvRelu3d)
class ConvRelu3d(Convolution, M.ConvRelu3d):
    """``ConvRelu3d`` in training form.

    >>> form = ConvRelu3d.from_float_module(M.ConvRelu3d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3, 3))).shape
    (1, 2, 1, 1, 1)
    """

    epilogue = "relu"


@register_qat(M.ConvBn3d)
class ConvBn3d(_WithConv, Convolution, M.ConvBn3d):
    """``ConvBn3d`` in training form.

    >>> form = ConvBn3d.from_float_module(M.ConvBn3d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3, 3))).shape
    (1, 2, 1, 1, 1)
    """


@register_qat(M.ConvBnRelu3d)
class ConvBnRelu3d(_WithConv, Convolution, M.ConvBnRelu3d):
    """``ConvBnRelu3d`` in training form.

    >>> form = ConvBnRelu3d.from_float_module(M.ConvBnRelu3d(1, 2, 3))
    >>> form(F.ones((1, 1, 3, 3, 3))).shape
    (1, 2, 1, 1, 1)
    """

    epilogue = "relu"


@register_qat(M.ConvTranspose1d)
class ConvTranspose1d(Transposed, M.ConvTranspose1d):
    """``ConvTranspose1d`` in training form.

    >>> form = ConvTranspose1d.from_float_module(M.ConvTranspose1d(1, 2, 3))
    >>> form(F.ones((1, 1, 2))).shape
    (1, 2, 4)
    """


@register_qat(M.ConvTranspose2d)
class ConvTranspose2d(Transposed, M.ConvTranspose2d):
    """``ConvTranspose2d`` in training form.

    >>> form = ConvTranspose2d.from_float_module(M.ConvTranspose2d(1, 2, 3))
    >>> form(F.ones((1, 1, 2, 2))).shape
    (1, 2, 4, 4)
    """


@register_qat(M.ConvTransposeRelu2d)
class ConvTransposeRelu2d(Transposed, M.ConvTransposeRelu2d):
    """``ConvTransposeRelu2d`` in training form.

    >>> form = ConvTransposeRelu2d.from_float_module(M.ConvTransposeRelu2d(1, 2, 3))
    >>> form(F.ones((1, 1, 2, 2))).shape
    (1, 2, 4, 4)
    """

    epilogue = "relu"


@register_qat(M.ConvTransposeBn2d)
class ConvTransposeBn2d(_WithTransposed, Transposed, M.ConvTransposeBn2d):
    """``ConvTransposeBn2d`` in training form.

    >>> form = ConvTransposeBn2d.from_float_module(M.ConvTransposeBn2d(1, 2, 3))
    >>> form(F.ones((1, 1, 2, 2))).shape
    (1, 2, 4, 4)
    """


@register_qat(M.ConvTransposeBnRelu2d)
class ConvTransposeBnRelu2d(_WithTransposed, Transposed, M.ConvTransposeBnRelu2d):
    """``ConvTransposeBnRelu2d`` in training form.

    >>> form = ConvTransposeBnRelu2d.from_float_module(M.ConvTransposeBnRelu2d(1, 2, 3))
    >>> form(F.ones((1, 1, 2, 2))).shape
    (1, 2, 4, 4)
    """

    epilogue = "relu"


@register_qat(M.ConvTranspose3d)
class ConvTranspose3d(Transposed, M.ConvTranspose3d):
    """``ConvTranspose3d`` in training form.

    >>> form = ConvTranspose3d.from_float_module(M.ConvTranspose3d(1, 2, 3))
    >>> form(F.ones((1, 1, 2, 2, 2))).shape
    (1, 2, 4, 4, 4)
    """
