"""Attention as one op: callers use it where they may, and a pass finds it where it is spelt out."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor, ops, registry
from tianyuan.autodiff import GradManager
from tianyuan.graph import passes, spec
from tianyuan.graph.graph import Graph
from tianyuan.graph.options import Options
from tianyuan.jit import trace
from tianyuan.op import TensorSpec
from tianyuan.ops.reference import evaluate

ops.register_all()
RNG = np.random.default_rng(31)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


class Spelt:
    """A graph that spells attention out, with what may vary about it."""

    def __init__(self, dtype="float32"):
        self.graph, self.dtype = Graph(), np.dtype(dtype)

    def input(self, *shape):
        return self.graph.add_input(TensorSpec(shape, self.dtype), f"x{len(self.graph.inputs)}")

    def number(self, value):
        return self.graph.add_constant(np.asarray(value, self.dtype), "c")

    def op(self, name, *inputs, **attrs):
        op = registry.get_op(name)
        return self.graph.add_node(op, inputs, op.attrs(**attrs))[0]

    def product(self, a, b, transpose_b=False):
        return self.op("matmul", a, b, transpose_a=False, transpose_b=transpose_b)

    def weights(self, scores):
        return self.op("softmax", scores, axis=scores.spec.ndim - 1)

    def finished(self, *outputs):
        self.graph.outputs = list(outputs)
        return self.graph


def results(graph):
    rng = np.random.default_rng(5)
    arrays = {value: constant.array for value, constant in graph.constants.items()}
    for value in graph.inputs:
        arrays[value] = rng.standard_normal(value.spec.shape).astype(value.spec.dtype)
    for node in graph.nodes:
        found = evaluate(node.op, [arrays[value] for value in node.inputs], node.attrs)
        arrays.update(zip(node.outputs, found, strict=True))
    return [arrays[value] for value in graph.outputs]


def names(graph):
    return [node.op.name for node in graph.nodes]


def optimised(graph):
    """Optimise a graph and assert that its results are kept."""
    after = passes.optimise(graph, Options())
    spec.check(after, "fuse")
    for old, new in zip(results(graph), results(after), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)
    return after


Q, K, V = (2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6)


def test_product_scale_mask_softmax_product_are_one_op():
    b = Spelt()
    q, k, v, mask = b.input(*Q), b.input(*K), b.input(*V), b.input(2, 1, 1, 5)
    scores = b.op("mul", b.product(q, k, True), b.number(0.25))
    y = b.product(b.weights(b.op("add", mask, scores)), v)
    after = optimised(b.finished(y))
    assert names(after) == ["attention"]
    assert after.nodes[0].attrs.scale == 0.25


def test_a_division_and_a_transposed_key_are_taken_in():
    b = Spelt()
    q, k, v = b.input(*Q), b.input(2, 5, 3, 8), b.input(*V)
    turned = b.op("transpose", k, perm=(0, 2, 3, 1))
    scores = b.op("div", b.product(q, turned), b.number(np.sqrt(8)))
    after = optimised(b.finished(b.product(b.weights(scores), v)))
    assert names(after) == ["transpose", "attention"]
    assert after.nodes[0].attrs.perm == (0, 2, 1, 3)
    np.testing.assert_allclose(after.nodes[1].attrs.scale, 8**-0.5, rtol=1e-6)


def test_scaled_queries_and_keys_are_taken_in_and_a_plain_swap_vanishes():
    b = Spelt()
    q, k, v = b.input(*Q), b.input(*K), b.input(*V)
    left = b.op("mul", q, b.number(0.5))
    right = b.op("mul", b.op("transpose", k, perm=(0, 1, 3, 2)), b.number(0.25))
    after = optimised(b.finished(b.product(b.weights(b.product(left, right)), v)))
    assert names(after) == ["attention"]
    assert after.nodes[0].attrs.scale == 0.125


@pytest.mark.parametrize("hides", [False, True])
def test_keys_that_a_constant_hides_are_taken_in_where_every_query_sees_one(hides):
    for low, first, wanted in ((-np.inf, True, True), (-1e30, True, True), (-1e30, False, False),
                               (-1.0, True, False)):  # fmt: skip
        b = Spelt()
        q, k, v = b.input(*Q), b.input(*K), b.input(*V)
        scores = b.op("mul", b.product(q, k, True), b.number(0.25))
        seen = np.tri(4, 5, dtype=bool)
        seen[0] = first
        choices = (b.number(low), scores) if hides else (scores, b.number(low))
        condition = b.graph.add_constant(seen != hides, "seen")
        chosen = b.op("where", condition, *choices)
        after = optimised(b.finished(b.product(b.weights(chosen), v)))
        assert ("attention" in names(after)) == wanted


@pytest.mark.parametrize("shown", ["weights", "scores", "product"])
def test_what_others_read_is_kept(shown):
    b = Spelt()
    q, k, v = b.input(*Q), b.input(*K), b.input(*V)
    product = b.product(q, k, True)
    scores = b.op("mul", product, b.number(0.25))
    weights = b.weights(scores)
    seen = {"weights": weights, "scores": scores, "product": product}[shown]
    assert "attention" not in names(optimised(b.finished(b.product(weights, v), seen)))


def test_other_axes_other_ops_and_short_floats_are_left():
    b = Spelt()
    q, k, v = b.input(4, 5), b.input(5, 5), b.input(5, 6)
    across = b.op("softmax", b.product(q, k, True), axis=0)
    assert "attention" not in names(optimised(b.finished(b.product(across, v))))
    b = Spelt("float16")
    q, k, v = b.input(*Q), b.input(*K), b.input(*V)
    graph = b.finished(b.product(b.weights(b.product(q, k, True)), v))
    assert "attention" not in names(passes.optimise(graph, Options()))
    b = Spelt()
    q, k, v, wide = b.input(4, 8), b.input(5, 8), b.input(5, 6), b.input(3, 4, 5)
    widened = b.op("add", b.product(q, k, True), wide)
    assert "attention" not in names(optimised(b.finished(b.product(b.weights(widened), v))))


MASK = np.array(RNG.integers(0, 2, (2, 1, 4, 5)), bool)
MASK[0, 0, 1] = False


@pytest.mark.parametrize(
    "options",
    [
        {}, {"is_causal": True}, {"scale": -0.3}, {"attn_mask": Tensor(MASK)},
        {"attn_mask": Tensor(normal(5))}, {"attn_mask": Tensor(normal(2, 3, 4, 5))},
    ],
    ids=["plain", "causal", "scale", "bool", "vector", "float"],
)  # fmt: skip
def test_one_op_is_what_the_ops_that_record_a_gradient_are(options):
    q, k, v = (Tensor(normal(*shape)) for shape in (Q, K, V))

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    with GradManager() as gm:
        gm.attach([q, k, v])
        apart = attend(q, k, v).numpy()
    np.testing.assert_allclose(attend(q, k, v).numpy(), apart, rtol=2e-5, atol=2e-6)
    traced = trace(symbolic=True)(attend)
    np.testing.assert_allclose(traced(q, k, v).numpy(), apart, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_heads_give_the_same_with_and_without_weights(extra):
    attention = M.MultiHeadAttention(8, 2, **extra).eval()
    x = Tensor(normal(2, 5, 8))
    hidden = np.zeros((2, 5), bool)
    hidden[0, 3:] = True
    hidden[1] = True  # leaves nothing to see, which must not give NaN
    for options in (
        {},
        {"is_causal": True},
        {"key_padding_mask": Tensor(hidden)},
        {"attn_mask": Tensor(normal(2, 5, 5)), "key_padding_mask": Tensor(hidden)},
        {"attn_mask": Tensor(normal(5, 5) > 1), "is_causal": True},
    ):
        want, weights = attention(x, x, x, need_weights=True, **options)
        got, nothing = attention(x, x, x, **options)
        assert weights is not None
        assert nothing is None
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-6)


def test_packed_heads_give_the_same_with_and_without_weights():
    x = Tensor(normal(2, 5, 8))
    packed = Tensor(normal(4 * 64))
    hidden = np.zeros((2, 5), bool)
    hidden[0, 2:] = hidden[1] = True
    for options in (
        {},
        {"is_causal": True, "add_zero_attn": True},
        {"key_padding_mask": Tensor(hidden), "is_causal": True},
        {"attn_mask": Tensor(normal(5, 5)), "key_padding_mask": Tensor(hidden)},
    ):
        given = (x, x, x, 8, 2, 0.0, 0.0, packed)
        want, _ = F.multi_head_attention(*given, need_weights=True, **options)
        got, _ = F.multi_head_attention(*given, **options)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-6)
