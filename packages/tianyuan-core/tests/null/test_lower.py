"""Choice of kernels and layouts, on kernels with costs that exist on paper only."""

from __future__ import annotations

import itertools

import graph_tools as tools
import numpy as np
import pytest
from graph_tools import DEVICE, F32, Build, assert_plan, blocked_kernel, program_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tianyuan import registry
from tianyuan.errors import KernelError
from tianyuan.graph import lower, selection
from tianyuan.graph.explain import explain, format_program
from tianyuan.graph.graph import Constant
from tianyuan.graph.options import Options
from tianyuan.kernel import CFunction, Kernel, Layouts

BLOCKED = "nchw16c"
PLAIN = "plain"
SAME = Layouts(("same",), ("same",))


def seconds(value):
    return lambda call: value


def kernel(op, name, **changes):
    """Return a kernel that exists on paper only."""
    return Kernel(**{"op": op, "name": name, "run": tools.never, **changes})


@pytest.fixture
def blocked(brings):
    """Give a device with blocked convolutions, pooling that wants them, and repacking."""
    registry.register_layout(tools.blocked_layout())
    registry.register_layout(tools.blocked_layout("oihw16o", 16))

    def bring(*more, conv=1.0, conv_plain=10.0, repack=2.0):
        brings(
            *more,
            blocked_kernel("conv2d", ((BLOCKED, "oihw16o"), (BLOCKED,)), conv),
            kernel("conv2d", "conv2d_f32__paper_plain", cost=seconds(conv_plain)),
            kernel("relu", "relu_f32__paper_flat", cost=seconds(0.5),
                layouts=SAME,
            ),
            kernel("add", "add_f32__paper_flat", cost=seconds(0.5),
                layouts=SAME,
            ),
            kernel("softmax", "softmax_f32__paper_plain", cost=seconds(0.5)),
            kernel("relayout", "relayout_f32__paper", cost=seconds(repack)),
        )  # fmt: skip

    return bring


def steps(graph):
    return [(node.op.name, node.outputs[0].layout) for node in graph.nodes]


def lowered(graph, **options):
    result = lower.lower(graph, DEVICE, Options(**options))
    assert_plan(graph, Options(**options))
    return result


def chain(b, channels=32, count=3):
    x = b.input(1, channels, 4, 4)
    for _ in range(count):
        x = b.conv(b.relu(x), b.zeros(channels, channels, 1, 1))
    return x


def test_region_of_blocked_kernels_is_entered_and_left_once(blocked):
    blocked()
    b = Build()
    graph = lowered(b.returns(chain(b)))
    inner = [("conv2d", BLOCKED), ("relu", BLOCKED), ("conv2d", BLOCKED), ("relu", BLOCKED)]
    found = steps(graph)
    assert [name for name, _ in found].count("relayout") == 2
    assert found[-6:] == [*inner, ("conv2d", BLOCKED), ("relayout", PLAIN)]


def test_one_blocked_step_is_not_worth_two_repackings(blocked):
    blocked(conv=9.0)
    b = Build()
    assert steps(lowered(b.returns(chain(b, count=1)))) == [("relu", PLAIN), ("conv2d", PLAIN)]


def test_the_way_back_to_a_plain_output_counts(blocked):
    blocked(conv=9.0, conv_plain=10.0, repack=0.7)
    b = Build()
    y = b.conv(b.input(1, 32, 4, 4), b.zeros(32, 32, 1, 1))
    assert steps(lowered(b.returns(y))) == [("conv2d", PLAIN)]
    b.graph.outputs = [b.softmax(y, axis=1)]
    assert steps(lowered(b.graph)) == [("conv2d", PLAIN), ("softmax", PLAIN)]


