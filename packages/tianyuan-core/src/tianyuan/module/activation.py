"""Activations as modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..functional.arguments import extents, real_number, whole
from ..imperative.tensor import Parameter, Tensor
from .module import Module


class ReLU(Module):
    """Apply max(x, 0).

    >>> ReLU()(Tensor([-1.0, 2.0])).numpy()
    array([0., 2.], dtype=float32)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x, 0)."""
        result: Tensor = F.nn.relu(x)
        return result


class Sigmoid(Module):
    """Apply 1 / (1 + exp(-x)).

    >>> Sigmoid()(Tensor([0.0])).numpy()
    array([0.5], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-x))."""
        result: Tensor = F.nn.sigmoid(inputs)
        return result


class SiLU(Module):
    """Apply x * sigmoid(x).

    >>> SiLU()(Tensor([0.0, 1.0])).numpy().round(3)
    array([0.   , 0.731], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return x * sigmoid(x)."""
        result: Tensor = F.nn.silu(inputs)
        return result


class GELU(Module):
    """Apply x * Phi(x), the exact form with erf.

    >>> GELU()(Tensor([0.0, 1.0])).numpy().round(3)
    array([0.   , 0.841], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return x * Phi(x)."""
        result: Tensor = F.nn.gelu(inputs)
        return result


class LeakyReLU(Module):
    """Apply max(x, 0) + negative_slope * min(x, 0).

    >>> LeakyReLU(0.5)(Tensor([-1.0, 2.0])).numpy()
    array([-0.5,  2. ], dtype=float32)
    """

    def __init__(self, negative_slope: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = real_number("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return max(x, 0) + negative_slope * min(x, 0)."""
        result: Tensor = F.nn.leaky_relu(inputs, self.negative_slope)
        return result

    def _module_info_string(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """Apply max(x, 0) + w * min(x, 0) with a learned w, one or one per channel.

    Args:
        num_parameters: 1, or the count of channels of (N, C, H, W).
        init: what w starts from.

    >>> PReLU()(Tensor([-1.0, 2.0])).numpy()
    array([-0.25,  2.  ], dtype=float32)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_parameters = whole("PReLU", "num_parameters", num_parameters, 1)
        shape = (1, self.num_parameters, 1, 1) if self.num_parameters > 1 else (1,)
        self.weight = Parameter(np.full(shape, real_number("PReLU", "init", init), np.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return max(x, 0) + w * min(x, 0)."""
        result: Tensor = F.nn.prelu(inputs, self.weight)
        return result

    def _module_info_string(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Softmax(Module):
    """Apply exp(x) / sum(exp(x)) along an axis.

    Args:
        axis: if None, 1 for inputs of 2 or 4 dimensions, else 0.

    >>> Softmax(axis=0)(Tensor([0.0, 0.0])).numpy()
    array([0.5, 0.5], dtype=float32)
    """

    def __init__(self, axis: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if axis is not None:
            extents("Softmax", "axis", axis, None)
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """Return exp(x) / sum(exp(x))."""
        result: Tensor = F.nn.softmax(inputs, axis=self.axis)
        return result

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Module):
    """Apply x - log(sum(exp(x))) along an axis.

    >>> LogSoftmax(axis=0)(Tensor([0.0, 0.0])).numpy().round(3)
    array([-0.693, -0.693], dtype=float32)
    """

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        extents("LogSoftmax", "axis", axis, None)
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """Return x - log(sum(exp(x)))."""
        result: Tensor = F.nn.logsoftmax(inputs, self.axis)
        return result

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class Tanh(Module):
    """Apply the hyperbolic tangent.

    >>> Tanh()(Tensor([0.0, 1.0])).numpy().round(3)
    array([0.   , 0.762], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return tanh(x)."""
        result: Tensor = F.tanh(inputs)
        return result


class Softplus(Module):
    """Apply log(1 + exp(x)).

    >>> Softplus()(Tensor([0.0])).numpy().round(3)
    array([0.693], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log(1 + exp(x))."""
        result: Tensor = F.nn.softplus(inputs)
        return result


class ReLU6(Module):
    """Apply min(max(x, 0), 6).

    >>> ReLU6()(Tensor([-1.0, 3.0, 9.0])).numpy()
    array([0., 3., 6.], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return min(max(x, 0), 6)."""
        result: Tensor = F.nn.relu6(inputs)
        return result


class Hardsigmoid(Module):
    """Apply relu6(x + 3) / 6.

    >>> Hardsigmoid()(Tensor([-3.0, 0.0, 3.0])).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return relu6(x + 3) / 6."""
        result: Tensor = F.nn.hsigmoid(inputs)
        return result


class Hardswish(Module):
    """Apply x * relu6(x + 3) / 6.

    >>> Hardswish()(Tensor([-3.0, 3.0])).numpy()
    array([-0.,  3.], dtype=float32)
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return x * relu6(x + 3) / 6."""
        result: Tensor = F.nn.hswish(inputs)
        return result


class ELU(Module):
    """Apply x where positive, else alpha * (exp(x) - 1) (Clevert et al. 2016).

    >>> ELU()(Tensor([-1.0, 2.0])).numpy().round(3)
    array([-0.632,  2.   ], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = real_number("ELU", "alpha", alpha)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
        low = F.expm1(F.minimum(inputs, 0.0)) * self.alpha
        result: Tensor = F.nn.relu(inputs) + low
        return result

    def _module_info_string(self) -> str:
        return f"alpha={self.alpha}"
