"""Most float32 ops run natively, the share is printed, and explain() names what does not."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import registry
from tianyuan.jit import trace
from tianyuan.kernel import Call
from tianyuan.testing.cases import cases_of
from tianyuan.testing.suite import call_of

LEAST = 0.9
F32 = np.dtype("float32")
# Other floats in a call make it one of another precision.
OTHERS = {"float16", "bfloat16", "float64", "complex64", "complex128"}


def float32_calls(name: str) -> list[Call]:
    """Return the kit's calls of an op that read or make float32."""
    found = []
    for case in cases_of(name):
        call = call_of(registry.get_op(name), case, case.arrays())
        dtypes = [spec.dtype for spec in (*call.inputs, *call.outputs)]
        if F32 in dtypes and not OTHERS & {dtype.name for dtype in dtypes}:
            found.append(call)
    return found


def is_native(call: Call) -> bool:
    """Return whether a C kernel of this backend serves a call; a Python kernel does not count."""
    return any(
        kernel.is_native and registry.refusal(kernel, call) is None
        for kernel in registry.candidates(call.op.name, "cpu", "x86")
        if kernel.backend == "x86"
    )


def test_most_float32_ops_and_calls_run_natively(capsys: pytest.CaptureFixture[str]) -> None:
    served = {op.name: list(map(is_native, float32_calls(op.name))) for op in registry.all_ops()}
    served = {name: calls for name, calls in served.items() if calls}
    assert len(served) > 100
    native = [name for name, calls in served.items() if any(calls)]
    calls = [one for found in served.values() for one in found]
    ops_share, calls_share = len(native) / len(served), sum(calls) / len(calls)
    with capsys.disabled():
        print(f"\nx86 runs {len(native)} of {len(served)} float32 ops natively ({ops_share:.1%}),")
        print(f"{sum(calls)} of {len(calls)} of the kit's float32 calls ({calls_share:.1%}); not:")
        print(", ".join(sorted(set(served) - set(native))))
    assert ops_share >= LEAST
    assert calls_share >= LEAST


def test_what_is_not_native_is_named() -> None:
    svd = registry.get_op("svd")
    function = trace(lambda x: svd(x * 2.0, full_matrices=False, compute_uv=True), symbolic=True)
    function(ty.Tensor(np.eye(3, dtype=np.float32)))
    explanation = function.explain()
    assert [step.op for step in explanation.native_steps] == ["mul"]
    (other,) = (*explanation.reference_steps, *explanation.callout_steps)
    assert other.op == "svd"
    assert other.backend == "numpy"
    row = next(line for line in str(explanation).splitlines() if " svd " in line)
    assert other.how in row
