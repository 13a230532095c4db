"""Quantise a network on real digits both ways: after training, and by training further.

Usage: python examples/quantize_digits.py [report.html]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.autodiff import GradManager
from tianyuan.data.dataset import Digits
from tianyuan.jit import load, trace
from tianyuan.optimizer import Adam


class Net(M.Module):
    """Convolutions with a residual, written without a thought of quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = M.Conv2d(1, 16, 3, padding=1), M.BatchNorm2d(16)
        self.conv2, self.bn2 = M.Conv2d(16, 16, 3, padding=1), M.BatchNorm2d(16)
        self.fc = M.Linear(16, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(F.mean(x, axis=(2, 3)))


def arrays(train: bool) -> tuple[np.ndarray, np.ndarray]:
    data = Digits(train)
    images = (data.images.transpose(0, 3, 1, 2) / 16).astype(np.float32)
    return images, data.labels.astype(np.int32)


def fit(net: M.Module, x: np.ndarray, y: np.ndarray, epochs: int, rate: float) -> None:
    net.train()
    gm = GradManager().attach(net.parameters())
    optimizer = Adam(net.parameters(), lr=rate)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(len(x)), len(x) // 64):
            with gm:
                loss = F.nn.cross_entropy(net(ty.Tensor(x[chosen])), ty.Tensor(y[chosen]))
                gm.backward(loss)
            optimizer.step()
            optimizer.clear_grad()
    net.eval()


def main() -> None:
    """Print the accuracy of the float network and of its three quantised forms."""
    ty.random.seed(0)
    (x, y), (test_x, test_y) = arrays(True), arrays(False)

    def accuracy(net: M.Module) -> float:
        return float((net(ty.Tensor(test_x)).numpy().argmax(1) == test_y).mean())

    net = Net()
    fit(net, x, y, 30, 5e-3)
    print(f"float                    {accuracy(net):.4f}")

    static = Q.quantize_static(net, [x[:128], x[128:256]], sensitivity=True)
    print(f"quantised after training {accuracy(static.module):.4f}")
    print(static.report)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(static.report.to_html(), encoding="utf-8")

    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=x[:2])
    fit(net, x, y, 2, 1e-3)
    print(f"trained further          {accuracy(net):.4f}")
    Q.quantize(net)
    print(f"  as integers            {accuracy(net):.4f}")

    traced = trace(lambda images: net(images), symbolic=True, capture_as_const=True)
    traced(ty.Tensor(test_x[:2]))
    traced.dump("digits-int8.tym", dynamic_shapes={"images": {0: "n"}})
    model = load("digits-int8.tym")
    same = np.array_equal(np.asarray(model(test_x)), net(ty.Tensor(test_x)).numpy())
    print(f"  from its file          {'the same' if same else 'other'} integers")


if __name__ == "__main__":
    main()
