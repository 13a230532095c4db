"""Convolutions of signals and volumes have training and integer forms, as those of images have."""

from __future__ import annotations

import warnings
from functools import partial

import exact
import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from exact import INPUT, WEIGHT, data, integers, stored
from tianyuan import jit
from tianyuan.errors import AttrError, ShapeError
from tianyuan.functional.quantized import quint8
from tianyuan.module import qat, quantized
from tianyuan.utils.module_stats import module_stats

torch = pytest.importorskip("torch")

RESULT = quint8(0.2, 90)
finished = partial(exact.finished, RESULT)
EXTENTS = {1: (11,), 2: (6, 7), 3: (5, 6, 7)}
WINDOW = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
STRIDE = {1: (2,), 2: (2, 1), 3: (2, 1, 2)}
PADDING = {1: (2,), 2: (0, 1), 3: (1, 0, 1)}
DILATION = {1: (2,), 2: (1, 2), 3: (2, 1, 1)}
NORMS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


def one_or_all(sizes):
    return sizes[0] if len(sizes) == 1 else sizes


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stem", ["Conv", "ConvRelu", "ConvBn", "ConvBnRelu"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_integers_of_convolutions(axes, stem, groups):
    x, b = data(2, 4, *EXTENTS[axes]), data(6, seed=2)
    w = data(6, 4 // groups, *WINDOW[axes], seed=1)
    places = STRIDE[axes], PADDING[axes], DILATION[axes]
    layer = getattr(quantized, f"{stem}{axes}d")(
        4, 6, one_or_all(WINDOW[axes]), *map(one_or_all, places), groups, dtype=RESULT
    )
    given = w if groups == 1 else w.reshape(groups, 6 // groups, *w.shape[1:])
    layer.fill(given, b, WEIGHT)
    sums = getattr(torch.nn.functional, f"conv{axes}d")(
        torch.tensor(stored(x, INPUT) - INPUT.zero_point), torch.tensor(stored(w, WEIGHT)), None,
        *places, groups,
    )  # fmt: skip
    want = finished(sums.numpy(), b.reshape(1, 6, *(1,) * axes), "Relu" in stem)
    np.testing.assert_array_equal(layer(integers(x)).numpy(), want)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_integers_of_transposed_convolutions(axes, groups):
    x, b = data(2, 4, *EXTENTS[axes]), data(6, seed=2)
    w = data(4, 6 // groups, *WINDOW[axes], seed=1)
    places = STRIDE[axes], PADDING[axes], tuple(s - 1 for s in STRIDE[axes])
    layer = getattr(quantized, f"ConvTranspose{axes}d")(
        4, 6, one_or_all(WINDOW[axes]), *map(one_or_all, places),
        one_or_all(DILATION[axes]), groups, dtype=RESULT,
    )  # fmt: skip
    given = w if groups == 1 else w.reshape(groups, 4 // groups, *w.shape[1:])
    layer.fill(given, b, WEIGHT)
    sums = getattr(torch.nn.functional, f"conv_transpose{axes}d")(
        torch.tensor(stored(x, INPUT) - INPUT.zero_point), torch.tensor(stored(w, WEIGHT)), None,
        *places, groups, DILATION[axes],
    )  # fmt: skip
    want = finished(sums.numpy(), b.reshape(1, 6, *(1,) * axes), False)
    np.testing.assert_array_equal(layer(integers(x)).numpy(), want)


def normalised(axes, kind="Conv"):
    tianyuan.random.seed(3)
    layer = getattr(M, f"{kind}{axes}d")(4, 6, 3, padding=1, groups=2)
    norm = getattr(M, f"BatchNorm{axes}d")(6)
    rng = np.random.default_rng(5)
    for name, low in (("weight", 0.5), ("bias", -1), ("running_mean", -1), ("running_var", 0.5)):
        values = rng.uniform(low, 1.5, 6).astype(np.float32)
        target = getattr(norm, name)
        target[...] = tianyuan.Tensor(values.reshape(target.shape))
    return layer, norm


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("equalize", [False, True])
def test_a_network_is_quantised_as_one_of_images(axes, kind, equalize, tmp_path):
    layer, norm = normalised(axes, kind)
    last = getattr(M, f"Conv{axes}d")(6, 2, 3)
    net = M.Sequential(layer, norm, M.ReLU(), last).eval()
    x = data(4, 4, *(8,) * axes)
    floats = net(tianyuan.Tensor(x)).numpy()
    result = Q.quantize_static(net, [x], equalize=equalize and kind == "Conv")
    kinds = {row.name: row.kind for row in result.report.layers}
    joined = kind == "Conv" or axes == 2
    assert kinds["0"] == (f"{kind}BnRelu{axes}d" if joined else f"{kind}{axes}d")
    got = result.module(tianyuan.Tensor(x)).numpy()
    np.testing.assert_allclose(got, floats, atol=0.03 * np.abs(floats).max())
    assert result.report.output_snr > 30
    run = jit.trace(lambda x: result.module(x), symbolic=True, capture_as_const=True)
    run(tianyuan.Tensor(x))
    path = str(tmp_path / "net.tym")
    run.dump(path, arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    np.testing.assert_array_equal(np.asarray(jit.load(path)(x[:3])), got[:3])
    steps = jit.load(path).explain(n=2).steps
    assert sum(step.op == "conv2d_quantized" for step in steps) == 2


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("relu", [False, True])
def test_joined_layers_are_those_of_torch(axes, relu):
    layer, norm = normalised(axes)
    joined = getattr(M, f"ConvBn{'Relu' if relu else ''}{axes}d")(4, 6, 3, padding=1, groups=2)
    joined.conv, joined.bn = layer, norm
    theirs = torch.nn.Sequential(
        getattr(torch.nn, f"Conv{axes}d")(4, 6, 3, padding=1, groups=2), NORMS[axes](6)
    ).eval()
    with torch.no_grad():
        theirs[0].weight.copy_(torch.tensor(layer.weight.numpy()).flatten(0, 1))
        theirs[0].bias.copy_(torch.tensor(layer.bias.numpy()).flatten())
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(theirs[1], name).copy_(torch.tensor(getattr(norm, name).numpy()).flatten())
        x = data(2, 4, *(5,) * axes)
        want = theirs(torch.tensor(x)).numpy()
    want = np.maximum(want, 0) if relu else want
    got = joined.eval()(tianyuan.Tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    form = getattr(qat, type(joined).__name__).from_float_module(joined).eval()
    np.testing.assert_allclose(form(tianyuan.Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-5)


def gradients_of(layer, x):
    layer.weight.grad = None
    gm = tianyuan.autodiff.GradManager().attach([layer.weight])
    with gm:
        gm.backward(F.sum(F.square(layer(x))))
    return layer.weight.grad.numpy()


@pytest.mark.parametrize("kind", ["Conv1d", "Conv3d", "ConvTranspose1d", "ConvTranspose3d"])
def test_training_forms_have_the_gradients_of_the_float_layer(kind):
    axes = int(kind[-2])
    x, layer = tianyuan.Tensor(data(2, 4, *(4,) * axes)), getattr(M, kind)(4, 6, 3, 2, groups=2)
    want = gradients_of(layer, x)
    form = getattr(qat, kind).from_float_module(layer)
    np.testing.assert_allclose(gradients_of(form, x), want, rtol=1e-4, atol=1e-5)
    total, _ = module_stats(form, x, logging_to_stdout=False)
    counted = x.size if "Transpose" in kind else layer(x).size
    each = int(np.prod(layer.weight.shape)) // (4 if "Transpose" in kind else 6)
    assert total.flops == counted * each + layer(x).size


@pytest.mark.parametrize("axes", [1, 3])
def test_training_goes_from_floats_to_integers(axes):
    layer, norm = normalised(axes)
    net = M.Sequential(layer, norm, M.ReLU()).train()
    x = tianyuan.Tensor(data(4, 4, *(6,) * axes))
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=x)
    assert type(net[0]) is getattr(qat, f"ConvBnRelu{axes}d")
    for _ in range(3):
        net(x)
    want = net.eval()(x).numpy()
    scale = net[0].get_activation_qparams().scale.numpy()
    Q.quantize(net)
    assert len(net[0].weight_params.scales) == 6
    np.testing.assert_allclose(net(x).numpy(), want, atol=1.01 * scale)


def test_what_is_written_after_conversion_holds():
    x = data(1, 2, 9)
    layer = quantized.Conv1d(2, 3, 3, dtype=RESULT)
    layer.fill(data(3, 2, 3, seed=1), None, WEIGHT)
    other = quantized.Conv1d(2, 3, 3, 2, 1, 2, dtype=RESULT)
    other.fill(data(3, 2, 3, seed=1), None, WEIGHT)
    layer.stride, layer.padding, layer.dilation = 2, 1, 2
    want = other(integers(x)).numpy()
    assert want.shape == (1, 3, 4)
    np.testing.assert_array_equal(layer(integers(x)).numpy(), want)
    layer.padding = -1
    with pytest.raises(AttrError, match="Conv1d: padding is not valid, got -1"):
        layer(integers(x))
    layer.padding, layer.padding_mode = 1, "reflect"
    with pytest.raises(AttrError, match="only zeros pad an integer convolution"):
        layer(integers(x))


def test_input_of_another_rank():
    layer = quantized.Conv3d(2, 3, 3, dtype=RESULT)
    layer.fill(data(3, 2, 3, 3, 3), None, WEIGHT)
    with pytest.raises(ShapeError, match=r"Conv3d: input has the wrong rank.*\(N, C, D, H, W\)"):
        layer(integers(data(1, 2, 5, 5)))
    with pytest.raises(ShapeError, match="Conv3d: kernel is too deep, got 3 for 2"):
        layer(integers(data(1, 2, 2, 5, 5)))


class Recurrent(M.Module):
    def __init__(self):
        super().__init__()
        self.first = M.Linear(4, 5)
        self.rnn = M.LSTM(5, 6)
        self.last = M.Linear(6, 2)

    def forward(self, x):
        return self.last(self.rnn(self.first(x))[0])


def test_what_stays_in_floats_is_said():
    x = tianyuan.Tensor(data(3, 2, 4))
    with pytest.warns(
        UserWarning, match=r"for rnn\.cells\.0\.0 \(LSTMCell\), which stay in floats"
    ):
        Q.quantize_qat(Recurrent(), example=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = {"*": Q.ema_fakequant_qconfig, "rnn": None}
        Q.quantize_qat(Recurrent(), qconfig=asked, example=x)
        net = Recurrent()
        net.rnn.disable_quantize()
        Q.quantize_qat(net, example=x)
    report = Q.quantize_static(Recurrent(), [x], keep=["last"]).report
    assert report.floats == ("last (Linear)", "rnn.cells.0.0 (LSTMCell)")
    assert "in floats: last (Linear), rnn.cells.0.0 (LSTMCell)" in str(report)
    assert "In floats: last (Linear), rnn.cells.0.0 (LSTMCell)" in report.to_html()
