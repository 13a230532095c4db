"""Image functions against plain loops: colours, turns, correlation, deformed regions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, KernelError, ShapeError

RNG = np.random.default_rng(23)
V = F.vision


def slope(function, arrays, which, step=1e-5):
    """Return the gradient of sum(function * weights) by central differences, in float64."""
    weights = RNG.normal(size=function(*map(f64, arrays)).shape)
    found = np.zeros(arrays[which].shape)
    for place in np.ndindex(*found.shape):
        ends = []
        for sign in (1, -1):
            moved = [np.array(a, np.float64) for a in arrays]
            moved[which][place] += sign * step
            ends.append(float(np.sum(function(*map(f64, moved)).numpy() * weights)))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return weights, found


def f64(array):
    return Tensor(array, "float64")


def check_slope(function, *arrays, rtol=1e-5, atol=1e-6):
    for which in range(len(arrays)):
        weights, want = slope(function, arrays, which)
        tensors = [f64(a) for a in arrays]
        with GradManager() as gm:
            gm.attach(tensors)
            gm.backward(F.sum(function(*tensors) * f64(weights)))
        np.testing.assert_allclose(tensors[which].grad.numpy(), want, rtol=rtol, atol=atol)


# colours


def clamp(value):
    return min(max(value, 0), 255)


def rounded(value, bits=14):
    return (value + (1 << (bits - 1))) >> bits


def gray(r, g, b):
    return [rounded(4899 * r + 9617 * g + 1868 * b)]


def to_yuv(b, g, r):
    y = gray(r, g, b)[0]
    return [y, rounded((b - y) * 8061) + 128, rounded((r - y) * 14369) + 128]


def from_yuv(y, u, v):
    u, v = u - 128, v - 128
    return [
        y + rounded(33292 * u), y + rounded(-6472 * u - 9519 * v), y + rounded(18678 * v)
    ]  # fmt: skip


PIXEL = {
    "RGB2GRAY": gray,
    "BGR2GRAY": lambda b, g, r: gray(r, g, b),
    "RGBA2GRAY": lambda r, g, b, a: gray(r, g, b),
    "RGBA2RGB": lambda r, g, b, a: [r, g, b],
    "RGBA2BGR": lambda r, g, b, a: [b, g, r],
    "RGB2BGR": lambda r, g, b: [b, g, r],
    "BGR2RGB": lambda b, g, r: [r, g, b],
    "GRAY2RGB": lambda y: [y, y, y],
    "RGB2YUV": to_yuv,
    "YUV2RGB": from_yuv,
}
COUNTS = {"GRAY": 1, "RGBA": 4}


@pytest.mark.parametrize("mode", sorted(PIXEL))
def test_cvt_color_by_pixel(mode):
    count = COUNTS.get(mode.split("2")[0], 3)
    image = RNG.integers(0, 256, (2, 9, 7, count)).astype(np.uint8)
    got = V.cvt_color(Tensor(image), mode)
    assert got.dtype == np.uint8
    for place in np.ndindex(2, 9, 7):
        want = [clamp(v) for v in PIXEL[mode](*(int(v) for v in image[place]))]
        assert got.numpy()[place].tolist() == want, (mode, image[place])


def full_range(y, u, v):
    return [y + (359 * v >> 8), y - (88 * u + 183 * v >> 8), y + (454 * u >> 8)]


def video_range(y, u, v):
    y = (y * 257 * 18997 >> 16) - 1160
    return [y + 102 * v >> 6, y - 25 * u - 52 * v >> 6, y + 128 * u >> 6]


def planes(data, layout):
    """Return the planes of Y, U and V of the bytes of one image."""
    rows = data.shape[0] // 3 * 2
    low = data[rows:]
    if layout.startswith("NV"):
        first, second = low[:, 0::2], low[:, 1::2]
    else:
        first, second = low.reshape(2, rows // 2, -1)
    return (data[:rows], first, second) if layout in ("NV12", "YU12") else (
        data[:rows], second, first
    )  # fmt: skip


LAYOUTS = ("NV12", "NV21", "YV12", "YU12")
SUBSAMPLED = [
    *(f"YUV2{t}_{lay}" for t in ("RGB", "BGR", "GRAY") for lay in LAYOUTS),
    *(f"BT601_YUV2{t}_{lay}" for t in ("RGB", "BGR") for lay in LAYOUTS),
    "YCrCb2RGB",
    "YCrCb2BGR",
]


@pytest.mark.parametrize("mode", SUBSAMPLED)
def test_cvt_color_of_planes(mode):
    data = RNG.integers(0, 256, (2, 12, 10, 1)).astype(np.uint8)
    got = V.cvt_color(Tensor(data), mode).numpy()
    layout = mode[-4:] if mode[-4:] in LAYOUTS else "NV21"
    formula = video_range if mode.startswith("BT601") else full_range
    for n in range(2):
        y, u, v = (plane.astype(int) for plane in planes(data[n, :, :, 0], layout))
        for i, j in np.ndindex(8, 10):
            want = formula(y[i, j], u[i // 2, j // 2] - 128, v[i // 2, j // 2] - 128)
            want = [int(y[i, j])] if "GRAY" in mode else [clamp(int(c)) for c in want]
            want = want[::-1] if "2BGR" in mode else want
            assert got[n, i, j].tolist() == want


FLOATS = {
    "RGB2GRAY": [[0.299, 0.587, 0.114, 0]],
    "BGR2GRAY": [[0.114, 0.587, 0.299, 0]],
    "GRAY2RGB": [[1, 0], [1, 0], [1, 0]],
    "YUV2RGB": [[1, 2.032, 0, -1.016], [1, -0.395, -0.581, 0.488], [1, 0, 1.14, -0.57]],
    "RGB2YUV": [
        [0.114, 0.587, 0.299, 0],
        [0.886 * 0.492, -0.587 * 0.492, -0.299 * 0.492, 0.5],
        [-0.114 * 0.877, -0.587 * 0.877, 0.701 * 0.877, 0.5],
    ],
}


@pytest.mark.parametrize("mode", sorted(FLOATS))
def test_cvt_color_in_floats(mode):
    matrix = np.array(FLOATS[mode])
    image = RNG.random((2, 3, 4, matrix.shape[1] - 1)).astype(np.float32)
    want = image.astype(np.float64) @ matrix[:, :-1].T + matrix[:, -1]
    np.testing.assert_allclose(V.cvt_color(Tensor(image), mode).numpy(), want, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "mode", "error", "match"),
    [
        ((1, 2, 2, 3), "uint8", "RGB2HSV", AttrError, "mode is unknown"),
        ((1, 2, 2, 4), "float32", "RGBA2RGB", DTypeError, "takes uint8 only"),
        ((1, 2, 2, 3), "int32", "RGB2GRAY", DTypeError, "got int32"),
        ((1, 2, 2, 4), "uint8", "RGB2GRAY", ShapeError, r"expected \(N, H, W, 3\)"),
        ((1, 4, 2, 1), "uint8", "YUV2RGB_NV12", ShapeError, "multiple of 3"),
    ],
)
def test_cvt_color_refuses(shape, dtype, mode, error, match):
    with pytest.raises(error, match=f"^cvt_color: .*{match}"):
        V.cvt_color(Tensor(np.zeros(shape), dtype), mode)


# turns


def test_flip_and_rot90():
    image = RNG.normal(size=(2, 3, 4, 3)).astype(np.float32)
    for vertical, horizontal in itertools.product((False, True), repeat=2):
        axes = [axis for axis, on in ((1, vertical), (2, horizontal)) if on]
        got = V.flip(Tensor(image), vertical, horizontal).numpy()
        np.testing.assert_array_equal(got, np.flip(image, axes))
    for clockwise in (False, True):
        want = np.rot90(image, -1 if clockwise else 1, (1, 2))
        np.testing.assert_array_equal(V.rot90(Tensor(image), clockwise).numpy(), want)
    with pytest.raises(ShapeError, match="^flip: .*wrong rank"):
        V.flip(Tensor(image[0]))


def test_rotate_by_quarters_is_exact():
    image = RNG.normal(size=(1, 2, 5, 5)).astype(np.float32)
    for quarter in range(-1, 4):
        for mode in ("bilinear", "nearest"):
            got = V.rotate(Tensor(image), 90.0 * quarter, interp_mode=mode).numpy()
            np.testing.assert_allclose(got, np.rot90(image, quarter, (2, 3)), atol=1e-5)


def test_rotate_reads_between_pixels():
    image = RNG.normal(size=(6, 7)).astype(np.float32)
    angle = 33.0
    turn = math.radians(angle)
    padded = np.pad(image, 2)
    want = np.zeros(image.shape)
    for i, j in np.ndindex(*image.shape):
        y, x = i - 2.5, j - 3.0
        sy = math.sin(turn) * x + math.cos(turn) * y + 2.5
        sx = math.cos(turn) * x - math.sin(turn) * y + 3.0
        if not (-1 < sy < 6 and -1 < sx < 7):
            continue
        top, left = math.floor(sy), math.floor(sx)
        for di, dj in itertools.product((0, 1), repeat=2):
            share = (1 - abs(sy - top - di)) * (1 - abs(sx - left - dj))
            want[i, j] += share * padded[top + di + 2, left + dj + 2]
    got = V.rotate(Tensor(image[None, None]), angle).numpy()[0, 0]
    np.testing.assert_allclose(got, want, atol=1e-5)
    last = V.rotate(Tensor(image[None, :, :, None]), angle, format="NHWC").numpy()[0, :, :, 0]
    np.testing.assert_array_equal(last, got)


# correlation


def correlated(a, b, k, reach, s1, s2, pad, multiply):
    a, b = (np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) for x in (a, b))
    border, r = reach + k // 2, reach // s2
    oh, ow = (math.ceil((n - 2 * border) / s1) for n in a.shape[2:])
    out = np.zeros((len(a), (2 * r + 1) ** 2, oh, ow))
    for y, x in np.ndindex(oh, ow):
        top, left = y * s1 + reach, x * s1 + reach
        patch = a[:, :, top : top + k, left : left + k]
        for number, (i, j) in enumerate(itertools.product(range(-r, r + 1), repeat=2)):
            row, column = top + i * s2, left + j * s2
            other = b[:, :, row : row + k, column : column + k]
            alike = patch * other if multiply else np.abs(patch - other)
            out[:, number, y, x] = alike.mean((1, 2, 3))
    return out


@pytest.mark.parametrize(
    "options",
    [(1, 1, 1, 1, 0, True), (3, 2, 1, 1, 3, True), (1, 2, 2, 2, 2, False), (3, 3, 2, 2, 4, True)],
    ids=str,
)
def test_correlation(options):
    a, b = RNG.normal(size=(2, 2, 3, 6, 7))
    got = V.correlation(f64(a), f64(b), *options).numpy()
    np.testing.assert_allclose(got, correlated(a, b, *options), atol=1e-12)


def test_correlation_gradient():
    a, b = RNG.normal(size=(2, 1, 2, 3, 3))
    check_slope(lambda x, y: V.correlation(x, y, pad_size=1), a, b)


def test_correlation_refuses():
    x = Tensor(np.zeros((1, 1, 4, 4), np.float32))
    for options, match in (((2,), "kernel_size"), ((1, -1), "max_displacement"), ((1, 1, 0), "st")):
        with pytest.raises(AttrError, match=f"^correlation: {match}"):
            V.correlation(x, x, *options)
    with pytest.raises(ShapeError, match="^correlation: nothing is left"):
        V.correlation(x, x, 1, 2)
    with pytest.raises(ShapeError, match="^correlation: shapes must agree"):
        V.correlation(x, x[:, :, :3])


# regions


def between(image, y, x):
    """Read (C, H, W) at a point inside of it."""
    top, left = math.floor(y), math.floor(x)
    total = np.zeros(len(image))
    for i, j in itertools.product((0, 1), repeat=2):
        share = (1 - abs(y - top - i)) * (1 - abs(x - left - j))
        if share > 0:
            total += share * image[:, top + i, left + j]
    return total


def pooled_parts(x, rois, trans, no_trans, part, ph, pw, samples, scale, std):
    height, width = x.shape[2:]
    out = np.zeros((len(rois), x.shape[1], ph, pw))
    for r, (n, *box) in enumerate(rois):
        x1, y1, x2, y2 = (math.floor(v + 0.5) for v in box)
        left, top = x1 * scale - 0.5, y1 * scale - 0.5
        w = max((x2 + 1) * scale - 0.5 - left, 0.1)
        h = max((y2 + 1) * scale - 0.5 - top, 0.1)
        for i, j in np.ndindex(ph, pw):
            dx, dy = (0, 0) if no_trans else trans[r, :, i * part // ph, j * part // pw] * std
            found = []
            for a, b in np.ndindex(samples, samples):
                px = left + (j / pw + dx) * w + b * w / pw / samples
                py = top + (i / ph + dy) * h + a * h / ph / samples
                if -0.5 <= px <= width - 0.5 and -0.5 <= py <= height - 0.5:
                    inside = min(max(py, 0), height - 1), min(max(px, 0), width - 1)
                    found.append(between(x[int(n)], *inside))
            if found:
                out[r, :, i, j] = np.mean(found, 0)
    return out


ROIS = np.array([[0, 1, 1, 6, 7], [1, 0, 2, 9, 8], [0, 2.3, 1.2, 5.1, 6.9]], np.float32)


@pytest.mark.parametrize(
    "options",
    [
        (True, 2, 2, 2, 2, 1.0, 0.1),
        (False, 2, 2, 2, 3, 0.5, 0.1),
        (False, 2, 3, 3, 2, 1.0, 0.2),
        (True, 3, 3, 2, 2, 1.0, 0.1),
    ],
    ids=str,
)
def test_deformable_psroi_pooling(options):
    x = RNG.normal(size=(2, 4, 9, 10)).astype(np.float32)
    trans = RNG.normal(size=(3, 2, options[2], options[3])).astype(np.float32)
    got = F.deformable_psroi_pooling(Tensor(x), Tensor(ROIS), Tensor(trans), *options).numpy()
    np.testing.assert_allclose(got, pooled_parts(x, ROIS, trans, *options), atol=2e-5)


def test_deformable_psroi_pooling_gradient():
    x = RNG.normal(size=(1, 1, 4, 4))
    trans = RNG.uniform(0.1, 0.4, (1, 2, 2, 2))
    rois = f64([[0, 0.0, 0.0, 3.0, 3.0]])
    check_slope(
        lambda a, t: F.deformable_psroi_pooling(a, rois, t, False, 2, 2, 2, 2, 1.0, 0.3), x, trans,
        rtol=1e-3, atol=1e-4,
    )  # fmt: skip


def roi_calls(rois):
    x = Tensor(np.ones((2, 1, 4, 4), np.float32))
    boxes = Tensor(np.array(rois, np.float32).reshape(-1, 5))
    return {
        "roi_align": lambda: V.roi_align(x, boxes, 2),
        "roi_pooling": lambda: V.roi_pooling(x, boxes, 2),
        "deformable_psroi_pooling": lambda: F.deformable_psroi_pooling(
            x, boxes, None, True, 2, 2, 2, 2, 1.0
        ),
    }


@pytest.mark.parametrize("name", sorted(roi_calls([])))
def test_regions_are_checked(name):
    with pytest.raises(KernelError, match=f"^{name}: region 1 is not finite"):
        roi_calls([[0, 0, 0, 2, 2], [0, 0, np.nan, 2, 2]])[name]()
    for number in (-1, 2):
        with pytest.raises(KernelError, match=f"^{name}: a region's image is out of range"):
            roi_calls([[number, 0, 0, 2, 2]])[name]()
    assert roi_calls([])[name]().shape == (0, 1, 2, 2)


def test_an_aligned_region_does_not_end_before_it_starts():
    with pytest.raises(KernelError, match="^roi_align: region 0 is empty"):
        roi_calls([[0, 3, 0, 2, 2]])["roi_align"]()
    x = Tensor(np.ones((1, 1, 4, 4), np.float32))
    flat = Tensor(np.array([[0, 1, 1, 1, 1]], np.float32))
    np.testing.assert_array_equal(V.roi_align(x, flat, 2).numpy(), np.ones((1, 1, 2, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_places_of_samples_are_checked(value):
    x = Tensor(np.ones((1, 2, 4, 4), np.float32))
    bad = np.zeros((1, 18, 2, 2), np.float32)
    bad[0, 3, 1, 0] = value
    calls = {
        "deformable_conv2d: offset": lambda: F.deformable_conv2d(
            x, x[:, :, :3, :3], Tensor(bad), Tensor(np.ones((1, 9, 2, 2), np.float32))
        ),
        "deformable_psroi_pooling: trans": lambda: F.deformable_psroi_pooling(
            x, Tensor([[0.0, 0.0, 0.0, 2.0, 2.0]]), Tensor(bad[:, 2:4]), False, 2, 2, 2, 2, 1.0
        ),
        "remap: map_xy": lambda: V.remap(x, Tensor(np.full((1, 3, 3, 2), value, np.float32))),
        "warp_affine: mat": lambda: V.warp_affine(
            x, Tensor(np.full((1, 2, 3), value, np.float32)), (2, 2), format="NCHW"
        ),
    }
    for start, call in calls.items():
        with pytest.raises(KernelError, match=f"^{start} must be finite, got {value}"):
            call()


def test_images_may_be_none():
    x = Tensor(np.zeros((0, 3, 4, 5), np.float32))
    assert V.rotate(x, 30.0).shape == V.resize(x, (4, 5)).shape == (0, 3, 4, 5)
    assert V.correlation(x, x).shape == (0, 9, 2, 3)
    assert V.cvt_color(Tensor(np.zeros((0, 6, 4, 1), np.uint8)), "YUV2RGB_NV12").shape == (
        0, 4, 4, 3,
    )  # fmt: skip


def test_a_map_rounds_halves_to_even_and_a_warp_upwards():
    x = np.arange(6, dtype=np.float32)[None, None, None].repeat(2, 2)
    halves = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
    points = Tensor(np.stack([halves, np.ones(4, np.float32)], -1)[None, None])
    assert V.remap(Tensor(x), points, interp_mode="nearest").tolist() == [[[[0, 2, 2, 4]]]]
    half = Tensor(np.array([[[1, 0, 0.5], [0, 1, 0]]], np.float32))
    got = V.warp_affine(Tensor(x), half, (1, 4), format="NCHW", interp_mode="nearest")
    assert got.tolist() == [[[[1, 2, 3, 4]]]]


@pytest.mark.parametrize("corners", [None, True])
@pytest.mark.parametrize("size", [(3, 9, 8), (2, 3, 2)])
def test_interpolate_volumes(corners, size):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = RNG.normal(size=(2, 2, 2, 5, 4))
    peer = torch.tensor(x, requires_grad=True)
    want = torch.nn.functional.interpolate(peer, size, mode="trilinear", align_corners=corners)
    weights = RNG.normal(size=want.shape)
    (want * torch.tensor(weights)).sum().backward()
    tensor = f64(x)
    with GradManager() as gm:
        gm.attach([tensor])
        got = V.interpolate(tensor, size, mode="trilinear", align_corners=corners)
        gm.backward(got, f64(weights))
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(tensor.grad.numpy(), peer.grad.numpy(), rtol=1e-10, atol=1e-12)
    doubled = V.interpolate(tensor, scale_factor=2, mode="trilinear")
    assert doubled.shape == (2, 2, 4, 10, 8)
    with pytest.raises(ShapeError, match="^interpolate: .*expected 5 dimensions"):
        V.interpolate(tensor[0], size, mode="trilinear")


def of_bytes(*values):
    return Tensor(np.array(values, np.uint8)[None, None, None])


def test_bytes_stay_bytes_and_halves_go_upwards():
    assert V.interpolate(of_bytes(1, 3), (1, 4)).tolist() == [[[[1, 2, 3, 3]]]]
    assert V.resize(of_bytes(1, 3), (1, 4)).dtype == np.uint8
    assert V.interpolate(of_bytes(7, 9), (1, 4), mode="nearest").tolist() == [[[[7, 7, 9, 9]]]]
    # 0.49 is 16/32 of a pixel, 0.484 is 15/32.
    points = Tensor(np.array([[[[0.49, 0], [0.484, 0], [-5, 0], [9, 0]]]], np.float32))
    assert V.remap(of_bytes(0, 255), points).tolist() == [[[[128, 120, 0, 255]]]]
    outside = V.remap(of_bytes(0, 255), points, "constant", 9.6)
    assert outside.tolist() == [[[[128, 120, 10, 10]]]]
    turned = V.rotate(of_bytes(1, 2, 3), 180)
    assert turned.dtype == np.uint8
    assert turned.tolist() == [[[[3, 2, 1]]]]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(9, 11), (3, 4), (5, 7)])
def test_resampled_bytes_are_the_rounded_floats(mode, size):
    image = RNG.integers(0, 256, (2, 3, 5, 7)).astype(np.uint8)
    exact = V.interpolate(f64(image), size, mode=mode).numpy()
    got = V.interpolate(Tensor(image), size, mode=mode).numpy()
    assert got.dtype == np.uint8
    # Each of up to 16 weights is rounded to 2**-11.
    assert np.abs(got - np.clip(exact, 0, 255)).max() <= 0.5 + 16 * 255 / 2**12
    flat = V.interpolate(Tensor(np.full((1, 1, 5, 7), 200, np.uint8)), size, mode=mode)
    assert np.all(flat.numpy() == 200)
    black_and_white = (image > 127).astype(np.uint8) * np.uint8(255)
    wide = V.interpolate(Tensor(black_and_white), (10, 14), mode=mode).numpy()
    want = np.clip(V.interpolate(f64(black_and_white), (10, 14), mode=mode).numpy(), 0, 255)
    assert np.abs(wide - want).max() <= 0.5 + 16 * 255 / 2**12  # no overflow at the extremes


def test_warped_bytes_are_close_to_warped_floats():
    image = RNG.integers(0, 256, (1, 3, 9, 8)).astype(np.uint8)
    matrix = Tensor(np.array([[[0.9, 0.1, 0.3], [-0.1, 1.1, 0.2]]], np.float32))
    for border in ("replicate", "reflect", "reflect_101", "wrap", "constant"):
        arguments = (matrix, (7, 7), border, 30.0, "NCHW")
        exact = V.warp_affine(f64(image), *arguments).numpy()
        got = V.warp_affine(Tensor(image), *arguments).numpy()
        # A coordinate may be off by 1/64 along each axis, between pixels that differ by 255.
        assert got.dtype == np.uint8
        assert np.abs(got - exact).max() <= 0.5 + 2 * 255 / 64


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_max_pooling_keeps_integers(dtype):
    x = np.arange(-8 if dtype != "uint8" else 0, 8 if dtype != "uint8" else 16).reshape(1, 1, 4, 4)
    x = x.astype(dtype) + np.array(2**30 if dtype in ("int32", "int64") else 0, dtype)
    want = x.reshape(1, 1, 2, 2, 2, 2).max((3, 5))
    for found in (F.max_pool2d(Tensor(x, dtype), 2), F.adaptive_max_pool2d(Tensor(x, dtype), 2)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(), want)
