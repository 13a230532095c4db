"""ONNX's messages are read without the package around them, by the very classes that it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

PROGRAM = """
import sys
import numpy as np
import tianyuan as ty

model = ty.jit.load(sys.argv[1])
assert model(np.array([-1.0, 2.0], "float32")).tolist() == [0.0, 2.0]
assert "onnx" not in sys.modules, "the package was imported"

from tianyuan.onnx.messages import messages

alone = messages()
import onnx

assert alone.ModelProto is onnx.ModelProto
assert messages().ModelProto is onnx.ModelProto
proto = onnx.load(sys.argv[1])
assert ty.onnx.load(proto)(ty.Tensor([-1.0, 2.0])).numpy().tolist() == [0.0, 2.0]
"""


def test_a_model_is_read_without_the_package(tmp_path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    file = tmp_path / "relu.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
