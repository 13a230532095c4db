"""Memory plans, checked by running programs on tokens that tell how each value came about."""

from __future__ import annotations

import graph_tools as tools
import pytest
from graph_tools import F32, Build, assert_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from tianyuan import registry
from tianyuan.errors import GraphError
from tianyuan.graph import arena, plan

pytestmark = pytest.mark.usefixtures("paper")


def kinds(program):
    return [program.root(i).kind for step in program.steps for i in step.outputs]


def test_chain_writes_last_value_into_the_output_and_reuses_memory():
    b = Build()
    x = b.input(8, 32)
    y = b.exp(b.sin(b.exp(x)))
    program = assert_plan(b.returns(b.tanh(y)))
    assert kinds(program) == ["arena", "arena", "arena", "output"]
    assert program.arena_size == 8 * 32 * 4  # each step writes over the one before


def test_value_that_is_read_later_is_not_overwritten():
    b = Build()
    x = b.input(64)
    y = b.exp(x)
    z = b.sin(y)
    program = assert_plan(b.returns(b.add(b.cos(z), y)))
    assert program.arena_lower_bound == 2 * 256


def test_kernel_that_reads_one_value_twice_needs_both_pairs(brings):
    b = Build()
    y = b.exp(b.input(64))
    program = assert_plan(b.returns(b.exp(b.mul(y, y))))
    assert program.arena_size == 256  # (0, 0) and (0, 1) are both allowed
    brings(tools.paper_kernel(registry.get_op("mul"), inplace=((0, 0),)))
    assert assert_plan(b.graph).arena_size == 512


def test_broadcast_input_gives_no_memory_to_a_larger_output():
    b = Build()
    y = b.exp(b.input(1, 16))
    program = assert_plan(b.returns(b.exp(b.add(y, b.input(4, 16, name="z")))))
    assert program.arena_size == 64 + 256


def test_reshape_is_an_alias_without_a_step():
    b = Build()
    y = b.exp(b.input(4, 6))
    z = b.reshape(b.reshape(y, shape=(24,)), shape=(2, 12))
    program = assert_plan(b.returns(b.exp(z)))
    assert [step.op.name for step in program.steps] == ["exp", "exp"]
    assert program.arena_size == 128


def test_output_that_is_a_reshape_is_written_by_the_step_before():
    b = Build()
    program = assert_plan(b.returns(b.reshape(b.exp(b.input(4, 6)), shape=(24,))))
    assert len(program.steps) == 1
    assert program.slots[program.outputs[0]].spec.shape == (24,)


@pytest.mark.parametrize("case", ["input", "constant", "state", "reshaped", "twice", "two_shapes"])
def test_outputs_that_need_a_copy(case):
    b = Build()
    x, s = b.input(4, 4), b.state(4, 4)
    y = b.exp(x)
    values = {
        "input": [x],
        "constant": [b.zeros(4, 4)],
        "state": [s],
        "reshaped": [b.reshape(x, shape=(16,))],
        "twice": [y, y],
        "two_shapes": [y, b.reshape(y, shape=(16,))],
    }[case]
    program = assert_plan(b.returns(*values))
    assert [step.op.name for step in program.steps].count("copy") == 1


def test_state_is_updated_in_place_by_the_step_that_makes_it():
    b = Build()
    s, x = b.state(4, 4), b.input(4, 4)
    new = b.add(s, x)
    b.graph.updates = {0: new}
    program = assert_plan(b.returns(b.exp(new)))
    assert [step.op.name for step in program.steps] == ["add", "exp"]
    assert program.root(program.steps[0].outputs[0]).kind == "state"
    assert program.mutates


def test_old_state_that_is_read_later_is_kept_until_then():
    b = Build()
    s, x = b.state(4, 4), b.input(4, 4)
    b.graph.updates = {0: b.exp(x)}
    program = assert_plan(b.returns(b.add(s, b.sin(x))))
    assert program.steps[-1].op.name == "copy"


def test_kernel_that_may_not_work_in_place_does_not_write_over_its_state():
    b = Build()
    s = b.state(4, 4)
    b.graph.updates = {0: b.transpose(s, perm=(1, 0))}
    program = assert_plan(b.returns())
    assert [step.op.name for step in program.steps] == ["transpose", "copy"]


def test_swapped_states():
    b = Build()
    first, second = b.state(4), b.state(4)
    b.graph.updates = {0: second, 1: first}
    assert_plan(b.returns())


def test_states_that_rotate_while_one_is_computed():
    b = Build()
    states = [b.state(4) for _ in range(3)]
    b.graph.updates = {0: states[1], 1: b.reshape(states[2], shape=(4,)), 2: b.exp(states[0])}
    assert_plan(b.returns(states[0], b.exp(states[2])))


