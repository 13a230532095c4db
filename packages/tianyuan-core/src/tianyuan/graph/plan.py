"""Decide where every value of a lowered graph lies, and so turn the graph into a Program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .. import registry
from ..errors import GraphError
from ..kernel import Call, Kernel
from ..op import NoAttrs, TensorSpec
from . import arena, layouts
from .graph import Graph, Node, Value
from .program import ALIAS, ARENA, CONSTANT, INPUT, OUTPUT, STATE, Program, Slot, Step
from .selection import call_of, is_alias

_CACHED = 512 << 10  # bytes of a workspace that a thread's second-level cache keeps


def plan(graph: Graph, threads: int = 1, device: str = "cpu") -> Program:
    """Lay out a lowered graph in memory.

    Reshapes become aliases, results are written straight into outputs and states where that is
    safe, values that die give their memory to in-place kernels and to later values.

    Raises:
        GraphError: where a node has no kernel.
    """
    return _Planner(graph, threads, device).build()


@dataclass(eq=False)
class _Buffer:
    """A piece of memory: bound by the caller, or in the arena while steps start to end run."""

    kind: str
    index: int  # arena: set at the end
    first: Value | None  # the value whose spec the slot shows
    size: int = 0
    start: int = 0
    end: int = 0
    slot: int = -1


@dataclass(eq=False)
class _Copy:
    """A step that only moves data: into an output or a state, or out of harm's way."""

    source: Value | _Buffer
    target: _Buffer
    spec: TensorSpec


@dataclass(eq=False)
class _Use:
    """One read of a value's memory: at which step, as which input."""

    time: int
    node: Node
    index: int


