"""Run the node cases of the onnx package on each set of kernels that is installed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
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


@cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


@cache
def model_cases() -> dict[str, Any]:
    """Return the cases whose models and data lie in the package as files."""
    from onnx.backend.test.loader import load_model_tests

    kinds = ("simple", "pytorch-converted", "pytorch-operator")
    return {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}


@cache
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


@cache
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


def stored_sets(case: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the inputs and expected outputs that lie beside a model."""
    found = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        sides = []
        for prefix, infos in (("input", model.graph.input), ("output", model.graph.output)):
            count = len(list(folder.glob(f"{prefix}_*.pb")))
            sides.append([stored(folder / f"{prefix}_{i}.pb", infos[i].type) for i in range(count)])
        found.append((sides[0], sides[1]))
    return found


def stored(path: Path, kind: Any) -> Any:
    """Read a tensor or a sequence that a case stores."""
    from onnx import numpy_helper

    is_sequence = kind.HasField("sequence_type")
    proto = onnx.SequenceProto() if is_sequence else onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    return numpy_helper.to_list(proto) if is_sequence else numpy_helper.to_array(proto)


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


def run_case(
    model: Any, sets: Sequence[Any], backend: str, rtol: float, atol: float
) -> tuple[list[str] | None, set[str]]:
    """Run a case; return the kernels of its program, and the references that ran eagerly."""
    tianyuan.random.seed(7)

    class Chosen(TianyuanBackend):
        kernels = backend

    prepared = Chosen.prepare(model)
    assert sets
    with noted_references() as found:
        for inputs, expected in sets:
            got: Sequence[Any] = prepared.run(inputs)
            assert len(got) == len(expected)
            for one, other in zip(got, expected, strict=True):
                check(one, other, rtol, atol)
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
        case = cases()[name]
        steps, eager = run_case(case.model, sets_of(case), backend, case.rtol, case.atol)
    except Exception as error:
        if reason is None:
            raise
        pytest.xfail(f"{reason}: {error}")
    row["passed"] = True
    row["compiled"] = steps is not None
    references = eager if steps is None else {k for k in steps if k.endswith("__reference")}
    row["references"] = sorted(references)
    assert reason is None, f"{name} passes, but {REFUSED.name} says: {reason}"


@pytest.mark.parametrize("backend", kernels())
@pytest.mark.parametrize("name", list(model_cases()))
def test_model_case(name: str, backend: str) -> None:
    case = model_cases()[name]
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    reason = refused().get(name)
    try:
        run_case(model, stored_sets(case, model), backend, case.rtol, case.atol)
    except Exception as error:
        if reason is None:
            raise
        pytest.xfail(f"{reason}: {error}")
    assert reason is None, f"{name} passes, but {REFUSED.name} says: {reason}"


def test_refused_cases_exist() -> None:
    assert not set(refused()) - set(cases()) - set(model_cases())
