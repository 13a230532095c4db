"""full, arange and eye against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

DTYPES = ["float32", "int32", "bool", "float16", "int64", "uint8", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 70), (), (0, 3), (70000,)])
def test_full(apply: Any, dtype: str, shape: Any) -> None:
    for value in (0.0, 1.0, 2.5, *(() if dtype == "uint8" else (-3.0,))):
        got = apply("full", shape=shape, value=value, dtype=dtype)
        np.testing.assert_array_equal(got, np.full(shape, np.float64(value).astype(dtype)))


def test_full_of_bfloat16(apply: Any) -> None:
    got = apply("full", shape=(5,), value=1.7, dtype="bfloat16")
    np.testing.assert_array_equal(got, np.full(5, 1.7, ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "cols", "k"), [(4, 6, 1), (6, 4, -2), (5, 5, 0), (3, 3, 9)])
def test_eye(apply: Any, dtype: str, rows: int, cols: int, k: int) -> None:
    got = apply("eye", rows=rows, cols=cols, k=k, dtype=dtype)
    np.testing.assert_array_equal(got, np.eye(rows, cols, k, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8", "float64"])
def test_arange(apply: Any, dtype: str) -> None:
    got = apply("arange", start=2.0, step=3.0, count=40, dtype=dtype)
    np.testing.assert_array_equal(got, (2 + 3 * np.arange(40.0)).astype(dtype))


def test_arange_rounds_like_its_definition(apply: Any) -> None:
    got = apply("arange", start=0.1, step=0.7, count=40001, dtype="float64")
    np.testing.assert_array_equal(got, 0.1 + np.arange(40001) * 0.7)
