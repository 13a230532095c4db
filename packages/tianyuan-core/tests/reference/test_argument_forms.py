"""Calls take their arguments in every form that numpy's and MegEngine's users write."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, ShapeError

A = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
T = ty.Tensor


@pytest.mark.parametrize("shape", [T([4, 3]), np.array([4, 3]), [4, 3], T([2, -1])])
def test_reshape_method_takes_a_shape_tensor(shape: object) -> None:
    wanted = shape.numpy() if isinstance(shape, ty.Tensor) else shape
    np.testing.assert_array_equal(T(A).reshape(shape).numpy(), A.reshape(wanted))


def test_transpose_method_takes_an_array() -> None:
    np.testing.assert_array_equal(T(A).transpose(np.array([1, 0])).numpy(), A.T)


def test_flatten_of_a_scalar_is_a_vector() -> None:
    np.testing.assert_array_equal(F.flatten(T(2.0)).numpy(), [2.0])
    np.testing.assert_array_equal(T(2.0).flatten().numpy(), [2.0])


@pytest.mark.parametrize("kept", [None, -1])
def test_broadcast_to_keeps_extents(kept: int | None) -> None:
    got = F.broadcast_to(T(A[:, :1]), (2, kept, 5))
    np.testing.assert_array_equal(got.numpy(), np.broadcast_to(A[:, :1], (2, 3, 5)))
    with pytest.raises(ShapeError, match="a new axis has no extent to keep"):
        F.broadcast_to(T(A), (kept, 3, 4))


@pytest.mark.parametrize("axis", [0, -1, None])
def test_repeat_takes_one_count_per_element(axis: int | None) -> None:
    extent = A.size if axis is None else A.shape[axis]
    counts = [i % 3 for i in range(extent)]
    for given in (counts, np.array(counts), T(counts)):
        np.testing.assert_array_equal(F.repeat(T(A), given, axis).numpy(), A.repeat(counts, axis))
    x = T(A)
    with GradManager().attach([x]) as gm:
        gm.backward(F.repeat(x, counts, axis).sum())
    wanted = np.array(counts) if axis is not None else np.reshape(counts, A.shape)
    wanted = wanted[:, None] if axis == 0 else wanted
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(wanted, A.shape))
    with pytest.raises(ShapeError, match="counts do not fit, got 2"):
        F.repeat(T(A), [1, 2], axis)
    with pytest.raises(AttrError, match="count is negative"):
        F.repeat(T(A), [-1] * extent, axis)


@pytest.mark.parametrize("axis", [(0, 1), [-1, 0], [1], (0,)])
def test_softmax_over_several_axes(axis: tuple[int, ...]) -> None:
    powers = np.exp(A - A.max())
    wanted = powers / powers.sum(axis=tuple(axis), keepdims=True)
    np.testing.assert_allclose(F.softmax(T(A), axis).numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_a_lone_pair_of_pad_widths_is_for_vectors_only() -> None:
    np.testing.assert_array_equal(F.pad(T(A[0]), (1, 2)).numpy(), np.pad(A[0], (1, 2)))
    for width in ((1, 1), 1, ((1, 1), 2)):
        with pytest.raises(AttrError, match="pad: widths do not fit"):
            F.pad(T(A), width)


def test_messages_name_the_function_that_was_called() -> None:
    image = T(np.ones((1, 3, 2, 2), np.float32))
    with pytest.raises(ShapeError, match="^prelu: shapes do not broadcast"):
        F.prelu(image, T([0.1, 0.2, 0.3]))
    with pytest.raises(DTypeError, match="^cross_entropy: label must hold class indices"):
        F.nn.cross_entropy(T(A), T([0.0, 1.0, 2.0]))
    with pytest.raises(AttrError, match="^dropout: drop_prob is out of range, got 1.0"):
        F.dropout(T(A), 1.0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int64", "uint32"])
def test_positions_of_every_integer_dtype(dtype: str) -> None:
    rows, each = np.array([2, 0, 1]), np.array([[0], [3], [1]])
    given = T(rows, dtype=dtype)
    np.testing.assert_array_equal(F.embedding(given, T(A)).numpy(), A[rows])
    picked = np.take_along_axis(A, each, 1)
    np.testing.assert_array_equal(F.gather(T(A), 1, T(each, dtype=dtype)).numpy(), picked)
    put = A.copy()
    np.put_along_axis(put, each, 9.0, 1)
    ours = F.scatter(T(A), 1, T(each, dtype=dtype), T(np.full((3, 1), 9.0)))
    np.testing.assert_array_equal(ours.numpy(), put)
    np.testing.assert_array_equal(F.indexing_one_hot(T(A), given).numpy(), A[range(3), rows])
    wanted = (np.log(np.exp(A).sum(1)) - A[range(3), rows]).mean()
    np.testing.assert_allclose(F.nn.cross_entropy(T(A), given).numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("wrap", [T, np.array, np.int64])
def test_counts_and_axes_as_tensors_arrays_and_numpy_scalars(wrap: object) -> None:
    one, two = wrap(1), wrap(2)
    same = np.testing.assert_array_equal
    same(F.expand_dims(T(A), one).numpy(), A[:, None])
    same(F.squeeze(T(A[:, None]), one).numpy(), A)
    same(F.roll(T(A), two, one).numpy(), np.roll(A, 2, 1))
    same(F.tile(T(A), two).numpy(), np.tile(A, 2))
    same(F.repeat(T(A), two, one).numpy(), A.repeat(2, 1))
    same(F.split(T(A), two, one)[1].numpy(), A[:, 2:])
    same(F.sum(T(A), one).numpy(), A.sum(1))
    same(
        F.max_pool2d(T(A[None, None, :2]), two).numpy()[0, 0], [[A[:2, :2].max(), A[:2, 2:].max()]]
    )
    assert F.vision.interpolate(T(A[None]), two, mode="linear").shape == (1, 3, 2)
    assert F.vision.interpolate(T(A[None, None]), scale_factor=two).shape == (1, 1, 6, 8)
    assert F.adaptive_avg_pool2d(T(A[None, None]), two).shape == (1, 1, 2, 2)


def test_sizes_as_tensors_and_arrays() -> None:
    image = T(A[None, None])
    for size in (T([2, 5]), np.array([2, 5])):
        assert F.vision.interpolate(image, size).shape == (1, 1, 2, 5)
        assert F.adaptive_max_pool2d(image, size).shape == (1, 1, 2, 5)
        assert F.vision.warp_perspective(image, T(np.eye(3)[None]), size).shape == (1, 1, 2, 5)
    np.testing.assert_array_equal(F.sum(T(A), np.array([0, 1])).numpy(), A.sum())
    np.testing.assert_array_equal(F.sum(T(A), range(2)).numpy(), A.sum())


@pytest.mark.parametrize("extents", [(2, 3), [2, 3], T([2, 3]), np.array([2, 3])])
def test_eye_takes_both_extents_at_once(extents: object) -> None:
    np.testing.assert_array_equal(F.eye(extents).numpy(), np.eye(2, 3))
    np.testing.assert_array_equal(F.eye(T(2), T(3)).numpy(), np.eye(2, 3))
    with pytest.raises(ShapeError, match="eye: expected one or two extents"):
        F.eye((2, 3, 4))


IMAGE = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4) / 7
BOXES = np.float32([[0, 0, 0, 3, 3]])
MAP = np.tile(np.float32([1.0, 2.0]), (1, 2, 2, 1))


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda w: F.nn.interpolate(T(IMAGE), scale_factor=2, mode=w), "bilinear"),
        (lambda w: F.nn.interpolate(T(IMAGE), scale_factor=2, mode=w), "nearest"),
        (lambda w: F.vision.resize(T(IMAGE), (8, 8), imode=w), "nearest"),
        (lambda w: F.vision.roi_pooling(T(IMAGE), T(BOXES), 2, mode=w), "average"),
        (lambda w: F.vision.roi_align(T(IMAGE), T(BOXES), 2, mode=w), "max"),
        (lambda w: F.vision.remap(T(IMAGE), T(MAP), border_mode=w), "reflect"),
        (lambda w: F.vision.remap(T(IMAGE), T(MAP), interp_mode=w), "nearest"),
        (lambda w: F.nn.avg_pool2d(T(IMAGE), 2, 1, 1, mode=w), "average"),
        (lambda w: F.nn.pad(T(IMAGE), ((0, 0), (0, 0), (1, 1)), w), "replicate"),
        (lambda w: F.nn.conv2d(T(IMAGE), T(IMAGE[..., :3]), conv_mode=w), "convolution"),
        (lambda w: F.loss.l1_loss(T(IMAGE), 0 * T(IMAGE), w), "sum"),
        (lambda w: F.loss.square_loss(T(IMAGE), 0 * T(IMAGE), w), "mean"),
        (lambda w: F.loss.hinge_loss(T(IMAGE), 0 * T(IMAGE) - 1, norm=w), "L2"),
        (lambda w: F.loss.cross_entropy(T(IMAGE[0, 0]), T([0, 1, 2, 3]), reduction=w),
         "none"),
        (lambda w: F.vision.cvt_color(T(np.full((1, 1, 1, 3), 9, "uint8")), w), "BGR2GRAY"),
    ],
)  # fmt: skip
def test_words_mean_the_same_in_any_case(function, word):
    wanted = function(word).numpy()
    for other in (word.upper(), word.lower(), word.capitalize()):
        np.testing.assert_array_equal(function(other).numpy(), wanted)
    with pytest.raises(AttrError, match=r"unknown, got 'nothing', expected"):
        function("nothing")
    with pytest.raises(AttrError, match=r"unknown, got 3, expected"):
        function(3)
