"""Integer modules made by hand compute what exact integers say; observers agree over ranks."""

from __future__ import annotations

from functools import partial

import exact
import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from exact import INPUT, WEIGHT, data, integers, stored
from tianyuan.errors import AttrError
from tianyuan.functional.quantized import qint8, quint8
from tianyuan.module import qat, quantized
from tianyuan.utils.module_stats import module_stats

torch = pytest.importorskip("torch")

RESULT = quint8(0.07, 90)
finished = partial(exact.finished, RESULT)


def centred(array):
    return torch.tensor(stored(array, INPUT) - INPUT.zero_point)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d"])
def test_convolutions(kind):
    x, w, b = data(2, 4, 6, 6), data(6, 2, 3, 3, seed=1), data(6, seed=2)
    layer = getattr(quantized, kind)(4, 6, 3, 2, 1, 1, 2, dtype=RESULT)
    layer.fill(w.reshape(2, 3, 2, 3, 3), b, WEIGHT)
    options = {"stride": 2, "padding": 1, "groups": 2}
    sums = torch.nn.functional.conv2d(centred(x), torch.tensor(stored(w, WEIGHT)), **options)
    want = finished(sums.numpy(), b.reshape(1, 6, 1, 1), "Relu" in kind)
    np.testing.assert_array_equal(layer(integers(x)).numpy(), want)


@pytest.mark.parametrize(
    "kind",
    ["ConvTranspose2d", "ConvTransposeRelu2d", "ConvTransposeBn2d", "ConvTransposeBnRelu2d"],
)
def test_transposed_convolutions(kind):
    x, w, b = data(2, 4, 4, 5), data(4, 3, 3, 3, seed=1), data(6, seed=2)
    layer = getattr(quantized, kind)(4, 6, 3, 2, 1, 1, 1, 2, dtype=RESULT)
    layer.fill(w.reshape(2, 2, 3, 3, 3), b, WEIGHT)
    sums = torch.nn.functional.conv_transpose2d(
        centred(x), torch.tensor(stored(w, WEIGHT)), None, 2, 1, 1, 2
    )
    want = finished(sums.numpy(), b.reshape(1, 6, 1, 1), "Relu" in kind)
    np.testing.assert_array_equal(layer(integers(x)).numpy(), want)


@pytest.mark.parametrize("kind", ["Linear", "LinearRelu", "LinearBn1d", "LinearBnRelu1d"])
def test_linear(kind):
    x, w, b = data(5, 7), data(3, 7, seed=1), data(3, seed=2)
    layer = getattr(quantized, kind)(RESULT)
    layer.fill(w, b, WEIGHT)
    sums = centred(x).numpy() @ stored(w, WEIGHT).T
    np.testing.assert_array_equal(layer(integers(x)).numpy(), finished(sums, b, "Relu" in kind))


@pytest.mark.parametrize("mode", ["identity", "relu"])
def test_batch_matmul(mode):
    x, w, b = data(3, 4, 2), data(3, 5, 4, seed=1), data(5, 1, seed=2)
    layer = quantized.BatchMatMulActivation(3, 4, 5, True, mode, RESULT)
    layer.fill(w, b, WEIGHT)
    sums = np.matmul(stored(w, WEIGHT), centred(x).numpy())
    np.testing.assert_array_equal(layer(integers(x)).numpy(), finished(sums, b, mode == "relu"))


def test_sums_and_joins():
    a, b = data(2, 3), data(2, 3, seed=1)
    one, other = stored(a, INPUT) - 120, stored(b, WEIGHT)
    values = [integers(a), quantized.QuantStub(WEIGHT)(tianyuan.Tensor(b))]
    factors = [np.float32(np.float64(f.scale) / RESULT.scale) for f in (INPUT, WEIGHT)]
    parts = [q.astype(np.float32) * f for q, f in zip((one, other), factors, strict=True)]
    sums = np.clip(np.rint((parts[0] + parts[1]).astype(np.float64)) + 90, 0, 255)
    np.testing.assert_array_equal(quantized.Elemwise("add", RESULT)(*values).numpy(), sums)
    relu = quantized.Elemwise("fuse_add_relu", RESULT)(*values).numpy()
    np.testing.assert_array_equal(relu, np.maximum(sums, 90))
    joined = np.clip(np.rint(np.concatenate(parts, 1).astype(np.float64)) + 90, 0, 255)
    np.testing.assert_array_equal(quantized.Concat(RESULT)(values, 1).numpy(), joined)
    back = quantized.DequantStub()(integers(a)).numpy()
    np.testing.assert_array_equal(back, one.astype(np.float32) * np.float32(INPUT.scale))


def test_what_is_missing_is_named():
    x = integers(data(1, 2, 3, 3))
    layer = quantized.Conv2d(2, 2, 1, owner="stem")
    layer.fill(data(2, 2, 1, 1), None, WEIGHT)
    with pytest.raises(AttrError, match="stem: it is not known how its result is quantised"):
        layer(x)
    with pytest.raises(AttrError, match="Linear: it has no weight yet, got None, expected fill"):
        quantized.Linear(RESULT)(integers(data(2, 3)))
    with pytest.raises(AttrError, match="weights must be signed and symmetric, got quint8"):
        layer.fill(data(2, 2, 1, 1), None, INPUT)
    with pytest.raises(AttrError, match="Linear: dtype carries no scale, got 'qint8'"):
        quantized.Linear("qint8")
    with pytest.raises(AttrError, match="only zeros pad"):
        quantized.Conv2d(2, 2, 1, padding_mode="reflect")
    with pytest.raises(AttrError, match="Conv2d: a quantised module cannot train"):
        quantized.Conv2d(2, 2, 1).train()


