"""Network functions and losses against torch: values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
TF = torch.nn.functional

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def compare(ours, theirs, *arrays, rtol=2e-4, atol=2e-5):
    """Compare a function's value and its gradient with respect to every array."""
    peers = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = theirs(*peers)
    weights = RNG.normal(size=tuple(want.shape)).astype(np.float32)
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


ACTIVATIONS = [
    (F.relu, TF.relu), (F.relu6, TF.relu6), (F.sigmoid, torch.sigmoid),
    (F.hsigmoid, TF.hardsigmoid), (F.hswish, TF.hardswish), (F.silu, TF.silu), (F.gelu, TF.gelu),
    (F.softplus, TF.softplus), (F.logsigmoid, TF.logsigmoid),
    (lambda x: F.leaky_relu(x, 0.2), lambda x: TF.leaky_relu(x, 0.2)),
    (F.leaky_relu, TF.leaky_relu),
    (lambda x: F.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    (F.softmax, lambda x: torch.softmax(x, 1)),
    (lambda x: F.logsoftmax(x, 1), lambda x: torch.log_softmax(x, 1)),
    (lambda x: F.logsumexp(x, 1, keepdims=True), lambda x: torch.logsumexp(x, 1, True)),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS)
def test_activations(ours, theirs):
    compare(ours, theirs, 2 * normal(3, 5))


def test_softmax_axis_by_default():
    for shape, axis in (((4,), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 2, 2), 1)):
        x = normal(*shape)
        want = torch.softmax(torch.tensor(x), axis)
        np.testing.assert_allclose(F.softmax(Tensor(x)).numpy(), want, rtol=1e-5)


def test_logsoftmax_over_two_axes():
    x = normal(2, 3, 4)
    want = x - torch.logsumexp(torch.tensor(x), (1, 2), True).numpy()
    np.testing.assert_allclose(F.logsoftmax(Tensor(x), (1, 2)).numpy(), want, rtol=1e-4)


def test_softplus_and_logsigmoid_do_not_overflow():
    x = Tensor([-200.0, 200.0])
    np.testing.assert_allclose(F.softplus(x).numpy(), [0, 200])
    np.testing.assert_allclose(F.logsigmoid(x).numpy(), [-200, 0])


def test_prelu():
    compare(
        lambda x, w: F.prelu(x, F.reshape(w, (1, 3, 1, 1))), TF.prelu,
        normal(2, 3, 2, 2), normal(3),
    )  # fmt: skip


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)], ids=str)
def test_linear(lead):
    compare(F.linear, TF.linear, normal(*lead, 4), normal(5, 4), normal(5))
    compare(F.linear, TF.linear, normal(*lead, 4), normal(5, 4))


CONVS = [
    {}, {"stride": 2, "padding": 1}, {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"groups": 2, "padding": 1}, {"groups": 4, "dilation": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", CONVS, ids=str)
def test_conv2d(options):
    groups = options.get("groups", 1)
    x, w, b = normal(2, 4, 7, 6), normal(8, 4 // groups, 3, 3), normal(8)
    compare(
        lambda x, w, b: F.conv2d(x, w, b.reshape(1, 8, 1, 1), **options),
        lambda x, w, b: TF.conv2d(x, w, b, **options), x, w, b,
    )  # fmt: skip
    grouped = w.reshape(groups, 8 // groups, *w.shape[1:])
    plain = F.conv2d(Tensor(x), Tensor(w), Tensor(b), **options).numpy()
    np.testing.assert_array_equal(
        F.conv2d(Tensor(x), Tensor(grouped), Tensor(b), **options).numpy(), plain
    )


def test_conv2d_flips_the_weight_for_mode_convolution():
    compare(
        lambda x, w: F.conv2d(x, w, conv_mode="convolution"),
        lambda x, w: TF.conv2d(x, w.flip(2, 3)), normal(1, 2, 5, 5), normal(3, 2, 3, 2),
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}])
def test_conv1d(options):
    groups = options.get("groups", 1)
    compare(
        lambda x, w, b: F.conv1d(x, w, b.reshape(1, 6, 1), **options),
        lambda x, w, b: TF.conv1d(x, w, b, **options),
        normal(2, 4, 9), normal(6, 4 // groups, 3), normal(6),
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1), "groups": 2}]
)
def test_conv3d(options):
    groups = options.get("groups", 1)
    compare(
        lambda x, w, b: F.conv3d(x, w, b.reshape(1, 4, 1, 1, 1), **options),
        lambda x, w, b: TF.conv3d(x, w, b, **options),
        normal(2, 2, 5, 6, 5), normal(4, 2 // groups, 3, 2, 3), normal(4),
    )  # fmt: skip


TRANSPOSED = [
    {}, {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": (3, 2), "dilation": (1, 2), "groups": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_conv_transpose2d(options):
    groups = options.get("groups", 1)
    compare(
        lambda x, w, b: F.conv_transpose2d(x, w, b.reshape(1, -1, 1, 1), **options),
        lambda x, w, b: TF.conv_transpose2d(x, w, b, **options),
        normal(2, 4, 5, 4), normal(4, 6 // groups, 3, 3), normal(6),
    )  # fmt: skip


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((2, 3), (1, 2), (0, 1))], ids=str)
def test_pools(options):
    x = normal(2, 3, 7, 8)
    compare(lambda x: F.max_pool2d(x, *options), lambda x: TF.max_pool2d(x, *options), x)
    compare(
        lambda x: F.avg_pool2d(x, *options),
        lambda x: TF.avg_pool2d(x, *options, count_include_pad=False), x,
    )  # fmt: skip
    compare(
        lambda x: F.avg_pool2d(x, *options, mode="average"),
        lambda x: TF.avg_pool2d(x, *options, count_include_pad=True), x,
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, (3, 2), (7, 8)], ids=str)
def test_adaptive_pools(size):
    x = normal(2, 3, 7, 8)
    compare(lambda x: F.adaptive_avg_pool2d(x, size), lambda x: TF.adaptive_avg_pool2d(x, size), x)
    compare(lambda x: F.adaptive_max_pool2d(x, size), lambda x: TF.adaptive_max_pool2d(x, size), x)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 2, 5)], ids=str)
