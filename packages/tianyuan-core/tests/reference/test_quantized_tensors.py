"""Quantised tensors carry their parameters through ops, traces, files and interceptors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import registry
from tianyuan.errors import AttrError, ModelFormatError
from tianyuan.graph.graph import Constant
from tianyuan.graph.serial import graph_from_json, graph_to_json
from tianyuan.imperative import dispatch
from tianyuan.imperative.state import state
from tianyuan.jit import load, trace

VALUES = np.linspace(-3, 4, 2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6)


def quantised(scale=0.03125, zero=5):
    op = registry.get_op("quantize")
    return op(tianyuan.Tensor(VALUES), scales=(scale,), zero_points=(zero,), dtype="int8")


def test_movement_keeps_parameters():
    q = quantised()
    moved = [
        F.reshape(q, (2, 2, 2, 6, 6)), F.transpose(q, (0, 2, 3, 1)), q[:, 1:3],
        F.concat([q, q], 1), registry.get_op("max_pool2d")(q, kernel=(2, 2), stride=(2, 2)),
    ]  # fmt: skip
    assert all(x.qparams == q.qparams for x in moved)


def test_joining_different_scales_is_refused():
    with pytest.raises(AttrError, match="concat: inputs are quantised differently"):
        F.concat([quantised(), quantised(0.5)], 1)


def test_traces_and_files_keep_parameters(tmp_path):
    def body(x):
        q = registry.get_op("quantize")(x, scales=(0.03125,), zero_points=(5,), dtype="int8")
        q = F.transpose(q, (0, 2, 3, 1))
        assert q.qparams.zero_points == (5,)
        return registry.get_op("dequantize")(q, scales=(0.03125,), zero_points=(5,))

    traced = trace(body, symbolic=True, capture_as_const=True)
    want = traced(tianyuan.Tensor(VALUES)).numpy()
    stored = np.clip(np.rint(VALUES / np.float32(0.03125)) + 5, -128, 127)
    np.testing.assert_array_equal(want, ((stored - 5) * 0.03125).transpose(0, 2, 3, 1))
    traced.dump(str(tmp_path / "q.tym"), arg_names=["x"])
    np.testing.assert_array_equal(np.asarray(load(str(tmp_path / "q.tym"))(VALUES)), want)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("scales", [1e60], "wrong scales"),
        ("scales", [-1.0], "wrong scales"),
        ("scales", ["1"], "wrong scales"),
        ("scales", [], "wrong scales"),
        ("zero_points", [1.5], "wrong zero points"),
        ("zero_points", [2**40], "wrong zero points"),
    ],
)
def test_a_file_with_wrong_parameters_is_refused(key, value, match):
    from tianyuan.graph.graph import Graph
    from tianyuan.op import QuantParams, TensorSpec

    graph = Graph()
    spec = TensorSpec((2, 3), np.dtype("int8"), quant=QuantParams((0.5,), (3,)))
    x = graph.add_input(spec, "x")
    graph.outputs = list(
        graph.add_node(registry.get_op("copy"), [x], registry.get_op("copy").attrs())
    )
    data, _ = graph_to_json(graph, ["x"], ["y"])
    data = json.loads(json.dumps(data))
    read, _ = graph_from_json("file", data, lambda name: Constant(np.zeros(1)))
    assert read.inputs[0].spec.quant == spec.quant
    data["inputs"][0]["quant"][key] = value
    with pytest.raises(ModelFormatError, match=match):
        graph_from_json("file", data, lambda name: Constant(np.zeros(1)))


def test_an_interceptor_sees_every_op_and_may_change_results():
    seen = []

    def intercept(op, operands, attrs):
        state.interceptor = None
        try:
            result = dispatch.apply(op, operands, attrs)
            result = -result if op.name == "relu" else result
        finally:
            state.interceptor = intercept
        seen.append(op.name)
        return result

    x = tianyuan.Tensor([1.0, -2.0])
    state.interceptor = intercept
    try:
        y = F.relu(x * 2.0)
    finally:
        state.interceptor = None
    assert "mul" in seen
    assert seen[-1] == "relu"
    np.testing.assert_array_equal(y.numpy(), [-2.0, 0.0])
    np.testing.assert_array_equal(F.relu(x).numpy(), [1.0, 0.0])
