"""Random numbers: reproducible, of the distribution asked for, fresh in every run of a trace."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.random as R
from scipy import stats
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError, TraceError
from tianyuan.jit import trace

N = 20_000


@pytest.fixture(autouse=True)
def seeded():
    R.seed(42)


# Known answer of Random123 for Philox4x32-10, counter 0 and key 0.
KNOWN = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint64)


def test_stream_is_philox():
    R.seed(0)
    got = R.uniform(size=(4,)).numpy()
    np.testing.assert_array_equal(got, ((KNOWN >> 8) * 2.0**-24).astype(np.float32))


def p_value(sample, name, *args):
    return stats.kstest(sample.numpy().reshape(-1), getattr(stats, name)(*args).cdf).pvalue


def test_uniform():
    assert p_value(R.uniform(size=(N,)), "uniform") > 1e-3
    assert p_value(R.uniform(-2, 3, (N,)), "uniform", -2, 5) > 1e-3
    assert R.uniform().shape == ()
    assert R.uniform().dtype == np.float32


def test_normal():
    assert p_value(R.normal(size=(100, N // 100)), "norm") > 1e-3
    assert p_value(R.normal(2, 0.5, (N,)), "norm", 2, 0.5) > 1e-3


def test_exponential_gamma_and_beta():
    assert p_value(R.exponential(2.0, (N,)), "expon", 0, 0.5) > 1e-3
    assert p_value(R.gamma(0.5, 3, (N,)), "gamma", 0.5, 0, 3) > 1e-3
    assert p_value(R.beta(2, 0.7, (N,)), "beta", 2, 0.7) > 1e-3


def test_poisson():
    got = R.poisson(3.5, (N,)).numpy()
    want = stats.poisson.pmf(np.arange(8), 3.5) * N
    counts = np.bincount(got.astype(int))[:8]
    assert (np.abs(counts - want) < 5 * np.sqrt(want)).all()


def test_parameters_broadcast_behind_the_size():
    got = R.gamma(Tensor([1.0, 2.0, 3.0]), Tensor([[1.0], [100.0]]), (500,))
    assert got.shape == (500, 2, 3)
    np.testing.assert_allclose(got.numpy().mean(0), [[1, 2, 3], [100, 200, 300]], rtol=0.3)
    assert R.exponential(Tensor([1.0, 2.0]), (5,)).shape == (5, 2)


def test_multinomial():
    rows = Tensor([[0.0, 1.0, 3.0], [5.0, 0.0, 0.0]])
    got = R.multinomial(rows, 4000, True).numpy()
    assert got.dtype == np.int32
    assert got.shape == (2, 4000)
    assert (got[1] == 0).all()
    assert (got[0] > 0).all()
    assert abs((got[0] == 2).mean() - 0.75) < 0.04
    assert sorted(R.multinomial(Tensor([1.0, 1.0, 1.0]), 3).tolist()) == [0, 1, 2]


def test_draws_differ_and_seeds_repeat():
    first = R.uniform(size=(8,)).numpy()
    second = R.uniform(size=(8,)).numpy()
    assert not np.intersect1d(first, second).size
    R.seed(42)
    np.testing.assert_array_equal(R.uniform(size=(8,)).numpy(), first)
    R.seed(43)
    assert not np.intersect1d(R.uniform(size=(8,)).numpy(), first).size


def test_state_continues_the_stream():
    R.normal(size=(3,))
    saved = R.get_state()
    want = R.normal(size=(5,)).numpy()
    R.seed(7)
    R.set_state(saved)
    np.testing.assert_array_equal(R.normal(size=(5,)).numpy(), want)


def test_generators_are_independent():
    one, other = R.RNG(1), R.RNG(1)
    first = one.uniform(size=(4,)).numpy()
    R.uniform(size=(4,))
    np.testing.assert_array_equal(other.uniform(size=(4,)).numpy(), first)
    assert one.get_state() == other.get_state() != R.get_state()


def test_permutation():
    got = R.permutation(1000)
    assert got.dtype == np.int32
    assert not np.array_equal(got.numpy(), np.arange(1000))
    np.testing.assert_array_equal(np.sort(got.numpy()), np.arange(1000))
    assert R.permutation(5, dtype="float32").dtype == np.float32
    rows = np.arange(12).reshape(6, 2)
    taken = R.permutation(Tensor(rows)).numpy()
    np.testing.assert_array_equal(taken[np.argsort(taken[:, 0])], rows)


def test_permutations_are_equally_likely():
    orders = ["".join(map(str, R.permutation(3).tolist())) for _ in range(600)]
    counts = np.unique(orders, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_shuffle_is_in_place():
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    tensor = Tensor(rows)
    R.shuffle(tensor)
    assert not np.array_equal(tensor.numpy(), rows)
    np.testing.assert_array_equal(np.sort(tensor.numpy(), 0), rows)


def test_dropout():
    x = np.full((N,), 2.0, np.float32)
    got = F.dropout(Tensor(x), 0.25).numpy()
    kept = got != 0
    np.testing.assert_allclose(got[kept], 2 / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_array_equal(F.dropout(Tensor(x), 0.25, training=False).numpy(), x)
    np.testing.assert_array_equal(F.dropout(Tensor(x), 0.0).numpy(), x)


def test_gradient_of_dropout_is_its_mask():
    x = Tensor(np.ones((50,), np.float32))
    with GradManager() as gm:
        gm.attach(x)
        y = F.dropout(x, 0.5)
        gm.backward(y.sum())
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


def drawing(x):
    return F.dropout(x, 0.5) + R.normal(size=(4,)), R.uniform(size=(2,))


def test_trace_draws_what_eager_draws():
    x = Tensor(np.ones((3, 4), np.float32))
    eager = [drawing(x) for _ in range(3)]
    state = R.get_state()
    R.seed(42)
    traced = trace(drawing, symbolic=True)
    for want in eager:
        for got, expected in zip(traced(x), want, strict=True):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-6)
    assert R.get_state() == state


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: R.seed(-1), AttrError, "^seed: out of range"),
        (lambda: R.seed("a"), AttrError, "^seed: must be an int"),
        (lambda: R.set_state({"seed": 1}), AttrError, "^set_state: "),
        (lambda: R.uniform(size=(-1,)), ShapeError, "^uniform: an extent is negative"),
        (lambda: R.permutation(0), AttrError, "^permutation: n must be"),
        (lambda: R.gamma(-1.0), AttrError, "^gamma: shape must be positive"),
        (lambda: R.poisson(-1.0), AttrError, "^poisson: lam must not"),
        (lambda: R.shuffle(Tensor(1.0)), ShapeError, "^shuffle: "),
        (lambda: R.multinomial(Tensor([1.0, 0.0]), 2), AttrError, "^multinomial: "),
        (lambda: trace(lambda: R.gamma(2.0))(), TraceError, "^gamma: cannot be drawn"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_normal_refuses_a_negative_deviation():
    with pytest.raises(AttrError, match="normal: std must not be negative, got -1"):
        R.normal(0, -1, (2,))