def test_one_value_updates_two_states_and_is_returned():
    b = Build()
    states = [b.state(4), b.state(4)]
    new = b.exp(states[0])
    b.graph.updates = {0: new, 1: new}
    assert_plan(b.returns(new, states[1]))


def test_state_whose_update_is_itself_needs_no_step():
    b = Build()
    s = b.state(4)
    b.graph.updates = {0: b.reshape(b.reshape(s, shape=(2, 2)), shape=(4,))}
    program = assert_plan(b.returns())
    assert program.steps == ()
    assert not program.mutates


def test_update_from_input_and_constant():
    b = Build()
    b.state(4), b.state(4)
    b.graph.updates = {0: b.input(4), 1: b.zeros(4)}
    program = assert_plan(b.returns())
    assert [step.op.name for step in program.steps] == ["copy", "copy"]


def test_optimiser_step_writes_parameter_and_momentum_over_the_old_ones(brings):
    brings(tools.paper_kernel(registry.get_op("sgd_update"), inplace=((0, 0), (1, 3))))
    b = Build()
    param, velocity = b.state(8), b.state(8)
    lr, x = b.input(name="lr"), b.input(8)
    new = b.sgd_update(
        param, b.mul(param, x), lr, velocity, momentum=0.9, weight_decay=0.0, nesterov=False
    )
    b.graph.updates = {0: new[0], 1: new[1]}
    program = assert_plan(b.returns())
    assert [step.op.name for step in program.steps] == ["mul", "sgd_update"]
    assert kinds(program)[1:] == ["state", "state"]


def test_workspace_is_part_of_the_plan(brings):
    brings(tools.paper_kernel(registry.get_op("exp"), workspace=lambda call: 1000))
    b = Build()
    y = b.exp(b.sin(b.input(64)))
    program = assert_plan(b.returns(b.add(y, y)))
    assert [step.workspace_size for step in program.steps] == [0, 1000, 0]
    assert program.arena_size == 256 + 1024


@pytest.mark.parametrize(("size", "apart"), [(1000, True), (2 << 20, False)])
def test_small_workspaces_of_threads_lie_behind_tensors(brings, size, apart):
    brings(tools.paper_kernel(registry.get_op("exp"), workspace=lambda call: size))
    b = Build()
    x = b.sin(b.input(1 << 20))
    total = b.sum(x, axes=(0,), keepdims=True)  # behind which the four MiB of x are free
    graph = b.returns(b.exp(b.sin(b.exp(total))))
    lowered = tools.lower.lower(graph, tools.DEVICE, tools.Options(level=0))
    several = plan.plan(lowered, 2, tools.DEVICE)
    starts = [step.workspace_offset for step in several.steps if step.workspace_size]
    tensors = [slot.index + slot.nbytes for slot in several.slots if slot.kind == "arena"]
    assert len(starts) == 2
    assert (min(starts) >= max(tensors)) == apart
    assert starts[0] == starts[1] or not apart
    assert several.arena_size - max(tensors) <= 64 + (1000 if apart else 0)


def test_outputs_that_nobody_reads_still_have_memory():
    b = Build()
    values, indices = b.sort(b.input(4, 4), axis=1, descending=False)
    program = assert_plan(b.returns(values))
    assert program.arena_size == 64
    assert program.slots[program.steps[0].outputs[1]].spec.dtype.name == "int32"


def test_constants_that_are_one_are_bound_once():
    b = Build()
    w = b.zeros(4)
    again = b.graph.add_constant(b.graph.constants[w])
    program = assert_plan(b.returns(b.add(b.add(b.input(4), w), again)))
    assert len(program.constants) == 1


def test_zero_size_values():
    b = Build()
    x = b.input(0, 4)
    program = assert_plan(b.returns(b.exp(b.exp(x)), x))
    assert program.arena_size == 0


def test_graph_that_was_not_lowered_is_refused():
    b = Build()
    with pytest.raises(GraphError, match="exp has no kernel, got None, expected a lowered graph"):
        plan.plan(b.returns(b.exp(b.exp(b.input(4)))))


