"""Refuse what is damaged, hostile or unknown, with one clear error and nothing done."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tianyuan
import tianyuan.onnx
from onnx import TensorProto, helper
from test_models import cnn
from tianyuan import jit
from tianyuan.errors import DTypeError, ModelFormatError, ShapeError, TianyuanError
from written import floats, model

GRAPH = "agraph (float[n, 4] x, int64[2] s) => (float[2, m] y) { y = Reshape (x, s) }"


def refuses(source, *words):
    with pytest.raises(ModelFormatError) as caught:
        tianyuan.onnx.load(source)
    for word in words:
        assert word in str(caught.value)


def test_missing_file_and_what_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError):
        tianyuan.onnx.load(tmp_path / "none.onnx")
    refuses(b"", "no ONNX model")
    refuses(b"\x08\x07 not protobuf at all", "onnx: ")
    refuses(cnn().SerializeToString()[:-40], "damaged")


def test_unknown_operators_are_named_all_at_once():
    made = model(
        """
        agraph (float[3] x) => (float[3] y)
        {
          a = Frobnicate (x)
          b = local.Twist (a)
          y = Add (a, b)
        }
        """,
        more=', "local" : 1',
    )
    for node, name in zip(made.graph.node, ("first", "second", "third"), strict=True):
        node.name = name
    refuses(made, "2 nodes", "Frobnicate", "'first'", "Twist of local version 1", "'second'")


def test_unknown_operators_in_subgraphs_are_named():
    made = model(
        """
        agraph (bool c, float[3] x) => (float[3] y)
        {
          y = If (c) <
            then_branch = yes () => (float[3] a) { a = Wobble (x) },
            else_branch = no () => (float[3] b) { b = Neg (x) }
          >
        }
        """
    )
    refuses(made, "Wobble")


def test_newer_operator_sets_are_refused():
    made = cnn()
    made.opset_import[0].version = 999
    refuses(made, "999", "expected 1 to")


def test_cyclic_graph():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "one"),
        helper.make_node("Neg", ["a"], ["b"], "two"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xb")
    graph = helper.make_graph(nodes, "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    refuses(made, "cyclic", "'one'", "'two'")


def test_nodes_out_of_order_are_sorted():
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert tianyuan.onnx.load(made)(np.array([1, -2], np.float32)).numpy().tolist() == [-1, -2]


def test_values_that_nobody_makes_or_two_make():
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, ghost) }")
    refuses(made, "ghost")
    made = model("agraph (float[2] x) => (float[2] y) { y = Neg (x)  y = Abs (x) }")
    refuses(made, "'y' is made twice")


def test_functions_that_call_themselves():
    made = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 18, "local" : 1]>
        agraph (float[3] x) => (float[3] y) { y = local.f (x) }
        <domain: "local", opset_import: ["local" : 1]>
        f (a) => (b) { b = local.f (a) }
        """
    )
    refuses(made, "calls itself")


def test_functions_that_explode():
    lines = [
        f'<domain: "local", opset_import: ["" : 18, "local" : 1]>\nf{i} (a) => (c)\n'
        f"{{ b = local.f{i + 1} (a)\n c = local.f{i + 1} (b) }}"
        for i in range(40)
    ]
    lines.append('<domain: "local", opset_import: ["" : 18]>\nf40 (a) => (c) { c = Neg (a) }')
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>\n'
        "agraph (float[3] x) => (float[3] y) { y = local.f0 (x) }\n" + "\n".join(lines)
    )
    refuses(made, "expand to")


def test_sparse_initialisers_are_refused():
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("i", TensorProto.INT64, [1], [0]),
            [2],
        )
    )
    refuses(made, "sparse", "'w'")


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "a/../../secret.bin", ""])
def test_external_data_outside_of_the_folder_is_refused(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    made.graph.initializer.append(external(location, 2))
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    refuses(folder / "m.onnx", "outside", "'w'")


def test_external_data_behind_a_link_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    made.graph.initializer.append(external("w.bin", 2))
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    refuses(folder / "m.onnx", "outside")


def external(location, count, **entries):
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count], data_location=1)
    for key, value in {"location": location, **entries}.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


@pytest.mark.parametrize(
    "entries", [{}, {"offset": 4}, {"length": 4}, {"offset": -4}, {"offset": "x"}]
)
def test_external_data_that_does_not_fit_is_refused(tmp_path, entries):
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    made.graph.initializer.append(external("w.bin", 2, **entries))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    if not entries:
        refuses(tmp_path / "m.onnx", "missing")
    (tmp_path / "w.bin").write_bytes(bytes(7))
    refuses(tmp_path / "m.onnx", "'w'")


