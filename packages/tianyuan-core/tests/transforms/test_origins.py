"""What fails in a compiled program is told as what the user wrote, not only as the op it became."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor, jit
from tianyuan.autodiff import GradManager
from tianyuan.errors import IndexRangeError

SCORES = Tensor(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
WEIGHT = Tensor(np.ones((5, 3), np.float32))
CALLS = {
    "cross_entropy": lambda x, i: F.nn.cross_entropy(x, i),
    "nll_loss": lambda x, i: F.nn.nll_loss(x, i),
    "embedding": lambda x, i: F.nn.embedding(i, WEIGHT),
    "indexing_one_hot": lambda x, i: F.indexing_one_hot(x, i),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("level", [0, 2])
def test_an_index_out_of_range_names_what_was_called(name, level):
    traced = jit.trace(CALLS[name], symbolic=True, opt_level=level)
    traced(SCORES, Tensor([0, 1, 4, 2], dtype="int32"))
    with pytest.raises(IndexRangeError, match=rf"got 7.*test_origins\.py:\d+ in {name}\)"):
        traced(SCORES, Tensor([0, 1, 7, 2], dtype="int32"))


def test_gradients_name_it_too():
    @jit.trace(symbolic=True)
    def step(x, label):
        manager = GradManager().attach([x])
        with manager:
            manager.backward(F.nn.cross_entropy(x, label))
        return x.grad

    with pytest.raises(IndexRangeError, match=r"test_origins\.py:\d+ in cross_entropy"):
        step(SCORES, Tensor([0, 1, 7, 2], dtype="int32"))


def test_modules_name_the_function_that_they_call():
    layer = M.Embedding(5, 3)
    traced = jit.trace(lambda i: layer(i), symbolic=True)
    with pytest.raises(IndexRangeError, match=r"test_origins\.py:\d+ in embedding\)"):
        traced(Tensor([9], dtype="int32"))


def test_ops_of_their_own_name_stand_alone():
    traced = jit.trace(lambda x: F.sqrt(x) + F.nn.softmax(x), symbolic=True, opt_level=0)
    traced(SCORES)
    origins = {step.op: step.origin for step in traced.explain().steps}
    assert origins["sqrt"].endswith(tuple(map(str, range(10))))
