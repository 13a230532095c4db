"""Finish a fused product in place: bias, residual and activation on one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .special import erf
from .widening import widened


def _relu(y: np.ndarray) -> None:
    np.maximum(y, 0, out=y)


def _relu6(y: np.ndarray) -> None:
    np.clip(y, 0, 6, out=y)


def _sigmoid(y: np.ndarray) -> None:
    # Through tanh, which overflows on neither side.
    y *= 0.5
    np.tanh(y, out=y)
    y += 1
    y *= 0.5


def _tanh(y: np.ndarray) -> None:
    np.tanh(y, out=y)


def _silu(y: np.ndarray) -> None:
    gate = y.copy()
    _sigmoid(gate)
    y *= gate


def _hswish(y: np.ndarray) -> None:
    y *= np.clip(y + 3, 0, 6) / 6


def _gelu(y: np.ndarray) -> None:
    y *= (0.5 * (1 + erf(y * np.sqrt(0.5).astype(y.dtype)))).astype(y.dtype)


_ACTIVATIONS: dict[str, Callable[[np.ndarray], None]] = {
    "identity": lambda y: None,
    "relu": _relu,
    "relu6": _relu6,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "silu": _silu,
    "hswish": _hswish,
    "gelu": _gelu,
}


def finish(y: np.ndarray, extra: Sequence[np.ndarray], attrs: Any, channel_axis: int) -> None:
    """Add bias and residual to ``y`` and apply the activation, in place.

    Args:
        extra: the fused op's inputs after its two operands.
        channel_axis: the axis of ``y`` that the bias runs along.
    """
    rest = list(extra)
    if attrs.has_bias:
        shape = [1] * y.ndim
        shape[channel_axis] = -1
        y += widened(rest.pop(0)).reshape(shape)
    if attrs.has_residual:
        y += widened(rest.pop(0))
    if attrs.activation == "clip":
        np.clip(y, attrs.lower, attrs.upper, out=y)
    else:
        _ACTIVATIONS[attrs.activation](y)
