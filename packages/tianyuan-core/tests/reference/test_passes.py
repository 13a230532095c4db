"""Each pass keeps results: graphs are evaluated by references before and after."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tianyuan.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tianyuan import Tensor, jit, ops, registry
from tianyuan.errors import GraphError
from tianyuan.graph import passes, spec
from tianyuan.graph.graph import Graph, Node
from tianyuan.graph.options import Options
from tianyuan.op import Op, TensorSpec
from tianyuan.ops.reference import evaluate
from tianyuan.shapes import Dim

ops.register_all()
F32 = np.dtype("float32")


class Build:
    """Writes graphs shortly: ``b.add(x, y)``."""

    def __init__(self):
        self.graph = Graph()

    def input(self, *shape, dtype="float32"):
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(TensorSpec(shape, np.dtype(dtype)), name)

    def state(self, *shape):
        return self.graph.add_state(TensorSpec(shape, F32), f"s{len(self.graph.states)}")

    def constant(self, array, name="c"):
        return self.graph.add_constant(np.asarray(array), name)

    def random(self, *shape, seed=0, positive=False):
        array = np.random.default_rng(seed).standard_normal(shape).astype(F32)
        return self.constant(np.abs(array) + F32.type(0.1) if positive else array)

    def scalar(self, value):
        return self.constant(np.float32(value))

    def __getattr__(self, name):
        def emit(*inputs, **attrs):
            op = registry.get_op(name)
            outputs = self.graph.add_node(op, inputs, op.attrs(**attrs))
            return outputs[0] if len(outputs) == 1 else outputs

        return emit

    def conv(self, x, w, groups=1, padding=0):
        return self.conv2d(
            x, w, stride=(1, 1), padding=(padding,) * 4, dilation=(1, 1), groups=groups
        )

    def product(self, x, w, transpose_a=False, transpose_b=False):
        return self.matmul(x, w, transpose_a=transpose_a, transpose_b=transpose_b)

    def returns(self, *values):
        self.graph.outputs = list(values)
        return self.graph


def run(graph, seed=0, sizes=None):
    """Return outputs and new states of a graph on random data, by references alone."""
    if graph.symbols():
        graph = graph.specialise(sizes)
    rng = np.random.default_rng(seed)
    arrays = {v: c.array for v, c in graph.constants.items()}
    for value in (*graph.inputs, *graph.states):
        drawn = rng.standard_normal(value.spec.shape) * (1 if value.spec.dtype.kind == "f" else 9)
        arrays[value] = drawn.astype(value.spec.dtype)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            results = evaluate(node.op, [arrays[v] for v in node.inputs], node.attrs)
            arrays.update(zip(node.outputs, results, strict=True))
    return [arrays[v] for v in graph.roots()]


def names(graph):
    return [node.op.name for node in graph.nodes]


def assert_same(before, after, sizes=None, exact=True):
    """Assert that two graphs give equal results, bit for bit unless told otherwise."""
    spec.check(after, "fuse")
    for seed in range(2):
        for old, new in zip(run(before, seed, sizes), run(after, seed, sizes), strict=True):
            assert old.dtype == new.dtype
            assert old.shape == new.shape
            if exact:
                np.testing.assert_array_equal(old, new)
            else:
                np.testing.assert_allclose(old, new, rtol=2e-5, atol=2e-5)


def canonical(graph, sizes=None):
    """Run the canonical stage, assert that results are kept, and return the graph."""
    after = passes.run_stage("canonical", graph, Options(level=1))
    assert_same(graph, after, sizes)
    return after


def fused(graph, sizes=None, exact=False):
    """Run all stages on the symbolic graph, assert that results are kept, and return it."""
    after = passes.optimise(graph, Options())
    assert_same(graph, after, sizes, exact)
    return after


# canonical


def test_constants_fold_through_chains_and_random_draws_do_not():
    b = Build()
    w = b.transpose(
        b.mul(b.random(4, 3), b.full(shape=(), value=3.0, dtype="float32")), perm=(1, 0)
    )
    key = b.constant(np.array([1, 2]))
    noise = b.philox_uniform(key, shape=(3, 4), dtype="float32", skip=0)
    graph = b.returns(b.add(b.add(b.input(3, 4), w), noise))
    assert names(canonical(graph)) == ["philox_uniform", "add", "add"]


def test_constant_that_would_grow_far_is_not_folded():
    b = Build()
    large = b.broadcast_to(b.random(1, 64), shape=(4096, 64))
    graph = b.returns(
        b.add(b.input(4096, 64), large), b.full(shape=(9, 9), value=1.0, dtype="int32")
    )
    after = canonical(graph)
    assert "broadcast_to" in names(after)
    assert "full" not in names(after)


def test_constant_with_a_symbol_is_not_folded():
    b = Build()
    n = Dim(4, "n")
    x = b.input(n, 3)
    graph = b.returns(b.add(x, b.full(shape=(n, 3), value=2.0, dtype="float32")))
    assert names(canonical(graph, {"n": 6})) == ["full", "add"]


NEUTRAL = {
    "times_one": lambda b, x: b.mul(x, b.scalar(1)),
    "one_times": lambda b, x: b.mul(b.scalar(1), x),
    "over_one": lambda b, x: b.div(x, b.constant(np.ones((1, 1), F32))),
    "plus_zero": lambda b, x: b.add(x, b.scalar(0)),
    "minus_zero": lambda b, x: b.sub(x, b.scalar(0)),
    "negated_twice": lambda b, x: b.neg(b.neg(x)),
    "reshaped_back": lambda b, x: b.reshape(b.reshape(x, shape=(12,)), shape=(4, 3)),
    "transposed_back": lambda b, x: b.transpose(b.transpose(x, perm=(1, 0)), perm=(1, 0)),
    "broadcast_to_itself": lambda b, x: b.broadcast_to(x, shape=(4, 3)),
    "summed_to_itself": lambda b, x: b.sum_to(x, shape=(4, 3)),
    "copied": lambda b, x: b.copy(x),
    "cast_to_itself": lambda b, x: b.cast(x, dtype="float32"),
    "cast_there_and_back": lambda b, x: b.cast(b.cast(x, dtype="float64"), dtype="float32"),
    "sliced_whole": lambda b, x: b.slice(x, starts=(0, 0), sizes=(4, 3), steps=(1, 1)),
    "padded_by_nothing": lambda b, x: b.pad(
        x, before=(0, 0), after=(0, 0), mode="constant", value=1.0
    ),
    "summed_over_no_axis": lambda b, x: b.sum(x, axes=(), keepdims=False),
    "joined_alone": lambda b, x: b.concat(x, axis=0),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_changes_nothing_is_dropped(name):
    b = Build()
    graph = b.returns(b.exp(NEUTRAL[name](b, b.input(4, 3))))
    assert names(canonical(graph)) == ["exp"]


KEPT = {
    "one_that_broadcasts": lambda b, x: b.mul(x, b.constant(np.ones((2, 1, 1), F32))),
    "one_minus": lambda b, x: b.sub(b.scalar(0), x),
    "one_over": lambda b, x: b.div(b.scalar(1), x),
    "almost_one": lambda b, x: b.mul(x, b.scalar(1 + 1e-6)),
    "reversed": lambda b, x: b.slice(x, starts=(3, 2), sizes=(4, 3), steps=(-1, -1)),
    "rounded_by_a_cast": lambda b, x: b.cast(b.cast(x, dtype="float16"), dtype="float32"),
    "cut_off_by_a_cast": lambda b, x: b.cast(b.cast(x, dtype="int32"), dtype="float32"),
    "wide_integers_rounded": lambda b, x: b.cast(
        b.cast(b.cast(x, dtype="int32"), dtype="float32"), dtype="int32"
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_changes_something_stays(name):
    b = Build()
    graph = b.returns(KEPT[name](b, b.input(4, 3)))
    assert names(canonical(graph)) == names(graph)


def test_widest_integers_do_not_survive_a_float():
    b = Build()
    x = b.input(4, dtype="int64")
    y = b.cast(b.cast(x, dtype="float64"), dtype="int64")
    assert names(canonical(b.returns(y))) == ["cast", "cast"]
    narrow = b.input(4, dtype="int32")
    y = b.cast(b.cast(narrow, dtype="float64"), dtype="int32")
    assert names(canonical(b.returns(b.neg(y)))) == ["neg"]


def test_chains_of_movement_become_one():
    b = Build()
    x = b.input(2, 3, 4)
    y = b.transpose(b.transpose(x, perm=(1, 2, 0)), perm=(2, 1, 0))
    z = b.reshape(b.reshape(y, shape=(24,)), shape=(8, 3))
    w = b.broadcast_to(b.broadcast_to(b.input(1, 3), shape=(4, 3)), shape=(5, 4, 3))
    v = b.cast(b.cast(b.input(3, dtype="int8"), dtype="int32"), dtype="float32")
    after = canonical(b.returns(z, w, v))
    assert sorted(names(after)) == ["broadcast_to", "cast", "reshape", "transpose"]


def test_symbol_is_not_taken_for_the_size_of_the_example():
    b = Build()
    n = Dim(4, "n")
    x, y = b.input(n, 3), b.input(4, 3)
    graph = b.returns(b.reshape(x, shape=(4, 3)), b.reshape(y, shape=(4, 3)), b.exp(x))
    after = canonical(graph, {"n": 4})
    assert names(after) == ["reshape", "exp"]
    b = Build()
    x = b.input(Dim(4, "n"), 3)
    slices = [b.slice(x, starts=(0, 0), sizes=(m, 3), steps=(1, 1)) for m in (4, x.spec.shape[0])]
    after = canonical(b.returns(*slices), {"n": 7})
    assert names(after) == ["slice"]
    assert run(after, sizes={"n": 7})[0].shape == (4, 3)


def test_equal_work_is_done_once():
    b = Build()
    x = b.input(4)
    y = b.add(b.exp(x), b.mul(b.exp(x), b.scalar(2)))
    graph = b.returns(b.add(y, b.mul(b.exp(x), b.scalar(2))))
    assert names(canonical(graph)).count("exp") == 1
    assert names(canonical(graph)).count("mul") == 1


def test_attributes_symbols_and_draws_tell_work_apart():
    b = Build()
    n = Dim(3, "n")
    x, state = b.input(n, 3), b.input(2, dtype="int64")
    sums = [b.sum(x, axes=(axis,), keepdims=False) for axis in (0, 1)]
    draws = [b.philox_uniform(state, shape=(3,), dtype="float32", skip=s) for s in (0, 1, 0)]
    fulls = [b.full(shape=(m, 512, 512), value=0.0, dtype="float32") for m in (3, n)]
    after = canonical(b.returns(*sums, *draws, *fulls), {"n": 5})
    assert sorted(names(after)) == ["full"] * 2 + ["philox_uniform"] * 2 + ["sum"] * 2


EFFECT = Op("log_value", lambda specs, attrs: specs, lambda arrays, attrs: [arrays[0]], pure=False)


def test_effects_are_neither_dropped_nor_merged_nor_moved():
    b = Build()
    x = b.input(4)
    for source in (x, x, b.random(4)):
        b.graph.add_node(EFFECT, [source], EFFECT.attrs())
    b.exp(x)
    after = fused(b.returns(b.sin(x)))
    assert names(after) == ["log_value"] * 3 + ["sin"]


def test_level_zero_only_drops_dead_code():
    b = Build()
    x = b.input(4)
    b.exp(x)
    graph = b.returns(b.neg(b.neg(b.mul(b.add(x, b.scalar(0)), b.scalar(1)))))
    after = passes.optimise(graph, Options(level=0))
    assert names(after) == ["add", "mul", "neg", "neg"]
    assert_same(graph, after)


# convolutions and products


def norm(b, x, channels, seed=1, eps=1e-5):
    statistics = [
        b.random(channels, seed=seed + i, positive=i == 1) for i in range(4)
    ]  # mean, variance, weight, bias
    return b.batch_norm(x, *statistics, eps=eps)


@pytest.mark.parametrize(("groups", "eps"), [(1, 1e-5), (2, 1e-5), (1, 0.5)])
def test_batch_norm_folds_into_the_convolution_before_it(groups, eps):
    b = Build()
    x = b.input(2, 4, 5, 5)
    y = b.conv(x, b.random(6, 4 // groups, 3, 3), groups, 1)
    y = b.add(y, b.random(1, 6, 1, 1, seed=9))
    after = fused(b.returns(b.relu(norm(b, y, 6, eps=eps))))
    assert names(after) == ["conv2d_fused"]
    attrs = after.nodes[0].attrs
    assert (attrs.has_bias, attrs.has_residual, attrs.activation) == (True, False, "relu")


@pytest.mark.parametrize("kind", ["conv", "product"])
def test_second_residual_stays_apart(kind):
    b = Build()
    if kind == "conv":
        y = b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1))
    else:
        y = b.product(b.input(3, 4), b.random(4, 6))
    first, second = b.input(*y.spec.shape), b.input(*y.spec.shape)
    after = fused(b.returns(b.relu(b.add(second, b.add(y, first)))))
    assert len(after.nodes) == 2 + (kind == "conv") * 0
    assert after.nodes[0].attrs.has_residual


def test_scale_and_shift_per_channel_fold_into_the_convolution():
    b = Build()
    y = b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1))
    y = b.mul(b.random(6, 1, 1, seed=2), b.add(b.mul(y, b.random(1, 6, 1, 1)), b.scalar(0.5)))
    assert names(fused(b.returns(y))) == ["conv2d_fused"]


def test_scale_without_shift_leaves_a_plain_bias_out():
    b = Build()
    y = b.mul(b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1)), b.random(1, 6, 1, 1))
    after = fused(b.returns(y))
    assert names(after) == ["conv2d_fused"]
    assert not after.nodes[0].attrs.has_bias


def test_batch_norm_of_trained_statistics_stays():
    b = Build()
    y = b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1))
    y = b.batch_norm(y, *(b.input(6) for _ in range(4)), eps=1e-2)
    assert "batch_norm" in names(passes.optimise(b.returns(y), Options()))


def test_bias_that_is_a_state_is_taken_in_as_a_vector():
    b = Build()
    w, bias = b.state(6, 4, 1, 1), b.state(6)
    y = b.conv(b.input(2, 4, 5, 5), w)
    y = b.add(y, b.reshape(bias, shape=(1, 6, 1, 1)))
    after = fused(b.returns(y))
    assert names(after) == ["conv2d_fused"]
    assert after.nodes[0].inputs[2] is after.states[1]


@pytest.mark.parametrize("bias", ["constant", "state"])
def test_convolutions_of_signals_take_in_what_follows_them(bias):
    b = Build()
    n, length = Dim(2, "n"), Dim(7, "l")

    def layer(x):
        y = b.conv(b.reshape(x, shape=(n, 4, 1, length)), b.random(4, 4, 1, 1))
        y = b.reshape(y, shape=(n, 4, y.spec.shape[3]))
        added = b.random(4) if bias == "constant" else b.state(4)
        return b.add(y, b.reshape(added, shape=(1, 4, 1)))

    x = b.relu(norm(b, layer(b.input(n, 4, length)), 4))
    y = b.relu(b.add(x, layer(x)))
    after = fused(b.returns(y), {"n": 3, "l": 5})
    left = [name for name in names(after) if name != "reshape"]
    if bias == "constant":
        assert left == ["conv2d_fused"] * 2
    else:  # a weight may not be scaled where the bias is not known
        assert left == ["conv2d_fused", "batch_norm", "relu", "conv2d_fused"]


@pytest.mark.parametrize("swapped", [False, True])
def test_residual_and_activation_join_the_convolution(swapped):
    b = Build()
    x = b.input(2, 4, 5, 5)
    y = norm(b, b.conv(x, b.random(4, 4, 3, 3), padding=1), 4)
    after = fused(b.returns(b.relu(b.add(x, y) if swapped else b.add(y, x))))
    assert names(after) == ["conv2d_fused"]
    assert after.nodes[0].attrs.has_residual
    assert after.nodes[0].attrs.activation == "relu"


def test_of_two_convolutions_that_are_added_the_later_takes_the_earlier_in():
    b = Build()
    x = b.input(2, 4, 5, 5)
    first, second = (norm(b, b.conv(x, b.random(4, 4, 1, 1, seed=s)), 4) for s in (3, 4))
    after = fused(b.returns(b.relu(b.add(first, second))))
    assert [node.attrs.has_residual for node in after.nodes] == [False, True]
    assert after.nodes[1].inputs[3] is after.nodes[0].outputs[0]


@pytest.mark.parametrize(
    "name",
    ["relu", "relu6", "sigmoid", "tanh", "silu", "hswish", "gelu", "x_sigmoid", "clip", "clip2"],
)
@pytest.mark.parametrize("kind", ["conv2d", "matmul"])
def test_activations_join(kind, name):
    b = Build()
    if kind == "conv2d":
        y = b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1))
    else:
        y = b.product(b.input(5, 4), b.random(4, 6))
    low, high = b.scalar(-0.5), b.scalar(0.75)
    if name == "x_sigmoid":
        y = b.mul(b.sigmoid(y), y)
    elif name == "clip":
        y = b.minimum(b.maximum(y, low), high)
    elif name == "clip2":
        y = b.maximum(low, b.minimum(high, y))
    else:
        y = getattr(b, name)(y)
    after = fused(b.returns(y))
    assert names(after) == [f"{kind}_fused"]
    want = {"x_sigmoid": "silu", "clip2": "clip"}.get(name, name)
    assert after.nodes[0].attrs.activation == want


def test_crossed_bounds_are_no_clip():
    b = Build()
    y = b.conv(b.input(2, 4, 5, 5), b.random(6, 4, 1, 1))
    y = b.maximum(b.minimum(y, b.scalar(-1)), b.scalar(1))
    assert names(fused(b.returns(y)))[0] == "conv2d"


@pytest.mark.parametrize("why", ["read_twice", "returned", "after_activation", "wrong_axis"])
def test_convolution_that_must_stay_apart(why):
    b = Build()
    y = b.conv(b.input(2, 5, 5, 5), b.random(5, 5, 1, 1))
    outputs = []
    if why == "read_twice":
        outputs = [b.relu(y), b.transpose(y, perm=(1, 0, 2, 3))]
    elif why == "returned":
        outputs = [b.relu(y), y]
    elif why == "after_activation":
        outputs = [b.add(b.relu(y), b.random(1, 5, 1, 1))]
    else:
        outputs = [b.add(y, b.random(1, 1, 5, 1))]
    after = fused(b.returns(*outputs))
    first = after.nodes[0]
    assert first.op.name == ("conv2d_fused" if why == "after_activation" else "conv2d")
    assert len(after.nodes) == (3 if why == "read_twice" else 2)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 1, 6)])
def test_bias_residual_and_activation_join_the_product(shape):
    b = Build()
    x = b.input(2, 5, 4)
    y = b.add(b.random(*shape), b.product(x, b.random(6, 4), transpose_b=True))
    y = b.gelu(b.add(y, b.input(2, 5, 6)))
    after = fused(b.returns(y))
    assert names(after) == ["matmul_fused"]
    assert after.nodes[0].attrs.transpose_b
    assert after.nodes[0].inputs[2].spec.shape == (6,)


@pytest.mark.parametrize("swapped", [False, True])
def test_flattened_layer_takes_in_what_follows_its_reshape(swapped):
    b = Build()
    n = Dim(2, "n")
    x = b.input(n, 5, 4)
    y = b.product(b.reshape(x, shape=(n * 5, 4)), b.random(6, 4), transpose_b=True)
    y = b.reshape(y, shape=(n, 5, 6))
    terms = [y, b.random(1, 6)]
    y = b.add(*terms[:: -1 if swapped else 1])
    terms = [y, b.input(n, 5, 6)]
    y = b.relu(b.add(*terms[:: -1 if swapped else 1]))
    y = b.reshape(b.product(b.reshape(y, shape=(n * 5, 6)), b.random(6, 3)), shape=(n, 5, 3))
    y = b.minimum(b.maximum(y, b.constant(np.full((1, 1), -1, F32))), b.scalar(1))
    after = fused(b.returns(y), {"n": 3})
    assert [name for name in names(after) if name != "reshape"] == ["matmul_fused"] * 2
    first, second = (node.attrs for node in after.nodes if node.op.name == "matmul_fused")
    assert (first.has_bias, first.has_residual, first.activation) == (True, True, "relu")
    assert (second.activation, second.lower, second.upper) == ("clip", -1.0, 1.0)


def test_layer_takes_in_what_stands_on_both_sides_of_a_reshape():
    b = Build()
    x = b.reshape(b.input(2, 5, 4), shape=(10, 4))
    y = b.add(b.product(x, b.random(4, 6)), b.random(6))
    y = b.gelu(b.add(b.reshape(y, shape=(2, 5, 6)), b.input(2, 5, 6)))
    after = fused(b.returns(y))
    assert names(after) == ["reshape", "reshape", "matmul_fused", "reshape"]


def test_reshape_that_moves_the_last_axis_keeps_a_bias_apart():
    b = Build()
    y = b.reshape(b.product(b.input(4, 4), b.random(4, 6)), shape=(2, 2, 2, 3))
    after = fused(b.returns(b.add(y, b.random(3))))
    assert names(after) == ["matmul", "reshape", "add"]


def test_addition_that_broadcasts_the_product_is_no_bias():
    b = Build()
    y = b.product(b.input(1, 4), b.random(4, 6))
    after = fused(
        b.returns(
            b.add(y, b.input(3, 6)), b.add(b.product(b.input(6, 4), b.random(4, 6)), b.input(6, 1))
        )
    )
    assert names(after).count("matmul") == 2


@pytest.mark.parametrize("swapped", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_swapped_operands_are_read_as_they_lie(swapped, flags):
    b = Build()
    left = (2, 4, 5) if flags[0] != swapped[0] else (2, 5, 4)
    right = (2, 3, 4) if flags[1] != swapped[1] else (2, 4, 3)
    operands = [b.input(*left), b.input(*right)]
    operands = [
        b.transpose(x, perm=(0, 2, 1)) if swap else x
        for x, swap in zip(operands, swapped, strict=True)
    ]
    after = fused(b.returns(b.product(*operands, *flags)))
    assert names(after) == ["matmul"]
    attrs = after.nodes[0].attrs
    want = tuple(a != b for a, b in zip(flags, swapped, strict=True))
    assert (attrs.transpose_a, attrs.transpose_b) == want


def test_other_transpositions_stay_before_the_product():
    b = Build()
    x = b.transpose(b.input(5, 2, 4), perm=(1, 0, 2))
    assert names(fused(b.returns(b.product(x, b.input(4, 3))))) == ["transpose", "matmul"]


def test_integer_products_stay():
    b = Build()
    y = b.product(b.input(3, 4, dtype="int32"), b.input(4, 6, dtype="int32"))
    assert names(fused(b.returns(b.relu(y))))[0] == "matmul"


def test_fusion_keeps_the_batch_symbolic_and_shares_folded_weights():
    b = Build()
    x = b.input(Dim(2, "n"), 4, 5, 5)
    y = b.relu(norm(b, b.conv(x, b.random(6, 4, 3, 3)), 6))
    y = b.reshape(b.mean(y, axes=(2, 3), keepdims=False), shape=(x.spec.shape[0], 6))
    graph = b.returns(b.relu(b.add(b.product(y, b.random(6, 3)), b.random(3))))
    after = fused(graph, {"n": 7})
    assert names(after) == ["conv2d_fused", "mean", "matmul_fused"]
    programs = [after.specialise({"n": n}) for n in (1, 3)]
    constants = [list(map(id, program.constants.values())) for program in programs]
    assert constants[0] == constants[1]


# elementwise regions


def instructions(node):
    return len(node.attrs.code) // 4


def test_chain_becomes_one_op():
    b = Build()
    x, y = b.input(4, 3), b.input(4, 1)
    z = b.div(b.exp(b.mul(x, y)), b.add(b.square(x), b.scalar(1.5)))
    after = fused(b.returns(z), exact=True)
    assert names(after) == ["fused_elementwise"]
    assert instructions(after.nodes[0]) == 5
    assert after.nodes[0].attrs.constants == (1.5,)
    assert len(after.nodes[0].inputs) == 2


def test_single_op_is_left_alone():
    b = Build()
    graph = b.returns(b.exp(b.input(4)))
    assert names(fused(graph, exact=True)) == ["exp"]


def test_region_returns_what_others_read():
    b = Build()
    x = b.input(4, 3)
    y = b.exp(x)
    z = b.sin(y)
    after = fused(b.returns(b.sum(y, axes=(0,), keepdims=False), z), exact=True)
    assert names(after) == ["fused_elementwise", "sum"]
    assert len(after.nodes[0].outputs) == 2


def test_region_never_reaches_round_a_node_that_depends_on_it():
    b = Build()
    y = b.exp(b.input(4, 4))
    z = b.product(y, y)
    after = fused(b.returns(b.add(b.sin(y), b.cos(z))), exact=True)
    assert "matmul" in names(after)
    assert len(after.nodes) <= 4


def test_masks_stay_inside_a_region():
    b = Build()
    x, y = b.input(4, 3), b.input(4, 3)
    after = fused(b.returns(b.where(b.greater(x, y), b.exp(x), b.neg(y))), exact=True)
    assert names(after) == ["fused_elementwise"]


def test_mask_that_others_read_is_made_outside_of_regions():
    b = Build()
    x, y = b.input(4, 3), b.input(4, 3)
    mask = b.greater(b.sin(b.exp(x)), b.scalar(0))
    z = b.exp(b.neg(b.where(mask, y, b.scalar(2))))
    after = fused(b.returns(mask, z), exact=True)
    assert names(after) == ["fused_elementwise", "greater", "where", "fused_elementwise"]


def test_region_is_bounded():
    b = Build()
    x = b.input(16)
    for _ in range(80):
        x = b.sin(x)
    sizes = [instructions(node) for node in fused(b.returns(x), exact=True).nodes]
    assert sum(sizes) == 80
    assert max(sizes) <= 32
    b = Build()
    total = b.input(16)
    for _ in range(20):
        total = b.add(total, b.input(16))
    nodes = fused(b.returns(total), exact=True).nodes
    assert max(len(node.inputs) for node in nodes) <= 8
    assert len(nodes) < 5


def test_smaller_shapes_are_not_computed_again_for_every_element():
    b = Build()
    x, y = b.input(64, 8), b.input(8)
    after = fused(b.returns(b.mul(b.exp(x), b.exp(b.sin(y)))), exact=True)
    assert sorted(instructions(n) for n in after.nodes) == [2, 2]


def test_other_dtypes_are_not_fused():
    b = Build()
    x = b.input(8, dtype="float64")
    y = b.input(8, dtype="int32")
    graph = b.returns(b.exp(b.sin(x)), b.neg(b.abs(y)))
    assert names(fused(graph, exact=True)) == names(graph)


def test_constant_of_one_element_that_shapes_the_result_keeps_its_axes():
    b = Build()
    graph = b.returns(b.exp(b.add(b.input(), b.constant(np.ones((1, 1), F32)))))
    assert run(fused(graph, exact=True))[0].shape == (1, 1)


UNARY = ("exp", "sin", "neg", "abs", "relu", "square", "sigmoid", "floor")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")


@st.composite
def graphs(draw):
    """Draw a graph in which regions can tangle: elementwise ops among products and reductions."""
    b = Build()
    n = Dim(3, "n")
    values = [b.input(n, 4), b.input(1, 4), b.state(4), b.random(1, 4), b.scalar(0.5)]
    full = [values[0]]
    square = b.random(4, 4)
    for _ in range(draw(st.integers(2, 18))):
        kind = draw(
            st.sampled_from(
                ["unary", "binary", "binary", "product", "layer", "row", "where", "neutral"]
            )
        )
        x = draw(st.sampled_from(full))
        y = draw(st.sampled_from(values))
        if kind == "unary":
            made = getattr(b, draw(st.sampled_from(UNARY)))(y)
        elif kind == "binary":
            made = getattr(b, draw(st.sampled_from(BINARY)))(x, y)
        elif kind == "product":
            made = b.product(x, square)
        elif kind == "layer":
            flat = b.product(b.reshape(x, shape=(n * 2, 2)), b.random(2, 2))
            made = b.reshape(flat, shape=(n, 4))
        elif kind == "row":
            made = b.sum(x, axes=(1,), keepdims=True)
        elif kind == "where":
            made = b.where(b.greater(x, y), x, draw(st.sampled_from(values)))
        else:
            made = b.reshape(b.transpose(b.mul(x, b.scalar(1)), perm=(0, 1)), shape=x.spec.shape)
        values.append(made)
        if made.spec.dtype == F32 and repr(made.spec.shape) == repr((n, 4)):
            full.append(made)
    b.graph.updates = {
        0: b.reshape(b.sum(draw(st.sampled_from(full)), axes=(0,), keepdims=False), shape=(4,))
    }
    return b.returns(*(draw(st.sampled_from(values)) for _ in range(draw(st.integers(1, 4)))))


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_any_graph_keeps_its_results(graph):
    after = passes.optimise(graph, Options())
    spec.check(after, "fuse")
    for old, new in zip(run(graph, sizes={"n": 5}), run(after, sizes={"n": 5}), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
        np.testing.assert_allclose(old, new, rtol=1e-4, atol=1e-4)


# channels


def shuffled(b, x, groups, width, batch=2):
    split = b.reshape(x, shape=(batch, groups, width, 3, 5))
    swapped = b.transpose(split, perm=(0, 2, 1, 3, 4))
    return b.reshape(swapped, shape=(batch, groups * width, 3, 5))


def test_a_channel_shuffle_is_read_by_indices():
    b = Build()
    y = shuffled(b, b.input(2, 6, 3, 5), 3, 2)
    graph = b.returns(y)
    after = fused(graph, exact=True)
    assert names(after) == ["take"]
    where = after.nodes[0].inputs[1]
    np.testing.assert_array_equal(after.constants[where].array, [0, 2, 4, 1, 3, 5])


def test_slices_of_a_shuffle_read_their_channels_alone():
    b = Build()
    y = shuffled(b, b.input(2, 6, 3, 5), 2, 3)
    cuts = [
        b.slice(y, starts=(0, at, 0, 0), sizes=(2, 3, 3, 5), steps=(1, step, 1, 1))
        for at, step in ((0, 1), (5, -2))
    ]
    after = fused(b.returns(*cuts), exact=True)
    assert names(after) == ["take", "take"]


def test_a_shuffle_keeps_a_symbolic_batch():
    b = Build()
    n = Dim(4, "n")
    y = shuffled(b, b.input(n, 6, 3, 5), 2, 3, batch=n)
    assert names(fused(b.returns(y), sizes={"n": 3}, exact=True)) == ["take"]


def test_what_moves_more_than_channels_is_no_shuffle():
    b = Build()
    x = b.input(2, 6, 4, 4)
    split = b.reshape(x, shape=(2, 2, 3, 4, 4))
    swapped = b.transpose(split, perm=(0, 2, 1, 4, 3))
    other = b.reshape(b.transpose(split, perm=(0, 2, 1, 3, 4)), shape=(6, 2, 4, 4))
    graph = b.returns(b.reshape(swapped, shape=(2, 6, 4, 4)), other)
    assert "take" not in names(fused(graph, exact=True))
    b = Build()
    y = shuffled(b, b.input(2, 6, 3, 5), 2, 3)
    cut = b.slice(y, starts=(0, 0, 1, 0), sizes=(2, 3, 2, 5), steps=(1, 1, 1, 1))
    assert names(fused(b.returns(cut), exact=True)) == ["take", "slice"]


# gelu


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("divides", [False, True])
def test_gelu_spelt_out_with_erf_is_recognised(order, divides):
    b = Build()
    x = b.input(3, 7)
    root = np.sqrt(2.0)
    inner = b.div(x, b.scalar(root)) if divides else b.mul(b.scalar(1 / root), x)
    gate = b.add(b.scalar(1.0), b.erf(inner))
    half = b.scalar(0.5)
    y = (
        b.mul(b.mul(x, gate), half),
        b.mul(b.mul(half, x), gate),
        b.mul(x, b.mul(gate, half)),
    )[order]
    assert names(fused(b.returns(y))) == ["gelu"]


def test_what_is_nearly_gelu_stays():
    b = Build()
    x, z = b.input(3, 7), b.input(3, 7)
    found = []
    for inner, root, one, half in ((x, 1.5, 1.0, 0.5), (x, 2**0.5, 2.0, 0.5), (z, 2**0.5, 1.0, 0.5),
                                   (x, 2**0.5, 1.0, 1.5), (x, 1.415, 1.0, 0.5),
                                   (x, 2**0.5, 1.0, 0.501)):  # fmt: skip
        gate = b.add(b.erf(b.div(inner, b.scalar(root))), b.scalar(one))
        found.append(b.mul(b.mul(x, gate), b.scalar(half)))
    after = fused(b.returns(*found))
    assert "gelu" not in names(after)


def test_graphs_between_file_and_program_are_let_go(tmp_path):
    def body(x):
        return F.relu(x * 2 + 1).reshape(2, 3).reshape(6) - 1

    x = np.arange(6, dtype=np.float32) - 3
    traced = jit.trace(body, capture_as_const=True)
    traced(Tensor(x))
    traced.dump(tmp_path / "net.tym")
    gc.collect()
    before = [found for found in gc.get_objects() if type(found) is Node]
    gc.disable()
    try:
        model = jit.load(tmp_path / "net.tym")
        known = set(map(id, before))
        left = {id(n) for n in gc.get_objects() if type(n) is Node} - known
    finally:
        gc.enable()
    assert left == set(map(id, model._compiled.graph.nodes))
    np.testing.assert_array_equal(model(x), np.maximum(x * 2 + 1, 0) - 1)


def test_given_graph_stays_whole():
    b = Build()
    x = b.input(3)
    graph = b.returns(b.add(b.relu(b.relu(x)), b.scalar(0.0)))
    nodes, text = list(graph.nodes), str(graph)
    after = passes.optimise(graph)
    assert len(after.nodes) < len(nodes)
    assert graph.nodes == nodes
    assert str(graph) == text
    assert all(value.node is node for node in nodes for value in node.outputs)


# checks


def lie_about_shapes(graph, options):
    after = graph.rebuild(lambda to, node: None)
    after.nodes[-1].outputs[0].spec = TensorSpec((5,), F32)
    return after


def trust_shapes(graph, options):
    """Fail, as a pass may, on what another has left."""
    assert graph.outputs[0].spec.shape == (4,)
    return graph


@pytest.mark.parametrize("followers", [(), (trust_shapes,)], ids=["alone", "followed"])
def test_the_pass_that_breaks_a_graph_is_named(monkeypatch, followers):
    own = [passes.Pass("fuse", run.__name__, run) for run in (trust_shapes, lie_about_shapes)] + [
        passes.Pass("fuse", "innocent", run) for run in followers
    ]
    monkeypatch.setattr(passes, "plugin_passes", lambda device: own)
    b = Build()
    graph = b.returns(b.exp(b.input(4)))
    with pytest.raises(GraphError, match="pass lie_about_shapes: .*recorded float32.5,"):
        passes.run_stage("fuse", graph, Options())
    assert [node.op.name for node in graph.nodes] == ["exp"]


def test_a_pass_that_fails_on_a_valid_graph_raises_its_own_error(monkeypatch):
    def fails(graph, options):
        raise KeyError("what it looked for")

    own = [passes.Pass("fuse", "fails", fails)]
    monkeypatch.setattr(passes, "plugin_passes", lambda device: own)
    b = Build()
    with pytest.raises(KeyError, match="what it looked for"):
        passes.run_stage("fuse", b.returns(b.exp(b.input(4))), Options())


def test_compiling_leaves_nothing_that_only_the_collector_finds():
    run = jit.trace(lambda x: F.relu(F.matmul(x, x.T) + 1) * 2, dynamic_shapes={"x": {0: "n"}})
    for n in (2, 3):  # what is made once
        run(Tensor(np.ones((n, 4), F32)))
    gc.collect()
    run(Tensor(np.ones((5, 4), F32)))
    assert gc.collect() == 0