def test_batch_norm_in_training(shape):
    compare(
        lambda x, w, b: F.batch_norm(x, weight=w, bias=b, training=True),
        lambda x, w, b: TF.batch_norm(x, None, None, w, b, training=True),
        normal(*shape), normal(3), normal(3), atol=1e-4,
    )  # fmt: skip


def test_batch_norm_moves_running_values():
    x = normal(4, 3, 2, 5)
    mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
    peers = torch.tensor(mean), torch.tensor(var)
    TF.batch_norm(torch.tensor(x), *peers, training=True, momentum=0.1)
    ours = Tensor(mean.reshape(1, 3, 1, 1)), Tensor(var.reshape(1, 3, 1, 1))
    out = F.batch_norm(Tensor(x), *ours, training=True)
    for got, want in zip(ours, peers, strict=True):
        np.testing.assert_allclose(got.numpy().reshape(-1), want, rtol=1e-5)
    fresh = Tensor(mean), Tensor(var)
    again, new_mean, new_var = F.batch_norm(Tensor(x), *fresh, training=True, inplace=False)
    np.testing.assert_array_equal(again.numpy(), out.numpy())
    np.testing.assert_array_equal(fresh[0].numpy(), mean)
    np.testing.assert_allclose(new_mean.numpy(), peers[0], rtol=1e-5)
    np.testing.assert_allclose(new_var.numpy(), peers[1], rtol=1e-5)


def test_batch_norm_in_inference():
    mean, var = normal(3), np.abs(normal(3)) + 0.5
    compare(
        lambda x, w, b: F.batch_norm(x, Tensor(mean), Tensor(var), w, b),
        lambda x, w, b: TF.batch_norm(x, torch.tensor(mean), torch.tensor(var), w, b),
        normal(4, 3, 2, 2), normal(3), normal(3),
    )  # fmt: skip


def test_layer_norm():
    compare(
        lambda x, w, b: F.layer_norm(x, (4, 5), True, w, b),
        lambda x, w, b: TF.layer_norm(x, (4, 5), w, b),
        normal(2, 3, 4, 5), normal(4, 5), normal(4, 5), atol=1e-4,
    )  # fmt: skip
    compare(
        lambda x: F.layer_norm(x, 5, False), lambda x: TF.layer_norm(x, (5,)),
        normal(2, 3, 5), atol=1e-4,
    )  # fmt: skip


def test_group_and_instance_norm():
    arrays = normal(2, 6, 3, 4), normal(6), normal(6)
    compare(
        lambda x, w, b: F.group_norm(x, 3, True, w, b), lambda x, w, b: TF.group_norm(x, 3, w, b),
        *arrays, atol=1e-4,
    )  # fmt: skip
    compare(
        lambda x, w, b: F.instance_norm(x, True, w, b),
        lambda x, w, b: TF.instance_norm(x, weight=w, bias=b), *arrays, atol=1e-4,
    )  # fmt: skip
    compare(
        lambda x: F.group_norm(x, 2, False), lambda x: TF.group_norm(x, 2), arrays[0], atol=1e-4
    )


