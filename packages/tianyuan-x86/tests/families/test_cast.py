"""Casts between all pairs of dtypes against numpy's astype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32",
    "float64", "bfloat16",
]  # fmt: skip
FLOATS = ("float16", "float32", "float64", "bfloat16")


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(apply: Any, rng: np.random.Generator, source: str, target: str) -> None:
    edges = [0, 1, 127, -1, 0.5, 1.5, 2.5, -0.5, 100.75]
    if target in (*FLOATS, "bool"):
        edges += [65504, 1e5, 3e38, np.nan, np.inf, -np.inf, 1e-8, -0.0]
    values = np.concatenate([rng.uniform(-100, 100, 500), edges])
    if target.startswith("u") and source in FLOATS:
        values = np.abs(values)  # C leaves the rest open
    with np.errstate(all="ignore"):
        x = values.astype(_dtype(source))
        want = x.astype(_dtype(target))
    got = apply("cast", x, dtype=target)
    assert got.dtype == want.dtype
    same = (got == want) | ((got != got) & (want != want))
    assert same.all(), (x[~same], got[~same], want[~same])


def test_narrow_floats_exhaustively(apply: Any) -> None:
    for name in ("float16", "bfloat16"):
        x = np.arange(65536, dtype=np.uint16).view(_dtype(name))
        wide = apply("cast", x, dtype="float32")
        np.testing.assert_array_equal(wide, x.astype(np.float32))
        back = apply("cast", wide, dtype=name)
        real = ~np.isnan(wide)
        np.testing.assert_array_equal(back.view(np.uint16)[real], x.view(np.uint16)[real])
