"""Answers for the optimisers' updates: a step of scalars for every element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .oracles import Arrays, Oracle, _array, _values
from .oracles_window import WINDOWS


def _update(step: Callable[..., Sequence[float]], outputs: int) -> Oracle:
    """Run a scalar update on every element; trailing 0-d inputs are the same for all."""

    def oracle(arrays: Arrays, attrs: Any) -> Arrays:
        shape, dtype = arrays[0].shape, arrays[0].dtype
        rows = zip(*(_values(np.broadcast_to(x, shape)) for x in arrays), strict=True)
        results = [step(attrs, *row) for row in rows]
        columns = zip(*results, strict=True) if results else ([],) * (outputs or len(arrays) - 2)
        return [_array(list(column), dtype, shape) for column in columns]

    return oracle


def _sgd(attrs: Any, p: float, g: float, lr: float, v: float | None = None) -> Sequence[float]:
    g += attrs.weight_decay * p if attrs.weight_decay else 0.0
    if v is None:
        return (p - lr * g,)
    v = attrs.momentum * v + g
    return (p - lr * (g + attrs.momentum * v if attrs.nesterov else v), v)


def _adam(
    attrs: Any, p: float, g: float, m: float, v: float, t: float, lr: float
) -> Sequence[float]:
    if attrs.decoupled:
        p *= 1 - lr * attrs.weight_decay
    elif attrs.weight_decay:
        g += attrs.weight_decay * p
    m = attrs.beta1 * m + (1 - attrs.beta1) * g
    v = attrs.beta2 * v + (1 - attrs.beta2) * g * g
    mean, spread = m / (1 - attrs.beta1**t), v / (1 - attrs.beta2**t)
    return (p - lr * mean / (math.sqrt(spread) + attrs.eps), m, v)


def _product_sgd(arrays: Arrays, attrs: Any) -> Arrays:
    left, right, param, *rest = arrays
    grad = WINDOWS["matmul"]((left, right), attrs)[0]
    return _update(_sgd, 0)((param, grad, *rest), attrs)


UPDATES: dict[str, Oracle] = {
    "sgd_update": _update(_sgd, 0),
    "matmul_sgd_update": _product_sgd,
    "adam_update": _update(_adam, 3),
}
