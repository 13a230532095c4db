"""Real digits: quantised networks keep their accuracy, and integers say what training said."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan
import tianyuan.quantization as Q
from tianyuan import jit

sys.path.insert(0, str(Path(__file__).parent))
from networks import accuracy, logits, train  # noqa: E402

INTEGER = {
    "quantize", "conv2d_quantized", "matmul_quantized", "add_quantized", "concat_quantized",
    "avg_pool2d_quantized", "adaptive_avg_pool2d_quantized", "max_pool2d", "reshape", "transpose",
    "take", "dequantize", "requantize", "relayout",
}  # fmt: skip


def saved(net, example, path):
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(example)
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return jit.load(str(path))


def test_training_keeps_accuracy_and_integers_agree(trained, digits, tmp_path):
    net, before = trained
    assert before > 0.93
    qat = Q.quantize_qat(
        net, inplace=False, qconfig=Q.per_channel_fakequant_qconfig, example=digits[0].x[:4]
    )
    train(qat, digits[0], 2, 1e-3)
    want = logits(qat, digits[1])
    assert accuracy(want, digits[1]) >= before - 0.012
    integers = Q.quantize(qat, inplace=False)
    got = logits(integers, digits[1])
    assert np.mean(got.argmax(1) == want.argmax(1)) >= 0.999
    model = saved(integers, tianyuan.Tensor(digits[1].x[:3]), tmp_path / "net.tym")
    np.testing.assert_array_equal(np.asarray(model(digits[1].x)), got)
    steps = model.explain(n=360).steps
    assert {step.op for step in steps} <= INTEGER
    assert sum(step.op == "quantize" for step in steps) == 1
    assert sum(step.op == "dequantize" for step in steps) == 1


def test_looking_at_data_keeps_accuracy(trained, digits):
    net, before = trained
    untouched = copy.deepcopy(net.state_dict())
    result = Q.quantize_static(net, [digits[0].x[:128], digits[0].x[128:256]])
    assert accuracy(logits(result.module, digits[1]), digits[1]) >= before - 0.012
    assert all(np.array_equal(value, net.state_dict()[key]) for key, value in untouched.items())
    layers = {layer.name: layer for layer in result.report.layers}
    assert all(layer.snr > 12 for layer in layers.values())
    assert result.report.output_snr > 15
    assert str(result.report).splitlines()[-1].startswith("worst: ")
    assert "<table>" in result.report.to_html()


@pytest.mark.parametrize(
    "name",
    [
        "ema_fakequant_qconfig", "min_max_fakequant_qconfig", "lsq_qconfig", "pact_qconfig",
        "tqt_qconfig",
    ],
)  # fmt: skip
def test_every_preset_trains(trained, digits, name):
    net, before = trained
    qat = Q.quantize_qat(net, inplace=False, qconfig=getattr(Q, name), example=digits[0].x[:4])
    qat.train()
    qat(tianyuan.Tensor(digits[0].x[:64]))  # learned ranges start from the first batch
    train(qat, digits[0], 1, 1e-3)
    want = logits(qat, digits[1])
    assert accuracy(want, digits[1]) >= before - 0.05
    integers = Q.quantize(qat, inplace=False)
    assert np.mean(logits(integers, digits[1]).argmax(1) == want.argmax(1)) >= 0.99
