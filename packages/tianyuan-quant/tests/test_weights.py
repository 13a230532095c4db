"""Weights alone become integers: dynamically scaled int8 and groups of int4, modules and files."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import jit
from tianyuan.errors import AttrError
from tianyuan.module.quantized import LinearInt4


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def encoder():
    tianyuan.random.seed(3)
    return M.TransformerEncoder(M.TransformerEncoderLayer(32, 4, 64, activation="gelu"), 2).eval()


def dumped(net, example, path):
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(example))
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return path


def snr(want, got):
    return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())


def as_integers(layer, x):
    """Compute a dynamically quantised layer in numpy alone."""
    w, b = layer.weight.numpy(), layer.bias.numpy()
    scales = np.abs(w).max(1) / np.float32(127)
    s = (x.max() - x.min()) / np.float32(255)  # of both signs
    zero = int(np.rint(-x.min() / s))
    q = np.clip(np.rint(x / s).astype(np.int64) + zero, 0, 255) - zero
    sums = q @ np.rint(w / scales[:, None]).astype(np.int64).T
    return sums.astype(np.float32) * (scales * s) + b


def test_dynamic_layers_compute_as_defined():
    net, x = M.Sequential(M.Linear(40, 7), M.ReLU(), M.Linear(7, 5)), data(6, 40)
    result = Q.quantize_dynamic(net, keep=["2"], example=x)
    want = as_integers(net[0], x)
    np.testing.assert_array_equal(result.module[0](tianyuan.Tensor(x)).numpy(), want)
    assert type(result.module[2]) is M.Linear
    whole = net(tianyuan.Tensor(x)).numpy()
    assert result.report.output_snr == pytest.approx(
        snr(whole, result.module(tianyuan.Tensor(x)).numpy()), abs=1e-3
    )
    assert [layer.name for layer in result.report.layers] == ["0"]
    stored = result.module[0].weight.numpy()
    assert stored.dtype == np.int8
    assert np.abs(stored).max(1).min() == 127


def test_dynamic_encoder_and_its_file(encoder, tmp_path):
    x = data(2, 9, 32)
    want = encoder(tianyuan.Tensor(x)).numpy()
    result = Q.quantize_dynamic(encoder, example=x)
    assert result.report.output_snr > 30
    assert len(result.report.layers) == 12
    got = result.module(tianyuan.Tensor(x)).numpy()
    source = dumped(encoder, x, tmp_path / "float.tym")
    target = tmp_path / "int8.tym"
    other = Q.quantize_dynamic(source, target=target)
    assert snr(want, np.asarray(other.module(x))) > 30
    assert target.stat().st_size < source.stat().st_size * 0.45
    ops = [step.op for step in jit.load(str(target)).explain(n=2).steps]
    assert ops.count("linear_dynamic") == 12
    again = jit.load(str(dumped(result.module, x, tmp_path / "again.tym")))
    np.testing.assert_allclose(np.asarray(again(x)), got, atol=0.02)


@pytest.mark.parametrize(("bits", "group", "least"), [(4, 32, 17.5), (4, 8, 20), (2, 8, 7)])
def test_fewer_bits_by_groups(encoder, bits, group, least):
    x = data(2, 9, 32)
    result = Q.quantize_weights(encoder, bits, group, example=x)
    assert all(layer.snr > least for layer in result.report.layers)
    for name, part in result.module.named_modules():
        if isinstance(part, tianyuan.module.quantized.LinearInt4):
            weight = dict(encoder.named_modules())[name].weight.numpy()
            meant = part.float_weight()
            row = {layer.name: layer.snr for layer in result.report.layers}[name]
            assert row == pytest.approx(snr(weight, meant), abs=1e-3)
            y = part(tianyuan.Tensor(data(3, part.in_features))).numpy()
            want = data(3, part.in_features) @ meant.T + part.bias.numpy()
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_smaller_groups_lose_less(encoder):
    worst = [Q.quantize_weights(encoder, 4, g).report.worst(1)[0].snr for g in (64, 16, 4)]
    assert worst == sorted(worst)


def test_int4_in_a_file(encoder, tmp_path):
    x = data(2, 9, 32)
    source = dumped(encoder, x, tmp_path / "float.tym")
    target = tmp_path / "int4.tym"
    from_file = Q.quantize_weights(source, 4, 16, target=target)
    net = Q.quantize_weights(encoder, 4, 16).module
    want = net(tianyuan.Tensor(x)).numpy()
    np.testing.assert_allclose(np.asarray(from_file.module(x)), want, rtol=1e-3, atol=1e-4)
    saved = jit.load(str(dumped(net, x, tmp_path / "again.tym")))
    np.testing.assert_allclose(np.asarray(saved(x)), want, rtol=1e-3, atol=1e-4)
    assert target.stat().st_size < source.stat().st_size * 0.4


class Bounded(M.Module):
    """Activations, a residual and a bias that files hold inside of products."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = M.Linear(16, 16), M.Linear(16, 16), M.Linear(16, 3, bias=False)

    def forward(self, x):
        y = F.relu(self.a(x))
        y = self.b(y) + x
        return self.c(F.clip(y, -1.0, 1.5))


def test_what_is_fused_into_a_product_stays(tmp_path):
    tianyuan.random.seed(1)
    net, x = Bounded().eval(), data(5, 16)
    source = dumped(net, x, tmp_path / "float.tym")
    got = Q.quantize_weights(source, 4, 4, target=tmp_path / "q.tym").module(x)
    want = Q.quantize_weights(net, 4, 4).module(tianyuan.Tensor(x)).numpy()
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
    kept = Q.quantize_dynamic(source, keep=["a", "b", "c"], target=tmp_path / "kept.tym")
    assert kept.report.layers == ()
    np.testing.assert_allclose(
        np.asarray(kept.module(x)), net(tianyuan.Tensor(x)).numpy(), rtol=1e-5, atol=1e-6
    )


def test_refusals(encoder, tmp_path):
    with pytest.raises(AttrError, match="bits are wrong, got 8, expected 2, 3 or 4"):
        Q.quantize_weights(encoder, bits=8)
    with pytest.raises(AttrError, match="^fc: bits are wrong, got 5, expected 2, 3 or 4"):
        LinearInt4(M.Linear(4, 2), bits=5, owner="fc")
    with pytest.raises(AttrError, match="group is wrong, got 0, expected a positive int"):
        Q.quantize_weights(encoder, group=0)
    with pytest.raises(AttrError, match="nothing has a name of 'head"):
        Q.quantize_dynamic(encoder, keep=["head*"])
    with pytest.raises(AttrError, match="the model has no linear map to quantise"):
        Q.quantize_dynamic(M.Sequential(M.ReLU()))
    with pytest.raises(AttrError, match="target is missing"):
        Q.quantize_dynamic(tmp_path / "float.tym")
    once = Q.quantize_dynamic(encoder).module
    with pytest.raises(AttrError, match=r"quantised already, got .*\(LinearDynamic\)"):
        Q.quantize_dynamic(once)
    with pytest.raises(AttrError, match="cannot train"):
        once.train()


def test_groups_use_the_least_integer_too():
    from tianyuan_quant.quantized.weights import rounded_groups

    for bits in (2, 3, 4):
        least, top = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        weight = np.float32([[least, top, 0, 1], [2 * least, 0, 2 * top, -2]])
        q, scales = rounded_groups(weight, bits, 4)
        np.testing.assert_allclose(q * scales, weight, rtol=1e-6)
        assert q.min() == least
