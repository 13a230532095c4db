"""Whole networks of the usual kinds compute in integers from the first op to the last."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import jit

sys.path.insert(0, str(Path(__file__).parent))
from networks import Block  # noqa: E402


def unit(inputs, outputs, kernel=3, stride=1, groups=1, act=M.ReLU):
    conv = M.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, M.BatchNorm2d(outputs), *([act()] if act else [])]


class ResNet(M.Module):
    """Blocks of two sorts, the second with a stride and a projection."""

    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(*unit(3, 16, 7, 2), M.MaxPool2d(3, 2, 1))
        self.block = Block(16)
        self.narrow = M.Sequential(*unit(16, 8, 1), *unit(8, 8, 3, 2), *unit(8, 32, 1, act=None))
        self.project = M.Sequential(*unit(16, 32, 1, 2, act=None))
        self.fc = M.Linear(32, 5)

    def forward(self, x):
        x = self.block(self.stem(x))
        x = F.relu(self.narrow(x) + self.project(x))
        return self.fc(F.flatten(F.nn.adaptive_avg_pool2d(x, 1), 1))


class VGG(M.Module):
    def __init__(self):
        super().__init__()
        self.features = M.Sequential(
            *unit(3, 8), *unit(8, 8), M.MaxPool2d(2), *unit(8, 16), M.MaxPool2d(2)
        )
        self.head = M.Sequential(
            M.Linear(16 * 64, 32), M.ReLU(), M.Dropout(0.5), M.Linear(32, 16), M.ReLU(),
            M.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.head(F.flatten(self.features(x), 1))


class MobileNetV2(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(*unit(3, 8, 3, 2, act=M.ReLU6))
        self.same = self.inverted(8, 8, 1)
        self.down = self.inverted(8, 12, 2)
        self.last = M.Sequential(*unit(12, 24, 1, act=M.ReLU6))
        self.fc = M.Linear(24, 5)

    @staticmethod
    def inverted(inputs, outputs, stride):
        wide = 3 * inputs
        return M.Sequential(
            *unit(inputs, wide, 1, act=M.ReLU6),
            *unit(wide, wide, 3, stride, wide, M.ReLU6),
            *unit(wide, outputs, 1, act=None),
        )

    def forward(self, x):
        x = self.stem(x)
        x = self.last(self.down(x + self.same(x)))
        return self.fc(F.mean(x, axis=(2, 3)))


def shuffled(x, groups):
    n, c, h, w = x.shape
    x = F.transpose(F.reshape(x, (n, groups, c // groups, h, w)), (0, 2, 1, 3, 4))
    return F.reshape(x, (n, c, h, w))


class ShuffleNetV1(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(*unit(3, 12, 3, 2))
        self.reduce = M.Sequential(*unit(12, 12, 1, groups=3))
        self.depth = M.Sequential(*unit(12, 12, 3, 2, 12, None))
        self.expand = M.Sequential(*unit(12, 12, 1, groups=3, act=None))
        self.pool = M.AvgPool2d(3, 2, 1)
        self.fc = M.Linear(24, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.expand(self.depth(shuffled(self.reduce(x), 3)))
        x = F.relu(F.concat([self.pool(x), y], 1))
        return self.fc(F.mean(x, axis=(2, 3)))


class ShuffleNetV2(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(*unit(3, 16, 3, 2))
        self.right = M.Sequential(*unit(8, 8, 1), *unit(8, 8, 3, 1, 8, None), *unit(8, 8, 1))
        self.left = M.Sequential(*unit(16, 16, 3, 2, 16, None), *unit(16, 8, 1))
        self.fc = M.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        first, second = F.split(x, 2, axis=1)
        x = shuffled(F.concat([first, self.right(second)], 1), 2)
        return self.fc(F.mean(self.left(x), axis=(2, 3)))


def dumped(function, example, path):
    traced = jit.trace(lambda x: function(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(example))
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return path


def floats_inside(path):
    """Return the steps that touch floats between the first rounding and the last."""
    steps = jit.load(str(path)).explain(n=2).steps
    ops = [step.op for step in steps]
    first, last = ops.index("quantize"), len(ops) - 1 - ops[::-1].index("dequantize")
    assert {"conv2d_quantized", "matmul_quantized"} <= set(ops)
    assert set(ops[:first]) | set(ops[last + 1 :]) <= {"relayout", "reshape"}
    return [s.op for s in steps[first + 1 : last] if "float" in " ".join((*s.inputs, *s.outputs))]


@pytest.mark.parametrize("kind", [ResNet, VGG, MobileNetV2, ShuffleNetV1, ShuffleNetV2])
def test_no_float_between_the_first_and_the_last_op(kind, tmp_path):
    tianyuan.random.seed(11)
    net = kind().eval()
    data = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    integers = Q.quantize_static(net, [data]).module
    own = dumped(integers, data, tmp_path / "module.tym")
    assert floats_inside(own) == []
    np.testing.assert_array_equal(
        np.asarray(jit.load(str(own))(data)), integers(tianyuan.Tensor(data)).numpy()
    )
    source = dumped(net, data, tmp_path / "float.tym")
    Q.quantize_static(source, [data], target=tmp_path / "int8.tym")
    assert floats_inside(tmp_path / "int8.tym") == []


@pytest.mark.parametrize("kind", [ResNet, VGG, MobileNetV2, ShuffleNetV1, ShuffleNetV2])
def test_no_float_in_another_frameworks_file(kind, tmp_path):
    """ONNX Runtime's quantiser writes QDQ files, which become integers when they are loaded."""
    onnx = pytest.importorskip("onnx")
    tools = pytest.importorskip("onnxruntime.quantization")
    tianyuan.random.seed(11)
    net = kind().eval()
    data = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    tianyuan.onnx.export(net, tmp_path / "x.onnx", data)

    tools.shape_inference.quant_pre_process(
        str(tmp_path / "x.onnx"), str(tmp_path / "folded.onnx"), skip_symbolic_shape=True
    )
    batches = [{onnx.load(tmp_path / "x.onnx").graph.input[0].name: data}]

    class Reader(tools.CalibrationDataReader):
        def get_next(self):
            return batches.pop() if batches else None

    tools.quantize_static(
        tmp_path / "folded.onnx", tmp_path / "q.onnx", Reader(), per_channel=True,
        quant_format=tools.QuantFormat.QDQ,
    )  # fmt: skip
    assert floats_inside(tmp_path / "q.onnx") == []
