"""Compute convolutions of one to three axes, plain and transposed, in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tianyuan import Tensor
from tianyuan.errors import AttrError, ShapeError
from tianyuan.functional.arguments import choice, pair, triple, whole
from tianyuan.functional.conv import plain_weight
from tianyuan.functional.quantized import IMAGES, spread_input, turned_weight
from tianyuan.module.conv import single
from tianyuan.op import QuantParams

from .. import qat
from ..qat.convolution import transposed_flops
from ..registration import register_quantized
from .flat import in_planes
from .module import emit, integers_of
from .product import QuantizedProduct

_CONV_MODES = ("cross_correlation", "convolution")
_PADDING_MODES = ("zeros", "reflect", "replicate")
# What an integer convolution can be asked for as the layer that it was.
_SHARED = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    "output_padding", "conv_mode", "padding_mode",
)  # fmt: skip
_EXTENTS = {1: single, 2: pair, 3: triple}


class _Convolution(QuantizedProduct):
    """Base of convolutions; a subclass says how many axes the window has.

    Attributes are those of the float layer and are read at every call: what is written to them
    afterwards holds.
    """

    axes = 2

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
        sizes: Callable[..., Any] = _EXTENTS[self.axes]
        self.kernel_size = sizes(self.owner, "kernel_size", kernel_size, 1)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.output_padding = whole(self.owner, "groups", groups, 1), 0
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise AttrError(
                f"{self.owner}: groups do not divide the channels, got {groups} for {in_channels} "
                f"and {out_channels}, expected a divisor of both"
            )
        self.conv_mode = choice(self.owner, "conv_mode", conv_mode, _CONV_MODES)
        self.padding_mode = choice(self.owner, "padding_mode", padding_mode, _PADDING_MODES)
        self.check_geometry()

    def take(self, layer: Any) -> None:
        for name in _SHARED:
            setattr(self, name, getattr(layer, name))
        self.check_geometry()

    def check_geometry(self) -> None:
        """Raise AttrError where integers do not compute what the attributes say."""
        if self.padding_mode != "zeros" or self.conv_mode != "cross_correlation":
            raise AttrError(
                f"{self.owner}: only zeros pad an integer convolution, got padding_mode="
                f"{self.padding_mode!r}, conv_mode={self.conv_mode!r}, expected 'zeros' and "
                "'cross_correlation'"
            )
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            self.sizes(name, least)

    def sizes(self, name: str, least: int) -> tuple[int, ...]:
        """Return an attribute as a number for each axis of the window."""
        found = _EXTENTS[self.axes](self.owner, name, getattr(self, name), least)
        return found if isinstance(found, tuple) else (found,)

    def window(self) -> tuple[int, ...]:
        """Return the extents of the window that the weight has."""
        return tuple(self.stored().shape[2:])

    def plain(self, weight: Tensor, first: str, second: str) -> Tensor:
        """Return a float layer's weight without an axis of groups.

        Raises:
            ShapeError: where it is not that of the layer which was asked for.
        """
        plain = plain_weight(self.owner, weight, self.groups, 2 + self.axes)
        size = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,)
        wanted = (getattr(self, first), getattr(self, second) // self.groups, *size)
        if tuple(plain.shape) != wanted:
            raise ShapeError(
                f"{self.owner}: weight has the wrong shape, got {tuple(plain.shape)}, expected "
                f"{wanted}"
            )
        return plain

    def arranged(self, weight: Tensor) -> Tensor:
        return self.plain(weight, "out_channels", "in_channels")

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised convolution of quantised signals, images or volumes."""
        self.check_geometry()
        quant, padding = self.quantised(inp), self.sizes("padding", 0)
        return self.convolved(integers_of(inp), quant, self.sizes("stride", 1), padding * 2)

    def convolved(
        self, x: Tensor, quant: QuantParams, stride: tuple[int, ...], margins: tuple[int, ...]
    ) -> Tensor:
        """Return the convolution; ``margins`` are in front of all axes, then behind."""
        x, weight, *bias = self.operands(x, quant)
        if x.ndim != 2 + self.axes:
            raise ShapeError(
                f"{self.owner}: input has the wrong rank, got shape {tuple(x.shape)}, expected "
                f"{IMAGES[self.axes]}"
            )
        x, weight, geometry, back = in_planes(
            self.owner, x, weight, quant, stride, margins, self.sizes("dilation", 1)
        )
        return back(
            emit(
                "conv2d_quantized", x, weight, *bias, **geometry, groups=self.groups,
                **self.product_attrs(quant),
            )
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
        self.check_geometry()

    def check_geometry(self) -> None:
        super().check_geometry()
        self.sizes("output_padding", 0)

    def arranged(self, weight: Tensor) -> Tensor:
        plain = self.plain(weight, "in_channels", "out_channels")
        return turned_weight(self.owner, plain, self.groups)

    def _count_flops(self, inputs: Any, outputs: Any) -> int:
        return transposed_flops(self.stored().shape, self.bias, inputs, outputs)

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised transposed convolution, that of a spread input."""
        self.check_geometry()
        quant, x = self.quantised(inp), integers_of(inp)
        places = (
            self.sizes("stride", 1), self.sizes("padding", 0), self.sizes("dilation", 1),
            self.sizes("output_padding", 0),
        )  # fmt: skip
        x, margins = spread_input(self.owner, x, quant, self.window(), places)
        return self.convolved(x, quant, (1,) * self.axes, margins)


@register_quantized(qat.Conv1d)
class Conv1d(_Convolution):
    """``Conv1d`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.Conv1d``; only zeros pad. There is a bias if ``fill`` gives one.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Conv1d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[2.0]]], [1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[1.0, 3.0]]]))).tolist()
    [[[6, 14]]]
    """

    axes = 1


@register_quantized(qat.ConvRelu1d)
class ConvRelu1d(_Convolution):
    """``ConvRelu1d`` in integers; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvRelu1d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[2.0]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[-1.0, 3.0]]]))).tolist()
    [[[0, 10]]]
    """

    axes = 1
    epilogue = "relu"


@register_quantized(qat.ConvBn1d)
class ConvBn1d(_Convolution):
    """``ConvBn1d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBn1d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[2.0]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[-1.0, 3.0]]]))).tolist()
    [[[-6, 10]]]
    """

    axes = 1


@register_quantized(qat.ConvBnRelu1d)
class ConvBnRelu1d(_Convolution):
    """``ConvBnRelu1d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBnRelu1d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[2.0]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[-1.0, 3.0]]]))).tolist()
    [[[0, 10]]]
    """

    axes = 1
    epilogue = "relu"


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


@register_quantized(qat.Conv3d)
class Conv3d(_Convolution):
    """``Conv3d`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.Conv3d``; only zeros pad. There is a bias if ``fill`` gives one.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Conv3d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[[2.0]]]]], [1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[[1.0, 3.0]]]]]))).tolist()
    [[[[[6, 14]]]]]
    """

    axes = 3


@register_quantized(qat.ConvRelu3d)
class ConvRelu3d(_Convolution):
    """``ConvRelu3d`` in integers; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvRelu3d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[[2.0]]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[[-1.0, 3.0]]]]]))).tolist()
    [[[[[0, 10]]]]]
    """

    axes = 3
    epilogue = "relu"


@register_quantized(qat.ConvBn3d)
class ConvBn3d(_Convolution):
    """``ConvBn3d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBn3d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[[2.0]]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[[-1.0, 3.0]]]]]))).tolist()
    [[[[[-6, 10]]]]]
    """

    axes = 3


@register_quantized(qat.ConvBnRelu3d)
class ConvBnRelu3d(_Convolution):
    """``ConvBnRelu3d`` in integers, the normalisation folded in; arguments as for ``Conv2d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvBnRelu3d(1, 1, 1, dtype=qint8(0.5))
    >>> layer.fill([[[[[2.0]]]]], [-1.0], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[[-1.0, 3.0]]]]]))).tolist()
    [[[[[0, 10]]]]]
    """

    axes = 3
    epilogue = "relu"


@register_quantized(qat.ConvTranspose1d)
class ConvTranspose1d(_Transposed):
    """``ConvTranspose1d`` in integers, exactly: a convolution of the spread input.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.ConvTranspose1d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTranspose1d(1, 1, 2, 2, dtype=qint8(0.5))
    >>> layer.fill([[[1.0, 2.0]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[1.0, 3.0]]]))).tolist()
    [[[2, 4, 6, 12]]]
    """

    axes = 1


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


@register_quantized(qat.ConvTranspose3d)
class ConvTranspose3d(_Transposed):
    """``ConvTranspose3d`` in integers, exactly: a convolution of the spread input.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.
        others: as for ``module.ConvTranspose3d``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = ConvTranspose3d(1, 1, (1, 1, 2), (1, 1, 2), dtype=qint8(0.5))
    >>> layer.fill([[[[[1.0, 2.0]]]]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[[[1.0, 3.0]]]]]))).tolist()
    [[[[[2, 4, 6, 12]]]]]
    """

    axes = 3
