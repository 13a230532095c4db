"""What only the data can show to be wrong is refused by references and kernels alike."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.errors import KernelError
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call
from tianyuan.op import NoAttrs
from tianyuan.ops import attrs as a
from tianyuan.testing.cases import specs_of

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _idx(*values):
    return np.array(values, np.int32)


CASES = [
    ("take", (X, _idx(1, 4)), a.Axis(1), "take: index out of range, got 4, expected -4 to 3"),
    ("take", (X, _idx(-4)), a.Axis(0), "take: index out of range, got -4, expected -3 to 2"),
    ("take", (X[:0], _idx(0)), a.Axis(0), "got 0, expected none on an empty axis"),
    ("take_backward", (X, _idx(0, 1, 5)), a.TakeBackward(0, 5), "got 5, expected -5 to 4"),
    ("gather", (X, _idx(9)[None]), a.Axis(0), "gather: index out of range, got 9"),
    ("scatter", (X, _idx(3)[None], X[:1, :1]), a.Axis(0), "scatter: index out of range, got 3"),
    ("scatter_add", (X, _idx(-5)[None], X[:1, :1]), a.Axis(1), "got -5, expected -4 to 3"),
    ("index", (X, _idx(0), _idx(4)), a.Index(2), "index: index out of range, got 4"),
    ("index_set", (X, X[:1], _idx(3)), a.Index(1), "index_set: index out of range, got 3"),
    ("index_add", (X, X[:1], _idx(-4)), a.Index(1), "index_add: index out of range, got -4"),
    ("one_hot", (_idx(0, -1),), a.OneHot(3, "float32"), "one_hot: index out of range, got -1"),
    ("pow", (_idx(2, 3), _idx(1, -2)), NoAttrs(), "pow: an integer cannot be raised"),
]


@pytest.mark.parametrize(("name", "arrays", "attrs", "message"), CASES, ids=lambda v: str(v)[:20])
def test_bad_data_is_refused(name, arrays, attrs, message):
    op, specs = registry.get_op(name), specs_of(arrays)
    call = Call(op, specs, op.infer(specs, attrs), attrs)
    for kernel in registry.candidates(name, "cpu", "numpy"):
        with pytest.raises(KernelError, match=message):
            run_kernel(kernel, call, [np.ascontiguousarray(x) for x in arrays])
