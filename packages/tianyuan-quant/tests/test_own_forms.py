"""Modules of one's own, written as MegEngine has them, take part in all three forms."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError
from tianyuan.functional.quantized import conv_bias_activation
from tianyuan.jit import load, trace
from tianyuan.module.qat import QATModule
from tianyuan.module.quantized import QuantizedModule
from tianyuan.utils.module_stats import module_stats

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (2, 3, 6, 6)).astype(np.float32)


class Swish(M.Module):
    def forward(self, x):
        return F.nn.relu(x) + x * F.sigmoid(x) - F.nn.max_pool2d(x, 3, 1, 1)


class QATSwish(Swish, QATModule):
    with_weight = False

    @classmethod
    def from_float_module(cls, float_module):
        return cls(name=float_module.name)

    def forward(self, x):
        return self.apply_quant_activation(super().forward(x))


class QuantizedSwish(QuantizedModule):
    """Written in ops on quantised tensors, which stand for numbers."""

    def __init__(self, dtype=None, **kwargs):
        super().__init__(**kwargs)
        self.output_dtype = dtype

    @classmethod
    def from_qat_module(cls, qat_module):
        return cls(qat_module.get_activation_dtype(), name=qat_module.name)

    def forward(self, x):
        return Swish.forward(self, x).astype(self.output_dtype)


class Conv(M.Conv2d):
    """Has no form of its own but by mapping."""


class QATConv(M.Conv2d, QATModule):
    @classmethod
    def from_float_module(cls, float_module):
        own = float_module
        found = cls(own.in_channels, own.out_channels, own.kernel_size, own.stride, own.padding)
        found.weight, found.bias = own.weight, own.bias
        return found

    def forward(self, inp):
        weight = self.apply_quant_weight(self.weight)
        bias = self.apply_quant_bias(self.bias, inp, weight)
        return self.apply_quant_activation(self.calc_conv(inp, weight, bias))


class QuantizedConv(QuantizedModule):
    """Keeps a quantised weight and computes by the function."""

    def __init__(self, qat_module):
        super().__init__()
        self.output_dtype = qat_module.get_activation_dtype()
        self.weight = qat_module.weight.astype(qat_module.get_weight_dtype())
        self.bias, self.padding = qat_module.bias, qat_module.padding

    @classmethod
    def from_qat_module(cls, qat_module):
        return cls(qat_module)

    def forward(self, inp):
        return conv_bias_activation(
            inp, self.weight, self.bias, dtype=self.output_dtype, padding=self.padding
        )


class FilledConv(M.quantized.Conv2d):
    """Takes a weight and scales per channel from the training form."""

    @classmethod
    def from_qat_module(cls, qat_module):
        own = qat_module
        found = cls(
            own.in_channels, own.out_channels, own.kernel_size, own.stride, own.padding,
            dtype=own.get_activation_dtype(),
        )  # fmt: skip
        found.fill(own.weight, own.bias, own.get_weight_qparams())
        return found


class Plain(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv, self.swish, self.last = Conv(3, 4, 3, padding=1), Swish(), M.ConvRelu2d(4, 5, 1)

    def forward(self, x):
        return self.dequant(self.last(self.swish(self.conv(self.quant(x)))))


def trained(qconfig):
    tianyuan.random.seed(4)
    net = Plain()
    mapping = {Conv: QATConv, Swish: QATSwish}
    Q.quantize_qat(net, qconfig=qconfig, mapping=mapping).train()
    net(Tensor(X))
    return net.eval()


@pytest.mark.parametrize(
    ("qconfig", "conv"),
    [
        (Q.ema_fakequant_qconfig, QuantizedConv),
        (Q.ema_fakequant_qconfig, FilledConv),
        (Q.per_channel_fakequant_qconfig, FilledConv),
    ],
)
def test_own_modules_become_integers(qconfig, conv, tmp_path):
    net = trained(qconfig)
    wanted = net(Tensor(X)).numpy()
    step = net.last.get_activation_qparams().scale.item()
    Q.quantize(net, mapping={QATConv: conv, QATSwish: QuantizedSwish})
    assert (type(net.conv), net.conv.owner) == (conv, "conv")
    found = net(Tensor(X)).numpy()
    np.testing.assert_allclose(found, wanted, atol=1.01 * step)
    assert np.abs(found - wanted).mean() < 0.05 * step

    traced = trace(net, capture_as_const=True)
    np.testing.assert_array_equal(traced(Tensor(X)).numpy(), found)
    traced.dump(tmp_path / "net.tym")
    np.testing.assert_array_equal(np.asarray(load(tmp_path / "net.tym")(X)), found)


def test_dtypes_carry_the_scale_once_it_is_known():
    net = Q.quantize_qat(Plain(), mapping={Conv: QATConv, Swish: QATSwish})
    assert net.conv.get_activation_dtype() == Q.quant_dtype("qint8")
    net = trained(Q.ema_fakequant_qconfig)
    weight, result = net.conv.get_weight_dtype(), net.conv.get_activation_dtype()
    top = np.abs(net.conv.weight.numpy()).max()
    assert (weight.name, result.name) == ("qint8_narrow", "qint8")
    np.testing.assert_allclose(weight.scale, top / 127, rtol=1e-6)
    assert result.scale == net.conv.get_activation_qparams().scale.item()
    several = trained(Q.per_channel_fakequant_qconfig).conv
    assert several.get_weight_dtype() == Q.quant_dtype("qint8_narrow")
    assert several.get_activation_dtype().zero_point > 0


def test_a_weight_without_its_scale_says_what_is_missing():
    layer = M.quantized.Conv2d(3, 4, 1, dtype=Q.create_qparams(scale=0.1))
    layer.weight = tianyuan.Parameter(np.ones((4, 3, 1, 1), np.int8))
    q = M.quantized.QuantStub(Q.create_qparams(scale=0.1))(Tensor(X))
    with pytest.raises(AttrError, match=r"no scale for its weight yet, got None, expected fill\("):
        layer(q)


class Residual(M.Module):
    """MobileNetV2's block: it holds a sum that it may never use."""

    def __init__(self, channels, uses_sum):
        super().__init__()
        self.conv, self.uses_sum = M.ConvBn2d(3, channels, 1), uses_sum
        self.add, self.spare = M.Elemwise("add"), M.ConvBnRelu2d(3, 3, 1)

    def forward(self, x):
        return self.add(x, self.conv(x)) if self.uses_sum else self.conv(x)


