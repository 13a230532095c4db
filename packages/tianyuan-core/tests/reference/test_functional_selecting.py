"""Names that numpy's and PyTorch's users know, against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, KernelError, ShapeError, TraceError
from tianyuan.jit import trace

RNG = np.random.default_rng(31)


def grads(function, *arrays, seed=None):
    """Return the value and the gradients of sum(function * seed), all in float64."""
    tensors = [Tensor(a, "float64") for a in arrays]
    with GradManager() as gm:
        gm.attach(tensors)
        y = function(*tensors)
        gm.backward(y, None if seed is None else Tensor(seed, "float64"))
    return y.numpy(), [None if t.grad is None else t.grad.numpy() for t in tensors]


X = RNG.normal(size=(3, 4, 5))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (-2, 0)])
def test_flip(axis):
    np.testing.assert_array_equal(F.flip(Tensor(X, "float64"), axis).numpy(), np.flip(X, axis))
    seed = RNG.normal(size=X.shape)
    _, (g,) = grads(lambda x: F.flip(x, axis), X, seed=seed)
    np.testing.assert_array_equal(g, np.flip(seed, axis))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumprod(axis):
    got, (g,) = grads(lambda x: F.cumprod(x, axis), X, seed=np.ones(X.shape))
    np.testing.assert_allclose(got, np.cumprod(X, axis), rtol=1e-12)
    # Each product that an element is part of changes by itself over the element.
    behind = np.flip(np.cumsum(np.flip(np.cumprod(X, axis), axis), axis), axis)
    np.testing.assert_allclose(g, behind / X, rtol=1e-9)
    assert F.cumprod(Tensor([True, False]), 0).tolist() == [1, 0]


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_triu_and_tril(k):
    for ours, peer in ((F.triu, np.triu), (F.tril, np.tril)):
        seed = RNG.normal(size=X.shape)
        got, (g,) = grads(lambda x, f=ours: f(x, k), X, seed=seed)
        np.testing.assert_array_equal(got, peer(X, k))
        np.testing.assert_array_equal(g, peer(seed, k))
        whole = np.arange(12).reshape(3, 4)
        np.testing.assert_array_equal(ours(Tensor(whole), k).numpy(), peer(whole, k))
    with pytest.raises(ShapeError, match="^triu: input has the wrong rank"):
        F.triu(Tensor([1.0]))


def test_masked_fill_and_index_select():
    mask = RNG.integers(0, 2, (4, 5)).astype(bool)
    got, (g,) = grads(lambda x: F.masked_fill(x, Tensor(mask), -1.5), X, seed=X)
    np.testing.assert_array_equal(got, np.where(mask, -1.5, X))
    np.testing.assert_array_equal(g, np.where(mask, 0, X))
    with pytest.raises(DTypeError, match="mask must be bool"):
        F.masked_fill(Tensor(X), Tensor(X), 0.0)
    places = np.array([4, 0, 4, -1])
    seed = RNG.normal(size=(3, 4, 4))
    got, (g,) = grads(lambda x: F.index_select(x, -1, Tensor(places)), X, seed=seed)
    np.testing.assert_array_equal(got, np.take(X, places, -1))
    want = np.zeros(X.shape)
    np.add.at(want, (slice(None), slice(None), places), seed)
    np.testing.assert_allclose(g, want)
    with pytest.raises(KernelError, match="out of range"):
        F.index_select(Tensor(X), 0, Tensor([3]))
    with pytest.raises(ShapeError, match="index must be a vector"):
        F.index_select(Tensor(X), 0, Tensor([[0]]))


@pytest.mark.parametrize(("shape", "axis"), [((3, 4, 2), 2), ((3, 1, 6), -1), ((1, 2, 5), 1)])
def test_take_along_axis(shape, axis):
    places = RNG.integers(0, X.shape[axis], shape)
    wide = np.broadcast_to(places, [*np.broadcast_shapes(
        tuple(np.delete(shape, axis)), tuple(np.delete(X.shape, axis)))][:axis % 3]
        + [shape[axis]] + [*np.delete(X.shape, axis)][axis % 3:])  # fmt: skip
    got, (g,) = grads(lambda x: F.take_along_axis(x, Tensor(places), axis), X, seed=None)
    np.testing.assert_array_equal(got, np.take_along_axis(X, wide, axis))
    counts = np.zeros(X.shape)
    np.put_along_axis(counts, wide, 0, axis)
    for place in np.ndindex(*wide.shape):
        target = list(place)
        target[axis] = wide[place]
        counts[tuple(target)] += 1
    np.testing.assert_array_equal(g, counts)


def test_take_along_axis_flat():
    got = F.take_along_axis(Tensor(X), Tensor([[59, 0]]))
    np.testing.assert_array_equal(got.numpy(), X.reshape(-1)[[59, 0]].astype(np.float32))


def test_bincount():
    values = RNG.integers(0, 9, 50)
    weights = RNG.normal(size=50)
    np.testing.assert_array_equal(F.bincount(Tensor(values)).numpy(), np.bincount(values))
    got, (g,) = grads(lambda w: F.bincount(Tensor(values), w, 12), weights, seed=np.arange(12.0))
    np.testing.assert_allclose(got, np.bincount(values, weights, 12), atol=1e-12)
    np.testing.assert_array_equal(g, values)
    assert F.bincount(Tensor(np.zeros(0, np.int32))).shape == (0,)
    with pytest.raises(KernelError, match="^bincount: elements must not be negative, got -1"):
        F.bincount(Tensor([-1]))
    with pytest.raises(DTypeError, match="^bincount: index must be an integer"):
        F.bincount(Tensor([1.0]))


def test_unique():
    values = RNG.integers(-3, 3, (4, 5))
    got = F.unique(Tensor(values), True, True)
    want = np.unique(values, return_inverse=True, return_counts=True)
    for ours, peer in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.numpy().reshape(-1), peer.reshape(-1))
    assert F.unique(Tensor([2.5, 1.0, 2.5])).tolist() == [1.0, 2.5]
    with pytest.raises(TraceError, match="^unique: the size of the result depends on data"):
        trace(F.unique)(Tensor([1]))


def test_isfinite():
    values = np.array([0, np.inf, -np.inf, np.nan, 1e38], np.float32)
    np.testing.assert_array_equal(F.isfinite(Tensor(values)).numpy(), np.isfinite(values))
    assert F.isfinite(Tensor([1, 2])).tolist() == [True, True]


REDUCTIONS = {
    "amax": np.max, "amin": np.min, "max": np.max, "min": np.min, "sum": np.sum, "prod": np.prod,
    "mean": np.mean, "std": np.std, "var": np.var, "argmax": np.argmax, "argmin": np.argmin,
    "norm": np.linalg.norm,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_keepdim_is_keepdims(name):
    want = REDUCTIONS[name](X, axis=1, keepdims=True)
    for spelling in ("keepdim", "keepdims"):
        got = getattr(F, name)(Tensor(X, "float64"), axis=1, **{spelling: True})
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_keepdim_of_logsumexp_and_picking():
    want = np.log(np.sum(np.exp(X), 1, keepdims=True))
    got = F.logsumexp(Tensor(X, "float64"), 1, keepdim=True).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12)
    picked = F.indexing_one_hot(Tensor(X), Tensor(np.zeros((3, 5), int)), keepdim=True)
    assert picked.shape == (3, 1, 5)


@pytest.mark.parametrize("axis", [0, 1, 2, -3])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_along_an_axis(axis, descending):
    way = -1 if descending else 1
    order = np.argsort(way * X, axis, kind="stable")
    x = Tensor(X, "float64")
    np.testing.assert_array_equal(F.argsort(x, descending, axis=axis).numpy(), order)
    for values, indices in (F.sort(x, descending, axis), F.sort(x, descending, axis=axis)):
        np.testing.assert_array_equal(indices.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(X, order, axis))
    first = np.take(order, [0, 1], axis)
    values, indices = F.topk(x, 2, descending, axis=axis)
    np.testing.assert_array_equal(indices.numpy(), first)
    second, place = F.topk(x, 2, descending, kth_only=True, axis=axis)
    np.testing.assert_array_equal(place.numpy(), np.take(order, 1, axis))
    want = np.take_along_axis(X, np.take(order, [1], axis), axis)
    np.testing.assert_array_equal(second.numpy(), want.squeeze(axis))


EQUATIONS = [
    ("ii->i", (4, 4)), ("ii", (4, 4)), ("iij->j", (3, 3, 2)), ("iii->i", (3, 3, 3)),
    ("...ii->...i", (2, 3, 3)), ("ii,ij->j", (3, 3), (3, 2)),
    ("...ij,...jk", (2, 1, 3, 4), (5, 4, 2)),
    ("...i,...i->...", (1, 3), (4, 3)), ("...,i", (2, 1), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda case: case[0])
def test_einsum_with_diagonals_and_broadcasting(case):
    equation, *extents = case
    arrays = [RNG.normal(size=shape) for shape in extents]
    want = np.einsum(equation, *arrays)
    seed = RNG.normal(size=want.shape)
    got, found = grads(lambda *xs: F.einsum(equation, *xs), *arrays, seed=seed)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    # It is linear in each operand, so a difference is exact.
    for number, array in enumerate(arrays):
        way = RNG.normal(size=array.shape)
        moved = [*arrays[:number], way, *arrays[number + 1 :]]
        slope = float(np.sum(np.einsum(equation, *moved) * seed))
        np.testing.assert_allclose(float(np.sum(found[number] * way)), slope, rtol=1e-9, atol=1e-9)


def test_einsum_refuses():
    with pytest.raises(AttrError, match="^einsum: equation is not valid"):
        F.einsum("ij->ii", Tensor(X[0]))
    with pytest.raises(ShapeError, match="^einsum: 'i' has two extents"):
        F.einsum("ii", Tensor(X[0]))


@pytest.mark.parametrize("order", [None, 1, 2, 3, 1.5, float("inf")])
def test_the_gradient_of_a_norm_is_zero_at_zero(order):
    x = np.array([[3.0, -4.0], [0.0, 0.0]])
    got, (g,) = grads(lambda x: F.norm(x, order, axis=1), x, seed=np.ones(2))
    want = np.linalg.norm(x, 2 if order is None else order, axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    p = 2 if order is None else order
    if p == float("inf"):
        np.testing.assert_array_equal(g, [[0, -1], [0, 0]])
    else:
        slope = np.sign(x[0]) * np.abs(x[0]) ** (p - 1) * want[0] ** (1 - p)
        np.testing.assert_allclose(g, [slope, [0, 0]], rtol=1e-12)


def test_the_gradient_of_a_deviation_is_zero_where_there_is_none():
    got, (g,) = grads(lambda x: F.std(x), np.full(3, 2.0))
    assert got == 0
    assert not np.any(g)
    assert np.isnan(F.norm(Tensor([np.nan, 1.0])).item())


def test_unfold_and_fold_are_each_others_transpose():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = RNG.normal(size=(2, 3, 6, 7))
    options = {"dilation": (1, 2), "padding": 1, "stride": (2, 1)}
    want = torch.nn.functional.unfold(torch.tensor(x), (3, 2), **options)
    columns = F.nn.unfold(Tensor(x, "float64"), (3, 2), **options)
    np.testing.assert_array_equal(columns.numpy(), want.numpy())
    back = torch.nn.functional.fold(want, (6, 7), (3, 2), **options)
    got = F.nn.fold(columns, (6, 7), (3, 2), **options)
    np.testing.assert_allclose(got.numpy(), back.numpy(), rtol=1e-12)
    with pytest.raises(ShapeError, match="^fold: input does not fit"):
        F.nn.fold(columns, (6, 8), (3, 2), **options)


def test_matmul_broadcasts_batches():
    a, b = RNG.normal(size=(4, 1, 2, 3)), RNG.normal(size=(5, 3, 2))
    np.testing.assert_allclose(F.matmul(Tensor(a, "float64"), Tensor(b, "float64")).numpy(), a @ b)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_grouped_weights_of_both_shapes(rank):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for transposed in (False, True):
        if transposed and rank == 1:
            continue
        name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
        x = RNG.normal(size=(2, 4, *(5,) * rank)).astype(np.float32)
        w = RNG.normal(size=(4 if transposed else 6, 3 if transposed else 2, *(3,) * rank))
        w = w.astype(np.float32)
        want = getattr(torch.nn.functional, name)(torch.tensor(x), torch.tensor(w), groups=2)
        for weight in (w, w.reshape(2, w.shape[0] // 2, *w.shape[1:])):
            got = getattr(F, name)(Tensor(x), Tensor(weight), groups=2)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "mean"])
def test_methods_understand_keepdim(name):
    want = getattr(X, name)(axis=1, keepdims=True)
    for spelling in ("keepdim", "keepdims"):
        got = getattr(Tensor(X, "float64"), name)(axis=1, **{spelling: True})
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
