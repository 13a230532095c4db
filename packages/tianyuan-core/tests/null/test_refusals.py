"""Every op refuses what it cannot do with `op: what is wrong, got ..., expected ...`."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan  # noqa: F401 - registers the ops
from tianyuan import registry
from tianyuan.errors import DTypeError, ShapeError
from tianyuan.testing.cases import all_invalid, cases_of
from tianyuan.testing.mutations import badly_refused, fault_of

NAMES = sorted(op.name for op in registry.all_ops())
CASES_EACH = 25  # the first ones of a table differ most


@pytest.mark.parametrize("name", NAMES)
def test_spoilt_calls_are_refused_in_the_form(name: str) -> None:
    op, refused, faults = registry.get_op(name), 0, []
    for case in cases_of(name)[:CASES_EACH]:
        count, found = badly_refused(op, case)
        refused, faults = refused + count, faults + found
    assert refused, "no change of a valid call is refused"
    assert not faults, f"{len(faults)} of {refused}: " + "\n".join(faults[:5])


@pytest.mark.parametrize("case", all_invalid(), ids=lambda case: f"{case.op}: {case.match}")
def test_listed_refusals_have_the_form(case) -> None:
    with pytest.raises(case.error) as caught:
        registry.get_op(case.op).infer(case.inputs, case.attrs)
    assert fault_of(case.op, caught.value) is None


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ShapeError("add: shapes differ, got (2,), expected (3,)"), None),
        (ShapeError("add: shapes differ, got (2,)"), "lacks"),
        (ShapeError("add: shapes differ"), "lacks"),
        (DTypeError("sub: shapes differ, got (2,), expected (3,)"), "does not start"),
        (IndexError("tuple index out of range"), "raises IndexError"),
    ],
)
def test_the_form_is_told_from_others(error: Exception, fault: str | None) -> None:
    found = fault_of("add", error)
    assert found is None if fault is None else fault in found


def test_a_kernel_never_sees_a_refused_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def note(*arguments, **keywords):
        calls.append(arguments)
        raise AssertionError("selected")

    monkeypatch.setattr(registry, "select", note)
    left, right = tianyuan.Tensor(np.ones(5)), tianyuan.Tensor(np.ones(7))
    with pytest.raises(ShapeError, match=r"add: .*, got \(5,\) and \(7,\), expected "):
        left + right
    assert not calls
    with pytest.raises(AssertionError, match="selected"):
        left + tianyuan.Tensor(np.ones((1, 2, 3, 4, 5, 6, 5)))