def residuals(**kwargs):
    tianyuan.random.seed(4)
    net = M.Sequential(M.QuantStub(), Residual(3, True), Residual(4, False), M.DequantStub())
    return Q.quantize_qat(net, **kwargs)


@pytest.mark.parametrize(
    "qconfig", [Q.ema_fakequant_qconfig, Q.calibration_qconfig, Q.per_channel_fakequant_qconfig]
)
def test_modules_that_forward_never_uses_do_not_hinder(qconfig):
    net = residuals(qconfig=qconfig).train()
    net(Tensor(X))
    wanted = net.eval()(Tensor(X)).numpy()
    Q.quantize(net)
    found = net(Tensor(X)).numpy()
    norms = np.linalg.norm(found) * np.linalg.norm(wanted)
    assert (found * wanted).sum() > 0.99 * norms
    copied = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(copied(Tensor(X)).numpy(), found)
    with pytest.raises(AttrError, match=r"2\.add: its observer never ran"):
        net[2].add(Tensor(X), Tensor(X))


def test_a_network_that_nothing_ran_through_stays_in_training_form():
    net = residuals()
    with pytest.raises(AttrError, match="its observer never ran"):
        Q.quantize(net)
    assert isinstance(net[1].add, QATModule)
    passive = residuals(qconfig=Q.passive_qconfig)
    with pytest.raises(AttrError, match="passive observer were never set"):
        Q.quantize(passive)


def test_hooks_on_modules_in_training_form():
    net, seen = residuals().eval(), []
    handles = Q.hook_qat_module(net, lambda part, inputs, output: seen.append(type(part).__name__))
    net(Tensor(X))
    wanted = ["QuantStub", "ConvBn2d", "Elemwise", "ConvBn2d", "DequantStub"]
    assert seen == wanted
    for handle in handles:
        handle.remove()
    net(Tensor(X))
    assert seen == wanted


