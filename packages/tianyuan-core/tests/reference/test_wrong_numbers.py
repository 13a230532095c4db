"""Counts that are no ints and factors that are no numbers are refused by the verb that got them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError

X = Tensor(np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2))
ROWS = Tensor([[3.0, 1.0, 2.0]])
COUNTED: dict[str, Callable[[Any], Any]] = {
    "topk": lambda n: F.topk(ROWS, n),
    "one_hot": lambda n: F.one_hot(Tensor([0]), n),
    "pixel_shuffle": lambda n: F.pixel_shuffle(X, n),
    "tile": lambda n: F.tile(ROWS, [1, n]),
    "split": lambda n: F.split(ROWS, [n], axis=1),
    "diag": lambda n: F.diag(ROWS, n),
}


@pytest.mark.parametrize("verb", COUNTED)
@pytest.mark.parametrize("wrong", ["1", None, 1.5, True, (1, 2)], ids=repr)
def test_counts_must_be_ints(verb: str, wrong: Any) -> None:
    with pytest.raises(AttrError, match=rf"^{verb}: .* must be an int, got "):
        COUNTED[verb](wrong)


@pytest.mark.parametrize("verb", COUNTED)
def test_ints_of_any_kind_are_counts(verb: str) -> None:
    want = COUNTED[verb](1)
    for count in (np.int64(1), np.int8(1), Tensor(1)):
        found = COUNTED[verb](count)
        for a, b in zip(_listed(want), _listed(found), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("wrong", ["1", (0.5,), object()], ids=["text", "tuple", "object"])
def test_factors_must_be_numbers(wrong: Any) -> None:
    with pytest.raises(AttrError, match="dropout: drop_prob must be a number, got "):
        F.dropout(ROWS, wrong)
    with pytest.raises(AttrError, match="norm: ord must be a number, got "):
        F.norm(ROWS, wrong)
    with pytest.raises(AttrError, match="split: nsplits_or_sections must be an int, got 1.5"):
        F.split(ROWS, 1.5)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_products_that_overflow_are_infinite_without_a_word() -> None:
    wide = Tensor(np.full((2, 2), 1e38, np.float32))
    assert F.matmul(wide, wide).tolist() == [[np.inf, np.inf]] * 2


def _listed(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)
