"""Lowered and planned programs give what their graphs mean, in blocked layouts too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tianyuan import ops, registry
from tianyuan.graph import lower, passes, plan
from tianyuan.graph.graph import Graph
from tianyuan.graph.interpreter import StepInterpreter
from tianyuan.graph.options import Options
from tianyuan.kernel import Kernel, Layout, Layouts
from tianyuan.op import TensorSpec
from tianyuan.ops.reference import evaluate

ops.register_all()
DEVICE, BLOCKED, BLOCK = "slate", "nchw4x", 4
F32 = np.dtype("float32")


def extents(shape):
    n, c, h, w = shape
    return (n, -(-c // BLOCK), h, w, BLOCK)


def pack(array):
    n, c, h, w = array.shape
    padded = np.zeros((n, -(-c // BLOCK) * BLOCK, h, w), array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(padded.reshape(n, -1, BLOCK, h, w).transpose(0, 1, 3, 4, 2))


def unpack(array, shape):
    n, c, h, w = shape
    return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c])


def kernel_of(op):
    """Return a kernel that runs an op's reference."""

    def run(ctx, inputs, outputs, attrs, workspace):
        if workspace is not None:
            workspace[...] = 255
        for output, result in zip(outputs, evaluate(op, inputs, attrs), strict=True):
            output[...] = result

    elementwise = op.family == "elementwise"
    return Kernel(
        f"{op.name}_any__slate",
        op.name,
        run,
        layouts=Layouts(("same",), ("same",)) if elementwise else Layouts(),
        inplace=((0, 0), (0, 1), (1, 0)) if elementwise else (),
        workspace=lambda call: 192,
    )


def run_relayout(ctx, inputs, outputs, attrs, workspace):
    if attrs.target == BLOCKED:
        outputs[0][...] = pack(inputs[0])
    else:
        outputs[0][...] = unpack(inputs[0], outputs[0].shape)