def test_bytes_have_no_external_data():
    made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
    made.graph.initializer.append(external("w.bin", 2))
    refuses(made.SerializeToString(), "another file")


def test_tensor_whose_size_does_not_fit():
    made = cnn()
    made.graph.initializer[0].dims[0] = 5
    refuses(made, "'w1'", "wrong size")
    made.graph.initializer[0].dims[0] = -1
    refuses(made, "'w1'", "wrong shape")
    made.graph.initializer[0].dims[0] = 4
    made.graph.initializer[0].data_type = 77
    refuses(made, "unknown element type")


def test_wrong_inputs_are_named(tmp_path):
    onnx.save(cnn(), tmp_path / "m.onnx")
    for load in (tianyuan.onnx.load, jit.load):
        loaded = load(tmp_path / "m.onnx")
        with pytest.raises(TypeError, match="unknown input, got 'z', expected x"):
            loaded(z=floats(1, 3, 16, 16))
        with pytest.raises(TypeError, match="inputs are missing, got none, expected also x"):
            loaded()
        with pytest.raises(TypeError, match="given twice, got 'x' by place and by name"):
            loaded(floats(1, 3, 16, 16), x=floats(1, 3, 16, 16))
        with pytest.raises(TypeError, match="too many inputs"):
            loaded(floats(1), floats(1))
        with pytest.raises(ShapeError, match="'x' has the wrong shape, got .*15.*, expected .*16"):
            loaded(floats(1, 3, 16, 15))
        with pytest.raises(ShapeError, match="'x' has the wrong shape"):
            loaded(floats(3, 16, 16))
        with pytest.raises(
            DTypeError, match="'x' has the wrong dtype, got int32, expected float32"
        ):
            loaded(np.ones((1, 3, 16, 16), np.int32))


def test_errors_while_running_name_the_node():
    made = model(GRAPH)
    made.graph.node[0].name = "fold"
    module = tianyuan.onnx.load(made)
    with pytest.raises(ShapeError, match=r"onnx: node 'fold' \(Reshape\): shape does not fit"):
        module(x=floats(3, 4), s=np.array([5, -1], np.int64))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("Conv <strides = [0, 1]> (x, w)", "strides is wrong"),
        ("Conv <pads = [1]> (x, w)", "pads is wrong"),
        ('Conv <auto_pad = "SOMEHOW"> (x, w)', "auto_pad"),
        ("Conv <group = 3> (x, w)", "channels"),
        ("Conv <strides = 2> (x, w)", "expected ints"),
        ("Conv (x)", "wrong number of inputs"),
        ("MaxPool (x)", "'kernel_shape' is missing"),
        ("Softmax <axis = 9> (x)", "axis is out of range"),
        ("Transpose <perm = [0, 0, 1, 2]> (x)", "permutation"),
        ("Cast <to = 99> (x)", "unknown element type"),
    ],
)
def test_wrong_attributes_are_refused(node, words):
    made = model(
        f"agraph (float[1, 2, 8, 8] x) => (float[a, b, c, d] y) {{ y = {node} }}",
        weights={"w": floats(4, 2, 3, 3)},
    )
    with pytest.raises(TianyuanError, match=words) as caught:
        tianyuan.onnx.load(made)(floats(1, 2, 8, 8))
    assert str(caught.value).startswith("onnx: node ")


HUGE = {
    "ConstantOfShape": "y = ConstantOfShape (big)",
    "Expand": "y = Expand (x, big)",
    "Tile": "y = Tile (x, big)",
    "Range": "y = Range (zero, far, one)",
    "Pad": "y = Pad (x, around)",
    "Resize": "y = Resize (x, , , big)",
    "OneHot": "y = OneHot (few, far, pair)",
}


@pytest.mark.parametrize("name", list(HUGE))
def test_absurd_sizes_are_refused_before_memory_is_taken(name):
    made = model(
        f"agraph (float[1] x) => (float[n] y) {{ {HUGE[name]} }}",
        weights={
            "big": np.array([10**13], np.int64), "zero": np.array(0, np.int64),
            "far": np.array(10**13, np.int64), "one": np.array(1, np.int64),
            "around": np.array([10**13, 0], np.int64), "few": np.array([1], np.int64),
            "pair": np.array([0, 1], np.float32),
        },
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TianyuanError, match="onnx: .*would need"):
        tianyuan.onnx.load(made)(np.ones(1, np.float32))
    with pytest.raises(TianyuanError, match="onnx: .*would need"):
        tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)(np.ones(1, np.float32))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_limit_of_sizes_can_be_chosen():
    made = model("agraph (float[n] x) => (float[m, k] y) { y = Concat <axis = 0> (x, x) }")
    module = tianyuan.onnx.load(made, max_bytes=1000)
    assert module(floats(100)).shape == (200,)
    with pytest.raises(ModelFormatError, match="would need 1600 bytes, expected at most 1000"):
        module(floats(200))


