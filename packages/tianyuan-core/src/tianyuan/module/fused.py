"""Layers that quantisation treats as one: convolution or linear map, normalisation, ReLU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..functional.arguments import choice
from ..imperative.tensor import Parameter, Tensor
from . import init
from .conv import Conv2d, ConvTranspose2d, Pair
from .linear import Linear
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d


class QuantStub(Module):
    """Mark where floats become quantised; the identity until then."""

    def forward(self, inp: Any) -> Any:
        """Return the input."""
        return inp


class DequantStub(Module):
    """Mark where quantised values become floats; the identity until then."""

    def forward(self, inp: Any) -> Any:
        """Return the input."""
        return inp


class ConvRelu2d(Conv2d):
    """Apply ``Conv2d``, then ReLU; arguments as for ``Conv2d``."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(conv(x), 0)."""
        result: Tensor = F.nn.relu(self.calc_conv(inp, self.weight, self.bias))
        return result


class ConvTransposeRelu2d(ConvTranspose2d):
    """Apply ``ConvTranspose2d``, then ReLU; arguments as for ``ConvTranspose2d``."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(conv_transpose(x), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class LinearRelu(Linear):
    """Apply ``Linear``, then ReLU; arguments as for ``Linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x W^T + b, 0)."""
        result: Tensor = F.nn.relu(super().forward(x))
        return result


class ConvBn2d(Module):
    """Apply ``Conv2d``, then ``BatchNorm2d``: the children ``conv`` and ``bn``.

    Args:
        eps, momentum, affine, track_running_stats: as for ``BatchNorm2d``.
        others: as for ``Conv2d``.
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
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conv = Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            conv_mode, compute_mode, padding_mode,
        )  # fmt: skip
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)

    def forward(self, inp: Tensor) -> Tensor:
        """Return bn(conv(x))."""
        result: Tensor = self.bn(self.conv(inp))
        return result


class ConvBnRelu2d(ConvBn2d):
    """Apply ``ConvBn2d``, then ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(bn(conv(x)), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class ConvTransposeBn2d(Module):
    """Apply ``ConvTranspose2d``, then ``BatchNorm2d``: children ``conv_transpose`` and ``bn``.

    Args:
        eps, momentum, affine, track_running_stats: as for ``BatchNorm2d``.
        others: as for ``ConvTranspose2d``.
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
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conv_transpose = ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation,
            groups, bias, conv_mode, compute_mode,
        )  # fmt: skip
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)

    def forward(self, inp: Tensor) -> Tensor:
        """Return bn(conv_transpose(x))."""
        result: Tensor = self.bn(self.conv_transpose(inp))
        return result


class ConvTransposeBnRelu2d(ConvTransposeBn2d):
    """Apply ``ConvTransposeBn2d``, then ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(bn(conv_transpose(x)), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class LinearBn1d(Module):
    """Apply ``Linear``, then ``BatchNorm1d``: the children ``linear`` and ``bn``.

    Args:
        in_features, out_features, bias, compute_mode: as for ``Linear``.
        eps, momentum, affine, track_running_stats: as for ``BatchNorm1d``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.linear = Linear(in_features, out_features, bias, compute_mode)
        self.bn = BatchNorm1d(out_features, eps, momentum, affine, track_running_stats)

    def forward(self, x: Tensor) -> Tensor:
        """Return bn(x W^T + b)."""
        result: Tensor = self.bn(self.linear(x))
        return result


class LinearBnRelu1d(LinearBn1d):
    """Apply ``LinearBn1d``, then ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return max(bn(x W^T + b), 0)."""
        result: Tensor = F.nn.relu(super().forward(x))
        return result


class BatchMatMulActivation(Module):
    """Multiply each item of a batch by a matrix of its own, add a bias, and apply ReLU if asked.

    Weight (batch, out_features, in_features) starts from N(0, 1 / in_features), bias
    (out_features, 1) from zero.

    Args:
        batch: count of matrices.
        in_features, out_features: extents of each matrix.
        bias: whether there is a bias.
        nonlinear_mode: ``identity`` or ``relu``, in any case.

    Raises:
        AttrError: for another mode.
    """

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.in_features = in_features
        self.out_features = out_features
        self.nonlinear_mode = choice(
            "BatchMatMulActivation", "nonlinear_mode", nonlinear_mode.lower(), ("identity", "relu")
        )
        self.weight = Parameter(np.zeros((batch, out_features, in_features), np.float32))
        self.bias = Parameter(np.zeros((out_features, 1), np.float32)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew and set the bias to zero."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_features, n) to (batch, out_features, n)."""
        y: Tensor = F.matmul(self.weight, x)
        if self.bias is not None:
            y = y + self.bias
        return F.nn.relu(y) if self.nonlinear_mode == "relu" else y
