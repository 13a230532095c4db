"""Where a slope does not exist, gradients are what the op table says, and never NaN."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import registry, use_backend
from tianyuan.autodiff import GradManager
from tianyuan.op import NoAttrs
from tianyuan.ops import attrs as a
from tianyuan.testing.differentiate import Recorded, gradients, outputs_of


def _gradients(name, arrays, attrs=NoAttrs(), seed=None):
    inputs = [Recorded(np.array(x, np.float64)) for x in arrays]
    (y,) = outputs_of(registry.get_op(name), inputs, attrs)
    weights = np.ones(y.shape) if seed is None else np.array(seed, np.float64)
    found = gradients([y], [weights], inputs)
    return [None if g is None else g.array.tolist() for g in found]


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("relu", [-1, 0, 2], [0, 0, 1]),
        ("relu6", [-1, 0, 3, 6, 7], [0, 0, 1, 0, 0]),
        ("abs", [-2, 0, 2], [-1, 0, 1]),
        ("hsigmoid", [-3, 0, 3], [0, 1 / 6, 0]),
        ("hswish", [-4, -3, 3, 4], [0, 0, 1, 1]),
        ("square", [0], [0]),
    ],
)
def test_kinks(name, x, expected):
    np.testing.assert_allclose(_gradients(name, [x])[0], expected)


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round"])
def test_steps_have_no_gradient(name):
    assert _gradients(name, [[0.3, -1.2]]) == [None]


def test_ties_of_two_go_to_the_first():
    assert _gradients("maximum", [[1, 2, 3], [1, 3, 2]]) == [[1, 0, 1], [0, 1, 0]]
    assert _gradients("minimum", [[1, 2, 3], [1, 3, 2]]) == [[1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_of_many_share(name):
    x = [[5, 5, 5, 5], [1, 1, 2, 2]]
    got = _gradients(name, [x], a.Reduce((1,), False), seed=[1, 4])[0]
    last = [0, 0, 2, 2] if name == "max" else [2, 2, 0, 0]
    assert got == [[0.25] * 4, last]


def test_an_infinite_gradient_does_not_leak_through_a_closed_gate():
    assert _gradients("relu", [[-1, 1]], seed=[np.inf, np.inf])[0] == [0, np.inf]
    inputs = [Recorded(np.array([True, False])), Recorded(np.ones(2)), Recorded(np.ones(2))]
    (y,) = outputs_of(registry.get_op("where"), inputs, NoAttrs())
    _, dx, dy = gradients([y], [np.array([np.inf, np.nan])], inputs)
    assert dx.array.tolist() == [np.inf, 0]
    assert dy.array[0] == 0
    assert np.isnan(dy.array[1])


def test_powers_at_zero():
    # d/da a**0 = 0 and d/db 0**b = 0 for b >= 0, though a**(b - 1) and log(a) are infinite.
    da, db = _gradients("pow", [[0, 0, 0, 3], [0, 1, 2, 2]])
    assert da == [0, 1, 0, 6]
    np.testing.assert_allclose(db, [0, 0, 0, 9 * np.log(3)])


def test_a_product_with_zeros():
    got = _gradients("prod", [[[0, 2, 3], [0, 0, 4], [1, 2, 3]]], a.Reduce((1,), False))[0]
    assert got == [[6, 0, 0], [0, 0, 0], [6, 3, 2]]


def test_only_the_last_of_several_writes_has_a_gradient():
    x, source = Recorded(np.zeros((1, 2))), Recorded(np.array([[7.0, 8.0, 9.0]]))
    indices = Recorded(np.array([[1, 0, -1]], np.int32))
    (y,) = outputs_of(registry.get_op("scatter"), [x, indices, source], a.Axis(1))
    assert y.array.tolist() == [[8, 9]]
    dx, none, dsource = gradients([y], [np.array([[10.0, 20.0]])], [x, indices, source])
    assert dx.array.tolist() == [[0, 0]]
    assert none is None
    assert dsource.array.tolist() == [[0, 10, 20]]


def test_repeated_indices_add_up():
    x, indices = Recorded(np.zeros((3, 2))), Recorded(np.array([2, 0, 2, -1], np.int32))
    (y,) = outputs_of(registry.get_op("take"), [x, indices], a.Axis(0))
    seed = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    (dx,) = gradients([y], [seed], [x])
    assert dx.array.tolist() == [[3, 4], [0, 0], [13, 16]]


@pytest.mark.parametrize("backend", [None, "numpy"])
@pytest.mark.parametrize("name", ["relu", "hswish", "gelu", "silu", "elu", "selu", "mish"])
def test_nan_is_not_lost_on_the_way_back(name, backend):
    x = tianyuan.Tensor([np.nan, np.nan, 1.0, -1.0])
    manager = GradManager().attach([x])
    with use_backend(backend) if backend else nullcontext(), manager:
        manager.backward(getattr(F, name)(x), tianyuan.Tensor([1.0, np.nan, np.nan, 1.0]))
    found = x.grad.numpy()
    assert np.isnan(found).tolist()[1:] == [True, True, False]
    # Zero would say that nothing is wrong; PyTorch gives NaN or, for relu, what arrives.
    assert np.isnan(found[0]) or (name == "relu" and found[0] == 1)


@pytest.mark.parametrize("backend", [None, "numpy"])
@pytest.mark.parametrize("name", ["gelu", "silu", "elu", "selu", "softplus", "expm1"])
def test_an_infinite_gradient_stays_infinite_where_the_slope_is_small(name, backend):
    # The slope's sign: below zero gelu and silu fall.
    seed = np.array([np.inf, -np.inf] * 20, np.float32)
    values = np.repeat(np.array([-80, -30, -14, -9, -7, -6, -5, 5, 9, 30], np.float32), 4)
    x = tianyuan.Tensor(values)
    manager = GradManager().attach([x])
    with use_backend(backend) if backend else nullcontext(), manager:
        manager.backward(getattr(F, name)(x), tianyuan.Tensor(seed))
    sign = np.where(values < 0, -1, 1) if name in ("gelu", "silu") else 1
    assert x.grad.numpy().tolist() == (seed * sign).tolist()