def test_whole_region_changes_where_no_single_step_would_gain(blocked):
    # Each convolution alone gains 3 and costs two repackings of 2; all three gain 9 and cost 4.
    blocked(conv=7.0, conv_plain=10.0, repack=2.0)
    b = Build()
    layouts = [layout for name, layout in steps(lowered(b.returns(chain(b)))) if name == "conv2d"]
    assert layouts == [BLOCKED] * 3


def test_plain_step_in_a_blocked_region_is_wrapped(blocked):
    blocked()
    b = Build()
    x = chain(b, count=2)
    y = b.softmax(x, axis=1)
    z = b.conv(y, b.zeros(32, 32, 1, 1))
    layouts = [layout for name, layout in steps(lowered(b.returns(z))) if name != "relayout"]
    assert layouts[1:] == [BLOCKED, BLOCKED, BLOCKED, PLAIN, BLOCKED]


def test_value_read_in_both_layouts_is_repacked_once(blocked):
    blocked()
    b = Build()
    x = b.conv(b.input(1, 32, 4, 4), b.zeros(32, 32, 1, 1))
    graph = lowered(
        b.returns(b.softmax(x, axis=1), b.softmax(x, axis=2), b.conv(x, b.zeros(32, 32, 1, 1)))
    )
    assert [name for name, _ in steps(graph)].count("relayout") == 3  # in, out, and second result


