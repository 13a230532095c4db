"""Import whole models and compare them with ONNX Runtime, eagerly, compiled and while training."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import tianyuan
import tianyuan.onnx
from onnx import helper, numpy_helper
from tianyuan import jit, optimizer, registry
from tianyuan.autodiff import GradManager
from tianyuan.jit.model import Model
from tianyuan.onnx.model import EagerModel, SizedModel
from written import floats, model, rng, runtime

CNN = """
agraph (float[batch, 3, 16, 16] x) => (float[batch, 5] y)
{
  c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
  n = BatchNormalization (c, scale, shift, mean, var)
  r = Relu (n)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  s = Shape (p)
  first = Gather (s, zero)
  u = Unsqueeze (first, axes)
  target = Concat <axis = 0> (u, rest)
  f = Reshape (p, target)
  y = Gemm <transB = 1> (f, w2, b2)
}
"""


def cnn():
    return model(
        CNN,
        weights={
            "w1": floats(4, 3, 3, 3, seed=1),
            "b1": floats(4, seed=2),
            "scale": 1 + 0.1 * floats(4, seed=3),
            "shift": floats(4, seed=4),
            "mean": floats(4, seed=5),
            "var": 1 + np.abs(floats(4, seed=6)),
            "w2": 0.1 * floats(5, 256, seed=7),
            "b2": floats(5, seed=8),
            "zero": np.array(0, np.int64),
            "axes": np.array([0], np.int64),
            "rest": np.array([-1], np.int64),
        },
    )


def saved(made, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    return path


def close(got, want, tolerance=1e-4):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.size:
        assert np.abs(got - want).max() <= tolerance * max(np.abs(want).max(), 1e-6)


def backends():
    registry.get_device_spec("cpu")
    return registry.backends()


@pytest.mark.parametrize("backend", backends())
def test_one_graph_serves_every_batch(tmp_path, backend):
    made = cnn()
    loaded = jit.load(saved(made, tmp_path), backend=backend)
    assert type(loaded) is Model
    for batch in (1, 2, 5):
        x = floats(batch, 3, 16, 16, seed=batch)
        close(loaded(x), runtime(made, {"x": x})[0])
        close(loaded(x=x), runtime(made, {"x": x})[0])


def test_eager_module_agrees_and_names_its_weights():
    made = cnn()
    module = tianyuan.onnx.load(made)
    x = floats(2, 3, 16, 16)
    close(module(tianyuan.Tensor(x)).numpy(), runtime(made, {"x": x})[0])
    parameters = {name for name, _ in module.named_parameters()}
    buffers = {name for name, _ in module.named_buffers()}
    assert parameters == {f"weights.{n}" for n in ("w1", "b1", "scale", "shift", "w2", "b2")}
    assert buffers == {"weights.mean", "weights.var"}


def test_gradients_match_finite_differences():
    module = tianyuan.onnx.load(cnn())
    x = tianyuan.Tensor(floats(2, 3, 16, 16))
    weight = module.weights["w2"]
    manager = GradManager().attach(module.parameters())
    with manager:
        loss = (module(x) * module(x)).sum()
        manager.backward(loss)
    grad = weight.grad.numpy()
    start = weight.numpy()
    for place in ((0, 0), (2, 100), (4, 255)):
        losses = []
        for step in (1e-2, -1e-2):
            moved = start.copy()
            moved[place] += step
            weight.set_value(moved)
            y = module(x).numpy().astype(np.float64)
            losses.append((y * y).sum())
        weight.set_value(start)
        assert grad[place] == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=2e-2, abs=1e-2)


def test_training_lowers_the_loss_and_the_trained_module_deploys(tmp_path):
    module = tianyuan.onnx.load(cnn())
    x, want = tianyuan.Tensor(floats(8, 3, 16, 16)), tianyuan.Tensor(floats(8, 5, seed=9))
    manager = GradManager().attach(module.parameters())
    steps = optimizer.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        with manager:
            difference = module(x) - want
            loss = (difference * difference).mean()
            manager.backward(loss)
        steps.step().clear_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]

    @jit.trace(capture_as_const=True)
    def forward(x):
        return module(x)

    expected = forward(x).numpy()
    forward.dump(tmp_path / "trained.tym")
    close(jit.load(tmp_path / "trained.tym")(x.numpy()), expected)
    close(module(x).numpy(), expected)


def test_traced_module_follows_its_weights():
    module = tianyuan.onnx.load(cnn())
    traced = jit.trace(lambda x: module(x))
    x = tianyuan.Tensor(floats(2, 3, 16, 16))
    close(traced(x).numpy(), module(x).numpy())
    module.weights["b2"].set_value(np.zeros(5, np.float32))
    close(traced(x).numpy(), module(x).numpy())


def test_state_dict_goes_there_and_back():
    module, other = tianyuan.onnx.load(cnn()), tianyuan.onnx.load(cnn())
    module.weights["b2"].set_value(np.full(5, 3, np.float32))
    other.load_state_dict(module.state_dict())
    x = tianyuan.Tensor(floats(1, 3, 16, 16))
    assert np.array_equal(module(x).numpy(), other(x).numpy())


RESIZE = """
agraph (float[n, 2, h, w] x) => (float[n, 2, oh, ow] y)
{
  y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, , scales)
}
"""


def test_sizes_that_decide_weights_get_a_graph_each():
    made = model(RESIZE, weights={"scales": np.array([1, 1, 2, 1.5], np.float32)})
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    assert isinstance(loaded, SizedModel)
    for height, width in ((4, 6), (5, 8), (4, 6)):
        x = floats(2, 2, height, width)
        close(loaded(x), runtime(made, {"x": x})[0])
    assert loaded.explain(floats(1, 2, 4, 6)) is not None


TRANSFORMER = """
agraph (float[b, t, 8] x) => (float[b, t, 8] y)
{
  q0 = MatMul (x, wq)
  k0 = MatMul (x, wk)
  s = Shape (x)
  b1 = Slice (s, zero1, two1)
  split = Concat <axis = 0> (b1, heads)
  q1 = Reshape (q0, split)
  k1 = Reshape (k0, split)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Transpose <perm = [0, 2, 3, 1]> (k1)
  a = MatMul (q, k)
  d = Mul (a, half)
  p = Softmax <axis = -1> (d)
  v = MatMul (p, q)
  m = Transpose <perm = [0, 2, 1, 3]> (v)
  f = Reshape (m, s)
  r = Add (f, x)
  y = LayerNormalization (r, gain, shift)
}
"""


@pytest.mark.parametrize("backend", backends())
def test_symbolic_batch_and_length(backend):
    made = model(
        TRANSFORMER,
        weights={
            "wq": floats(8, 8, seed=1),
            "wk": floats(8, 8, seed=2),
            "zero1": np.array([0], np.int64),
            "two1": np.array([2], np.int64),
            "heads": np.array([2, 4], np.int64),
            "half": np.array(0.5, np.float32),
            "gain": floats(8, seed=3),
            "shift": floats(8, seed=4),
        },
    )
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), backend, None)
    assert type(loaded) is Model
    for batch, length in ((1, 3), (2, 7), (3, 1)):
        x = floats(batch, length, 8, seed=length)
        close(loaded(x), runtime(made, {"x": x})[0])


IF = """
agraph (bool c, float[3] x) => (float[3] y)
{
  y = If (c) <
    then_branch = yes () => (float[3] a) { a = Add (x, x) },
    else_branch = no () => (float[3] b) { b = Neg (x) }
  >
}
"""
IF_OF_SHAPES = """
agraph (bool c, float[4] x) => (float[n] y)
{
  y = If (c) <
    then_branch = yes () => (float[m] a) { a = Concat <axis = 0> (x, x) },
    else_branch = no () => (float[k] b) { b = Neg (x) }
  >
}
"""


@pytest.mark.parametrize("graph", [IF, IF_OF_SHAPES], ids=["one shape", "two shapes"])
@pytest.mark.parametrize("choice", [True, False])
def test_branches(graph, choice):
    made = model(graph)
    x = floats(3 if graph is IF else 4)
    inputs = {"c": np.array(choice), "x": x}
    want = runtime(made, inputs)[0]
    module = tianyuan.onnx.load(made)
    close(module(**inputs).numpy(), want)
    loaded = tianyuan.onnx.load_model(module, None, None)
    close(loaded(**inputs), want)
    if graph is IF:
        assert "where" in {step.op.name for step in loaded.program(*inputs.values()).steps}


LOOP = """
agraph (float[2] x) => (float[2] last, float[n, 2] all)
{
  last, all = Loop (count, yes, x) <
    body = turn (int64 i, bool go, float[2] s) => (bool again, float[2] t, float[2] row)
    {
      again = Identity (go)
      t = Add (s, s)
      row = Neg (t)
    }
  >
}
"""
SEARCH = """
agraph (float s) => (float r, int64 n)
{
  r, n = Loop (, yes, s, zero) <
    body = turn (int64 i, bool go, float a, int64 k) => (bool again, float b, int64 m)
    {
      b = Mul (a, two)
      m = Add (k, one)
      again = Less (b, limit)
    }
  >
}
"""


def test_counted_loop_is_unrolled():
    made = model(LOOP, weights={"count": np.array(4, np.int64), "yes": np.array(True)})
    x = floats(2)
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    assert type(loaded) is Model
    for got, want in zip(loaded(x), runtime(made, {"x": x}), strict=True):
        close(got, want)


def test_loop_that_data_end_runs():
    made = model(
        SEARCH,
        weights={
            "yes": np.array(True), "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
            "two": np.array(2, np.float32), "limit": np.array(100, np.float32),
        },
    )  # fmt: skip
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    for start in (1.0, 3.0, 90.0):
        s = np.array(start, np.float32)
        want = runtime(made, {"s": s})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = loaded(s)
        assert float(got[0]) == float(want[0])
        assert int(got[1]) == int(want[1])


def test_data_dependent_model_warns_and_runs_eagerly():
    made = model("agraph (float[n] x) => (int64[1, m] y) { y = NonZero (x) }")
    with pytest.warns(UserWarning, match="runs eagerly.*NonZero"):
        loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    assert isinstance(loaded, (EagerModel, SizedModel))
    x = np.array([0, 1, 0, 2], np.float32)
    assert loaded(x).tolist() == [[1, 3]]
    with pytest.raises(tianyuan.errors.TraceError, match="runs eagerly"):
        loaded.explain(x)


FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
agraph (float[3] x) => (float[3] y)
{
  h = local.twice (x)
  y = local.shifted <by = 2.0> (h)
}
<domain: "local", opset_import: ["" : 18]>
twice (a) => (b) { b = Add (a, a) }
<domain: "local", opset_import: ["" : 18, "local" : 1]>
shifted <by> (a) => (c)
{
  k = Constant <value_float: float = @by> ()
  t = local.twice (a)
  c = Add (t, k)
}
"""


