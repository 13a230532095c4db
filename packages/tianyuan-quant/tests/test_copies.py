"""Networks in training form and in integers are copied and pickled whole."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import Tensor

X = np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype(np.float32)


def _pickled(net):
    return pickle.loads(pickle.dumps(net))


def _training_form():
    net = M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU(), M.Conv2d(4, 2, 3))
    net = Q.quantize_qat(net, qconfig=Q.ema_fakequant_qconfig, example=Tensor(X))
    net.train()
    net(Tensor(X))
    net.eval()
    return net


@pytest.mark.parametrize("form", ["training", "integers"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, _pickled], ids=["copy", "pickle"])
def test_a_quantised_network(form, duplicate):
    net = _training_form()
    if form == "integers":
        net = Q.quantize(net)
    before = net(Tensor(X)).numpy()
    other = duplicate(net)
    np.testing.assert_array_equal(other(Tensor(X)).numpy(), before)
    if form == "training":  # it goes on learning by itself
        other.train()
        other(Tensor(X * 3))
        other.eval()
        assert np.abs(other(Tensor(X)).numpy() - before).max() > 0
        assert Q.quantize(other)(Tensor(X)).shape == before.shape
    np.testing.assert_array_equal(net(Tensor(X)).numpy(), before)
