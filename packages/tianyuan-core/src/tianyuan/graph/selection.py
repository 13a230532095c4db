"""Choose a kernel and layouts for every node of a graph, by the cost of kernels and repacking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf

from .. import registry
from ..errors import KernelError
from ..kernel import FULL, PLAIN, SAME, Call, Kernel
from ..op import TensorSpec
from ..records import record
from . import layouts, profiling
from .graph import Graph, Node, Value
from .options import PROFILE, REPRODUCIBLE, Options

MAX_SWEEPS = 16
# Seconds that a Python kernel costs among native ones: it takes the interpreter's lock, which
# others may hold.
CALLOUT = 1e-4
LAST_RESORT = 1e3  # a reference serves only where nothing else does


@record()
class Choice:
    """One way to run one node: a kernel with a layout for each input and output."""

    kernel: Kernel | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cost: float

    @property
    def is_plain(self) -> bool:
        return all(name == PLAIN for name in (*self.inputs, *self.outputs))


@record()
class Choices:
    """All ways to run one node, cheapest first, and who refused with what reason."""

    items: tuple[Choice, ...]
    refusals: tuple[tuple[str, str], ...]


def is_alias(node: Node) -> bool:
    """Tell whether a node costs nothing, because its output is its input under another shape."""
    return node.op.name == "reshape"


def call_of(node: Node, threads: int) -> Call:
    """Return what kernels are asked about a node."""
    inputs = tuple(value.spec for value in node.inputs)
    outputs = tuple(value.spec for value in node.outputs)
    return Call(node.op, inputs, outputs, node.attrs, threads)


def _policy_refusal(kernel: Kernel, options: Options) -> str | None:
    if options.policy == REPRODUCIBLE and not kernel.reproducible:
        return "not reproducible, which the policy asks for"
    if options.policy == REPRODUCIBLE and kernel.precision == FULL and kernel.tolerance is not None:
        # Whether it is worth its error is weighed by costs, which know threads and batch.
        return "errs in its own way and serves some batches or thread counts only"
    if not options.winograd and "winograd" in kernel.name:
        return "Winograd is switched off"
    if kernel.precision not in (FULL, options.precision):
        return f"computes in {kernel.precision}, which the precision does not permit"
    return None


@lru_cache(1024)
def _permitted(
    op: str,
    device: str,
    backend: str | None,
    generation: int,
    options: Options,
    layouts: frozenset[str] | None = None,
) -> tuple[tuple[Kernel, ...], tuple[tuple[str, str], ...]]:
    """Return an op's kernels that the options permit, and the refusals of the others."""
    kept, refused = [], []
    for kernel in registry.candidates(op, device, backend, layouts):
        reason = _policy_refusal(kernel, options)
        if reason is None:
            kept.append(kernel)
        else:
            refused.append((kernel.name, reason))
    return tuple(kept), tuple(refused)


def allowed(
    call: Call, device: str, options: Options
) -> tuple[dict[Kernel, float], list[tuple[str, str]]]:
    """Return the kernels that serve a call under the options, as ``registry.supporting`` does."""
    chosen = registry.chosen_backend()
    kept, barred = _permitted(call.op.name, device, chosen, registry.generation, options)
    served, refused = registry.supporting(call, device, kept)
    return served, [*refused, *barred]


def cost_of(
    kernel: Kernel,
    seconds: float,
    call: Call,
    inputs: Sequence[str],
    outputs: Sequence[str],
    options: Options,
) -> float:
    """Return the seconds that the policy counts for a kernel that estimates its own."""
    if kernel.is_reference:
        return seconds * LAST_RESORT
    if options.policy == PROFILE:
        return profiling.seconds(kernel, call, inputs, outputs)
    return seconds


