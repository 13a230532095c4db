"""What is written as ONNX passes onnx.checker and gives ONNX Runtime's answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor, jit, registry
from tianyuan.errors import AttrError, GraphError
from tianyuan.graph.graph import Graph
from tianyuan.op import TensorSpec
from tianyuan.ops import reference
from tianyuan.testing.cases import Case, all_cases

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from tianyuan import onnx as exchange  # noqa: E402
from tianyuan.onnx import export_model  # noqa: E402
from tianyuan.onnx.export_model import to_model  # noqa: E402
from tianyuan.onnx.writer import EXPORTERS  # noqa: E402

# What only training, drawing numbers or a lowered graph needs has no form in ONNX, nor have complex
# numbers and singular values.
WITHOUT = {
    "adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool2d_pick",
    "avg_pool2d_backward", "conv2d_backward_weight", "max_pool2d_backward", "max_pool2d_pick",
    "philox_bits", "philox_normal", "philox_uniform", "relayout", "take_backward", "complex",
    "real", "imag", "svd",
}  # fmt: skip

# Why an op that has a form may have none as it is used.
REFUSED = (
    "needs operator set", "QuantizeLinear gives no int32", "gradient of padding by",
    "complex numbers are not exported", "does not take these dtypes", "pools 64-bit integers",
)  # fmt: skip


def session(model: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Products with weights of four bits in floats, where it would round activations to int8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    data = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def of_core() -> set[str]:
    return {case.op for case in all_cases()}


def test_every_op_has_a_form_or_is_known_to_have_none() -> None:
    formed = {name for name in of_core() if name in EXPORTERS or registry.get_op(name).decompose}
    assert of_core() - formed == WITHOUT
    assert not WITHOUT & EXPORTERS.keys()


# Which inputs of an op must be constants, since they change their form.
FIXED = {"linear_int4": (1, 2)}


def graph_of(case: Case, arrays: Sequence[np.ndarray]) -> Graph:
    graph = Graph()
    values = [
        graph.add_constant(x, f"x{i}")
        if i in FIXED.get(case.op, ())
        else graph.add_input(TensorSpec(x.shape, x.dtype), f"x{i}")
        for i, x in enumerate(arrays)
    ]
    graph.outputs = list(graph.add_node(registry.get_op(case.op), values, case.attrs))
    return graph


def is_fit(case: Case) -> bool:
    """Tell whether ONNX Runtime's CPU kernels, which know no complex numbers, may agree."""
    arrays = case.arrays()
    outputs = reference.evaluate(registry.get_op(case.op), arrays, case.attrs)
    values = [*arrays, *outputs]
    half = any(x.dtype.name in ("float16", "bfloat16") or x.dtype.kind == "c" for x in values)
    # It gives no NaN where one meets a maximum, and zero for the mean of nothing.
    finite = case.op in ("isnan", "isinf") or all(
        np.isfinite(x).all() for x in values if x.dtype.kind == "f"
    )
    wraps = case.op.endswith("_quantized") and any(np.abs(x).max(initial=0) > 2**30 for x in arrays
                                                   if x.dtype == np.int32)  # fmt: skip
    return not half and finite and not wraps and sum(x.size for x in values) < 20_000


def check_case(case: Case, opset: int) -> bool:
    """Compare one case with ONNX Runtime; return whether it has kernels for it."""
    arrays = case.arrays()
    graph = graph_of(case, arrays)
    names = [f"y{i}" for i in range(len(graph.outputs))]
    try:
        model = to_model(graph, [v.name for v in graph.inputs], names, opset, "case")
    except GraphError as error:
        if any(reason in str(error) for reason in REFUSED):
            return False
        raise
    try:
        feeds = {f"x{i}": x for i, x in enumerate(arrays) if i not in FIXED.get(case.op, ())}
        found = session(model).run(None, feeds)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            return False
        raise
    wanted = reference.evaluate(registry.get_op(case.op), arrays, case.attrs)
    quantum = 1 if case.op.endswith("_quantized") or case.op in ("quantize", "requantize") else 0
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(case))
        else:
            apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
            assert apart.max(initial=0) <= quantum, str(case)
    return True


