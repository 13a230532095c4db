"""numpy's functions take tensors, compute what they compute on arrays, and return arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tianyuan
from tianyuan import Parameter, Tensor
from tianyuan.errors import DTypeError, TraceError

A = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
B = np.ones((4, 2), np.float32)

CALLS: dict[str, Any] = {
    "mean": lambda x: np.mean(x),
    "mean_axis": lambda x: np.mean(x, axis=1, keepdims=True),
    "mean_dtype": lambda x: np.mean(x, dtype=np.float64),
    "sum": lambda x: np.sum(x, axis=(0, 1)),
    "sum_where": lambda x: np.sum(x, initial=2.0, where=A > 3),
    "max": lambda x: np.max(x, axis=0),
    "min": lambda x: np.min(x),
    "amax": lambda x: np.amax(x, 1),
    "prod": lambda x: np.prod(x, axis=1),
    "std": lambda x: np.std(x, axis=0, ddof=1),
    "var": lambda x: np.var(x),
    "median": lambda x: np.median(x, axis=1),
    "percentile": lambda x: np.percentile(x, 30),
    "argmax": lambda x: np.argmax(x, axis=1),
    "transpose": lambda x: np.transpose(x),
    "transpose_axes": lambda x: np.transpose(x, (1, 0)),
    "reshape": lambda x: np.reshape(x, (4, 3), order="F"),
    "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "squeeze": lambda x: np.squeeze(x),
    "ravel": lambda x: np.ravel(x),
    "flip": lambda x: np.flip(x, 0),
    "clip": lambda x: np.clip(x, 2, 5),
    "round": lambda x: np.round(x, 1),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "sort": lambda x: np.sort(x, axis=0),
    "any": lambda x: np.any(x > 3),
    "repeat": lambda x: np.repeat(x, 2, axis=1),
    "take": lambda x: np.take(x, [0, 2], axis=1),
    "dot": lambda x: np.dot(x, B),
    "tensordot": lambda x: np.tensordot(x, B, 1),
    "einsum": lambda x: np.einsum("ij,jk->ik", x, B),
    "concatenate": lambda x: np.concatenate([x, A]),
    "stack": lambda x: np.stack((A, x), axis=-1),
    "block": lambda x: np.block([[x, x], [A, x]]),
    "where": lambda x: np.where(A > 4, x, 0),
    "norm": lambda x: np.linalg.norm(x, axis=1),
    "array_equal": lambda x: np.array_equal(x, A),
    "split": lambda x: np.split(x, 2, axis=1),
    "isclose": lambda x: np.isclose(x, A),
    "histogram": lambda x: np.histogram(x, bins=4)[0],
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Tensor, Parameter])
def test_results_are_those_of_arrays(name: str, kind: Any) -> None:
    found, expected = CALLS[name](kind(A)), CALLS[name](A)
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


def test_bfloat16_stays() -> None:
    tensor = Tensor(A, dtype="bfloat16")
    found = np.transpose(tensor)
    assert (type(found), found.dtype) == (np.ndarray, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), A.T)


def test_results_are_apart_from_the_tensor() -> None:
    tensor = Tensor(A)
    np.reshape(tensor, -1)[0] = 99
    np.testing.assert_array_equal(tensor.numpy(), A)


def test_numpy_writes_to_arrays_only() -> None:
    tensor, out = Tensor(A), np.zeros(4, np.float32)
    assert np.sum(tensor, axis=0, out=out) is out
    np.testing.assert_array_equal(out, A.sum(0))
    for call in (
        lambda: np.sum(tensor, axis=0, out=Tensor(out)),
        lambda: np.sum(A, 0, None, Tensor(out)),
        lambda: np.dot(A, B, Tensor(np.zeros((3, 2), np.float32))),
        lambda: np.copyto(tensor, A),
        lambda: np.put(tensor, [0], [9]),
        lambda: np.fill_diagonal(tensor, 9),
    ):
        with pytest.raises(DTypeError, match=r"^numpy\.\w+: .* got Tensor as .* expected an nd"):
            call()
    np.testing.assert_array_equal(tensor.numpy(), A)
    np.copyto(out, tensor[0])
    np.testing.assert_array_equal(out, A[0])


def test_a_trace_knows_shapes_but_no_elements() -> None:
    seen: list[Any] = []

    @tianyuan.jit.trace
    def facts(x: Tensor) -> Tensor:
        seen[:] = [tuple(map(int, np.shape(x))), np.ndim(x), int(np.size(x))]
        return x + 1

    facts(Tensor(A))
    assert seen == [(3, 4), 2, 12]
    with pytest.raises(TraceError, match="Tensor.numpy: the value of a traced tensor"):
        tianyuan.jit.trace(lambda x: np.mean(x))(Tensor(A))


class Stranger:
    """Stands for another library's array, which wants to have its say."""

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
        return f"stranger's {func.__name__}"


def test_other_libraries_have_their_say() -> None:
    assert np.concatenate([Tensor(A), Stranger()]) == "stranger's concatenate"
