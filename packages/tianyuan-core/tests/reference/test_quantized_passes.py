"""Dequantise, compute, quantise becomes ops on integers that stand for the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.graph import passes
from tianyuan.graph.graph import Graph
from tianyuan.op import TensorSpec
from tianyuan.ops.reference import evaluate
from tianyuan.shapes import Dim

ops.register_all()


class Build:
    """Writes quantised graphs shortly."""

    def __init__(self):
        self.graph = Graph()
        self.rng = np.random.default_rng(5)

    def __getattr__(self, name):
        def emit(*inputs, **attrs):
            op = registry.get_op(name)
            return self.graph.add_node(op, inputs, op.attrs(**attrs))[0]

        return emit

    def input(self, *shape, dtype="float32"):
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(TensorSpec(shape, np.dtype(dtype)), name)

    def constant(self, array):
        return self.graph.add_constant(np.asarray(array), "c")

    def q(self, x, scale=0.03, zero=7, dtype="uint8"):
        return self.quantize(x, scales=(f32(scale),), zero_points=(zero,), dtype=dtype)

    def dq(self, x, scale=0.03, zero=7, axis=-1):
        many = axis >= 0
        return self.dequantize(
            x,
            scales=tuple(map(f32, scale)) if many else (f32(scale),),
            zero_points=tuple(zero) if many else (zero,),
            axis=axis,
        )

    def qdq(self, x, scale=0.03, zero=7, dtype="uint8"):
        return self.dq(self.q(x, scale, zero, dtype), scale, zero)

    def weight(self, *shape, axis=0, dtype="int8", zero=0):
        info = np.iinfo(dtype)
        data = self.rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
        count = shape[axis]
        scales = 0.01 * (1 + np.arange(count) % 3)
        return self.dq(self.constant(data), scales, [zero] * count, axis)

    def conv(self, x, w, padding=1, groups=1):
        return self.conv2d(
            x, w, stride=(1, 1), padding=(padding,) * 4, dilation=(1, 1), groups=groups
        )

    def bias(self, count, shape):
        values = self.rng.standard_normal(count).astype(np.float32)
        return self.reshape(self.constant(values), shape=shape)

    def returns(self, *values):
        self.graph.outputs = list(values)
        return self.graph


def f32(value):
    return float(np.float32(value))


def run(graph, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {v: c.array for v, c in graph.constants.items()}
    for value in graph.inputs:
        arrays[value] = rng.standard_normal(value.spec.shape).astype(value.spec.dtype)
    for node in graph.nodes:
        results = evaluate(node.op, [arrays[v] for v in node.inputs], node.attrs)
        arrays.update(zip(node.outputs, results, strict=True))
    return [arrays[v] for v in graph.outputs]


def names(graph):
    return [node.op.name for node in graph.nodes]


def check(graph, *expected, quanta=1, differing=0.02):
    """The optimised graph has the ops expected, and integers next to those of floats."""
    after = passes.optimise(graph)
    assert names(after) == list(expected), "\n" + str(after)
    for got, want in zip(run(after), run(graph), strict=True):
        assert got.dtype == want.dtype
        assert len(np.unique(want)) > 3
        apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
        assert apart.max(initial=0) <= quanta
        assert (apart > 0).mean() <= differing
    return after


@pytest.mark.parametrize("activation", [None, "relu", "relu6", "clip"])
@pytest.mark.parametrize("residual", [False, True])
def test_convolution_with_everything(activation, residual):
    b = Build()
    x = b.qdq(b.input(2, 4, 6, 5))
    y = b.add(b.conv(x, b.weight(8, 4, 3, 3)), b.bias(8, (1, 8, 1, 1)))
    expected = ["quantize", "conv2d_quantized"]
    if residual:
        other = b.qdq(b.input(2, 8, 6, 5), 0.04, -3, "int8")
        y = b.add(other, y)
        expected.insert(1, "quantize")
    if activation == "clip":
        low, high = b.constant(np.float32(-1)), b.constant(np.float32(2.5))
        y = b.minimum(b.maximum(y, low), high)
    elif activation:
        y = getattr(b, activation)(y)
    after = check(b.returns(b.q(y, 0.05, -11, "int8")), *expected)
    attrs = after.nodes[-1].attrs
    assert attrs.has_bias
    assert attrs.has_residual == residual
    bounds = {None: (-128, 127), "relu": (-11, 127), "relu6": (-11, 109), "clip": (-31, 39)}
    assert (attrs.lower, attrs.upper) == bounds[activation]


def test_matrix_product_with_both_transpositions():
    for transpose in (False, True):
        b = Build()
        x = b.qdq(b.input(200, 16))
        w = b.weight(5, 16, axis=0) if transpose else b.weight(16, 5, axis=1)
        y = b.matmul(x, w, transpose_a=False, transpose_b=transpose)
        y = b.relu(b.add(y, b.constant(b.rng.standard_normal(5).astype(np.float32))))
        check(b.returns(b.q(y, 0.02, 0, "uint8")), "quantize", "matmul_quantized")


def test_product_of_two_activations():
    b = Build()
    x, y = b.qdq(b.input(2, 3, 4, 8)), b.qdq(b.input(2, 3, 5, 8), 0.02, 3, "int8")
    z = b.matmul(x, y, transpose_a=False, transpose_b=True)
    check(b.returns(b.q(z, 0.06, 4, "int8")), "quantize", "quantize", "matmul_quantized")


def test_unsigned_weights_become_signed():
    b = Build()
    w = b.weight(6, 4, 3, 3, dtype="uint8", zero=131)
    y = b.conv(b.qdq(b.input(1, 4, 7, 7)), w)
    after = check(b.returns(b.q(y, 0.15, 0, "int8")), "quantize", "conv2d_quantized")
    assert after.nodes[-1].attrs.w_zero_points == (3,)


def test_weights_quantised_in_the_graph():
    b = Build()
    w = b.constant(b.rng.standard_normal((6, 4, 3, 3)).astype(np.float32))
    form = {"scales": (f32(0.02),) * 6, "zero_points": (0,) * 6, "axis": 0}
    w = b.dequantize(b.quantize(w, dtype="int8", **form), **form)
    y = b.conv(b.qdq(b.input(1, 4, 7, 7)), w)
    check(b.returns(b.q(y, 0.05, 0, "int8")), "quantize", "conv2d_quantized")


def test_stored_bias_is_kept_to_the_last_unit():
    b = Build()
    x = b.qdq(b.input(1, 2, 4, 4), 0.03, 7)
    data = np.array([2**30 + 1, -5, 77], np.int32)
    w = b.dq(b.constant(np.ones((3, 2, 1, 1), np.int8)), 0.5, 0)
    bias = b.dq(b.constant(data), [np.float32(0.03) * 0.5] * 3, [0] * 3, 0)
    y = b.add(b.conv(x, w, 0), b.reshape(bias, shape=(1, 3, 1, 1)))
    after = passes.optimise(b.returns(b.q(y, 0.1, 0, "int8")))
    stored = [c.array for c in after.constants.values() if c.array.dtype == np.int32]
    np.testing.assert_array_equal(stored[0], data)


def test_addition_concat_and_pools():
    b = Build()
    x, y = b.qdq(b.input(2, 3, 8, 8)), b.qdq(b.input(2, 3, 8, 8), 0.02, -5, "int8")
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    graph = b.returns(
        b.q(b.relu(b.add(x, y)), 0.0417, 0, "uint8"),
        b.q(b.concat(x, y, axis=1), 0.0417, 2, "int8"),
        b.q(b.avg_pool2d(x, count_include_pad=True, **window), 0.0213, 9, "uint8"),
        b.q(b.mean(y, axes=(2, 3), keepdims=False), 0.01, 9, "int8"),
        b.q(b.adaptive_avg_pool2d(x, size=(3, 3)), 0.0213, 9, "int8"),
        b.q(b.max_pool2d(x, **window)),
    )
    check(
        graph, "quantize", "quantize", "add_quantized", "concat_quantized", "avg_pool2d_quantized",
        "adaptive_avg_pool2d_quantized", "reshape", "adaptive_avg_pool2d_quantized", "max_pool2d",
    )  # fmt: skip


def test_what_moves_between_an_op_and_its_rounding_moves_integers():
    """As exporters write a mean that is flattened before it is quantised."""
    b = Build()
    x = b.qdq(b.input(2, 12, 5, 5))
    mean = b.mean(x, axes=(2, 3), keepdims=True)
    product = b.conv(x, b.weight(8, 12, 3, 3))
    turned = b.reshape(b.transpose(product, perm=(0, 2, 3, 1)), shape=(2, 200))
    graph = b.returns(
        b.q(b.reshape(mean, shape=(2, 12)), 0.002, 121), b.q(b.relu(turned), 0.4, 100)
    )
    check(
        graph, "quantize", "adaptive_avg_pool2d_quantized", "reshape", "conv2d_quantized",
        "transpose", "reshape",
    )  # fmt: skip


def test_channel_shuffle_stays_in_integers():
    b = Build()
    x = b.qdq(b.input(2, 6, 4, 4))
    y = b.transpose(b.reshape(x, shape=(2, 2, 3, 4, 4)), perm=(0, 2, 1, 3, 4))
    graph = b.returns(b.q(b.reshape(y, shape=(2, 6, 4, 4))))
    after = check(graph, "quantize", "take", quanta=0)
    assert after.outputs[0].spec.quant.zero_points == (7,)
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_channel_shuffle_of_integers_is_read_by_indices(dtype):
    b = Build()
    x = b.q(b.input(2, 6, 4, 4), dtype=dtype)
    y = b.transpose(b.reshape(x, shape=(2, 2, 3, 4, 4)), perm=(0, 2, 1, 3, 4))
    y = b.reshape(y, shape=(2, 6, 4, 4))
    cut = b.slice(y, starts=(0, 3, 0, 0), sizes=(2, 3, 4, 4), steps=(1, 1, 1, 1))
    graph = b.returns(b.relu(b.dq(cut)))
    after = passes.optimise(graph)
    assert [node.op.name for node in after.nodes[:2]] == ["quantize", "take"]
    assert after.nodes[1].outputs[0].spec.quant.zero_points == (7,)
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])


def test_a_slice_that_also_turns_rows_around_still_does():
    b = Build()
    x = b.take(b.q(b.input(2, 6, 4, 4)), b.constant(np.array([3, 0, 2, 1, 5, 4])), axis=1)
    cut = b.slice(x, starts=(0, 3, 0, 3), sizes=(2, 3, 4, 4), steps=(1, 1, 1, -1))
    graph = b.returns(b.dq(cut))
    np.testing.assert_array_equal(run(passes.optimise(graph))[0], run(graph)[0])


def test_what_moves_images_into_channels_is_no_shuffle():
    b = Build()
    x = b.q(b.input(2, 6, 2, 2))
    y = b.transpose(b.reshape(x, shape=(4, 2, 3, 2, 1)), perm=(0, 2, 1, 3, 4))
    graph = b.returns(b.dq(b.reshape(y, shape=(2, 6, 2, 2))))
    after = passes.optimise(graph)
    assert "take" not in names(after)
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])


def test_taken_channels_stay_in_integers():
    b = Build()
    order = b.constant(np.array([3, 0, 2, 1, 5, 4], np.int32))
    graph = b.returns(b.q(b.take(b.qdq(b.input(2, 6, 4, 4)), order, axis=1)))
    after = check(graph, "quantize", "take", quanta=0)
    assert after.outputs[0].spec.quant.zero_points == (7,)


def test_rescaling_between_two_quantisations():
    b = Build()
    x = b.qdq(b.input(40, 50), 0.01, 128)
    check(b.returns(b.q(b.relu(x), 0.015, -7, "int8")), "quantize", "requantize")


def test_bounds_alone_join_what_makes_the_integers():
    for lower in (-11, -128):
        b = Build()
        x = b.qdq(b.input(1, 4, 6, 6))
        y = b.q(b.conv(x, b.weight(8, 4, 3, 3)), 0.05, -11, "int8")
        form = {"scale": f32(0.05), "zero_point": -11, "dtype": "int8"}
        y = b.requantize(y, x_zero_point=-11, multiplier=1.0, lower=lower, upper=100, **form)
        graph = b.returns(y)
        after = passes.optimise(graph)
        assert names(after) == ["quantize", "conv2d_quantized"]
        assert (after.nodes[-1].attrs.lower, after.nodes[-1].attrs.upper) == (lower, 100)
        np.testing.assert_allclose(run(after)[0], run(graph)[0], atol=1)


def test_joining_equal_quantisations_moves_integers():
    b = Build()
    x, y = b.qdq(b.input(2, 3)), b.qdq(b.input(2, 4))
    check(b.returns(b.q(b.concat(x, y, axis=1))), "quantize", "quantize", "concat", quanta=0)


def test_symbols_stay():
    b = Build()
    x = b.qdq(b.input(Dim(3, "n"), 4, 6, 6))
    y = b.q(b.relu(b.conv(x, b.weight(8, 4, 3, 3))), 0.05, 0, "int8")
    y = b.q(b.mean(b.dq(y, 0.05, 0), axes=(2, 3), keepdims=True), 0.05, 0, "int8")
    after = passes.optimise(b.returns(y))
    assert names(after) == ["quantize", "conv2d_quantized", "adaptive_avg_pool2d_quantized"]
    assert run(after.specialise({"n": 5}))[0].shape == (5, 8, 1, 1)


def refused(build):
    b = Build()
    after = passes.optimise(b.returns(build(b)))
    assert not any(name.endswith("_quantized") for name in names(after)), "\n" + str(after)


def test_what_is_read_elsewhere_stays_in_floats():
    b = Build()
    y = b.conv(b.qdq(b.input(1, 4, 6, 6)), b.weight(8, 4, 3, 3))
    after = passes.optimise(b.returns(b.q(y, 0.05, 0, "int8"), y))
    assert "conv2d" in names(after)


def test_multipliers_beyond_float32_stay_in_floats():
    refused(lambda b: b.q(b.add(b.qdq(b.input(3), 1e30), b.qdq(b.input(3))), 1e-30))


def test_sums_beyond_int32_stay_in_floats():
    def build(b):
        x = b.qdq(b.input(1, 70000))
        w = b.weight(1, 70000, axis=0)
        return b.q(b.matmul(x, w, transpose_a=False, transpose_b=True), 1.0)

    refused(build)


def test_float_operands_stay_in_floats():
    refused(lambda b: b.q(b.add(b.qdq(b.input(3)), b.input(3))))
    refused(lambda b: b.q(b.conv(b.input(1, 4, 6, 6), b.weight(8, 4, 3, 3)), 0.05))


def gelu(b, x):
    one, half = b.constant(np.float32(1)), b.constant(np.float32([[0.5]]))
    gate = b.add(b.erf(b.div(x, b.constant(np.float32(np.sqrt(2))))), one)
    return b.mul(b.mul(x, gate), half)


LOOKED_UP = {
    "gelu": gelu,
    "hswish": lambda b, x: b.mul(x, b.relu6(b.add(x, b.constant(np.float32(3))))),
    "not a number": lambda b, x: b.relu(b.log(b.maximum(x, b.constant(np.float32(-1))))),
    "far apart": lambda b, x: b.mul(b.exp(b.mul(x, x)), b.constant(np.float32(1e30))),
}


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 120), ("int8", -9)])
@pytest.mark.parametrize("name", LOOKED_UP)
def test_what_one_integer_decides_is_looked_up(name, dtype, zero):
    b = Build()
    every = np.arange(256) - (128 if dtype == "int8" else 0)
    stored = b.input(64, Dim(4, "n"), dtype=dtype)
    y = LOOKED_UP[name](b, b.dq(stored, 0.04, zero))
    y = b.transpose(b.reshape(y, shape=(32, 2, stored.spec.shape[1])), perm=(1, 0, 2))
    graph = b.returns(b.q(y, 0.02, 11, "int8"))
    after = passes.optimise(graph)
    assert names(after) == ["lookup_quantized", "reshape", "transpose"]
    assert after.outputs[0].spec == graph.outputs[0].spec
    got, want = (on_arrays(g, every.reshape(64, 4).astype(dtype)) for g in (after, graph))
    np.testing.assert_array_equal(got, want)


def on_arrays(graph, array):
    values = {v: c.array for v, c in graph.constants.items()} | {graph.inputs[0]: array}
    for node in graph.nodes:
        attrs = node.attrs
        if node.op.name == "reshape":
            attrs = node.op.attrs(shape=(32, 2, array.shape[1]))
        results = evaluate(node.op, [values[v] for v in node.inputs], attrs)
        values.update(zip(node.outputs, results, strict=True))
    return values[graph.outputs[0]]


def test_what_more_than_one_integer_decides_is_not_looked_up():
    b = Build()
    x, y = (b.dq(b.input(4, 6, dtype="int8"), 0.1, 3) for _ in range(2))
    rows = b.constant(np.float32([1, 2, 3, 4, 5, 6]))
    for value in (b.mul(x, y), b.mul(b.exp(x), rows), b.softmax(x, axis=1)):
        graph = b.returns(b.q(value))
        assert "lookup_quantized" not in names(passes.optimise(graph))


def test_scales_of_channels_follow_their_axis():
    b = Build()
    x = b.dq(b.input(2, 3, 4, dtype="int8"), [0.5, 0.25, 0.125], [1, -2, 3], 1)
    graph = b.returns(b.transpose(x, perm=(1, 2, 0)))
    after = passes.optimise(graph)
    assert names(after) == ["transpose", "dequantize"]
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])


def test_crossed_bounds_leave_the_outer_one():
    for outer, inner, high, low in (("maximum", "minimum", -1, 0.5), ("minimum", "maximum", 2, -1)):
        b = Build()
        y = b.conv(b.qdq(b.input(1, 4, 6, 6)), b.weight(8, 4, 3, 3))
        y = getattr(b, inner)(y, b.constant(np.float32(high)))
        y = getattr(b, outer)(y, b.constant(np.float32(low)))
        graph = b.returns(b.q(y, 0.05, -11, "int8"))
        after = passes.optimise(graph)
        assert names(after) == ["quantize", "conv2d_quantized"]
        assert np.unique(run(graph)[0]).size == 1
        np.testing.assert_array_equal(run(after)[0], run(graph)[0])


def test_bounds_of_one_reader_are_not_those_of_others():
    b = Build()
    form = {"scale": f32(0.15), "zero_point": -11, "dtype": "int8"}
    y = b.q(b.conv(b.qdq(b.input(1, 4, 6, 6)), b.weight(8, 4, 3, 3)), 0.15, -11, "int8")
    bounded = b.requantize(y, x_zero_point=-11, multiplier=1.0, lower=-20, upper=5, **form)
    check(b.returns(y, bounded), "quantize", "conv2d_quantized", "requantize")


@pytest.mark.parametrize("axes", [(1,), (1, 2), (3,)])
def test_means_over_other_axes_than_pixels_stay_in_floats(axes):
    b = Build()
    graph = b.returns(b.q(b.mean(b.qdq(b.input(2, 3, 4, 5)), axes=axes, keepdims=True)))
    after = passes.optimise(graph)
    assert names(after) == ["quantize", "dequantize", "mean", "quantize"]
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])


@pytest.mark.parametrize(("scale", "zero"), [(1.0, 0), (1.0, 3), (4.0, 0), (4.0, -2)])
def test_stored_biases_have_the_accumulators_scale_and_no_zero_point(scale, zero):
    b = Build()
    data = np.array([1000, -5, 77], np.int32)
    own = np.float32(0.03) * np.float32(0.5)
    w = b.dq(b.constant(np.ones((3, 2, 1, 1), np.int8)), 0.5, 0)
    bias = b.dq(b.constant(data), [own * scale] * 3, [zero] * 3, 0)
    y = b.add(b.conv(b.qdq(b.input(1, 2, 4, 4)), w, 0), b.reshape(bias, shape=(1, 3, 1, 1)))
    after = passes.optimise(b.returns(b.q(y, 0.1, 0, "int8")))
    assert names(after) == ["quantize", "conv2d_quantized"]
    (stored,) = (c.array for c in after.constants.values() if c.array.dtype == np.int32)
    np.testing.assert_array_equal(stored, (data - zero) * int(scale))


@pytest.mark.parametrize("shape", [(1, 8, 1, 6), (1, 8, 6, 1), (1, 1, 1, 6), (8, 6, 6)])
def test_what_varies_over_pixels_is_no_bias(shape):
    def build(b):
        y = b.conv(b.qdq(b.input(1, 4, 6, 6)), b.weight(8, 4, 3, 3))
        return b.q(b.add(y, b.constant(b.rng.standard_normal(shape).astype(np.float32))), 0.05)

    refused(build)


def test_a_constant_of_more_axes_gives_the_result_its_axes():
    b = Build()
    y = b.add(b.exp(b.qdq(b.input(4, 6))), b.constant(np.ones((1, 1, 1), np.float32)))
    graph = b.returns(b.q(y, 0.1))
    after = passes.optimise(graph)
    assert after.outputs[0].spec.shape == (1, 4, 6)
    np.testing.assert_array_equal(run(after)[0], run(graph)[0])
