"""Networks, real digits and training that the tests share."""

from __future__ import annotations

import numpy as np
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.autodiff import GradManager
from tianyuan.data.dataset import Digits
from tianyuan.optimizer import Adam


class Block(M.Module):
    """Two convolutions around which the input is added, all written as users write it."""

    def __init__(self, channels, groups=1):
        super().__init__()
        self.conv1 = M.Conv2d(channels, channels, 3, padding=1, bias=False, groups=groups)
        self.bn1 = M.BatchNorm2d(channels)
        self.conv2 = M.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = M.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + x)


class Residual(M.Module):
    """A small ResNet with pooling, joining and a functional mean."""

    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(M.Conv2d(1, 16, 3, padding=1), M.BatchNorm2d(16), M.ReLU())
        self.block1 = Block(16)
        self.pool = M.MaxPool2d(2)
        self.block2 = Block(16)
        self.fc = M.Linear(32, 10)

    def forward(self, x):
        x = self.pool(self.block1(self.stem(x)))
        x = F.concat([self.block2(x), x], 1)
        return self.fc(F.mean(x, axis=(2, 3)))


class Shuffled(M.Module):
    """Grouped and depthwise convolutions, ReLU6 and a channel shuffle."""

    def __init__(self):
        super().__init__()
        self.expand = M.Conv2d(1, 16, 3, padding=1)
        self.bn1 = M.BatchNorm2d(16)
        self.depth = M.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.bn2 = M.BatchNorm2d(16)
        self.mix = M.Conv2d(16, 16, 1, groups=2)
        self.bn3 = M.BatchNorm2d(16)
        self.pool = M.AvgPool2d(2)
        self.fc = M.Linear(16 * 16, 10)

    def forward(self, x):
        x = F.nn.relu6(self.bn1(self.expand(x)))
        x = F.nn.relu6(self.bn2(self.depth(x)))
        x = self.bn3(self.mix(x))
        n, c, h, w = x.shape
        x = F.reshape(x, (n, 2, c // 2, h, w))
        x = F.reshape(F.transpose(x, (0, 2, 1, 3, 4)), (n, c, h, w))
        x = self.pool(F.relu(x))
        return self.fc(F.flatten(x, 1))


class Digit:
    """Images (N, 1, 8, 8) in [0, 1] and labels."""

    def __init__(self, train):
        data = Digits(train)
        self.x = (data.images.transpose(0, 3, 1, 2) / 16).astype(np.float32)
        self.y = data.labels.astype(np.int32)


def train(net, data, epochs, rate, seed=0):
    net.train()
    gm = GradManager().attach(net.parameters())
    optimizer = Adam(net.parameters(), lr=rate)
    rng = np.random.RandomState(seed)
    for _ in range(epochs):
        order = rng.permutation(len(data.x))
        for start in range(0, len(order) - 63, 64):
            chosen = order[start : start + 64]
            with gm:
                logits = net(tianyuan.Tensor(data.x[chosen]))
                gm.backward(F.nn.cross_entropy(logits, tianyuan.Tensor(data.y[chosen])))
            optimizer.step()
            optimizer.clear_grad()
    return net.eval()


def logits(net, data):
    return net(tianyuan.Tensor(data.x)).numpy()


def accuracy(found, data):
    return float((found.argmax(1) == data.y).mean())
