"""Augmentations move, filter and mix pixels as their formulas say, and draw what they should."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor, random
from tianyuan.errors import AttrError, DTypeError, ShapeError
from tianyuan.jit import trace

ndimage = pytest.importorskip("scipy.ndimage")
stats = pytest.importorskip("scipy.stats")


def _image(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(0, 255, shape).astype(np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8)


NOISES: list[tuple[Any, Any]] = [
    (lambda **k: M.AdditiveGaussianNoise(3.0, 2.0, **k), stats.norm(3.0, 2.0)),
    (lambda **k: M.AdditiveLaplaceNoise(3.0, 2.0, **k), stats.laplace(3.0, 2.0 / np.sqrt(2))),
    (lambda **k: M.AdditivePoissonNoise(4.0, **k), stats.poisson(4.0)),
]


@pytest.mark.parametrize(("make", "law"), NOISES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_noise_follows_its_law(make: Any, law: Any, per_channel: bool) -> None:
    layer = make(per_channel=per_channel, seed=7)
    x = _image(2, 3, 60, 60)
    noise = layer(Tensor(x)).numpy().astype(np.float64) - x
    apart = not np.allclose(noise[:, 0], noise[:, 1], atol=1e-3)
    assert apart == per_channel
    drawn = (noise if per_channel else noise[:, :1]).ravel()
    assert abs(drawn.mean() - law.mean()) < 5 * law.std() / np.sqrt(drawn.size)
    assert abs(drawn.std() / law.std() - 1) < 0.05
    for quantile in (0.1, 0.5, 0.9):
        place = law.ppf(quantile)
        share = float((drawn <= place + 1e-3).mean())
        assert abs(share - law.cdf(place)) < 5 * 0.5 / np.sqrt(drawn.size) + 1e-3
    again = make(per_channel=per_channel, seed=7)(Tensor(x)).numpy()
    np.testing.assert_array_equal(again, make(per_channel=per_channel, seed=7)(Tensor(x)).numpy())
    other = make(per_channel=per_channel, seed=8)(Tensor(x)).numpy()
    assert not np.array_equal(again, other)


def test_noise_of_ones_own_is_added_to_every_pixel() -> None:
    class Columns(M.AdditiveElemwise):
        def sample(self, size: tuple[int, ...]) -> Tensor:
            return F.broadcast_to(F.arange(size[3]), size)

    x = _image(2, 3, 4, 5)
    want = x + np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(Columns()(Tensor(x)).numpy(), want, rtol=1e-6)
    seen: list[int] = []
    for per_channel in (False, True):
        layer = Columns(per_channel=per_channel)
        layer.sample = lambda size: seen.append(size[1]) or F.zeros(size)
        layer(Tensor(x))
    assert seen == [1, 3]


def test_noise_without_a_seed_follows_the_default_generator() -> None:
    layer = M.AdditiveGaussianNoise()
    x = Tensor(_image(1, 1, 4, 4))
    random.seed(3)
    first = layer(x).numpy()
    random.seed(3)
    np.testing.assert_array_equal(layer(x).numpy(), first)
    assert not np.array_equal(layer(x).numpy(), first)


def test_integers_are_rounded_and_bounded() -> None:
    x = Tensor(np.array([[[[0, 100, 255]]]], np.uint8))
    for shift, want in ((30.4, [30, 130, 255]), (-30.6, [0, 69, 224])):
        got = M.AdditiveGaussianNoise(shift, 0.0)(x)
        assert got.dtype == np.uint8
        np.testing.assert_array_equal(got.numpy().ravel(), want)
    got = M.LinearContrast(2.0)(x).numpy()
    np.testing.assert_array_equal(got.ravel(), [0, 73, 255])


def test_a_module_with_a_generator_can_be_copied() -> None:
    layer = M.AdditiveGaussianNoise(seed=3)
    x = Tensor(_image(1, 1, 4, 4))
    layer(x)
    twin = copy.deepcopy(layer)
    np.testing.assert_array_equal(layer(x).numpy(), twin(x).numpy())


def test_traced_noise_differs_from_run_to_run() -> None:
    eager, traced = M.AdditiveGaussianNoise(seed=3), M.AdditiveGaussianNoise(seed=3)
    run = trace(lambda x: traced(x))
    x = Tensor(_image(1, 2, 3, 3))
    for _ in range(4):
        np.testing.assert_allclose(run(x).numpy(), eager(x).numpy(), rtol=1e-6)


def _filtered(x: np.ndarray, kernel: np.ndarray, mode: str = "mirror") -> np.ndarray:
    """Correlate as scipy does; its mirror is the border that is not repeated."""
    planes = [ndimage.correlate(plane, kernel, mode=mode) for plane in x.reshape(-1, *x.shape[2:])]
    return np.stack(planes).reshape(x.shape)


def test_emboss_and_sharpen() -> None:
    x = _image(2, 3, 6, 7).astype(np.float64)
    identity = np.zeros((3, 3))
    identity[1, 1] = 1
    s, a, light = 0.7, 0.3, 1.4
    effect = np.array([[-1 - s, -s, 0], [-s, 1, s], [0, s, 1 + s]])
    got = M.Emboss(a, s)(Tensor(x, dtype="float32")).numpy()
    want = _filtered(x, (1 - a) * identity + a * effect)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)
    effect = np.array([[-1, -1, -1], [-1, 8 + light, -1], [-1, -1, -1]])
    got = M.Sharpen(a, light)(Tensor(x, dtype="float32")).numpy()
    want = _filtered(x, (1 - a) * identity + a * effect)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_a_blur_of_ones_own_filters_each_image_by_its_kernel() -> None:
    kernels = np.random.default_rng(0).uniform(-1, 1, (2, 3, 5)).astype(np.float32)

    class Fixed(M.ActiveBlur):
        def kernels(self, count: int) -> Tensor:
            assert count == 2
            return Tensor(kernels)

    x = _image(2, 3, 6, 7)
    want = [
        [ndimage.correlate(plane, kernel, mode="mirror") for plane in image]
        for image, kernel in zip(x, kernels, strict=True)
    ]
    np.testing.assert_allclose(Fixed()(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-3)


def test_ranges_are_drawn_for_each_image() -> None:
    x = np.repeat(_image(1, 2, 5, 5), 3, axis=0)
    y = M.Sharpen((0.1, 0.9), 1.0, seed=2)(Tensor(x)).numpy()
    assert not np.allclose(y[0], y[1])
    # Images are in between the ends of the range, and linear in it.
    low, high = (M.Sharpen(a, 1.0)(Tensor(x)).numpy() for a in (0.1, 0.9))
    for image, start, end in zip(y, low, high, strict=True):
        share = (image - start).sum() / (end - start).sum()
        assert 0 <= share <= 1
        np.testing.assert_allclose(image, start + share * (end - start), rtol=1e-3, atol=0.2)
    flat = np.full((2, 3, 1, 1), 227.0, np.float32)
    factors = (M.LinearContrast((0.5, 2.0), True, 4)(Tensor(flat)).numpy() - 127) / 100
    assert len(np.unique(factors)) == 6
    assert ((factors >= 0.5) & (factors <= 2.0)).all()
    factors = M.LinearContrast((0.5, 2.0), seed=4)(Tensor(flat)).numpy()
    assert (factors == factors[:, :1]).all()
    for make, match in (
        (lambda: M.Emboss((1.0, 0.5), 1.0), "alpha is a range that descends"),
        (lambda: M.Sharpen(0.5, "x"), "lightness must be a number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(AttrError, match=match):
            make()


def _gauss(size: int, sigma: float) -> np.ndarray:
    sigma = sigma or 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    window = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * sigma**2))
    return window / window.sum()


@pytest.mark.parametrize(
    ("border", "mode"),
    [
        ("REPLICATE", "nearest"), ("REFLECT", "reflect"), ("REFLECT_101", "mirror"),
        ("WRAP", "wrap"), ("CONSTANT", "constant"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sigmas", [(0, 0), (1.2, 0), (0.7, 1.5)])
def test_gaussian_blur(border: str, mode: str, sigmas: tuple[float, float]) -> None:
    x = _image(2, 3, 8, 9)
    columns, rows = _gauss(5, sigmas[0]), _gauss(3, sigmas[1] or sigmas[0])
    want = _filtered(x.astype(np.float64), np.outer(rows, columns), mode)
    layer = M.GaussianBlur((3, 5), *sigmas, border)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-3)
    image = _bytes(2, 3, 8, 9)
    got = layer(Tensor(image))
    assert got.dtype == np.uint8
    whole = []
    for window in (rows, columns):
        weights = np.rint(window * 256).astype(np.int64)
        weights[len(weights) // 2] += 256 - weights.sum()
        whole.append(weights)
    sums = _filtered(image.astype(np.int64), np.outer(*whole), mode)
    np.testing.assert_array_equal(got.numpy(), (sums + 32768) // 65536)


def test_blur_refuses_even_windows_and_unknown_borders() -> None:
    with pytest.raises(AttrError, match="must be odd"):
        M.GaussianBlur((3, 4))
    with pytest.raises(AttrError, match="border_mode"):
        M.GaussianBlur(3, border_mode="MIRROR")
    with pytest.raises(ShapeError, match=r"expected \(N, C, H, W\)"):
        M.GaussianBlur(3)(Tensor(_image(3, 4, 4)))


@pytest.mark.parametrize("iterations", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize(
    ("border", "mode"),
    [("BORDER_CONSTANT", "constant"), ("BORDER_REPLICATE", "nearest"), ("BORDER_WRAP", "wrap")],
)
def test_dilation(border: str, mode: str, iterations: int, dtype: Any) -> None:
    x = _bytes(2, 2, 6, 7).astype(dtype)
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    for kernel in (None, cross, np.eye(5)):
        want = x
        mask = np.ones((3, 3), bool) if kernel is None else kernel.astype(bool)
        for _ in range(iterations):
            planes = [
                ndimage.maximum_filter(plane, footprint=mask, mode=mode, cval=9)
                for plane in want.reshape(-1, 6, 7)
            ]
            want = np.stack(planes).reshape(x.shape)
        got = M.Dilation(iterations, border, 9)(Tensor(x), kernel).numpy()
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
    for act, match in (
        (lambda: M.Dilation(-1), "iterations"),
        (lambda: M.Dilation(1, "BORDER_NONE"), "border_type"),
        (lambda: M.Dilation()(Tensor(x), np.ones((2, 3))), "odd extents"),
        (lambda: M.Dilation()(Tensor(x), np.zeros((3, 3))), "with 0 chosen"),
    ):
        with pytest.raises(AttrError, match=match):
            act()


def test_mirrors_and_turns() -> None:
    x = _image(2, 3, 4, 5)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for vertical in (False, True):
        for horizontal in (False, True):
            want = x[:, :, :: -1 if vertical else 1, :: -1 if horizontal else 1]
            got = M.Flip(vertical, horizontal)(Tensor(x)).numpy()
            np.testing.assert_array_equal(got, want)
            got = M.Flip(vertical, horizontal, format="NHWC")(Tensor(last)).numpy()
            np.testing.assert_array_equal(got, want.transpose(0, 2, 3, 1))
            np.testing.assert_array_equal(
                got, F.vision.flip(Tensor(last), vertical, horizontal).numpy()
            )
    for clockwise in (False, True):
        want = np.rot90(x, -1 if clockwise else 1, (2, 3))
        np.testing.assert_array_equal(M.Rot90(clockwise)(Tensor(x)).numpy(), want)
    got = M.Rotate(90)(Tensor(_image(1, 2, 5, 5))).numpy()
    np.testing.assert_allclose(got, np.rot90(_image(1, 2, 5, 5), 1, (2, 3)), rtol=1e-5, atol=1e-3)
    with pytest.raises(ShapeError, match="expected NCHW"):
        M.Flip()(Tensor(_image(3, 4)))
    with pytest.raises(AttrError, match="format"):
        M.Rot90(format="CHWN")


def test_resize_and_remap() -> None:
    torch = pytest.importorskip("torch")
    x = _image(2, 3, 6, 8)
    want = torch.nn.functional.interpolate(torch.tensor(x), (9, 5), mode="bilinear").numpy()
    np.testing.assert_allclose(M.Resize((9, 5))(Tensor(x)).numpy(), want, rtol=1e-4, atol=1e-3)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    got = M.Resize((9, 5), "NHWC")(Tensor(last)).numpy()
    np.testing.assert_allclose(got, want.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-3)
    want = torch.nn.functional.interpolate(torch.tensor(x), (3, 4), mode="nearest").numpy()
    np.testing.assert_array_equal(M.Resize(3, imode="nearest")(Tensor(x)).numpy(), want)
    rows, columns = np.mgrid[:5, :4].astype(np.float32)
    points = np.stack([columns * 1.5, rows * 1.1], -1)[None].repeat(2, 0)
    want = np.stack(
        [ndimage.map_coordinates(p, (rows * 1.1, columns * 1.5), order=1, mode="nearest")
         for p in x.reshape(-1, 6, 8)]
    ).reshape(2, 3, 5, 4)  # fmt: skip
    got = M.Remap()(Tensor(x), Tensor(points)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=0.05)


def test_crop_and_pad() -> None:
    torch = pytest.importorskip("torch")
    x = _image(1, 2, 10, 8)
    cut = x[:, :, 1:, : 8 - 2]
    padded = np.pad(cut, ((0, 0), (0, 0), (0, 3), (2, 0)), constant_values=7)
    for corners in (False, True):
        want = torch.nn.functional.interpolate(
            torch.tensor(padded), (10, 8), mode="bilinear", align_corners=corners
        )
        got = M.CropAndPad(align_corners=corners)(Tensor(x), px=(-1, -2, 3, 2), pad_val=7)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-2)
    by_share = M.CropAndPad()(Tensor(x), percent=(-0.1, -0.25, 0.3, 0.25), pad_val=7).numpy()
    by_pixel = M.CropAndPad()(Tensor(x), px=(-1, -2, 3, 2), pad_val=7).numpy()
    np.testing.assert_array_equal(by_share, by_pixel)
    np.testing.assert_array_equal(M.CropAndPad()(Tensor(x), px=0).numpy(), x)
    assert M.CropAndPad()(Tensor(_bytes(1, 2, 4, 4)), px=-1).dtype == np.uint8
    for kwargs, match in (
        ({}, "either percent or px"),
        ({"px": 1, "percent": 1}, "either percent or px"),
        ({"px": (1, 2)}, "sides do not fit"),
        ({"px": -4}, "nothing is left"),
    ):
        with pytest.raises(AttrError, match=match):
            M.CropAndPad()(Tensor(x), **kwargs)  # type: ignore[arg-type]


def test_polygons_are_filled_by_the_even_odd_rule() -> None:
    x = np.zeros((2, 3, 7, 8), np.float32)
    square = [(1, 2), (5, 2), (5, 4), (1, 4)]
    got = M.FillPoly()(Tensor(x), square, (1.0, 2.0, 3.0)).numpy()
    want = x.copy()
    want[:, :, 2:5, 1:6] = np.array([1, 2, 3]).reshape(1, 3, 1, 1)
    np.testing.assert_array_equal(got, want)
    triangle = M.FillPoly()(Tensor(x), np.array([[0, 0], [6, 0], [0, 6]]), 4).numpy()[0, 0]
    rows, columns = np.mgrid[:7, :8]
    np.testing.assert_array_equal(triangle, np.where(rows + columns <= 6, 4.0, 0.0))
    # A polygon that crosses itself: the middle of the star is left out, but for its border.
    star = [(3, 0), (5, 6), (0, 2), (6, 2), (1, 6)]
    filled = M.FillPoly()(Tensor(x), star, 1).numpy()[0, 0]
    assert (filled[3, 3], filled[2, 3], filled[1, 3], filled[0, 0]) == (0, 1, 1, 0)
    both = M.FillPoly()(Tensor(x), np.array([[*square, square[0]], star]), 1.0).numpy()
    np.testing.assert_array_equal(both[1, 0], filled)
    np.testing.assert_array_equal(both[0, 0], want[0, 0])
    assert M.FillPoly()(Tensor(x.astype(np.uint8)), square, 200).numpy().max() == 200
    with pytest.raises(ShapeError, match="points do not fit"):
        M.FillPoly()(Tensor(x), [1, 2], 1)
    with pytest.raises(ShapeError, match="color does not fit"):
        M.FillPoly()(Tensor(x), square, (1, 2))


def test_mixup_blends_images_and_labels_alike() -> None:
    x, label = _image(6, 2, 3, 3), np.eye(6, dtype=np.float32)
    image, mixed = M.Mixup(0.8, seed=5)(Tensor(x), Tensor(label))
    # The labels are the shares of all images.
    np.testing.assert_allclose(mixed.numpy().sum(axis=1), 1, rtol=1e-6)
    want = np.tensordot(mixed.numpy(), x, 1)
    np.testing.assert_allclose(image.numpy(), want, rtol=1e-4, atol=1e-3)
    assert (np.count_nonzero(mixed.numpy(), axis=1) <= 2).all()
    np.testing.assert_array_equal(M.Mixup(0.8, seed=5)(Tensor(x)).numpy(), image.numpy())
    shares = [
        M.Mixup(2.0, seed=seed)(Tensor(x[:2]), Tensor(label[:2])) [1].numpy().max()
        for seed in range(60)
    ]  # fmt: skip
    mixing = [share for share in shares if share < 1]
    assert len(mixing) > 10
    assert 0.5 <= np.mean(mixing) <= 0.85  # E max(l, 1 - l) = 0.6875 for Beta(2, 2)
    with pytest.raises(DTypeError, match="one_hot"):
        M.Mixup(1.0)(Tensor(x), Tensor(np.arange(6, dtype=np.int32)))
    with pytest.raises(AttrError, match="beta"):
        M.Mixup(0.0)


def test_cutmix_pastes_a_box_and_mixes_labels_by_area() -> None:
    x = np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1) * np.ones((1, 2, 8, 10), np.float32)
    areas = []
    for seed in range(20):
        image, mixed = M.Cutmix(1.0, seed)(Tensor(x), Tensor(np.eye(4, dtype=np.float32)))
        for number, (pixels, shares) in enumerate(zip(image.numpy(), mixed.numpy(), strict=True)):
            counts = np.bincount(pixels[0].astype(int).ravel(), minlength=4) / 80
            np.testing.assert_allclose(shares, counts, atol=1e-6)
            np.testing.assert_array_equal(pixels[0], pixels[1])
            rows, columns = np.nonzero(pixels[0] != number)
            if rows.size:  # what was pasted is a box
                box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
                assert box == rows.size
                areas.append(box)
    assert len(set(areas)) > 5
    whole = M.Cutmix(1.0, 1)(Tensor(_bytes(4, 3, 8, 10)))
    assert whole.dtype == np.uint8
    with pytest.raises(DTypeError, match="one_hot"):
        M.Cutmix(1.0)(Tensor(x), Tensor(np.arange(4, dtype=np.int32)))
