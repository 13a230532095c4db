"""Layers compute, learn and keep what PyTorch's of the same weights do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError

torch = pytest.importorskip("torch")
TM = torch.nn


def _input(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _copy(mine: M.Module, theirs: Any) -> None:
    """Give PyTorch's module my module's tensors; shapes differ only by how they are cut."""
    given = theirs.state_dict()
    for name, array in mine.state_dict().items():
        given[name] = torch.tensor(array.reshape(given[name].shape))
    theirs.load_state_dict(given)


def _disturb(mine: M.Module) -> None:
    rng = np.random.default_rng(3)
    for parameter in mine.parameters():
        parameter[...] = Tensor(rng.uniform(0.5, 1.5, parameter.shape).astype(np.float32))


def _compare(mine: M.Module, theirs: Any, *shape: int, tol: float = 2e-5) -> None:
    """Compare outputs, gradients of the input and all parameters, and buffers after the call."""
    _disturb(mine)
    _copy(mine, theirs)
    x = _input(*shape)
    inp, leaf = Tensor(x), torch.tensor(x, requires_grad=True)
    manager = GradManager().attach([inp, *mine.parameters()])
    with manager:
        y = mine(inp)
        manager.backward((y * y * y).sum())
    want = theirs(leaf)
    (want * want * want).sum().backward()
    np.testing.assert_allclose(y.numpy(), want.detach().numpy(), rtol=tol, atol=tol)
    gradients = {name: p.grad for name, p in theirs.named_parameters()} | {"input": leaf.grad}
    for name, parameter in [("input", inp), *mine.named_parameters()]:
        grad = gradients[name].numpy()
        np.testing.assert_allclose(
            parameter.grad.numpy().reshape(grad.shape),
            grad,
            rtol=1e-3,
            atol=1e-4 * max(1.0, float(np.abs(grad).max())),
        )
    buffers = dict(theirs.named_buffers())
    for name, buffer in mine.named_buffers():
        np.testing.assert_allclose(
            buffer.numpy().reshape(-1), buffers[name].numpy(), rtol=1e-5, atol=1e-6
        )


def test_linear() -> None:
    _compare(M.Linear(5, 3), TM.Linear(5, 3), 4, 5)
    _compare(M.Linear(5, 3, bias=False), TM.Linear(5, 3, bias=False), 2, 4, 5)


CONVS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "bias": False},
    {"padding": (2, 1), "dilation": (2, 1)},
    {"groups": 2, "padding": 1},
    {"groups": 4},
]


@pytest.mark.parametrize("options", CONVS)
def test_conv2d(options: dict[str, Any]) -> None:
    mine = M.Conv2d(4, 8, 3, **options)
    groups = options.get("groups", 1)
    want = (8, 4, 3, 3) if groups == 1 else (groups, 8 // groups, 4 // groups, 3, 3)
    assert mine.weight.shape == want
    if mine.bias is not None:
        assert mine.bias.shape == (1, 8, 1, 1)
    _compare(mine, TM.Conv2d(4, 8, 3, **options), 2, 4, 9, 8)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_conv2d_padding_modes(mode: str) -> None:
    options: dict[str, Any] = {"padding": (2, 1), "padding_mode": mode}
    _compare(M.Conv2d(2, 3, 3, **options), TM.Conv2d(2, 3, 3, **options), 2, 2, 6, 7)
    with pytest.raises(AttrError, match="padding_mode"):
        M.Conv2d(2, 3, 3, padding_mode="circular")


def test_conv1d_and_conv3d() -> None:
    _compare(M.Conv1d(4, 6, 3, 2, 1, groups=2), TM.Conv1d(4, 6, 3, 2, 1, groups=2), 2, 4, 9)
    options: dict[str, Any] = {"padding": 2, "padding_mode": "reflect"}
    _compare(M.Conv1d(2, 3, 3, **options), TM.Conv1d(2, 3, 3, **options), 2, 2, 9)
    _compare(M.Conv3d(2, 4, 2, 1, 1), TM.Conv3d(2, 4, 2, 1, 1), 1, 2, 4, 3, 5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"groups": 2, "dilation": 2, "bias": False},
    ],
)
def test_conv_transpose2d(options: dict[str, Any]) -> None:
    mine = M.ConvTranspose2d(4, 6, 3, **options)
    assert mine.weight.shape == ((2, 2, 3, 3, 3) if "groups" in options else (4, 6, 3, 3))
    _compare(mine, TM.ConvTranspose2d(4, 6, 3, **options), 2, 4, 5, 6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"groups": 2, "dilation": 2, "bias": False},
    ],
)
def test_conv_transpose1d_and_3d(options: dict[str, Any]) -> None:
    _compare(M.ConvTranspose1d(4, 6, 3, **options), TM.ConvTranspose1d(4, 6, 3, **options), 2, 4, 5)
    mine = M.ConvTranspose3d(4, 6, 2, **options)
    assert mine.weight.shape == ((2, 2, 3, 2, 2, 2) if "groups" in options else (4, 6, 2, 2, 2))
    theirs = TM.ConvTranspose3d(4, 6, 2, **options)
    _compare(mine, theirs, 2, 4, 3, 2, 4)
    uneven = {"stride": (1, 2, 1), "padding": (0, 1, 0)}
    _compare(
        M.ConvTranspose3d(2, 2, (1, 2, 3), **uneven), TM.ConvTranspose3d(2, 2, (1, 2, 3), **uneven),
        1, 2, 3, 4, 3,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
def test_local_conv2d(groups: int) -> None:
    mine = M.LocalConv2d(4, 6, 5, 7, 3, (2, 1), 1, (1, 2), groups)
    assert mine.weight.shape == (groups, 3, 5, 4 // groups, 3, 3, 6 // groups)
    assert mine.bias is None
    x, weight = _input(2, 4, 5, 7), mine.weight.numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((2, 6, 3, 5), np.float64)
    for i in range(3):
        for j in range(5):
            window = padded[:, :, 2 * i : 2 * i + 3, j : j + 5 : 2]
            parts = np.split(window, groups, axis=1)
            found = [
                np.einsum("nchw,chwo->no", part, weight[group, i, j])
                for group, part in enumerate(parts)
            ]
            want[:, :, i, j] = np.concatenate(found, axis=1)
    np.testing.assert_allclose(mine(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_conv2d(groups: int) -> None:
    mine = M.DeformableConv2d(4, 6, 3, padding=1, groups=groups)
    plain = M.Conv2d(4, 6, 3, padding=1, groups=groups)
    plain.load_state_dict(mine.state_dict())
    x = _input(2, 4, 6, 7)
    still, moved = np.zeros((2, 18, 6, 7), np.float32), np.zeros((2, 18, 6, 7), np.float32)
    moved[:, 0::2], moved[:, 1::2] = 1.0, -2.0
    half = np.full((2, 9, 6, 7), 0.5, np.float32)
    bias = plain.bias.numpy()
    want = (plain(Tensor(x)).numpy() - bias) / 2 + bias
    got = mine(Tensor(x), Tensor(still), Tensor(half)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    # Moving every tap by (1, -2) is moving the image by (-1, 2).
    shifted = np.zeros_like(x)
    shifted[:, :, :-1, 2:] = x[:, :, 1:, :-2]
    inner = np.s_[:, :, 1:-2, 3:-1]  # beyond, padding would differ
    want = plain(Tensor(shifted)).numpy()
    got = mine(Tensor(x), Tensor(moved), Tensor(half * 2)).numpy()
    np.testing.assert_allclose(got[inner], want[inner], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_region_restricted_conv(groups: int) -> None:
    mine = M.RegionRestrictedConv(4, 6, 3, groups, padding=1, stride=2)
    assert mine.weight.shape == (groups, 6 // groups, 4 // groups, 3, 3)
    theirs = TM.Conv2d(4, 6, 3, 2, 1, groups=groups)
    _disturb(mine)
    _copy(mine, theirs)
    x, rng = _input(2, 4, 7, 6), np.random.default_rng(0)
    regions, wanted = rng.integers(0, 3, (2, 7, 6)), rng.integers(0, 3, (2, 4, 3))
    got = mine(Tensor(x), Tensor(regions), Tensor(wanted)).numpy()
    per_region = [
        theirs(torch.tensor(x * (regions == region)[:, None])).detach().numpy()
        for region in range(3)
    ]
    want = np.choose(wanted[:, None], per_region)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_conv_sizes_are_checked() -> None:
    for make in (
        lambda: M.Conv1d(1, 1, 0),
        lambda: M.Conv1d(1, 1, 1.5),  # type: ignore[arg-type]
        lambda: M.Conv2d(1, 1, (1, 2, 3)),  # type: ignore[arg-type]
        lambda: M.Conv3d(1, 1, (1, 2)),  # type: ignore[arg-type]
        lambda: M.ConvTranspose3d(1, 1, 0),
    ):
        with pytest.raises(AttrError, match="kernel_size is not valid"):
            make()


def test_groups_must_divide_channels() -> None:
    with pytest.raises(AttrError, match="groups must divide"):
        M.Conv2d(4, 6, 3, groups=3)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}])
def test_batch_norm(options: dict[str, Any]) -> None:
    # MegEngine's momentum is what is kept, PyTorch's what is taken.
    mine, theirs = M.BatchNorm2d(5, **options), TM.BatchNorm2d(5, momentum=0.1, **options)
    if mine.weight is not None:
        assert mine.weight.shape == (1, 5, 1, 1)
    theirs.num_batches_tracked = None
    _compare(mine, theirs, 3, 5, 4, 6)
    mine.eval()
    theirs.eval()
    x = _input(2, 5, 3, 3)
    want = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(mine(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5)])
def test_batch_norm1d(shape: tuple[int, ...]) -> None:
    theirs = TM.BatchNorm1d(3, momentum=0.1)
    theirs.num_batches_tracked = None
    _compare(M.BatchNorm1d(3), theirs, *shape)


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 3)])
def test_sync_batch_norm_alone_is_batch_norm(shape: tuple[int, ...]) -> None:
    # torch: (N, C, L) stands for any rank
    theirs = TM.BatchNorm1d(3, momentum=0.1)
    theirs.num_batches_tracked = None
    mine = M.SyncBatchNorm(3)
    _disturb(mine)
    _copy(mine, theirs)
    x = _input(*shape)
    flat = torch.tensor(x.reshape(*shape[:2], -1))
    for training in (True, False):
        mine.train(training)
        theirs.train(training)
        want = theirs(flat).detach().numpy().reshape(shape)
        np.testing.assert_allclose(mine(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-5)
    for name, buffer in mine.named_buffers():
        want = getattr(theirs, name).numpy()
        np.testing.assert_allclose(buffer.numpy().ravel(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="SyncBatchNorm: input has the wrong rank"):
        mine(Tensor(_input(3)))


def test_deformable_psroi_pooling() -> None:
    x = np.broadcast_to(np.arange(8, dtype=np.float32), (1, 2, 8, 8)).copy()
    rois = Tensor([[0.0, 1.0, 1.0, 4.0, 4.0]])
    # Samples lie at the left ends of their shares of [0.5, 4.5], on a ramp of slope one.
    still = M.DeformablePSROIPooling(True, 2, 2, 2, 2, 1.0)
    want = [0.5 + 2 * part + 0.5 for part in (0, 1)]
    got = still(Tensor(x), rois, None).numpy()
    np.testing.assert_allclose(got, np.broadcast_to(want, (1, 2, 2, 2)), rtol=1e-5)
    # An offset of 1 in x moves by trans_std times the region's width.
    moving = M.DeformablePSROIPooling(False, 2, 2, 2, 2, 1.0, 0.25)
    trans = np.zeros((1, 2, 2, 2), np.float32)
    trans[:, 0] = 1.0
    got = moving(Tensor(x), rois, Tensor(trans)).numpy()
    np.testing.assert_allclose(got, np.broadcast_to(want, (1, 2, 2, 2)) + 0.25 * 4, rtol=1e-5)


def test_batch_norm3d() -> None:
    theirs = TM.BatchNorm3d(3, momentum=0.1)
    theirs.num_batches_tracked = None
    _compare(M.BatchNorm3d(3), theirs, 2, 3, 2, 4, 3)
    with pytest.raises(ShapeError, match="expected 5 dimensions"):
        M.BatchNorm3d(3)(Tensor(_input(2, 3, 4, 4)))


def test_frozen_batch_norm_keeps_everything() -> None:
    mine = M.BatchNorm2d(2, freeze=True)
    _disturb(mine)
    before = mine.state_dict()
    x = Tensor(_input(3, 2, 4, 4))
    manager = GradManager().attach([*mine.parameters(), x])
    with manager:
        y = mine(x)
        manager.backward(y.sum())
    scale = before["weight"] / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(y.numpy(), x.numpy() * scale + before["bias"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(scale, x.shape), rtol=1e-5)
    assert mine.weight.grad is None
    assert mine.bias.grad is None
    assert all(np.array_equal(before[name], value) for name, value in mine.state_dict().items())


def test_batch_norm_checks_rank_and_options() -> None:
    with pytest.raises(ShapeError, match="expected 4 dimensions"):
        M.BatchNorm2d(2)(Tensor(_input(3, 2)))
    with pytest.raises(ShapeError, match="expected 2 or 3 dimensions"):
        M.BatchNorm1d(2)(Tensor(_input(3, 2, 4, 4)))
    with pytest.raises(AttrError, match="freeze needs"):
        M.BatchNorm2d(2, track_running_stats=False, freeze=True)
    mine = M.BatchNorm2d(2)
    mine(Tensor(_input(3, 2, 4, 4)))
    mine.reset_running_stats()
    np.testing.assert_array_equal(mine.running_mean.numpy().reshape(-1), [0, 0])
    np.testing.assert_array_equal(mine.running_var.numpy().reshape(-1), [1, 1])


def test_other_norms() -> None:
    _compare(M.LayerNorm(5), TM.LayerNorm(5), 2, 3, 5)
    _compare(M.LayerNorm((3, 5)), TM.LayerNorm((3, 5)), 2, 3, 5)
    _compare(M.LayerNorm(5, affine=False), TM.LayerNorm(5, elementwise_affine=False), 2, 5)
    _compare(M.RMSNorm(5), TM.RMSNorm(5, 1e-6), 2, 3, 5)
    _compare(M.RMSNorm((3, 5), 1e-2), TM.RMSNorm((3, 5), 1e-2), 2, 3, 5)
    _compare(M.RMSNorm(5, affine=False), TM.RMSNorm(5, 1e-6, False), 2, 5)
    with pytest.raises(ShapeError, match="expected it to end in"):
        M.RMSNorm(3)(Tensor(_input(2, 4)))
    _compare(M.GroupNorm(2, 6), TM.GroupNorm(2, 6), 2, 6, 3, 4)
    _compare(M.GroupNorm(3, 6, affine=False), TM.GroupNorm(3, 6, affine=False), 2, 6, 4)
    _compare(M.InstanceNorm(3), TM.InstanceNorm2d(3, affine=True), 2, 3, 4, 5)
    _compare(M.GeneralNorm((4, 5), (2, 3)), TM.LayerNorm((4, 5)), 2, 3, 4, 5)
    with pytest.raises(AttrError, match="must divide"):
        M.GroupNorm(4, 6)


def test_local_response_norm() -> None:
    x = _input(2, 7, 3, 3)
    want = TM.LocalResponseNorm(5, 5e-4, 0.75, 2.0)(torch.tensor(x)).numpy()
    got = M.LocalResponseNorm(5, 2.0, 1e-4, 0.75)(Tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)


POOLS: list[tuple[M.Module, Any]] = [
    (M.MaxPool2d(2), TM.MaxPool2d(2)),
    (M.MaxPool2d(3, 2, 1), TM.MaxPool2d(3, 2, 1)),
    (M.AvgPool2d(3, 2, 1), TM.AvgPool2d(3, 2, 1, count_include_pad=False)),
    (M.AvgPool2d(3, 2, 1, mode="average"), TM.AvgPool2d(3, 2, 1)),
    (M.AdaptiveAvgPool2d((3, 2)), TM.AdaptiveAvgPool2d((3, 2))),
    (M.AdaptiveMaxPool2d(2), TM.AdaptiveMaxPool2d(2)),
    (M.PixelShuffle(2), TM.PixelShuffle(2)),
    (M.ReLU(), TM.ReLU()),
    (M.LeakyReLU(0.2), TM.LeakyReLU(0.2)),
    (M.Sigmoid(), TM.Sigmoid()),
    (M.SiLU(), TM.SiLU()),
    (M.GELU(), TM.GELU()),
    (M.ReLU6(), TM.ReLU6()),
    (M.Tanh(), TM.Tanh()),
    (M.Softplus(), TM.Softplus()),
    (M.Hardsigmoid(), TM.Hardsigmoid()),
    (M.Hardswish(), TM.Hardswish()),
    (M.ELU(), TM.ELU()),
    (M.ELU(0.3), TM.ELU(0.3)),
    (M.LogSoftmax(), TM.LogSoftmax(-1)),
    (M.LogSoftmax(1), TM.LogSoftmax(1)),
    (M.Flatten(), TM.Flatten()),
    (M.Flatten(0, 2), TM.Flatten(0, 2)),
    (M.Upsample((9, 11)), TM.Upsample((9, 11))),
    (M.Upsample(scale_factor=2), TM.Upsample(scale_factor=2)),
    (
        M.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
        TM.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
    ),
    (M.Upsample((5, 8), mode="bicubic"), TM.Upsample((5, 8), mode="bicubic")),
    (M.Softmax(), TM.Softmax(1)),
    (M.Softmax(axis=-1), TM.Softmax(-1)),
    (M.Pad(((0, 0), (0, 0), (1, 2), (3, 0)), "replicate"), TM.ReplicationPad2d((3, 0, 1, 2))),
    (
        M.Pad(((0, 0), (0, 0), (1, 2), (3, 0)), constant_val=2.0),
        TM.ConstantPad2d((3, 0, 1, 2), 2.0),
    ),
]


@pytest.mark.parametrize(("mine", "theirs"), POOLS, ids=[repr(pair[0]) for pair in POOLS])
def test_layers_without_parameters(mine: M.Module, theirs: Any) -> None:
    x = _input(2, 4, 7, 6)
    want = theirs(torch.tensor(x)).numpy()
    np.testing.assert_allclose(mine(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)


def test_prelu() -> None:
    _compare(M.PReLU(), TM.PReLU(), 2, 3, 4, 4)
    _compare(M.PReLU(3, 0.1), TM.PReLU(3), 2, 3, 4, 4)


def test_sliding_windows_and_back() -> None:
    x = _input(2, 3, 6, 5)
    windows = M.SlidingWindow(3, 1, 2)(Tensor(x))
    want = TM.Unfold(3, padding=1, stride=2)(torch.tensor(x)).numpy()
    got = windows.numpy().transpose(0, 1, 4, 5, 2, 3).reshape(want.shape)
    np.testing.assert_array_equal(got, want)
    back = M.SlidingWindowTranspose((6, 5), 3, 1, 2)(windows).numpy()
    folded = TM.Fold((6, 5), 3, padding=1, stride=2)(torch.tensor(want)).numpy()
    np.testing.assert_allclose(back, folded, rtol=1e-6)