def choices_of(
    node: Node,
    device: str,
    options: Options,
    known: Iterable[str] = (),
    constants: Container[Value] = (),
) -> Choices:
    """List the ways to run a node; ``known`` are the layouts that flat kernels may adapt to.

    Of ways that differ in nothing but the layouts of constants, which are packed once, the cheapest
    stands for all.

    Raises:
        KernelError: where no kernel serves it in plain layouts.
    """
    plain_in, plain_out = (PLAIN,) * len(node.inputs), (PLAIN,) * len(node.outputs)
    if is_alias(node):
        return Choices((Choice(None, plain_in, plain_out, 0.0),), ())
    call = call_of(node, options.threads)
    served, refused = allowed(call, device, options)
    # At level 0 the choice is eager execution's, which pays no call-out.
    native = options.level > 0 and any(kernel.is_native for kernel in served)
    if native and options.policy == PROFILE and any(k.is_native and _is_plain(k) for k in served):
        # Measured alone, a Python kernel may use more threads than the program has.
        refused += [(k.name, "not native, so not measured") for k in served if not k.is_native]
        served = {kernel: cost for kernel, cost in served.items() if kernel.is_native}
    items: list[Choice] = []
    for kernel, seconds in served.items():
        declared = (*kernel.layouts.inputs, *kernel.layouts.outputs)
        for name in (PLAIN, *known) if SAME in declared else (PLAIN,):
            found = _layouts_for(call, kernel, name)
            if found is None:
                continue
            if options.level >= 2 or {*found[0], *found[1]} <= {PLAIN}:
                cost = cost_of(kernel, seconds, call, *found, options)
                cost += CALLOUT if native and not kernel.is_native else 0.0
                items.append(Choice(kernel, *found, cost))
    if not any(choice.is_plain for choice in items):
        reasons = "; ".join(f"{name}: {why}" for name, why in refused) or "no kernel is known"
        inputs = ", ".join(str(spec) for spec in call.inputs)
        raise KernelError(
            f"{node.op.name}: no kernel serves ({inputs}) in plain layouts on {device}: "
            f"got {reasons}, expected one that accepts"
        )
    items.sort(key=lambda c: (bool(c.kernel and c.kernel.is_reference), c.cost))
    varying = [index for index, value in enumerate(node.inputs) if value not in constants]
    cheapest: dict[object, Choice] = {}
    for choice in items:
        cheapest.setdefault((*(choice.inputs[i] for i in varying), choice.outputs), choice)
    return Choices(tuple(cheapest.values()), tuple(refused))


def _is_plain(kernel: Kernel) -> bool:
    return {*kernel.layouts.inputs, *kernel.layouts.outputs} <= {PLAIN, SAME}