def test_a_configuration_is_a_named_tuple():
    weight, act, fake_weight, fake_act = Q.ema_fakequant_qconfig
    assert Q.QConfig(weight, act, fake_weight, fake_act) == Q.ema_fakequant_qconfig
    changed = Q.ema_fakequant_qconfig._replace(act_observer=Q.HistogramObserver)
    assert type(changed) is Q.QConfig
    assert changed.act_observer is Q.HistogramObserver
    assert pickle.loads(pickle.dumps(changed)).act_observer is Q.HistogramObserver
    with pytest.raises(AttrError, match="act_observer is wrong"):
        changed._replace(act_observer=Q.MinMaxObserver())
    with pytest.raises(AttributeError):
        changed.act_observer = Q.MinMaxObserver


def test_dtypes_by_megengine_names():
    from tianyuan.core.tensor import dtype
    from tianyuan.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype, get_scale

    x = np.float32([0.5, -1.25, 100.0, -100.0])
    for name, args, low, high in (
        ("qint8", (0.5,), -128, 127),
        ("quint8", (0.5, 100), 0, 255),
        ("qint32", (0.5,), -(2**31), 2**31 - 1),
        ("qint4", (0.5,), -8, 7),
        ("quint4", (0.5, 3), 0, 15),
    ):
        form = getattr(dtype, name)(*args)
        zero = args[1] if len(args) > 1 else 0
        stored = getattr(dtype, f"convert_to_{name}")(x, form)
        wanted = np.clip(np.rint(x / 0.5) + zero, low, high)
        np.testing.assert_array_equal(stored, wanted)
        numbers = getattr(dtype, f"convert_from_{name}")(stored)
        np.testing.assert_array_equal(numbers, (wanted - zero) * 0.5)
        np.testing.assert_array_equal(Tensor(stored, dtype=form).astype("float32").numpy(), numbers)
        assert (get_scale(form), dtype.get_zero_point(form)) == (0.5, zero)
        assert dtype.is_quantize(form)
    six = QuantDtypeMeta("qint6", None, "int8", -32, 31)
    form = create_quantized_dtype(six, 0.5, None)
    np.testing.assert_array_equal(Tensor(x, dtype=form).numpy(), [1, -2, 31, -32])
    observer = partial(Q.MinMaxObserver, dtype=six)()
    observer(Tensor(x))
    np.testing.assert_allclose(observer.get_qparams().scale.item(), 100 / 31.5, rtol=1e-6)


def test_dtypes_without_a_scale_are_refused():
    from tianyuan.core.tensor import dtype

    for call in (
        lambda: dtype.get_scale(Tensor([1.0], dtype=dtype.qint8(0.5)).dtype),
        lambda: dtype.convert_to_qint8([1.0], np.dtype("int8")),
        lambda: dtype.convert_from_qint8(np.int8([1])),
        lambda: dtype.convert_to_qint8([1.0], dtype.quint8(0.5, 3)),
        lambda: dtype.create_quantized_dtype("qint8", 0.5),
    ):
        with pytest.raises(DTypeError, match="got .*, expected"):
            call()
    assert not dtype.is_quantize(np.dtype("int8"))


class Pooled(M.Module):
    """Pools, padding and joining that no module stands for, between layers."""

    def __init__(self, pool):
        super().__init__()
        tianyuan.random.seed(4)
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv, self.fc, self.pool = M.ConvRelu2d(3, 4, 1), M.Linear(4, 3), pool

    def forward(self, x):
        return self.dequant(self.fc(self.pool(self.conv(self.quant(x)))))


