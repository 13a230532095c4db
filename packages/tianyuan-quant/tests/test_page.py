"""The page on quantisation does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q

PAGE = Path(__file__).parents[3] / "docs" / "quantization.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout")


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.body = M.Sequential(M.Linear(8, 16), M.ReLU())
        self.head = M.Sequential(M.Linear(16, 3))

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def names():
    """Return what the page takes for granted."""
    ty.random.seed(0)
    data = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    return {"Q": Q, "net": Net(), "images": data, "batches": [data[:32], data[32:]]}


def block(containing: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [found] = [block for block in blocks if containing in block]
    return found


def close(got, net, images) -> bool:
    """Tell whether integers come within a tenth of the floats' spread."""
    want = net(ty.Tensor(images)).numpy()
    return bool(abs(np.asarray(got) - want).max() < 0.1 * np.ptp(want))


def test_one_call_gives_a_module_of_integers_and_leaves_the_network(names, capsys):
    exec(block("Q.quantize_static(net, batches)"), names)
    assert "body.0" in capsys.readouterr().out
    assert type(names["net"].head[0]) is M.Linear
    assert close(
        names["integers"](ty.Tensor(names["images"])).numpy(), names["net"], names["images"]
    )


def test_a_file_is_quantised(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ty.jit.trace(lambda x: names["net"](x), capture_as_const=True)
    run(ty.Tensor(names["images"][:32]))
    run.dump("net.tym", dynamic_shapes={"x": {0: "batch"}})
    exec(block('"net.onnx"').replace("net.onnx", "net.tym"), names)
    assert close(names["result"].module(names["images"]), names["net"], names["images"])
    assert close(ty.jit.load("net-int8.tym")(names["images"]), names["net"], names["images"])


def test_weights_alone_are_quantised_and_the_network_stays(names):
    encoder = M.Sequential(M.Linear(8, 64), M.GELU(), M.Linear(64, 3))
    code = block("Q.quantize_dynamic(encoder)").splitlines()
    assert len(code) == 2
    for line in code:
        exec(line, {**names, "encoder": encoder}, names)
        assert names["result"].module[2].weight.dtype in (np.int8, np.uint8)
        assert encoder[2].weight.dtype == np.float32
        got = names["result"].module(ty.Tensor(names["images"])).numpy()
        assert close(got, encoder, names["images"])


def test_a_layer_of_integers_is_made_by_hand():
    random = np.random.default_rng(0)
    x = random.uniform(0, 2, (1, 3, 6, 6)).astype(np.float32)
    weight = random.uniform(-0.2, 0.2, (8, 3, 3, 3)).astype(np.float32)
    bias = random.uniform(-0.5, 0.5, (1, 8, 1, 1)).astype(np.float32)
    names = {"x": ty.Tensor(x), "weight": weight, "bias": bias}
    exec(block("quantized.Conv2d("), names)
    want = F.conv2d(ty.Tensor(x), ty.Tensor(weight), ty.Tensor(bias), padding=1).numpy()
    got = (names["y"].numpy().astype(np.float32) - 128) * 0.05
    # Half a step of the result, of each input (0.02) and of each weight (0.01).
    inputs = F.conv2d(ty.Tensor(x), ty.Tensor(np.ones_like(weight)), padding=1).numpy().max()
    weights = abs(weight).sum((1, 2, 3)).max()
    bound = 0.025 + 0.005 * inputs + 0.01 * weights + 27 * 0.01 * 0.005
    assert abs(got - want).max() < bound < 0.2 * np.ptp(want)


def test_training_takes_three_statements(names):
    floats = names["net"](ty.Tensor(names["images"])).numpy()
    code = block("per_channel_fakequant_qconfig, example")
    prepare, finish = code.split("...")
    exec(prepare, names)
    for _ in range(4):  # observers of moving averages need some batches
        names["net"](ty.Tensor(names["images"]))
    exec(finish[finish.index("\n") :], names)
    got = names["net"].eval()(ty.Tensor(names["images"])).numpy()
    assert abs(got - floats).max() < 0.1 * np.ptp(floats)
    assert not np.array_equal(got, floats)


def test_a_pattern_keeps_the_head_in_floats(names):
    exec(block('"head": None'), names)
    assert type(names["net"].head[0]) is M.Linear
    assert type(names["net"].body[0]) is not M.Linear


def test_every_configuration_that_the_page_names_exists():
    named = set(re.findall(r"`(\w+_qconfig)`", PAGE.read_text()))
    assert len(named) >= 8
    assert all(isinstance(getattr(Q, name), Q.QConfig) for name in named)


def test_the_worked_example_is_worked_right():
    values = re.search(r"x = (\d+).*w = (\d+).*bias = (\d+)", PAGE.read_text())
    x, w, bias = map(int, values.groups())
    conv = ty.registry.get_op("conv2d")
    real = conv(ty.Tensor([[[[(x - 10) * 0.5]]]]), ty.Tensor([[[[w * 0.25]]]])).item()
    real = F.relu(ty.Tensor(real + bias * 0.125)).item()
    assert real == 18.5
    assert "y   = rint(18.5) - 3 = 18 - 3 = 15" in PAGE.read_text()