def blocked(name):
    """Return a convolution that works on blocked values, and garbles lanes if they are garbled."""
    op = registry.get_op(name)

    def run(ctx, inputs, outputs, attrs, workspace):
        weight = inputs[1]
        channels = weight.shape[1] * attrs.groups
        x = unpack(inputs[0], (inputs[0].shape[0], channels, *inputs[0].shape[2:4]))
        rest = list(inputs[2:])
        if name == "conv2d_fused" and attrs.has_residual:
            n, _, h, w = outputs[0].shape[:4]
            rest[-1] = unpack(rest[-1], (n, weight.shape[0], h, w))
        outputs[0][...] = pack(evaluate(op, [x, weight, *rest], attrs)[0])

    def layouts(count):
        return Layouts((BLOCKED, "plain", *count), (BLOCKED,))

    if name == "conv2d":
        forms = [(layouts(()), lambda call: None)]
    else:
        forms = [
            (layouts(("plain", BLOCKED)), lambda c: None if c.attrs.has_bias else "no bias"),
            (layouts((BLOCKED,)), lambda c: "has a bias" if c.attrs.has_bias else None),
        ]
    return [
        Kernel(f"{name}_f32__slate_blocked{i}", name, run, layouts=form, supports=supports,
               cost=lambda call: 1e-9)
        for i, (form, supports) in enumerate(forms)
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def slate():
    registry.register_layout(Layout(BLOCKED, 4, extents, pack, unpack))
    kernels = [kernel_of(op) for op in registry.all_ops() if op.name != "relayout"]
    repack = Kernel("relayout_any__slate", "relayout", run_relayout, cost=lambda call: 1e-12)
    registry.register_kernels(
        "slate", DEVICE, [repack, *blocked("conv2d"), *blocked("conv2d_fused"), *kernels]
    )
    yield
    registry.unregister("slate", layouts=[BLOCKED])


class Build:
    """Writes graphs shortly: ``b.add(x, y)``."""

    def __init__(self):
        self.graph = Graph()

    def input(self, *shape):
        return self.graph.add_input(TensorSpec(shape, F32), "x")

    def state(self, *shape):
        return self.graph.add_state(TensorSpec(shape, F32), "s")

    def random(self, *shape, seed=0):
        array = np.random.default_rng(seed).standard_normal(shape).astype(F32)
        return self.graph.add_constant(array)

    def __getattr__(self, name):
        def emit(*inputs, **attrs):
            op = registry.get_op(name)
            outputs = self.graph.add_node(op, inputs, op.attrs(**attrs))
            return outputs[0] if len(outputs) == 1 else outputs

        return emit

    def conv(self, x, w, padding=0):
        return self.conv2d(x, w, stride=(1, 1), padding=(padding,) * 4, dilation=(1, 1), groups=1)


def drawn(graph):
    rng = np.random.default_rng(5)
    return [
        [rng.standard_normal(v.spec.shape).astype(v.spec.dtype) for v in values]
        for values in (graph.inputs, graph.states)
    ]


def meant(graph):
    """Return outputs and new states as the references of the ops give them."""
    inputs, states = drawn(graph)
    arrays = {v: c.array for v, c in graph.constants.items()}
    arrays |= dict(zip([*graph.inputs, *graph.states], [*inputs, *states], strict=True))
    for node in graph.nodes:
        results = evaluate(node.op, [arrays[v] for v in node.inputs], node.attrs)
        arrays.update(zip(node.outputs, results, strict=True))
    news = [arrays[graph.updates.get(i, v)] for i, v in enumerate(graph.states)]
    return [*(arrays[v] for v in graph.outputs), *news]


def assert_runs(graph, level=2, rtol=2e-5):
    """Assert that a graph's program computes what it means; return the lowered graph."""
    options = Options(level=level)
    lowered = lower.lower(passes.optimise(graph, options), DEVICE, options)
    program = plan.plan(lowered, 1, DEVICE)
    inputs, states = drawn(graph)
    outputs = [np.full(v.spec.shape, 9, v.spec.dtype) for v in graph.outputs]
    StepInterpreter(program).run(inputs, states, outputs)
    for got, want in zip([*outputs, *states], meant(graph), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return lowered


def layouts_of(graph, op):
    return [node.outputs[0].layout for node in graph.nodes if node.op.name == op]


@pytest.mark.parametrize("channels", [8, 6])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_residual_network_in_blocks(channels, level):
    b = Build()
    x = b.input(2, 3, 6, 6)
    x = b.relu(b.conv(x, b.random(channels, 3, 3, 3), 1))
    for seed in (1, 2):
        y = b.add(b.conv(x, b.random(channels, channels, 3, 3, seed=seed), 1),
                  b.random(1, channels, 1, 1))  # fmt: skip
        x = b.relu(b.add(x, b.conv(b.silu(y), b.random(channels, channels, 1, 1, seed=seed))))
    x = b.conv(b.exp(b.sin(x)), b.random(channels, channels, 1, 1, seed=3))
    z = b.mean(x, axes=(2, 3), keepdims=False)
    lowered = assert_runs(returns(b, z, x), level)
    if level == 2:
        assert set(layouts_of(lowered, "conv2d_fused")) == {BLOCKED}
        assert layouts_of(lowered, "conv2d") == [BLOCKED]
        want = BLOCKED if channels % BLOCK == 0 else "plain"
        assert layouts_of(lowered, "fused_elementwise") == [want]


def returns(b, *values):
    b.graph.outputs = list(values)
    return b.graph


def test_training_step_updates_its_states():
    b = Build()
    w, v = b.state(4, 4), b.state(4, 4)
    x = b.input(3, 4)
    y = b.matmul(x, w, transpose_a=False, transpose_b=False)
    grad = b.matmul(x, y, transpose_a=True, transpose_b=False)
    new = b.sgd_update(w, grad, b.random(), v, momentum=0.9, weight_decay=0.01, nesterov=False)
    b.graph.updates = {0: new[0], 1: new[1]}
    for level in (0, 2):
        assert_runs(returns(b, b.mean(y, axes=(0, 1), keepdims=False), w), level)


@st.composite
def graphs(draw):
    """Draw a graph of convolutions, elementwise ops, reshapes and state updates."""
    b = Build()
    shape = (1, draw(st.sampled_from([4, 5])), 2, 2)
    channels = shape[1]
    values = [b.input(*shape), b.state(*shape), b.state(*shape), b.random(*shape)]
    weight = b.random(channels, channels, 1, 1)
    for _ in range(draw(st.integers(1, 12))):
        x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["conv", "add", "mul", "tanh", "relu", "turn", "bias", "copy"]))
        if kind == "conv":
            made = b.conv(x, weight)
        elif kind in ("add", "mul"):
            made = getattr(b, kind)(x, y)
        elif kind == "turn":
            flat = b.reshape(x, shape=(2, 2 * channels))
            made = b.reshape(b.transpose(flat, perm=(1, 0)), shape=shape)
        elif kind == "bias":
            made = b.add(x, b.random(1, channels, 1, 1))
        else:
            made = getattr(b, kind)(x)
        values.append(made)
    b.graph.updates = {i: draw(st.sampled_from(values)) for i in draw(st.sets(st.integers(0, 1)))}
    return returns(b, *(draw(st.sampled_from(values)) for _ in range(draw(st.integers(0, 3)))))


@given(graphs(), st.sampled_from([0, 2]))
@settings(max_examples=150, deadline=None)
def test_any_program_runs_right(graph, level):
    with np.errstate(all="ignore"):
        assert_runs(graph, level, rtol=1e-3)
