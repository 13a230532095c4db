"""Whole networks in integers: the same integers on every backend and instruction set."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.jit import load, trace
from tianyuan.registry import use_isa

sys.path.insert(0, str(Path(__file__).parent))
from models import MobileNetV2, ResNet18


class Plain(M.Module):
    """A VGG-like chain: convolutions, pools, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[M.Module] = []
        channels = 3
        for width in (16, 32, 48):
            layers += [M.Conv2d(channels, width, 3, padding=1), M.ReLU(), M.MaxPool2d(2)]
            channels = width
        self.features = M.Sequential(*layers)
        self.hidden, self.out = M.Linear(48 * 16, 64), M.Linear(64, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.flatten(self.features(x), 1)
        return self.out(F.relu(self.hidden(x)))


class Shuffle(M.Module):
    """ShuffleNet's unit: grouped convolutions with a channel shuffle, one joined, one added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.ConvBnRelu2d(3, 24, 3, stride=2, padding=1)
        self.parts = [self._branch(24, 36, 2), self._branch(60, 60, 1)]
        self.out = M.Linear(60, 10)

    @staticmethod
    def _branch(inputs: int, outputs: int, stride: int) -> M.Module:
        return M.Sequential(
            M.Conv2d(inputs, 12, 1, groups=3, bias=False), M.BatchNorm2d(12), M.ReLU(),
            M.Conv2d(12, 12, 3, stride, 1, groups=12, bias=False), M.BatchNorm2d(12),
            M.Conv2d(12, outputs, 1, groups=3, bias=False), M.BatchNorm2d(outputs),
        )  # fmt: skip

    @staticmethod
    def _shuffled(x: ty.Tensor) -> ty.Tensor:
        n, c, h, w = x.shape
        x = F.transpose(F.reshape(x, (n, 3, c // 3, h, w)), (0, 2, 1, 3, 4))
        return F.reshape(x, (n, c, h, w))

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = self.stem(x)
        short = F.avg_pool2d(x, 3, 2, 1)
        x = self._shuffled(F.concat([short, F.relu(self.parts[0](x))], 1))
        x = F.relu(self.parts[1](x) + x)
        return self.out(F.mean(x, axis=(2, 3)))


NETS: dict[str, Callable[[], M.Module]] = {
    "resnet": lambda: ResNet18(16),
    "mobilenet": lambda: MobileNetV2(last=320),
    "vgg": Plain,
    "shufflenet": Shuffle,
}


@pytest.fixture(scope="module", params=sorted(NETS))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the file of a network quantised on random images."""
    quantization = pytest.importorskip("tianyuan_quant")
    ty.random.seed(0)
    net = NETS[request.param]().eval()
    rng = np.random.default_rng(1)
    images = rng.standard_normal((4, 3, 32, 32)).astype(np.float32)
    result = quantization.quantize_static(net, [images])
    assert result.report.output_snr > 8
    traced = trace(lambda x: result.module(x), symbolic=True, capture_as_const=True)
    traced(ty.Tensor(images[:2]))
    path = str(tmp_path_factory.mktemp("integers") / f"{request.param}.tym")
    traced.dump(path, arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return path


def test_backends_return_the_same_integers(stored: str, x86: str) -> None:
    images = np.random.default_rng(2).standard_normal((5, 3, 32, 32)).astype(np.float32)
    want = np.asarray(load(stored, backend="numpy")(images))
    assert len(np.unique(want)) > 10
    for tier in ("avx2", "avx512", "vnni", "amx"):
        for threads in (1, 3):
            with use_isa(tier):
                got = np.asarray(load(stored, threads=threads)(images))
            np.testing.assert_array_equal(got, want, err_msg=f"{tier}, {threads} threads")


def test_no_float_lies_between_quantise_and_dequantise(stored: str) -> None:
    program = load(stored).program(n=2)
    inside = program.steps[1:-1]
    assert program.steps[0].op.name == "quantize"
    assert program.steps[-1].op.name == "dequantize"
    kinds = {program.slots[i].spec.dtype.name for step in inside for i in step.outputs}
    assert kinds <= {"int8", "uint8"}
