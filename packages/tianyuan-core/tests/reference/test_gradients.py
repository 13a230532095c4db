"""Gradients and second derivatives of every op agree with finite differences in float64."""

from __future__ import annotations

import pytest
from tianyuan import registry
from tianyuan.testing.cases import Case, all_cases
from tianyuan.testing.differentiate import check_gradient

CASES = [case for case in all_cases() if case.grad]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case):
    assert check_gradient(registry.get_op(case.op), case, second=False) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.second], ids=str)
def test_second_derivative(case: Case):
    assert check_gradient(registry.get_op(case.op), case, second=True) is None
