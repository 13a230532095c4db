"""A training run that was stopped goes on bit for bit, on every backend, eagerly and traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import registry
from tianyuan.autodiff import GradManager
from tianyuan.data import DataLoader, RandomSampler
from tianyuan.data.dataset import ArrayDataset
from tianyuan.jit import trace
from tianyuan.optimizer import SGD, Adam, AdamW, OneCycleLR


class Run:
    def __init__(self, seed: int, optimizer: Any, traced: bool) -> None:
        ty.random.seed(seed)
        rng = np.random.default_rng(0)
        images = rng.standard_normal((40, 3, 12, 12)).astype(np.float32)
        data = ArrayDataset(images, rng.integers(0, 5, 40).astype(np.int32))
        self.net = M.Sequential(
            M.ConvBnRelu2d(3, 16, 3, padding=1), M.MaxPool2d(2), M.Dropout(0.3),
            M.ConvBnRelu2d(16, 8, 3), M.AdaptiveAvgPool2d(2), M.Flatten(), M.Linear(32, 5),
        )  # fmt: skip
        self.optimizer = optimizer(self.net.parameters())
        self.schedule = OneCycleLR(self.optimizer, 0.02, 30)
        self.loader = DataLoader(data, RandomSampler(data, 8, seed=seed))
        self.manager = GradManager().attach(self.net.parameters())
        self.update = trace(self._update, symbolic=True) if traced else self._update

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.net, "optimizer": self.optimizer, "scheduler": self.schedule,
            "loader": self.loader,
        }  # fmt: skip

    def _update(self, x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        with self.manager:
            loss = F.nn.cross_entropy(self.net(x), y)
            self.manager.backward(loss)
        self.optimizer.step().clear_grad()
        return loss

    def train(self, steps: int) -> list[float]:
        losses: list[float] = []
        while True:
            for x, y in self.loader:
                losses.append(self.update(ty.Tensor(x), ty.Tensor(y)).item())
                self.schedule.step()
                if len(losses) == steps:
                    return losses


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: Adam(p, 0.01, weight_decay=0.01),
        lambda p: AdamW(p, 0.01),
        lambda p: SGD(p, 0.01, momentum=0.9, nesterov=True),
    ],
    ids=["adam", "adamw", "sgd"],
)
@pytest.mark.parametrize("backend", ["numpy", "x86"])
def test_a_stopped_run_goes_on_bit_for_bit(
    backend: str, optimizer: Any, traced: bool, tmp_path: Path
) -> None:
    if backend not in registry.backends("cpu"):
        pytest.skip(f"the backend {backend} is not there")
    with ty.use_backend(backend):
        whole = Run(1, optimizer, traced)
        losses = whole.train(13)
        first = Run(1, optimizer, traced)
        begun = first.train(7)
        ty.save_checkpoint(tmp_path / "run", **first.parts(), losses=begun)
        second = Run(9, optimizer, traced)
        second.train(2)
        found = ty.load_checkpoint(tmp_path / "run", **second.parts())["losses"]
        assert found + second.train(6) == losses
        assert len(set(losses)) == 13
    for name, array in whole.net.state_dict().items():
        np.testing.assert_array_equal(second.net.state_dict()[name], array)
    for name, array in whole.optimizer.state_dict()["state"].items():
        np.testing.assert_equal(second.optimizer.state_dict()["state"][name], array)
