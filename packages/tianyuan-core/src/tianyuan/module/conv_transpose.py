"""Transposed convolutions as modules: the gradients of convolutions as layers."""

from __future__ import annotations

import math
from typing import Any

from .. import functional as F
from ..functional.arguments import pair, triple
from ..functional.conv import add_bias
from ..imperative.tensor import Tensor
from .conv import ConvNd, Pair, Triple, single


class _ConvTransposeNd(ConvNd):
    """Keep what transposed convolutions share: weights have the input's channels first."""

    def _infer_weight_shape(self) -> tuple[int, ...]:
        outputs, inputs = self.out_channels // self.groups, self.in_channels // self.groups
        lead = (inputs, outputs) if self.groups == 1 else (self.groups, inputs, outputs)
        return (*lead, *self._window())

    def _get_fanin(self) -> int:
        return self.out_channels // self.groups * math.prod(self._window())


class ConvTranspose1d(_ConvTransposeNd):
    """Map signals back through a convolution: the gradient of ``Conv1d`` as a layer.

    Weight (in, out, k), or (groups, in/groups, out/groups, k); bias (1, out, 1). Arguments as for
    ``ConvTranspose2d``.

    >>> ConvTranspose1d(2, 3, 3, stride=2)(F.zeros((1, 2, 4))).shape
    (1, 3, 9)
    """

    _extents = staticmethod(single)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            output_padding, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map back with another weight and bias, otherwise as this module does."""
        wide: Tensor = F.nn.conv_transpose2d(
            F.expand_dims(inp, 2), F.expand_dims(weight, -2), None, (1, self.stride),
            (0, self.padding), (0, self.output_padding), (1, self.dilation), self.groups,
        )  # fmt: skip
        return add_bias("conv_transpose1d", F.squeeze(wide, 2), bias)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, (L - 1) s - 2 p + d (k - 1) + output_padding + 1)."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvTranspose2d(_ConvTransposeNd):
    """Map images back through a convolution: the gradient of ``Conv2d`` as a layer.

    Weight (in, out, kh, kw), or (groups, in/groups, out/groups, kh, kw); bias (1, out, 1, 1).

    Args:
        output_padding: (h, w) added to one side of the result, which strides leave open; less
            than stride or dilation.
        others: as for ``Conv2d``.

    >>> ConvTranspose2d(2, 3, 3, stride=2)(F.zeros((1, 2, 4, 4))).shape
    (1, 3, 9, 9)
    """

    _extents = staticmethod(pair)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            output_padding, conv_mode, compute_mode, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map back with another weight and bias, otherwise as this module does."""
        result: Tensor = F.nn.conv_transpose2d(
            inp, weight, bias, self.stride, self.padding, self.output_padding,
            self.dilation, self.groups, self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, (H - 1) s - 2 p + d (k - 1) + output_padding + 1, ...)."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvTranspose3d(_ConvTransposeNd):
    """Map volumes back through a convolution: the gradient of ``Conv3d`` as a layer.

    Weight (in, out, kd, kh, kw), or (groups, in/groups, out/groups, kd, kh, kw); bias
    (1, out, 1, 1, 1). Arguments as for ``ConvTranspose2d``, with (d, h, w) for (h, w).

    >>> ConvTranspose3d(2, 3, 2, stride=2)(F.zeros((1, 2, 3, 4, 4))).shape
    (1, 3, 6, 8, 8)
    """

    _extents = staticmethod(triple)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Triple,
        stride: Triple = 1,
        padding: Triple = 0,
        output_padding: Triple = 0,
        dilation: Triple = 1,
        groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            output_padding, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map back with another weight and bias, otherwise as this module does."""
        result: Tensor = F.nn.conv_transpose3d(
            inp, weight, bias, self.stride, self.padding, self.output_padding,
            self.dilation, self.groups,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, (D - 1) s - 2 p + d (k - 1) + output_padding + 1, ...)."""
        return self.calc_conv(inp, self.weight, self.bias)
