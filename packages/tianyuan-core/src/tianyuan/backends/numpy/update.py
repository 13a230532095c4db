"""Optimiser updates as a few passes over each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Kernel
from .epilogue import widened

Arrays = Sequence[np.ndarray]


def _sgd(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    param, grad = widened(inputs[0]), widened(inputs[1])
    lr = inputs[2].astype(param.dtype)
    if attrs.weight_decay:
        grad = grad + param * param.dtype.type(attrs.weight_decay)
    step = grad
    if len(inputs) == 4:
        momentum = param.dtype.type(attrs.momentum)
        step = widened(inputs[3]) * momentum + grad
        np.copyto(outputs[1], step, casting="unsafe")
        if attrs.nesterov:
            step = grad + step * momentum
    np.copyto(outputs[0], param - step * lr, casting="unsafe")


def _adam(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    param, grad, m, v = (widened(x) for x in inputs[:4])
    kind = param.dtype.type
    step, lr = inputs[4].astype(param.dtype), inputs[5].astype(param.dtype)
    if attrs.weight_decay and attrs.decoupled:
        param = param * (1 - lr * kind(attrs.weight_decay))
    elif attrs.weight_decay:
        grad = grad + param * kind(attrs.weight_decay)
    m = m * kind(attrs.beta1) + grad * kind(1 - attrs.beta1)
    v = v * kind(attrs.beta2) + np.square(grad) * kind(1 - attrs.beta2)
    first, second = (1 - np.power(kind(beta), step) for beta in (attrs.beta1, attrs.beta2))
    scale = np.sqrt(v / second)
    scale += kind(attrs.eps)
    np.copyto(outputs[0], param - m / first / scale * lr, casting="unsafe")
    np.copyto(outputs[1], m, casting="unsafe")
    np.copyto(outputs[2], v, casting="unsafe")


KERNELS: tuple[Kernel, ...] = (
    Kernel("sgd_update_float__numpy", "sgd_update", _sgd),
    Kernel("adam_update_float__numpy", "adam_update", _adam),
)
