"""A traced training step of a network in training form does what the plain one does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.autodiff import GradManager
from tianyuan.jit import trace
from tianyuan.optimizer import Adam

sys.path.insert(0, str(Path(__file__).parent))
from networks import Residual  # noqa: E402


def losses(config, data, traced):
    tianyuan.random.seed(0)
    net = Q.quantize_qat(Residual(), qconfig=config, example=data.x[:2])
    net.train()
    net(tianyuan.Tensor(data.x[:64]))
    gm = GradManager().attach(net.parameters())
    optimizer = Adam(net.parameters(), lr=1e-3)

    def step(x, y):
        with gm:
            loss = F.nn.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step()
        optimizer.clear_grad()
        return loss

    run = trace(step, symbolic=True) if traced else step
    found = [
        run(tianyuan.Tensor(data.x[i : i + 64]), tianyuan.Tensor(data.y[i : i + 64])).item()
        for i in range(0, 384, 64)
    ]
    return found, net.eval()


@pytest.mark.parametrize("name", ["per_channel_fakequant_qconfig", "lsq_qconfig"])
def test_tracing_changes_nothing(digits, name):
    plain, _ = losses(getattr(Q, name), digits[0], False)
    traced, net = losses(getattr(Q, name), digits[0], True)
    np.testing.assert_allclose(traced, plain, rtol=1e-4)
    assert plain[-1] < plain[0]
    Q.quantize(net)


def test_lines_named_are_the_networks_own():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Linear(3, 2)

        def forward(self, x):
            return F.log(self.fc(x))

    x = np.ones((4, 3), np.float32)
    net = Q.quantize_static(Net(), [x]).module
    traced = trace(lambda x: net(x), symbolic=True)
    traced(tianyuan.Tensor(x))
    places = [step.origin for step in traced.explain().steps]
    assert len(places) > 2
    assert all(place.startswith(__file__) for place in places), places
