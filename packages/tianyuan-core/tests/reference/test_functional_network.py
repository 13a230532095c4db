"""Activations, losses, norms and convolutions beyond MegEngine's first table, against torch."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import Tensor, config, registry
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, IndexRangeError, KernelError, ShapeError
from tianyuan.functional import inplace, sync_norm, utils
from tianyuan.jit import trace

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
TF = torch.nn.functional

RNG = np.random.default_rng(37)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def compare(ours, theirs, *arrays, rtol=2e-4, atol=2e-5):
    """Compare a function's value and its gradient with respect to every array with torch's."""
    peers = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = theirs(*peers)
    weights = normal(*want.shape)
    (want * torch.tensor(weights)).sum().backward()
    tensors = [Tensor(a) for a in arrays]
    with GradManager() as gm:
        gm.attach(tensors)
        got = ours(*tensors)
        gm.backward(F.sum(got * Tensor(weights)))
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=rtol, atol=atol)
    for tensor, peer in zip(tensors, peers, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), peer.grad.numpy(), rtol=rtol, atol=atol)


X = np.concatenate([RNG.normal(size=20) * 3, [-90.0, 95.0]]).astype(np.float32).reshape(2, 11)
ACTIVATIONS = {
    "elu": (lambda x: F.nn.elu(x, 0.7), lambda x: TF.elu(x, 0.7)),
    "selu": (F.nn.selu, TF.selu),
    "mish": (F.nn.mish, TF.mish),
    "hardtanh": (lambda x: F.nn.hardtanh(x, -2, 1.5), lambda x: TF.hardtanh(x, -2, 1.5)),
    "softsign": (F.nn.softsign, TF.softsign),
    "log_softmax": (F.nn.log_softmax, lambda x: TF.log_softmax(x, -1)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    compare(*ACTIVATIONS[name], X)


P, T = normal(4, 3), np.abs(normal(4, 3)) + 0.1
T[0, 1] = 0.0
CLASSES = np.array([2, 0, 1, 1])
LOSSES = {
    "mse_loss": (
        lambda r: lambda p: F.nn.mse_loss(p, Tensor(T), r),
        lambda r: lambda p: TF.mse_loss(p, torch.tensor(T), reduction=r),
    ),
    "huber_loss": (
        lambda r: lambda p: F.nn.huber_loss(p, Tensor(T), r, 0.6),
        lambda r: lambda p: TF.huber_loss(p, torch.tensor(T), reduction=r, delta=0.6),
    ),
    "smooth_l1_loss": (
        lambda r: lambda p: F.nn.smooth_l1_loss(p, Tensor(T), r, 0.6),
        lambda r: lambda p: TF.smooth_l1_loss(p, torch.tensor(T), reduction=r, beta=0.6),
    ),
    "smooth_l1_loss with beta 0": (
        lambda r: lambda p: F.nn.smooth_l1_loss(p, Tensor(T), r, 0.0),
        lambda r: lambda p: TF.l1_loss(p, torch.tensor(T), reduction=r),
    ),
    "nll_loss": (
        lambda r: lambda p: F.nn.nll_loss(p, Tensor(CLASSES), reduction=r),
        lambda r: lambda p: TF.nll_loss(p, torch.tensor(CLASSES), reduction=r),
    ),
    "kl_div": (
        lambda r: lambda p: F.nn.kl_div(p, Tensor(T), r),
        lambda r: lambda p: TF.kl_div(p, torch.tensor(T), reduction=r),
    ),
    "kl_div of logarithms": (
        lambda r: lambda p: F.nn.kl_div(p, Tensor(T), r, log_target=True),
        lambda r: lambda p: TF.kl_div(p, torch.tensor(T), reduction=r, log_target=True),
    ),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean'")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name, reduction):
    if reduction == "batchmean" and not name.startswith("kl_div"):
        with pytest.raises(AttrError, match=f"^{name.split(' ')[0]}: reduction is unknown"):
            LOSSES[name][0](reduction)(Tensor(P))
        return
    ours, theirs = LOSSES[name]
    compare(ours(reduction), theirs(reduction), P)


def test_losses_refuse():
    with pytest.raises(IndexRangeError, match=r"got 3, expected 0 to 2"):
        F.nn.nll_loss(Tensor(P), Tensor([0, 1, 2, 3]))
    with pytest.raises(AttrError, match="^huber_loss: delta must be positive"):
        F.nn.huber_loss(Tensor(P), Tensor(T), delta=0.0)
    with pytest.raises(ShapeError, match="^kl_div: shapes must agree"):
        F.nn.kl_div(Tensor(P), Tensor(T[:2]))


# norms


@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_rms_norm(shape):
    x, w = normal(2, 3, 4, 5), normal(*shape)
    compare(
        lambda a, b: F.nn.rms_norm(a, shape, b, 1e-3),
        lambda a, b: TF.rms_norm(a, shape, b, 1e-3), x, w,
    )  # fmt: skip
    compare(lambda a: F.nn.rms_norm(a, shape), lambda a: TF.rms_norm(a, shape), x)


def test_rms_norm_of_large_half_floats():
    x = np.array([3e4, 4e4], np.float16)
    got = F.nn.rms_norm(Tensor(x), 2).numpy()
    want = x.astype(float) / np.sqrt(np.mean(x.astype(float) ** 2))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=1e-3)
    with pytest.raises(ShapeError, match="^rms_norm: weight does not fit"):
        F.nn.rms_norm(Tensor(x), 2, Tensor([1.0]))


def running(count):
    return Tensor(np.zeros(count, np.float32)), Tensor(np.ones(count, np.float32))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("mode", ["additive", "max"])
def test_sync_batch_norm_alone_is_batch_norm(training, mode):
    x, w, b = normal(4, 3, 5), normal(3), normal(3)
    mean, var = running(3)
    peer_mean, peer_var = torch.zeros(3), torch.ones(3)
    compare(
        lambda *a: F.sync_batch_norm(a[0], mean, var, *a[1:], training, 0.8, 1e-5, mode),
        lambda *a: TF.batch_norm(a[0], peer_mean, peer_var, *a[1:], training, 0.2, 1e-5),
        x, w, b, rtol=1e-3, atol=1e-4,
    )  # fmt: skip
    np.testing.assert_allclose(mean.numpy(), peer_mean.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), peer_var.numpy(), rtol=1e-4)


@pytest.mark.parametrize("norm", [F.batch_norm, F.sync_batch_norm, "max"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_batch_without_samples_leaves_running_values_alone(norm, dynamic):
    if norm == "max":
        norm = functools.partial(F.sync_batch_norm, eps_mode="max")
    mean, var = running(3)
    peer_mean, peer_var = torch.zeros(3), torch.ones(3)

    def step(x):
        return norm(x, mean, var, training=True)

    if dynamic:
        step = trace(step, dynamic_shapes={"x": {0: "n"}})
    for x in (normal(4, 3, 5), normal(0, 3, 5), normal(2, 3, 5)):
        assert step(Tensor(x)).shape == x.shape
        TF.batch_norm(torch.tensor(x), peer_mean, peer_var, training=True)
        np.testing.assert_allclose(mean.numpy(), peer_mean.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(var.numpy(), peer_var.numpy(), rtol=1e-4)


def test_sync_batch_norm_of_flat_channels_takes_the_larger_of_variance_and_eps():
    x = Tensor(np.array([[1.0, 5.0], [3.0, 5.0]], np.float32))
    y = F.sync_batch_norm(x, *running(2), training=True, eps=0.25, eps_mode="max")
    np.testing.assert_allclose(y.numpy(), [[-1, 0], [1, 0]], atol=1e-6)
    with pytest.raises(AttrError, match="^sync_batch_norm: eps_mode is unknown"):
        F.sync_batch_norm(x, *running(2), eps_mode="none")


def test_sync_batch_norm_takes_the_statistics_of_all(monkeypatch):
    """One process stands for a group of two, of which the other sees the batch doubled."""
    x = normal(6, 3, 2)
    both = np.concatenate([x, 2 * x])
    answers = []

    def all_reduce_sum(value, group):
        assert group == "all"
        # What the other rank would add: its sums, and its squares about the common mean.
        if not answers:
            sums = both[6:].sum((0, 2))
            answers.append(Tensor(np.concatenate([sums, [12.0]]).astype(np.float32)))
            return value + answers[0]
        mean = both.mean((0, 2), keepdims=True)
        return value + Tensor(((both[6:] - mean) ** 2).sum((0, 2)))

    group = SimpleNamespace(WORLD=SimpleNamespace(size=2), is_distributed=lambda: True)
    group.WORLD = type("World", (str,), {"size": 2})("all")
    monkeypatch.setitem(sys.modules, sync_norm._GROUPS, group)
    monkeypatch.setitem(
        sys.modules, "tianyuan.functional.distributed",
        SimpleNamespace(all_reduce_sum=all_reduce_sum),
    )  # fmt: skip
    mean, var = running(3)
    y = F.sync_batch_norm(Tensor(x), mean, var, training=True).numpy()
    m, v = both.mean((0, 2), keepdims=True), both.var((0, 2), keepdims=True)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), 0.1 * m.reshape(-1), rtol=1e-4, atol=1e-6)
    unbiased = v.reshape(-1) * 24 / 23
    np.testing.assert_allclose(var.numpy(), 0.9 + 0.1 * unbiased, rtol=1e-5)


# convolutions


@pytest.mark.parametrize("groups", [1, 2])
def test_region_restricted_conv(groups):
    options = {"stride": 2, "padding": 1, "groups": groups}
    x, w, b = normal(2, 4, 6, 5), normal(4, 4 // groups, 3, 3), normal(4)
    rin, rout = RNG.integers(0, 3, (2, 6, 5)), RNG.integers(0, 3, (2, 3, 3))

    def theirs(a, k, c):
        """Convolve each region alone, and take from it the outputs that belong to it."""
        total = c.reshape(1, -1, 1, 1)
        for region in range(3):
            inside = torch.tensor(rin == region)[:, None]
            chosen = torch.tensor(rout == region)[:, None]
            total = total + chosen * TF.conv2d(a * inside, k, None, 2, 1, 1, groups)
        return total

    compare(
        lambda a, k, c: F.region_restricted_conv(
            a, k, Tensor(rin, "int32"), Tensor(rout, "uint8").astype("int32"), c, **options
        ),
        theirs, x, w, b,
    )  # fmt: skip
    apart = w.reshape(groups, 4 // groups, 4 // groups, 3, 3)
    got = F.region_restricted_conv(Tensor(x), Tensor(apart), Tensor(rin), Tensor(rout), **options)
    want = theirs(torch.tensor(x), torch.tensor(w), torch.zeros(4))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeError, match="^region_restricted_conv: rout does not fit"):
        F.region_restricted_conv(Tensor(x), Tensor(w), Tensor(rin), Tensor(rin), **options)


@pytest.mark.parametrize(
    ("mode", "peer"),
    [
        ("identity", lambda x: x),
        ("relu", torch.relu),
        ("sigmoid", torch.sigmoid),
        ("H_SWISH", TF.hardswish),
    ],
)
def test_conv_bias_activation(mode, peer):
    compare(
        lambda x, w, b: F.nn.conv_bias_activation(x, w, b, padding=1, nonlinear_mode=mode),
        lambda x, w, b: peer(TF.conv2d(x, w, b, padding=1)),
        normal(2, 3, 5, 5), normal(4, 3, 3, 3), normal(4),
    )  # fmt: skip


def test_conv_bias_activation_converts_and_refuses():
    x, w, b = Tensor(normal(1, 1, 3, 3)), Tensor(normal(1, 1, 1, 1)), Tensor(normal(1))
    assert F.nn.conv_bias_activation(x, w, b, "float16").dtype == np.float16
    with pytest.raises(AttrError, match="^conv_bias_activation: nonlinear_mode is unknown"):
        F.nn.conv_bias_activation(x, w, b, nonlinear_mode="tanh")


def test_conv_bias_activation_of_integers():
    quantize = registry.get_op("quantize")
    x = quantize(Tensor([[[[1.0, 2.5]]]]), scales=(0.5,), zero_points=(0,))
    w = quantize(Tensor([[[[-3.0]]]]), scales=(1.0,), zero_points=(0,))
    y = F.nn.conv_bias_activation(x, w, Tensor([4.0]))
    assert y.dtype == np.int8
    assert y.qparams.scales == (0.5,)
    assert y.tolist() == [[[[2, -7]]]]  # (4 - 3) / 0.5 and (4 - 7.5) / 0.5


# helpers


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("HEURISTIC", "HEURISTIC"),
        ("PROFILE", "PROFILE"),
        ("REPRODUCIBLE", "HEURISTIC_REPRODUCIBLE"),
        ("PROFILE_REPRODUCIBLE", "PROFILE_REPRODUCIBLE"),
        ("OPTIMIZED", "HEURISTIC"),
    ],
)
def test_execution_strategy(monkeypatch, given, found):
    before = config.benchmark_kernel, config.deterministic_kernel
    try:
        F.debug_param.set_execution_strategy(given)
        assert F.debug_param.get_execution_strategy() == found
        assert F.debug_param.get_conv_execution_strategy() == found
        assert config.benchmark_kernel is ("PROFILE" in given)
        assert config.deterministic_kernel is ("REPRODUCIBLE" in given)
        F.debug_param.set_conv_execution_strategy("HEURISTIC")
        assert F.debug_param.get_execution_strategy() == "HEURISTIC"
    finally:
        config.benchmark_kernel, config.deterministic_kernel = before


def test_execution_strategy_refuses():
    for option in ("FASTEST", "HEURISTIC_PROFILE", 3):
        with pytest.raises(AttrError, match="^set_execution_strategy: option is not valid"):
            F.debug_param.set_execution_strategy(option)
    assert F.debug_param.get_execution_strategy() == "HEURISTIC"


def test_inplace_add():
    x, delta = normal(3, 2), normal(3, 2)
    target = Tensor(x, "float64")
    found = inplace._inplace_add_(target, Tensor(delta), Tensor(0.5), Tensor(2.0))
    assert found is target
    assert target.dtype == np.float64
    np.testing.assert_allclose(target.numpy(), 0.5 * x + 2.0 * delta, rtol=1e-6)
    with pytest.raises(ShapeError, match="^_inplace_add_: shapes must agree"):
        inplace._inplace_add_(target, Tensor(1.0), 1.0, 1.0)


def test_assert_equal(capsys):
    x = np.array([100.0, 0.5], np.float32)
    near = x * np.float32(1.0005)
    same = utils._assert_equal(Tensor(x), Tensor(near), maxerr=1e-3, verbose=True)
    np.testing.assert_array_equal(same.numpy(), x)
    assert abs(float(capsys.readouterr().out.rsplit(maxsplit=1)[1]) - 5e-4) < 1e-6
    with pytest.raises(KernelError, match=r"^_assert_equal: values differ, got error 0\.0"):
        utils._assert_equal(Tensor(x), Tensor(near))
    with pytest.raises(ShapeError, match="^_assert_equal: shapes must agree"):
        utils._assert_equal(Tensor(x), Tensor(x[:1]))


def test_assert_equal_in_a_trace():
    @trace
    def checked(x, y):
        return utils._assert_equal(x, y) * 2

    a, b = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])
    for _ in range(2):
        assert checked(a, a).tolist() == [2.0, 4.0]
    with pytest.raises(KernelError):
        checked(a, b)


def test_new_names_stand_where_megengine_has_them():
    for name in ("complex", "polar", "real", "imag"):
        assert getattr(F, name) is getattr(F.tensor, name)
    for name in ("deformable_psroi_pooling", "multi_head_attention", "region_restricted_conv",
                 "sync_batch_norm"):  # fmt: skip
        assert getattr(F, name) is getattr(F.nn, name)
    for name in ("correlation", "cvt_color", "flip", "rot90", "rotate", "resize"):
        assert getattr(F.nn, name) is getattr(F.vision, name)
    assert F.svd is F.math.svd
    assert F.flip is not F.vision.flip
    assert tianyuan.functional.utils.topk_accuracy is F.topk_accuracy