@dataclass(eq=False)
class _Planner:
    graph: Graph
    threads: int
    device: str
    buffers: list[_Buffer] = field(default_factory=list)
    home: dict[Value, _Buffer] = field(default_factory=dict)
    first_copies: list[_Copy] = field(default_factory=list)
    saved: list[_Copy] = field(default_factory=list)
    last_copies: list[_Copy] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.graph
        self.nodes = [node for node in graph.nodes if not is_alias(node)]
        for node in self.nodes:
            if node.kernel is None:
                raise GraphError(
                    f"plan: {node.op.name} has no kernel, got None, expected a lowered graph"
                )
        self.time = {node: index for index, node in enumerate(self.nodes)}
        self.end = len(self.nodes)
        self.last_check = max((self.time[n] for n in self.nodes if _may_fail(n)), default=-1)
        self.origin: dict[Value, Value] = {}
        for node in graph.nodes:
            if is_alias(node):
                self.origin[node.outputs[0]] = self.root(node.inputs[0])
        self.uses: dict[Value, list[_Use]] = {}
        for node in self.nodes:
            for index, value in enumerate(node.inputs):
                use = _Use(self.time[node], node, index)
                self.uses.setdefault(self.root(value), []).append(use)
        self.states = {value: index for index, value in enumerate(graph.states)}
        self.constants = self._number_constants()

    def root(self, value: Value) -> Value:
        """Return the value whose memory a value shares."""
        return self.origin.get(value, value)

    def build(self) -> Program:
        """Place everything and write the program."""
        self._bind_sources()
        self._place_states()
        self._place_outputs()
        self._place_arena()
        workspaces = self._workspaces()
        offsets, size, bound = self._pack(workspaces)
        return _write(self, workspaces, offsets, size, bound)

    def _number_constants(self) -> dict[Value, int]:
        numbers: dict[int, int] = {}
        return {
            value: numbers.setdefault(id(constant), len(numbers))
            for value, constant in self.graph.constants.items()
        }

    def _buffer(self, kind: str, index: int, value: Value | None) -> _Buffer:
        buffer = _Buffer(kind, index, value)
        self.buffers.append(buffer)
        return buffer

    def _bind_sources(self) -> None:
        graph = self.graph
        for index, value in enumerate(graph.inputs):
            self.home[value] = self._buffer(INPUT, index, value)
        for value, index in self.states.items():
            self.home[value] = self._buffer(STATE, index, value)
        for value, index in self.constants.items():
            self.home[value] = self._buffer(CONSTANT, index, value)

    # States: written by the step that makes the new value, where nobody misses the old one.

    def _place_states(self) -> None:
        updates = {
            index: value
            for index, value in self.graph.updates.items()
            if self.root(value) is not self.graph.states[index]
        }
        kept = {self.root(value) for value in updates.values()}  # old values read at the end
        for index, value in updates.items():
            state, root = self.graph.states[index], self.root(value)
            if root not in self.home and state not in kept and self._may_overwrite(state, root):
                self.home[root] = self.home[state]
                continue
            source: Value | _Buffer = value
            if root in self.states and self.states[root] in updates:
                source = self._save(value)
            self.last_copies.append(_Copy(source, self.home[state], value.spec))

    def _may_overwrite(self, state: Value, root: Value) -> bool:
        """Tell whether the step that makes ``root`` may write it over the old state."""
        maker = root.node
        assert maker is not None
        if self.time[maker] < self.last_check:  # a run that fails must leave the state alone
            return False
        for use in self.uses.get(state, ()):
            if use.time > self.time[maker]:
                return False
            if use.time == self.time[maker] and not _in_place(maker, root, use.index):
                return False
        return True

    def _save(self, value: Value) -> _Buffer:
        """Keep an old state that another state takes over while it is overwritten itself."""
        buffer = self._buffer(ARENA, 0, value)
        buffer.size = value.spec.nbytes
        buffer.start, buffer.end = self.end, self.end + 1
        self.saved.append(_Copy(value, buffer, value.spec))
        return buffer

    # Outputs: written by the step that makes them, unless they already lie elsewhere.

    def _place_outputs(self) -> None:
        for index, value in enumerate(self.graph.outputs):
            root = self.root(value)
            output = self._buffer(OUTPUT, index, value)
            if root not in self.home:
                self.home[root] = output
            elif root.node is None:
                self.first_copies.append(_Copy(value, output, value.spec))
            else:
                self.last_copies.append(_Copy(value, output, value.spec))

    # Everything else: in the arena, in place of an input that dies where the kernel allows it.

    def _last_use(self, root: Value) -> int:
        uses = self.uses.get(root, ())
        last = max((use.time for use in uses), default=-1)
        copied = any(
            isinstance(copy.source, Value) and self.root(copy.source) is root
            for copy in self.last_copies
        )
        return self.end + 1 if copied else last

    def _place_arena(self) -> None:
        for node in self.nodes:
            time = self.time[node]
            given: set[_Buffer] = set()
            for value in node.outputs:
                if value in self.home:
                    continue
                last = max(time, self._last_use(value))
                buffer = self._donor(node, value, given)
                if buffer is None:
                    buffer = self._buffer(ARENA, 0, value)
                    buffer.start = time
                    buffer.size = layouts.physical_bytes(value.spec, value.layout)
                given.add(buffer)
                buffer.end = last
                self.home[value] = buffer

    def _donor(self, node: Node, value: Value, given: set[_Buffer]) -> _Buffer | None:
        """Return the memory of an input that dies at this step and may hold an output."""
        time = self.time[node]
        for output, index in _kernel(node).inplace:
            if output != value.index or index >= len(node.inputs):
                continue
            root = self.root(node.inputs[index])
            buffer = self.home[root]
            if buffer.kind != ARENA or buffer in given or buffer.end != time:
                continue
            readers = [use.index for use in self.uses[root] if use.time == time]
            if all(_in_place(node, value, reader) for reader in readers):
                return buffer
        return None

    def _workspaces(self) -> dict[Node, _Buffer]:
        found = {}
        for node in self.nodes:
            size = _kernel(node).workspace(call_of(node, self.threads))
            if size:
                time = self.time[node]
                found[node] = _Buffer(ARENA, 0, None, size, time, time)
        return found

    def _pack(self, workspaces: dict[Node, _Buffer]) -> tuple[dict[_Buffer, int], int, int]:
        """Place tensors and workspaces.

        Small workspaces of several threads have memory of their own: where one lay on tensors, each
        thread would write what another core had read or written before.
        """
        most = self.threads * _CACHED if self.threads > 1 else 0
        apart = [b for b in workspaces.values() if b.size <= most]
        held = [buffer for buffer in self.buffers if buffer.kind == ARENA]
        held += [b for b in workspaces.values() if b.size > most]
        intervals = [arena.Interval(b.size, b.start, b.end) for b in (*held, *apart)]
        offsets, size = arena.place(intervals[: len(held)])
        if apart:
            size = arena.aligned(size)
            offsets += [size] * len(apart)
            size += max(b.size for b in apart)
        offset_of = dict(zip((*held, *apart), offsets, strict=True))
        return offset_of, size, arena.lower_bound(intervals)


