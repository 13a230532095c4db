"""Train three nets on Fashion-MNIST and print what int8 costs: trained further, and calibrated.

Usage: python examples/quantize_fashion.py [--epochs 7] [--further 1] [--seeds 0 1 2]
[--nets resnet shuffle mobile] [--count 60000]. The pictures are those of Debian's package
dataset-fashion-mnist.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.autodiff import GradManager
from tianyuan.data.dataset import MNIST
from tianyuan.jit import trace
from tianyuan.optimizer import SGD

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BATCH = 128


class ConvBn(M.Module):
    """A convolution without bias, and batch normalisation."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv = M.Conv2d(
            inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False
        )
        self.bn = M.BatchNorm2d(outputs)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return self.bn(self.conv(x))


class Basic(M.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = ConvBn(inputs, outputs, 3, stride)
        self.second = ConvBn(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = M.Identity() if same else ConvBn(inputs, outputs, 1, stride)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class Inverted(M.Module):
    """MobileNetV2's block: expand, filter by depth, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int = 4):
        super().__init__()
        middle = inputs * expand
        self.expand = ConvBn(inputs, middle, 1)
        self.depth = ConvBn(middle, middle, 3, stride, middle)
        self.project = ConvBn(middle, outputs, 1)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = self.project(F.nn.relu6(self.depth(F.nn.relu6(self.expand(x)))))
        return x + y if self.adds else y


class Shuffle(M.Module):
    """ShuffleNetV1's block: grouped 1 x 1, shuffle, filter by depth, grouped 1 x 1."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int = 2):
        super().__init__()
        middle, made = outputs // 2, outputs - inputs if stride == 2 else outputs
        self.groups, self.stride = groups, stride
        self.reduce = ConvBn(inputs, middle, 1, groups=groups)
        self.depth = ConvBn(middle, middle, 3, stride, middle)
        self.widen = ConvBn(middle, made, 1, groups=groups)
        self.pool = M.AvgPool2d(3, 2, 1)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = F.relu(self.reduce(x))
        n, c, h, w = y.shape
        y = F.reshape(y, (n, self.groups, c // self.groups, h, w))
        y = F.reshape(F.transpose(y, (0, 2, 1, 3, 4)), (n, c, h, w))
        y = self.widen(self.depth(y))
        return F.relu(F.concat([self.pool(x), y], 1) if self.stride == 2 else x + y)


class Net(M.Module):
    """A convolution, blocks, the mean over positions, and a linear layer."""

    def __init__(self, width: int, stride: int, blocks: list[M.Module], outputs: int):
        super().__init__()
        self.stem, self.blocks = ConvBn(1, width, 3, stride), M.Sequential(*blocks)
        self.fc = M.Linear(outputs, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return self.fc(F.mean(self.blocks(F.relu(self.stem(x))), axis=(2, 3)))


def stages(kind: type, width: int, stride: int, plan: list[tuple[int, int, int]]) -> Net:
    """Build a net: the stem's width and stride, then (channels, blocks, stride) per stage."""
    blocks: list[M.Module] = []
    inputs = width
    for outputs, count, stride in plan:
        for index in range(count):
            blocks.append(kind(inputs, outputs, stride if index == 0 else 1))
            inputs = outputs
    return Net(width, stride, blocks, inputs)


NETS = {
    "resnet": lambda: stages(Basic, 24, 2, [(24, 2, 1), (48, 2, 2), (96, 2, 2), (192, 2, 2)]),
    "shuffle": lambda: stages(Shuffle, 24, 1, [(48, 2, 2), (96, 3, 2), (192, 3, 2)]),
    "mobile": lambda: stages(Inverted, 16, 2, [(16, 1, 1), (24, 2, 2), (48, 3, 2), (64, 2, 1)]),
}


def pictures(train: bool, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 1, 28, 28) of about unit size, and labels."""
    found = MNIST(str(FOLDER), train=train)
    images = found.images.transpose(0, 3, 1, 2)[:count].astype(np.float32)
    return (images / 255 - 0.286) / 0.353, found.labels[:count].astype(np.int32)


def varied(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirror half of the images."""
    mirrored = rng.random(len(images)) < 0.5
    return np.ascontiguousarray(np.where(mirrored[:, None, None, None], images[..., ::-1], images))


def fit(net: M.Module, data: tuple[np.ndarray, np.ndarray], epochs: int, rate: float, seed: int):
    """Train by momentum; the rate falls along half a cosine, step by step."""
    x, y = data
    net.train()
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)

    @trace(symbolic=True)
    def step(images: ty.Tensor, labels: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = F.nn.cross_entropy(net(images), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng = np.random.default_rng(seed)
    steps = len(x) // BATCH
    for done in range(epochs * steps):
        if done % steps == 0:
            order = rng.permutation(len(x))
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 * (1 + float(np.cos(np.pi * done / (epochs * steps))))
        chosen = order[done % steps * BATCH : (done % steps + 1) * BATCH]
        step(ty.Tensor(varied(x[chosen], rng)), ty.Tensor(y[chosen]))
    net.eval()


def predictions(net: M.Module, x: np.ndarray) -> np.ndarray:
    """Return the class found for each image."""
    parts = [net(ty.Tensor(x[i : i + 500])).numpy().argmax(1) for i in range(0, len(x), 500)]
    return np.concatenate(parts)


def compare(name: str, seed: int, data, held, epochs: int, further: int) -> list[float]:
    """Train one net, quantise it both ways, and return the figures of its row in percent."""
    ty.random.seed(seed)
    net = NETS[name]()
    fit(net, data, epochs, 0.1, seed)
    images, labels = held

    def accuracy(found: np.ndarray) -> float:
        return float((found == labels).mean()) * 100

    static = Q.quantize_static(net, [data[0][i : i + 128] for i in range(0, 512, 128)])
    plain, calibrated = accuracy(predictions(net, images)), predictions(static.module, images)
    # The float net goes on as long as the one in training form, so that the two compare.
    floats = copy.deepcopy(net)
    fit(floats, data, further, 0.01, seed + 100)
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=data[0][:2])
    fit(net, data, further, 0.01, seed + 100)
    trained = predictions(net, images)
    integers = predictions(Q.quantize(net), images)
    longer = accuracy(predictions(floats, images))
    return [
        plain, accuracy(calibrated), plain - accuracy(calibrated),
        longer, accuracy(trained), accuracy(integers), longer - accuracy(integers),
        float((trained == integers).mean()) * 100,
    ]  # fmt: skip


def main() -> None:
    """Print one row per net and seed, and one of their means per net."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--further", type=int, default=1, help="epochs in training form")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--count", type=int, default=60_000, help="pictures to train on")
    given = parser.parse_args()
    data, held = pictures(True, given.count), pictures(False)
    print(f"Fashion-MNIST, {given.count} pictures, {given.epochs} + {given.further} epochs")
    print("Test accuracy in %; PTQ is calibrated after the first epochs, QAT shares the others.")
    print(
        "net      seed   float     PTQ   drop  float +     QAT  as int8   drop agreement  minutes"
    )
    for name in given.nets:
        rows = []
        for seed in given.seeds:
            start = time.perf_counter()
            rows.append(compare(name, seed, data, held, given.epochs, given.further))
            show(name, str(seed), rows[-1], (time.perf_counter() - start) / 60)
        show(name, "mean", np.mean(rows, axis=0))


def show(name: str, seed: str, row: Sequence[float], minutes: float | None = None) -> None:
    """Print a row of the table."""
    plain, ptq, ptq_drop, longer, qat, integers, qat_drop, agreement = row
    took = "" if minutes is None else f"{minutes:8.1f}"
    print(
        f"{name:8} {seed:>4} {plain:7.2f} {ptq:7.2f} {ptq_drop:6.2f} {longer:8.2f} {qat:7.2f} "
        f"{integers:8.2f} {qat_drop:6.2f} {agreement:9.2f} {took}",
        flush=True,
    )


if __name__ == "__main__":
    main()
