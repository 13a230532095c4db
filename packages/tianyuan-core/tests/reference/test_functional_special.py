"""Composed functions against torch or plain loops: volumes, local and deformed kernels, sampling,
sequence loss, inverse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError, TraceError
from tianyuan.jit import trace

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
TF = torch.nn.functional

RNG = np.random.default_rng(17)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def compare(ours, theirs, *arrays, rtol=3e-4, atol=3e-5):
    """Compare a function's value and its gradient with respect to every array with torch's."""
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


TRANSPOSED = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": (2, 1, 3), "padding": (1, 0, 1), "dilation": (1, 2, 1), "groups": 2},
]


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_conv_transpose3d(options):
    groups = options.get("groups", 1)
    compare(
        lambda x, w, b: F.conv_transpose3d(x, w, b.reshape(1, 4, 1, 1, 1), **options),
        lambda x, w, b: TF.conv_transpose3d(x, w, b, **options),
        normal(2, 2, 3, 4, 3), normal(2, 4 // groups, 2, 3, 3), normal(4),
    )  # fmt: skip


def test_local_conv2d():
    def theirs(x, w):
        windows = TF.unfold(x, 3, padding=1, stride=2).reshape(2, 4, 9, 3, 2)
        return torch.einsum("nckyx,yxcko->noyx", windows, w.reshape(3, 2, 4, 9, 5))

    options = {"padding": 1, "stride": 2}
    compare(
        lambda x, w: F.local_conv2d(x, w, **options), theirs,
        normal(2, 4, 5, 4), normal(3, 2, 4, 3, 3, 5),
    )  # fmt: skip


def test_local_conv2d_in_groups():
    x, w = normal(2, 4, 3, 3), normal(2, 2, 2, 2, 2, 2, 3)
    got = F.local_conv2d(Tensor(x), Tensor(w), Tensor(np.float32(1))).numpy()
    halves = [F.local_conv2d(Tensor(x[:, 2 * g : 2 * g + 2]), Tensor(w[g])).numpy() for g in (0, 1)]
    np.testing.assert_allclose(got, np.concatenate(halves, 1) + 1, rtol=1e-5)


def test_deformable_conv2d_without_offsets_is_conv2d():
    x, w, b = normal(2, 4, 5, 6), normal(6, 2, 3, 2), normal(6)
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    want = TF.conv2d(torch.tensor(x), torch.tensor(w), torch.tensor(b), **options).numpy()
    taps, size = 2 * 6, want.shape[2:]
    offset, mask = np.zeros((2, 2 * taps, *size)), np.ones((2, taps, *size))
    got = F.deformable_conv2d(*map(Tensor, (x, w, offset, mask, b)), **options)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def bilinear(image, y, x):
    """Return the interpolated value at (y, x), zero outside."""
    total = 0.0
    for i, j in itertools.product((0, 1), repeat=2):
        row, col = int(np.floor(y)) + i, int(np.floor(x)) + j
        share = (1 - abs(y - row)) * (1 - abs(x - col))
        if 0 <= row < image.shape[0] and 0 <= col < image.shape[1]:
            total += share * float(image[row, col])
    return total


def test_deformable_conv2d_is_its_definition():
    x, w = normal(1, 2, 4, 4), normal(2, 2, 2, 2)
    offset, mask = normal(1, 2 * 2 * 4, 3, 3), RNG.uniform(size=(1, 8, 3, 3)).astype(np.float32)
    want = np.zeros((1, 2, 3, 3))
    for o, c, k, i, j in itertools.product(range(2), range(2), range(4), range(3), range(3)):
        dy, dx = offset[0, 2 * (4 * c + k) : 2 * (4 * c + k) + 2, i, j]
        value = bilinear(x[0, c], i + k // 2 + dy, j + k % 2 + dx)
        want[0, o, i, j] += w[o, c, k // 2, k % 2] * mask[0, 4 * c + k, i, j] * value
    got = F.deformable_conv2d(*map(Tensor, (x, w, offset, mask)))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-4)


def grid_of(points, height, width):
    """Turn pixel coordinates into torch's grid, whose corners are pixel centres."""
    scale = torch.tensor([2.0 / (width - 1), 2.0 / (height - 1)])
    return points * scale - 1


