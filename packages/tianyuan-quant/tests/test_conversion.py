"""Converting a network: MegEngine's flow, patterns, registration, and every misuse."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.errors import AttrError, ShapeError, TraceError
from tianyuan.module import qat, quantized


@pytest.fixture(autouse=True)
def _seeded():
    tianyuan.random.seed(7)


def tensor(*shape):
    values = np.random.default_rng(shape).standard_normal(shape)
    return tianyuan.Tensor(values.astype(np.float32))


class Stubs(M.Module):
    """What MegEngine's users write: stubs, fused modules, Elemwise and Concat."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = M.QuantStub(), M.DequantStub()
        self.conv = M.ConvBnRelu2d(3, 8, 3, padding=1)
        self.other = M.ConvBn2d(8, 8, 1)
        self.add = M.Elemwise("fuse_add_relu")
        self.join = M.Concat()
        self.linear = M.LinearRelu(16, 5)

    def forward(self, x):
        x = self.conv(self.quant(x))
        y = self.add(self.other(x), x)
        z = self.join([x, y], 1)
        z = F.nn.max_pool2d(z, 4)
        return self.dequant(self.linear(F.flatten(z, 1)))


def calibrated(net, *batches):
    net.train()
    for batch in batches:
        net(batch)
    return net.eval()


def test_megengine_flow():
    data = tensor(4, 3, 4, 4)
    net = Stubs()
    assert Q.quantize_qat(net, qconfig=Q.ema_fakequant_qconfig) is net
    assert isinstance(net.conv, qat.ConvBnRelu2d)
    calibrated(net, data, data)
    want = net(data).numpy()
    assert Q.quantize(net) is net
    for name in ("conv", "other", "add", "join", "linear", "quant", "dequant"):
        assert isinstance(getattr(net, name), quantized.QuantizedModule), name
    got = net(data).numpy()
    quantum = net.linear.result.scales[0]
    assert np.abs(got - want).max() <= quantum * 1.01
    assert np.mean(np.abs(got - want) > quantum / 2) < 0.05
    assert net.conv(net.quant(data)).dtype == np.int8
    assert net.conv(net.quant(data)).qparams.scales == net.conv.result.scales


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["Conv2d", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d"])
def test_convolutions_of_all_kinds(kind, bias):
    data = tensor(2, 6, 7, 7)
    for groups, extra in ((1, {}), (2, {"stride": 2}), (6, {"padding": 1, "dilation": 2})):
        part = getattr(M, kind)(6, 12, 3, groups=groups, bias=bias, **extra)
        net = M.Sequential(M.QuantStub(), part, M.DequantStub())
        Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig)
        calibrated(net, data)
        want = net(data).numpy()
        Q.quantize(net)
        quantum = net[1].result.scales[0]
        assert np.abs(net(data).numpy() - want).max() <= quantum * 1.01


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        (lambda: M.Linear(6, 4), (5, 6)),
        (lambda: M.LinearRelu(6, 4), (2, 5, 6)),
        (lambda: M.LinearBn1d(6, 4), (5, 6)),
        (lambda: M.LinearBnRelu1d(6, 4, bias=False), (5, 6)),
        (lambda: M.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
        (lambda: M.ConvTransposeRelu2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 5)),
        (lambda: M.ConvTransposeBn2d(4, 6, 2, bias=False), (2, 4, 5, 5)),
        (lambda: M.ConvTransposeBnRelu2d(4, 6, 3), (2, 4, 5, 5)),
        (lambda: M.BatchMatMulActivation(3, 6, 4, nonlinear_mode="relu"), (3, 6, 2)),
        (lambda: M.Elemwise("sigmoid"), (3, 6)),
    ],
)
@pytest.mark.parametrize("config", ["ema_fakequant_qconfig", "per_channel_fakequant_qconfig"])
def test_other_layers(part, shape, config):
    data = tensor(*shape)
    net = M.Sequential(M.QuantStub(), part(), M.DequantStub())
    Q.quantize_qat(net, qconfig=getattr(Q, config))
    calibrated(net, data)
    want = net(data).numpy()
    Q.quantize(net)
    got = net(data).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= net[1].result.scales[0] * 1.01


