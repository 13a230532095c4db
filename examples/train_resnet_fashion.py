"""Train a small ResNet on Fashion-MNIST, traced, and compare with PyTorch if asked to.

Usage: python examples/train_resnet_fashion.py [--epochs 3] [--compare-torch] [--count 60000]
[--steps N]. The pictures are those of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from beside_torch import Job, command_line, main
from tianyuan.data.dataset import MNIST

FOLDER = "/usr/share/datasets/fashion-mnist"
# Channels and first stride of each block.
BLOCKS = ((16, 1), (32, 2), (64, 2))


class Block(M.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = M.BatchNorm2d(outputs)
        self.conv2 = M.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = M.BatchNorm2d(outputs)
        self.skip = M.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = M.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class Net(M.Module):
    """A stem, the blocks, the mean over positions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        width = BLOCKS[0][0]
        self.conv = M.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn = M.BatchNorm2d(width)
        blocks = []
        for outputs, stride in BLOCKS:
            blocks.append(Block(width, outputs, stride))
            width = outputs
        self.blocks = M.Sequential(*blocks)
        self.fc = M.Linear(width, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(F.mean(x, axis=(2, 3)))


def torch_net() -> Any:
    """Return the same net of PyTorch's modules, under the same names."""
    import torch
    from torch import nn

    class TorchBlock(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.skip = nn.Identity()
            if stride != 1 or inputs != outputs:
                self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))

    class TorchNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = BLOCKS[0][0]
            self.conv = nn.Conv2d(1, width, 3, padding=1, bias=False)
            self.bn = nn.BatchNorm2d(width)
            blocks = []
            for outputs, stride in BLOCKS:
                blocks.append(TorchBlock(width, outputs, stride))
                width = outputs
            self.blocks = nn.Sequential(*blocks)
            self.fc = nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            x = self.blocks(torch.relu(self.bn(self.conv(x))))
            return self.fc(x.mean((2, 3)))

    return TorchNet()


def pictures(train: bool, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 1, 28, 28) of about unit size, and labels."""
    found = MNIST(FOLDER, train=train)
    images = found.images[:count].transpose(0, 3, 1, 2).astype(np.float32)
    return (images / 255 - 0.286) / 0.353, found.labels[:count].astype(np.int32)


def job(count: int | None, epochs: int) -> Job:
    """Return the net and how it is trained."""
    ty.random.seed(0)
    return Job(
        Net(), torch_net, lambda state: state, pictures(True, count), pictures(False),
        kind="sgd", rate=0.01, epochs=epochs, batch=128,
    )  # fmt: skip


if __name__ == "__main__":
    options = command_line(__doc__ or "", epochs=3)
    options.add_argument("--count", type=int, help="pictures to train on")
    given = options.parse_args()
    main(job(given.count, given.epochs), given)