@pytest.mark.parametrize("border", ["replicate", "constant"])
def test_remap(border):
    points = RNG.uniform(-1.5, 6, (2, 4, 3, 2)).astype(np.float32)
    mode = {"replicate": "border", "constant": "zeros"}[border]
    compare(
        lambda x, p: F.nn.remap(x, p, border),
        lambda x, p: TF.grid_sample(x, grid_of(p, 5, 6), "bilinear", mode, align_corners=True),
        normal(2, 3, 5, 6), points,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("border", "mode"),
    [("reflect", "symmetric"), ("reflect_101", "reflect"), ("wrap", "wrap"), ("replicate", "edge")],
)
def test_border_modes_are_numpys_padding(border, mode):
    image = normal(1, 1, 4, 5)
    padded = np.pad(image[0, 0], 3, mode)
    y, x = np.meshgrid(np.arange(-3, 7), np.arange(-3, 8), indexing="ij")
    points = np.stack([x, y], -1)[None].astype(np.float32)
    for interp in ("linear", "nearest"):
        got = F.remap(Tensor(image), Tensor(points), border, interp_mode=interp)
        np.testing.assert_allclose(got.numpy()[0, 0], padded, rtol=1e-6)


def test_warp_affine_and_perspective():
    image = normal(2, 3, 6, 5)
    mats = np.array([[[0.9, 0.1, 0.3], [-0.2, 1.1, 0.5]], [[1, 0, -1], [0, 1, 2]]], np.float32)
    full = np.concatenate([mats, np.tile(np.float32([[[0, 0, 1]]]), (2, 1, 1))], 1)
    bent = full + np.float32([[0, 0, 0], [0, 0, 0], [0.02, 0.01, 0]])
    for mat, ours in (
        (full, F.warp_affine(Tensor(image), Tensor(mats), (4, 7), format="NCHW")),
        (bent, F.warp_perspective(Tensor(image), Tensor(bent), (4, 7))),
    ):
        y, x = np.meshgrid(np.arange(4), np.arange(7), indexing="ij")
        place = np.einsum("nij,jyx->niyx", mat, np.stack([x, y, np.ones_like(x)]))
        points = torch.tensor((place[:, :2] / place[:, 2:]).transpose(0, 2, 3, 1).astype("f4"))
        want = TF.grid_sample(
            torch.tensor(image), grid_of(points, 6, 5), "bilinear", "border", align_corners=True
        )
        np.testing.assert_allclose(ours.numpy(), want, rtol=1e-3, atol=1e-4)
    swapped = F.warp_perspective(Tensor(image), Tensor(bent[::-1].copy()), (4, 7), [1, 0])
    np.testing.assert_allclose(swapped.numpy()[::-1], ours.numpy(), rtol=1e-5)


@pytest.mark.parametrize("mode", ["average", "max"])
def test_roi_align_is_its_definition(mode):
    image = normal(2, 1, 6, 7)
    rois = np.array([[0, 1.0, 0.5, 9.0, 8.0], [1, 2, 2, 4, 3], [0, -3, -2.5, 17, 15]], np.float32)
    for aligned in (True, False):
        want = np.zeros((3, 1, 2, 3))
        for r, i, j in itertools.product(range(3), range(2), range(3)):
            corner = rois[r, 1:] * 0.5 - (0.5 if aligned else 0)
            size = corner[2:] - corner[:2]
            size = size if aligned else np.maximum(size, 1)
            samples = []
            for a, b in itertools.product((0.25, 0.75), repeat=2):
                y = corner[1] + (i + a) * size[1] / 2
                x = corner[0] + (j + b) * size[0] / 3
                inside = -1 <= y <= 6 and -1 <= x <= 7
                y, x = np.clip(y, 0, 5), np.clip(x, 0, 6)
                samples.append(bilinear(image[int(rois[r, 0]), 0], y, x) if inside else 0)
            want[r, 0, i, j] = np.mean(samples) if mode == "average" else np.max(samples)
        got = F.vision.roi_align(
            Tensor(image), Tensor(rois), (2, 3), mode, spatial_scale=0.5, aligned=aligned
        )
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_resize():
    x = normal(1, 2, 4, 6)
    want = TF.interpolate(torch.tensor(x), (8, 12), mode="bilinear").numpy()
    np.testing.assert_allclose(F.nn.resize(Tensor(x), (8, 12)).numpy(), want, rtol=1e-4, atol=1e-5)
    by_side = F.nn.resize(Tensor(x.transpose(0, 2, 3, 1)), 8, format="NHWC")
    np.testing.assert_allclose(by_side.numpy(), want.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)
    assert F.nn.resize(Tensor(x), 8, max_size=9).shape == (1, 2, 6, 9)


def test_nms():
    boxes = [[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 10, 4], [21, 20, 30, 31]]
    scores = [0.8, 0.9, 0.3, 0.7, 0.4]
    got = F.vision.nms(Tensor(boxes), Tensor(scores), 0.5)
    assert got.tolist() == [1, 3, 4]
    assert F.vision.nms(Tensor(boxes), Tensor(scores), 0.5, 2).tolist() == [1, 3]
    with pytest.raises(TraceError, match="^nms: the size of the result depends on data"):
        trace(lambda b, s: F.vision.nms(b, s, 0.5))(Tensor(boxes), Tensor(scores))


