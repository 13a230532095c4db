"""Rows that nobody reads are not computed: results stay, and products shrink."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tianyuan import ops, registry
from tianyuan.graph import spec
from tianyuan.graph.graph import Graph
from tianyuan.graph.options import Options
from tianyuan.graph.passes import dead, rows
from tianyuan.op import TensorSpec
from tianyuan.ops.reference import evaluate
from tianyuan.shapes import Dim

ops.register_all()
FUSED = {"transpose_a": False, "transpose_b": False, "activation": "identity"}
EXACT = {"lower": 0.0, "upper": 0.0}


class Net:
    """Graphs of rows of an encoder: ``b.add(x, y)``."""

    def __init__(self):
        self.graph = Graph()

    def __getattr__(self, name):
        def emit(*inputs, **attrs):
            op = registry.get_op(name)
            return self.graph.add_node(op, inputs, op.attrs(**attrs))[0]

        return emit

    def input(self, *shape, dtype="float32"):
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(TensorSpec(shape, np.dtype(dtype)), name)

    def constant(self, array):
        return self.graph.add_constant(np.asarray(array))

    def random(self, *shape, seed=0):
        return self.constant(np.random.default_rng(seed).standard_normal(shape).astype("f4"))

    def product(self, x, w, transpose_a=False):
        return self.matmul(x, w, transpose_a=transpose_a, transpose_b=False)

    def returns(self, *values):
        self.graph.outputs = list(values)
        return self.graph

    def cut(self, x, axis, start, size=1, step=1):
        def along(value, other):
            return tuple(value if i == axis else other for i in range(x.spec.ndim))

        sizes = tuple(size if i == axis else n for i, n in enumerate(x.spec.shape))
        return self.slice(x, starts=along(start, 0), sizes=sizes, steps=along(step, 1))

    def fused(self, x, columns, residual=None, seed=1):
        given = [x, self.random(x.spec.shape[-1], columns, seed=seed), self.random(columns)]
        given += [] if residual is None else [residual]
        return self.matmul_fused(
            *given, has_bias=True, has_residual=residual is not None, **FUSED, **EXACT
        )

    def norm(self, x, ndim=1):
        vector = [self.random(*x.spec.shape[-ndim:], seed=2) for _ in range(2)]
        return self.layer_norm(x, *vector, ndim=ndim, eps=1e-5, affine=True)

    def attend(self, x, heads, *mask, causal=False):
        batch, count, columns = x.spec.shape
        width = columns // heads // 3
        split = self.reshape(x, shape=(batch, count, 3, heads, width))
        apart = self.transpose(split, perm=(2, 0, 3, 1, 4))
        parts = [
            self.reshape(self.cut(apart, 0, i), shape=(batch, heads, count, width))
            for i in range(3)
        ]
        out = self.attention(*parts, *mask, scale=0.5, causal=causal)
        return self.reshape(
            self.transpose(out, perm=(0, 2, 1, 3)), shape=(batch, count, heads * width)
        )

    def layer(self, x, heads=2):
        columns = x.spec.shape[-1]
        x = self.fused(self.attend(self.fused(self.norm(x), 3 * columns), heads), columns, x)
        wide = self.gelu(self.fused(self.norm(x), 2 * columns, seed=3))
        return self.fused(wide, columns, x, seed=4)


def run(graph, seed, sizes):
    """Return the outputs of a graph on random data, by references alone."""
    graph = graph.specialise(sizes or {})
    rng = np.random.default_rng(seed)
    arrays = {v: c.array for v, c in graph.constants.items()}
    for value in graph.inputs:
        drawn = rng.standard_normal(value.spec.shape)
        whole = rng.integers(0, 255, value.spec.shape)
        chosen = drawn if value.spec.dtype.kind == "f" else whole
        arrays[value] = chosen.astype(value.spec.dtype)
    for node in graph.nodes:
        results = evaluate(node.op, [arrays[v] for v in node.inputs], node.attrs)
        arrays.update(zip(node.outputs, results, strict=True))
    return [arrays[v] for v in graph.outputs]


def assert_same(before, after, sizes=None):
    spec.check(after, "fuse")
    for old, new in zip(run(before, 7, sizes), run(after, 7, sizes), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_allclose(old, new, rtol=2e-5, atol=2e-5, strict=True)


def cut_graph(graph, sizes=None):
    """Run the pass, assert that results are kept, and return the shapes of each op's results."""
    after = dead.run(rows.run(graph, Options()), Options())
    assert_same(graph, after, sizes)
    found: dict[str, list] = {}
    for node in after.nodes:
        found.setdefault(node.op.name, []).append(tuple(node.outputs[0].spec.shape))
    return found


def assert_left_alone(graph):
    assert rows.run(graph, Options()) is graph


@pytest.mark.parametrize("reads", ["take", "slice"])
def test_classifier_computes_one_row_of_its_last_layer_but_for_keys_and_values(reads):
    b = Net()
    y = b.norm(b.layer(b.layer(b.input(2, 5, 8))))
    if reads == "take":
        y = b.take(y, b.constant(np.int64(0)), axis=1)
    else:
        y = b.reshape(b.cut(y, 1, 0), shape=(2, 8))
    found = cut_graph(b.returns(b.product(y, b.random(8, 3))))
    whole, one = [(2, 5, 24), (2, 5, 8), (2, 5, 16), (2, 5, 8)], [(2, 1, 8), (2, 1, 16), (2, 1, 8)]
    assert found["matmul_fused"] == [*whole, (2, 5, 24), *one]
    assert found["attention"] == [(2, 2, 5, 4), (2, 2, 1, 4)]
    assert found["layer_norm"][-2:] == [(2, 1, 8), (2, 1, 8)]
    assert "take" not in found


@pytest.mark.parametrize("index", [-1, 2])
def test_last_row_of_scores_needs_one_row_of_the_head(index):
    b = Net()
    y = b.relu(b.product(b.input(3, 6, 4), b.random(4, 7)))
    found = cut_graph(b.returns(b.take(y, b.constant(np.int64(index)), axis=1)))
    assert found["matmul"] == [(3, 1, 7)]


@pytest.mark.parametrize("length", [1, 4, 9])
def test_symbolic_rows_and_batch_shrink_at_every_size(length):
    b, n, t = Net(), Dim(2, "n"), Dim(6, "t")
    y = b.layer(b.input(n, t, 8))
    found = cut_graph(b.returns(b.cut(y, 1, t - 1)), {"n": 3, "t": length})
    assert [shape[1] for shape in found["matmul_fused"]] == [t, 1, 1, 1]
    assert found["attention"][0][2] == 1