def test_layers_join_by_what_flows():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.parts = [M.Conv2d(3, 4, 3), M.BatchNorm2d(4)]
            self.shared = M.Conv2d(4, 4, 1)
            self.late = M.Conv2d(4, 4, 1)
            self.norm = M.BatchNorm2d(4)

        def forward(self, x):
            x = F.relu(self.parts[1](self.parts[0](x)))
            x = self.shared(self.shared(x))
            y = self.late(x)
            return self.norm(y) + y

    net = Net().eval()
    data = tensor(2, 3, 6, 6)
    want = net(data).numpy()
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=data)
    assert type(net.parts[0]) is qat.ConvBnRelu2d
    assert type(net.parts[1]) is M.Identity
    assert type(net.shared) is qat.Conv2d
    assert type(net.late) is qat.Conv2d
    assert type(net.norm) is M.BatchNorm2d
    with Q.hide_fake_quant(net):
        np.testing.assert_allclose(net(data).numpy(), want, rtol=1e-4, atol=1e-5)


def test_parameters_stay_the_same_objects():
    net = M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU())
    before = list(net.parameters())
    Q.quantize_qat(net, example=tensor(1, 3, 5, 5))
    after = list(net.parameters())
    assert all(any(p is q for q in after) for p in before)


def test_float_islands_are_quantised_again():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = M.Linear(6, 6), M.Linear(6, 3)
            self.norm = M.LayerNorm(6)

        def forward(self, x):
            return F.softmax(self.b(self.norm(F.nn.gelu(self.a(x)))), axis=-1)

    net, data = Net(), tensor(8, 6)
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=data)
    calibrated(net, data)
    want = net(data).numpy()
    Q.quantize(net)
    np.testing.assert_allclose(net(data).numpy(), want, atol=0.03)


def test_patterns_choose_by_name():
    net = Stubs()
    Q.quantize_qat(
        net,
        qconfig={"*": Q.ema_fakequant_qconfig, "oth*": None, "linear": Q.lsq_qconfig},
    )
    assert isinstance(net.conv, qat.ConvBnRelu2d)
    assert type(net.other) is M.ConvBn2d
    assert isinstance(net.linear.act_fake_quant, Q.LSQ)


def test_disabled_modules_stay_in_floats():
    net = Stubs()
    net.linear.disable_quantize()
    Q.quantize_qat(net)
    assert type(net.linear) is M.LinearRelu


def test_a_pattern_without_module_is_listed():
    with pytest.raises(AttrError, match="no module has a name of 'layer9"):
        Q.quantize_qat(Stubs(), qconfig={"*": Q.ema_fakequant_qconfig, "layer9.*": None})


def test_an_observer_that_never_ran_is_named():
    net = Q.quantize_qat(Stubs())
    with pytest.raises(AttrError, match=r"add: its observer never ran"):
        Q.quantize(net)
    assert isinstance(net.conv, qat.ConvBnRelu2d), "nothing was changed"


def test_numbers_that_are_not_finite_are_named():
    net = Q.quantize_qat(Stubs())
    bad = np.ones((1, 3, 4, 4), np.float32)
    bad[0, 0, 0, 0] = np.nan
    calibrated(net, tianyuan.Tensor(bad))
    with pytest.raises(AttrError, match="not finite"):
        Q.quantize(net)
    with pytest.raises(AttrError, match="batch 0 has numbers that are not finite"):
        Q.quantize_static(M.Sequential(M.Conv2d(3, 4, 3)), [bad])


def test_no_data():
    with pytest.raises(AttrError, match="no calibration data"):
        Q.quantize_static(M.Sequential(M.Conv2d(3, 4, 3)), [])


def test_zeros_as_data():
    zeros = np.zeros((2, 3, 5, 5), np.float32)
    result = Q.quantize_static(M.Sequential(M.Conv2d(3, 4, 3), M.ReLU()), [zeros])
    np.testing.assert_allclose(result.module(tianyuan.Tensor(zeros)).numpy(), 0, atol=1e-4)


def test_twice():
    data = tensor(1, 3, 4, 4)
    net = Q.quantize_qat(Stubs())
    with pytest.raises(AttrError, match=r"quantised already, got \w+ \(\w+\)"):
        Q.quantize_qat(net)
    Q.quantize(calibrated(net, data))
    with pytest.raises(AttrError, match="quantised already"):
        Q.quantize(net)
    with pytest.raises(AttrError, match="no module in training form"):
        Q.quantize(Stubs())


