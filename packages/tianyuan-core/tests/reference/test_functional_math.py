"""Reductions, order statistics and products against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
AXES = [None, 0, -1, (0, 2), [1, 2]]


def as_axis(axis):
    return tuple(axis) if isinstance(axis, list) else axis


@pytest.mark.parametrize("axis", AXES, ids=repr)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "var", "std"])
def test_reductions(name, axis, keepdims):
    want = getattr(X.astype(np.float64), name)(axis=as_axis(axis), keepdims=keepdims)
    got = getattr(F, name)(Tensor(X), axis, keepdims)
    assert got.shape == want.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    if keepdims:
        other = getattr(F, name)(Tensor(X), axis=axis, keepdim=True)
        np.testing.assert_array_equal(other.numpy(), got.numpy())


@pytest.mark.parametrize("axis", AXES, ids=repr)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions(name, axis, keepdims):
    axes = range(3) if axis is None else [a % 3 for a in np.atleast_1d(axis)]
    rest = [a for a in range(3) if a not in axes]
    moved = X.transpose(*rest, *axes).reshape(*(X.shape[a] for a in rest), -1)
    want = getattr(moved, name)(axis=-1)
    if keepdims:
        want = want.reshape([1 if a in axes else n for a, n in enumerate(X.shape)])
    got = getattr(F, name)(Tensor(X), axis, keepdims)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.numpy(), want)


def test_dtypes_of_reductions():
    flags = Tensor([True, True, False])
    assert F.sum(flags).dtype == np.int32
    assert F.sum(flags).item() == 2
    assert F.prod(flags).dtype == np.int32
    assert F.max(flags).dtype == np.bool_
    assert F.mean(Tensor([1, 2])).item() == 1.5
    assert F.sum(Tensor([1, 2])).dtype == np.int32


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3.5, float("inf"), float("-inf")])
@pytest.mark.parametrize("axis", [None, 1])
def test_norm(order, axis):
    x = np.where(np.abs(X) < 0.3, 0, X)
    flat = x.reshape(-1) if axis is None else x
    want = np.linalg.norm(flat, 2 if order is None else order, 0 if axis is None else axis)
    got = F.norm(Tensor(x), order, axis)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_normalize():
    want = torch.nn.functional.normalize(torch.tensor(X), p=3, dim=1)
    np.testing.assert_allclose(F.normalize(Tensor(X), 3, 1).numpy(), want, rtol=1e-5)
    whole = F.normalize(Tensor(X))
    np.testing.assert_allclose(whole.numpy(), X / np.linalg.norm(X), rtol=1e-5)
    np.testing.assert_array_equal(F.normalize(Tensor(np.zeros((2, 2)))).numpy(), np.zeros((2, 2)))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(descending):
    x = np.array([[3, 1, 3, 2], [0, 0, 5, 5]], np.float32)
    want, order = torch.sort(torch.tensor(x), dim=-1, descending=descending, stable=True)
    values, indices = F.sort(Tensor(x), descending)
    np.testing.assert_array_equal(values.numpy(), want)
    np.testing.assert_array_equal(indices.numpy(), order)
    np.testing.assert_array_equal(F.argsort(Tensor(x), descending).numpy(), order)
    along, _ = F.sort(Tensor(x), descending, dim=0)
    np.testing.assert_array_equal(along.numpy(), torch.sort(torch.tensor(x), 0, descending)[0])


@pytest.mark.parametrize("descending", [False, True])
def test_topk(descending):
    want, order = torch.topk(torch.tensor(X), 2, largest=descending)
    values, indices = F.topk(Tensor(X), 2, descending)
    np.testing.assert_array_equal(values.numpy(), want)
    np.testing.assert_array_equal(indices.numpy(), order)
    last, place = F.topk(Tensor(X), 2, descending, kth_only=True)
    np.testing.assert_array_equal(last.numpy(), want[..., -1])
    np.testing.assert_array_equal(place.numpy(), order[..., -1])


def test_topk_gives_the_largest_by_default():
    np.testing.assert_array_equal(F.topk(Tensor([1.0, 3.0, 2.0]), 2)[0].numpy(), [3, 2])


MATMULS = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((3, 1, 2, 4), (2, 4, 3)),
    ((0, 4), (4, 2)), ((2, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMULS, ids=str)
def test_matmul(left, right):
    a, b = (RNG.normal(size=s).astype(np.float32) for s in (left, right))
    want = np.matmul(a.astype(np.float64), b)
    got = F.matmul(Tensor(a), Tensor(b))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose((Tensor(a) @ b).numpy(), want, rtol=1e-4, atol=1e-6)


def test_matmul_transposes():
    a, b = RNG.normal(size=(2, 4, 3)), RNG.normal(size=(2, 5, 4))
    got = F.matmul(Tensor(a), Tensor(b), transpose_a=True, transpose_b=True)
    want = np.matmul(a.swapaxes(1, 2), b.swapaxes(1, 2))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_dot_and_cross():
    a, b = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2))
    assert F.dot(Tensor(a[:, 0]), Tensor(b[:, 0])).item() == pytest.approx(a[:, 0] @ b[:, 0], 1e-5)
    np.testing.assert_allclose(
        F.cross(Tensor(a), Tensor(b), axis=0).numpy(), np.cross(a, b, axis=0), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        F.cross(Tensor(a), Tensor(b.T), axisa=0, axisc=0).numpy(),
        np.cross(a, b.T, axisa=0, axisb=1, axisc=0), rtol=1e-4, atol=1e-6,
    )  # fmt: skip


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("ij->ji", (2, 3)),
    ("ij->", (2, 3)), ("ij->i", (2, 3)), ("i,j->ij", (2,), (3,)), ("ij,ij->", (2, 3), (2, 3)),
    ("ab,bc,cd", (2, 3), (3, 4), (4, 5)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ij,k->jk", (2, 3), (4,)),     ("i,i,i->i", (3,), (3,), (3,)),
    ("...ij,...jk->...ik", (2, 5, 2, 3), (2, 5, 3, 4)), ("...i,i", (2, 3), (3,)),
    ("i...->...i", (2, 3, 4)), ("...i,...i->...", (3,), (3,)), ("i...,ij", (2, 4, 3), (2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda case: case[0])
def test_einsum(case):
    equation, *sizes = case
    arrays = [RNG.normal(size=s).astype(np.float32) for s in sizes]
    want = np.einsum(equation, *(a.astype(np.float64) for a in arrays))
    got = F.einsum(equation, *map(Tensor, arrays))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def gradient(function, *arrays):
    tensors = [Tensor(a) for a in arrays]
    with GradManager() as gm:
        gm.attach(tensors)
        gm.backward(function(*tensors))
    return [t.grad.numpy() for t in tensors]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: F.var(x, 1).sum(), lambda x: x.var(1, unbiased=False).sum()),
        (lambda x: F.std(x, 1).sum(), lambda x: x.std(1, unbiased=False).sum()),
        (lambda x: F.norm(x, 3), lambda x: torch.linalg.vector_norm(x, 3)),
        (lambda x: F.topk(x, 2)[0].sum(), lambda x: torch.topk(x, 2)[0].sum()),
        (lambda x: F.logsumexp(x, (0, 2)).sum(), lambda x: torch.logsumexp(x, (0, 2)).sum()),
        (lambda x: (F.cumsum(x, 1) * x).sum(), lambda x: (torch.cumsum(x, 1) * x).sum()),
        (lambda x: F.matmul(x, x, transpose_b=True).sum(), lambda x: (x @ x.mT).sum()),
    ],
    ids=["var", "std", "norm", "topk", "logsumexp", "cumsum", "matmul"],
)
def test_gradients(ours, theirs):
    x = torch.tensor(X, requires_grad=True)
    theirs(x).backward()
    np.testing.assert_allclose(gradient(ours, X)[0], x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.sum(Tensor(X), 3), AttrError, "^sum: axis is out of range"),
        (lambda: F.sum(Tensor(X), (0, 0)), AttrError, "^sum: an axis stands twice"),
        (lambda: F.topk(Tensor(X), 5), AttrError, "^topk: k is out of range"),
        (lambda: F.matmul(Tensor(X), Tensor(1.0)), ShapeError, "^matmul: a scalar"),
        (lambda: F.matmul(Tensor(X), Tensor(X)), ShapeError, "^matmul: "),
        (lambda: F.dot(Tensor(X), Tensor(X)), ShapeError, "^dot: inputs must be vectors"),
        (lambda: F.cross(Tensor(X), Tensor(X)), ShapeError, "^cross: vectors must have 3"),
        (lambda: F.einsum("ij->ii", Tensor(X[0])), AttrError, "^einsum: equation"),
        (lambda: F.einsum("ij->i", Tensor(X)), AttrError, "^einsum: term"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
