"""Inference, gradients and decompositions work on symbolic extents without fixing any of them."""

from __future__ import annotations

from typing import Any

import pytest
from tianyuan import registry, shapes
from tianyuan.dtypes import as_dtype, is_float
from tianyuan.op import GradContext, NoAttrs, TensorSpec
from tianyuan.ops import attrs as a
from tianyuan.ops.operand import Operand
from tianyuan.testing.cases import Case, all_cases, specs_of


class Shaped(Operand):
    """A value of which only the spec is known; remembers every op that was applied."""

    applied: list[tuple[str, Any]] = []

    def __init__(self, spec: TensorSpec) -> None:
        self.spec, self.shape, self.dtype = spec, spec.shape, spec.dtype

    @classmethod
    def _apply(cls, op, operands, attrs):
        cls.applied.append((op.name, attrs))
        outputs = tuple(cls(s) for s in op.infer(tuple(x.spec for x in operands), attrs))
        return outputs[0] if len(outputs) == 1 else outputs


def _symbolic(spec: TensorSpec) -> TensorSpec:
    """Name every extent after its size, so that extents which must agree have one symbol."""
    return spec.with_shape(tuple(shapes.Dim(int(n), f"d{int(n)}") for n in spec.shape))


def _outputs(op, inputs, attrs):
    found = Shaped._apply(op, inputs, attrs)
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture
def no_branch(monkeypatch):
    def fail(dim):
        raise AssertionError(f"compared the dynamic extent {dim!r}")

    monkeypatch.setattr(shapes, "on_branch", fail)
    monkeypatch.setattr(Shaped, "applied", [])


@pytest.mark.parametrize("case", [case for case in all_cases() if case.grad], ids=str)
def test_symbolic_extents(case: Case, no_branch):
    op = registry.get_op(case.op)
    inputs = tuple(Shaped(_symbolic(spec)) for spec in specs_of(case.arrays()))
    outputs = _outputs(op, inputs, case.attrs)
    if op.decompose is not None:
        found = op.decompose(inputs, case.attrs)
        parts = found if isinstance(found, (tuple, list)) else (found,)
        assert [tuple(map(int, p.shape)) for p in parts] == [
            tuple(map(int, y.shape)) for y in outputs
        ]
    if op.grad is None:
        return
    needs = tuple(is_float(x.dtype) for x in inputs)
    grads = op.grad(GradContext(inputs, outputs, case.attrs, needs), outputs)
    for x, g in zip(inputs, grads, strict=True):
        assert g is None or tuple(map(int, g.shape)) == tuple(map(int, x.shape))


def _gradient(name, spec, attrs):
    op, x = registry.get_op(name), Shaped(spec)
    outputs = _outputs(op, (x,), attrs)
    Shaped.applied.clear()
    grads = op.grad(GradContext((x,), outputs, attrs, (True,)), outputs)
    return grads[0]


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("mean", a.Reduce((0, 1), False)),
        ("max", a.Reduce((0,), True)),
        ("prod", a.Reduce((0,), False)),
        ("cumsum", a.Axis(0)),
        ("cumprod", a.Axis(0)),
        ("softmax", a.Axis(0)),
        ("slice", a.Slice((0, 1), (shapes.Dim(7, "n"), 2), (1, 1))),
        ("pad", a.Pad((1, 0), (0, 2), "reflect")),
        ("sigmoid", NoAttrs()),
    ],
)
def test_a_gradient_keeps_the_symbol(name, attrs, no_branch):
    n = shapes.Dim(7, "n")
    gradient = _gradient(name, TensorSpec((n, 4), as_dtype("float32")), attrs)
    assert shapes.specialise(gradient.shape, {"n": 11}) == (11, 4)


def test_the_gradient_of_a_mean_divides_by_the_symbolic_count(no_branch):
    n = shapes.Dim(7, "n")
    _gradient("mean", TensorSpec((n, 4), as_dtype("float32")), a.Reduce((0,), False))
    # The count is a sum of as many ones as the axis has, never the number 7 of the example.
    fulls = [attrs for name, attrs in Shaped.applied if name == "full"]
    assert [shapes.specialise(attrs.shape, {"n": 11}) for attrs in fulls] == [(11,)]
    assert all(attrs.value == 1.0 for attrs in fulls)
