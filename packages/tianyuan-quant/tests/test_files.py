"""Files of floats become files of integers."""

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
from tianyuan.errors import AttrError
from tianyuan.jit.model import read_model

sys.path.insert(0, str(Path(__file__).parent))
from networks import accuracy  # noqa: E402


def dumped(net, example, path):
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(example))
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return path


def ops_of(path):
    return [step.op for step in jit.load(str(path)).explain(n=2).steps if step.op != "relayout"]


def test_a_file_keeps_its_accuracy(trained, digits, tmp_path):
    net, before = trained
    source = dumped(net, digits[0].x[:2], tmp_path / "float.tym")
    target = tmp_path / "int8.tym"
    report = Q.quantize_file(source, [digits[0].x[:128], digits[0].x[128:256]], target)
    got = np.asarray(jit.load(str(target))(digits[1].x))
    assert accuracy(got, digits[1]) >= before - 0.012
    assert report.output_snr > 15
    found = ops_of(target)
    assert found.count("quantize") == found.count("dequantize") == 1
    assert "conv2d_quantized" in found
    assert "matmul_quantized" in found
    assert not {"conv2d_fused", "matmul_fused", "fused_elementwise"} & set(found)
    one_thread = np.asarray(jit.load(str(target), backend="numpy", threads=1)(digits[1].x))
    np.testing.assert_array_equal(got, one_thread)


class Islands(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 8, 1, bias=False)
        self.out = M.Linear(8, 5)

    def forward(self, x):
        x = F.nn.silu(self.first(x))
        x = F.clip(self.second(x), -1.0, 2.0) + x
        return F.softmax(self.out(F.mean(x, axis=(2, 3))), axis=-1)


@pytest.fixture
def islands(tmp_path):
    tianyuan.random.seed(5)
    data = np.random.default_rng(4).standard_normal((16, 3, 6, 6)).astype(np.float32)
    net = Islands().eval()
    return net, data, dumped(net, data[:2], tmp_path / "islands.tym")


def test_floats_stay_where_there_is_no_integer_form(islands, tmp_path):
    net, data, source = islands
    target = tmp_path / "q.tym"
    Q.quantize_file(source, [data], target)
    got = np.asarray(jit.load(str(target))(data))
    np.testing.assert_allclose(got, net(tianyuan.Tensor(data)).numpy(), atol=0.02)
    assert ops_of(target).count("conv2d_quantized") == 2


def test_patterns_stay_in_floats(islands, tmp_path):
    _, data, source = islands
    target = tmp_path / "q.tym"
    Q.quantize_file(source, [data], target, keep=["second*"])
    assert ops_of(target).count("conv2d_quantized") == 1
    with pytest.raises(AttrError, match="nothing has a name of 'third'"):
        Q.quantize_file(source, [data], target, keep=["third"])


def test_correcting_biases_takes_the_mean_error_out(islands, tmp_path):
    net, data, source = islands
    want = net(tianyuan.Tensor(data)).numpy()
    errors = []
    for correct in (False, True):
        target = tmp_path / f"{correct}.tym"
        Q.quantize_file(
            source, [data], target, Q.ema_lowbit_fakequant_qconfig, bias_correction=correct
        )
        errors.append(np.abs((np.asarray(jit.load(str(target))(data)) - want).mean(0)).mean())
    assert errors[1] < errors[0]


def test_bad_data(islands, tmp_path):
    _, data, source = islands
    target = tmp_path / "q.tym"
    with pytest.raises(AttrError, match="no calibration data"):
        Q.quantize_file(source, [], target)
    with pytest.raises(AttrError, match="batch 0 has the wrong number of inputs, got 2"):
        Q.quantize_file(source, [(data, data)], target)
    with pytest.raises(AttrError, match="batch 0 has numbers that are not finite"):
        Q.quantize_file(source, [data * np.inf], target)
    assert not target.exists()


def test_zeros_as_data(islands, tmp_path):
    _, data, source = islands
    target = tmp_path / "q.tym"
    Q.quantize_file(source, [np.zeros_like(data)], target)
    assert np.isfinite(np.asarray(jit.load(str(target))(data))).all()


def test_a_file_of_integers_has_nothing_left(islands, tmp_path):
    _, data, source = islands
    target = tmp_path / "q.tym"
    Q.quantize_file(source, [data], target)
    with pytest.raises(AttrError, match="is quantised already"):
        Q.quantize_file(target, [data], tmp_path / "r.tym")


def test_onnx(islands, tmp_path):
    pytest.importorskip("onnx")
    from tianyuan import onnx

    net, data, _ = islands
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(data))
    source, target = tmp_path / "net.onnx", tmp_path / "q.tym"
    onnx.export(traced, str(source))
    Q.quantize_file(source, [data], target)
    got = np.asarray(jit.load(str(target))(data))
    np.testing.assert_allclose(got, net(tianyuan.Tensor(data)).numpy(), atol=0.02)


class Swished(M.Module):
    """Activations that are tables in integers, in front of a pool, a join and a sum."""

    def __init__(self):
        super().__init__()
        self.first, self.second = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 8, 1)
        self.third, self.out = M.Conv2d(8, 8, 1), M.Linear(16, 5)

    def forward(self, x):
        x = F.hswish(self.first(x))
        x = F.concat([F.hswish(self.second(x)), F.sigmoid(self.third(x))], axis=1)
        return self.out(F.mean(F.hswish(x), axis=(2, 3)))


