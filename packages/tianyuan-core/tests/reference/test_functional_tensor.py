"""Creating, moving, joining and picking against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def same(got, want, dtype=None):
    want = np.asarray(want)
    assert got.shape == want.shape
    if dtype is not None:
        assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.numpy(), want)


def test_filled():
    same(F.zeros((2, 3)), np.zeros((2, 3)), "float32")
    same(F.ones(3, dtype="int32"), np.ones(3), "int32")
    same(F.full((2,), 7), [7, 7], "int32")
    same(F.full((2,), 1.5), [1.5, 1.5], "float32")
    same(F.full((), True), True, "bool")
    same(F.full((2,), Tensor(3.0)), [3, 3], "float32")
    same(F.zeros_like(Tensor(X)), np.zeros_like(X), "float32")
    same(F.ones_like(Tensor([1, 2])), [1, 1], "int32")
    same(F.full_like(Tensor(X), 2), np.full_like(X, 2), "float32")
    same(F.zeros((0, 3)), np.zeros((0, 3)), "float32")


@pytest.mark.parametrize(
    "args", [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0, 1, 0.3), (3, 3), (5, 2), (1.5, 4)], ids=str
)
def test_arange(args):
    same(F.arange(*args), np.arange(*args).astype(np.float32), "float32")


def test_arange_with_a_dtype():
    same(F.arange(4, dtype="int32"), [0, 1, 2, 3], "int32")


def test_linspace_and_eye():
    np.testing.assert_allclose(F.linspace(0, 1, 7).numpy(), np.linspace(0, 1, 7), rtol=1e-6)
    same(F.linspace(3, 9, 1), [3], "float32")
    same(F.eye(2, 3), np.eye(2, 3), "float32")
    same(F.eye(2, dtype="int32"), np.eye(2), "int32")


def test_reshape():
    same(F.reshape(Tensor(X), (-1, 4)), X.reshape(-1, 4))
    same(F.reshape(Tensor(X), (4, -1, 2)), X.reshape(4, -1, 2))
    same(F.reshape(Tensor(X), Tensor([6, 4])), X.reshape(6, 4))
    same(Tensor(X).reshape(6, -1), X.reshape(6, 4))
    same(F.reshape(Tensor(X[:0]), (0, 5)), np.zeros((0, 5)))


def test_result_of_reshape_is_its_own():
    source = Tensor([1.0, 2.0])
    F.reshape(source, (2,))[0] = 5.0
    same(source, [1, 2])


@pytest.mark.parametrize(("start", "end"), [(0, -1), (1, -1), (0, 1), (1, 1), (-2, 2)])
def test_flatten(start, end):
    want = torch.flatten(torch.tensor(X), start, end)
    same(F.flatten(Tensor(X), start, end), want)


def test_transpose():
    same(F.transpose(Tensor(X), (2, 0, 1)), X.transpose(2, 0, 1))
    same(F.transpose(Tensor(X), (-1, "x", 0, 1)), X.transpose(2, 0, 1)[:, None])
    same(F.transpose(Tensor(X), ("x", 0, 1, 2, "x")), X[None, ..., None])
    same(F.swapaxes(Tensor(X), 0, -1), X.swapaxes(0, -1))
    same(Tensor(X).T, X.T)


def test_expand_dims_and_squeeze():
    same(F.expand_dims(Tensor(X), -1), X[..., None])
    same(F.expand_dims(Tensor(X), (0, 2)), np.expand_dims(X, (0, 2)))
    same(F.squeeze(Tensor(X[:, None, :, :1])), X[:, :, 0])
    same(F.squeeze(Tensor(X[None]), 0), X)


def test_broadcast_to():
    same(F.broadcast_to(Tensor([[1], [2]]), (3, 2, 2)), np.broadcast_to([[1], [2]], (3, 2, 2)))


def test_concat_and_stack():
    same(F.concat([Tensor(X), Tensor(X)], 1), np.concatenate([X, X], 1))
    same(F.concat([Tensor([1]), Tensor([0.5])]), [1, 0.5], "float32")
    same(F.stack([Tensor(X), Tensor(X)], -1), np.stack([X, X], -1))
    same(F.concat([Tensor(X)], -1), X)


@pytest.mark.parametrize("how", [2, 4, [1, 3], [0, 2, 2, 4], []], ids=repr)
def test_split(how):
    got, want = F.split(Tensor(X), how, axis=2), np.split(X, how, axis=2)
    assert len(got) == len(want)
    for part, expected in zip(got, want, strict=True):
        same(part, expected)


def test_repeat_and_tile():
    for axis in (None, 0, -1):
        same(F.repeat(Tensor(X), 3, axis), np.repeat(X, 3, axis))
    for reps in (2, (2, 1), (2, 1, 3), (2, 1, 1, 2), (0, 1)):
        same(F.tile(Tensor(X), reps), np.tile(X, reps))


@pytest.mark.parametrize(
    ("shift", "axis"), [(1, None), (-5, None), (2, 0), (1, 2), ((1, -1), (0, 2)), (7, -1), (0, 1)]
)
def test_roll(shift, axis):
    same(F.roll(Tensor(X), shift, axis), np.roll(X, shift, axis))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 3, 4)], ids=str)
def test_meshgrid(indexing, sizes):
    arrays = [np.arange(n, dtype=np.float32) for n in sizes]
    got = F.meshgrid(*map(Tensor, arrays), indexing=indexing)
    for part, want in zip(got, np.meshgrid(*arrays, indexing=indexing), strict=True):
        same(part, want)


def test_gather_and_scatter():
    index = np.array([[[0, 2, 1, 0]], [[1, 1, 0, 2]]])
    same(
        F.gather(Tensor(X), 1, Tensor(index)), torch.gather(torch.tensor(X), 1, torch.tensor(index))
    )
    source = -np.ones((2, 1, 4), np.float32)
    want = torch.scatter(torch.tensor(X), 1, torch.tensor(index), torch.tensor(source))
    same(F.scatter(Tensor(X), 1, Tensor(index), Tensor(source)), want)


def test_where():
    mask = X > 10
    same(F.where(Tensor(mask), Tensor(X), Tensor(-X)), np.where(mask, X, -X), "float32")
    same(F.where(Tensor(mask), Tensor(X), 0.0), np.where(mask, X, 0), "float32")
    same(F.where(Tensor(mask), 1, 0.5), np.where(mask, 1, 0.5), "float32")
    for got, want in zip(F.where(Tensor(mask)), np.where(mask), strict=True):
        same(got, want, "int32")


def test_non_zero_and_cond_take():
    x = np.array([[0, 3, 0], [5, 0, 7]], np.float32)
    same(F.non_zero(Tensor(x)), np.argwhere(x), "int32")
    values, indices = F.cond_take(Tensor(x > 0), Tensor(x))
    same(values, [3, 5, 7])
    same(indices, [1, 3, 5], "int32")


def test_cumsum_and_diag():
    same(F.cumsum(Tensor(X), -1), np.cumsum(X, -1))
    same(F.cumsum(Tensor([True, True]), 0), [1, 2], "int32")
    for k in (-4, -2, 0, 1, 3):
        same(F.diag(Tensor(X[0]), k), np.diag(X[0], k))
        same(F.diag(Tensor(X[0, 0]), k), np.diag(X[0, 0], k))


def test_copy_is_its_own():
    source = Tensor([1.0])
    copied = F.copy(source)
    copied[...] = 2.0
    assert source.item() == 1
    assert copied.item() == 2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: F.tile(x, (2, 1, 3)), lambda x: x.repeat(2, 1, 3)),
        (lambda x: F.repeat(x, 2, 1), lambda x: x.repeat_interleave(2, 1)),
        (lambda x: F.roll(x, 1, 1), lambda x: x.roll(1, 1)),
        (lambda x: F.split(x, [1], 2)[1], lambda x: x[:, :, 1:]),
        (lambda x: F.stack([x, 2 * x]), lambda x: torch.stack([x, 2 * x])),
        (lambda x: F.diag(x[0]), lambda x: torch.diag(x[0])),
        (lambda x: F.diag(x[0, 0], 1), lambda x: torch.diag(x[0, 0], 1)),
        (lambda x: F.transpose(x, (1, "x", 2, 0)), lambda x: x.permute(1, 2, 0)[:, None]),
        (lambda x: F.where(x > 5, x, 2 * x), lambda x: torch.where(x > 5, x, 2 * x)),
        (lambda x: F.cond_take(x > 5, x)[0], lambda x: x[x > 5]),
    ],
    ids=["tile", "repeat", "roll", "split", "stack", "diagonal", "diag", "transpose", "where",
         "cond_take"],
)  # fmt: skip
def test_gradients(ours, theirs):
    x = torch.tensor(X, requires_grad=True)
    result = theirs(x)
    weights = np.arange(result.numel(), dtype=np.float32).reshape(result.shape)
    (result * torch.tensor(weights)).sum().backward()
    tensor = Tensor(X)
    with GradManager() as gm:
        gm.attach(tensor)
        gm.backward((ours(tensor) * Tensor(weights)).sum())
    np.testing.assert_allclose(tensor.grad.numpy(), x.grad, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.reshape(Tensor(X), (5, -1)), ShapeError, "^reshape: shape does not fit"),
        (lambda: F.reshape(Tensor(X), (-1, -1)), ShapeError, "^reshape: shape does not fit"),
        (lambda: F.reshape(Tensor(X), (2.5, 2)), ShapeError, "^reshape: shape is not valid"),
        (lambda: F.transpose(Tensor(X), (0, 1)), AttrError, "^transpose: pattern"),
        (lambda: F.squeeze(Tensor(X), 0), ShapeError, "^squeeze: extent must be 1"),
        (lambda: F.split(Tensor(X), 3, 2), ShapeError, "^split: extent cannot be cut"),
        (lambda: F.split(Tensor(X), [3, 1], 2), AttrError, "^split: indices must rise"),
        (lambda: F.stack([Tensor(X), Tensor(X[0])]), ShapeError, "^stack: inputs must have one"),
        (lambda: F.concat([]), ShapeError, "^concat: no input"),
        (lambda: F.zeros((2, -1)), ShapeError, "^zeros: an extent is negative"),
        (lambda: F.arange(0, 3, 0), AttrError, "^arange: step"),
        (lambda: F.where(Tensor(X), 1, 2), DTypeError, "^where: mask must be bool"),
        (lambda: F.flatten(Tensor(X), 2, 0), AttrError, "^flatten: axes are crossed"),
        (lambda: F.roll(Tensor(X), (1, 2, 3), (0, 1)), AttrError, "^roll: shifts do not fit"),
        (lambda: F.diag(Tensor(X)), ShapeError, "^diag: input must be"),
        (lambda: F.meshgrid(Tensor(X)), ShapeError, "^meshgrid: inputs must be vectors"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
