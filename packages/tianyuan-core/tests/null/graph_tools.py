"""Build graphs and check programs without running anything: kernels here are names only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tianyuan import ops, registry
from tianyuan.graph import lower, plan
from tianyuan.graph.graph import Graph, Value
from tianyuan.graph.options import Options
from tianyuan.graph.program import ALIAS, ARENA, Program
from tianyuan.kernel import PLAIN, Kernel, Layout, Layouts
from tianyuan.op import TensorSpec

ops.register_all()
DEVICE = "paper"
F32 = np.dtype("float32")


def never(ctx, inputs, outputs, attrs, workspace):
    raise AssertionError("nothing executes in these tests")


def paper_kernel(op, **changes):
    """Return a kernel that exists on paper only, in place where elementwise."""
    inplace = ((0, 0), (0, 1)) if op.family == "elementwise" else ()
    fields = {"name": f"{op.name}_any__paper", "op": op.name, "run": never, "inplace": inplace}
    return Kernel(**{**fields, **changes})


def register_paper(*first):
    """Register the kernels given, and a paper kernel for every op that they do not serve."""
    served = {kernel.op for kernel in first}
    rest = [paper_kernel(op) for op in registry.all_ops() if op.name not in served]
    registry.register_kernels("paper", DEVICE, [*first, *rest])


def unregister_paper():
    """Take the paper kernels back."""
    registry.unregister("paper")


def blocked_layout(name="nchw16c", block=16):
    """Return the layout that splits channels into blocks."""

    def extents(shape):
        n, c, h, w = shape
        return (n, -(-c // block), h, w, block)

    def pack(array):
        n, c, h, w = array.shape
        blocks = -(-c // block)
        padded = np.zeros((n, blocks * block, h, w), array.dtype)
        padded[:, :c] = array
        return np.ascontiguousarray(padded.reshape(n, blocks, block, h, w).transpose(0, 1, 3, 4, 2))

    def unpack(array, shape):
        n, c, h, w = shape
        return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c])

    return Layout(name, 4, extents, pack, unpack)


def blocked_kernel(op, layouts, cost, **changes):
    """Return a paper kernel that works on blocked layouts, with a cost in seconds."""
    name = f"{op}_f32__paper_blocked"
    return Kernel(name, op, never, layouts=Layouts(*layouts), cost=lambda call: cost, **changes)


@dataclass
class Build:
    """Writes graphs shortly: ``b.add(x, y)``, ``b.conv2d(x, w, stride=(1, 1), ...)``."""

    graph: Graph = field(default_factory=Graph)

    def input(self, *shape, dtype=F32, name="x") -> Value:
        return self.graph.add_input(TensorSpec(shape, np.dtype(dtype)), name)

    def state(self, *shape, dtype=F32, name="s") -> Value:
        return self.graph.add_state(TensorSpec(shape, np.dtype(dtype)), name)

    def constant(self, array, name="c") -> Value:
        return self.graph.add_constant(np.asarray(array), name)

    def zeros(self, *shape, name="w") -> Value:
        return self.constant(np.zeros(shape, F32), name)

    def op(self, name, *inputs, **attrs):
        op = registry.get_op(name)
        outputs = self.graph.add_node(op, inputs, op.attrs(**attrs), f"test.py:{len(inputs)}")
        return outputs[0] if len(outputs) == 1 else outputs

    def __getattr__(self, name):
        return lambda *inputs, **attrs: self.op(name, *inputs, **attrs)

    def conv(self, x, w, stride=1, padding=0, groups=1):
        return self.op(
            "conv2d", x, w, stride=(stride,) * 2, padding=(padding,) * 4, dilation=(1, 1),
            groups=groups,
        )  # fmt: skip

    def returns(self, *values) -> Graph:
        self.graph.outputs = list(values)
        return self.graph


def program_of(graph, options=None) -> Program:
    """Lower and plan a graph for the paper device."""
    return plan.plan(lower.lower(graph, DEVICE, options or Options()), 1, DEVICE)


# An oracle for memory plans: run the program on tokens instead of numbers. A token says how a value
# came about, so a plan that clobbers a value ends with a token that the graph does not give.


def graph_tokens(graph):
    """Return the tokens of outputs and of updated states that a graph means."""
    tokens = {v: ("input", i) for i, v in enumerate(graph.inputs)}
    tokens |= {v: ("state", i) for i, v in enumerate(graph.states)}
    tokens |= {
        v: ("constant", c.array.tobytes(), c.array.shape) for v, c in graph.constants.items()
    }
    for node in graph.nodes:
        given = tuple(tokens[v] for v in node.inputs)
        for index, value in enumerate(node.outputs):
            tokens[value] = token_of(node.op.name, node.attrs, given, index)
    states = [tokens[graph.updates.get(i, v)] for i, v in enumerate(graph.states)]
    return [tokens[v] for v in graph.outputs], states


def token_of(op, attrs, given, index):
    """Return the token of one output; what only moves bytes keeps its input's."""
    return given[0] if op in ("copy", "reshape") else (op, str(attrs), given, index)


