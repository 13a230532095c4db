"""A dtype with a scale quantises, floats are numbers, and no op takes integers for numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError
from tianyuan.functional.quantized import (
    conv_bias_activation,
    qint4,
    qint8,
    qint8_narrow,
    qint32,
    quint4,
    quint8,
)
from tianyuan.jit import trace

RNG = np.random.default_rng(5)
X = RNG.normal(0, 3, (2, 4, 6, 6)).astype(np.float32)
FORMS = (
    (qint8(0.05), -128, 127, "int8"),
    (qint8_narrow(0.05), -127, 127, "int8"),
    (quint8(0.05, 100), 0, 255, "uint8"),
    (qint4(0.5), -8, 7, "int8"),
    (quint4(0.5, 7), 0, 15, "uint8"),
    (qint32(0.001), -(2**31), 2**31 - 1, "int32"),
)


def integers(x: np.ndarray, form: object, low: int, high: int) -> np.ndarray:
    steps = np.rint((x / np.float32(form.scale)).astype(np.float64)) + form.zero_point
    return np.clip(steps, low, high)


def numbers(q: Tensor) -> np.ndarray:
    (scale,), (zero,) = q.qparams.scales, q.qparams.zero_points
    return (q.numpy().astype(np.int64) - zero).astype(np.float32) * np.float32(scale)


@pytest.mark.parametrize(("form", "low", "high", "storage"), FORMS)
def test_a_dtype_with_a_scale_quantises(form, low, high, storage) -> None:
    for q in (Tensor(X).astype(form), Tensor(X, dtype=form), Tensor(Tensor(X), dtype=form)):
        assert q.dtype.name == storage
        np.testing.assert_array_equal(q.numpy(), integers(X, form, low, high))
        assert q.qparams.scales == (form.scale,)
        np.testing.assert_array_equal(q.astype("float32").numpy(), numbers(q))
    whole = q.astype("int64")
    np.testing.assert_array_equal(whole.numpy(), q.numpy())
    assert whole.qparams is None


def test_integers_stand_for_numbers_as_they_are() -> None:
    q = Tensor(np.array([-3, 5]), dtype=qint8(0.5))
    assert (q.tolist(), q.astype("float32").tolist()) == ([-3, 5], [-1.5, 2.5])
    assert Tensor([], dtype=qint8(0.5)).shape == (0,)
    with pytest.raises(
        DTypeError, match=r"integers do not fit qint4, got 9 to 9, expected -8 to 7"
    ):
        Tensor([9], dtype=qint4(0.5))
    with pytest.raises(DTypeError, match="not a dtype"):
        Tensor([1.0]).astype(object())


def test_one_form_becomes_another() -> None:
    q = Tensor(X, dtype=qint8(0.05))
    again = q.astype(quint8(0.1, 128))
    np.testing.assert_array_equal(again.numpy(), integers(numbers(q), quint8(0.1, 128), 0, 255))


def test_forms_inside_a_trace() -> None:
    @trace(capture_as_const=True)
    def run(x: Tensor) -> Tensor:
        return x.astype(quint8(0.05, 3)).astype("float32")

    np.testing.assert_array_equal(run(Tensor(X)).numpy(), numbers(Tensor(X, dtype=quint8(0.05, 3))))


Q = Tensor(X, dtype=quint8(0.05, 130))
AFFINE = np.tile(np.float32([[1, 0.1, 0], [0, 1, 0.3]]), (2, 1, 1))
PERSPECTIVE = np.tile(np.float32([[1, 0.1, 0], [0, 1, 0.3], [0, 0, 1]]), (2, 1, 1))


@pytest.mark.parametrize(
    "function",
    [
        F.sigmoid,
        F.exp,
        lambda x: F.mean(x, axis=1),
        lambda x: F.nn.avg_pool2d(x, 2),
        lambda x: F.nn.softmax(x, axis=1),
        lambda x: F.nn.conv2d(x, Tensor(np.ones((3, 4, 2, 2), np.float32))),
        lambda x: F.nn.adaptive_avg_pool2d(x, 2),
        lambda x: F.vision.interpolate(x, scale_factor=2),
        lambda x: F.vision.resize(x, (4, 9), imode="bicubic"),
        lambda x: F.vision.rotate(x, 30.0),
        lambda x: F.vision.remap(x, Tensor(np.full((2, 3, 3, 2), 1.25, np.float32))),
        lambda x: F.vision.warp_affine(x, Tensor(AFFINE), (5, 5), format="NCHW"),
        lambda x: F.vision.warp_perspective(x, Tensor(PERSPECTIVE), (5, 5)),
        lambda x: F.vision.cvt_color(F.transpose(x[:, :3], (0, 2, 3, 1)), "RGB2GRAY"),
    ],
)
def test_functions_of_floats_see_numbers(function) -> None:
    found, wanted = function(Q).numpy(), function(Tensor(numbers(Q))).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        F.nn.relu,
        F.abs,
        lambda x: -x,
        lambda x: x + x,
        lambda x: x * 2.0,
        lambda x: x > 1,
        lambda x: F.maximum(x, x),
        lambda x: F.cumsum(x, 1),
        lambda x: F.nn.linear(x, Tensor(np.ones((3, 6), np.float32))),
        lambda x: F.concat([x, Tensor(X)], 1),
    ],
)
def test_no_op_takes_integers_for_numbers(function) -> None:
    refused = r"an input is quantised, got uint8 at scale 0\.05"
    with pytest.raises(DTypeError, match=refused):
        function(Q)
    with pytest.raises(DTypeError, match=refused):
        trace(lambda x: function(x.astype(quint8(0.05, 130))))(Tensor(X))
    assert np.isfinite(function(Q.astype("float32")).numpy()).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.nn.max_pool2d(x, 3, 2, 1),
        lambda x: F.nn.adaptive_max_pool2d(x, 2),
        lambda x: F.nn.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0))),
        lambda x: F.nn.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0)), constant_value=1.5),
        lambda x: F.nn.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0)), "reflect"),
        lambda x: F.transpose(F.reshape(x, (2, 2, 2, 6, 6)), (0, 2, 1, 3, 4)),
        lambda x: x[:, 1:3, ::2],
        lambda x: F.concat([x, x], 1),
    ],
)
def test_what_moves_and_picks_keeps_integers(function) -> None:
    found = function(Q)
    assert found.qparams == Q.qparams
    np.testing.assert_allclose(numbers(found), function(Tensor(numbers(Q))).numpy(), atol=1e-6)


def test_the_largest_is_found_among_integers() -> None:
    np.testing.assert_array_equal(F.argmax(Q, axis=1).numpy(), Q.numpy().argmax(axis=1))


def test_padding_needs_one_scale() -> None:
    op = ty.registry.get_op("quantize")
    q = op(Tensor([[1.0], [2.0]]), scales=(0.5, 0.25), zero_points=(0, 0), axis=0)
    with pytest.raises(AttrError, match="pad: input has scales along axis 0"):
        F.nn.pad(q, ((1, 1), (0, 0)))


def test_a_bias_may_be_a_value_of_a_trace() -> None:
    x, w = Tensor(X, dtype=qint8(0.05)), Tensor(RNG.normal(0, 1, (3, 4, 1, 1)), dtype=qint8(0.02))
    bias = Tensor(RNG.normal(0, 1, (1, 3, 1, 1)).astype(np.float32))

    def run(x: Tensor) -> Tensor:
        return conv_bias_activation(x, w, bias, qint8(0.1), nonlinear_mode="relu")

    sums = np.einsum("nchw,oc->nohw", x.numpy().astype(int), w.numpy()[:, :, 0, 0].astype(int))
    grid = np.float64(np.float32(0.05)) * np.float64(np.float32(0.02))
    sums = sums + np.rint(bias.numpy().astype(np.float64) / grid).astype(int)
    wanted = np.clip(np.rint(sums.astype(np.float32) * np.float32(grid / np.float32(0.1))), 0, 127)
    np.testing.assert_array_equal(run(x).numpy(), wanted)

    def of_floats(given: Tensor) -> Tensor:
        return run(given.astype(qint8(0.05))).astype("float32")

    np.testing.assert_array_equal(trace(of_floats)(Tensor(X)).numpy(), of_floats(Tensor(X)).numpy())
