"""Inference accepts what an op can do, refuses the rest with a message, and runs nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tianyuan import registry, shapes
from tianyuan.dtypes import as_dtype
from tianyuan.errors import AttrError
from tianyuan.op import NoAttrs, TensorSpec
from tianyuan.ops import attrs as a
from tianyuan.testing.cases import Invalid, all_cases, all_invalid, specs_of

F32 = as_dtype("float32")


def _infer(name, specs, attrs=NoAttrs()):
    return registry.get_op(name).infer(tuple(specs), attrs)


def _spec(*shape, dtype="float32"):
    return TensorSpec(shape, as_dtype(dtype))


@pytest.mark.parametrize("case", all_invalid(), ids=lambda case: f"{case.op}: {case.match}")
def test_invalid_calls_are_refused(case: Invalid):
    with pytest.raises(case.error, match=re.escape(case.match)) as caught:
        _infer(case.op, case.inputs, case.attrs)
    assert str(caught.value).startswith(f"{case.op}: ") or "unknown name" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shapes_in", "attrs", "expected"),
    [
        ("add", [(3, 1), (1, 4)], NoAttrs(), (3, 4)),
        ("add", [(0, 1), (5,)], NoAttrs(), (0, 5)),
        ("sum", [(2, 3, 4)], a.Reduce((0, 2), False), (3,)),
        ("sum", [(2, 3, 4)], a.Reduce((0, 2), True), (1, 3, 1)),
        ("concat", [(2, 3), (5, 3)], a.Axis(0), (7, 3)),
        ("pad", [(2, 3)], a.Pad((1, 0), (2, 4)), (5, 7)),
        ("pad_backward", [(5, 7)], a.PadBackward((1, 0), (2, 4)), (2, 3)),
        ("slice", [(9,)], a.Slice((8,), (3,), (-4,)), (3,)),
        ("transpose", [(2, 3, 4)], a.Transpose((2, 0, 1)), (4, 2, 3)),
    ],
)
def test_shapes(name, shapes_in, attrs, expected):
    (out,) = _infer(name, [_spec(*shape) for shape in shapes_in], attrs)
    assert out.shape == expected
    assert out.dtype == F32


def test_index_shapes():
    x, idx = _spec(4, 5, 6), _spec(2, 3, dtype="int64")
    assert _infer("take", (x, idx), a.Axis(1))[0].shape == (4, 2, 3, 6)
    assert _infer("index", (x, idx, idx), a.Index(2))[0].shape == (2, 3, 6)
    back = _infer("take_backward", (_spec(4, 2, 3, 6), idx), a.TakeBackward(1, 5))[0]
    assert back.shape == (4, 5, 6)
    values, order = _infer("topk", (x,), a.TopK(2, 2))
    assert values.shape == order.shape == (4, 5, 2)
    assert order.dtype == np.int32


@pytest.mark.parametrize(
    ("name", "attrs", "expected"),
    [
        ("relu", NoAttrs(), ("n", 4)),
        ("sum", a.Reduce((1,), False), ("n",)),
        ("pad", a.Pad((1, 0), (2, 0)), (("+", "n", 3), 4)),
        ("transpose", a.Transpose((1, 0)), (4, "n")),
    ],
)
def test_symbols_survive(name, attrs, expected):
    n = shapes.Dim(7, "n")
    (out,) = _infer(name, [TensorSpec((n, 4), F32)], attrs)
    assert tuple(map(shapes.expr_of, out.shape)) == expected


def test_symbols_survive_concat_and_reshape():
    n = shapes.Dim(7, "n")
    x = TensorSpec((n, 4), F32)
    (joined,) = _infer("concat", [x, x], a.Axis(0))
    assert shapes.specialise(joined.shape, {"n": 11}) == (22, 4)
    (flat,) = _infer("reshape", [x], a.Shape((n * 4,)))
    assert shapes.specialise(flat.shape, {"n": 11}) == (44,)


def test_number_of_inputs_is_checked():
    with pytest.raises(AttrError, match="add: wrong number of inputs, got 1, expected 2"):
        registry.get_op("add").check_count(1)


def test_inference_agrees_with_every_valid_call():
    for case in all_cases():
        op, specs = registry.get_op(case.op), specs_of(case.arrays())
        op.check_count(len(specs))
        assert all(isinstance(spec, TensorSpec) for spec in op.infer(specs, case.attrs))
