"""Where traced and eager results in bfloat16 differ: a fused bias is added before rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tianyuan import Tensor
from tianyuan import functional as F
from tianyuan.jit import trace

BF16 = ml_dtypes.bfloat16
# Multiples of 1/64, so that float32 sums are exact in any order and only bfloat16 rounds.
RNG = np.random.default_rng(5)
X, W, B = (
    (RNG.integers(-127, 128, shape) / 64).astype(BF16) for shape in ((16, 96), (40, 96), (40,))
)
EXACT = X.astype(np.float64) @ W.astype(np.float64).T
ONCE = (EXACT + B.astype(np.float64)).astype(np.float32).astype(BF16)
TWICE = (EXACT.astype(np.float32).astype(BF16).astype(np.float32) + B.astype(np.float32)).astype(
    BF16
)


def _linear(x: Tensor) -> Tensor:
    found: Tensor = F.nn.linear(x, Tensor(W, dtype="bfloat16"), Tensor(B, dtype="bfloat16"))
    return found


@pytest.mark.parametrize("level", [None, 0, 1])
def test_what_is_not_fused_rounds_product_and_sum(level: int | None) -> None:
    run = _linear if level is None else trace(_linear, opt_level=level)
    np.testing.assert_array_equal(run(Tensor(X, dtype="bfloat16")).numpy(), TWICE)


@pytest.mark.parametrize("level", [2, 3])
def test_fused_results_are_rounded_once_or_as_eager_ones(level: int) -> None:
    assert np.mean(ONCE != TWICE) > 0.1
    found = trace(_linear, opt_level=level)(Tensor(X, dtype="bfloat16")).numpy()
    assert ((found == ONCE) | (found == TWICE)).all()


def test_without_a_bias_both_are_the_same() -> None:
    def product(x: Tensor) -> Tensor:
        found: Tensor = F.nn.linear(x, Tensor(W, dtype="bfloat16"))
        return found

    x = Tensor(X, dtype="bfloat16")
    expected = EXACT.astype(np.float32).astype(BF16)
    np.testing.assert_array_equal(product(x).numpy(), expected)
    np.testing.assert_array_equal(trace(product)(x).numpy(), expected)
