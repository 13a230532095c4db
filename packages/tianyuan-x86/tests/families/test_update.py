"""Optimisers' updates against their published formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

F = np.float32
SIZES = [(3,), (100, 7), (70000,)]


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize(
    ("momentum", "decay", "nesterov"),
    [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.01, True), (0.0, 0.1, False)],
)
def test_sgd(
    apply: Any, rng: np.random.Generator, shape: Any, momentum: float, decay: float, nesterov: bool
) -> None:
    param, velocity = rng.normal(size=shape).astype(F), np.zeros(shape, F)
    p, v, rate = param.astype(np.float64), velocity.astype(np.float64), 0.1
    for _ in range(3):
        g = rng.normal(size=shape).astype(F)
        moving = (velocity,) if momentum else ()
        attrs = {"momentum": momentum, "weight_decay": decay, "nesterov": nesterov}
        found = apply("sgd_update", param, g, F(rate), *moving, **attrs)
        param, velocity = found if momentum else (found, velocity)
        step = g + decay * p
        v = momentum * v + step
        p = p - rate * (step + momentum * v if nesterov else v if momentum else step)
        np.testing.assert_allclose(param, p, rtol=1e-5, atol=1e-6)
        if momentum:
            np.testing.assert_allclose(velocity, v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.01, False), (0.01, True)])
def test_adam(
    apply: Any, rng: np.random.Generator, shape: Any, decay: float, decoupled: bool
) -> None:
    param = rng.normal(size=shape).astype(F)
    m, v = np.zeros(shape, F), np.zeros(shape, F)
    p, first, second = (array.astype(np.float64) for array in (param, m, v))
    rate, beta1, beta2, eps = 0.01, 0.9, 0.999, 1e-8
    attrs = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay}
    for t in range(1, 4):
        g = rng.normal(size=shape).astype(F)
        param, m, v = apply(
            "adam_update", param, g, m, v, F(t), F(rate), decoupled=decoupled, **attrs
        )
        grad = g + (0 if decoupled else decay) * p
        p = p * (1 - rate * decay) if decoupled else p
        first = beta1 * first + (1 - beta1) * grad
        second = beta2 * second + (1 - beta2) * grad**2
        root = np.sqrt(second / (1 - beta2**t)) + eps
        p = p - rate * first / (1 - beta1**t) / root
        np.testing.assert_allclose(param, p, rtol=1e-5, atol=3e-6)
        np.testing.assert_allclose(m, first, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(v, second, rtol=1e-5, atol=1e-6)
