"""Observers and fake quantisers decide what closed forms say."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import jit
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, TraceError

SYM, ASYM = Q.QuantMode.SYMMERTIC, Q.QuantMode.ASYMMERTIC


def tensor(values):
    return tianyuan.Tensor(np.asarray(values, np.float32))


def params(observer, *batches):
    for batch in batches:
        observer(tensor(batch))
    found = observer.get_qparams()
    return found.scale.numpy(), found.zero_point.numpy()


@pytest.mark.parametrize(
    ("mode", "dtype", "scale", "zero"),
    [
        (SYM, "qint8", 4 / 127.5, 0),
        (SYM, "qint8_narrow", 4 / 127, 0),
        (SYM, "quint8", 4 / 127.5, 128),
        (SYM, "qint4", 4 / 7.5, 0),
        (ASYM, "quint8", 5 / 255, 51),
        (ASYM, "qint8", 5 / 255, -77),
        (ASYM, "quint4", 5 / 15, 3),
    ],
)
def test_min_max(mode, dtype, scale, zero):
    got = params(Q.MinMaxObserver(mode, dtype=dtype), [0.5, -1], [4.0, 1.0])
    np.testing.assert_allclose(got[0], scale, rtol=1e-6)
    assert got[1] == zero


def test_min_max_by_channel():
    observer = Q.MinMaxObserver(dtype="qint8_narrow", channel_axis=0)
    scale, zero = params(observer, [[1, -2], [3, 0.5]], [[0, 1], [-6, 1]])
    np.testing.assert_allclose(scale, [2 / 127, 6 / 127], rtol=1e-6)
    np.testing.assert_array_equal(zero, [0, 0])


def test_moving_average():
    observer = Q.ExponentialMovingAverageObserver(momentum=0.75)
    scale, _ = params(observer, [-1, 2], [-5, 6], [0, 1])
    high = (2 * 0.75 + 6 * 0.25) * 0.75 + 1 * 0.25
    low = (-1 * 0.75 - 5 * 0.25) * 0.75
    np.testing.assert_allclose(scale, max(high, -low) / 127.5, rtol=1e-6)


@pytest.mark.parametrize("method", ["l2", "kl"])
def test_histogram_leaves_far_values_out(method):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(40_000)
    values[0] = 60.0
    observer = Q.HistogramObserver(dtype="qint4", method=method)
    scale, _ = params(observer, values[1:20_000], values)
    top = float(scale) * 7.5
    assert 1.5 < top < 15

    def error(s):
        return np.mean((np.clip(np.rint(values[1:] / s), -8, 7) * s - values[1:]) ** 2)

    if method == "l2":
        assert error(float(scale)) < error(60 / 7.5) / 4


@pytest.mark.parametrize("mode", [SYM, ASYM])
@pytest.mark.parametrize("zeros", [0.5, 0.95])
def test_zeros_behind_a_relu_do_not_move_the_range_of_least_entropy(mode, zeros):
    values = np.abs(np.random.default_rng(2).standard_normal(40_000))
    kind = partial(Q.HistogramObserver, dtype="quint8", mode=mode, method="kl")
    alone, _ = params(kind(), values)
    silent = np.zeros(int(len(values) * zeros / (1 - zeros)))
    among, _ = params(kind(), np.concatenate([silent, values]))
    np.testing.assert_allclose(among, alone, rtol=0.02)


def test_histogram_search_is_close_to_the_best_scale():
    values = np.random.default_rng(1).laplace(size=30_000)
    scale, _ = params(Q.HistogramObserver(dtype="qint4"), values)

    def error(s):
        return np.mean((np.clip(np.rint(values / s), -8, 7) * s - values) ** 2)

    best = min(error(s) for s in np.linspace(0.05, 2, 400))
    assert error(float(scale)) <= best * 1.03


def test_percentile():
    values = np.linspace(-1, 3, 100_001)
    observer = Q.PercentileObserver(percentile=90, mode=ASYM, dtype="quint8")
    scale, zero = params(observer, values)
    low, high = np.percentile(values, [5, 95])
    np.testing.assert_allclose(scale, (high - low) / 255, rtol=5e-3)
    assert abs(zero - round(-low / float(scale))) <= 1


@pytest.mark.parametrize("kind", ["MinMaxObserver", "HistogramObserver", "PercentileObserver"])
def test_zeros_give_a_positive_scale(kind):
    for mode in (SYM, ASYM):
        scale, _ = params(getattr(Q, kind)(mode=mode), np.zeros(100))
        assert np.isfinite(scale)
        assert scale > 0


def test_passive():
    observer = Q.PassiveObserver("qint8")
    with pytest.raises(AttrError, match="never set"):
        observer.get_qparams()
    observer.scale = 0.25
    assert observer.get_qparams().scale.numpy() == np.float32(0.25)
    with pytest.raises(AttrError, match="positive and finite"):
        observer.scale = np.nan
    with pytest.raises(AttrError, match="another dtype"):
        observer.set_qparams(Q.create_qparams(dtype_meta="quint8", scale=1.0))


def test_wrong_arguments():
    with pytest.raises(DTypeError, match="unknown name, got 'qint9'"):
        Q.MinMaxObserver(dtype="qint9")
    with pytest.raises(AttrError, match="eps must be positive"):
        Q.MinMaxObserver(eps=0)
    with pytest.raises(AttrError, match="unknown method"):
        Q.HistogramObserver(method="l3")
    with pytest.raises(AttrError, match="percentile is wrong"):
        Q.PercentileObserver(percentile=20)
    with pytest.raises(AttrError, match="momentum is out of range"):
        Q.ExponentialMovingAverageObserver(momentum=1.0)


# Fake quantisers.


def gradients(function, *arrays):
    given = [tianyuan.Parameter(np.asarray(a, np.float32)) for a in arrays]
    gm = GradManager().attach(given)
    with gm:
        gm.backward(F.sum(function(*given)))
    return [p.grad.numpy() for p in given]


def test_fake_quantisation_is_what_integers_stand_for():
    x = np.linspace(-3, 3, 41, dtype=np.float32)
    given = Q.create_qparams(ASYM, "quint8", np.float32(0.02), 100)
    got = Q.fake_quant_tensor(tensor(x), given).numpy()
    q = np.clip(np.rint((x / np.float32(0.02)).astype(np.float64)) + 100, 0, 255)
    np.testing.assert_array_equal(got, ((q - 100).astype(np.float32) * np.float32(0.02)))
    (g,) = gradients(lambda t: Q.fake_quant_tensor(t, given), x)
    raw = np.rint((x / np.float32(0.02)).astype(np.float64)) + 100
    np.testing.assert_array_equal(g, ((raw >= 0) & (raw <= 255)).astype(np.float32))


def test_fake_quantisation_by_channel():
    x = np.array([[0.3, -0.7], [3.1, 9.0]], np.float32)
    given = Q.create_qparams(SYM, "qint4", np.float32([0.1, 1.0]), np.float32([0, 0]))
    got = Q.fake_quant_tensor(tensor(x), given).numpy()
    np.testing.assert_allclose(got, [[0.3, -0.7], [3, 7]], rtol=1e-6)


def test_lsq_gradient():
    x = np.array([0.24, -0.4, 5.0, -5.0, 0.06], np.float32)
    fake = Q.LSQ("qint4")
    fake.set_qparams(Q.create_qparams(SYM, "qint4", np.float32(0.1)))
    fake.step_size[...] = tensor(0.1)
    gm = GradManager().attach([fake.step_size])
    with gm:
        gm.backward(F.sum(fake(tensor(x))))
    ratio = x.astype(np.float64) / np.float32(0.1)
    q = np.rint(ratio)
    slope = np.where(q > 7, 7, np.where(q < -8, -8, q - ratio)).sum()
    want = slope / np.sqrt(len(x) * 7)
    np.testing.assert_allclose(fake.step_size.grad.numpy(), want, rtol=1e-4)


def test_tqt_scale_is_a_power_of_two_and_learns():
    fake = Q.TQT("qint8")
    fake.set_qparams(Q.create_qparams(SYM, "qint8", np.float32(0.011)))
    assert fake.get_qparams().scale.numpy() == np.float32(2.0**-6)
    x = np.array([0.3, 10.0], np.float32)
    gm = GradManager().attach([fake.scale])
    with gm:
        gm.backward(F.sum(fake(tensor(x))))
    step = 2.0**-6
    inner = np.rint(0.3 / step) - np.float32(0.3) / step
    want = (inner + 127) * step * np.log(2)
    np.testing.assert_allclose(fake.scale.grad.numpy(), want, rtol=1e-4)


def test_pact_gradient_counts_what_is_clipped():
    fake = Q.PACT("quint8")
    fake.set_qparams(Q.create_qparams(ASYM, "quint8", np.float32(1 / 255)))
    np.testing.assert_allclose(fake.alpha.numpy(), 1.0, rtol=1e-6)
    gm = GradManager().attach([fake.alpha])
    with gm:
        y = fake(tensor([-1.0, 0.35, 2.0, 3.0]))
        gm.backward(F.sum(y))
    np.testing.assert_allclose(y.numpy(), [0, 89 / 255, 1, 1], rtol=1e-5)
    assert fake.alpha.grad.numpy() == 2.0


def test_pact_of_a_signed_dtype_clips_on_both_sides():
    fake = Q.PACT("qint8_narrow")
    fake.set_qparams(Q.create_qparams(SYM, "qint8_narrow", np.float32(1 / 127)))
    x = tensor([-3.0, -2.0, -0.5, 0.25, 2.0])
    gm = GradManager().attach([fake.alpha, x])
    with gm:
        gm.backward(F.sum(fake(x) * tensor([1.0, 10.0, 100.0, 1000.0, 10000.0])))
    assert fake.alpha.grad.numpy() == 10000 - 10 - 1
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 100, 1000, 0])


def test_bias_is_rounded_to_the_accumulator():
    inp = Q.create_qparams(scale=np.float32(0.5))
    weight = Q.create_qparams(scale=np.float32(0.25))
    got = Q.fake_quant_bias(tensor([0.2, -0.07]), inp, weight).numpy()
    np.testing.assert_allclose(got, [0.25, -0.125])
    same = tensor([0.2])
    assert Q.fake_quant_bias(same, None, weight) is same


class _Twice(M.Module):
    """One layer at two scales, the wider of them where it is told."""

    def __init__(self, factors):
        super().__init__()
        self.layer = M.Linear(3, 2, bias=False)
        self.factors = factors

    def forward(self, x):
        first, second = self.factors
        return self.layer(x * first) + self.layer(x * second)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("factors", [(1.0, 20.0), (20.0, 1.0)])
def test_all_calls_of_a_layer_in_one_step_make_its_range(factors, traced):
    rng = np.random.default_rng(0)
    batches = rng.normal(size=(3, 4, 3)).astype(np.float32)
    net = _Twice(factors)
    weight = net.layer.weight.numpy().copy()
    Q.quantize_qat(net, qconfig=Q.ema_fakequant_qconfig)
    Q.disable_fake_quant(net)
    net.train()
    run = jit.trace(net) if traced else net
    for batch in batches:
        run(tensor(batch))
    observer, low, high = net.layer.act_observer, None, None
    for batch in batches:
        results = np.concatenate([batch * f @ weight.T for f in factors])
        ends = results.min(), results.max()
        low = ends[0] if low is None else 0.9 * low + 0.1 * ends[0]
        high = ends[1] if high is None else 0.9 * high + 0.1 * ends[1]
    np.testing.assert_allclose(observer.min_val.item(), low, rtol=1e-5)
    np.testing.assert_allclose(observer.max_val.item(), high, rtol=1e-5)


def test_an_observer_of_data_says_in_a_trace_what_to_do():
    batch = tensor(np.random.default_rng(0).normal(size=(8, 3)))
    runs = {}
    for traced in (True, False):
        tianyuan.random.seed(0)
        net = M.Sequential(M.Linear(3, 4), M.ReLU(), M.Linear(4, 1))
        Q.quantize_qat(net, qconfig=Q.static_qconfig, example=batch)
        net.train()
        manager = GradManager().attach(net.parameters())
        optimizer = tianyuan.optimizer.SGD(net.parameters(), lr=0.1)

        def step(x, net=net, manager=manager, optimizer=optimizer):
            with manager:
                loss = (net(x) ** 2).mean()
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        if traced:
            message = "HistogramObserver: it looks at the data, .*disable_observer"
            with pytest.raises(TraceError, match=message):
                jit.trace(step)(batch)
        net(batch)
        Q.disable_observer(net)
        run = jit.trace(step) if traced else step
        runs[traced] = [run(batch).item() for _ in range(3)]
    assert runs[True][2] < runs[True][0]
    np.testing.assert_allclose(runs[True], runs[False], rtol=1e-4)


@pytest.mark.parametrize("factors", [(1.0,), (1.0, 20.0)], ids=["once", "twice"])
@pytest.mark.parametrize("kind", ["tqt", "lsq", "pact"])
def test_learned_ranges_learn_in_a_trace_too(kind, factors):
    batch = tensor(np.random.default_rng(0).normal(size=(8, 3)))
    found = {}
    for traced in (True, False):
        rng = np.random.default_rng(1)
        layers = M.Linear(3, 3), M.ReLU(), M.Linear(3, 1)
        net = M.Sequential(*layers) if len(factors) == 1 else _Twice(factors)
        for parameter in net.parameters():
            parameter[...] = tensor(rng.normal(size=parameter.shape))
        Q.quantize_qat(net, qconfig=getattr(Q, f"{kind}_qconfig"), example=batch)
        net.train()
        manager = GradManager().attach(net.parameters())
        optimizer = tianyuan.optimizer.SGD(net.parameters(), lr=0.01)

        def step(x, net=net, manager=manager, optimizer=optimizer):
            with manager:
                loss = ((net(x) - 1.0) ** 2).mean()
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        run = jit.trace(step) if traced else step
        losses = [run(batch).item() for _ in range(6)]
        scales = {
            name: fake.get_qparams().scale.item()
            for name, fake in net.named_modules()
            if isinstance(fake, (Q.TQT, Q.LSQ, Q.PACT))
        }
        found[traced] = losses, scales
    assert found[True][1].keys() == found[False][1].keys()
    np.testing.assert_allclose(found[True][0], found[False][0], rtol=1e-3)
    for name, scale in found[False][1].items():
        np.testing.assert_allclose(found[True][1][name], scale, rtol=1e-3, err_msg=name)


def test_counts_beyond_float32_are_kept_whole():
    observer = Q.HistogramObserver(bins=256)
    observer(tianyuan.Tensor(np.linspace(-1, 1, 1000, dtype=np.float32)))
    observer.counts += 2.0**25
    observer(tianyuan.Tensor(np.linspace(-1, 1, 1000, dtype=np.float32)))
    other = Q.HistogramObserver(bins=256)
    other.load_state_dict(observer.state_dict())
    np.testing.assert_array_equal(other.counts, observer.counts)
    assert other.counts.max() > 2**25
    assert (other.low, other.high) == (observer.low, observer.high)