def test_integers_do_not_train():
    net = Q.quantize(calibrated(Q.quantize_qat(Stubs()), tensor(1, 3, 4, 4)))
    with pytest.raises(AttrError, match="a quantised module cannot train"):
        net.train()
    net.eval()


def test_floats_given_to_an_integer_module():
    net = Q.quantize(calibrated(Q.quantize_qat(Stubs()), tensor(1, 3, 4, 4)))
    with pytest.raises(AttrError, match="conv: its input is not quantised, got float32"):
        net.conv(tensor(1, 3, 4, 4))


def test_sums_too_long_for_the_accumulator():
    part = M.Linear(70_000, 1)
    net = M.Sequential(M.QuantStub(), part)
    config = Q.per_channel_fakequant_qconfig
    Q.quantize_qat(net, qconfig=config)
    data = tensor(1, 70_000) ** 2
    Q.quantize(calibrated(net, data))
    with pytest.raises(ShapeError, match="too long for an int32 accumulator"):
        net(data)


def test_another_way_than_on_the_example():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.wide = M.Linear(4, 4), M.Linear(4, 4), True

        def forward(self, x):
            y = self.a(x)
            return self.b(y + x if self.wide else y)

    net = Net()
    Q.quantize_qat(net, example=tensor(2, 4))
    net.wide = False
    with pytest.raises(TraceError, match="got none of add_0"):
        net(tensor(2, 4))


def test_a_copy_leaves_the_original():
    data = tensor(1, 3, 4, 4)
    net = Stubs().eval()
    want = net(data).numpy()
    other = Q.quantize_qat(net, inplace=False, example=data)
    np.testing.assert_array_equal(net(data).numpy(), want)
    integers = Q.quantize(calibrated(other, data), inplace=False)
    assert isinstance(other.conv, qat.ConvBnRelu2d)
    again = copy.deepcopy(integers)
    np.testing.assert_array_equal(again(data).numpy(), integers(data).numpy())


def test_users_bring_their_own():
    class Scaled(M.Module):
        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def forward(self, x):
            return x * self.factor

    @Q.register_qat(Scaled)
    class QATScaled(qat.QATModule, Scaled):
        with_weight = False

        def forward(self, x):
            return self.apply_quant_activation(x * self.factor)

    @Q.register_quantized(QATScaled)
    class QuantizedScaled(quantized.QuantizedModule):
        @classmethod
        def from_qat_module(cls, qat_module, owner=""):
            found = cls(owner)
            found.result = qat_module.host_activation(owner)
            return found

        def forward(self, x):
            quant = self.quantised(x)
            form = self.result.form()
            op = tianyuan.registry.get_op("requantize")
            factor = float(np.float32(2.0 * quant.scales[0] / self.result.scales[0]))
            return op(x, x_zero_point=quant.zero_points[0], multiplier=factor, **form)

    net = M.Sequential(M.QuantStub(), Scaled(), M.DequantStub())
    data = tensor(4, 9)
    Q.quantize_qat(net)
    calibrated(net, data)
    want = net(data).numpy()
    Q.quantize(net)
    assert isinstance(net[1], QuantizedScaled)
    np.testing.assert_allclose(net(data).numpy(), want, atol=net[1].result.scales[0] * 1.01)


def test_fewer_bits():
    data = tensor(6, 3, 4, 4)
    net = Q.quantize_qat(Stubs(), qconfig=Q.ema_lowbit_fakequant_qconfig)
    calibrated(net, data)
    want = net.conv(net.quant(data)).numpy()
    Q.quantize(net)
    assert np.abs(net.conv.weight.numpy()).max() <= 8
    q = net.conv(net.quant(data))
    assert q.numpy().min() >= 0
    assert q.numpy().max() <= 15
    assert np.abs(net.dequant(q).numpy() - want).max() <= net.conv.result.scales[0] * 1.01
    assert np.isfinite(net(data).numpy()).all()


