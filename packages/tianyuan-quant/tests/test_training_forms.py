"""What a module in training form watches, fake-quantises and says of itself, in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.errors import AttrError
from tianyuan.module import qat, quantized

X = np.float32([[1.0, -2.0], [0.5, 0.3]])
WEIGHT = np.float32([[0.4, -1.27], [1.0, 0.2]])


def tensor(values):
    return tianyuan.Tensor(np.asarray(values, np.float32))


def linear(config=Q.min_max_fakequant_qconfig):
    layer = M.Linear(2, 2)
    layer.weight[...] = tensor(WEIGHT)
    layer.bias[...] = tensor([0.1234, -0.5])
    form = qat.Linear.from_float_module(layer)
    form.set_qconfig(config)
    return form


def on_grid(values, scale, low=-128, high=127):
    scale = np.float32(scale)
    q = np.clip(np.rint((values / scale).astype(np.float64)), low, high)
    return q.astype(np.float32) * scale


def test_weights_and_results_are_put_on_their_grids():
    form = linear().train()
    y = form(tensor(X)).numpy()
    step = np.float32(1.27) / np.float32(127)
    weight = on_grid(WEIGHT, step, -127)
    np.testing.assert_allclose(form.get_weight_qparams().scale.numpy(), step, rtol=1e-6)
    np.testing.assert_allclose(form.apply_quant_weight(tensor(WEIGHT)).numpy(), weight, rtol=1e-6)
    products = X @ weight.T + np.float32([0.1234, -0.5])
    scale = form.get_activation_qparams().scale.numpy()
    np.testing.assert_allclose(scale, np.abs(products).max() / 127.5, rtol=1e-6)
    np.testing.assert_allclose(y, on_grid(products, scale), rtol=1e-5)
    form.eval()
    again = form.apply_quant_activation(tensor([[0.3, 100.0]])).numpy()
    np.testing.assert_allclose(again, on_grid(np.float32([[0.3, 100.0]]), scale), rtol=1e-6)


def test_biases_are_put_on_the_grid_of_sums_in_evaluation():
    stub = qat.QuantStub.from_float_module(M.QuantStub())
    stub.set_qconfig(Q.min_max_fakequant_qconfig)
    form = linear()
    form(stub(tensor(X)))
    stub.eval()
    form.eval()
    x = stub(tensor(X))
    grid = stub.get_activation_qparams().scale.numpy() * form.get_weight_qparams().scale.numpy()
    got = form.apply_quant_bias(form.bias, x).numpy()
    np.testing.assert_allclose(got, np.rint([0.1234 / grid, -0.5 / grid]) * grid, rtol=1e-5)
    plain = form.apply_quant_bias(form.bias, tensor(X)).numpy()
    np.testing.assert_array_equal(plain, form.bias.numpy())


def test_dtypes_and_what_has_none():
    form = linear(Q.easyquant_qconfig)
    assert form.get_weight_dtype().name == "qint8_narrow"
    assert form.get_activation_dtype().name == "qint8"
    assert Q.easyquant_qconfig == Q.passive_qconfig
    stub = qat.QuantStub.from_float_module(M.QuantStub())
    stub.set_qconfig(Q.min_max_fakequant_qconfig)
    assert stub.get_weight_dtype() is None
    assert stub.get_weight_qparams() is None


def test_switches_of_one_module():
    form = linear()
    form.set_observer(False)
    form.set_fake_quant(False)
    floats = form(tensor(X)).numpy()
    np.testing.assert_allclose(floats, X @ WEIGHT.T + [0.1234, -0.5], rtol=1e-6)
    with pytest.raises(AttrError, match="fc: its observer never ran"):
        form.host_activation("fc")
    form.set_observer(True)
    form.set_fake_quant(True)
    assert not np.array_equal(form(tensor(X)).numpy(), floats)


def test_calibration_only_watches():
    form = linear(Q.calibration_qconfig)
    y = form(tensor(X)).numpy()
    np.testing.assert_allclose(y, X @ WEIGHT.T + [0.1234, -0.5], rtol=1e-6)
    assert isinstance(form.act_observer, Q.HistogramObserver)
    assert form.act_observer.counts.sum() == 4


def test_propagating_replaces_every_observer():
    net = Q.quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2)))
    old = net[1].weight_observer
    Q.propagate_qconfig(net, Q.lsq_qconfig)
    assert net[1].weight_observer is not old
    assert isinstance(net[1].act_fake_quant, Q.LSQ)


def test_momentum_may_change():
    observer = Q.ExponentialMovingAverageObserver(momentum=0.9)
    observer.set_momentum(0.25)
    for values in ([0.0, 4.0], [0.0, 8.0]):
        observer(tensor(values))
    assert observer.max_val.item() == 4 * 0.25 + 8 * 0.75
    with pytest.raises(AttrError, match="momentum is out of range"):
        observer.set_momentum(1.0)


@pytest.mark.parametrize("kind", ["FakeQuantize", "LSQ", "TQT"])
def test_fake_quantisers_start_from_the_observer(kind):
    fake = getattr(Q, kind)("qint8")
    qparams = Q.create_qparams(dtype_meta="qint8", scale=np.float32(0.25))
    values = np.float32([0.3, -7.0, 99.0])
    got = fake.fake_quant_forward(tensor(values), qparams).numpy()
    np.testing.assert_allclose(got, on_grid(values, 0.25), rtol=1e-6)
    fake.disable()
    np.testing.assert_array_equal(fake(tensor(values), qparams).numpy(), values)


def test_parameters_are_taken_over():
    a = Q.create_qparams(dtype_meta="qint8", scale=0.5)
    b = Q.QParams(Q.QuantMode.ASYMMERTIC, Q.quant_dtype("quint8"), tensor(0.25), tensor(3.0))
    a.update(b)
    assert (a.mode, a.dtype_meta.name) == (Q.QuantMode.ASYMMERTIC, "quint8")
    assert (a.scale.item(), a.zero_point.item()) == (0.25, 3.0)


def test_an_observer_needs_a_decision():
    with pytest.raises(NotImplementedError, match="Observer.get_qparams"):
        Q.Observer("qint8").get_qparams()


def test_one_layer_turns_into_integers():
    stub = qat.QuantStub.from_float_module(M.QuantStub())
    stub.set_qconfig(Q.min_max_fakequant_qconfig)
    form = linear()
    want = form(stub(tensor(X))).numpy()
    form.eval()
    stub.eval()
    layer = quantized.Linear.from_qat_module(form, "fc")
    start = quantized.QuantStub.from_qat_module(stub, "in")
    y = layer(start(tensor(X)))
    assert y.dtype == np.int8
    scale = np.float32(y.qparams.scales[0])
    np.testing.assert_allclose(y.numpy() * scale, want, atol=scale * 1.01)
