"""Products with stored integer weights become one op each, and give what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
import tianyuan.module as M
from tianyuan import Tensor, jit, registry
from tianyuan.errors import TianyuanError
from tianyuan.ops.quantized_linear import packed_int4

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

helper, tensors = onnx.helper, onnx.TensorProto
_TYPES = {"i": tensors.INT32, "z": tensors.UINT8}  # of outputs that are no floats


def model_of(
    nodes: list[Any], arrays: dict[str, Any], outputs: tuple[str, ...] = ("y",), opset: int = 21
) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", tensors.FLOAT, ["n", None])],
        [helper.make_tensor_value_info(n, _TYPES.get(n, tensors.FLOAT), None) for n in outputs],
        [a if isinstance(a, tensors) else onnx.numpy_helper.from_array(a, k)
         for k, a in arrays.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def expected(model: Any, x: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {"x": x}))


def check(model: Any, path: Path, x: np.ndarray, rtol: float = 1e-5) -> list[str]:
    """Compare module and program with ONNX Runtime; return the ops of the program."""
    onnx.save(model, path)
    module, program = tianyuan.onnx.load(str(path)), jit.load(str(path))
    for found in (module(Tensor(x)), program(x)):
        several = found if isinstance(found, tuple) else (found,)
        for got, want in zip(several, expected(model, x), strict=True):
            got = got.numpy() if isinstance(got, Tensor) else got
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return [step.op for step in program.explain(x).steps]


def dynamic(
    weight: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bias: bool, swap: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    zero_names = [] if zeros is None else ["wz"]
    sides = ["f", "c"] if swap else ["c", "f"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", *zero_names], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=tensors.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["f"]),
        helper.make_node("Mul", sides, ["m" if bias else "y"]),
    ]
    arrays = {"w": weight, "ws": scales, **({} if zeros is None else {"wz": zeros})}
    if bias:
        nodes.append(helper.make_node("Add", ["m", "b"], ["y"]))
        arrays["b"] = np.linspace(-1, 1, weight.shape[1], dtype=np.float32)
    return nodes, arrays


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "zero"), [("int8", None), ("int8", 0), ("uint8", 128), ("uint8", 117)]
)
def test_dynamic_products(tmp_path: Path, dtype: str, zero: int | None, bias: bool) -> None:
    rng, info = np.random.default_rng(1), np.iinfo(dtype)
    w = rng.integers(info.min, info.max, (19, 7), endpoint=True).astype(dtype)
    for scales in (np.float32(0.01), rng.uniform(0.005, 0.02, 7).astype(np.float32)):
        zeros = None if zero is None else np.full(scales.shape, zero, dtype)
        nodes, arrays = dynamic(w, np.asarray(scales), zeros, bias, swap=bias)
        steps = check(model_of(nodes, arrays), tmp_path / "x.onnx", data(5, 19))
        assert (steps == ["linear_dynamic"]) == (zero != 117)


def test_what_is_read_elsewhere_stays(tmp_path: Path) -> None:
    w = np.random.default_rng(2).integers(-127, 128, (19, 7)).astype(np.int8)
    nodes, arrays = dynamic(w, np.float32([0.01]), None, True)
    model = model_of(nodes, arrays, ("y", "i"))
    assert "linear_dynamic" not in check(model, tmp_path / "x.onnx", data(5, 19))
    model = model_of(nodes, arrays, ("y", "m", "z"))
    steps = check(model, tmp_path / "x.onnx", data(5, 19))
    assert "linear_dynamic" in steps
    assert "add" in steps


def test_one_input_of_two_products(tmp_path: Path) -> None:
    w = np.random.default_rng(3).integers(-127, 128, (19, 7)).astype(np.int8)
    nodes, arrays = dynamic(w, np.float32([0.01]), None, False)
    again = [
        helper.make_node(node.op_type, [*map(_second, node.input)], [*map(_second, node.output)])
        for node in nodes[1:]
    ]
    again[1].attribute.extend(nodes[2].attribute)
    model = model_of([*nodes, *again], {**arrays, "w2": -w, "ws2": np.float32([0.5])}, ("y", "y2"))
    steps = check(model, tmp_path / "x.onnx", data(5, 19))
    assert sorted(steps) == ["linear_dynamic", "linear_dynamic"]


def _second(name: str) -> str:
    return name if name in ("q", "s", "z", "x") else f"{name}2"


def int4_tensor(name: str, kind: int, values: np.ndarray) -> Any:
    flat = values.reshape(-1).astype(np.int8).view(np.uint8) & 15
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    raw = (flat[::2] | flat[1::2] << 4).tobytes()
    return helper.make_tensor(name, kind, values.shape, raw, raw=True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [("INT4", None), ("INT4", 0), ("UINT4", 8), ("INT4", 3)])
def test_blocks_of_four_bits(tmp_path: Path, kind: str, zero: int | None, bias: bool) -> None:
    rng, shift = np.random.default_rng(4), 8 if kind == "UINT4" else 0
    code = getattr(tensors, kind)
    w = rng.integers(-8, 8, (33, 6)) + shift
    scales = rng.uniform(0.01, 0.1, (3, 6)).astype(np.float32)
    arrays: dict[str, Any] = {"w": int4_tensor("w", code, w), "s": scales}
    names = ["w", "s"]
    if zero is not None:
        arrays["z"] = int4_tensor("z", code, np.full((3, 6), zero))
        names.append("z")
    nodes = [
        helper.make_node("DequantizeLinear", names, ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["m" if bias else "y"]),
    ]
    if bias:
        nodes.append(helper.make_node("Add", ["b", "m"], ["y"]))
        arrays["b"] = data(6, seed=9)
    steps = check(model_of(nodes, arrays), tmp_path / "x.onnx", data(5, 33), 1e-4)
    assert (steps == ["linear_int4"]) == (zero != 3)


@pytest.mark.parametrize(
    ("bits", "zeros"), [(4, None), (4, "bytes"), (4, "floats"), (8, None), (8, "bytes")]
)
def test_microsofts_operator(tmp_path: Path, bits: int, zeros: str | None) -> None:
    rng = np.random.default_rng(bits)
    arrays: dict[str, Any] = {
        "w": rng.integers(0, 256, (6, 3, 16 * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, 18).astype(np.float32),
    }
    names = ["x", "w", "s"]
    if zeros is not None:
        stored = rng.integers(0, 256, 6 * -(-3 * bits // 8)).astype(np.uint8)
        arrays["z"] = stored if zeros == "bytes" else rng.uniform(1, 9, 18).astype(np.float32)
        names.append("z")
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", K=37, N=6, bits=bits, block_size=16
    )
    model = model_of([node], arrays)
    steps = check(model, tmp_path / "x.onnx", data(5, 37), 1e-4)
    assert (steps == ["linear_int4"]) == (bits == 4 and zeros is None)


def test_wrong_sizes_are_named(tmp_path: Path) -> None:
    arrays = {"w": np.zeros((6, 2, 8), np.uint8), "s": np.ones(18, np.float32)}
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=37, N=6, bits=4,
        block_size=16,
    )  # fmt: skip
    onnx.save(model_of([node], arrays), tmp_path / "x.onnx")
    with pytest.raises(TianyuanError, match="MatMulNBits.*weight or scales have the wrong size"):
        jit.load(str(tmp_path / "x.onnx"))(data(5, 37))


class Two(M.Module):
    """A stored product with bias between plain ops."""

    def __init__(self, op: str) -> None:
        super().__init__()
        rng = np.random.default_rng(5)
        q = rng.integers(-8, 8, (12, 40)).astype(np.int8)
        if op == "linear_int4":
            self.weight, shape, self.attrs = Tensor(packed_int4(q), "uint8"), (12, 3), {"group": 16}
        else:
            self.weight, shape, self.attrs = Tensor(q * 15, "int8"), (12,), {}
        self.scales = Tensor(rng.uniform(0.01, 0.1, shape).astype(np.float32))
        self.bias, self.op = Tensor(data(12)), op

    def forward(self, x: Tensor) -> Tensor:
        op = registry.get_op(self.op)
        y: Tensor = op(x * 2, self.weight, self.scales, self.bias, has_bias=True, **self.attrs)
        return y + 1


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("op", ["linear_dynamic", "linear_int4"])
def test_they_come_back_as_they_were_written(tmp_path: Path, op: str, opset: int) -> None:
    module, x = Two(op), data(3, 40)
    path = tmp_path / "x.onnx"
    tianyuan.onnx.export(module, path, x, opset=opset)
    program = jit.load(str(path))
    assert [step.op for step in program.explain(x).steps].count(op) == 1
    want = module(Tensor(x)).numpy()
    np.testing.assert_allclose(program(x), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(expected(onnx.load(path), x)[0], want, rtol=1e-4, atol=1e-4)