@pytest.mark.parametrize("name", sorted(of_core() - WITHOUT))
def test_ops_compute_in_onnx_runtime_what_their_references_do(name: str) -> None:
    cases = [case for case in all_cases() if case.op == name and is_fit(case)]
    kept = cases[:: max(1, len(cases) // 12)]
    opset = 18 if name.startswith("bitwise") else 17
    assert sum([check_case(case, opset) for case in kept])


@pytest.mark.parametrize("opset", [13, 15, 21])
def test_other_operator_sets(opset: int) -> None:
    names = ("layer_norm", "hswish", "gelu", "sum", "max", "pad", "batch_norm", "reshape")
    for name in names:
        case = next(case for case in all_cases() if case.op == name and is_fit(case))
        assert check_case(case, opset), name


@pytest.mark.parametrize("opset", [17, 21])
def test_weights_of_four_bits(opset: int) -> None:
    """Groups of 16 and its doubles have a form in every operator set, all others from 21 on."""
    cases = [case for case in all_cases() if case.op == "linear_int4" and is_fit(case)]
    found = [check_case(case, opset) for case in cases]
    fits = [c.attrs.group >= 16 and c.attrs.group & (c.attrs.group - 1) == 0 for c in cases]
    assert found == (fits if opset < 21 else [True] * len(cases))


class Pictures(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(3, 8, 3, 2, 1)
        self.norm = M.BatchNorm2d(8)
        self.grouped = M.Conv2d(8, 8, 3, 1, 1, groups=4)
        self.up = M.ConvTranspose2d(8, 4, 3, 2, 1, 1)
        self.pool = M.MaxPool2d(2)
        self.linear = M.Linear(4, 5)

    def forward(self, image: Tensor) -> Any:
        x = F.relu(self.norm(self.conv(image)))
        x = self.up(F.nn.hswish(self.grouped(x)))
        low = F.nn.adaptive_avg_pool2d(self.pool(x), 1)
        flipped = image[:, ::-1, 1:, 1:-1]
        return F.nn.softmax(self.linear(F.flatten(low, 1))), flipped.reshape(image.shape[0], -1)


class Words(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = M.Embedding(20, 16)
        self.attention = M.MultiHeadAttention(16, 4)
        self.norm = M.LayerNorm(16)
        self.up, self.down = M.Linear(16, 32), M.Linear(32, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.norm(x + self.attention(x, x, x, is_causal=True)[0])
        result: Tensor = x + self.down(F.nn.gelu(self.up(x)))
        return result


def fill(module: M.Module) -> M.Module:
    rng = np.random.default_rng(0)
    for name, tensor in module.named_tensors():
        low = 0.5 if name.endswith("var") else -0.5
        tensor._reset(Tensor(rng.uniform(low, low + 1, tensor.shape).astype(np.float32)))
    return module


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def words(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 20, shape).astype(np.int32)


def expect_same(module: M.Module, path: Path, given: Sequence[np.ndarray]) -> None:
    runtime = session(str(path))
    name = runtime.get_inputs()[0].name
    for x in given:
        wanted = module(Tensor(x))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        found = runtime.run(None, {name: x})
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


def test_pictures_of_any_size(tmp_path: Path) -> None:
    module = fill(Pictures())
    module.train()
    before = {name: value.copy() for name, value in module.state_dict().items()}
    open_ones = {"image": {0: "batch", 2: "height", 3: "width"}}
    exchange.export(
        module, tmp_path / "x.onnx", pictures(2, 3, 16, 20), dynamic_shapes=open_ones,
        output_names=["classes", "rest"],
    )  # fmt: skip
    assert module.training  # written as in evaluation, and left as it was
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    model = onnx.load(tmp_path / "x.onnx")
    onnx.checker.check_model(model, full_check=True)
    shape = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 3, "height", "width"]
    assert [value.name for value in model.graph.output] == ["classes", "rest"]
    kinds = [node.op_type for node in model.graph.node]
    assert "BatchNormalization" in kinds
    convolutions = [n for n in model.graph.node if n.op_type in ("Conv", "ConvTranspose", "Gemm")]
    assert all(len(node.input) == 3 for node in convolutions)  # with their biases
    names = {tensor.name for tensor in model.graph.initializer}
    assert {"conv.weight", "norm.running_mean", "linear.weight"} <= names
    sizes = [(2, 3, 16, 20), (1, 3, 32, 24), (5, 3, 9, 13)]
    expect_same(module.eval(), tmp_path / "x.onnx", [pictures(*size) for size in sizes])


def test_words_of_any_length(tmp_path: Path) -> None:
    module = fill(Words()).eval()
    open_ones = {"ids": {0: "batch", 1: "length"}}
    exchange.export(module, tmp_path / "x.onnx", words(2, 7), dynamic_shapes=open_ones)
    expect_same(module, tmp_path / "x.onnx", [words(2, 7), words(3, 11), words(1, 1)])


@pytest.mark.parametrize(("kind", "x"), [(Pictures, pictures(2, 3, 16, 20)), (Words, words(2, 7))])
def test_the_round_trip_is_stable(tmp_path: Path, kind: Any, x: np.ndarray) -> None:
    module = fill(kind()).eval()
    exchange.export(module, tmp_path / "0.onnx", x)
    for number in range(2):
        back = exchange.load(tmp_path / f"{number}.onnx")
        exchange.export(back, tmp_path / f"{number + 1}.onnx")
        expect_same(module, tmp_path / f"{number + 1}.onnx", [x])
    models = [onnx.load(tmp_path / f"{number}.onnx") for number in (1, 2)]
    first, second = ([node.op_type for node in model.graph.node] for model in models)
    assert first == second
    for name in ("input", "output"):
        infos = [[v.SerializeToString() for v in getattr(m.graph, name)] for m in models]
        assert infos[0] == infos[1]


def test_a_model_file_and_a_function_are_written(tmp_path: Path) -> None:
    def compute(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = F.exp(x) * 2 + y[:, None]
        return result

    traced = jit.trace(compute, capture_as_const=True)
    x, y = pictures(3, 4), pictures(3)
    want = traced(x, y).numpy()
    traced.dump(tmp_path / "x.tym", dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    exchange.export(tmp_path / "x.tym", tmp_path / "file.onnx")
    exchange.export(compute, tmp_path / "function.onnx", x, y, input_names=["a", "b"])
    exchange.export(traced, tmp_path / "traced.onnx")
    for name, inputs in (("file", "xy"), ("function", "ab"), ("traced", "xy")):
        runtime = session(str(tmp_path / f"{name}.onnx"))
        (found,) = runtime.run(None, dict(zip(inputs, (x, y), strict=True)))
        np.testing.assert_allclose(found, want, rtol=1e-5)
    long = pictures(7, 4), pictures(7)
    (found,) = session(str(tmp_path / "file.onnx")).run(None, {"x": long[0], "y": long[1]})
    np.testing.assert_allclose(found, np.exp(long[0]) * 2 + long[1][:, None], rtol=1e-5)


def test_outputs_that_are_inputs_constants_or_stand_twice(tmp_path: Path) -> None:
    held = Tensor(np.arange(3, dtype=np.float32))

    def compute(x: Tensor) -> Any:
        y = x + 1
        return x, y, y, held

    exchange.export(compute, tmp_path / "x.onnx", pictures(2))
    found = session(str(tmp_path / "x.onnx")).run(None, {"x": pictures(2)})
    for got, want in zip(found, (pictures(2), pictures(2) + 1, pictures(2) + 1, [0, 1, 2]),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)


def quantised_model(path: Path) -> None:
    """Write a convolution between QuantizeLinear and DequantizeLinear, per channel."""
    helper, rng = onnx.helper, np.random.default_rng(2)
    arrays = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(120), "y_scale": np.float32(0.03),
        "y_zero": np.uint8(7), "weight": rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8),
        "w_scale": rng.uniform(0.001, 0.01, 4).astype(np.float32), "w_zero": np.zeros(4, np.int8),
        "bias": rng.integers(-900, 900, 4).astype(np.int32), "b_zero": np.zeros(4, np.int32),
    }  # fmt: skip
    arrays["b_scale"] = arrays["x_scale"] * arrays["w_scale"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["weight", "w_scale", "w_zero"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["bias", "b_scale", "b_zero"], ["bd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "y_scale", "y_zero"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 8, 8]), ("y", ["n", 4, 8, 8]))
    ]
    held = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "quantised", infos[:1], infos[1:], held)
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))


def test_a_quantised_model_keeps_its_integers(tmp_path: Path) -> None:
    quantised_model(tmp_path / "a.onnx")
    exchange.export(exchange.load(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    written = onnx.load(tmp_path / "b.onnx")
    kinds = [node.op_type for node in written.graph.node]
    assert kinds.count("DequantizeLinear") == 4
    assert kinds.count("QuantizeLinear") == 2
    (convolution,) = (node for node in written.graph.node if node.op_type == "Conv")
    assert len(convolution.input) == 3
    stored = {tensor.data_type for tensor in written.graph.initializer if tensor.dims}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.INT32} <= stored
    x = pictures(3, 3, 8, 8)
    first, second = (
        session(str(tmp_path / f"{name}.onnx")).run(None, {"x": x})[0] for name in "ab"
    )
    quanta = np.abs(np.rint(first / 0.03) - np.rint(second / 0.03))
    assert quanta.max() <= 1
    assert (quanta == 0).mean() > 0.99


def test_all_that_has_no_form_is_named_with_its_line(tmp_path: Path) -> None:
    def compute(x: Tensor) -> Tensor:
        noisy = F.nn.dropout(x, 0.5)
        result: Tensor = registry.get_op("max_pool2d_pick")(
            noisy, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0, 0, 0)
        )
        return result

    with pytest.raises(GraphError) as caught:
        exchange.export(compute, tmp_path / "x.onnx", pictures(1, 1, 4, 4))
    text = str(caught.value)
    assert "philox" in text
    assert "max_pool2d_pick" in text
    assert "test_export.py" in text
    assert not (tmp_path / "x.onnx").exists()


def test_a_module_from_torch_goes_on_to_onnx(torch: Any, tmp_path: Path) -> None:
    from tianyuan.torch import from_module

    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2), torch.nn.BatchNorm2d(4), torch.nn.Hardswish(),
        torch.nn.Flatten(), torch.nn.Linear(36, 5),
    ).eval()  # fmt: skip
    ours = from_module(theirs, (torch.zeros(2, 3, 8, 8),))
    x = pictures(4, 3, 8, 8)
    exchange.export(
        ours, tmp_path / "x.onnx", x, input_names=["image"], dynamic_shapes={"image": {0: "batch"}}
    )
    names = {tensor.name for tensor in onnx.load(tmp_path / "x.onnx").graph.initializer}
    assert {"0.weight", "0.bias", "1.running_mean", "4.weight"} <= names
    (found,) = session(str(tmp_path / "x.onnx")).run(None, {"image": x})
    with torch.no_grad():
        np.testing.assert_allclose(found, theirs(torch.from_numpy(x)).numpy(), atol=1e-4)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        result: Tensor = x * 2
        return result

    path = tmp_path / "x.onnx"
    with pytest.raises(AttrError, match="operator set"):
        exchange.export(double, path, pictures(2), opset=5)
    with pytest.raises(AttrError, match="names do not fit"):
        exchange.export(double, path, pictures(2), output_names=["a", "b"])
    with pytest.raises(AttrError, match="names do not fit"):
        exchange.export(double, path, pictures(2), output_names=["x"])
    with pytest.raises(AttrError, match="has its own inputs"):
        exchange.export("x.tym", path, pictures(2))
    assert not path.exists()


def test_large_constants_lie_in_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_model, "_SPLIT", 1000)
    module = fill(M.Linear(64, 32))
    exchange.export(module, tmp_path / "x.onnx", pictures(2, 64))
    assert (tmp_path / "x.onnx.data").stat().st_size == 64 * 32 * 4
    assert (tmp_path / "x.onnx").stat().st_size < 2000
    onnx.checker.check_model(str(tmp_path / "x.onnx"), full_check=True)
    expect_same(module, tmp_path / "x.onnx", [pictures(2, 64)])


