"""Convolutions as modules: shapes of their weights, and what these start from."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError
from ..functional.arguments import choice, extents, pair, triple, whole
from ..imperative.tensor import Parameter, Tensor
from . import init
from .module import Module

Pair = int | tuple[int, int]
Triple = int | tuple[int, int, int]
_PADDING_MODES = ("zeros", "reflect", "replicate")


def single(op: str, what: str, value: Any, least: int = 0) -> int:
    """Return an int that is at least ``least``, given as one or in a tuple of one.

    Raises:
        AttrError: where it is none.
    """
    found = extents(op, what, value, least)
    if len(found) != 1:
        raise AttrError(f"{op}: {what} is not valid, got {value!r}, expected an int >= {least}")
    return found[0]


class ConvNd(Module):
    """Keep what all convolutions share: weight, bias and how they start.

    The weight starts from N(0, 1 / fan), where fan counts the elements that meet in one element
    of the result; the bias, (1, out_channels, 1, ...), from zero. A subclass says in ``_extents``
    how sizes are given.
    """

    _extents: Callable[[str, str, Any, int], Any]

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
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name, sizes = type(self).__name__, type(self)._extents
        in_channels = whole(name, "in_channels", in_channels, 0)
        out_channels = whole(name, "out_channels", out_channels, 0)
        groups = whole(name, "groups", groups)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise AttrError(
                f"{name}: groups must divide the channels, got {groups} groups for {in_channels} "
                f"and {out_channels} channels, "
                "expected a divisor of both"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = sizes(name, "kernel_size", kernel_size, 1)
        self.stride = sizes(name, "stride", stride, 1)
        self.padding = sizes(name, "padding", padding, 0)
        self.dilation = sizes(name, "dilation", dilation, 1)
        self.output_padding = sizes(name, "output_padding", output_padding, 0)
        self.groups = groups
        self.conv_mode = choice(name, "conv_mode", conv_mode, ("cross_correlation", "convolution"))
        self.compute_mode = compute_mode
        self.padding_mode = choice(name, "padding_mode", padding_mode, _PADDING_MODES)
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

    def _padded(self, inp: Tensor) -> tuple[Tensor, Any]:
        """Return the input padded by another mode than zeros, and the padding that is left."""
        if self.padding_mode == "zeros":
            return inp, self.padding
        ends = self.padding if isinstance(self.padding, tuple) else (self.padding,)
        width = ((0, 0), (0, 0), *((extent, extent) for extent in ends))
        rest = tuple(0 for _ in ends) if isinstance(self.padding, tuple) else 0
        return F.nn.pad(inp, width, self.padding_mode), rest

    def _module_info_string(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = getattr(self, name)
            if value != usual and set(value if isinstance(value, tuple) else (value,)) != {usual}:
                text += f", {name}={value}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text if self.bias is not None else f"{text}, bias=False"


class Conv1d(ConvNd):
    """Convolve (N, in_channels, L) with a window; arguments as for ``Conv2d``.

    Weight (out, in, k), or (groups, out/groups, in/groups, k); bias (1, out, 1).

    >>> Conv1d(2, 3, 3, padding=1)(Tensor([[[1.0, 2.0, 3.0, 4.0]] * 2])).shape
    (1, 3, 4)
    """

    _extents = staticmethod(single)

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
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            0, conv_mode, compute_mode, padding_mode, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with another weight and bias, otherwise as this module does."""
        inp, padding = self._padded(inp)
        result: Tensor = F.nn.conv1d(
            inp, weight, bias, self.stride, padding, self.dilation, self.groups, self.conv_mode,
            self.compute_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((L + 2 p - d (k - 1) - 1) / s) + 1)."""
        return self.calc_conv(inp, self.weight, self.bias)


class Conv2d(ConvNd):
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

    >>> Conv2d(3, 4, 3, stride=2)(F.zeros((1, 3, 9, 7))).shape
    (1, 4, 4, 3)
    """

    _extents = staticmethod(pair)

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
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            0, conv_mode, compute_mode, padding_mode, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with another weight and bias, otherwise as this module does."""
        inp, padding = self._padded(inp)
        result: Tensor = F.nn.conv2d(
            inp, weight, bias, self.stride, padding, self.dilation, self.groups,
            self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((H + 2 p - d (k - 1) - 1) / s) + 1, ...)."""
        return self.calc_conv(inp, self.weight, self.bias)


class Conv3d(ConvNd):
    """Convolve volumes (N, in_channels, D, H, W) with a window; arguments as for ``Conv2d``.

    Weight (out, in, kd, kh, kw), or (groups, out/groups, in/groups, kd, kh, kw); bias
    (1, out, 1, 1, 1).

    >>> Conv3d(1, 2, (1, 3, 3))(F.zeros((1, 1, 2, 5, 5))).shape
    (1, 2, 2, 3, 3)
    """

    _extents = staticmethod(triple)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Triple,
        stride: Triple = 1,
        padding: Triple = 0,
        dilation: Triple = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            0, conv_mode, **kwargs,
        )  # fmt: skip

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with another weight and bias, otherwise as this module does."""
        result: Tensor = F.nn.conv3d(
            inp, weight, bias, self.stride, self.padding, self.dilation, self.groups,
            self.conv_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, floor((D + 2 p - d (k - 1) - 1) / s) + 1, ...)."""
        return self.calc_conv(inp, self.weight, self.bias)


# MegEngine has convolutions of all kinds in the module of this name; here they stand above it.
_ABOVE = (
    "ConvRelu1d",
    "ConvRelu2d",
    "ConvRelu3d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConvTransposeRelu2d",
    "DeformableConv2d",
    "LocalConv2d",
    "RegionRestrictedConv",
)


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module(__package__), name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )
