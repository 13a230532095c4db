"""Dimensions whose names are sums of others, as files of language models with a cache have them."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.onnx
from onnx import TensorProto, helper
from tianyuan import jit
from tianyuan.errors import ShapeError
from tianyuan.onnx.dims import read_extent
from written import floats


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
