"""Layers that quantisation treats as one: convolution or linear map, normalisation, ReLU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..functional.arguments import choice, whole
from ..imperative.tensor import Parameter, Tensor
from . import init
from .conv import Conv2d
from .conv_transpose import ConvTranspose2d
from .linear import Linear
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d


class QuantStub(Module):
    """Mark where floats become quantised; the identity until then.

    >>> QuantStub()(Tensor([1.0])).numpy()
    array([1.], dtype=float32)
    """

    def forward(self, inp: Any) -> Any:
        """Return the input."""
        return inp


class DequantStub(Module):
    """Mark where quantised values become floats; the identity until then.

    >>> DequantStub()(Tensor([1.0])).numpy()
    array([1.], dtype=float32)
    """

    def forward(self, inp: Any) -> Any:
        """Return the input."""
        return inp


class ConvRelu2d(Conv2d):
    """Apply ``Conv2d``, then ReLU; arguments as for ``Conv2d``.

    >>> bool((ConvRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(conv(x), 0)."""
        result: Tensor = F.nn.relu(self.calc_conv(inp, self.weight, self.bias))
        return result


class ConvTransposeRelu2d(ConvTranspose2d):
    """Apply ``ConvTranspose2d``, then ReLU; arguments as for ``ConvTranspose2d``.

    >>> bool((ConvTransposeRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(conv_transpose(x), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class LinearRelu(Linear):
    """Apply ``Linear``, then ReLU; arguments as for ``Linear``.

    >>> bool((LinearRelu(2, 3)(F.ones((1, 2))).numpy() >= 0).all())
    True
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x W^T + b, 0)."""
        result: Tensor = F.nn.relu(super().forward(x))
        return result


class _Normalised(Module):
    """Apply a layer, then batch normalisation.

    Args:
        layer: the layer, kept under the name ``_layer``.
        norm: the class of the normalisation, kept as ``bn``.
        features: count of channels.
        eps, momentum, affine, track_running_stats: as for the normalisation.
    """

    _layer = ""

    def __init__(
        self,
        layer: Module,
        norm: type[BatchNorm1d | BatchNorm2d],
        features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        setattr(self, self._layer, layer)
        self.bn = norm(features, eps, momentum, affine, track_running_stats)

    def forward(self, inp: Tensor) -> Tensor:
        """Return bn(layer(x))."""
        result: Tensor = self.bn(getattr(self, self._layer)(inp))
        return result


def _apart(options: dict[str, Any]) -> dict[str, Any]:
    """Take out of keyword arguments what the normalisation or the module itself is given."""
    names = ("eps", "momentum", "affine", "track_running_stats", "name")
    return {name: options.pop(name) for name in names if name in options}


class ConvBn2d(_Normalised):
    """Apply ``Conv2d``, then ``BatchNorm2d``: the children ``conv`` and ``bn``.

    Args:
        args, kwargs: as for ``Conv2d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm2d``.

    >>> ConvBn2d(2, 3, 3, padding=1, momentum=0.5)(F.ones((1, 2, 4, 4))).shape
    (1, 3, 4, 4)
    """

    _layer = "conv"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rest = _apart(kwargs)
        conv = Conv2d(*args, **kwargs)
        super().__init__(conv, BatchNorm2d, conv.out_channels, **rest)


class ConvBnRelu2d(ConvBn2d):
    """Apply ``ConvBn2d``, then ReLU.

    >>> bool((ConvBnRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(bn(conv(x)), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class ConvTransposeBn2d(_Normalised):
    """Apply ``ConvTranspose2d``, then ``BatchNorm2d``: children ``conv_transpose2d`` and ``bn``.

    Args:
        args, kwargs: as for ``ConvTranspose2d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm2d``.

    >>> ConvTransposeBn2d(2, 3, 3)(F.ones((1, 2, 4, 4))).shape
    (1, 3, 6, 6)
    """

    _layer = "conv_transpose2d"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rest = _apart(kwargs)
        conv = ConvTranspose2d(*args, **kwargs)
        super().__init__(conv, BatchNorm2d, conv.out_channels, **rest)


class ConvTransposeBnRelu2d(ConvTransposeBn2d):
    """Apply ``ConvTransposeBn2d``, then ReLU.

    >>> bool((ConvTransposeBnRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(bn(conv_transpose(x)), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
        return result


class LinearBn1d(_Normalised):
    """Apply ``Linear``, then ``BatchNorm1d``: the children ``linear`` and ``bn``.

    Args:
        args, kwargs: as for ``Linear``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm1d``.

    >>> LinearBn1d(2, 3)(F.ones((4, 2))).shape
    (4, 3)
    """

    _layer = "linear"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rest = _apart(kwargs)
        linear = Linear(*args, **kwargs)
        super().__init__(linear, BatchNorm1d, linear.out_features, **rest)


class LinearBnRelu1d(LinearBn1d):
    """Apply ``LinearBn1d``, then ReLU.

    >>> bool((LinearBnRelu1d(2, 3)(F.ones((4, 2))).numpy() >= 0).all())
    True
    """

    def forward(self, inp: Tensor) -> Tensor:
        """Return max(bn(x W^T + b), 0)."""
        result: Tensor = F.nn.relu(super().forward(inp))
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

    >>> BatchMatMulActivation(2, 3, 4)(F.ones((2, 3, 5))).shape
    (2, 4, 5)
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
        name = "BatchMatMulActivation"
        self.batch = whole(name, "batch", batch, 0)
        self.in_features = whole(name, "in_features", in_features, 0)
        self.out_features = whole(name, "out_features", out_features, 0)
        self.nonlinear_mode = choice(name, "nonlinear_mode", nonlinear_mode, ("identity", "relu"))
        shape = (self.batch, self.out_features, self.in_features)
        self.weight = Parameter(np.zeros(shape, np.float32))
        self.bias = Parameter(np.zeros((self.out_features, 1), np.float32)) if bias else None
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