def test_constants_are_packed_once_for_all_programs(blocked):
    blocked()
    b = Build()
    x = b.input(1, 32, 4, 4)
    weight = Constant(np.random.default_rng(0).standard_normal((32, 32, 1, 1)).astype(F32), "w")
    w = b.graph.add_constant(weight)
    b.returns(b.conv(b.conv(x, w), w))
    first, second = (lower.lower(b.graph, DEVICE) for _ in range(2))
    assert list(first.constants.values()) == list(second.constants.values())
    (packed,) = first.constants.values()
    want = np.zeros((32, 2, 1, 1, 16), F32)
    for o, i in itertools.product(range(32), range(32)):
        want[o, i // 16, 0, 0, i % 16] = weight.array[o, i, 0, 0]
    np.testing.assert_array_equal(packed.array, want)
    assert packed.name == "w"
    assert packed.array.flags.c_contiguous
    assert "relayout" not in [n.op.name for n in first.nodes if w in n.inputs]


def test_states_are_repacked_by_steps(blocked):
    blocked()
    b = Build()
    w = b.state(32, 32, 1, 1)
    graph = lowered(b.returns(b.conv(b.input(1, 32, 4, 4), w)))
    targets = [node.attrs.target for node in graph.nodes if node.op.name == "relayout"]
    assert sorted(targets) == [BLOCKED, "oihw16o", PLAIN]


def test_flat_kernels_stay_plain_where_channels_leave_padding(blocked):
    blocked()
    b = Build()
    layouts = dict(steps(lowered(b.returns(chain(b, channels=24, count=1)))))
    assert layouts["relu"] == PLAIN


def test_flat_kernels_take_single_elements_but_no_other_broadcast(blocked):
    blocked()
    b = Build()
    x = b.conv(b.input(1, 32, 4, 4), b.zeros(32, 32, 1, 1))
    y = b.conv(b.add(x, b.constant(F32.type(2))), b.zeros(32, 32, 1, 1))
    z = b.conv(b.add(y, b.constant(np.ones((1, 32, 1, 1), F32))), b.zeros(32, 32, 1, 1))
    layouts = [layout for name, layout in steps(lowered(b.returns(z))) if name == "add"]
    assert layouts == [BLOCKED, PLAIN]


def test_without_a_kernel_that_repacks_all_stays_plain(brings):
    registry.register_layout(tools.blocked_layout())
    brings(
        kernel("relayout", "relayout_f32__paper_none", supports=lambda call: "not today"),
        kernel("relayout", "relayout_any__reference", is_reference=True),
        blocked_kernel("conv2d", ((BLOCKED, PLAIN), (BLOCKED,)), 1e-9),
        kernel("conv2d", "conv2d_f32__paper_plain", cost=seconds(1.0)),
    )
    b = Build()
    y = b.conv(b.input(1, 16, 4, 4), b.zeros(16, 16, 1, 1))
    assert steps(lower.lower(b.returns(y), DEVICE)) == [("conv2d", PLAIN)]


@pytest.mark.parametrize("level", [0, 1])
def test_lower_levels_use_plain_layouts_only(blocked, level):
    blocked()
    b = Build()
    assert {layout for _, layout in steps(lowered(b.returns(chain(b)), level=level))} == {PLAIN}


def test_level_zero_picks_what_eager_execution_picks(blocked):
    blocked()
    b = Build()
    graph = lowered(b.returns(chain(b)), level=0)
    for node in graph.nodes:
        call = selection.call_of(node, 1)
        assert node.kernel is registry.select(call, DEVICE).kernel


def test_winograd_and_irreproducible_kernels_can_be_left_out(brings):
    brings(
        kernel("conv2d", "conv2d_f32__paper_winograd_f43", cost=seconds(1e-9)),
        kernel("conv2d", "conv2d_f32__paper_split", cost=seconds(2e-9), reproducible=False),
        kernel("conv2d", "conv2d_f32__paper_direct", cost=seconds(3e-9)),
    )
    b = Build()
    graph = b.returns(b.conv(b.input(1, 3, 4, 4), b.zeros(3, 3, 3, 3)))

    def chosen(**options):
        return lowered(graph, **options).nodes[0]

    assert chosen().kernel.name.endswith("winograd_f43")
    assert chosen(winograd=False).kernel.name.endswith("split")
    assert ("conv2d_f32__paper_winograd_f43", "Winograd is switched off") in chosen(
        winograd=False
    ).refusals
    assert chosen(winograd=False, policy="reproducible").kernel.name.endswith("direct")


def test_reproducible_programs_choose_no_other_method_at_another_batch(brings):
    """A method that errs more is chosen by cost, so for one batch and not for another."""

    def cost(call):
        return 1e-9 if call.inputs[0].shape[0] > 1 else 1.0

    brings(
        kernel("conv2d", "conv2d_f32__paper_winograd_f43", cost=cost, tolerance=1e-5),
        kernel("conv2d", "conv2d_f32__paper_direct", cost=seconds(3e-9)),
    )
    for batch, name in ((1, "direct"), (2, "winograd_f43")):
        b = Build()
        graph = b.returns(b.conv(b.input(batch, 3, 4, 4), b.zeros(3, 3, 3, 3)))
        assert lowered(graph).nodes[0].kernel.name.endswith(name)
        steady = lowered(graph, policy="reproducible").nodes[0]
        assert steady.kernel.name.endswith("direct")


def test_op_that_no_kernel_serves_is_an_error_with_all_reasons(brings):
    brings(kernel("exp", "exp_f32__paper_picky", supports=lambda call: "too small"))
    b = Build()
    with pytest.raises(
        KernelError, match="exp: no kernel serves .*exp_f32__paper_picky: too small"
    ):
        lower.lower(b.returns(b.exp(b.input(4))), DEVICE)


@given(
    st.lists(
        st.tuples(*[st.integers(1, 20)] * 2, st.sampled_from(["conv", "relu", "softmax"])),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 6),
    st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_labelling_is_near_the_best_of_all(ops, repack, skip):
    """Compare with the cheapest of all labellings of a chain with one skip connection."""
    costs = {}

    def cost_of(layout):
        return lambda call: float(costs[int(call.attrs.groups)][layout])

    registry.register_layout(tools.blocked_layout())
    tools.unregister_paper()
    tools.register_paper(
        Kernel(
            "conv2d_f32__paper_b", "conv2d", tools.never,
            layouts=Layouts((BLOCKED, PLAIN), (BLOCKED,)), cost=cost_of(1),
        ),
        kernel("conv2d", "conv2d_f32__paper_p", cost=cost_of(0)),
        kernel("relu", "relu_f32__f", cost=seconds(1.0), layouts=SAME),
        kernel("add", "add_f32__f", cost=seconds(1.0), layouts=SAME),
        kernel("softmax", "softmax_f32__p", cost=seconds(1.0)),
        kernel("relayout", "relayout_f32__p", cost=seconds(float(repack))),
    )  # fmt: skip
    b = Build()
    x = b.input(1, 64, 2, 2)
    first = None
    for index, (plain_cost, blocked_cost, kind) in enumerate(ops):
        groups = 2**index
        costs[groups] = (plain_cost, blocked_cost)
        if kind == "conv":
            x = b.conv(x, b.zeros(64, 64 // groups, 1, 1), groups=groups)
        else:
            x = b.relu(x) if kind == "relu" else b.softmax(x, axis=1)
        first = first or x
    graph = b.returns(b.add(x, first) if skip and len(ops) > 1 else x)
    labelling, choices = selection.choose(graph, DEVICE, Options())
    best = min(
        selection.Labelling(
            graph, choices, DEVICE, Options(), dict(zip(graph.nodes, picked, strict=True))
        ).total()
        for picked in itertools.product(*(choices[node].items for node in graph.nodes))
    )
    assert labelling.total() <= best * 1.1 + 1e-9
    tools.unregister_paper()
    tools.register_paper()


# explain


def test_explanation_tells_who_runs_each_step_and_who_refused(brings):
    brings(
        kernel("exp", "exp_f32__paper_picky", supports=lambda call: "wants 8 dimensions"),
        kernel("exp", "exp_f32__paper_fussy", supports=lambda call: "wants 8 dimensions"),
        kernel("exp", "exp_f32__paper_native", run=CFunction(1)),
        kernel("sin", "sin_any__reference", is_reference=True),
    )
    b = Build()
    y = b.sin(b.exp(b.input(4, 4)))
    z = b.matmul(y, b.zeros(4, 8), transpose_a=False, transpose_b=False)
    report = explain(program_of(b.returns(z), Options(level=0)))
    assert [step.how for step in report.steps] == ["native", "reference", "callout"]
    assert [step.op for step in report.reference_steps] == ["sin"]
    assert [step.op for step in report.callout_steps] == ["matmul"]
    assert report.native_share == pytest.approx(1 / 3)
    assert report.steps[0].refusals == (
        ("exp_f32__paper_picky", "wants 8 dimensions"),
        ("exp_f32__paper_fussy", "wants 8 dimensions"),
    )
    assert report.steps[2].flops == 2 * 4 * 4 * 8
    assert report.steps[2].nbytes == 4 * (16 + 32 + 32)
    assert report.constant_bytes == 4 * 32
    assert report.arena_size == report.arena_lower_bound
    text = str(report)
    assert "refused: exp_f32__paper_picky, exp_f32__paper_fussy: wants 8 dimensions" in text
    assert "3 steps: 1 native, 1 call-outs, 1 references (33% native)" in text


def test_explanation_shows_layouts(blocked):
    blocked()
    b = Build()
    report = explain(program_of(b.returns(chain(b))))
    first = next(step for step in report.steps if step.op == "conv2d")
    assert first.outputs == ("float32(1, 32, 4, 4):nchw16c",)
    assert first.flops == 2 * 32 * 32 * 16


def test_program_is_printed_with_slots_and_steps(brings):
    b = Build()
    s = b.state(4, name="count")
    y = b.exp(s)
    b.graph.updates = {0: b.add(s, b.input(4))}
    text = format_program(program_of(b.returns(b.reshape(y, shape=(2, 2))), Options(level=0)))
    assert "%1 = state 0 'count' float32(4,)" in text
    assert "%1 = add_any__paper(%1, %0)" in text
    assert "alias %2 float32(4,)" in text
    assert text.endswith("return %2")