@pytest.mark.parametrize("qconfig", [Q.ema_fakequant_qconfig, Q.per_channel_fakequant_qconfig])
@pytest.mark.parametrize(
    "pool",
    [
        lambda y: F.flatten(F.avg_pool2d(y, 6), 1),
        lambda y: F.nn.adaptive_avg_pool2d(y, 1).reshape(-1, 4),
        lambda y: F.flatten(F.nn.adaptive_max_pool2d(y, 1), 1),
        lambda y: F.flatten(F.avg_pool2d(F.nn.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1))), 8), 1),
        lambda y: F.flatten(F.avg_pool2d(F.concat([y[:, 2:], y[:, :2]], 1), 6), 1),
    ],
)
def test_layers_read_what_pools_give_at_the_scale_of_their_input(pool, qconfig, tmp_path):
    net = Q.quantize_qat(Pooled(pool), qconfig=qconfig).train()
    net(Tensor(X))
    net.eval()
    features = net.pool(net.conv(net.quant(Tensor(X)))).numpy()
    before = net(Tensor(X)).numpy()
    net.train()
    Q.disable_observer(net)
    in_training = net(Tensor(X)).numpy()
    Q.quantize(net.eval())
    form, fc = net.conv.result, net.fc
    steps = np.rint(features / np.float32(form.scales[0])) + form.zero_points[0]
    x = (np.clip(steps, form.dtype.qmin, form.dtype.qmax) - form.zero_points[0]) * form.scales[0]
    scales = np.reshape(fc.weight_params.scales, (-1, 1))
    wanted = x @ (fc.weight.numpy() * scales).T + fc.bias.numpy()
    found = net(Tensor(X)).numpy()
    # One step of the pooled values may fall to the other side, as integers sum exactly.
    one = form.scales[0] * np.abs(fc.weight.numpy() * scales).max()
    np.testing.assert_allclose(found, wanted, atol=fc.result.scales[0] * 0.51 + 1.01 * one)
    step = fc.result.scales[0]
    for trained in (before, in_training):
        np.testing.assert_allclose(trained, found, atol=1.01 * step)
        assert (np.abs(trained - found) < 0.1 * step).mean() > 0.8
    traced = trace(net, capture_as_const=True)
    np.testing.assert_array_equal(traced(Tensor(X)).numpy(), found)
    traced.dump(tmp_path / "net.tym")
    np.testing.assert_array_equal(np.asarray(load(tmp_path / "net.tym")(X)), found)


def test_floats_after_a_pool_are_exact():
    class Net(Pooled):
        def forward(self, x):
            return self.fc(self.dequant(self.pool(self.conv(self.quant(x)))))

    net = Net(lambda y: F.flatten(F.avg_pool2d(y, 6), 1))
    net.fc.disable_quantize()
    Q.quantize_qat(net).train()
    net(Tensor(X))
    Q.quantize(net.eval())
    q = net.conv(net.quant(Tensor(X)))
    means = q.numpy().astype(np.float64).mean(axis=(2, 3)) * q.qparams.scales[0]
    wanted = means @ net.fc.weight.numpy().T + net.fc.bias.numpy()
    np.testing.assert_allclose(net(Tensor(X)).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_trace_follows_switches_of_observers_and_fake_quantisers():
    net = residuals().train()
    net(Tensor(X))
    net.eval()
    traced = trace(net)
    for switch in (Q.enable_fake_quant, Q.disable_fake_quant, Q.enable_fake_quant):
        switch(net)
        wanted = net(Tensor(X)).numpy()
        np.testing.assert_allclose(traced(Tensor(X)).numpy(), wanted, atol=1e-6)
    seen = net[0].act_observer.max_val.item()
    Q.enable_observer(net)
    traced(Tensor(10 * X))
    assert net[0].act_observer.max_val.item() > seen
    Q.disable_observer(net)
    seen = net[0].act_observer.max_val.item()
    traced(Tensor(100 * X))
    assert net[0].act_observer.max_val.item() == seen


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: M.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 9)),
        (lambda: M.ConvBnRelu2d(4, 6, 3, bias=False), (2, 4, 9, 9)),
        (lambda: M.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
        (lambda: M.ConvTransposeBn2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
        (lambda: M.Linear(4, 6), (5, 4)),
        (lambda: M.LinearBnRelu1d(4, 6), (5, 4)),
        (lambda: M.BatchMatMulActivation(2, 4, 6), (2, 4, 3)),
    ],
)
def test_statistics_count_all_forms_alike(layer, shape):
    net, x = M.Sequential(M.QuantStub(), layer(), M.DequantStub()), Tensor(RNG.normal(size=shape))
    total, floats = module_stats(net, inputs=[x], logging_to_stdout=False)
    # What normalises is a module of its own in floats only.
    product = next(e["flops_num"] for e in floats.flops if not e["name"].endswith(".bn"))
    kinds = (M.Conv2d, M.ConvTranspose2d, M.Linear, M.BatchMatMulActivation)
    biased = next(m for m in net[1].modules() if isinstance(m, kinds)).bias is not None
    Q.quantize_qat(net).train()
    made = net(x).size
    trained, details = module_stats(net.eval(), inputs=[x], logging_to_stdout=False)
    assert (trained.flops, trained.param_dims) == (product, total.param_dims)
    assert [entry["name"] for entry in details.flops] == ["1"]
    Q.quantize(net)
    integers, details = module_stats(net, inputs=[x], logging_to_stdout=False)
    folded = net[1].bias is not None
    assert integers.flops - made * folded == product - made * biased
    sizes = {entry["name"]: entry["nbits"] for entry in details.params}
    assert sizes == ({"1-w": 8, "1-b": 32} if folded else {"1-w": 8})


