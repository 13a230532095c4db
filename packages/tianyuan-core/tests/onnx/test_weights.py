"""Weights are taken out of a file before protobuf reads it, and held once."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO

import numpy as np
import onnx
import pytest
import tianyuan.onnx
from onnx import TensorProto, helper, numpy_helper
from test_models import FUNCTIONS, cnn
from test_mutated import mutated
from tianyuan.errors import ModelFormatError
from tianyuan.onnx import wire
from written import floats, rng

SCALE = 64 << 20  # bytes of the weight whose copies are counted


def dense(weight: np.ndarray):
    """Return y = x @ w."""
    rows, columns = weight.shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def parts(data: bytes):
    return wire.without_weights(BytesIO(data))


def test_large_weights_are_found_and_left_out():
    weight = floats(64, 32)
    data = dense(weight).SerializeToString()
    rest, spans = parts(data)
    assert list(spans) == ["w"]
    assert len(rest) < len(data) - weight.nbytes + 16
    span = spans["w"]
    assert data[span.start : span.end] == weight.tobytes()
    left = onnx.load_from_string(rest)
    assert left.graph.initializer[0].raw_data == b""
    left.graph.initializer[0].raw_data = weight.tobytes()
    assert left == onnx.load_from_string(data)


def test_small_weights_and_other_forms_stay():
    typed = dense(floats(64, 32))
    tensor = typed.graph.initializer[0]
    values = numpy_helper.to_array(tensor).reshape(-1).tolist()
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values)
    for made in (dense(floats(4, 4)), typed):
        data = made.SerializeToString()
        assert parts(data) == (data, {})


@pytest.mark.parametrize(
    "data",
    [b"", b"\x3a", b"\x3a\x05ab", b"\x3b\x3c", b"\xff" * 30, b"\x3a\xff\xff\xff\xff\x7f"],
)
def test_what_is_not_understood_comes_back_whole(data: bytes) -> None:
    assert parts(data) == (data, {})


def test_weights_arrive_from_bytes_and_files(tmp_path):
    weight, x = floats(64, 32), floats(3, 64)
    made = dense(weight)
    path = tmp_path / "x.onnx"
    onnx.save(made, path)
    outside = tmp_path / "outside.onnx"
    onnx.save(dense(weight), outside, save_as_external_data=True, size_threshold=0)
    for source in (made, made.SerializeToString(), path, outside):
        module = tianyuan.onnx.load(source)
        found = module.weights["w"].numpy()
        np.testing.assert_array_equal(found, weight)
        np.testing.assert_allclose(module(x).numpy(), x @ weight, rtol=1e-4, atol=1e-5)
        module.weights["w"] *= 2  # the memory is the module's own
    np.testing.assert_array_equal(numpy_helper.to_array(made.graph.initializer[0]), weight)


def test_a_weight_of_the_wrong_size_is_refused():
    made = dense(floats(64, 32))
    made.graph.initializer[0].dims[0] = 65
    with pytest.raises(ModelFormatError, match="wrong size, got 8192 bytes, expected 8320"):
        tianyuan.onnx.load(made.SerializeToString())


def test_functions_are_written_out_around_weights():
    made = onnx.parser.parse_model(FUNCTIONS)
    weight = floats(3, 2000)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    made.graph.node.append(helper.make_node("MatMul", [made.graph.output[0].name, "w"], ["wide"]))
    made.graph.output.append(helper.make_tensor_value_info("wide", TensorProto.FLOAT, [2000]))
    first, wide = tianyuan.onnx.load(made.SerializeToString())(floats(3))
    np.testing.assert_allclose(wide.numpy(), first.numpy() @ weight, rtol=1e-4, atol=1e-4)


def test_damage_is_judged_as_protobuf_judges_it(monkeypatch):
    """With every initialiser taken out, damaged bytes mean what they mean without."""
    monkeypatch.setattr(wire, "LEAST", 1)
    data = cnn().SerializeToString()
    assert parts(data)[1]
    source, read = rng(3), 0
    for _ in range(400):
        changed = mutated(data, source)
        rest, spans = parts(changed)
        try:
            want = onnx.load_from_string(changed)
        except Exception:
            with pytest.raises(ModelFormatError, match="damaged"):
                tianyuan.onnx.load(changed)
            continue
        got = onnx.load_from_string(rest)
        for tensor in got.graph.initializer:
            span = spans.get(tensor.name)
            if span is not None and not tensor.raw_data:
                tensor.raw_data = changed[span.start : span.end]
        assert got.SerializeToString() == want.SerializeToString()
        read += 1
    assert read > 100


MEASURE = """
import sys, tianyuan, onnx, tianyuan.onnx
def peak():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) << 10
before = peak()
model = tianyuan.jit.load(sys.argv[1], backend="numpy")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("external", [False, True])
def test_loading_holds_weights_once(tmp_path, external: bool) -> None:
    path = tmp_path / "x.onnx"
    weight = np.ones((SCALE >> 14, 1 << 12), np.float32)
    onnx.save(dense(weight), path, save_as_external_data=external)
    command = [sys.executable, "-c", MEASURE, str(path)]
    found = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert SCALE <= found < 1.25 * SCALE
