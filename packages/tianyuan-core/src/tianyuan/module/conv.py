"""Convolutions as modules: shapes of their weights, and what these start from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError
from ..functional.arguments import choice, pair
from ..imperative.tensor import Parameter, Tensor
from . import init
from .module import Module

Pair = int | tuple[int, int]
_PADDING_MODES = ("zeros", "reflect", "replicate")


class _ConvNd(Module):
    """Keep what all convolutions share: weight, bias and how they start.

    The weight starts from N(0, 1 / fan), where fan counts the elements that meet in one element
    of the result; the bias, (1, out_channels, 1, ...), from zero.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        bias: bool,
        output_padding: Any = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise AttrError(
                f"{type(self).__name__}: groups must divide the channels, got {groups} groups "
                f"for {in_channels} and {out_channels} channels"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.output_padding = output_padding
        self.weight = Parameter(np.zeros(self._infer_weight_shape(), np.float32))
        self.bias = None
        if bias:
            self.bias = Parameter(np.zeros(self._infer_bias_shape(), np.float32))
        self.reset_parameters()

    def _window(self) -> tuple[int, ...]:
        size = self.kernel_size
        return tuple(size) if isinstance(size, (tuple, list)) else (size,)

    def _infer_weight_shape(self) -> tuple[int, ...]:
        outputs, inputs = (
            self.out_channels // self.groups,
            self.in_channels // self.groups,
        )
        lead = (outputs, inputs) if self.groups == 1 else (self.groups, outputs, inputs)
        return (*lead, *self._window())

    def _infer_bias_shape(self) -> tuple[int, ...]:
        return (1, self.out_channels, *(1,) * len(self._window()))

    def _get_fanin(self) -> int:
        return self.in_channels // self.groups * math.prod(self._window())

    def reset_parameters(self) -> None:
        """Draw the weight anew and set the bias to zero."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self._get_fanin(), 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _module_info_string(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name, usual in (
            ("stride", 1),
            ("padding", 0),
            ("dilation", 1),
            ("output_padding", 0),
        ):
            value = getattr(self, name)
            if value not in (usual, (usual, usual)):
                text += f", {name}={value}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text if self.bias is not None else f"{text}, bias=False"


class Conv1d(_ConvNd):
    """Convolve (N, in_channels, L) with a window; arguments as for ``Conv2d``.

    Weight (out, in, k), or (groups, out/groups, in/groups, k); bias (1, out, 1).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        self.conv_mode = conv_mode
        self.compute_mode = compute_mode
        self.padding_mode = choice("Conv1d", "padding_mode", padding_mode, _PADDING_MODES)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            **kwargs,
        )  # fmt: skip

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((L + 2 p - d (k - 1) - 1) / s) + 1)."""
        padding = self.padding
        if self.padding_mode != "zeros":
            inp = F.nn.pad(inp, ((0, 0), (0, 0), (padding, padding)), self.padding_mode)
            padding = 0
        result: Tensor = F.nn.conv1d(
            inp, self.weight, self.bias, self.stride, padding, self.dilation, self.groups,
            self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result


class Conv2d(_ConvNd):
    """Convolve images (N, in_channels, H, W) with a window.

    Weight (out, in, kh, kw), or (groups, out/groups, in/groups, kh, kw) where there are several
    groups; bias (1, out, 1, 1).

    Args:
        in_channels, out_channels: counts of channels, multiples of ``groups``.
        kernel_size: (h, w) of the window, as one int where they are equal; so below.
        stride: (h, w) between windows.
        padding: (h, w) on both sides.
        dilation: (h, w) between a window's elements.
        groups: into how many groups channels are split that do not meet.
        bias: whether there is a bias.
        conv_mode: ``cross_correlation``, or ``convolution``, which flips the window.
        compute_mode: ``default`` or ``float32``.
        padding_mode: ``zeros``, ``reflect`` or ``replicate``.

    Raises:
        AttrError: where groups do not divide the channels, or for an unknown mode.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        self.conv_mode = conv_mode
        self.compute_mode = compute_mode
        self.padding_mode = choice("Conv2d", "padding_mode", padding_mode, _PADDING_MODES)
        super().__init__(
            in_channels,
            out_channels,
            pair("Conv2d", "kernel_size", kernel_size, 1),
            pair("Conv2d", "stride", stride, 1),
            pair("Conv2d", "padding", padding),
            pair("Conv2d", "dilation", dilation, 1),
            groups,
            bias,
            **kwargs,
        )

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with another weight and bias, otherwise as this module does."""
        padding = self.padding
        if self.padding_mode != "zeros":
            (top, left), padding = padding, (0, 0)
            inp = F.nn.pad(inp, ((0, 0), (0, 0), (top, top), (left, left)), self.padding_mode)
        result: Tensor = F.nn.conv2d(
            inp, weight, bias, self.stride, padding, self.dilation, self.groups,
            self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((H + 2 p - d (k - 1) - 1) / s) + 1, ...)."""
        return self.calc_conv(inp, self.weight, self.bias)


class Conv3d(_ConvNd):
    """Convolve volumes (N, in_channels, D, H, W) with a window; arguments as for ``Conv2d``.

    Weight (out, in, kd, kh, kw), or (groups, out/groups, in/groups, kd, kh, kw); bias
    (1, out, 1, 1, 1).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
    ) -> None:
        self.conv_mode = conv_mode
        size = kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size,) * 3
        super().__init__(
            in_channels,
            out_channels,
            tuple(size),
            stride,
            padding,
            dilation,
            groups,
            bias,
        )

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((D + 2 p - d (k - 1) - 1) / s) + 1, ...)."""
        result: Tensor = F.nn.conv3d(
            inp, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            self.conv_mode,
        )  # fmt: skip
        return result


class ConvTranspose2d(_ConvNd):
    """Map images back through a convolution: the gradient of ``Conv2d`` as a layer.

    Weight (in, out, kh, kw), or (groups, in/groups, out/groups, kh, kw); bias (1, out, 1, 1).

    Args:
        output_padding: (h, w) added to one side of the result, which strides leave open; less
            than stride or dilation.
        others: as for ``Conv2d``.
    """

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
        self.conv_mode = conv_mode
        self.compute_mode = compute_mode
        super().__init__(
            in_channels,
            out_channels,
            pair("ConvTranspose2d", "kernel_size", kernel_size, 1),
            pair("ConvTranspose2d", "stride", stride, 1),
            pair("ConvTranspose2d", "padding", padding),
            pair("ConvTranspose2d", "dilation", dilation, 1),
            groups,
            bias,
            pair("ConvTranspose2d", "output_padding", output_padding),
            **kwargs,
        )

    def _infer_weight_shape(self) -> tuple[int, ...]:
        outputs, inputs = (
            self.out_channels // self.groups,
            self.in_channels // self.groups,
        )
        lead = (inputs, outputs) if self.groups == 1 else (self.groups, inputs, outputs)
        return (*lead, *self._window())

    def _get_fanin(self) -> int:
        return self.out_channels // self.groups * math.prod(self._window())

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, (H - 1) s - 2 p + d (k - 1) + output_padding + 1, ...)."""
        result: Tensor = F.nn.conv_transpose2d(
            inp, self.weight, self.bias, self.stride, self.padding, self.output_padding,
            self.dilation, self.groups, self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result
