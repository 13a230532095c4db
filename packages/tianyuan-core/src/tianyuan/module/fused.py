"""Layers that quantisation treats as one: convolution or linear map, normalisation, ReLU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..functional.arguments import choice, whole
from ..imperative.tensor import Parameter, Tensor
from . import init
from .conv import Conv1d, Conv2d, Conv3d
from .conv_transpose import ConvTranspose2d
from .linear import Linear
from .module import Module
from .norm import BatchNorm1d, BatchNorm2d, BatchNorm3d


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


class _Bounded:
    """Ends what the class behind it computes with ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return the other class's result, at least 0."""
        result: Tensor = F.nn.relu(super().forward(inp))  # type: ignore[misc]
        return result


class ConvRelu1d(_Bounded, Conv1d):
    """Apply ``Conv1d``, then ReLU; arguments as for ``Conv1d``.

    >>> bool((ConvRelu1d(2, 3, 3)(F.ones((1, 2, 4))).numpy() >= 0).all())
    True
    """


class ConvRelu2d(_Bounded, Conv2d):
    """Apply ``Conv2d``, then ReLU; arguments as for ``Conv2d``.

    >>> bool((ConvRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """


class ConvRelu3d(_Bounded, Conv3d):
    """Apply ``Conv3d``, then ReLU; arguments as for ``Conv3d``.

    >>> bool((ConvRelu3d(2, 3, 3)(F.ones((1, 2, 4, 4, 4))).numpy() >= 0).all())
    True
    """


class ConvTransposeRelu2d(_Bounded, ConvTranspose2d):
    """Apply ``ConvTranspose2d``, then ReLU; arguments as for ``ConvTranspose2d``.

    >>> bool((ConvTransposeRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """


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
        norm: type[BatchNorm1d | BatchNorm2d | BatchNorm3d],
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


class _ConvBn(_Normalised):
    """Apply a convolution, then batch normalisation; a subclass says of which classes."""

    _parts: tuple[Any, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        rest, (layer, norm) = _apart(kwargs), self._parts
        conv = layer(*args, **kwargs)
        super().__init__(conv, norm, conv.out_channels, **rest)


class ConvBn1d(_ConvBn):
    """Apply ``Conv1d``, then ``BatchNorm1d``: the children ``conv`` and ``bn``.

    Args:
        args, kwargs: as for ``Conv1d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm1d``.

    >>> ConvBn1d(2, 3, 3, padding=1, momentum=0.5)(F.ones((1, 2, 4))).shape
    (1, 3, 4)
    """

    _layer, _parts = "conv", (Conv1d, BatchNorm1d)


class ConvBnRelu1d(_Bounded, ConvBn1d):
    """Apply ``ConvBn1d``, then ReLU.

    >>> bool((ConvBnRelu1d(2, 3, 3)(F.ones((1, 2, 4))).numpy() >= 0).all())
    True
    """


class ConvBn2d(_ConvBn):
    """Apply ``Conv2d``, then ``BatchNorm2d``: the children ``conv`` and ``bn``.

    Args:
        args, kwargs: as for ``Conv2d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm2d``.

    >>> ConvBn2d(2, 3, 3, padding=1, momentum=0.5)(F.ones((1, 2, 4, 4))).shape
    (1, 3, 4, 4)
    """

    _layer, _parts = "conv", (Conv2d, BatchNorm2d)


class ConvBnRelu2d(_Bounded, ConvBn2d):
    """Apply ``ConvBn2d``, then ReLU.

    >>> bool((ConvBnRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """


class ConvBn3d(_ConvBn):
    """Apply ``Conv3d``, then ``BatchNorm3d``: the children ``conv`` and ``bn``.

    Args:
        args, kwargs: as for ``Conv3d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm3d``.

    >>> ConvBn3d(2, 3, 3, padding=1, momentum=0.5)(F.ones((1, 2, 4, 4, 4))).shape
    (1, 3, 4, 4, 4)
    """

    _layer, _parts = "conv", (Conv3d, BatchNorm3d)


class ConvBnRelu3d(_Bounded, ConvBn3d):
    """Apply ``ConvBn3d``, then ReLU.

    >>> bool((ConvBnRelu3d(2, 3, 3)(F.ones((1, 2, 4, 4, 4))).numpy() >= 0).all())
    True
    """


class ConvTransposeBn2d(_ConvBn):
    """Apply ``ConvTranspose2d``, then ``BatchNorm2d``: children ``conv_transpose2d`` and ``bn``.

    Args:
        args, kwargs: as for ``ConvTranspose2d``; ``eps``, ``momentum``, ``affine`` and
            ``track_running_stats`` as for ``BatchNorm2d``.

    >>> ConvTransposeBn2d(2, 3, 3)(F.ones((1, 2, 4, 4))).shape
    (1, 3, 6, 6)
    """

    _layer, _parts = "conv_transpose2d", (ConvTranspose2d, BatchNorm2d)


class ConvTransposeBnRelu2d(_Bounded, ConvTransposeBn2d):
    """Apply ``ConvTransposeBn2d``, then ReLU.

    >>> bool((ConvTransposeBnRelu2d(2, 3, 3)(F.ones((1, 2, 4, 4))).numpy() >= 0).all())
    True
    """


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