def test_switches():
    net = Q.quantize_qat(Stubs())
    data = tensor(2, 3, 4, 4)
    Q.disable_fake_quant(net)
    Q.enable_observer(net)
    net.eval()
    Q.enable_observer(net)
    want = net(data).numpy()
    Q.disable_observer(net)
    Q.enable_fake_quant(net)
    assert not np.array_equal(net(data).numpy(), want)
    Q.disable_fake_quant(net)
    np.testing.assert_array_equal(net(data).numpy(), want)
    Q.reset_qconfig(net, Q.tqt_qconfig)
    assert isinstance(net.conv.act_fake_quant, Q.TQT)


def test_reset_hands_calibrated_scales_on():
    net, data = Q.quantize_qat(Stubs(), qconfig=Q.calibration_qconfig), tensor(2, 3, 4, 4)
    Q.reset_qconfig(net, Q.calibration_qconfig)
    Q.enable_observer(net)
    net(data)
    net.eval()
    weight = net.conv.get_weight_qparams().scale.numpy()
    result = net.conv.get_activation_qparams().scale.numpy()
    Q.reset_qconfig(net, Q.passive_qconfig)
    assert isinstance(net.conv.act_observer, Q.PassiveObserver)
    np.testing.assert_array_equal(net.conv.get_weight_qparams().scale.numpy(), weight)
    np.testing.assert_array_equal(net.conv.get_activation_qparams().scale.numpy(), result)
    with Q.hide_fake_quant(net):
        floats = net(data).numpy()
    Q.apply_easy_quant(net, data)
    np.testing.assert_allclose(net(data).numpy(), floats, atol=0.03 * np.abs(floats).max())
    Q.reset_qconfig(net, Q.min_max_fakequant_qconfig)
    assert isinstance(net.conv.act_observer, Q.MinMaxObserver)


def test_easy_quant_finds_a_smaller_error():
    data = tensor(16, 6)
    net = M.Sequential(M.QuantStub(), M.Linear(6, 4), M.DequantStub())
    Q.quantize_qat(net, qconfig=Q.passive_qconfig)
    net.eval()
    with Q.hide_fake_quant(net):
        floats = net(data).numpy()
    for part in (net[0], net[1]):
        part.act_observer.set_qparams(Q.create_qparams(dtype_meta="qint8", scale=0.05))
    narrow = Q.create_qparams(dtype_meta="qint8_narrow", scale=0.02)
    net[1].weight_observer.set_qparams(narrow)
    before = np.square(net(data).numpy() - floats).mean()
    Q.apply_easy_quant(net, data, 0.3, 1.2, 40)
    assert np.square(net(data).numpy() - floats).mean() < before


class OneNorm(M.Module):
    """A normalisation that stands behind two convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = M.Conv2d(3, 3, 3, padding=1), M.Conv2d(3, 3, 1)
        self.norm = M.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.second(self.norm(self.first(x))))


def test_a_normalisation_of_two_layers_is_joined_with_none():
    tianyuan.random.seed(8)
    net = OneNorm().eval()
    net.norm.running_mean[...] = tianyuan.Tensor(np.reshape([1.0, -2.0, 3.0], (1, 3, 1, 1)))
    net.norm.running_var[...] = tianyuan.Tensor(np.reshape([0.1, 4.0, 25.0], (1, 3, 1, 1)))
    x = np.random.default_rng(3).standard_normal((16, 3, 6, 6)).astype(np.float32)
    want = net(tianyuan.Tensor(x)).numpy()
    got = Q.quantize_static(net, [x]).module(tianyuan.Tensor(x)).numpy()
    assert np.square(got - want).sum() < np.square(want).sum() / 1000


def test_convolutions_that_pad_with_anything_but_zeros_stay_in_floats():
    tianyuan.random.seed(9)
    net = M.Sequential(M.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), M.Conv2d(4, 2, 1))
    x = np.random.default_rng(4).standard_normal((16, 3, 6, 6)).astype(np.float32)
    result = Q.quantize_static(net.eval(), [x])
    assert type(result.module[0]) is M.Conv2d
    assert type(result.module[1]) is M.quantized.Conv2d
    want = net(tianyuan.Tensor(x)).numpy()
    got = result.module(tianyuan.Tensor(x)).numpy()
    assert np.square(got - want).sum() < np.square(want).sum() / 1000
