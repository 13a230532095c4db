"""Validity rules: each broken graph is refused with the rule's name."""

from __future__ import annotations

import graph_tools as tools
import numpy as np
import pytest
from graph_tools import DEVICE, F32, Build
from tianyuan import registry
from tianyuan.errors import GraphError
from tianyuan.graph import lower, passes, spec
from tianyuan.graph.graph import Constant, Node, Value
from tianyuan.graph.options import Options
from tianyuan.kernel import Kernel
from tianyuan.op import NoAttrs, Op, TensorSpec

pytestmark = pytest.mark.usefixtures("paper")


def valid():
    """Return a small valid graph: exp, add of a constant, and a state's update."""
    b = Build()
    x, s = b.input(4, 4), b.state(4, 4)
    new = b.add(b.exp(x), b.zeros(4, 4))
    b.graph.updates = {0: b.mul(new, s)}
    return b.returns(new)


def test_valid_graph_passes_in_every_stage():
    graph = valid()
    for stage in ("canonical", "fuse", "layout"):
        spec.check(graph, stage)
    spec.check(lower.lower(graph, DEVICE), "late")


def use_before_definition(graph):
    graph.nodes.reverse()


def foreign_value(graph):
    graph.outputs.append(Value(TensorSpec((4,), F32)))


def defined_twice(graph):
    graph.nodes.append(graph.nodes[0])


def input_twice(graph):
    graph.inputs.append(graph.inputs[0])


def wrong_maker(graph):
    graph.nodes[0].outputs[0].node = graph.nodes[1]


def wrong_count(graph):
    node = graph.nodes[0]
    node.inputs = (*node.inputs, *node.inputs)


def wrong_spec(graph):
    graph.nodes[0].outputs[0].spec = TensorSpec((4, 5), F32)


def wrong_attrs(graph):
    graph.nodes[0].attrs = registry.get_op("reshape").attrs(shape=(16,))


def wrong_constant(graph):
    value = next(iter(graph.constants))
    graph.constants[value] = Constant(np.zeros((2, 2), F32))


def wrong_update(graph):
    graph.states[0].spec = TensorSpec((4, 4), np.dtype("float64"))


def update_of_nothing(graph):
    graph.updates[3] = graph.outputs[0]


def early_kernel(graph):
    graph.nodes[0].kernel = registry.candidates("exp", DEVICE)[0]


def early_layout(graph):
    graph.nodes[0].outputs[0].layout = "nchw16c"


BROKEN = {
    use_before_definition: "topological order",
    foreign_value: "outputs and updates are made in the graph",
    defined_twice: "defined once' is broken at exp",
    input_twice: "defined once",
    wrong_maker: "names the node that makes it",
    wrong_count: "inference accepts the inputs' is broken at exp",
    wrong_spec: "inference agrees",
    wrong_attrs: "attributes are the op's",
    wrong_constant: "a constant's array fits its spec",
    wrong_update: "inference",
    update_of_nothing: "an update belongs to a state",
    early_kernel: "kernels are chosen by the layout stage",
    early_layout: "plain before the layout stage",
}


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda f: f.__name__)
def test_broken_graph_is_refused_with_the_rule(breaks):
    graph = valid()
    breaks(graph)
    with pytest.raises(GraphError) as caught:
        spec.check(graph, "canonical")
    assert BROKEN[breaks] in str(caught.value)


def test_update_must_have_its_states_spec():
    b = Build()
    b.state(4)
    b.graph.updates = {0: b.exp(b.input(5))}
    with pytest.raises(GraphError, match="an update has its state's spec"):
        spec.check(b.returns(), "canonical")


def lowered():
    return lower.lower(valid(), DEVICE)


def no_kernel(graph):
    graph.nodes[0].kernel = None


def kernel_of_another_op(graph):
    graph.nodes[0].kernel = graph.nodes[1].kernel


def unknown_layout(graph):
    graph.nodes[0].outputs[0].layout = "nowhere"


def layout_of_another_rank(graph):
    graph.nodes[0].outputs[0].layout = "nchw16c"


def blocked_output(graph):
    graph.nodes[1].outputs[0].layout = "nchw16c"


LATE = {
    no_kernel: "every node has a kernel",
    kernel_of_another_op: "a kernel serves its node's op",
    unknown_layout: "only relayout changes a layout",
    layout_of_another_rank: "only relayout changes a layout",
    blocked_output: "only relayout changes a layout",
}


@pytest.mark.parametrize("breaks", LATE, ids=lambda f: f.__name__)
def test_broken_lowered_graph_is_refused(breaks):
    registry.register_layout(tools.blocked_layout())
    graph = lowered()
    breaks(graph)
    with pytest.raises(GraphError) as caught:
        spec.check(graph, "late")
    assert LATE[breaks] in str(caught.value)