def test_functions_of_the_file_are_written_out():
    made = onnx.parser.parse_model(FUNCTIONS)
    x = floats(3)
    close(tianyuan.onnx.load(made)(x).numpy(), runtime(made, {"x": x})[0])
    close(tianyuan.onnx.load(made)(x).numpy(), 4 * x + 2)


def test_external_data(tmp_path):
    made = cnn()
    onnx.save(
        made, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    x = floats(1, 3, 16, 16)
    close(jit.load(tmp_path / "m.onnx")(x), runtime(cnn(), {"x": x})[0])


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21])
def test_operator_sets(opset):
    by_input = opset >= 13
    squeeze = "Squeeze (r, axes)" if by_input else "Squeeze <axes = [0]> (r)"
    graph = f"""
    agraph (float[1, 4] x) => (float[4] y)
    {{
      h = MatMul (x, w)
      r = Softmax <axis = 1> (h)
      y = {squeeze}
    }}
    """
    weights = {"w": floats(4, 4)}
    if by_input:
        weights["axes"] = np.array([0], np.int64)
    made = model(graph, opset, weights)
    x = floats(1, 4, seed=1)
    close(tianyuan.onnx.load(made)(x).numpy(), runtime(made, {"x": x})[0])


def qdq_convolution():
    """Return a quantised convolution as exporters write it, with its output left quantised."""
    weight = rng(1).integers(-127, 128, (6, 3, 3, 3), np.int8)
    return model(
        """
        agraph (float[1, 3, 9, 9] x) => (uint8[1, 6, 7, 7] y)
        {
          xq = QuantizeLinear (x, xs, xz)
          xf = DequantizeLinear (xq, xs, xz)
          wf = DequantizeLinear <axis = 0> (w, ws, wz)
          bf = DequantizeLinear <axis = 0> (b, bs, bz)
          c = Conv (xf, wf, bf)
          r = Relu (c)
          y = QuantizeLinear (r, ys, yz)
        }
        """,
        weights={
            "xs": np.array(0.03, np.float32), "xz": np.array(120, np.uint8), "w": weight,
            "ws": rng(2).uniform(0.001, 0.01, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
            "b": rng(3).integers(-1000, 1000, 6, np.int32),
            "bs": np.full(6, 1e-4, np.float32), "bz": np.zeros(6, np.int32),
            "ys": np.array(0.02, np.float32), "yz": np.array(0, np.uint8),
        },
    )  # fmt: skip


@pytest.mark.parametrize("backend", backends())
def test_quantised_convolution_is_within_one_quantum(backend):
    made = qdq_convolution()
    x = floats(1, 3, 9, 9)
    got = tianyuan.onnx.load_model(tianyuan.onnx.load(made), backend, None)(x)
    want = runtime(made, {"x": x})[0]
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    assert len(np.unique(want)) > 20


def test_command_line_converts(tmp_path):
    from click.testing import CliRunner
    from tianyuan.cli.main import main

    made = cnn()
    source, target = saved(made, tmp_path), tmp_path / "model.tym"
    result = CliRunner().invoke(main, ["convert", str(source), str(target)])
    assert result.exit_code == 0, result.output
    loaded = jit.load(target)
    for batch in (1, 4):
        x = floats(batch, 3, 16, 16)
        close(loaded(x), runtime(made, {"x": x})[0])


def test_command_line_converts_quantised_models_to_integers(tmp_path):
    from tianyuan.cli.convert import convert_model
    from tianyuan.graph import container
    from tianyuan.jit.model import read_graph

    made, x = qdq_convolution(), floats(1, 3, 9, 9)
    source, target = saved(made, tmp_path), tmp_path / "model.tym"
    convert_model(source, target, None, {})
    graph, _ = read_graph(container.read_container(target))
    assert {"conv2d_quantized"} == {
        node.op.name for node in graph.nodes if node.op.name.startswith("conv2d")
    }
    assert "dequantize" not in {node.op.name for node in graph.nodes}
    got = jit.load(target)(x)
    np.testing.assert_array_equal(got, jit.load(source)(x))
    back = tmp_path / "back.onnx"
    convert_model(target, back, None, {})
    want = runtime(onnx.load(back), {"x": x})[0]
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_outputs_do_not_share_memory_with_constants():
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["k"], ["y"])],
            "g",
            [],
            [helper.make_tensor_value_info("y", 1, [3])],
            [numpy_helper.from_array(np.ones(3, np.float32), "k")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    module = tianyuan.onnx.load(made)
    first = module()
    first += 1
    assert module().numpy().tolist() == [1, 1, 1]


def light_models():
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    return sorted(folder.glob("light_*.onnx"))


@pytest.mark.parametrize("path", light_models(), ids=lambda p: p.stem)
def test_full_size_networks(path):
    """Run the networks that the onnx package carries with invented weights."""
    from onnx.backend.test.runner import Runner

    made = onnx.load(path)
    weights = {item.name for item in made.graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in made.graph.input if v.name not in weights]
    expected = onnx.TensorProto()
    expected.ParseFromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    loaded = jit.load(path, backend=backends()[-1])
    close(loaded(*inputs), numpy_helper.to_array(expected))


def test_documented_table_is_current():
    from tianyuan.onnx.__main__ import table

    page = Path(__file__).parents[4] / "docs" / "onnx.md"
    assert page.read_text().split("<!-- operators -->\n")[1] == table()


def quantised_operands(seed, *shape):
    return rng(seed).integers(0, 256, shape, np.uint8)


QLINEAR = {
    "QLinearMatMul": ("QLinearMatMul (a, s1, z1, b, s2, z2, s3, z3)", (4, 6), (6, 5)),
    "QLinearAdd": ("com.microsoft.QLinearAdd (a, s1, z1, b, s2, z2, s3, z3)", (2, 3), (2, 3)),
    "QLinearMul": ("com.microsoft.QLinearMul (a, s1, z1, b, s2, z2, s3, z3)", (2, 3), (3,)),
    "QLinearSigmoid": ("com.microsoft.QLinearSigmoid (a, s1, z1, s4, z4)", (2, 9), (1,)),
    "QLinearLeakyRelu": (
        "com.microsoft.QLinearLeakyRelu <alpha = 0.2> (a, s1, z1, s3, z3)", (2, 9), (1,)),
    "QLinearGlobalAveragePool": (
        "com.microsoft.QLinearGlobalAveragePool (a, s1, z1, s3, z3)", (2, 3, 5, 5), (1,)),
    "QLinearAveragePool": (
        "com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (a, s1, z1, s3, z3)",
        (2, 3, 5, 5), (1,),
    ),
    "QLinearConcat": (
        "com.microsoft.QLinearConcat <axis = 1> (s3, z3, a, s1, z1, b, s2, z2)", (2, 3), (2, 4)),
    "QGemm": (
        "com.microsoft.QGemm <transB = 1> (a, s1, z1, b, s2, z2, c, s3, z3)", (4, 6), (5, 6)),
    "QGemm of half": (
        "com.microsoft.QGemm <transA = 1, alpha = 0.5> (a, s1, z1, b, s2, z2, c, s3, z3)",
        (6, 4), (6, 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(QLINEAR))
def test_quantised_operators_are_within_one_quantum(name):
    node, first, second = QLINEAR[name]
    dims = [", ".join(map(str, shape)) for shape in (first, second)]
    unknown = ", ".join(f"d{i}" for i in range(len(first)))
    made = model(
        f"agraph (uint8[{dims[0]}] a, uint8[{dims[1]}] b) => (uint8[{unknown}] y) {{ y = {node} }}",
        weights={
            "s1": np.array(0.03, np.float32), "z1": np.array(120, np.uint8),
            "s2": np.array(0.02, np.float32), "z2": np.array(131, np.uint8),
            "s3": np.array(0.05, np.float32), "z3": np.array(110, np.uint8),
            "s4": np.array(1 / 256, np.float32), "z4": np.array(0, np.uint8),
            "c": np.arange(-2, 3, dtype=np.int32) * 100,
        },
        more=', "com.microsoft" : 1',
    )  # fmt: skip
    inputs = {"a": quantised_operands(1, *first), "b": quantised_operands(2, *second)}
    want = runtime(made, inputs)[0]
    module = tianyuan.onnx.load(made)
    compiled = tianyuan.onnx.load_model(module, None, None)
    for got in (module(**inputs).numpy(), compiled(**inputs)):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    assert len(np.unique(want)) > 3


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_convolution_runs_as_integer_product(per_channel):
    scales = rng(2).uniform(0.001, 0.01, 6).astype(np.float32)
    made = model(
        """
        agraph (uint8[1, 3, 9, 9] x) => (uint8[1, 6, 5, 5] y)
        {
          y = QLinearConv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, xs, xz, w, ws, wz, ys, yz, b)
        }
        """,
        weights={
            "xs": np.array(0.03, np.float32), "xz": np.array(120, np.uint8),
            "w": rng(1).integers(-127, 128, (6, 3, 3, 3), np.int8),
            "ws": scales if per_channel else scales[0],
            "b": rng(3).integers(-999, 999, 6, np.int32),
            "wz": np.zeros(6, np.int8) if per_channel else np.array(0, np.int8),
            "ys": np.array(0.02, np.float32), "yz": np.array(100, np.uint8),
        },
    )  # fmt: skip
    x = quantised_operands(4, 1, 3, 9, 9)
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    want = runtime(made, {"x": x})[0]
    assert np.abs(loaded(x).astype(int) - want.astype(int)).max() <= 1
    assert "conv2d_quantized" in {step.op.name for step in loaded.program(x).steps}


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("count", [20, 400])
def test_scattered_reductions(kind, count):
    made = model(
        f"""
        agraph (float[9, 4] x, int64[{count}, 4] i, float[{count}, 4] u) => (float[9, 4] y)
        {{ y = ScatterElements <axis = 0, reduction = "{kind}"> (x, i, u) }}
        """
    )
    inputs = {
        "x": floats(9, 4),
        "i": rng(1).integers(-9, 9, (count, 4)),
        "u": 1 + 0.1 * floats(count, 4, seed=2),
    }
    want = runtime(made, inputs)[0]
    module = tianyuan.onnx.load(made)
    close(module(**inputs).numpy(), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(tianyuan.onnx.load_model(module, None, None)(**inputs), want)


def test_max_roi_pool():
    made = model(
        """
        agraph (float[2, 3, 12, 10] x, float[3, 5] r) => (float[3, 3, 2, 3] y)
        { y = MaxRoiPool <pooled_shape = [2, 3], spatial_scale = 0.5> (x, r) }
        """
    )
    inputs = {
        "x": floats(2, 3, 12, 10),
        "r": np.array([[0, 0, 0, 9, 11], [1, 4, 2, 18, 21], [1, 7, 7, 7, 7]], np.float32),
    }
    close(tianyuan.onnx.load(made)(**inputs).numpy(), runtime(made, inputs)[0])