def _may_fail(node: Node) -> bool:
    """Tell whether a step looks at its data and may refuse it, before it writes anything."""
    return node.op.family == "indexing"


def _kernel(node: Node) -> Kernel:
    """Return a node's kernel, which the planner has checked to be there."""
    assert node.kernel is not None
    return node.kernel


def _in_place(node: Node, output: Value, index: int) -> bool:
    """Tell whether a kernel may write an output over one of its inputs."""
    source = node.inputs[index]
    return (
        (output.index, index) in _kernel(node).inplace
        and source.spec.shape == output.spec.shape
        and source.spec.dtype == output.spec.dtype
        and source.layout == output.layout
    )


class _Slots:
    """Numbers the slots: one per buffer, and one per value that sees it under another shape."""

    def __init__(self, planner: _Planner, offsets: dict[_Buffer, int]) -> None:
        self.planner = planner
        self.slots: list[Slot] = []
        self.aliases: dict[tuple[int, TensorSpec, str], int] = {}
        for buffer in planner.buffers:
            assert buffer.first is not None
            buffer.slot = len(self.slots)
            index = offsets[buffer] if buffer.kind == ARENA else buffer.index
            self.slots.append(_slot(buffer.kind, index, buffer.first))

    def of(self, value: Value) -> int:
        """Return the slot of a value."""
        base = self.planner.home[self.planner.root(value)].slot
        root = self.slots[base]
        if (root.spec, root.layout) == (value.spec, value.layout):
            return base
        key = (base, value.spec, value.layout)
        if key not in self.aliases:
            self.aliases[key] = len(self.slots)
            self.slots.append(_slot(ALIAS, base, value))
        return self.aliases[key]


def _slot(kind: str, index: int, value: Value) -> Slot:
    extents = layouts.extents(value.spec.shape, value.layout)
    return Slot(kind, index, value.spec, value.layout, extents, value.name)


def _copy_kernel(spec: TensorSpec, device: str, threads: int) -> Kernel:
    call = Call(registry.get_op("copy"), (spec,), (spec,), NoAttrs(), threads)
    return registry.select(call, device).kernel


def _write(
    planner: _Planner,
    workspaces: dict[Node, _Buffer],
    offsets: dict[_Buffer, int],
    size: int,
    bound: int,
) -> Program:
    slots = _Slots(planner, offsets)
    graph = planner.graph

    def copies(wanted: Iterable[_Copy]) -> Iterable[Step]:
        for copy in wanted:
            source = copy.source.slot if isinstance(copy.source, _Buffer) else slots.of(copy.source)
            kernel = _copy_kernel(copy.spec, planner.device, planner.threads)
            op = registry.get_op("copy")
            yield Step(kernel, op, NoAttrs(), (source,), (copy.target.slot,))

    steps = list(copies(planner.first_copies))
    for node in planner.nodes:
        workspace = workspaces.get(node)
        steps.append(
            Step(
                _kernel(node),
                node.op,
                node.attrs,
                tuple(slots.of(value) for value in node.inputs),
                tuple(slots.of(value) for value in node.outputs),
                offsets[workspace] if workspace else 0,
                workspace.size if workspace else 0,
                node.origin,
                node.refusals,
            )
        )
    steps += copies(planner.saved)
    steps += copies(planner.last_copies)
    by_kind = {(b.kind, b.index): b.slot for b in planner.buffers if b.kind != ARENA}
    arrays = {planner.constants[value]: c.array for value, c in graph.constants.items()}
    return Program(
        slots=tuple(slots.slots),
        steps=tuple(steps),
        inputs=tuple(by_kind[INPUT, i] for i in range(len(graph.inputs))),
        outputs=tuple(by_kind[OUTPUT, i] for i in range(len(graph.outputs))),
        states=tuple(by_kind[STATE, i] for i in range(len(graph.states))),
        constants=tuple(arrays[i] for i in range(len(arrays))),
        arena_size=size,
        arena_lower_bound=bound,
        threads=planner.threads,
        device=planner.device,
    )
