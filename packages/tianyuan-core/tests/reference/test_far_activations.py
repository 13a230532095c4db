"""Activations have their limits at infinity, and their slopes there; elsewhere they are torch's."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan.autodiff import GradManager

torch = pytest.importorskip("torch")

INF = np.inf
# Values at -inf and inf, then slopes.
LIMITS = {
    "mish": (0.0, INF, 0.0, 1.0),
    "softsign": (-1.0, 1.0, 0.0, 0.0),
    "softplus": (0.0, INF, 0.0, 1.0),
    "logsigmoid": (-INF, 0.0, 1.0, 0.0),
    "elu": (-1.0, INF, 0.0, 1.0),
    "relu6": (0.0, 6.0, 0.0, 0.0),
    "hsigmoid": (0.0, 1.0, 0.0, 0.0),
    "sigmoid": (0.0, 1.0, 0.0, 0.0),
    "leaky_relu": (-INF, INF, np.float32(0.01), 1.0),
}
FAR = [1e30, -1e30, 3e38, -3e38, 89.0, -89.0, 21.0, 19.0, -19.0, 1e-30, 0.0, -0.0, 1e-40, 5.0, -5.0]
THEIRS = {"mish": "mish", "softsign": "softsign", "softplus": "softplus", "elu": "elu"}


def with_slope(function, values, trace=False):
    def step(x):
        manager = GradManager().attach([x])
        with manager:
            y = function(x)
            manager.backward(y, F.ones_like(y))
        return y, x.grad

    run = tianyuan.jit.trace(step, symbolic=True) if trace else step
    return [part.numpy() for part in run(tianyuan.Tensor(np.float32(values)))]


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("name", LIMITS)
def test_limits(name, trace):
    y, slope = with_slope(getattr(F.nn, name), [-INF, INF], trace)
    np.testing.assert_array_equal(np.concatenate([y, slope]), np.float32(LIMITS[name]))


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_far_from_zero_and_close_to_it(name, trace):
    x = torch.tensor(np.float32(FAR), requires_grad=True)
    want = getattr(torch.nn.functional, THEIRS[name])(x)
    want.sum().backward()
    y, slope = with_slope(getattr(F.nn, name), FAR, trace)
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=2e-5, atol=1e-38)
    np.testing.assert_allclose(slope, x.grad.numpy(), rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_no_number_stays_none(name):
    y, slope = with_slope(getattr(F.nn, name), [np.nan])
    assert np.isnan(y).all()
    assert name not in ("mish", "softsign", "softplus") or np.isnan(slope).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["mish", "softsign"])
def test_limits_in_other_dtypes(name, dtype):
    x = tianyuan.Tensor([-INF, INF, -700.0, 2.0], dtype=dtype)
    got = getattr(F.nn, name)(x).astype("float64").numpy()
    np.testing.assert_array_equal(got[:2], LIMITS[name][:2])
    theirs = torch.tensor([-700.0, 2.0], dtype=torch.float64)
    want = getattr(torch.nn.functional, name)(theirs).numpy()
    eps = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(got[2:], want, rtol=eps, atol=1e-300 if dtype == "float64" else 1e-7)