def flat_node(channels, layout):
    """Return a lowered graph in which a flat kernel works on a value in a layout."""
    b = Build()
    x = b.zeros(1, channels, 2, 2)
    packed = Value(x.spec, "", layout)
    array = tools.blocked_layout().pack(np.zeros((1, channels, 2, 2), F32))
    b.graph.constants = {packed: Constant(array)}
    flat = Kernel("exp_f32__flat", "exp", tools.never, layouts=tools.Layouts(("same",), ("same",)))
    node = Node(registry.get_op("exp"), NoAttrs(), [packed], [Value(x.spec, "", layout)])
    node.kernel = flat
    b.graph.nodes.append(node)
    return b.graph


def test_flat_kernels_meet_no_padding():
    registry.register_layout(tools.blocked_layout())
    spec.check(flat_node(32, "nchw16c"), "late")
    with pytest.raises(GraphError, match="flat kernels meet no padding lanes"):
        spec.check(flat_node(24, "nchw16c"), "late")


def test_values_in_layouts_are_checked():
    registry.register_layout(tools.blocked_layout())
    graph = flat_node(32, "nchw16c")
    graph.outputs = [graph.nodes[0].outputs[0]]
    with pytest.raises(GraphError, match="inputs, states and outputs are plain"):
        spec.check(graph, "late")
    with pytest.raises(KeyError):
        registry.get_layout("nowhere")
    graph = flat_node(32, "nchw16c")
    graph.nodes[0].outputs[0].layout = "nowhere"
    with pytest.raises(GraphError, match="layout"):
        spec.check(graph, "late")


EFFECT = Op("note", lambda specs, attrs: specs, pure=False)


def test_pass_that_loses_or_reorders_effects_is_refused():
    def graph(*origins):
        b = Build()
        x = b.input(4)
        for origin in origins:
            b.graph.add_node(EFFECT, [x], NoAttrs(), origin)
        return b.returns()

    spec.check_effects(graph("a", "b"), graph("a", "b"))
    for other in (graph("b", "a"), graph("a"), graph("a", "b", "b")):
        with pytest.raises(GraphError, match="effects keep their order"):
            spec.check_effects(graph("a", "b"), other)


def test_pass_manager_names_the_pass_that_broke_a_graph(monkeypatch):
    def breaks(graph, options):
        return valid_with(early_kernel)

    def valid_with(change):
        graph = valid()
        change(graph)
        return graph

    item = passes.Pass("canonical", "wrecker", breaks)
    monkeypatch.setattr(passes, "plugin_passes", lambda device: (item,))
    with pytest.raises(GraphError, match="pass wrecker: graph: rule 'kernels are chosen"):
        passes.run_stage("canonical", valid(), Options())
    monkeypatch.setenv("TIANYUAN_CHECK_GRAPH", "0")
    assert passes.run_stage("canonical", valid(), Options()).nodes[0].kernel is not None


def test_plugins_passes_run_after_ours_in_their_stage(monkeypatch):
    seen = []

    def look(stage):
        def run(graph, options):
            seen.append((stage, [node.op.name for node in graph.nodes]))
            return graph

        return passes.Pass(stage, f"look_{stage}", run, level=0)

    items = tuple(look(stage) for stage in reversed(passes.STAGES))
    monkeypatch.setattr(passes, "plugin_passes", lambda device: items)
    b = Build()
    graph = passes.optimise(b.returns(b.exp(b.neg(b.neg(b.sin(b.input(4)))))))
    lower.lower(graph, DEVICE)
    assert [stage for stage, _ in seen] == list(passes.STAGES)
    assert [names for _, names in seen] == [["sin", "exp"], *[["fused_elementwise"]] * 3]


def test_a_pass_runs_only_where_the_graph_holds_what_it_needs(monkeypatch):
    seen = []

    def run(graph, options):
        seen.append([node.op.name for node in graph.nodes])
        return graph

    item = passes.Pass("canonical", "look", run, needs=("softmax", "exp"))
    monkeypatch.setattr(passes, "plugin_passes", lambda device: (item,))
    for name in ("exp", "sin"):
        b = Build()
        passes.run_stage("canonical", b.returns(b.op(name, b.input(4))), Options())
    assert seen == [["exp"]]


def test_nodes_that_a_pass_changes_are_inferred_again(monkeypatch):
    before = valid()

    def widens(graph, options):
        after = graph.rebuild(lambda to, node: None)
        after.nodes[0].outputs[0].spec = TensorSpec((4, 5), np.dtype(F32))
        return after

    item = passes.Pass("canonical", "widens", widens)
    monkeypatch.setattr(passes, "plugin_passes", lambda device: (item,))
    with pytest.raises(GraphError, match="pass widens: graph: rule 'inference agrees"):
        passes.run_stage("canonical", before, Options())


def test_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="unknown stage, got 'early'"):
        passes.run_stage("early", valid(), Options())