def test_the_command_converts_both_ways(tmp_path: Path) -> None:
    module = fill(Pictures()).eval()
    open_ones = {"image": {0: "batch"}}
    exchange.export(module, tmp_path / "a.onnx", pictures(2, 3, 8, 8), dynamic_shapes=open_ones)

    def convert(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tianyuan.cli.main", "convert", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert convert("a.onnx", "b.tym").returncode == 0
    done = convert("b.tym", "c.onnx", "--opset", "18")
    assert done.returncode == 0
    assert onnx.load(tmp_path / "c.onnx").opset_import[0].version == 18
    x = pictures(3, 3, 8, 8)
    expect_same(module, tmp_path / "c.onnx", [x])
    want = module(Tensor(x))[0].numpy()
    np.testing.assert_allclose(jit.load(tmp_path / "b.tym")(x)[0], want, rtol=1e-4, atol=1e-5)
    assert "expected .tym to .onnx" in convert("a.onnx", "c.onnx").stderr
    assert convert("a.onnx", "d.tym", "--size", "batch=2").returncode == 0
    assert jit.load(tmp_path / "d.tym").input_specs["image"].shape == (2, 3, 8, 8)
    assert "sizes do not fit" in convert("a.onnx", "d.tym", "--size", "other=2").stderr


def test_dtypes_that_operators_of_onnx_do_not_take_are_refused(tmp_path: Path) -> None:
    flags = Tensor(np.array([[True, False]]), dtype="bool")
    with pytest.raises(GraphError, match="onnx.export: an operator .* does not take these dtypes"):
        exchange.export(lambda x: F.sort(x), tmp_path / "sort.onnx", flags)
    assert not list(tmp_path.iterdir())


def test_a_name_in_tym_is_refused(tmp_path):
    target = tmp_path / "net.tym"
    with pytest.raises(AttrError, match="net.tym, expected one in .onnx; trace.dump writes"):
        exchange.export(lambda x: x * 2, target, Tensor([1.0]))
    assert not target.exists()
