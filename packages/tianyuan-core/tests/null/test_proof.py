"""No op is without its table: calls, refusals, oracle, derivatives, sizes, dtypes, NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tianyuan  # noqa: F401 - registers the ops
from tianyuan import registry
from tianyuan.op import Op
from tianyuan.testing import proof

NAMES = sorted(op.name for op in registry.all_ops())


@pytest.mark.parametrize("name", NAMES)
def test_no_proof_is_missing(name: str) -> None:
    assert not proof.lacks(name)


def test_an_op_without_a_table_is_named_with_all_that_it_lacks() -> None:
    bare = Op("bare", infer=lambda specs, attrs: specs[:1], family="elementwise", n_inputs=2)
    registry.register_op(bare)
    try:
        found = proof.lacks("bare")
    finally:
        registry.unregister("nobody", ops=["bare"])
    assert found == [
        "a valid call", "an invalid call", "an independent oracle", "a gradient check",
        "sizes: broadcast", "sizes: empty", "sizes: odd", "sizes: single",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "lack"),
    [
        (lambda case: 0 not in case.arrays()[0].shape, "sizes: empty"),
        (lambda case: case.arrays()[0].dtype != "int16", "dtype: int16"),
        (lambda case: not case.grad, "a gradient check"),
    ],
)
def test_each_gap_is_seen(monkeypatch: pytest.MonkeyPatch, kept, lack: str) -> None:
    cases = [case for case in proof.cases_of("add") if kept(case)]
    monkeypatch.setattr(proof, "cases_of", lambda name: cases)
    assert lack in proof.lacks("add")


def test_a_forgotten_oracle_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(proof.ANSWERS, "conv2d")
    assert {"an independent oracle", "NaN and infinities"} <= set(proof.lacks("conv2d"))


def test_a_dtype_that_inference_newly_accepts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    div = registry.get_op("div")
    lax = replace(div, infer=lambda specs, attrs: specs[:1])
    monkeypatch.setattr(proof, "get_op", lambda name: lax)
    assert "dtype: int32" in proof.lacks("div")