def _layouts_for(
    call: Call, kernel: Kernel, name: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Fill in ``name`` for SAME; None where a layout does not fit its value."""
    declared = kernel.layouts
    inputs = [declared.of_input(i) for i in range(len(call.inputs))]
    outputs = [declared.of_output(i) for i in range(len(call.outputs))]
    if SAME in inputs or SAME in outputs:
        adapted = layouts.same_layouts(call, name)
        if adapted is None:
            return None
        inputs = [a if d == SAME else d for a, d in zip(adapted, inputs, strict=True)]
        outputs = [name if d == SAME else d for d in outputs]
    specs = (*call.inputs, *call.outputs)
    if not all(map(layouts.fits, specs, (*inputs, *outputs))):
        return None
    return tuple(inputs), tuple(outputs)


@dataclass
class Labelling:
    """A choice per node, with the costs of repacking that follow from it."""

    graph: Graph
    choices: dict[Node, Choices]
    device: str
    options: Options
    picked: dict[Node, Choice] = field(default_factory=dict)
    _readers: dict[Value, list[tuple[Node, int]]] = field(default_factory=dict)
    _repack: dict[tuple[Value, str, str], float] = field(default_factory=dict)
    _by_spec: dict[tuple[TensorSpec, str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            for index, value in enumerate(node.inputs):
                self._readers.setdefault(value, []).append((node, index))
        self._roots = set(self.graph.roots())

    def layout_of(self, value: Value) -> str:
        """Return the layout in which a value is made."""
        if value.node is None:
            return PLAIN
        return self.picked[value.node].outputs[value.index]

    def wanted(self, value: Value, made: str) -> set[str]:
        """Return the layouts beside the one it is made in in which a value is read."""
        picked = self.picked
        found = {picked[node].inputs[index] for node, index in self._readers.get(value, ())}
        if value in self._roots:
            found.add(PLAIN)
        found.discard(made)
        return found

    def repacking(self, value: Value) -> float:
        """Return the seconds spent on bringing a value into the layouts it is read in."""
        if value in self.graph.constants:
            return 0.0
        made = self.layout_of(value)
        readers = self._readers.get(value, ())
        if len(readers) == 1 and value not in self._roots:  # as most are
            node, index = readers[0]
            layout = self.picked[node].inputs[index]
            return 0.0 if layout == made else self._repack_cost(value, made, layout)
        wanted = self.wanted(value, made)
        return sum(self._repack_cost(value, made, layout) for layout in wanted)

    def _repack_cost(self, value: Value, source: str, target: str) -> float:
        key = (value, source, target)
        if key not in self._repack:
            general = (value.spec, source, target)
            if general not in self._by_spec:
                self._by_spec[general] = self._ask_repack_cost(*general)
            self._repack[key] = self._by_spec[general]
        return self._repack[key]

    def _ask_repack_cost(self, spec: TensorSpec, source: str, target: str) -> float:
        served = _serving(spec, source, target, self.device, self.options)
        if not served:
            return inf
        kernel, seconds = next(iter(served.items()))
        call = relayout_call(spec, source, target, self.options.threads)
        return cost_of(kernel, seconds, call, (source,), (target,), self.options)

    def total(self) -> float:
        """Return the estimated seconds of the whole graph."""
        nodes = sum(choice.cost for choice in self.picked.values())
        values = {v for n in self.graph.nodes for v in (*n.inputs, *n.outputs)}
        return nodes + sum(self.repacking(value) for value in values)

    def _repackable(self, node: Node) -> list[Value]:
        """Return the values of a node whose repacking costs anything at run time."""
        values = dict.fromkeys((*node.inputs, *node.outputs))
        return [value for value in values if value not in self.graph.constants]

    def _local(self, node: Node, choice: Choice, touched: list[Value]) -> float:
        self.picked[node] = choice
        return choice.cost + sum(self.repacking(value) for value in touched)

    def _around(self, node: Node, touched: Iterable[Value]) -> set[Node]:
        """Return the nodes whose local costs the choice for a node is part of, itself apart."""
        found = {reader for value in touched for reader, _ in self._readers.get(value, ())}
        found.update(value.node for value in touched if value.node is not None)
        return found - {node}

    def improve(self) -> None:
        """Change one node at a time, sweeping back and forth, until nothing gets cheaper.

        A node is looked at again only where something around it has changed since.
        """
        movable = {
            node: self._repackable(node)
            for node in self.graph.nodes
            if len(self.choices[node].items) > 1
        }
        stale = set(movable)
        for sweep in range(MAX_SWEEPS):
            for node in movable if sweep % 2 == 0 else reversed(movable):
                if node not in stale:
                    continue
                stale.discard(node)
                touched, before = movable[node], self.picked[node]
                best, lowest = before, self._local(node, before, touched)
                for choice in self.choices[node].items:
                    cost = self._local(node, choice, touched)
                    if cost < lowest * (1 - 1e-9):
                        best, lowest = choice, cost
                self.picked[node] = best
                if best is not before:
                    stale |= self._around(node, touched) & movable.keys()
            if not stale:
                return


def relayout_call(spec: TensorSpec, source: str, target: str, threads: int) -> Call:
    """Return the call that repacks a value."""
    op = registry.get_op("relayout")
    return Call(op, (spec,), (spec,), op.attrs(source=source, target=target), threads)


def relayout_kernel(
    spec: TensorSpec,
    source: str,
    target: str,
    device: str,
    options: Options,
    constant: bool = False,
) -> Kernel | None:
    """Return the cheapest kernel that repacks a value, or None where there is none.

    The op's reference knows logical values only, so it cannot serve. A kernel that declares layouts
    serves no others, and is not even asked. A constant is packed once and read by every run, so
    that kernels with a tolerance do not serve it.
    """
    served = _serving(spec, source, target, device, options)
    return next((k for k in served if not constant or k.tolerance is None), None)


def _serving(
    spec: TensorSpec, source: str, target: str, device: str, options: Options
) -> dict[Kernel, float]:
    backend, generation = registry.chosen_backend(), registry.generation
    asked = _repackers(source, target, device, backend, generation, options)
    if not asked:
        return {}
    call = relayout_call(spec, source, target, options.threads)
    return registry.supporting(call, device, asked)[0]


@lru_cache(512)
def _repackers(
    source: str,
    target: str,
    device: str,
    backend: str | None,
    generation: int,
    options: Options,
) -> tuple[Kernel, ...]:
    """Return the kernels to ask; those that declare nothing look at the call's attributes."""
    declared = ((source,), (target,)), ((PLAIN,), (PLAIN,))
    touched = frozenset((source, target)) - {PLAIN}
    return tuple(
        kernel
        for kernel in _permitted("relayout", device, backend, generation, options, touched)[0]
        if not kernel.is_reference and (kernel.layouts.inputs, kernel.layouts.outputs) in declared
    )


def known_layouts(graph: Graph, device: str, options: Options) -> tuple[str, ...]:
    """Return the layouts in which some kernel for this graph gives values, most frequent first."""
    if options.level < 2:
        return ()
    seen: dict[str, int] = {}
    chosen = registry.chosen_backend()
    for op, count in Counter(node.op.name for node in graph.nodes).items():
        for kernel in _permitted(op, device, chosen, registry.generation, options)[0]:
            for name in {*kernel.layouts.outputs} - {PLAIN, SAME}:
                seen[name] = seen.get(name, 0) + count
    return tuple(sorted(seen, key=lambda name: (-seen[name], name)))


def _gives(layout: str, choice: Choice) -> bool:
    return layout in choice.outputs


def choose(graph: Graph, device: str, options: Options) -> tuple[Labelling, dict[Node, Choices]]:
    """Return the cheapest labelling found from several starts.

    Local moves cannot carry a whole region from one layout to another where every single step
    costs a repacking, so each layout is also tried as a start that everyone follows who can.
    """
    known = known_layouts(graph, device, options)
    cache: dict[object, Choices] = {}
    choices: dict[Node, Choices] = {}
    for node in graph.nodes:
        fixed = tuple(value in graph.constants for value in node.inputs)
        key = (call_of(node, options.threads).key, fixed)
        if key not in cache:
            cache[key] = choices_of(node, device, options, known, graph.constants)
        choices[node] = cache[key]

    def start(favoured: Callable[[Choice], bool]) -> dict[Node, Choice]:
        return {
            node: min(choices[node].items, key=lambda c: (not favoured(c), c.cost))
            for node in graph.nodes
        }

    starts = [start(lambda c: c.is_plain)]
    if known:
        starts.append(start(lambda c: True))
        starts += [start(partial(_gives, name)) for name in known]
    labelling = Labelling(graph, choices, device, options)
    best, lowest = starts[0], inf
    # Where a layout is the cheapest anyway, two starts are one.
    for picked in {tuple(map(id, item.values())): item for item in starts}.values():
        labelling.picked = picked
        if known:
            labelling.improve()
        total = labelling.total()
        if total < lowest:
            best, lowest = picked, total
    labelling.picked = best
    return labelling, choices