def test_transposed_convolutions_of_a_network_are_integers():
    net = M.Sequential(M.QuantStub(), M.ConvTransposeBnRelu2d(3, 4, 3, 2), M.DequantStub())
    x = tianyuan.Tensor(data(2, 3, 4, 4))
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig).train()
    for _ in range(2):
        net(x)
    Q.quantize(net.eval())
    y = net[1](net[0](x))
    assert y.dtype == np.uint8
    assert len(net[1].weight_params.scales) == 4


def gradients_of(layer, x):
    layer.weight.grad = None
    gm = tianyuan.autodiff.GradManager().attach([layer.weight])
    with gm:
        gm.backward(F.sum(F.square(layer(x))))
    return layer.weight.grad.numpy()


def test_transposed_training_form_has_the_gradients_of_the_float_layer():
    x, layer = tianyuan.Tensor(data(2, 4, 3, 3)), M.ConvTranspose2d(4, 6, 3, 2, groups=2)
    want = gradients_of(layer, x)
    form = qat.ConvTranspose2d.from_float_module(layer)
    np.testing.assert_allclose(gradients_of(form, x), want, rtol=1e-4, atol=1e-5)


def _observe(rank_data, kinds):
    from tianyuan.distributed import get_rank

    mine = rank_data[get_rank()]
    found = []
    for kind in kinds:
        observer = getattr(Q, kind)()
        for batch in mine:
            observer(tianyuan.Tensor(batch))
        found.append((observer.min_val.item(), observer.max_val.item()))
    return found


def test_observers_see_all_ranks():
    from tianyuan.distributed import launcher

    ranks = [[data(4, seed=1), data(4, seed=2)], [data(4, seed=3) * 3, data(4, seed=4)]]
    kinds = ["SyncMinMaxObserver", "SyncExponentialMovingAverageObserver"]
    found = launcher(_observe, n_gpus=2)(ranks, kinds)
    batches = [np.concatenate([ranks[0][i], ranks[1][i]]) for i in range(2)]
    lows, highs = [b.min() for b in batches], [b.max() for b in batches]
    for each in found:
        np.testing.assert_allclose(each[0], (min(lows), max(highs)), rtol=1e-6)
        averages = [v[0] * 0.9 + v[1] * 0.1 for v in (lows, highs)]
        np.testing.assert_allclose(each[1], averages, rtol=1e-5)


def test_the_preset_over_ranks_watches_alone_too():
    net = M.Sequential(M.QuantStub(), M.Linear(3, 2))
    Q.quantize_qat(net, qconfig=Q.sync_ema_fakequant_qconfig).train()
    x = data(4, 3)
    net(tianyuan.Tensor(x))
    assert isinstance(net[0].act_observer, Q.SyncExponentialMovingAverageObserver)
    assert isinstance(net[1].weight_observer, Q.SyncMinMaxObserver)
    scale = net[0].act_observer.get_qparams().scale.item()
    np.testing.assert_allclose(scale, np.abs(x).max() / 127.5, rtol=1e-6)


def test_a_form_may_come_from_qparams():
    layer = quantized.QuantStub(Q.create_qparams(dtype_meta="qint8", scale=0.5))
    np.testing.assert_array_equal(layer(tianyuan.Tensor([1.0, -3.2])).numpy(), [2, -6])
    assert quantized.QuantStub(qint8(0.5)).result.scales == (0.5,)


def test_histograms_take_a_batch_by_its_name():
    observer = Q.HistogramObserver()
    observer.sideeffect_forward(x_orig=tianyuan.Tensor(data(100)))
    assert observer.counts.sum() == 100


def test_the_worked_example_of_the_documentation():
    conv = quantized.ConvRelu2d(1, 1, 1, dtype=qint8(1.0))
    conv.result = Q.create_qparams(Q.QuantMode.ASYMMERTIC, "qint8", 1.0, -3)
    conv.fill(np.full((1, 1, 1, 1), 1.75, np.float32), np.float32([0.125]), qint8(0.25))
    x = quantized.QuantStub(quint8(0.5, 10))(tianyuan.Tensor(np.full((1, 1, 1, 1), 10.5)))
    assert x.item() == 31
    assert conv.stored().item() == 7
    assert conv(x).item() == 15


@pytest.mark.parametrize("kind", ["static", "dynamic", "int4"])
def test_statistics_count_a_quantised_network_as_the_float_one(kind):
    net = M.Sequential(M.Linear(6, 5), M.ReLU(), M.Linear(5, 4))
    net.eval()
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    made = {
        "static": lambda: Q.quantize_static(net, [x]),
        "dynamic": lambda: Q.quantize_dynamic(net),
        "int4": lambda: Q.quantize_weights(net),
    }[kind]()
    total, details = module_stats(made.module, x, logging_to_stdout=False)
    # A multiplication with its addition is one operation, a bias is one for each result.
    assert [entry["flops_num"] for entry in details.flops] == [3 * 5 * 7, 3 * 4 * 6]
    assert total.flops == 3 * 5 * 7 + 3 * 4 * 6
    weights = [entry for entry in details.params if entry["name"].endswith("w")]
    each = 0.5 if kind == "int4" else 1
    rows = [5 * np.ceil(6 * each), 4 * np.ceil(5 * each)]
    assert sorted(entry["size"] for entry in weights) == sorted(rows)
