"""Compute convolutions, plain and transposed, in integers."""

from __future__ import annotations

from typing import Any

from tianyuan import Tensor
from tianyuan.errors import AttrError, ShapeError
from tianyuan.functional.arguments import choice, pair, whole
from tianyuan.functional.conv import plain_weight
from tianyuan.functional.quantized import spread_input, turned_weight

from .. import qat
from ..qat.product import transposed_flops
from ..registration import register_quantized
from .module import emit, integers_of
from .product import QuantizedProduct

_CONV_MODES = ("cross_correlation", "convolution")
_PADDING_MODES = ("zeros", "reflect", "replicate")
# What an integer convolution can be asked for as the layer that it was.
_SHARED = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    "conv_mode", "padding_mode",
)  # fmt: skip


class _Convolution(QuantizedProduct):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        padding_mode: str = "zeros",
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(owner, dtype, **kwargs)
        self.in_channels = whole(self.owner, "in_channels", in_channels, 1)
        self.out_channels = whole(self.owner, "out_channels", out_channels, 1)
        self.kernel_size = pair(self.owner, "kernel_size", kernel_size, 1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.output_padding = whole(self.owner, "groups", groups, 1), 0
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise AttrError(
                f"{self.owner}: groups do not divide the channels, got {groups} for {in_channels} "
                f"and {out_channels}, expected a divisor of both"
            )
        self.conv_mode = choice(self.owner, "conv_mode", conv_mode, _CONV_MODES)
        self.padding_mode = choice(self.owner, "padding_mode", padding_mode, _PADDING_MODES)
        self.take(self)

    def take(self, layer: Any) -> None:
        if layer.padding_mode != "zeros" or layer.conv_mode != "cross_correlation":
            raise AttrError(
                f"{self.owner}: only zeros pad an integer convolution, got padding_mode="
                f"{layer.padding_mode!r}, conv_mode={layer.conv_mode!r}, expected 'zeros' and "
                "'cross_correlation'"
            )
        for name in _SHARED:
            setattr(self, name, getattr(layer, name))
        top, left = pair(self.owner, "padding", layer.padding)
        self.geometry: dict[str, Any] = {
            "stride": pair(self.owner, "stride", layer.stride, 1),
            "padding": (top, left, top, left),
            "dilation": pair(self.owner, "dilation", layer.dilation, 1),
            "groups": int(layer.groups),
        }

    def arranged(self, weight: Tensor) -> Tensor:
        plain = plain_weight(self.owner, weight, self.geometry["groups"], 4)
        self.check_weight(plain, "out_channels", "in_channels")
        return plain

    def check_weight(self, plain: Tensor, first: str, second: str) -> None:
        """Raise ShapeError where a weight is not that of the layer which was asked for."""
        wanted = (getattr(self, first), getattr(self, second) // self.groups, *self.kernel_size)
        if tuple(plain.shape) != wanted:
            raise ShapeError(
                f"{self.owner}: weight has the wrong shape, got {tuple(plain.shape)}, expected "
                f"{wanted}"
            )

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised convolution of quantised images."""
        quant, x = self.quantised(inp), integers_of(inp)
        return emit(
            "conv2d_quantized", *self.operands(x, quant), **self.geometry,
            **self.product_attrs(quant),
        )  # fmt: skip


class _Transposed(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, conv_mode,
            compute_mode, dtype, owner=owner, **kwargs,
        )  # fmt: skip
        self.output_padding = output_padding
        self.take(self)

    def take(self, layer: Any) -> None:
        super().take(layer)
        own, self.output_padding = self.geometry, layer.output_padding
        self.places = (
            own["stride"], own["padding"][:2], own["dilation"],
            pair(self.owner, "output_padding", layer.output_padding),
        )  # fmt: skip

    def arranged(self, weight: Tensor) -> Tensor:
        plain = plain_weight(self.owner, weight, self.geometry["groups"], 4)
        self.check_weight(plain, "in_channels", "out_channels")
        return turned_weight(self.owner, plain, self.geometry["groups"])

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        return transposed_flops(self.stored().shape, self.bias, inputs, outputs)

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised transposed convolution, that of a spread input."""
        quant, x = self.quantised(inp), integers_of(inp)
        window = self.stored().shape[2:]
        spread, margins = spread_input(self.owner, x, quant, window, self.places)
        return emit(
            "conv2d_quantized", *self.operands(spread, quant), stride=(1, 1), padding=margins,
            dilation=self.geometry["dilation"], groups=self.geometry["groups"],
            **self.product_attrs(quant),
        )  # fmt: skip


@register_quantized(qat.Conv2d)
class Conv2d(_Convolution):
    """``Conv2d`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.Conv2d``; only zeros pad. There is a bias if ``fill`` gives one.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Conv2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[1.0, 3.0]]]]))).tolist()
    [[[[6, 14]]]]
    """


@register_quantized(qat.ConvRelu2d)
class ConvRelu2d(_Convolution):
    """``ConvRelu2d`` in integers; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvRelu2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 10]]]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvBn2d)
class ConvBn2d(_Convolution):
    """``ConvBn2d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBn2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[-6, 10]]]]
    """


@register_quantized(qat.ConvBnRelu2d)
class ConvBnRelu2d(_Convolution):
    """``ConvBnRelu2d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBnRelu2d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[2.0]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 10]]]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvTranspose2d)
class ConvTranspose2d(_Transposed):
    """``ConvTranspose2d`` in integers, exactly: a convolution of the spread input.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTranspose2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[1.0, 3.0]]]]))).tolist()
    [[[[2, 4, 6, 12]]]]
    """


@register_quantized(qat.ConvTransposeRelu2d)
class ConvTransposeRelu2d(_Transposed):
    """``ConvTransposeRelu2d`` in integers; arguments as for ``ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeRelu2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 0, 6, 12]]]]
    """

    epilogue = "relu"


@register_quantized(qat.ConvTransposeBn2d)
class ConvTransposeBn2d(_Transposed):
    """``ConvTransposeBn2d`` in integers, the normalisation folded in; as ``ConvTranspose2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeBn2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[-2, -4, 6, 12]]]]
    """


@register_quantized(qat.ConvTransposeBnRelu2d)
class ConvTransposeBnRelu2d(_Transposed):
    """``ConvTransposeBnRelu2d`` in integers, the normalisation folded in.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTransposeBnRelu2d(1, 1, (1, 2), (1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[1.0, 2.0]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[-1.0, 3.0]]]]))).tolist()
    [[[[0, 0, 6, 12]]]]
    """

    epilogue = "relu"
