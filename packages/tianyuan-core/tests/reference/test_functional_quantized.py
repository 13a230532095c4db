"""Convolutions of quantised tensors give the integers of exact arithmetic, and say their form."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor, registry
from tianyuan.errors import AttrError, DTypeError, ShapeError
from tianyuan.functional import quantized as Q

torch = pytest.importorskip("torch")


def quantised(array, scale, zero=0, dtype="int8", axis=-1):
    scales = tuple(float(np.float32(s)) for s in np.atleast_1d(scale))
    quantize = registry.get_op("quantize")
    return quantize(
        Tensor(array), scales=scales, zero_points=(zero,) * len(scales), axis=axis, dtype=dtype
    )


def data(*shape, seed=0, spread=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def finished(sums, bias, factor, out, relu=False):
    """Requantise exact sums as docs/quantization.md says, in numpy alone."""
    if bias is not None:
        sums = sums + bias.reshape(1, -1, 1, 1)
    t = sums.astype(np.float32) * np.float32(factor)
    q = np.rint(t.astype(np.float64)) + out.zero_point
    low = max(out.lower, out.zero_point) if relu else out.lower
    return np.clip(q, low, out.upper)


def exact(function, x, zero, w, **options):
    """Convolve integers exactly, in float64, by torch."""
    given = (torch.tensor(a.astype(np.float64)) for a in (x.numpy() - float(zero), w.numpy()))
    return function(*given, **options).numpy()


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (2, 2, 1), (1, 1, 2)])
@pytest.mark.parametrize("mode", ["identity", "relu"])
def test_conv_bias_activation(groups, stride, dilation, mode):
    x = quantised(data(2, 4, 7, 6), 0.02, 117, "uint8")
    scales = np.linspace(0.01, 0.03, 6).astype(np.float32)
    w = quantised(data(6, 4 // groups, 3, 3, seed=1), scales, axis=0)
    bias = data(6, seed=2)
    out = Q.quint8(0.1, 40)
    got = Q.conv_bias_activation(
        x, w, Tensor(bias.reshape(1, 6, 1, 1)), out, stride, 1, dilation, groups, mode
    )
    sums = exact(
        torch.nn.functional.conv2d, x, 117, w, stride=stride, padding=1, dilation=dilation,
        groups=groups,
    )  # fmt: skip
    grid = scales.astype(np.float64) * np.float32(0.02)
    factor = (grid / np.float32(0.1)).astype(np.float32).reshape(1, -1, 1, 1)
    want = finished(sums, np.rint(bias / grid), factor, out, mode == "relu")
    np.testing.assert_array_equal(got.numpy(), want)
    assert got.dtype == np.uint8
    assert got.qparams.scales == (float(np.float32(0.1)),)
    assert got.qparams.zero_points == (40,)


def test_a_bias_of_integers_is_taken_as_it_is():
    x, w = quantised(data(1, 3, 4, 4), 0.03), quantised(data(2, 3, 1, 1), 0.02)
    out = Q.qint8_narrow(0.05)
    bias = np.array([700, -90], np.int32)
    got = Q.conv_bias_activation(x, w, Tensor(bias, "int32"), out)
    sums = exact(torch.nn.functional.conv2d, x, 0, w)
    factor = np.float64(np.float32(0.03)) * np.float32(0.02) / np.float32(0.05)
    np.testing.assert_array_equal(got.numpy(), finished(sums, bias, factor, out))


def test_without_dtype_the_form_of_the_input_stays():
    x, w = quantised(data(1, 3, 4, 4), 0.03, 9), quantised(data(2, 3, 1, 1), 0.02)
    got = Q.conv_bias_activation(x, w, None)
    assert (got.dtype, got.qparams) == (x.dtype, x.qparams)


@pytest.mark.parametrize("groups", [1, 2])
def test_each_item_with_a_weight_of_its_own(groups):
    x = quantised(data(3, 4, 5, 5), 0.03, 5)
    w = quantised(data(3, 6, 4 // groups, 3, 3, seed=1), 0.02)
    bias = data(6, seed=3)
    out = Q.qint8(0.2)
    got = Q.batch_conv_bias_activation(x, w, Tensor(bias), out, 1, 1, 1, groups, "relu")
    kernels = w.numpy()
    grid = np.float64(np.float32(0.03)) * np.float32(0.02)
    for item in range(3):
        sums = torch.nn.functional.conv2d(
            torch.tensor(x.numpy()[item : item + 1].astype(np.float64) - 5),
            torch.tensor(kernels[item].astype(np.float64)), padding=1, groups=groups,
        ).numpy()  # fmt: skip
        want = finished(sums, np.rint(bias / grid), grid / np.float32(0.2), out, True)
        np.testing.assert_array_equal(got.numpy()[item : item + 1], want)


@pytest.mark.parametrize(
    ("kernel", "groups", "stride", "padding", "extra", "dilation"),
    [(3, 1, 2, 1, 1, 1), (2, 2, 2, 0, 0, 1), (3, 1, 1, 0, 0, 2), (1, 1, 3, 1, 2, 1),
     (4, 2, (2, 1), (1, 3), 0, 1)],
)  # fmt: skip
def test_conv_transpose2d(kernel, groups, stride, padding, extra, dilation):
    x = quantised(data(2, 4, 5, 4), 0.03, 130, "uint8")
    w = quantised(data(4, 6 // groups, kernel, kernel, seed=1), 0.02)
    bias, out = data(6, seed=2), Q.quint8(0.05)
    got = Q.conv_transpose2d(x, w, Tensor(bias), out, stride, padding, extra, dilation, groups)
    sums = exact(
        torch.nn.functional.conv_transpose2d, x, 130, w, stride=stride, padding=padding,
        output_padding=extra, dilation=dilation, groups=groups,
    )  # fmt: skip
    grid = np.float64(np.float32(0.03)) * np.float32(0.02)
    want = finished(sums, np.rint(bias / grid), grid / np.float32(0.05), out)
    np.testing.assert_array_equal(got.numpy(), want)


def test_dtypes_that_carry_a_scale():
    assert Q.qint8(0.1).scale == float(np.float32(0.1))
    assert Q.quint8(0.5).zero_point == 128
    assert Q.QuantizedDType("uint8", 1.0).upper == 255
    with pytest.raises(AttrError, match="no positive normal float32 number, got 0.0"):
        Q.qint8(1e-60)
    with pytest.raises(AttrError, match="zero point is out of range, got 256"):
        Q.quint8(1.0, 256)
    with pytest.raises(DTypeError, match="unknown storage, got 'int4'"):
        Q.QuantizedDType("int4", 1.0)


def test_bad_operands():
    x, w = quantised(data(1, 3, 4, 4), 0.03), quantised(data(2, 3, 1, 1), 0.02)
    with pytest.raises(DTypeError, match="input is not quantised, got float32"):
        Q.conv_bias_activation(Tensor(data(1, 3, 4, 4)), w, None)
    with pytest.raises(DTypeError, match="dtype carries no scale, got 'int8'"):
        Q.conv_bias_activation(x, w, None, "int8")
    with pytest.raises(AttrError, match="scales along the wrong axis, got 1"):
        Q.conv_bias_activation(quantised(data(1, 3, 4, 4), [0.1] * 3, axis=1), w, None)
    with pytest.raises(AttrError, match="nonlinear_mode is unknown, got 'sigmoid'"):
        Q.conv_bias_activation(x, w, None, nonlinear_mode="sigmoid")
    with pytest.raises(ShapeError, match="bias has the wrong shape, got"):
        Q.conv_bias_activation(x, w, Tensor([1.0]))
    with pytest.raises(AttrError, match="output_padding is too large, got 1"):
        Q.conv_transpose2d(x, quantised(data(3, 2, 1, 1), 0.1), output_padding=1)
    with pytest.raises(ShapeError, match="shapes do not fit"):
        Q.batch_conv_bias_activation(x, w, None)
    assert F.quantized is Q
