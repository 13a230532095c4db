"""Synchronised batch normalisation over ranks is batch normalisation of the joined batch."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan.autodiff import GradManager

RNG = np.random.default_rng(43)
X, G = RNG.normal(size=(2, 6, 3, 2)).astype(np.float32)
X = X + np.float32(20)  # a mean far from zero, which sums of squares would lose digits to
WEIGHT, BIAS = RNG.normal(size=(2, 3)).astype(np.float32)


def normalised(x, g, function):
    """Return the result, the running values and the gradients in x, weight and bias."""
    tensors = [Tensor(x), Tensor(WEIGHT), Tensor(BIAS)]
    running = Tensor(np.zeros(3, np.float32)), Tensor(np.ones(3, np.float32))
    with GradManager() as gm:
        gm.attach(tensors)
        y = function(tensors[0], *running, *tensors[1:])
        gm.backward(y, Tensor(g))
    return [v.numpy() for v in (y, *running, *(t.grad for t in tensors))]


@pytest.mark.parametrize("cut", [3, 2], ids=["equal parts", "unequal parts"])
def test_ranks_normalise_as_one(run, cut):
    def work():
        part = slice(0, cut) if dist.get_rank() == 0 else slice(cut, None)
        return normalised(X[part], G[part], lambda *a: F.sync_batch_norm(*a, training=True))

    parts = run(2, work)
    y, mean, var, gx, gw, gb = normalised(X, G, lambda *a: F.batch_norm(*a, training=True))
    assert np.abs(mean).max() > 1  # the running mean has moved
    joined = [np.concatenate([parts[0][i], parts[1][i]]) for i in (0, 3)]
    np.testing.assert_allclose(joined[0], y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(joined[1], gx, rtol=1e-3, atol=1e-4)
    for values in parts:
        np.testing.assert_allclose(values[1], mean, rtol=1e-5)
        np.testing.assert_allclose(values[2], var, rtol=1e-4)
    for index, want in ((4, gw), (5, gb)):
        np.testing.assert_allclose(parts[0][index] + parts[1][index], want, rtol=1e-3, atol=1e-4)


def test_the_module_follows_its_group(run):
    def work():
        part = X[:3] if dist.get_rank() == 0 else X[3:]
        layer = M.SyncBatchNorm(3)
        y = layer(Tensor(part)).numpy()
        frozen = layer.eval()(Tensor(part)).numpy()
        return y, layer.running_mean.numpy(), layer.running_var.numpy(), frozen

    parts = run(2, work)
    whole = M.BatchNorm1d(3)
    y = whole(Tensor(X)).numpy()
    np.testing.assert_allclose(np.concatenate([p[0] for p in parts]), y, rtol=1e-4, atol=1e-4)
    frozen = whole.eval()(Tensor(X)).numpy()
    np.testing.assert_allclose(np.concatenate([p[3] for p in parts]), frozen, rtol=1e-4, atol=1e-3)
    for values in parts:
        np.testing.assert_allclose(values[1], whole.running_mean.numpy(), rtol=1e-5)
        np.testing.assert_allclose(values[2], whole.running_var.numpy(), rtol=1e-4)
