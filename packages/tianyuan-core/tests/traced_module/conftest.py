"""Networks that the tests trace, and inputs for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.traced_module import checker


class LeNet(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = M.Conv2d(1, 6, 5)
        self.conv2 = M.Conv2d(6, 16, 5)
        self.pool = M.MaxPool2d(2, 2)
        self.fc1 = M.Linear(16 * 4 * 4, 32)
        self.fc2 = M.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


class Block(M.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = M.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = M.BatchNorm2d(channels)
        self.conv2 = M.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = M.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + x)


class ResNet(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Conv2d(3, 4, 3, padding=1)
        self.blocks = M.Sequential(Block(4), Block(4))
        self.fc = M.Linear(4, 5)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(x.mean((2, 3)))


class Attention(M.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = M.Linear(width, 3 * width)
        self.out = M.Linear(width, width)

    def forward(self, x, mask=None):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = F.matmul(q, k.transpose(0, 1, 3, 2)) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores + (1 - F.expand_dims(mask, (1, 2))) * -1e4
        y = F.matmul(F.softmax(scores, axis=-1), v)
        return self.out(y.transpose(0, 2, 1, 3).reshape(batch, length, width))


class Encoder(M.Module):
    """A BERT-like encoder that takes a dict and returns nested results."""

    def __init__(self, width=8, heads=2, layers=2):
        super().__init__()
        self.words = M.Embedding(20, width)
        self.positions = ty.Parameter(np.linspace(-1, 1, 16 * width, dtype="f").reshape(16, width))
        self.attention = [Attention(width, heads) for _ in range(layers)]
        self.norms = [M.LayerNorm(width) for _ in range(layers)]
        self.pooler = {"dense": M.Linear(width, width), "act": M.GELU()}

    def forward(self, batch, scale=1.0):
        ids, mask = batch["ids"], batch["mask"]
        x = self.words(ids) + self.positions[: ids.shape[1]]
        states = [x]
        for attention, norm in zip(self.attention, self.norms):
            x = norm(x + attention(x, mask=mask))
            states.append(x)
        pooled = F.tanh(self.pooler["act"](self.pooler["dense"](x[:, 0]))) * scale
        return {"pooled": pooled, "states": (states[1], states[-1])}, ids.shape[1]


def randomise(net, seed=0):
    """Give every parameter and statistic a value of its own."""
    rng = np.random.default_rng(seed)
    for name, tensor in net.named_tensors():
        value = rng.standard_normal(tuple(tensor.shape)) * 0.4
        if name.endswith("running_var"):
            value = np.abs(value) + 0.5
        tensor.set_value(value.astype(np.float32))
    return net


@pytest.fixture
def image():
    return lambda n=2, seed=1, shape=(3, 6, 6): ty.Tensor(
        np.random.default_rng(seed).standard_normal((n, *shape)).astype(np.float32)
    )


@pytest.fixture
def lenet():
    return randomise(LeNet()).eval()


@pytest.fixture
def resnet():
    return randomise(ResNet()).eval()


@pytest.fixture
def encoder():
    return randomise(Encoder()).eval()


@pytest.fixture
def batch():
    def make(n=2, length=5, seed=3):
        rng = np.random.default_rng(seed)
        mask = np.ones((n, length), np.float32)
        mask[0, -1] = 0
        ids = rng.integers(0, 20, (n, length)).astype(np.int32)
        return {"ids": ty.Tensor(ids), "mask": ty.Tensor(mask)}

    return make


@pytest.fixture(autouse=True)
def default_checks():
    """Give each test the checks that are on by default."""
    yield
    checker.settings.each_expr, checker.settings.whole = False, True