@pytest.mark.parametrize(
    "mask",
    [(5, 5), (1, 5), (2, 1, 5, 5), (2, 2, 1, 5)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_masks_are_cut_where_they_have_rows(mask):
    b = Net()
    y = b.attend(b.fused(b.input(2, 5, 8), 24), 2, b.random(*mask, seed=5))
    found = cut_graph(b.returns(b.cut(y, 1, 3, 2)))
    assert found["attention"] == [(2, 2, 2, 4)]


def test_strided_rows_pass_what_broadcasts_and_what_works_along_other_axes():
    b = Net()
    x = b.product(b.input(2, 6, 4), b.random(4, 4))
    y = b.softmax(b.add(b.mul(x, b.input(6, 1)), b.input(2, 1, 4)), axis=2)
    y = b.transpose(b.reshape(y, shape=(2, 6, 2, 2)), perm=(2, 1, 0, 3))
    found = cut_graph(b.returns(b.cut(b.cut(y, 0, 1), 1, 1, 3, 2)))
    assert found["matmul"] == [(2, 3, 4)]
    assert found["softmax"] == [(2, 3, 4)]


def test_samples_are_cut_as_rows_are():
    b = Net()
    y = b.product(b.input(6, 4, 4), b.random(4, 3))
    assert cut_graph(b.returns(b.cut(y, 0, 2, 3)))["matmul"] == [(3, 4, 3)]


def test_integers_are_cut_behind_their_products():
    b = Net()
    x, w = b.input(1, 6, 4, dtype="uint8"), b.constant(np.ones((4, 3), np.int8))
    y = b.matmul_quantized(
        b.reshape(x, shape=(6, 4)), w, transpose_a=False, transpose_b=False, has_bias=False,
        has_residual=False, x_zero_point=3, w_zero_points=(0,), multipliers=(0.125, 0.25, 0.5),
        residual_zero_point=0, residual_multiplier=1.0, scale=0.5, zero_point=9, dtype="uint8",
        lower=0, upper=255,
    )  # fmt: skip
    y = b.dequantize(b.reshape(y, shape=(1, 6, 3)), scales=(0.5,), zero_points=(9,), axis=-1)
    found = cut_graph(b.returns(b.cut(y, 1, 5)))
    assert found["matmul_quantized"] == [(1, 3)]
    assert found["dequantize"] == [(1, 1, 3)]


@pytest.mark.parametrize("start", [0, 4])
def test_rescaled_integers_are_cut(start):
    b = Net()
    form = {"scale": 0.25, "zero_point": 7, "dtype": "uint8", "lower": 7, "upper": 255}
    x = b.requantize(b.input(2, 5, 4, dtype="uint8"), x_zero_point=3, multiplier=1.5, **form)
    found = cut_graph(b.returns(b.cut(x, 1, start)))  # no product: nothing moves
    assert found["requantize"] == [(2, 5, 4)]
    rest = {"has_bias": False, "has_residual": False, "transpose_a": False, "transpose_b": False}
    y = b.matmul_quantized(
        x, b.constant(np.ones((4, 3), np.int8)), **rest, **form, x_zero_point=7,
        w_zero_points=(0,), multipliers=(0.125,), residual_zero_point=0, residual_multiplier=1.0,
    )  # fmt: skip
    z = b.requantize(y, x_zero_point=7, multiplier=0.75, **form)
    found = cut_graph(b.returns(b.cut(z, 1, start)))
    assert found["requantize"] == [(2, 1, 4), (2, 1, 3)]


def test_value_that_is_read_whole_is_cut_behind_it():
    b = Net()
    x = b.relu(b.input(2, 5, 4))
    y = b.add(b.product(x, b.random(4, 4)), x)
    found = cut_graph(b.returns(b.cut(y, 1, 1), x))
    assert found["matmul"] == [(2, 1, 4)]
    assert found["relu"] == [(2, 5, 4)]
    assert found["slice"] == [(2, 1, 4)]  # once for both readers


@pytest.mark.parametrize(
    "why",
    ["columns", "two cuts", "returned", "normalised", "softmax", "causal", "weights", "swapped",
     "merged", "no product", "nothing less", "unknown index", "several"],
)  # fmt: skip
def test_rows_that_must_be_computed(why):
    b, t = Net(), Dim(5, "t")
    x = b.input(2, 5, 8)
    y = b.product(x, b.random(8, 8))
    returned = []
    if why == "columns":
        returned = [b.cut(y, 2, 0)]
    elif why == "two cuts":
        returned = [b.cut(y, 1, 0), b.cut(y, 1, 1)]
    elif why == "returned":
        returned = [b.cut(y, 1, 0), y]
    elif why == "normalised":
        returned = [b.cut(b.norm(y, ndim=2), 1, 0)]
    elif why == "softmax":
        returned = [b.cut(b.softmax(y, axis=1), 1, 0)]
    elif why == "causal":
        q, k, v = (b.input(2, 5, 4) for _ in range(3))
        returned = [b.cut(b.attention(q, k, v, scale=1.0, causal=True), 1, 0)]
    elif why == "weights":
        returned = [b.cut(b.product(b.random(2, 3, 4), b.input(2, 4, 5)), 0, 0)]
    elif why == "swapped":
        returned = [b.cut(b.product(x, b.random(2, 5, 4), transpose_a=True), 1, 0)]
    elif why == "merged":
        returned = [b.cut(b.reshape(y, shape=(10, 8)), 0, 0)]
    elif why == "no product":
        returned = [b.cut(b.relu(x), 1, 0)]
    elif why == "nothing less":
        returned = [b.cut(y, 1, 4, 5, -1)]
    elif why == "unknown index":
        y = b.product(b.input(2, t, 8), b.random(8, 8))
        returned = [b.take(y, b.constant(np.int64(3)), axis=1)]
    elif why == "several":
        returned = [b.take(y, b.constant(np.array([0, 1])), axis=1)]
    assert_left_alone(b.returns(*returned))


@st.composite
def graphs(draw):
    """Graphs of rows, some of which are read by several others, with one or two cuts at the end."""
    b = Net()
    known = [b.input(2, 4, 4), b.input(2, 4, 4), b.input(4, 1)]
    for step in range(draw(st.integers(1, 9))):
        x, y = (known[draw(st.integers(0, len(known) - 1))] for _ in range(2))
        x = b.add(x, known[0])
        kind = draw(st.integers(0, 5))
        if kind == 0:
            known.append(b.add(x, y))
        elif kind == 1:
            known.append(b.product(x, b.random(4, 4, seed=step)))
        elif kind == 2:
            known.append(b.norm(x, draw(st.integers(1, 2))))
        elif kind == 3:
            known.append(b.softmax(x, axis=draw(st.integers(0, 2))))
        elif kind == 4:
            known.append(b.fused(x, 4, b.add(known[0], y), seed=step))
        else:
            known.append(b.attend(b.fused(x, 24, seed=step), 2))
            known.append(b.product(known.pop(), b.random(8, 4, seed=step)))
    ends = [b.add(known[-1], known[0]), b.add(known[-2], known[0])][: draw(st.integers(1, 2))]
    cuts = [(draw(st.integers(0, 2)), draw(st.integers(0, 1))) for _ in ends]
    return b.returns(*(b.cut(x, *where) for x, where in zip(ends, cuts, strict=True)))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph_keeps_its_results(graph):
    assert_same(graph, rows.run(graph, Options()))
