"""Where windows lie when sizes do not divide, as ONNX Runtime has it."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan
import tianyuan.onnx
from written import floats, model, runtime


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", ["", ", output_shape = [9, 6]", ", output_shape = [11, 8]"])
def test_an_odd_rest_of_a_transposed_convolution(auto, shape):
    made = model(
        f"""
        agraph (float[1, 2, 5, 4] x, float[2, 3, 4, 3] w) => (float[1, 3, h, v] y)
        {{ y = ConvTranspose <strides = [2, 2], auto_pad = "{auto}"{shape}> (x, w) }}
        """
    )
    inputs = {"x": floats(1, 2, 5, 4), "w": floats(2, 3, 4, 3, seed=1)}
    got = tianyuan.onnx.load(made)(**inputs).numpy()
    np.testing.assert_allclose(got, runtime(made, inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_channels_of_a_response_normalisation(size):
    """ONNX Runtime refuses even sizes, so this is the formula of ONNX."""
    made = model(
        f"""
        agraph (float[2, 7, 3, 2] x) => (float[2, 7, 3, 2] y)
        {{ y = LRN <size = {size}, alpha = 0.7, beta = 0.6, bias = 1.5> (x) }}
        """
    )
    x = floats(2, 7, 3, 2)
    squares = np.stack(
        [
            (x[:, max(c - (size - 1) // 2, 0) : c + size // 2 + 1] ** 2).sum(1)
            for c in range(x.shape[1])
        ],
        1,
    )
    want = x / (1.5 + 0.7 / size * squares) ** 0.6
    np.testing.assert_allclose(tianyuan.onnx.load(made)(x=x).numpy(), want, rtol=1e-5, atol=1e-6)
