"""Dimensions whose names are sums of others, as files of language models with a cache have them."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.onnx
from onnx import TensorProto, helper
from tianyuan import jit
from tianyuan.errors import ShapeError
from tianyuan.onnx.dims import read_extent
from written import floats, model, runtime


def cached(name: str = "past + t"):
    """Return a model that appends x to the past, and adds a mask over both."""
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n, shape in (
            ("mask", ["b", name]), ("x", ["b", "t"]), ("past", ["b", "past"]), ("y", ["b", name]),
        )
    ]  # fmt: skip
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("Add", ["all", "mask"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", infos[:3], infos[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def inputs(batch: int, past: int, count: int) -> list[np.ndarray]:
    return [floats(batch, past + count), floats(batch, count, seed=1), floats(batch, past, seed=2)]


@pytest.mark.parametrize("name", ["past + t", "t+past", "past + t * 1", "(past) + t"])
def test_one_graph_serves_every_size_of_a_cache(tmp_path, name: str) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(cached(name).SerializeToString())
    model = jit.load(path)
    assert type(model) is jit.model.Model
    for batch, past, count in ((1, 4, 1), (2, 3, 5), (3, 7, 2), (1, 0, 3)):
        mask, x, old = inputs(batch, past, count)
        np.testing.assert_array_equal(model(mask, x, old), np.concatenate([old, x], 1) + mask)
    sizes = {"b": 2, "past": 5, "t": 3}
    assert [value.shape for value in model.example_inputs(sizes)] == [(2, 8), (2, 3), (2, 5)]
    assert model.program(**sizes).steps


def test_sums_that_do_not_fit_are_refused(tmp_path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(cached().SerializeToString())
    mask, x, past = inputs(2, 3, 4)
    for run in (jit.load(path), tianyuan.onnx.load(path)):
        for wrong in (mask[:, 1:], mask[:, :1], np.concatenate([mask, mask], 1)):
            with pytest.raises(ShapeError, match="mask"):
                run(wrong, x, past)


def test_names_that_are_no_sums_are_symbols() -> None:
    known = {"a", "b"}
    assert read_extent("a + 2 * b", known) == ("+", "a", ("*", 2, "b"))
    assert read_extent("a // 2 - 1", known) == ("-", ("//", "a", 2), 1)
    for text in ("c + a", "a.b", "a + ", "a ** b", "f(a)", "a // 0", "a + 1.5", "-a", "(" * 150):
        assert read_extent(text, known) == text


SIZES = {
    "same upper": 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)',
    "same lower": """
        y = MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [3, 3], strides = [2, 2]> (x)
    """,
    "made even": """
        s = Shape <start = 2, end = 3> (x)
        odd = Mod (s, two)
        pads = Concat <axis = 0> (none, none, none, none, none, none, odd, none)
        y = Pad (x, pads)
    """,
    "cut": "y = Slice (x, none, ten, two)",
    "cut from behind": "y = Slice (x, minus, far, two)",
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_decide_the_graph_are_noticed(name):
    """Odd and even, small and large sizes compute other things: no one graph serves them."""
    counts = {"two": 2, "none": 0, "ten": 10, "minus": -10, "far": 2**40}
    made = model(
        f"agraph (float[n, 1, h, w_] x) => (float[n, 1, a, b] y) {{ {SIZES[name]} }}",
        weights={
            "w": floats(1, 1, 3, 3),
            **{key: np.array([count], np.int64) for key, count in counts.items()},
        },
    )
    loaded = tianyuan.onnx.load_model(tianyuan.onnx.load(made), None, None)
    for height, width in ((6, 6), (7, 5), (6, 9), (33, 18), (224, 64), (2, 2)):
        x = floats(2, 1, height, width)
        (wanted,) = runtime(made, {"x": x})
        found = loaded(x)
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, 1e-5, 1e-5)


def test_recurrences_of_no_steps():
    made = model(
        """
        agraph (float[t, n, 3] x) => (float[t, 1, n, 2] y, float[1, n, 2] last)
        {
          y, last = LSTM <hidden_size = 2> (x, w, r, , , h)
        }
        """,
        weights={"w": floats(1, 8, 3), "r": floats(1, 8, 2), "h": floats(1, 4, 2)},
    )
    rows, last = tianyuan.onnx.load(made)(np.zeros((0, 4, 3), np.float32))
    assert rows.shape == (0, 1, 4, 2)
    assert np.array_equal(last.numpy(), floats(1, 4, 2))
