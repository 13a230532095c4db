"""Two dumped networks, with their eager modules, for the tools to work on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.jit import trace


class LeNet(M.Module):
    """LeNet for 1x28x28 pictures, with few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(1, 3, 5), M.Conv2d(3, 5, 5)
        self.fc1, self.fc2 = M.Linear(80, 12), M.Linear(12, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.flatten(F.max_pool2d(F.relu(self.conv2(x)), 2), 1)
        return self.fc2(F.relu(self.fc1(x)))


class Residual(M.Module):
    """A residual block that may halve the picture."""

    def __init__(self, inp: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(inp, out, 3, stride, 1, bias=False)
        self.bn1 = M.BatchNorm2d(out)
        self.conv2 = M.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = M.BatchNorm2d(out)
        self.skip = M.Conv2d(inp, out, 1, stride, bias=False) if stride > 1 else M.Identity()

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet(M.Module):
    """Three residual blocks on 3x16x16 pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 4, 3, 1, 1)
        self.blocks = M.Sequential(Residual(4, 4, 1), Residual(4, 8, 2), Residual(8, 8, 1))
        self.fc = M.Linear(8, 6)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return self.fc(F.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Dumped:
    """A module in eval mode, an input, and the file that the module was dumped to."""

    def __init__(
        self, module: M.Module, shape: tuple[int, ...], file: Path, **names: object
    ) -> None:
        ty.random.seed(7)
        self.module = module
        module.eval()
        self.x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        self.file = file
        traced = trace(lambda data: module(data), symbolic=True, capture_as_const=True)
        self.y = traced(ty.Tensor(self.x)).numpy()
        traced.dump(file, arg_names=["data"], output_names=["logits"], **names)

    def eager(self, x: np.ndarray) -> np.ndarray:
        return self.module(ty.Tensor(x)).numpy()


@pytest.fixture
def lenet(tmp_path: Path) -> Dumped:
    return Dumped(LeNet(), (2, 1, 28, 28), tmp_path / "lenet.tym")


@pytest.fixture
def resnet(tmp_path: Path) -> Dumped:
    names = {"dynamic_shapes": {"data": {0: "batch"}}}
    return Dumped(ResNet(), (2, 3, 16, 16), tmp_path / "resnet.tym", **names)
