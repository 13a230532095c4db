"""Transforms of images, against values worked out by hand and the standard library."""

from __future__ import annotations

import colorsys
import sys
from typing import Any

import numpy as np
import pytest
import tianyuan.data.transform as T
from tianyuan.data.transform.vision import functional as F
from tianyuan.errors import AttrError, ShapeError, TianyuanError

RNG = np.random.default_rng(11)
IMAGE = RNG.integers(0, 256, (7, 9, 3)).astype(np.uint8)
BOXES = np.array([[1.0, 2.0, 4.0, 5.0], [0.0, 0.0, 9.0, 7.0]])
COORDS = np.array([[1.0, 2.0], [8.0, 0.0]])


@pytest.fixture(autouse=True)
def seed() -> None:
    np.random.seed(0)


# Functions


def test_to_gray_is_bt601() -> None:
    grey = F.to_gray(IMAGE)
    assert grey.shape == (7, 9, 1)
    assert grey.dtype == np.uint8
    for y, x in ((0, 0), (3, 4), (6, 8)):
        blue, green, red = (int(v) for v in IMAGE[y, x])
        assert grey[y, x, 0] == round(0.114 * blue + 0.587 * green + 0.299 * red)
    np.testing.assert_array_equal(F.to_bgr(grey), np.concatenate([grey] * 3, axis=2))
    np.testing.assert_array_equal(F.to_bgr(grey[..., 0]), F.to_bgr(grey))
    with pytest.raises(ValueError, match="to_gray"):
        F.to_gray(grey)
    with pytest.raises(ValueError, match="to_bgr"):
        F.to_bgr(IMAGE)


@pytest.mark.parametrize(
    ("size", "widths"), [(2, (2, 2, 2, 2)), ((1, 3), (1, 1, 3, 3)), ((1, 0, 2, 3), (1, 0, 2, 3))]
)
def test_pad(size: Any, widths: tuple[int, ...]) -> None:
    top, bottom, left, right = widths
    wanted = np.pad(IMAGE, ((top, bottom), (left, right), (0, 0)), constant_values=7)
    np.testing.assert_array_equal(F.pad(IMAGE, size, 7), wanted)
    np.testing.assert_array_equal(F.pad(IMAGE[..., 0], size, 7), wanted[..., 0])


def test_pad_by_channel_and_refusals() -> None:
    assert F.pad(IMAGE, 1, (1, 2, 3))[0, 0].tolist() == [1, 2, 3]
    for size in (-1, (1, 2, 3), (1.5, 2), 1.5):
        with pytest.raises(ValueError, match="size is wrong"):
            F.pad(IMAGE, size, 0)  # type: ignore[arg-type]


def test_flip() -> None:
    np.testing.assert_array_equal(F.flip(IMAGE, 1), np.fliplr(IMAGE))
    np.testing.assert_array_equal(F.flip(IMAGE, 0), np.flipud(IMAGE))
    np.testing.assert_array_equal(F.flip(IMAGE, -1), np.rot90(IMAGE, 2))


def test_wrap_keepdims() -> None:
    drop = F.wrap_keepdims(lambda image: image[..., 0])
    assert drop(IMAGE).shape == (7, 9, 1)
    assert F.wrap_keepdims(lambda image: image)(IMAGE).shape == IMAGE.shape


