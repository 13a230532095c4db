"""A graph that was changed computes what it was changed to."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.errors import GraphError, TraceError
from tianyuan.traced_module import trace_module
from tianyuan.traced_module.expr import CallFunction, is_call_function
from tianyuan.traced_module.node import ModuleNode, TensorNode


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.w = ty.Parameter([2.0])
        self.act = M.ReLU()

    def forward(self, x, y):
        a = F.exp(x)
        b = a + y
        return self.act(b * self.w)


def relu(x):
    return np.maximum(x, 0)


@pytest.fixture
def pair():
    rng = np.random.default_rng(2)
    return [rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2)]


@pytest.fixture
def traced(pair):
    return trace_module(Net(), *map(ty.Tensor, pair))


def node(traced, name):
    return traced.graph.get_node_by_name(name).as_unique()


def run(traced, *arrays, **named):
    out = traced(*map(ty.Tensor, arrays), **named)
    return out.numpy() if isinstance(out, ty.Tensor) else out


def test_insert_and_replace(traced, pair):
    x, y = pair
    graph = traced.graph
    with graph.insert_exprs():
        squared = F.square(node(traced, "add_out"))
        new = squared * 3 + graph.inputs[1]
    assert isinstance(new, TensorNode)
    graph.replace_node({node(traced, "add_out"): new})
    graph.compile()
    b = np.exp(x) + y
    np.testing.assert_allclose(run(traced, x, y), relu((b * b * 3 + x) * 2), rtol=1e-5)
    # What the new node depends on reads the old one still.
    assert squared.expr.inputs == [node(traced, "add_out")]


def test_insert_uses_modules_of_the_traced_module(traced, pair):
    graph = traced.graph
    traced.extra = M.Linear(3, 2)
    with graph.insert_exprs():
        out = graph.inputs[0].extra(graph.outputs[0])
        out = traced.extra(graph.outputs[0]) + out * graph.inputs[0].w
    graph.reset_outputs({"out": out})
    x, y = pair
    act = relu((np.exp(x) + y) * 2)
    want = act @ traced.extra.weight.numpy().T + traced.extra.bias.numpy()
    found = run(traced, x, y)["out"].numpy()
    np.testing.assert_allclose(found, want * 3, rtol=1e-4, atol=1e-5)
    with pytest.raises(TraceError, match="does not hold"), graph.insert_exprs():
        M.Linear(2, 2)(out)


def test_insert_methods_and_structures_of_nodes(traced, pair):
    graph = traced.graph
    x, y = graph.inputs[1:]
    with graph.insert_exprs():
        parts = F.split(F.concat([x, y], axis=1), 2, axis=1)
        mixed = parts[1].reshape(x.T.shape).transpose(1, 0) - parts[0][:, :1] / 2
        total = (-mixed).sum(axis=1, keepdims=True) ** 2
    graph.reset_outputs((total, [parts[0]]))
    a, b = pair
    m = b.reshape(3, 2).T - a[:, :1] / 2
    found, [first] = run(traced, a, b)
    np.testing.assert_allclose(found.numpy(), (-m).sum(1, keepdims=True) ** 2, rtol=1e-4)
    np.testing.assert_array_equal(first.numpy(), a)


def test_insert_after_an_expression(traced, pair):
    graph = traced.graph
    exp, add = node(traced, "exp_out").expr, node(traced, "add_out").expr
    with graph.insert_exprs(add):
        late = F.sqrt(exp.outputs[0])
    names = [e.outputs[0].name for e in graph.exprs()]
    assert names.index(late.name) == names.index("add_out") + 1
    before = str(graph)
    with pytest.raises(GraphError, match="expected to insert after it"), graph.insert_exprs(exp):
        F.neg(add.outputs[0])
    assert str(graph) == before
    assert add.outputs[0].users == [node(traced, "mul_out").expr]
    with pytest.raises(GraphError, match="not in graph"), graph.insert_exprs(CallFunction(F.relu)):
        pass
    with graph.insert_exprs(graph.inputs[1].expr):
        first = F.tanh(graph.inputs[2])
    assert next(iter(graph.exprs())) is first.expr


def test_a_failed_block_changes_nothing(traced):
    graph = traced.graph
    before = str(graph)

    def fail(x):
        F.neg(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), graph.insert_exprs():
        fail(graph.inputs[1])
    assert str(graph) == before
    assert len(graph.inputs[1].users) == 1
    with pytest.raises(TraceError, match="node of another graph"), graph.insert_exprs():
        F.neg(TensorNode(None, "stranger", shape=(1,)))


def test_inserting_disturbs_neither_state_nor_random_numbers(image):
    net = M.Sequential(M.BatchNorm2d(3)).train()
    traced = trace_module(net, image())
    ty.random.seed(3)
    numbers = ty.random.get_state()
    with traced.graph.insert_exprs():
        traced.graph.inputs[0].__getattr__("0")(F.dropout(traced.graph.inputs[1], 0.5))
    assert ty.random.get_state() == numbers
    np.testing.assert_array_equal(getattr(traced, "0").running_var.numpy().reshape(-1), np.ones(3))


def test_edits_of_a_called_graph(resnet, image):
    traced = trace_module(resnet, image())
    inner = getattr(traced.blocks, "0").graph
    with inner.insert_exprs():
        doubled = inner.outputs[0] * 2
    inner.replace_node({inner.outputs[0]: doubled})
    x = image(1, 3)
    first, second = resnet.blocks
    want = resnet.fc(second(first(resnet.stem(x)) * 2).mean((2, 3)))
    np.testing.assert_allclose(traced(x).numpy(), want.numpy(), rtol=1e-5, atol=1e-5)
    numbers = [e.id for e in traced.graph.exprs()]
    assert len(numbers) == len(set(numbers))


def test_replace_node_checks(traced):
    graph = traced.graph
    with pytest.raises(GraphError, match="not a node of graph"):
        graph.replace_node({graph.outputs[0]: TensorNode(None, "z")})
    with pytest.raises(GraphError, match="of another kind"):
        graph.replace_node({graph.outputs[0]: graph.inputs[0]})


def test_replace_node_with_an_earlier_one(traced, pair):
    x, y = pair
    traced.graph.replace_node({node(traced, "add_out"): node(traced, "exp_out")})
    traced.graph.compile()
    assert traced.graph.get_method_by_type("__add__").as_count() == 0
    np.testing.assert_allclose(run(traced, x, y), relu(np.exp(x) * 2), rtol=1e-6)


def test_compile_drops_what_nothing_reads(traced):
    graph = traced.graph
    with graph.insert_exprs():
        kept = F.sin(graph.inputs[1])
        F.cos(F.sin(graph.inputs[2]))
    kept.expr.disable_remove()
    graph.compile()
    assert graph.get_function_by_type(F.sin).as_list() == [kept.expr]
    assert graph.get_function_by_type(F.cos).as_count() == 0
    kept.expr.enable_remove()
    graph.compile()
    assert graph.get_function_by_type(F.sin).as_count() == 0


def test_add_input_and_output(traced, pair):
    graph = traced.graph
    z = graph.add_input_node((2, 3), dtype="float32", name="z")
    assert (z.name, z.shape, z.dtype) == ("z", (2, 3), np.float32)
    with graph.insert_exprs():
        out = graph.outputs[0] * z
    graph.add_output_node(out)
    x, y = pair
    act = relu((np.exp(x) + y) * 2)
    for named in ({}, {"z": ty.Tensor(y)}):
        given = (x, y) if named else (x, y, y)
        first, second = run(traced, *given, **named)
        np.testing.assert_allclose(first.numpy(), act, rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), act * y, rtol=1e-6)
    assert isinstance(traced(ty.Tensor(x), ty.Tensor(y), ty.Tensor(y)), tuple)


def test_reset_inputs(traced, pair):
    graph = traced.graph
    x, y = pair
    old = graph.inputs[1:]
    new = graph.reset_inputs({"p": ty.Tensor(x), "q": ty.Tensor(y)})
    assert [n.name for n in new] == ["x_0", "x_1"]
    with pytest.raises(GraphError, match="before anything makes it"):
        traced({"p": ty.Tensor(x), "q": ty.Tensor(y)})
    for before, after in zip(old, new, strict=True):
        for user in list(before.users):
            user.replace_inputs({before: after})
    found = traced({"p": ty.Tensor(x), "q": ty.Tensor(y)}).numpy()
    np.testing.assert_allclose(found, relu((np.exp(x) + y) * 2), rtol=1e-6)


def test_reset_outputs_checks(traced, pair):
    graph = traced.graph
    with pytest.raises(GraphError, match="not a node"):
        graph.reset_outputs([TensorNode(None, "z")])
    graph.reset_outputs([node(traced, "exp_out"), 7])
    out, seven = run(traced, *pair)
    np.testing.assert_allclose(out.numpy(), np.exp(pair[0]), rtol=1e-6)
    assert seven == 7


def test_only_the_top_graph_changes_its_signature(resnet, image):
    inner = trace_module(resnet, image()).blocks.graph
    for call in (
        lambda: inner.add_input_node((1,)),
        lambda: inner.add_output_node(inner.outputs[0]),
        lambda: inner.reset_inputs(image()),
        lambda: inner.reset_outputs(inner.outputs[0]),
    ):
        with pytest.raises(GraphError, match="is called by 'ResNet'"):
            call()


def test_arguments_are_set(traced, pair):
    x, y = pair
    graph = traced.graph
    add = node(traced, "add_out").expr
    add.set_args_kwargs(node(traced, "exp_out"), 10.0)
    np.testing.assert_allclose(run(traced, x, y), relu((np.exp(x) + 10) * 2), rtol=1e-6)
    add.set_arg(1, graph.inputs[2])
    np.testing.assert_allclose(run(traced, x, y), relu((np.exp(x) + y) * 2), rtol=1e-6)
    exp = node(traced, "exp_out").expr
    exp.set_arg("x", graph.inputs[2])
    np.testing.assert_allclose(run(traced, x, y), relu((np.exp(y) + y) * 2), rtol=1e-6)
    assert graph.inputs[1].users == []
    with pytest.raises(GraphError, match="no argument of the name, got 'nothing'"):
        exp.set_arg("nothing", 1)
    with pytest.raises(GraphError, match="no argument 5"):
        exp.set_arg(5, 1)


def test_functions_may_be_exchanged(traced, pair):
    x, y = pair
    for expr in traced.graph.exprs():
        if is_call_function(expr, F.exp):
            expr.func = F.tanh
    np.testing.assert_allclose(run(traced, x, y), relu((np.tanh(x) + y) * 2), rtol=1e-5)


def test_replace_inputs_checks(traced):
    add, mul = node(traced, "add_out").expr, node(traced, "mul_out").expr
    with pytest.raises(GraphError, match="is no input"):
        add.replace_inputs({mul.outputs[0]: add.outputs[0]})
    with pytest.raises(GraphError, match="made before it is read"):
        add.replace_inputs({add.inputs[0]: mul.outputs[0]})
    with pytest.raises(GraphError, match="of another kind"):
        add.replace_inputs({add.inputs[0]: traced.graph.inputs[0]})


def test_flatten(resnet, encoder, image, batch):
    traced = trace_module(resnet, image())
    flat = traced.flatten()
    assert flat is not traced
    assert all(type(e.inputs[0].owner) is not type(traced) for e in flat.graph.exprs()
               if e.inputs and hasattr(e, "method") and e.method == "__call__")  # fmt: skip
    assert not any(type(n.owner) is type(traced) for n in flat.graph.nodes().type(ModuleNode)
                   if n is not flat.graph.inputs[0])  # fmt: skip
    assert flat.graph.exprs(False).as_count() == flat.graph.exprs(True).as_count()
    assert flat.graph.get_function_by_type(F.relu, recursive=False).as_count() == 4
    assert list(flat.state_dict()) == list(traced.state_dict())
    x = image(3, 7)
    assert np.array_equal(flat(x).numpy(), resnet(x).numpy())
    assert traced.graph.get_function_by_type(F.relu, recursive=False).as_count() == 0
    flat_encoder = trace_module(encoder, batch()).flatten()
    given = batch(3, 6)
    want, got = encoder(given)[0]["pooled"], flat_encoder(given)[0]["pooled"]
    assert np.array_equal(want.numpy(), got.numpy())


def test_flatten_repeats_a_part_that_is_called_twice():
    class Part(M.Module):
        def __init__(self):
            super().__init__()
            self.w = ty.Parameter([3.0])

        def forward(self, x):
            return x * self.w + 1

    class Twice(M.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, x):
            return self.part(self.part(x))

    flat = trace_module(Twice(), ty.Tensor([1.0])).flatten()
    assert flat.graph.get_method_by_type("__mul__", recursive=False).as_count() == 2
    np.testing.assert_allclose(flat(ty.Tensor([5.0])).numpy(), [(5 * 3 + 1) * 3 + 1])


def test_watch_points(resnet, image):
    traced = trace_module(resnet, image())
    inner = getattr(traced.blocks, "1").graph.outputs[0]
    stem = node(traced, "stem_out")
    traced.set_watch_points([stem, inner])
    x = image(1, 5)
    out = traced(x)
    assert np.array_equal(out.numpy(), resnet(x).numpy())
    values = traced.watch_node_value
    assert np.array_equal(values[stem].numpy(), resnet.stem(x).numpy())
    assert np.array_equal(values[inner].numpy(), resnet.blocks(resnet.stem(x)).numpy())
    assert list(traced.state_dict()) == list(resnet.state_dict())
    traced.clear_watch_points()
    traced(x)
    assert traced.watch_node_value == {}
    with pytest.raises(GraphError, match="not a node of this module"):
        traced.set_watch_points(TensorNode(None, "z"))


def test_end_points(resnet, image):
    traced = trace_module(resnet, image())
    inner = getattr(traced.blocks, "0").graph.outputs[0]
    stem = node(traced, "stem_out")
    traced.set_end_points([inner, stem])
    traced.fc.forward = None  # what stands behind the end points never runs
    x = image(1, 5)
    first, second = traced(x)
    assert np.array_equal(second.numpy(), resnet.stem(x).numpy())
    assert np.array_equal(first.numpy(), resnet.blocks[0](resnet.stem(x)).numpy())
    del traced.fc.forward
    traced.clear_end_points()
    assert np.array_equal(traced(x).numpy(), resnet(x).numpy())


def test_extents_and_members_of_members_are_used_in_edits(image):
    class Inner(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Linear(6, 6)

        def forward(self, x):
            return self.fc(x)

    class Outer(M.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x).reshape(x.shape[0], -1)

    net = Outer()
    traced = trace_module(net, image())
    graph = traced.graph
    size = graph.get_node_by_name("shape_out").as_unique()
    with graph.insert_exprs():
        out = graph.inputs[0].inner.fc(graph.inputs[1]) + size
        plain = graph.inputs[0].training
    assert plain is True
    graph.reset_outputs((out, size))
    x = image(5, 2)
    for module in (traced, traced.flatten()):
        found, extent = module(x)
        np.testing.assert_allclose(found.numpy(), net.inner.fc(x).numpy() + 5, rtol=1e-5)
        assert extent == 5
    with pytest.raises(AttributeError, match="insert_exprs"):
        graph.inputs[0].inner  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        graph.inputs[1].nothing  # noqa: B018
    loose = TensorNode(None, "loose")
    with pytest.raises(GraphError, match="another graph"):
        out.expr.set_args_kwargs(trace_module(net, image()).graph.inputs[1], loose)


def test_arguments_are_set_by_name_wherever_they_stand(image):
    class Net(M.Module):
        def forward(self, x):
            return F.sum(x, axis=1, keepdims=True)

    traced = trace_module(Net(), image(2, 1, (3,)))
    [call] = traced.graph.exprs().as_list()
    x = image(2, 4, (3,))
    call.set_arg("axis", 0)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy().sum(0, keepdims=True), rtol=1e-5)
    call.set_args_kwargs(call.args[0])
    call.set_arg("keepdims", True)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy().sum(keepdims=True), rtol=1e-5)
    assert call.named_args == {"inp": call.inputs[0], "keepdims": True}
