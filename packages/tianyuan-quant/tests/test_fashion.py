"""Fashion-MNIST (Debian's dataset-fashion-mnist): what quantisation costs on real images."""

from __future__ import annotations

import copy
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q

sys.path.insert(0, str(Path(__file__).parent))
from networks import Block, accuracy, train  # noqa: E402

FOLDER = Path("/usr/share/datasets/fashion-mnist")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="dataset-fashion-mnist is not installed"),
]


class Fashion:
    """Normalised images (N, 1, 28, 28) and labels."""

    def __init__(self, kind, count=None):
        with gzip.open(FOLDER / f"{kind}-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16)
        with gzip.open(FOLDER / f"{kind}-labels-idx1-ubyte.gz") as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)
        images = pixels.reshape(-1, 1, 28, 28)[:count]
        self.x = ((images / 255 - 0.286) / 0.353).astype(np.float32)
        self.y = labels[:count].astype(np.int32)


class ResNet(M.Module):
    """A ResNet for 28 x 28."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = M.Sequential(
            M.Conv2d(1, width, 3, stride=2, padding=1, bias=False), M.BatchNorm2d(width), M.ReLU()
        )
        self.block1 = Block(width)
        self.down = M.Sequential(
            M.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            M.BatchNorm2d(2 * width),
            M.ReLU(),
        )
        self.block2 = Block(2 * width)
        self.fc = M.Linear(2 * width, 10)

    def forward(self, x):
        x = self.block2(self.down(self.block1(self.stem(x))))
        return self.fc(F.mean(x, axis=(2, 3)))


class MobileNet(M.Module):
    """Inverted residuals with ReLU6 for 28 x 28."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = M.Sequential(
            M.Conv2d(1, width, 3, stride=2, padding=1, bias=False), M.BatchNorm2d(width)
        )
        self.parts = [Inverted(width, width, 1), Inverted(width, 2 * width, 2),
                      Inverted(2 * width, 2 * width, 1)]  # fmt: skip
        self.fc = M.Linear(2 * width, 10)

    def forward(self, x):
        x = F.nn.relu6(self.stem(x))
        for part in self.parts:
            x = part(x)
        return self.fc(F.mean(x, axis=(2, 3)))


class Inverted(M.Module):
    def __init__(self, inputs, outputs, stride, expand=4):
        super().__init__()
        mid = inputs * expand
        self.expand, self.bn1 = M.Conv2d(inputs, mid, 1, bias=False), M.BatchNorm2d(mid)
        self.depth = M.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False)
        self.bn2 = M.BatchNorm2d(mid)
        self.project, self.bn3 = M.Conv2d(mid, outputs, 1, bias=False), M.BatchNorm2d(outputs)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        y = F.nn.relu6(self.bn1(self.expand(x)))
        y = self.bn3(self.project(F.nn.relu6(self.bn2(self.depth(y)))))
        return x + y if self.adds else y


def predicted(net, data):
    parts = [net(tianyuan.Tensor(data.x[i : i + 500])).numpy() for i in range(0, len(data.x), 500)]
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def fashion():
    return Fashion("train", 10_000), Fashion("t10k", 5_000)


@pytest.mark.parametrize(("kind", "least", "static_drop"), [(ResNet, 0.82, 0.005),
                                                            (MobileNet, 0.78, 0.01)])  # fmt: skip
def test_accuracy(fashion, kind, least, static_drop):
    data, held = fashion
    tianyuan.random.seed(1)
    net = train(train(kind(), data, 3, 2e-3), data, 2, 3e-4)
    floats = copy.deepcopy(net)
    before = accuracy(predicted(net, held), held)
    assert before > least
    static = Q.quantize_static(net, [data.x[:256], data.x[256:512]])
    assert accuracy(predicted(static.module, held), held) >= before - static_drop
    qat = Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=data.x[:2])
    train(qat, data, 1, 5e-4, seed=1)
    train(floats, data, 1, 5e-4, seed=1)
    want = predicted(qat, held)
    assert accuracy(want, held) >= accuracy(predicted(floats, held), held) - 0.006
    got = predicted(Q.quantize(qat), held)
    assert np.mean(got.argmax(1) == want.argmax(1)) >= 0.999
    ship = predicted(static.module, held)
    print(
        f"{kind.__name__}: float {before:.4f}, static {accuracy(ship, held):.4f}; one epoch more: "
        f"float {accuracy(predicted(floats, held), held):.4f}, "
        f"trained {accuracy(want, held):.4f}, integers {accuracy(got, held):.4f}, "
        f"agreement {np.mean(got.argmax(1) == want.argmax(1)):.4f}"
    )
