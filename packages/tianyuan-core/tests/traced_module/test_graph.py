"""A graph can be searched and read."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.errors import GraphError, TraceError
from tianyuan.op import NO_ATTRS
from tianyuan.registry import get_op
from tianyuan.traced_module import trace_module
from tianyuan.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
    Input,
    OpDef,
    get_suffix_name,
    is_apply_def,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
    is_constant,
    is_getattr,
    is_input,
    rstrip,
)
from tianyuan.traced_module.node import ModuleNode, Node, NodeMixin, TensorNode
from tianyuan.traced_module.traced_module import (
    BaseFilter,
    ExprFilter,
    ExprFilterCallFunction,
    ExprFilterCallMethod,
    ExprFilterExprId,
    InternalGraph,
    NameSpace,
    NodeFilter,
    NodeFilterName,
    NodeFilterNodeId,
    NodeFilterType,
    TracedModule,
    cpp_apply_module_trace,
)


@pytest.fixture
def traced(resnet, image):
    return trace_module(resnet, image())


@pytest.fixture
def graph(traced):
    return traced.graph


def test_a_graph_names_its_inputs_outputs_and_place(traced):
    graph = traced.graph
    assert isinstance(graph, InternalGraph)
    assert (graph.name, graph.qualname) == ("ResNet", "ResNet")
    assert [node.name for node in graph.inputs] == ["self", "x"]
    assert [node.name for node in graph.outputs] == ["fc_out"]
    assert graph.top_graph is None
    inner = getattr(traced.blocks, "0").graph
    assert inner.top_graph is traced.blocks.graph
    assert inner.top_graph.top_graph is graph
    assert inner.qualname == "ResNet.blocks._0"
    graph.name = "Net"
    assert graph.name == "Net"


def test_functions_methods_and_modules_are_found(traced):
    graph = traced.graph
    relus = graph.get_function_by_type(F.relu)
    assert isinstance(relus, ExprFilterCallFunction)
    assert relus.as_count() == 4
    assert graph.get_function_by_type(F.relu, recursive=False).as_count() == 0
    adds = graph.get_method_by_type("__add__")
    assert isinstance(adds, ExprFilterCallMethod)
    assert len(adds.as_list()) == 2
    # Calls of two blocks, their container, eight layers, stem and classifier.
    assert graph.get_method_by_type("__call__").as_count() == 13
    norms = graph.get_module_by_type(M.BatchNorm2d)
    assert isinstance(norms, NodeFilterType)
    assert sorted(node.owner.num_features for node in norms) == [4] * 4
    assert graph.get_module_by_type(M.BatchNorm2d, recursive=False).as_list() == []
    assert graph.get_function_by_type().as_count() == 4


def test_nodes_and_expressions_are_found_by_number(graph):
    exprs = graph.exprs().as_list()
    numbers = [expr.id for expr in exprs]
    assert len(set(numbers)) == len(numbers)
    some = graph.get_expr_by_id(numbers[2:4])
    assert isinstance(some, ExprFilterExprId)
    assert some.as_list() == exprs[2:4]
    assert graph.get_expr_by_id(numbers[0]).as_unique() is exprs[0]
    nodes = graph.nodes().as_list()
    assert len({node.id for node in nodes}) == len(nodes)
    found = graph.get_node_by_id([nodes[3].id])
    assert isinstance(found, NodeFilterNodeId)
    assert found.as_unique() is nodes[3]
    assert found.as_dict() == {nodes[3].id: nodes[3]}


def test_nodes_are_found_by_name(graph):
    found = graph.get_node_by_name("CONV1*")
    assert isinstance(found, NodeFilterName)
    assert sorted(node.name for node in found) == ["conv1", "conv1", "conv1_out", "conv1_out"]
    assert graph.get_node_by_name("CONV1*", ignorecase=False).as_count() == 0
    assert graph.get_node_by_name("fc_out").as_unique() is graph.outputs[0]
    assert graph.get_node_by_name("*blocks._0.[[]conv1_out]").as_count() == 1
    assert graph.get_node_by_name().as_count() == graph.nodes().as_count()
    assert NodeFilterName.make_re("a?", False).match("ab")
    assert NodeFilterName.make_re(re.compile("x+")).match("xx")
    with pytest.raises(TypeError, match="pattern"):
        NodeFilterName.make_re(3)


def test_filters_chain(graph):
    nodes = graph.nodes()
    assert isinstance(nodes, NodeFilter)
    assert isinstance(graph.exprs(), ExprFilter)
    assert nodes.type(ModuleNode).name("bn*").as_count() == 4
    assert nodes.type(TensorNode).node_id([graph.outputs[0].id]).as_unique() is graph.outputs[0]
    exprs = graph.exprs(recursive=False)
    assert exprs.call_method("mean").expr_id([e.id for e in exprs]).as_count() == 1
    assert exprs.call_function(F.relu).as_count() == 0
    with pytest.raises(GraphError, match="got 4, expected 1"):
        graph.get_function_by_type(F.relu).as_unique()
    assert BaseFilter(range(3)).as_count() == 3


def test_predicates(image):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.act = M.ReLU()
            self.w = ty.Parameter([2.0])

        def forward(self, x):
            return F.tanh(get_op("neg")(self.act(x) * self.w) + ty.Tensor([1.0]))

    graph = trace_module(Net(), image()).graph
    exprs = graph.exprs().as_list()

    def which(predicate, *args):
        return [e.outputs[0].name for e in exprs if predicate(e, *args)]

    assert which(is_getattr) == ["act", "w"]
    assert which(is_constant) == ["const_tensor"]
    assert which(is_call_module) == which(is_call_module, M.ReLU) == ["act_out"]
    assert which(is_call_module, M.Conv2d) == []
    assert which(is_call_tensor_method) == ["mul_out", "add_out"]
    assert which(is_call_tensor_method, ["__add__", "sum"]) == ["add_out"]
    assert which(is_call_function) == which(is_call_function, [F.tanh]) == ["tanh_out"]
    assert which(is_call_function, F.relu) == []
    assert which(is_apply_def) == which(is_apply_def, get_op("neg")) == ["neg_out"]
    assert which(is_apply_def, "exp") == []
    assert which(is_input) == []
    assert all(is_input(node.expr) and type(node.expr) is Input for node in graph.inputs)


def test_arguments_of_an_expression(graph, traced):
    [mean] = graph.get_method_by_type("mean").as_list()
    x = mean.args[0]
    assert mean.args == (x, (2, 3))
    assert mean.named_args == {"self": x, "axis": (2, 3)}
    assert mean.kwargs == {}
    assert mean.inputs == [x]
    assert mean.outputs == [mean.return_val]
    assert mean in x.users
    assert mean.top_graph is graph
    value = ty.Tensor([1.0])
    (first, axes), named = mean.unflatten_args([value])
    assert (first is value, axes, named) == (True, (2, 3), {})
    call = graph.get_method_by_type("__call__", recursive=False).as_list()[1]
    assert isinstance(call, CallMethod)
    assert call.graph is traced.blocks.graph
    assert call.named_args == {"self": call.inputs[0], "inputs": call.inputs[1]}


def test_an_expression_computes_by_itself(graph, image):
    [mean] = graph.get_method_by_type("mean").as_list()
    x = image(2, 4)
    [value] = mean.interpret(x)
    np.testing.assert_allclose(value.numpy(), x.numpy().mean((2, 3)), rtol=1e-5)
    getattr_expr = graph.exprs(False).as_list()[0]
    assert getattr_expr.interpret(graph._module) == [graph._module.stem]
    function = CallFunction(F.ones)
    function.set_args_kwargs((2,), dtype="int32")
    assert (function.args, function.kwargs) == (((2,),), {"dtype": "int32"})
    with pytest.raises(TraceError, match="no graph is being recorded"):
        CallFunction.make(F.relu)


def test_each_kind_of_expression_is_made_in_a_graph(image):
    """Expressions made by hand compute what functions recorded there would."""

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.w = ty.Parameter([3.0])

        def forward(self, x):
            return x + 1

    traced = trace_module(Net(), image())
    graph = traced.graph
    top, x = graph.inputs
    with graph.insert_exprs():
        w = GetAttr.make(top, TensorNode, "w")
        two = Constant.make(ty.Tensor([2.0]), "two")
        product = CallMethod.make(x, "__mul__")
        product.add_inputs(w)
        product.return_val = TensorNode(product, shape=x.shape, dtype=x.dtype)
        total = CallFunction.make(F.sub)
        total.set_args_kwargs(product.outputs[0], two)
        total.add_outputs(TensorNode(total, shape=x.shape, dtype=x.dtype))
        negated = Apply.make(OpDef(get_op("neg"), NO_ATTRS))
        negated.add_inputs([total.outputs[0]])
        negated.return_val = TensorNode(negated, shape=x.shape, dtype=x.dtype)
    graph.reset_outputs(negated.return_val)
    graph.compile()
    v = image(1, 3)
    np.testing.assert_allclose(traced(v).numpy(), -(v.numpy() * 3 - 2), rtol=1e-5, atol=1e-6)
    assert two.expr.interpret()[0].numpy() == 2
    assert negated.interpret(v)[0].numpy()[0, 0, 0, 0] == -v.numpy()[0, 0, 0, 0]


def test_ops_are_noted_by_the_hooks(image):
    opdef = OpDef(get_op("exp"), NO_ATTRS)
    x = image(1, 2)
    for hook in (Apply.apply_module_trace_hook, cpp_apply_module_trace):
        np.testing.assert_allclose(hook(opdef, x).numpy(), np.exp(x.numpy()), rtol=1e-6)

    class Net(M.Module):
        def forward(self, x):
            return cpp_apply_module_trace(opdef, x)

    traced = trace_module(Net(), x)
    assert [is_apply_def(e, "exp") for e in traced.graph.exprs()] == [True]


def test_input_is_made_for_a_graph():
    from tianyuan.traced_module.recording import Scope, apply_op
    from tianyuan.traced_module.scope import entered

    graph = InternalGraph("g", "g")
    with entered(Scope(graph, M.Identity()), apply_op):
        node = Input.make(TensorNode, name="data")
        again = Input.make(TensorNode, name="data")
    assert graph.inputs == [node, again]
    assert [n.name for n in graph.inputs] == ["data", "data_1"]
    assert node.top_graph is graph


def test_nodes_know_their_values_kind(graph):
    x = graph.inputs[1]
    assert isinstance(x, Node)
    assert (x.shape, x.dtype, x.device, x.qparams, x.value) == ((2, 3, 6, 6), np.float32, "cpu",
                                                                None, None)  # fmt: skip
    x.shape, x.dtype, x.device, x.qparams, x.value = (1,), "int8", "cpu:0", "q", 3
    assert (x.shape, x.dtype, x.device, x.qparams, x.value) == ((1,), "int8", "cpu:0", "q", 3)
    assert x.qualname == "ResNet.[x]"
    assert x.top_graph is graph
    [fc] = [n for n in graph.nodes() if n.name == "fc"]
    assert fc.owner is graph._module.fc
    assert fc.module_type is M.Linear
    loose = TensorNode(None, "loose", "a.loose", (3,), np.float32)
    assert (loose.qualname, loose.top_graph, loose.users) == ("a.loose", None, [])
    assert ModuleNode(None, "m").name == "m"
    with pytest.raises(TraceError, match="insert_exprs"):
        x + 1
    with pytest.raises(TraceError, match="insert_exprs"):
        fc(x)


def test_names_are_unique_and_may_be_changed(graph):
    out = graph.outputs[0]
    out.name = "logits"
    assert graph.get_node_by_name("logits").as_unique() is out
    assert "logits = fc(" in repr(graph)
    with pytest.raises(GraphError, match="taken"):
        out.name = "x"
    out.name = "fc_out"  # the old name is free again


def test_a_graph_prints_readably(graph):
    lines = str(graph).splitlines()
    assert lines[0] == "ResNet.Graph (self, x) {"
    assert re.fullmatch(r'\t%\d+:\tstem = getattr\(self, "stem"\) -> \(Conv2d\)', lines[1])
    assert re.fullmatch(r"\t%\d+:\tstem_out = stem\(x\)", lines[2])
    assert re.fullmatch(r"\t%\d+:\tmean_out = blocks_out.mean\(\(2, 3\)\)", lines[5])
    assert lines[-2:] == ["\treturn fc_out", "}"]


def test_dependencies(graph):
    mean = graph.get_node_by_name("mean_out").as_unique()
    names = [e.outputs[0].name for e in graph.get_dep_exprs(mean)]
    assert names == ["stem", "stem_out", "blocks", "blocks_out", "mean_out"]
    assert graph.get_dep_exprs([graph.inputs[1]]) == []
    with pytest.raises(GraphError, match="not a node of graph"):
        graph.get_dep_exprs(TensorNode(None, "stranger"))


def test_eval_and_interpret(graph, resnet, image):
    x = image(1, 6)
    [a] = graph.eval(x)
    [b] = graph.interpret(graph._module, x)
    assert np.array_equal(a.numpy(), resnet(x).numpy())
    assert np.array_equal(b.numpy(), a.numpy())
    with pytest.raises(GraphError, match="wrong number of inputs, got 1, expected 2"):
        graph.interpret(x)


def test_name_space():
    space = NameSpace("net", "top.net")
    assert (space.name, space.qualname) == ("net", "top.net")
    a, b = TensorNode(None, "a"), TensorNode(None, "b")
    assert space.create_unique_name("a.b", a) == "a_b"
    assert space.create_unique_name("a.b", b) == "a_b_1"
    space.associate_name_with_obj("c", a)
    with pytest.raises(GraphError, match="taken"):
        space.associate_name_with_obj("c", b)
    assert space.used_names == {"a_b": a, "a_b_1": b, "c": a}
    space.unassociate_name_with_obj(a)
    assert list(space.used_names) == ["a_b_1"]
    other = NameSpace("o", "o")
    other.create_unique_name("z")
    space.merge(other)
    assert list(space.used_names) == ["a_b_1", "z"]
    expr = CallFunction(F.relu)
    expr.outputs = [TensorNode(expr), TensorNode(expr)]
    space.auto_naming_for_outputs(expr)
    assert [node.name for node in expr.outputs] == ["relu_out", "relu_out_1"]


def test_node_mixin():
    x, module = ty.Tensor([1.0]), M.Identity()
    node = TensorNode(None, "x")
    assert NodeMixin.get_wrapped_type(x) is TensorNode
    assert NodeMixin.get_wrapped_type(module) is ModuleNode
    assert NodeMixin.get(x, None) is None
    with pytest.raises(AttributeError, match="no node"):
        NodeMixin.get(x)
    NodeMixin.wrap(x, lambda: node)
    assert NodeMixin.get(x) is node
    assert node.shape == (1,)
    with pytest.raises(TraceError, match="has a node"):
        NodeMixin.wrap_safe(x, TensorNode(None, "y"))
    NodeMixin.clear_node(x)
    NodeMixin.wrap_safe(x, TensorNode(None, "y"))
    assert NodeMixin.get(x).name == "y"
    held = ModuleNode(None, "m")
    NodeMixin.wrap(module, held)
    assert held.module_type is M.Identity
    with pytest.raises(TypeError, match="no node can be tied"):
        NodeMixin.wrap(3, node)


def test_texts():
    assert get_suffix_name("a.b", "a.b.c.d") == "c.d"
    assert get_suffix_name("a", "a") == ""
    assert get_suffix_name("a", "ab.c") is None
    assert rstrip("x_out_out", "_out") == "x"
    assert rstrip("x.a", "..") == "x.a"


def test_nodes_and_expressions_are_not_pickled_alone(graph):
    with pytest.raises(TypeError, match="copied with its graph"):
        pickle.dumps(graph.outputs[0])
    with pytest.raises(TypeError, match="copied with its graph"):
        pickle.dumps(graph.exprs().as_list()[0])


def test_a_base_expression_and_a_module_without_graph():
    with pytest.raises(NotImplementedError):
        Expr().interpret()
    with pytest.raises(GraphError, match="not one graph"):
        TracedModule(True, {}, {}).graph  # noqa: B018