def test_activations_in_front_of_pools_and_joins_are_tables(tmp_path):
    tianyuan.random.seed(3)
    net, x = Swished().eval(), np.random.default_rng(2).standard_normal((16, 3, 6, 6))
    x = x.astype(np.float32)
    source, target = dumped(net, x[:2], tmp_path / "float.tym"), tmp_path / "int8.tym"
    report = Q.quantize_file(source, [x], target)
    found = ops_of(target)
    assert found.count("quantize") == found.count("dequantize") == 1
    assert found.count("lookup_quantized") == 4
    assert not {"hswish", "sigmoid", "mean", "concat"} & set(found)
    got, want = np.asarray(jit.load(str(target))(x)), net(tianyuan.Tensor(x)).numpy()
    noise = 10 * np.log10((want**2).sum() / ((got - want) ** 2).sum())
    assert noise > 30
    assert report.output_snr == pytest.approx(noise, abs=0.1)
    assert {"hswish", "sigmoid"} <= {layer.kind for layer in report.layers}


class Shared(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 8, 1)

    def forward(self, x):
        x = F.hswish(self.first(x))
        gate = F.sigmoid(F.mean(x, axis=(2, 3), keepdims=True))
        return self.out(x * gate)


def test_activations_that_floats_read_too_stay_in_floats(tmp_path):
    tianyuan.random.seed(4)
    net, x = Shared().eval(), np.random.default_rng(2).standard_normal((8, 3, 6, 6))
    x = x.astype(np.float32)
    source, target = dumped(net, x[:2], tmp_path / "float.tym"), tmp_path / "int8.tym"
    assert Q.quantize_file(source, [x], target).output_snr > 30
    assert "mean" in ops_of(target)
    assert "adaptive_avg_pool2d_quantized" not in ops_of(target)


def test_the_report_leaves_out_what_only_moves(tmp_path):
    first, last = M.Conv2d(3, 4, 3, padding=1), M.Linear(36, 5)
    x = np.random.default_rng(3).standard_normal((8, 3, 6, 6)).astype(np.float32)

    def net(x):
        return last(F.flatten(F.max_pool2d(F.relu(first(x)), 2), 1))

    source = dumped(net, x[:2], tmp_path / "float.tym")
    report = Q.quantize_file(source, [x], tmp_path / "int8.tym")
    assert [layer.kind for layer in report.layers] == ["conv2d_fused", "max_pool2d", "matmul_fused"]


def test_a_module_of_ops_is_quantised_as_the_error_says(tmp_path):
    torch = pytest.importorskip("torch")
    from tianyuan.torch import from_module

    torch.manual_seed(1)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(128, 4),
    ).eval()  # fmt: skip
    x = np.random.default_rng(4).standard_normal((8, 3, 6, 6)).astype(np.float32)
    net = from_module(theirs, (torch.tensor(x),))
    for call in (lambda: Q.quantize_static(net, [x]), lambda: Q.quantize_dynamic(net)):
        with pytest.raises(AttrError, match="but their files: trace the network, dump it, give"):
            call()
    source, target = dumped(net, x, tmp_path / "net.tym"), tmp_path / "int8.tym"
    found = Q.quantize_static(source, [x], target=target).module
    assert {"conv2d_quantized", "matmul_quantized"} <= set(ops_of(target))
    want = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(found(x), want, atol=0.02)


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_scales_go_along_the_outputs_of_a_product(turned, square, tmp_path):
    """Outputs of very different size, in weights of both orders."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((64, 12)).astype(np.float32)
    count = 12 if square else 7
    weight = rng.standard_normal((12, count)) * 3.0 ** -np.arange(count)
    held = tianyuan.Tensor(weight.T if turned else weight)
    source = dumped(lambda v: F.matmul(v, held, transpose_b=turned), x, tmp_path / "float.tym")
    Q.quantize_file(source, [x], tmp_path / "int8.tym", bias_correction=False)
    graph, _ = read_model(tmp_path / "int8.tym")
    (product,) = (node for node in graph.nodes if node.op.name == "matmul_quantized")
    stored = graph.constants[product.inputs[1]].array
    columns = stored.T if product.attrs.transpose_b else stored
    scales = np.abs(weight).max(axis=0) / 127
    np.testing.assert_array_equal(columns, np.rint(weight / scales))


@pytest.mark.parametrize("activation", [F.nn.relu6, lambda x: F.clip(x, -0.5, 0.5), F.nn.sigmoid])
def test_products_are_not_equalised_through_what_factors_change(activation, tmp_path):
    tianyuan.random.seed(2)
    first, second = M.Conv2d(3, 4, 3), M.Conv2d(4, 2, 1)
    x = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)
    source = dumped(lambda v: second(activation(first(v))), x, tmp_path / "float.tym")
    plain, evened = tmp_path / "plain.tym", tmp_path / "evened.tym"
    Q.quantize_file(source, [x], plain)
    with pytest.warns(UserWarning, match="nothing is equalised, as no two layers follow each"):
        Q.quantize_file(source, [x], evened, equalize=True)
    kept, given = (read_model(path)[0] for path in (plain, evened))
    assert len(kept.constants) == len(given.constants) > 0
    for one, other in zip(kept.constants.values(), given.constants.values(), strict=True):
        np.testing.assert_array_equal(one.array, other.array)