def resnet50(b, size=64):
    """Return the logits of ResNet-50's graph: 53 convolutions with residual additions."""

    def conv(x, channels, kernel, stride=1, relu=True, residual=None):
        w = b.graph.add_constant(
            weights.setdefault(
                (channels, x.spec.shape[1], kernel),
                tools.np.zeros((channels, x.spec.shape[1], kernel, kernel), F32),
            )
        )
        y = b.conv(x, w, stride, kernel // 2)
        y = y if residual is None else b.add(y, residual)
        return b.relu(y) if relu else y

    weights = {}
    x = conv(b.input(1, 3, size, size), 64, 7, 2)
    x = b.max_pool2d(x, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            step = stride if index == 0 else 1
            y = conv(conv(x, width, 1), width, 3, step)
            skip = conv(x, width * 4, 1, step, relu=False) if index == 0 else x
            x = conv(y, width * 4, 1, residual=skip)
    x = b.reshape(b.mean(x, axes=(2, 3), keepdims=False), shape=(1, 2048))
    return b.matmul(x, b.zeros(2048, 10), transpose_a=False, transpose_b=False)


@pytest.mark.parametrize("level", [0, 2])
def test_arena_of_a_residual_network_is_near_its_lower_bound(level):
    b = Build()
    graph = b.returns(resnet50(b))
    assert sum(node.op.name == "conv2d" for node in graph.nodes) == 53
    if level:
        graph = tools.lower.passes.optimise(graph)
    program = assert_plan(graph, tools.Options(level=level))
    assert program.arena_size <= 1.05 * program.arena_lower_bound
    total = sum(slot.nbytes for slot in program.slots if slot.kind == "arena")
    assert program.arena_size < total / 5


intervals = st.builds(
    lambda size, start, span: arena.Interval(size, start, start + span),
    st.integers(0, 4000), st.integers(0, 20), st.integers(0, 8),
)  # fmt: skip


@given(st.lists(intervals, max_size=25))
@settings(max_examples=150, deadline=None)
def test_buffers_that_live_together_never_overlap(items):
    offsets, size = arena.place(items)
    for i, (a, low) in enumerate(zip(items, offsets, strict=True)):
        assert low % 64 == 0
        assert low + a.size <= size
        for b, other in list(zip(items, offsets, strict=True))[i + 1 :]:
            if a.start <= b.end and b.start <= a.end and a.size and b.size:
                assert low + a.size <= other or other + b.size <= low
    live = [
        sum(-(-x.size // 64) * 64 for x in items if x.start <= step <= x.end) for step in range(40)
    ]
    assert arena.lower_bound(items) == max(live, default=0) <= size


@st.composite
def programs(draw):
    """Draw a graph of reshapes, in-place ops, several outputs and state updates."""
    b = Build()
    shapes = [(4, 6), (24,), (2, 12)]
    values = [b.input(*draw(st.sampled_from(shapes))) for _ in range(2)]
    states = [b.state(*draw(st.sampled_from(shapes))) for _ in range(draw(st.integers(0, 3)))]
    values += [*states, b.zeros(4, 6)]
    for _ in range(draw(st.integers(1, 14))):
        x = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["exp", "add", "reshape", "sort", "transpose"]))
        if kind == "reshape":
            values.append(b.reshape(x, shape=draw(st.sampled_from(shapes))))
        elif kind == "add":
            y = draw(st.sampled_from(values))
            values.append(b.add(x, b.reshape(y, shape=x.spec.shape)))
        elif kind == "sort":
            values.append(b.sort(x, axis=0, descending=False)[0])
        elif kind == "transpose" and x.spec.ndim == 2:
            swapped = b.transpose(x, perm=(1, 0))
            values.append(b.reshape(swapped, shape=x.spec.shape))
        else:
            values.append(b.exp(x))
    for index, state in enumerate(states):
        if draw(st.booleans()):
            new = draw(st.sampled_from(values))
            b.graph.updates[index] = b.reshape(new, shape=state.spec.shape)
    return b.returns(*(draw(st.sampled_from(values)) for _ in range(draw(st.integers(0, 4)))))


@given(programs())
@settings(max_examples=300, deadline=None)
def test_any_graph_is_planned_rightly(graph):
    assert_plan(graph)


def test_run_that_may_fail_leaves_states_alone_until_it_has_not():
    b = Build()
    s, x, i = b.state(4), b.input(4), b.input(2, dtype="int64", name="i")
    new = b.add(s, x)
    b.graph.updates = {0: new}
    program = assert_plan(b.returns(b.take(b.exp(x), i, axis=0)))
    ops = [step.op.name for step in program.steps]
    written = [k for k, kind in enumerate(kinds(program)) if kind == "state"]
    assert written
    assert min(written) > ops.index("take")


@pytest.mark.parametrize("read", [0, 1])
def test_two_results_do_not_take_the_memory_of_one_operand(brings, read):
    """Also where nobody reads one of them, so that its memory is free again at once."""
    brings(tools.paper_kernel(registry.get_op("sgd_update"), inplace=((0, 0), (1, 0))))
    b = Build()
    p, g, lr, v = b.exp(b.input(64)), b.input(64), b.input(), b.input(64)
    results = b.sgd_update(p, g, lr, v, momentum=0.5, weight_decay=0.0, nesterov=False)
    program = assert_plan(b.returns(b.exp(results[read])))
    assert program.arena_size == 512