def test_nms_keeps_what_overlaps_just_as_much_as_is_allowed():
    boxes = Tensor([[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 2, 4]])
    assert F.vision.nms(boxes, Tensor([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 1, 2]
    assert F.vision.nms(boxes, Tensor([0.9, 0.8, 0.7]), 0.499).tolist() == [0]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(flat, reduction):
    logits = normal(6, 3, 5)
    label = np.array([[1, 1, 2], [3, 0, 0], [4, 2, 0]])
    sizes, steps = np.array([3, 1, 2]), np.array([6, 4, 5])
    given = np.concatenate([row[:n] for row, n in zip(label, sizes, strict=True)])
    compare(
        lambda x: F.nn.ctc_loss(
            F.softmax(x, 2), Tensor(steps), Tensor(given if flat else label), Tensor(sizes),
            reduction=reduction,
        ),
        lambda x: TF.ctc_loss(
            torch.log_softmax(x, 2), torch.tensor(label), torch.tensor(steps),
            torch.tensor(sizes), reduction=reduction,
        ),
        logits,
    )  # fmt: skip


def test_ctc_loss_known_answer():
    """All alignments of a label of one class over two steps, added by hand."""
    pred = np.array([[[0.0614, 0.9386], [0.8812, 0.1188]], [[0.699, 0.301], [0.2572, 0.7428]]])
    chances = [1 - np.prod(pred[:, i, 0]) for i in range(2)]
    got = F.nn.ctc_loss(Tensor(pred), Tensor([2, 2]), Tensor([1, 1]), Tensor([1, 1]))
    assert got.item() == pytest.approx(-np.log(chances).mean(), rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4), (2, 1, 3, 3)], ids=str)
def test_matinv(shape):
    x = normal(*shape) + np.eye(shape[-1], dtype=np.float32)[::-1] * 3
    compare(F.matinv, torch.linalg.inv, x, rtol=2e-3, atol=1e-4)


def test_matinv_pivots():
    x = np.array([[0, 1], [1, 0]], np.float32)
    np.testing.assert_array_equal(F.math.matinv(Tensor(x)).numpy(), x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.matinv(Tensor(normal(2, 3))), ShapeError, "^matinv: matrices must be square"),
        (lambda: F.remap(Tensor(normal(1, 1, 2, 2)), Tensor(normal(1, 2, 2, 3))), ShapeError,
         "^remap: map_xy does not fit"),
        (lambda: F.remap(Tensor(normal(1, 1, 2, 2)), Tensor(normal(1, 2, 2, 2)), "none"),
         AttrError, "^remap: border_mode is unknown"),
        (lambda: F.warp_affine(Tensor(normal(1, 2, 2, 1)), Tensor(normal(1, 3, 3)), 2),
         ShapeError, "^warp_affine: mat does not fit"),
        (lambda: F.nn.ctc_loss(Tensor(normal(2, 1, 3)), Tensor([2]), Tensor([[1]]), Tensor([1]), 3),
         AttrError, "^ctc_loss: blank is no class"),
        (lambda: F.nn.nms(Tensor(normal(2, 3)), Tensor(normal(2)), 0.5), ShapeError, "^nms: "),
        (lambda: F.local_conv2d(Tensor(normal(1, 2, 4, 4)), Tensor(normal(3, 3, 1, 2, 2, 1))),
         ShapeError, "^local_conv2d: weight does not fit"),
    ],
)  # fmt: skip
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("mode", ["max", "average"])
def test_roi_pooling_is_its_definition(mode):
    image = normal(2, 2, 6, 7)
    rois = np.array([[0, 1.2, 0.4, 9.0, 8.0], [1, 2, 2, 4, 3], [1, 11, 11, 13, 13]], np.float32)
    want = np.zeros((3, 2, 2, 3))
    for r, i, j in itertools.product(range(3), range(2), range(3)):
        x1, y1, x2, y2 = np.floor(rois[r, 1:] * 0.5 + 0.5)
        high, wide = (y2 - y1 + 1) / 2, (x2 - x1 + 1) / 3
        rows = np.arange(max(np.floor(i * high) + y1, 0), min(np.ceil((i + 1) * high) + y1, 6))
        cols = np.arange(max(np.floor(j * wide) + x1, 0), min(np.ceil((j + 1) * wide) + x1, 7))
        if len(rows) and len(cols):
            part = image[int(rois[r, 0])][:, rows.astype(int)][:, :, cols.astype(int)]
            want[r, :, i, j] = part.max((1, 2)) if mode == "max" else part.mean((1, 2))
    got = F.vision.roi_pooling(Tensor(image), Tensor(rois), (2, 3), mode, 0.5)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
