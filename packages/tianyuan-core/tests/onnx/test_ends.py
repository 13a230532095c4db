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


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("operator", ["DequantizeLinear", "QuantizeLinear"])
def test_the_last_block_of_quantised_numbers_may_be_short(operator, axis):
    of, to = ("uint8", "float") if operator[0] == "D" else ("float", "uint8")
    shape = (2, 7) if axis else (7, 2)
    blocks = tuple(3 if n == 7 else n for n in shape)
    made = model(
        f"""
        agraph ({of}[{shape[0]}, {shape[1]}] x) => ({to}[{shape[0]}, {shape[1]}] y)
        {{ y = {operator} <axis = {axis}, block_size = 3> (x, s, z) }}
        """,
        opset=21,
        weights={
            "s": np.linspace(0.01, 0.2, 6, dtype=np.float32).reshape(blocks),
            "z": np.arange(100, 112, 2, dtype=np.uint8).reshape(blocks),
        },
    )
    x = floats(*shape)
    agree(made, x=x if of == "float" else (x * 40 + 128).astype(np.uint8))
