"""Gradients and second derivatives of every op agree with finite differences in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.op import GradContext
from tianyuan.testing.cases import Case, all_cases
from tianyuan.testing.differentiate import Recorded, check_gradient, outputs_of

CASES = [case for case in all_cases() if case.grad]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case):
    assert check_gradient(registry.get_op(case.op), case, second=False) is None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_second_derivative(case: Case):
    assert check_gradient(registry.get_op(case.op), case, second=True) is None


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if registry.get_op(case.op).grad and len(case.grad) > 1],
    ids=str,
)
def test_gradient_of_one_input_does_not_need_the_others(case: Case):
    op = registry.get_op(case.op)
    inputs = tuple(Recorded(x) for x in case.arrays())
    outputs = outputs_of(op, inputs, case.attrs)
    seeds = tuple(Recorded(np.ones_like(y.array)) for y in outputs)
    every = tuple(i in case.grad for i in range(len(inputs)))
    whole = op.grad(GradContext(inputs, outputs, case.attrs, every), seeds)
    for chosen in case.grad:
        needs = tuple(i == chosen for i in range(len(inputs)))
        found = op.grad(GradContext(inputs, outputs, case.attrs, needs), seeds)[chosen]
        if whole[chosen] is None:
            assert found is None
        else:
            np.testing.assert_array_equal(found.array, whole[chosen].array)


def test_a_wrong_gradient_is_found():
    def wrong(ctx, grads):
        return (grads[0] * (1.0 - ctx.outputs[0]),)

    tanh = registry.get_op("tanh")
    case = next(case for case in CASES if case.op == "tanh")
    assert check_gradient(tanh, case, second=False) is None
    broken = replace(tanh, grad=wrong)
    assert "finite differences give" in check_gradient(broken, case, second=False)
    assert "finite differences give" in check_gradient(broken, case, second=True)


def test_no_output_gradient_gives_no_input_gradient():
    for case in CASES:
        op = registry.get_op(case.op)
        if op.grad is None:
            continue
        inputs = tuple(Recorded(x) for x in case.arrays())
        outputs = outputs_of(op, inputs, case.attrs)
        needs = (True,) * len(inputs)
        nothing = (None,) * len(outputs)
        found = op.grad(GradContext(inputs, outputs, case.attrs, needs), nothing)
        assert len(found) == len(inputs), case.op
        assert all(g is None for g in found), case.op