def test_endless_loop_in_a_graph_is_refused():
    made = model(
        """
        agraph (float[2] x) => (float[2] y)
        {
          y = Loop (count, yes, x) <
            body = turn (int64 i, bool go, float[2] s) => (bool again, float[2] t)
            {
              again = Identity (go)
              t = Neg (s)
            }
          >
        }
        """,
        weights={"count": np.array(2**62, np.int64), "yes": np.array(True)},
    )
    with pytest.warns(UserWarning, match="turns"):
        tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)


def test_without_the_package_it_is_named():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import tianyuan.onnx\n"
        "try:\n    tianyuan.onnx.load(b'')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install onnx" in found.stdout


def test_names_of_files_that_no_system_takes_are_refused(tmp_path):
    (tmp_path / "round.bin").symlink_to(tmp_path / "round.bin")
    for location in ("w\0.bin", "w" * 5000, "round.bin"):
        made = model("agraph (float[2] x) => (float[2] y) { y = Add (x, w) }")
        made.graph.initializer.append(external(location, 2))
        (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
        refuses(tmp_path / "m.onnx", "'w'")


def test_a_domain_has_one_version():
    made = model("agraph (float[2] x) => (float[2] y) { y = Neg (x) }", more=', "ai.onnx" : 9')
    refuses(made, "'ai.onnx' is imported twice", "18 and 9")
    made = model("agraph (float[2] x) => (float[2] y) { y = Neg (x) }", more=', "ai.onnx" : 18')
    assert tianyuan.onnx.load(made)(floats(2)).shape == (2,)


def test_outputs_without_a_name_are_refused():
    made = model("agraph (float[2] x) => (float[2] y) { y = Neg (x) }")
    made.graph.output[0].name = made.graph.node[0].output[0] = ""
    refuses(made, "an output of graph 'agraph' has no name")


@pytest.mark.parametrize("size", ["2", "n"])
def test_inputs_may_have_any_name(tmp_path, size):
    made = model(f"agraph (float[{size}] x) => (float[{size}] y) {{ y = Neg (x) }}")
    made.graph.input[0].name = made.graph.node[0].input[0] = "self"
    onnx.save(made, tmp_path / "m.onnx")
    x = floats(2)
    for loaded in (tianyuan.onnx.load(made), jit.load(tmp_path / "m.onnx")):
        assert np.array_equal(np.asarray(loaded(self=x)), -x)


@pytest.mark.parametrize(
    ("kind", "gates", "spoilt", "words"),
    [
        ("GRU", 3, {"w": (18,)}, r"W does not fit, got \(18,\), expected \(1, 6, 3\)"),
        ("LSTM", 4, {"r": (1, 8, 3)}, r"R does not fit, got \(1, 8, 3\), expected \(1, 8, 2\)"),
        ("RNN", 1, {"b": (1, 2)}, r"B does not fit, got \(1, 2\), expected \(1, 4\)"),
        ("GRU", 3, {"h": (4, 2)}, r"a first state does not fit, got \(4, 2\), expected \(1, batch"),
    ],
)
def test_weights_of_recurrences_that_do_not_fit_are_named(kind, gates, spoilt, words):
    shapes = {"w": (1, gates * 2, 3), "r": (1, gates * 2, 2), "b": (1, gates * 4), "h": (1, 4, 2)}
    made = model(
        "agraph (float[5, 4, 3] x) => (float[5, 1, 4, 2] y) "
        f"{{ y = {kind} <hidden_size = 2> (x, w, r, b, , h) }}",
        weights={name: floats(*shape) for name, shape in {**shapes, **spoilt}.items()},
    )
    with pytest.raises(ShapeError, match=words):
        tianyuan.onnx.load(made)(floats(5, 4, 3))


def test_inputs_left_out_at_the_end_do_not_count():
    made = model("agraph (float[2] x) => (float[2] y) { y = Neg (x) }")
    made.graph.node[0].input.extend(["", ""])
    assert np.array_equal(tianyuan.onnx.load(made)(floats(2)).numpy(), -floats(2))


def test_scans_need_every_input():
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "se"],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])],
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    scan = helper.make_node("Scan", ["x", ""], ["y"], num_scan_inputs=1, body=body)
    made = helper.make_model(
        helper.make_graph([scan], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    with pytest.raises(ShapeError, match=r"\(Scan\): input 1 is left out"):
        tianyuan.onnx.load(made)(floats(2))