@pytest.mark.parametrize("library", ["PIL.Image", "cv2"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_resize(library: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    if library != "cv2":
        monkeypatch.setitem(sys.modules, "cv2", None)
    image = IMAGE.astype(dtype)
    nearest = F.resize(image, (14, 27), F.INTER_NEAREST)
    np.testing.assert_array_equal(nearest, image.repeat(2, axis=0).repeat(3, axis=1))
    assert nearest.dtype == dtype
    # A ramp stays a ramp under linear interpolation: pixel centres are at (x + 0.5) / width.
    ramp = np.tile(np.arange(8, dtype=np.float32) * 20, (4, 1)).astype(dtype)[..., np.newaxis]
    wide = F.resize(ramp, (4, 16))
    centres = np.clip((np.arange(16) + 0.5) / 2 - 0.5, 0, 7) * 20
    assert wide.shape == (4, 16, 1)
    np.testing.assert_allclose(wide[2, :, 0], centres, atol=0.51 if dtype == np.uint8 else 1e-3)
    area = F.resize(image[:6, :9], (3, 3), F.INTER_AREA)
    means = image[:6, :9].reshape(3, 2, 3, 3, 3).mean(axis=(1, 3))
    # Pillow rounds after each of two passes.
    np.testing.assert_allclose(area, means, atol=1.01 if dtype == np.uint8 else 1e-3)
    assert F.resize(image[..., 0], (3, 5)).shape == (3, 5)


def test_resize_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    same = F.resize(IMAGE, IMAGE.shape[:2])
    np.testing.assert_array_equal(same, IMAGE)
    assert not np.shares_memory(same, IMAGE)
    with pytest.raises(ValueError, match="size is wrong"):
        F.resize(IMAGE, (0, 3))
    with pytest.raises(ValueError, match="interpolation is wrong"):
        F.resize(IMAGE, (3, 3), 9)
    with pytest.raises(ValueError, match="dtype is wrong, got float64"):
        F.resize(IMAGE.astype(np.float64), (3, 3))
    for library in ("cv2", "PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match="needs OpenCV or Pillow"):
        F.resize(IMAGE, (3, 3))


# Fields of a sample


def test_order_names_the_fields() -> None:
    pad = T.Pad((1, 2, 3, 4), mask_value=9, order=("image", "boxes", "mask", "coords", "category"))
    mask = IMAGE[..., 0]
    done = pad.apply((IMAGE, BOXES, mask, COORDS, 5, "further"))
    assert isinstance(done, tuple)
    assert len(done) == 6
    assert done[0].shape == (10, 16, 3)
    np.testing.assert_array_equal(done[1], BOXES + [3, 1, 3, 1])
    assert done[2][0, 0] == 9
    np.testing.assert_array_equal(done[3], COORDS + [3, 1])
    assert done[4:] == (5, "further")
    alone = T.Pad(1).apply(IMAGE)
    assert isinstance(alone, np.ndarray)
    assert alone.shape == (9, 11, 3)
    with pytest.raises(ValueError, match="got 'picture'"):
        T.Pad(1, order=("picture",))


def test_detection_fields_follow_the_image() -> None:
    order = ("image", "boxes", "boxes_category", "keypoints", "polygons", "info")
    compose = T.Compose([T.Compose([T.Pad((1, 2, 3, 4))]), T.ToMode()], order=order)
    points = np.concatenate([COORDS, np.full((len(COORDS), 1), 2.0)], axis=1)[None]
    polygons = [[COORDS, COORDS[:1].reshape(-1)], [COORDS]]
    done = compose.apply((IMAGE, BOXES, [7, 8], points, polygons, "info"))
    assert done[0].shape == (3, 10, 16)
    np.testing.assert_array_equal(done[1], BOXES + [3, 1, 3, 1])
    assert done[2] == [7, 8]
    np.testing.assert_array_equal(done[3], points + [3, 1, 0])
    np.testing.assert_array_equal(done[4][0][0], COORDS + [3, 1])
    np.testing.assert_array_equal(done[4][0][1], COORDS[0] + [3, 1])
    np.testing.assert_array_equal(done[4][1][0], COORDS + [3, 1])
    assert done[5] == "info"


def test_own_fields_of_a_transform() -> None:
    class Depths(T.VisionTransform):
        def _apply_image(self, image: np.ndarray) -> np.ndarray:
            return image

        def _apply_depth(self, depth: float) -> float:
            return depth / 2

    assert T.Compose([Depths()], order=("image", "depth")).apply((IMAGE, 3.0))[1] == 1.5
    with pytest.raises(ValueError, match=r"Pad: order is wrong, got 'depth'"):
        T.Compose([Depths(), T.Pad(1)], order=("image", "depth"))
    with pytest.raises(ValueError, match=r"Compose: order is wrong, got 'depth'"):
        T.Compose([], order=("depth",))


def test_own_transform() -> None:
    class Double(T.VisionTransform):
        def _apply_image(self, image: np.ndarray) -> np.ndarray:
            return image * 2

    assert Double().apply((np.ones(3), 4))[0].tolist() == [2, 2, 2]
    assert [x.tolist() for x in Double().apply_batch([np.ones(1), np.zeros(1)])] == [[2], [0]]
    assert T.PseudoTransform().apply((1, 2)) == (1, 2)
    with pytest.raises(TypeError, match="abstract"):
        T.VisionTransform()  # type: ignore[abstract]


def test_compose_as_in_the_quick_start() -> None:
    mean, std = 0.1307 * 255, 0.3081 * 255
    chain = T.Compose([T.Normalize(mean, std), T.Pad(2), T.ToMode("CHW")])
    image = RNG.integers(0, 256, (28, 28, 1)).astype(np.uint8)
    done, label = chain.apply_batch([(image, 3)])[0]
    wanted = np.pad((image[..., 0] - mean) / std, 2)[np.newaxis]
    assert done.shape == (1, 32, 32)
    assert done.dtype == np.float32
    assert label == 3
    np.testing.assert_allclose(done, wanted, rtol=1e-5, atol=1e-6)


def test_compose_shuffles_only_where_told() -> None:
    seen: list[str] = []

    class Note(T.Transform):
        def __init__(self, name: str) -> None:
            self.name = name

        def apply(self, input: Any) -> Any:
            seen.append(self.name)
            return input

    chain = T.Compose([Note(name) for name in "abcde"], shuffle_indices=[(1, 2, 3)])
    chain.apply_batch([0] * 60)
    orders = {"".join(seen[i : i + 5]) for i in range(0, 300, 5)}
    assert orders == {"abcde", "abdce", "acbde", "acdbe", "adbce", "adcbe"}
    seen.clear()
    T.Compose([Note("a"), Note("b")], batch_compose=True).apply_batch([0, 0])
    assert seen == ["a", "a", "b", "b"]
    with pytest.raises(ValueError, match="shuffle_indices"):
        T.Compose([Note("a")], shuffle_indices=[(0, 1)])


def test_to_mode() -> None:
    done = T.ToMode(order=("image", "mask")).apply((IMAGE, IMAGE[..., 0]))
    np.testing.assert_array_equal(done[0], np.moveaxis(IMAGE, 2, 0))
    assert done[0].flags.c_contiguous
    assert done[1].shape == (7, 9)
    assert T.ToMode().apply(IMAGE[..., 0]).shape == (1, 7, 9)
    with pytest.raises(ValueError, match="got 'HWC'"):
        T.ToMode("HWC")


# Geometry


def _marked(height: int, width: int) -> np.ndarray:
    """Return an image whose pixels hold their own place: (y, x, 0)."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, np.zeros_like(x)], axis=2).astype(np.uint8)


def test_center_crop() -> None:
    crop = T.CenterCrop((3, 4), order=("image", "coords"))
    image, coords = crop.apply((IMAGE, COORDS))
    np.testing.assert_array_equal(image, IMAGE[2:5, 2:6])
    np.testing.assert_array_equal(coords, COORDS - [2, 2])
    with pytest.raises(ValueError, match="too small, got 7 x 9, expected 8 x 8"):
        T.CenterCrop(8).apply(IMAGE)
    with pytest.raises(ValueError, match="expected an image"):
        T.CenterCrop(3, order=("boxes",)).apply((BOXES,))
    for size in (0, (1, 2, 3), 2.5):
        with pytest.raises(ValueError, match="output_size"):
            T.CenterCrop(size)  # type: ignore[arg-type]


def test_random_crop_reaches_every_place() -> None:
    crop = T.RandomCrop((3, 4), order=("image", "coords", "mask"))
    places = set()
    for _ in range(300):
        image, coords, mask = crop.apply((_marked(5, 6), np.array([[2, 3]]), _marked(5, 6)))
        top, left = (int(v) for v in image[0, 0, :2])
        np.testing.assert_array_equal(image, _marked(5, 6)[top : top + 3, left : left + 4])
        np.testing.assert_array_equal(mask, image)
        assert coords.tolist() == [[2 - left, 3 - top]]
        places.add((top, left))
    assert places == {(top, left) for top in range(3) for left in range(3)}


def test_random_crop_pads() -> None:
    crop = T.RandomCrop(4, padding_size=2, padding_value=200)
    assert {int(crop.apply(_marked(4, 4))[0, 0, 0]) for _ in range(200)} == {0, 1, 2, 200}
    grown = T.RandomCrop((6, 12), padding_value=(9, 8, 7)).apply(IMAGE)
    assert grown.shape == (6, 12, 3)
    assert (grown[:, 9:] == [9, 8, 7]).all()
    assert T.RandomCrop(4).apply(IMAGE[..., :1]).shape == (4, 4, 1)


def test_flips_and_boxes() -> None:
    order = ("image", "boxes", "mask")
    image, boxes, mask = T.RandomHorizontalFlip(1.0, order=order).apply((IMAGE, BOXES, IMAGE))
    np.testing.assert_array_equal(image, IMAGE[:, ::-1])
    np.testing.assert_array_equal(mask, image)
    assert boxes.tolist() == [[5, 2, 8, 5], [0, 0, 9, 7]]
    image, boxes, _ = T.RandomVerticalFlip(1.0, order=order).apply((IMAGE, BOXES, IMAGE))
    np.testing.assert_array_equal(image, IMAGE[::-1])
    assert boxes.tolist() == [[1, 2, 4, 5], [0, 0, 9, 7]]
    np.testing.assert_array_equal(T.RandomVerticalFlip(0.0).apply(IMAGE), IMAGE)
    flips = [not (T.RandomHorizontalFlip().apply(IMAGE) == IMAGE).all() for _ in range(400)]
    assert 150 < sum(flips) < 250
    with pytest.raises(ValueError, match="prob"):
        T.RandomHorizontalFlip(1.5)


def test_resize_transform() -> None:
    pytest.importorskip("PIL.Image")
    order = ("image", "boxes", "mask")
    resize = T.Resize((14, 18), F.INTER_NEAREST, order=order)
    image, boxes, mask = resize.apply((IMAGE, BOXES, IMAGE[..., 0]))
    np.testing.assert_array_equal(image, IMAGE.repeat(2, axis=0).repeat(2, axis=1))
    np.testing.assert_array_equal(boxes, BOXES * 2)
    np.testing.assert_array_equal(mask, image[..., 0])
    assert T.Resize(14).apply(IMAGE).shape == (14, 18, 3)
    assert T.Resize(14).apply(IMAGE.transpose(1, 0, 2)).shape == (18, 14, 3)


def test_random_resized_crop() -> None:
    pytest.importorskip("PIL.Image")
    crop = T.RandomResizedCrop((6, 8), interpolation=F.INTER_NEAREST, order=("image", "coords"))
    corners = np.array([[0.0, 0.0]])
    shares = []
    for _ in range(50):
        image, moved = crop.apply((_marked(40, 50), corners))
        assert image.shape == (6, 8, 3)
        height, width = crop._size
        assert 0 < height <= 40
        assert 0 < width <= 50
        shares.append(height * width / 2000)
        # Half a pixel of rounding on each side.
        assert (width + 0.5) / (height - 0.5) >= 0.7
        assert (width - 0.5) / (height + 0.5) <= 1.4
        np.testing.assert_allclose(moved, [[-crop._left * 8 / width, -crop._top * 6 / height]])
        assert image[0, 0, 0] >= crop._top
        assert image[-1, -1, 1] < crop._left + width
    assert 0.05 < min(shares) < 0.3
    assert 0.7 < max(shares) <= 1
    assert T.RandomResizedCrop(4).apply(np.zeros((1, 200, 3), np.uint8)).shape == (4, 4, 3)
    with pytest.raises(ValueError, match="scale_range"):
        T.RandomResizedCrop(4, scale_range=(0.5, 0.1))


# Values


def test_normalize_by_channel() -> None:
    done = T.Normalize(mean=[1, 2, 3], std=[2, 4, 8]).apply(IMAGE)
    assert done.dtype == np.float32
    np.testing.assert_allclose(done, (IMAGE - np.array([1.0, 2, 3])) / [2, 4, 8], rtol=1e-6)
    with pytest.raises(ValueError, match="std"):
        T.Normalize(0, [1, 0, 1])


def test_gaussian_noise() -> None:
    flat = np.full((60, 60, 3), 100, np.float32)
    noise = T.GaussianNoise(5.0, 2.0).apply(flat) - 100
    assert abs(noise.mean() - 5) < 5 * 2 / flat.size**0.5
    assert abs(noise.std() - 2) < 0.1
    dark = T.GaussianNoise(0, 50.0).apply(np.zeros((9, 9, 3), np.uint8))
    assert dark.dtype == np.uint8
    assert 0 < (dark == 0).mean() < 0.8


def _ratios(
    transform: T.VisionTransform, image: np.ndarray, pixel: tuple[int, int, int]
) -> list[float]:
    return [float(transform.apply(image)[pixel]) for _ in range(300)]


def test_brightness() -> None:
    image = np.full((2, 2, 3), 100, np.float32)
    values = _ratios(T.BrightnessTransform(0.4), image, (0, 0, 0))
    assert 60 <= min(values) < 66
    assert 134 < max(values) <= 140
    assert max(_ratios(T.BrightnessTransform(5), image, (0, 0, 0))) == 255


def test_contrast_keeps_the_mean() -> None:
    image = np.tile(np.array([50.0, 150.0], np.float32)[:, np.newaxis, np.newaxis], (1, 2, 3))
    for _ in range(20):
        done = T.ContrastTransform(0.5).apply(image)
        assert abs(done.mean() - 100) < 1e-3
        assert 25 - 1e-3 <= 100 - done[0, 0, 0] <= 75 + 1e-3


def test_saturation_keeps_grey() -> None:
    grey = F.to_gray(IMAGE)
    np.testing.assert_array_equal(T.SaturationTransform(0.9).apply(F.to_bgr(grey)), F.to_bgr(grey))
    image = np.array([[[90.0, 110.0, 100.0]]], np.float32)
    done = T.SaturationTransform(1.0).apply(image)
    luma = image @ [0.114, 0.587, 0.299]
    factors = (done - luma[..., np.newaxis]) / (image - luma[..., np.newaxis])
    assert 0 <= factors[0, 0, 0] <= 2
    np.testing.assert_allclose(factors, factors[0, 0, 0], rtol=1e-3)


@pytest.mark.parametrize("turn", [0.0, 0.1, -0.25, 0.5, -0.5])
def test_hue_against_colorsys(turn: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "uniform", lambda low, high: turn)
    image = np.concatenate([IMAGE, np.full((1, 9, 3), 77, np.uint8)]).astype(np.float32)
    done = T.HueTransform(0.5).apply(image)
    for pixel, got in zip(image.reshape(-1, 3), done.reshape(-1, 3), strict=True):
        blue, green, red = (float(v) / 255 for v in pixel)
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        wanted = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)[::-1]
        np.testing.assert_allclose(got / 255, wanted, atol=1e-5)


def test_color_jitter_and_lighting() -> None:
    np.testing.assert_array_equal(T.ColorJitter().apply(IMAGE), IMAGE)
    done, label = T.ColorJitter(0.3, 0.3, 0.3, 0.1).apply((IMAGE, 1))
    assert done.dtype == np.uint8
    assert done.shape == IMAGE.shape
    assert label == 1
    assert (done != IMAGE).any()
    np.testing.assert_array_equal(T.Lighting(0.0).apply(IMAGE), IMAGE)
    image = np.full((4, 4, 3), 128, np.float32)
    shift = np.array([(T.Lighting(0.1).apply(image) - image)[0, 0] for _ in range(4000)])
    # Covariance of V diag(255 l a) with a normal, in blue, green, red.
    vectors = np.array(
        [[-0.5836, -0.6948, 0.4203], [-0.5808, -0.0045, -0.8140], [-0.5675, 0.7192, 0.4009]]
    )
    values = 255 * 0.1 * np.array([0.2175, 0.0188, 0.0045])
    wanted = vectors @ np.diag(values**2) @ vectors.T
    np.testing.assert_allclose(np.cov(shift.T), wanted, atol=0.1 * wanted.max())


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.BrightnessTransform(-1),
        lambda: T.HueTransform(0.6),
        lambda: T.Lighting(-0.1),
        lambda: T.HueTransform(0.1).apply(IMAGE[..., :1]),
    ],
)
def test_wrong_values(make: Any) -> None:
    with pytest.raises(TianyuanError, match="wrong|out of range"):
        make()


NO_NUMBERS = (None, "a", [None], {}, object(), "1", ["a", "b"])
NO_AMOUNTS = (*NO_NUMBERS, -1, float("nan"), float("inf"), [1], (0, 1), np.array([1, 2]))
NO_SIZES = (*NO_NUMBERS, -1, 0, 1.5, float("nan"), (2, -1), (1, 2, 3), True, (True, True))
NO_RANGES = (*NO_NUMBERS, 1, (2, 1), (0, 1), (1,), (1, 2, 3), (1, float("inf")))


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda v: T.Normalize(mean=v), (*NO_NUMBERS, float("nan"), 1e39)),
        (lambda v: T.Normalize(std=v), (*NO_NUMBERS, 0, (1, 0), float("inf"))),
        (lambda v: T.GaussianNoise(mean=v), NO_NUMBERS),
        (lambda v: T.GaussianNoise(std=v), (*NO_NUMBERS, -1, (1, -1))),
        (T.BrightnessTransform, NO_AMOUNTS),
        (T.ContrastTransform, NO_AMOUNTS),
        (T.SaturationTransform, NO_AMOUNTS),
        (T.HueTransform, (*NO_AMOUNTS, 0.6)),
        (lambda v: T.ColorJitter(brightness=v), NO_AMOUNTS),
        (lambda v: T.ColorJitter(hue=v), (*NO_AMOUNTS, 0.6)),
        (T.Lighting, NO_AMOUNTS),
        (T.ToMode, (None, "HWC", 1, np.array([1, 2]))),
        (T.Pad, (*NO_NUMBERS, -1, 1.5, (1, 2, 3), True)),
        (lambda v: T.Pad(1, v), NO_NUMBERS),
        (lambda v: T.Pad(1, 0, v), (*NO_NUMBERS, [0])),
        (T.Resize, NO_SIZES),
        (lambda v: T.Resize(4, v), (*NO_NUMBERS, -1, 5, 1.0, True, np.array([1, 2]))),
        (lambda v: T.ShortestEdgeResize(v, 9), (*NO_NUMBERS, 0, 1.5, (9, 4), ())),
        (lambda v: T.ShortestEdgeResize(4, v), (*NO_NUMBERS, 0, 1.5, (4, 9))),
        (lambda v: T.ShortestEdgeResize(4, 9, v), (None, "any", 1, np.array([1, 2]))),
        (T.RandomResize, NO_RANGES),
        (T.CenterCrop, NO_SIZES),
        (T.RandomCrop, NO_SIZES),
        (lambda v: T.RandomCrop(4, v), (*NO_NUMBERS, -1, 1.5, (1, 2, 3))),
        (lambda v: T.RandomCrop(4, 0, v), NO_NUMBERS),
        (T.RandomResizedCrop, NO_SIZES),
        (lambda v: T.RandomResizedCrop(4, v), NO_RANGES),
        (lambda v: T.RandomResizedCrop(4, ratio_range=v), NO_RANGES),
        (T.RandomHorizontalFlip, (*NO_NUMBERS, -0.1, 1.1, float("nan"), [0.5])),
        (T.RandomVerticalFlip, (*NO_NUMBERS, -0.1, 1.1)),
        (lambda v: T.Pad(1, order=v), ("image", 1, [1], (None,), ("a",), np.array([1]))),
        (T.Compose, (None, 1, "a", [1], [None])),
        (lambda v: T.Compose([T.Pad(1)], shuffle_indices=v), (1, "a", [1], [(1,)], [(True,)])),
        (T.TorchTransformCompose, (None, 1, "a", [1], [None])),
    ],
)
def test_arguments_that_are_none(make: Any, values: Any) -> None:
    for value in values:
        with pytest.raises(AttrError, match=", expected |, got "):
            make(value)


@pytest.mark.parametrize("value", [-1, 256, float("nan"), 1.0e9])
def test_borders_that_an_image_does_not_hold(value: float) -> None:
    with pytest.raises(AttrError, match="pad: value is wrong, got .*, expected what uint8 holds"):
        T.Pad(1, value).apply(IMAGE)
    got = T.Pad(1, value).apply(IMAGE.astype(np.float32))
    np.testing.assert_array_equal(got[0], np.full(got[0].shape, value, np.float32))
    classes = T.Pad(1, 0, 2**30 + 1, order=("mask",)).apply(np.zeros((2, 2), np.int32))
    assert classes[0, 0] == 2**30 + 1


TRANSFORMS = (
    T.Normalize(), T.GaussianNoise(), T.BrightnessTransform(0.1), T.ContrastTransform(0.1),
    T.SaturationTransform(0.1), T.HueTransform(0.1), T.Lighting(0.1), T.ToMode(), T.Pad(1),
    T.Resize(4), T.ShortestEdgeResize(4, 9), T.RandomResize((0.5, 2)), T.CenterCrop(2),
    T.RandomCrop(2), T.RandomResizedCrop(2), T.RandomHorizontalFlip(1.0),
    T.RandomVerticalFlip(1.0), T.ColorJitter(0.1, 0.1, 0.1, 0.1),
    T.TorchTransformCompose([lambda image: image]),
)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_images_that_are_none(transform: Any) -> None:
    pytest.importorskip("PIL.Image")
    for image in (None, "a", IMAGE.tolist(), IMAGE.astype(object), 3):
        with pytest.raises(TianyuanError):
            transform.apply(image)
    if not isinstance(transform, (T.Normalize, T.GaussianNoise, T.BrightnessTransform,
                                  T.ContrastTransform, T.Lighting)):  # fmt: skip
        for image in (np.zeros((), np.uint8), np.zeros(5, np.uint8), IMAGE[np.newaxis]):
            with pytest.raises(ShapeError, match="image is wrong, got shape"):
                transform.apply(image)


def test_empty_images_and_channels_that_do_not_fit() -> None:
    for transform in (T.Resize(4), T.RandomResize((1, 2)), T.RandomCrop(2), T.RandomResizedCrop(2)):
        with pytest.raises(ShapeError, match="image is empty, got 0 x"):
            transform.apply(IMAGE[:0])
    for transform in (T.Normalize(mean=(0, 1)), T.GaussianNoise(std=(0, 1)), T.Pad(1, (1, 2))):
        with pytest.raises(ShapeError, match=r"does not fit the image, got shape \(2,\)"):
            transform.apply(IMAGE)
    with pytest.raises(ShapeError, match="Lighting: .* expected three channels"):
        T.Lighting(0.1).apply(IMAGE[..., :1])


def test_shortest_edge_resize() -> None:
    pytest.importorskip("PIL.Image")
    order = ("image", "boxes", "mask")
    mask = np.arange(20 * 40).reshape(20, 40) % 7
    sample = (np.zeros((20, 40, 3), np.uint8), np.array([[2.0, 4.0, 10.0, 20.0]]), mask)
    sample = (*sample[:2], mask.astype(np.uint8))
    image, boxes, small = T.ShortestEdgeResize(10, 100, order=order).apply(sample)
    assert image.shape == (10, 20, 3)
    np.testing.assert_allclose(boxes, [[1.0, 2.0, 5.0, 10.0]])
    assert small.shape == (10, 20)
    tall = np.zeros((40, 20, 3), np.uint8)
    assert T.ShortestEdgeResize(30, 50).apply(tall).shape == (50, 25, 3)  # the longer side decides
    np.random.seed(3)
    ranged = T.ShortestEdgeResize((8, 12), 100)
    chosen = T.ShortestEdgeResize((8, 12), 100, sample_style="choice")
    assert {ranged.apply(tall).shape[1] for _ in range(60)} == {8, 9, 10, 11, 12}
    assert {chosen.apply(tall).shape[1] for _ in range(40)} == {8, 12}
    for arguments in ((0, 5), ((), 5), (5, 0), (5, 5, "even")):
        with pytest.raises(ValueError, match="ShortestEdgeResize"):
            T.ShortestEdgeResize(*arguments)


def test_random_resize() -> None:
    pytest.importorskip("PIL.Image")
    image = np.zeros((20, 40, 3), np.uint8)
    np.random.seed(3)
    shapes = {T.RandomResize((0.5, 1.5)).apply(image).shape for _ in range(50)}
    assert len(shapes) > 10
    assert all(10 <= h <= 30 and abs(w - 2 * h) <= 1 for h, w, _ in shapes)
    boxed = T.RandomResize((0.5, 0.5), order=("image", "boxes"))
    resized, boxes = boxed.apply((image, np.array([[0.0, 2.0, 4.0, 8.0]])))
    assert resized.shape == (10, 20, 3)
    np.testing.assert_allclose(boxes, [[0.0, 1.0, 2.0, 4.0]])
    for wrong in ((0, 1), (2, 1)):
        with pytest.raises(ValueError, match="scale_range is wrong"):
            T.RandomResize(wrong)


def test_transforms_of_pillow_images() -> None:
    pillow = pytest.importorskip("PIL.Image")
    seen = []

    def note(image: Any) -> Any:
        seen.append((image.mode, image.size, image.getpixel((0, 0))))
        return image

    mirror = T.TorchTransformCompose([note, lambda i: i.transpose(pillow.FLIP_LEFT_RIGHT)])
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    result, label = mirror.apply((image, 5))
    np.testing.assert_array_equal(result, image[:, ::-1], strict=True)
    assert label == 5
    assert seen == [("RGB", (4, 2), (2, 1, 0))]
    grey = image[..., :1]
    np.testing.assert_array_equal(mirror.apply(grey), grey[:, ::-1], strict=True)
    np.testing.assert_array_equal(mirror.apply(grey[..., 0]), grey[:, ::-1, 0], strict=True)
    last = T.TorchTransformCompose([lambda i: np.float32(i) / 2])
    np.testing.assert_array_equal(last.apply(image), image[..., ::-1] / np.float32(2), strict=True)
