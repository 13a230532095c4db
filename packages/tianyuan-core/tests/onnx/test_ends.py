"""What operators do at the ends of axes, as ONNX Runtime has it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tianyuan
import tianyuan.onnx
from written import floats, model, runtime


def agree(made, **inputs):
    got = tianyuan.onnx.load(made)(**inputs).numpy()
    np.testing.assert_allclose(got, runtime(made, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extent", [0, 1, 4])
@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_slices_that_start_or_end_outside(extent, step):
    x = floats(extent)
    for start, end in itertools.product((-9, -5, -4, -1, 0, 1, 3, 4, 9), repeat=2):
        bounds = {"a": start, "b": end, "c": 0, "d": step}
        made = model(
            f"agraph (float[{extent}] x) => (float[n] y) {{ y = Slice (x, a, b, c, d) }}",
            weights={name: np.array([n]) for name, n in bounds.items()},
        )
        agree(made, x=x)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("size", ["1, 1", "4, 1", "1, 3"])
def test_grids_over_a_single_row_or_column(mode, padding, size):
    made = model(
        f"""
        agraph (float[2, 2, {size}] x, float[2, 3, 4, 2] g) => (float[2, 2, 3, 4] y)
        {{
            y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = 1> (x, g)
        }}
        """
    )
    grid = np.random.default_rng(3).random((2, 3, 4, 2), np.float32) * 3 - 1.5
    agree(made, x=floats(2, 2, *map(int, size.split(","))), g=grid)
