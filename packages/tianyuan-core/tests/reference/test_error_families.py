"""``except IndexError``, ``except ValueError`` and so on catch what they catch with numpy."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.errors import TianyuanError

FAMILIES = (IndexError, ValueError, TypeError, KeyError, OverflowError)

# One mistake as a function of an array, the array's library, and a maker of indices.
CASES = {
    "an index": lambda x, make, of: x[5],
    "an index in a list": lambda x, make, of: x[[0, 5]],
    "an index in an array": lambda x, make, of: x[make([0, 5])],
    "indices that write": lambda x, make, of: x.__setitem__(make([-3]), 1.0),
    "too many indices": lambda x, make, of: x[0, 0, 0],
    "a fraction as index": lambda x, make, of: x[1.5],
    "fractions as indices": lambda x, make, of: x[make([0.5])],
    "a word as index": lambda x, make, of: x["a"],
    "a mask of another shape": lambda x, make, of: x[make(np.ones((3, 3), bool))],
    "indices of two lengths": lambda x, make, of: x[[0, 1], [0, 1, 2]],
    "a step of zero": lambda x, make, of: x[::0],
    "a value of another shape": lambda x, make, of: x.__setitem__(0, make(np.ones(5, "float32"))),
    "an axis": lambda x, make, of: x.sum(5),
    "an axis of concat": lambda x, make, of: of.concat([x, x], 5),
    "an axis of expand_dims": lambda x, make, of: of.expand_dims(x, 7),
    "an axis that is a word": lambda x, make, of: x.sum("a"),
    "an axis that is a fraction": lambda x, make, of: x.sum(0.5),
    "an axis twice": lambda x, make, of: x.sum((0, 0)),
    "a shape": lambda x, make, of: x.reshape(5),
    "a shape that is a word": lambda x, make, of: x.reshape("a"),
    "a shape of fractions": lambda x, make, of: of.zeros((1.5,)),
    "a negative extent": lambda x, make, of: of.zeros((-1,)),
    "shapes that do not broadcast": lambda x, make, of: x + make(np.ones(5, "float32")),
    "shapes that do not multiply": lambda x, make, of: of.matmul(x, x),
    "shapes that do not concatenate": lambda x, make, of: of.concat([x, x[:, :2]]),
    "lists of two lengths": lambda x, make, of: make([[1], [1, 2]]),
    "a power of an integer": lambda x, make, of: make([2]) ** make([-1]),
    "a count of what is negative": lambda x, make, of: of.bincount(make([-1])),
    "a word among numbers": lambda x, make, of: x + "a",
    "an unknown dtype": lambda x, make, of: x.astype("foo"),
    "bits of floats": lambda x, make, of: x & x,
    "a number for a narrow dtype": lambda x, make, of: of.full((2,), 300, dtype="uint8"),
}


class _Numpy:
    concat, expand_dims, zeros = np.concatenate, np.expand_dims, np.zeros
    matmul, bincount, full = np.matmul, np.bincount, np.full


def _families(run):
    with pytest.raises(Exception) as caught:
        run()
    return caught.value, {family for family in FAMILIES if isinstance(caught.value, family)}


@pytest.mark.parametrize("backend", [None, "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_an_error_is_caught_as_with_numpy(case, backend):
    values = np.ones((2, 3), np.float32)
    _, wanted = _families(lambda: CASES[case](values, np.array, _Numpy))
    assert wanted
    with ty.use_backend(backend) if backend else nullcontext():
        error, found = _families(lambda: CASES[case](ty.Tensor(values), ty.Tensor, F))
    # One of numpy's is enough: an axis' error is a ValueError there too.
    assert found & wanted, f"{type(error).__name__} is no {wanted}"


def test_an_index_that_data_shows_to_be_wrong_is_an_index_error_in_a_program_too():
    rows = ty.Tensor(np.ones((2, 3), np.float32))
    for backend in (None, "numpy"):
        traced = ty.jit.trace(lambda x, i: F.gather(x * 2, 0, i) + 1, symbolic=True)
        with ty.use_backend(backend) if backend else nullcontext():
            traced(rows, ty.Tensor([[1, 0, 0]]))
            with pytest.raises(IndexError, match="gather: index out of range, got 4") as caught:
                traced(rows, ty.Tensor([[1, 4, 0]]))
    assert isinstance(caught.value, TianyuanError)
    with pytest.raises(IndexError, match="embedding|take"):
        ty.module.Embedding(2, 3)(ty.Tensor([9]))
    with pytest.raises(IndexError):
        F.one_hot(ty.Tensor([9]), 3)


def test_what_pytorch_calls_a_runtime_error_is_one():
    torch = pytest.importorskip("torch")
    cases = [
        lambda lib, x: x.reshape(5),
        lambda lib, x: lib.matmul(x, x),
        lambda lib, x: lib.Linear(2, 2)(x),
        lambda lib, x: lib.Linear(2, 2).load_state_dict({}),
    ]
    theirs = type("T", (), {"matmul": torch.matmul, "Linear": torch.nn.Linear})
    ours = type("T", (), {"matmul": F.matmul, "Linear": ty.module.Linear})
    for case in cases:
        with pytest.raises(RuntimeError):
            case(theirs, torch.ones(2, 3))
        with pytest.raises(RuntimeError):
            case(ours, F.ones((2, 3)))