def test_integer_layers_say_what_they_are():
    tianyuan.random.seed(4)
    layer = M.ConvBnRelu2d(4, 6, 3, stride=2, padding=(1, 0), groups=2)
    net = Q.quantize_qat(M.Sequential(M.QuantStub(), layer, M.Elemwise("exp"))).train()
    net(Tensor(RNG.normal(size=(2, 4, 7, 7))))
    conv = Q.quantize(net)[1]
    assert (conv.in_channels, conv.out_channels, conv.kernel_size) == (4, 6, (3, 3))
    assert (conv.stride, conv.padding, conv.groups) == ((2, 2), (1, 0), 2)
    scale = f"scale={conv.result.scales[0]:.6g}, zero_point=0)"
    assert repr(conv) == f"ConvBnRelu2d(weight=(6, 2, 3, 3), qint8, {scale}"
    assert repr(net[2]).startswith("Elemwise(method=exp, qint8, scale=")
    assert repr(M.quantized.DequantStub()) == "DequantStub()"


def test_words_in_capitals_are_quantised_alike():
    tianyuan.random.seed(4)
    words = {"conv_mode": "CROSS_CORRELATION", "compute_mode": "DEFAULT", "padding_mode": "ZEROS"}
    net = M.Sequential(M.QuantStub(), M.Conv2d(3, 4, 3, **words), M.DequantStub())
    Q.quantize_qat(net).train()
    net(Tensor(X))
    assert type(Q.quantize(net)[1]) is M.quantized.Conv2d
    layer = M.quantized.Conv2d(3, 4, 3, **words, dtype=Q.create_qparams(scale=0.1))
    assert (layer.conv_mode, layer.padding_mode) == ("cross_correlation", "zeros")
    with pytest.raises(AttrError, match="padding_mode is unknown, got 'circular'"):
        M.quantized.Conv2d(3, 4, 3, padding_mode="circular")


def test_a_stub_brings_integers_to_its_own_scale():
    first, second = (M.quantized.QuantStub(Q.create_qparams(scale=s)) for s in (0.05, 0.125))
    q = first(Tensor(X))
    numbers = q.numpy() * np.float32(0.05)
    wanted = np.clip(np.rint(numbers / np.float32(0.125)), -128, 127)
    np.testing.assert_array_equal(second(q).numpy(), wanted)

    tianyuan.random.seed(4)
    layers = (M.QuantStub(), M.Conv2d(3, 4, 1), M.QuantStub(), M.Conv2d(4, 4, 1), M.DequantStub())
    net = Q.quantize_qat(M.Sequential(*layers)).train()
    net(Tensor(X))
    wanted = net.eval()(Tensor(X)).numpy()
    Q.quantize(net)
    step = net[3].result.scales[0]
    np.testing.assert_allclose(net(Tensor(X)).numpy(), wanted, atol=1.01 * step)
