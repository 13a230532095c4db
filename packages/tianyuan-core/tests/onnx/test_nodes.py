"""Run the node cases of the onnx package on each set of kernels that is installed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tianyuan.random
from backend import TianyuanBackend, noted_references
from tianyuan import registry

REFUSED = Path(__file__).with_name("refused.txt")
# Two units in the last place, where sums in another order give another value.
COARSE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}


@lru_cache(maxsize=None)
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


@lru_cache(maxsize=None)
def refused() -> dict[str, str]:
    """Return the reason of each case that is known not to pass."""
    found: dict[str, str] = {}
    reason = ""
    for line in REFUSED.read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line.strip():
            assert reason, f"{line} has no reason above it"
            found[line.strip()] = reason
    return found


@lru_cache(maxsize=None)
def kernels() -> tuple[str, ...]:
    """Return the sets of kernels that serve the host here."""
    registry.get_device_spec("cpu")
    return registry.backends()


def sets_of(case: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the inputs and expected outputs of a case."""
    from onnx import numpy_helper

    def plain(item: Any) -> Any:
        return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item

    return [([*map(plain, inputs)], [*map(plain, outs)]) for inputs, outs in case.data_sets]


def check(got: Any, want: Any, rtol: float, atol: float) -> None:
    """Compare an output as the suite does: sequences item by item, text exactly."""
    if isinstance(want, (list, tuple)):
        assert isinstance(got, (list, tuple))
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check(one, other, rtol, atol)
        return
    if want is None:
        assert got is None
        return
    want = np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind in "OUS":
        assert np.array_equal(got, want)
        return
    assert got.dtype == want.dtype
    rtol = max(rtol, COARSE.get(want.dtype.name, 0.0))
    if want.dtype.kind not in "biuf" or want.dtype.itemsize < 2:
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def operator_of(case: Any) -> tuple[str, str]:
    """Return domain and name of the operator that a case is about."""
    plain = case.name.split("_expanded")[0]
    shown = cases().get(plain, case)
    nodes = shown.model.graph.node
    node = next((n for n in nodes if n.op_type.lower() in plain.replace("_", "")), nodes[-1])
    return node.domain or "ai.onnx", node.op_type


def run_case(name: str, backend: str) -> tuple[list[str] | None, set[str]]:
    """Run a case; return the kernels of its program, and the references that ran eagerly."""
    case = cases()[name]
    tianyuan.random.seed(7)

    class Chosen(TianyuanBackend):
        kernels = backend

    prepared = Chosen.prepare(case.model)
    with noted_references() as found:
        for inputs, expected in sets_of(case):
            got: Sequence[Any] = prepared.run(inputs)
            assert len(got) == len(expected)
            for one, other in zip(got, expected, strict=True):
                check(one, other, case.rtol, case.atol)
    return prepared.kernels_of(inputs), found


@pytest.mark.parametrize("backend", kernels())
@pytest.mark.parametrize("name", list(cases()))
def test_node_case(name: str, backend: str, record_property: Any) -> None:
    domain, operator = operator_of(cases()[name])
    row = {"kernels": backend, "domain": domain, "operator": operator, "passed": False,
           "references": [], "compiled": False}  # fmt: skip
    record_property("node_case", row)
    reason = refused().get(name)
    try:
        steps, eager = run_case(name, backend)
    except Exception as error:
        if reason is None:
            raise
        pytest.xfail(f"{reason}: {error}")
    row["passed"] = True
    row["compiled"] = steps is not None
    references = eager if steps is None else {k for k in steps if k.endswith("__reference")}
    row["references"] = sorted(references)
    assert reason is None, f"{name} passes, but {REFUSED.name} says: {reason}"


def test_refused_cases_exist() -> None:
    assert not set(refused()) - set(cases())