def test_general_norm():
    compare(
        lambda x, w, b: F.general_norm(x, (1, 3), True, w, b),
        lambda x, w, b: TF.layer_norm(x.permute(0, 2, 1, 3), (3, 5), w, b).permute(0, 2, 1, 3),
        normal(2, 3, 4, 5), normal(3, 5), normal(3, 5), atol=1e-4,
    )  # fmt: skip


def test_local_response_norm():
    compare(
        lambda x: F.local_response_norm(x, 3, 2.0, 0.1, 0.75),
        lambda x: TF.local_response_norm(x, 3, 0.3, 0.75, 2.0), normal(2, 6, 3, 4),
    )  # fmt: skip


def test_embedding():
    index = np.array([[0, 2], [2, 1]])
    compare(
        lambda w: F.embedding(Tensor(index), w), lambda w: TF.embedding(torch.tensor(index), w),
        normal(3, 4),
    )  # fmt: skip


def test_one_hot():
    got = F.one_hot(Tensor([[0, 2], [1, 1]]), 3)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.numpy(), np.eye(3)[[[0, 2], [1, 1]]])


def test_indexing_one_hot():
    x, index = normal(2, 3, 4), RNG.integers(0, 3, (2, 4))
    want = np.take_along_axis(x, index[:, None], 1)
    for keepdims, expected in ((False, want[:, 0]), (True, want)):
        got = F.indexing_one_hot(Tensor(x), Tensor(index), 1, keepdims)
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "edge"])
def test_pad(mode):
    kind = {"replicate": "edge"}.get(mode, mode)
    x = normal(2, 3, 4)
    widths = ((0, 0), (1, 2), (2, 1))
    options = {"constant_values": 2.5} if mode == "constant" else {}
    got = F.nn.pad(Tensor(x), widths, mode, 2.5)
    np.testing.assert_array_equal(got.numpy(), np.pad(x, widths, kind, **options))


def test_gradient_of_reflect_pad():
    compare(
        lambda x: F.nn.pad(x, ((0, 0), (0, 0), (1, 2)), "reflect"),
        lambda x: TF.pad(x, (1, 2), "reflect"), normal(2, 3, 4),
    )  # fmt: skip


def test_pixel_shuffle():
    compare(lambda x: F.pixel_shuffle(x, 2), lambda x: TF.pixel_shuffle(x, 2), normal(2, 8, 3, 4))


def test_sliding_windows():
    options = {"padding": (1, 0), "stride": (2, 1), "dilation": (1, 2)}
    x = normal(2, 3, 6, 7)
    oh, ow = (6 + 2 - 2) // 2 + 1, 7 - 4

    def unfold(x):
        return TF.unfold(x, (2, 3), options["dilation"], options["padding"], options["stride"])

    compare(
        lambda x: F.sliding_window(x, (2, 3), **options),
        lambda x: unfold(x).reshape(2, 3, 2, 3, oh, -1).permute(0, 1, 4, 5, 2, 3), x,
    )  # fmt: skip
    windows = F.sliding_window(Tensor(x), (2, 3), **options).numpy()
    assert windows.shape[2:4] == (oh, ow)
    compare(
        lambda y: F.sliding_window_transpose(y, (6, 7), (2, 3), **options),
        lambda y: TF.fold(
            y.permute(0, 1, 4, 5, 2, 3).reshape(2, 18, -1), (6, 7), (2, 3),
            options["dilation"], options["padding"], options["stride"],
        ),
        windows,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (1, 5)], ids=str)
def test_interpolate(mode, corners, size):
    compare(
        lambda x: F.nn.interpolate(x, size, mode=mode, align_corners=corners),
        lambda x: TF.interpolate(x, size, mode=mode, align_corners=corners), normal(2, 3, 5, 4),
    )  # fmt: skip


def test_interpolate_by_factor_nearest_and_linear():
    compare(
        lambda x: F.nn.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: TF.interpolate(x, scale_factor=2, mode="nearest"), normal(2, 3, 5, 4),
    )  # fmt: skip
    compare(
        lambda x: F.nn.interpolate(x, 9, mode="linear"),
        lambda x: TF.interpolate(x, 9, mode="linear"), normal(2, 3, 5),
    )  # fmt: skip


