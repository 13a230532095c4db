"""Optimiser updates, run block by block so that intermediate values stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...kernel import Kernel
from .elementwise import BLOCK
from .widening import compute_dtype, widened

Arrays = Sequence[np.ndarray]


def _sgd(attrs: Any, values: Arrays, scalars: Arrays) -> Arrays:
    param, grad = values[:2]
    kind, lr = param.dtype.type, scalars[0]
    if attrs.weight_decay:
        grad = grad + param * kind(attrs.weight_decay)
    if len(values) == 2:
        return (param - grad * lr,)
    momentum = kind(attrs.momentum)
    velocity = values[2] * momentum + grad
    step = grad + velocity * momentum if attrs.nesterov else velocity
    return (param - step * lr, velocity)


def _adam(attrs: Any, values: Arrays, scalars: Arrays) -> Arrays:
    param, grad, m, v = values
    kind = param.dtype.type
    step, lr = scalars
    if attrs.weight_decay and attrs.decoupled:
        param = param * (1 - lr * kind(attrs.weight_decay))
    elif attrs.weight_decay:
        grad = grad + param * kind(attrs.weight_decay)
    m = m * kind(attrs.beta1) + grad * kind(1 - attrs.beta1)
    v = v * kind(attrs.beta2) + np.square(grad) * kind(1 - attrs.beta2)
    first, second = (1 - np.power(kind(beta), step) for beta in (attrs.beta1, attrs.beta2))
    scale = np.sqrt(v / second)
    scale += kind(attrs.eps)
    return (param - m / first / scale * lr, m, v)


def _run(update: Callable[[Any, Arrays, Arrays], Arrays], scalar_places: Sequence[int]) -> Any:
    """Make a kernel of an update; ``scalar_places`` says which inputs are hyper-parameters."""

    def run(
        ctx: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        attrs: Any,
        workspace: np.ndarray | None,
    ) -> None:
        dtype = compute_dtype(inputs[0].dtype)
        scalars = [inputs[i].astype(dtype) for i in scalar_places]
        values = [x.reshape(-1) for i, x in enumerate(inputs) if i not in scalar_places]
        for start in range(0, values[0].size, BLOCK):
            block = slice(start, start + BLOCK)
            results = update(attrs, [widened(x[block]) for x in values], scalars)
            for out, result in zip(outputs, results, strict=True):
                np.copyto(out.reshape(-1)[block], result, casting="unsafe")

    return run


KERNELS: tuple[Kernel, ...] = (
    Kernel("sgd_update_float__numpy", "sgd_update", _run(_sgd, (2,)), inplace=((0, 0), (1, 3))),
    Kernel(
        "adam_update_float__numpy",
        "adam_update",
        _run(_adam, (4, 5)),
        inplace=((0, 0), (1, 2), (2, 3)),
    ),
)