class Memory:
    """The caller's arrays and the arena, holding tokens."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.bound = {}
        self.arena = {}  # (start, end) -> token
        self.empty = {}  # slot of no bytes -> token

    def place(self, index):
        slot = self.program.slots[index]
        root = self.program.root(index)
        if slot.kind == ALIAS:
            assert slot.nbytes == root.nbytes
        return root

    def read(self, index):
        slot = self.place(index)
        if slot.kind != ARENA:
            return self.bound[slot.kind, slot.index]
        if slot.nbytes == 0:
            return self.empty[index]
        return self.arena[slot.index, slot.index + slot.nbytes]

    def write(self, index, token):
        slot = self.place(index)
        if slot.kind != ARENA:
            assert slot.kind in ("output", "state"), "inputs and constants are never written"
            self.bound[slot.kind, slot.index] = token
            return
        assert slot.index % 64 == 0
        if slot.nbytes == 0:
            self.empty[index] = token
            return
        self.clobber(slot.index, slot.index + slot.nbytes)
        self.arena[slot.index, slot.index + slot.nbytes] = token

    def clobber(self, start, end):
        assert 0 <= start <= end <= self.program.arena_size
        for low, high in list(self.arena):
            if low < end and start < high:
                del self.arena[low, high]

    def overlap(self, a, b):
        a, b = self.place(a), self.place(b)
        if a.kind != ARENA or b.kind != ARENA:
            return (a.kind, a.index) == (b.kind, b.index)
        return a.index < b.index + b.nbytes and b.index < a.index + a.nbytes


def check_step(memory: Memory, step):
    """Assert that a step's outputs and scratch share memory only where the kernel allows."""
    program = memory.program
    for position, out in enumerate(step.outputs):
        for other in step.outputs[position + 1 :]:
            assert not memory.overlap(out, other)
        for index, given in enumerate(step.inputs):
            if memory.overlap(out, given):
                assert (position, index) in step.kernel.inplace
                specs = program.slots[out].spec, program.slots[given].spec
                assert specs[0] == specs[1]
    if step.workspace_size:
        low, high = step.workspace_offset, step.workspace_offset + step.workspace_size
        assert low % 64 == 0
        for index in (*step.inputs, *step.outputs):
            slot = memory.place(index)
            if slot.kind == ARENA:
                assert slot.index + slot.nbytes <= low or high <= slot.index


def program_tokens(program: Program):
    """Return the tokens that outputs and states hold after a run of a program."""
    memory = Memory(program)
    for index in range(len(program.inputs)):
        memory.bound["input", index] = ("input", index)
    for index in range(len(program.states)):
        memory.bound["state", index] = ("state", index)
    for index, array in enumerate(program.constants):
        memory.bound["constant", index] = ("constant", array.tobytes(), array.shape)
    for step in program.steps:
        given = tuple(memory.read(i) for i in step.inputs)
        check_step(memory, step)
        if step.workspace_size:
            memory.clobber(step.workspace_offset, step.workspace_offset + step.workspace_size)
        for index, out in enumerate(step.outputs):
            memory.write(out, token_of(step.op.name, step.attrs, given, index))
    return [memory.read(i) for i in program.outputs], [memory.read(i) for i in program.states]


def assert_plan(graph, options=None) -> Program:
    """Assert that the program of a graph computes what the graph means, and return it."""
    lowered = lower.lower(graph, DEVICE, options or Options(level=0))
    program = plan.plan(lowered, 1, DEVICE)
    assert program_tokens(program) == graph_tokens(lowered)
    for index, slot in enumerate(program.outputs):
        assert (program.slots[slot].kind, program.slots[slot].index) == ("output", index)
        assert program.slots[slot].layout == PLAIN
    assert program.arena_size >= program.arena_lower_bound
    return program