LABELS = RNG.integers(0, 5, (4, 3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smooth", [0, 0.1])
def test_cross_entropy(reduction, smooth):
    compare(
        lambda x: F.nn.cross_entropy(x, Tensor(LABELS), label_smooth=smooth, reduction=reduction),
        lambda x: TF.cross_entropy(
            x, torch.tensor(LABELS), reduction=reduction, label_smoothing=smooth
        ),
        3 * normal(4, 5, 3),
    )  # fmt: skip


def test_cross_entropy_of_probabilities_along_another_axis():
    scores = np.moveaxis(RNG.dirichlet(np.ones(5), (4, 3)), -1, 0).astype(np.float32)
    want = -np.log(np.take_along_axis(scores, LABELS[None], 0)).mean()
    got = F.loss.cross_entropy(Tensor(scores), Tensor(LABELS), axis=0, with_logits=False)
    assert got.item() == pytest.approx(want, rel=1e-5)


def test_cross_entropy_does_not_overflow():
    loss = F.nn.cross_entropy(Tensor([[1000.0, 0.0]]), Tensor([1]))
    assert loss.item() == 1000


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_other_losses(reduction):
    x, y = normal(4, 3), np.abs(normal(4, 3)) % 1
    for ours, theirs in ((F.nn.l1_loss, TF.l1_loss), (F.nn.square_loss, TF.mse_loss)):
        compare(
            lambda a, b, f=ours: f(a, b, reduction=reduction),
            lambda a, b, f=theirs: f(a, b, reduction=reduction), x, y,
        )  # fmt: skip
    compare(
        lambda a: F.nn.binary_cross_entropy(a, Tensor(y), reduction=reduction),
        lambda a: TF.binary_cross_entropy_with_logits(a, torch.tensor(y), reduction=reduction), x,
    )  # fmt: skip
    p = 1 / (1 + np.exp(-x))
    compare(
        lambda a: F.nn.binary_cross_entropy(a, Tensor(y), False, reduction),
        lambda a: TF.binary_cross_entropy(a, torch.tensor(y), reduction=reduction), p,
    )  # fmt: skip


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_hinge_loss(norm):
    x, y = normal(4, 3), np.sign(normal(4, 3))
    gap = np.maximum(0, 1 - x * y) ** (1 if norm == "L1" else 2)
    got = F.nn.hinge_loss(Tensor(x), Tensor(y), norm)
    assert got.item() == pytest.approx(gap.sum(1).mean(), rel=1e-5)


def test_topk_accuracy():
    logits = np.array([[3, 2, 1], [1, 3, 2], [3, 1, 2], [1, 2, 3]], np.float32)
    target = np.array([0, 2, 1, 2])
    assert F.topk_accuracy(Tensor(logits), Tensor(target)).item() == 0.5
    found = F.metric.topk_accuracy(Tensor(logits), Tensor(target), (1, 2, 3))
    assert [share.item() for share in found] == [0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.conv2d(Tensor(normal(1, 2, 5, 5)), Tensor(normal(3, 3, 3, 3))), ShapeError,
         "^conv2d: "),
        (lambda: F.conv2d(Tensor(normal(1, 2, 5, 5)), Tensor(normal(3, 2, 3))), ShapeError,
         "^conv2d: weight has the wrong rank"),
        (lambda: F.conv2d(Tensor(normal(1, 2, 5, 5)), Tensor(normal(3, 2, 3, 3)), stride=0),
         AttrError, "^conv2d: stride is not valid"),
        (lambda: F.conv2d(Tensor(normal(1, 2, 5, 5)), Tensor(normal(3, 2, 3, 3)),
                          Tensor(normal(4))), ShapeError, "^conv2d: bias does not fit"),
        (lambda: F.linear(Tensor(normal(2, 3)), Tensor(normal(4, 2))), ShapeError, "^linear: "),
        (lambda: F.max_pool2d(Tensor(normal(1, 1, 4, 4)), 2, padding=2), AttrError,
         "^max_pool2d: padding is too large"),
        (lambda: F.avg_pool2d(Tensor(normal(1, 1, 4, 4)), 2, mode="max"), AttrError,
         "^avg_pool2d: mode is unknown"),
        (lambda: F.batch_norm(Tensor(normal(2, 3))), AttrError, "^batch_norm: running_mean"),
        (lambda: F.layer_norm(Tensor(normal(2, 3)), (2,), False), ShapeError, "^layer_norm: "),
        (lambda: F.group_norm(Tensor(normal(2, 3)), 2, False), ShapeError, "^group_norm: "),
        (lambda: F.embedding(Tensor([0.5]), Tensor(normal(2, 3))), DTypeError, "^embedding: "),
        (lambda: F.nn.cross_entropy(Tensor(normal(2, 3)), Tensor([[0]])), ShapeError,
         "^cross_entropy: label does not fit"),
        (lambda: F.nn.cross_entropy(Tensor(normal(2, 3)), Tensor([0, 1]), reduction="max"),
         AttrError, "^cross_entropy: reduction is unknown"),
        (lambda: F.dropout(Tensor(normal(2)), 1.5), AttrError, "^dropout: drop_prob is out"),
        (lambda: F.nn.interpolate(Tensor(normal(1, 1, 2, 2))), AttrError, "^interpolate: "),
    ],
)  # fmt: skip
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
