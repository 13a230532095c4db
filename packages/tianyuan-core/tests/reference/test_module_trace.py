"""Modules and optimisers inside a trace do what they do eagerly."""

from __future__ import annotations

import copy

import numpy as np
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.jit import trace


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = M.BatchNorm2d(4)
        self.pool = M.MaxPool2d(2)
        self.fc = M.Linear(4 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(F.relu(self.bn(self.conv(x))))
        return self.fc(F.flatten(y, 1))


def _batch(seed: int, count: int = 6) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return Tensor(rng.standard_normal((count, 1, 8, 8))), Tensor(rng.integers(0, 3, count))


def _close(one: M.Module, other: M.Module) -> None:
    want = other.state_dict()
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_traced_training_is_eager_training() -> None:
    eager = Net()
    traced = copy.deepcopy(eager)
    runs: list[int] = []

    def trainer(net: M.Module) -> object:
        optimizer = optim.SGD(net.parameters(), 0.1, 0.9)
        manager = GradManager().attach(list(net.parameters()))

        def step(x: Tensor, label: Tensor) -> Tensor:
            if net is traced:
                runs.append(1)
            with manager:
                loss = F.nn.cross_entropy(net(x), label)
                manager.backward(loss)
            optim.clip_grad_norm(net.parameters(), 1.0)
            optimizer.step().clear_grad()
            return loss

        return step

    plain, compiled = trainer(eager), trace(trainer(traced))
    for seed in range(6):
        want, got = plain(*_batch(seed)), compiled(*_batch(seed))  # type: ignore[operator]
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
        _close(traced, eager)
    assert len(runs) < 6
    assert np.abs(eager.bn.running_mean.numpy()).max() > 1e-3


def test_train_and_eval_are_traced_apart() -> None:
    net = Net()
    x, _ = _batch(0)
    forward = trace(lambda inp: net(inp))
    for _ in range(3):
        forward(x)
    before = net.state_dict()
    net.eval()
    want = net(x).numpy()
    for _ in range(3):
        np.testing.assert_allclose(forward(x).numpy(), want, rtol=1e-4, atol=1e-5)
    after = net.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    net.train()
    forward(x)
    assert not np.array_equal(net.state_dict()["bn.running_mean"], after["bn.running_mean"])


def test_a_trace_names_the_weights() -> None:
    net = Net().eval()
    x, _ = _batch(0)
    trace(lambda inp: net(inp))(x)
    assert [tensor.name for _, tensor in net.named_tensors()] == list(net.state_dict())
