"""Turn a concrete graph into one whose nodes have kernels and whose values have layouts."""

from __future__ import annotations

import numpy as np

from .. import registry
from ..imperative import dispatch
from ..kernel import PLAIN
from . import arena, heads, joining, layouts, passes, selection, updating
from .graph import Constant, Graph, Node, Rebuilder, Value
from .options import Options
from .selection import Labelling
from .slab import Slab

SMALL = 1 << 16  # bytes of a constant that is copied rather than left in a mapped file


def lower(graph: Graph, device: str = "cpu", options: Options | None = None) -> Graph:
    """Run the stages ``layout`` and ``late`` on a graph of concrete sizes.

    Raises:
        KernelError: where no kernel serves a node; the message names every refusal.
    """
    options = options or Options()
    joined = passes.run_stage("layout", graph, options, device)
    for join in (joining.join, heads.join, updating.join) if options.level >= 2 else ():
        joined = _instead(joined, join(joined, device, options), graph)
    assigned = assign(joined, device, options)
    passes.verify(assigned, "late", joined)
    lowered = passes.run_stage("late", assigned, options, device)
    _instead(joined, lowered, graph)
    return _instead(assigned, lowered, graph)


def _instead(old: Graph, new: Graph, given: Graph) -> Graph:
    """Return the new graph, and let go of the old one unless it is the caller's."""
    if old is not new and old is not given:
        old.dissolve()
    return new


def assign(graph: Graph, device: str, options: Options) -> Graph:
    """Choose kernels and layouts, and insert the repacking that the choice needs."""
    labelling, choices = selection.choose(graph, device, options)
    repacked: dict[tuple[Value, str], Value] = {}
    slab = Slab(_sizes_to_pack(graph, labelling))

    def visit(to: Rebuilder, node: Node) -> tuple[Value, ...]:
        picked = labelling.picked[node]
        inputs = [
            _in_layout(to, labelling, value, layout, repacked, slab)
            for value, layout in zip(node.inputs, picked.inputs, strict=True)
        ]
        outputs = [
            Value(value.spec, value.name, layout)
            for value, layout in zip(node.outputs, picked.outputs, strict=True)
        ]
        new = Node(node.op, node.attrs, inputs, outputs, node.origin)
        new.kernel, new.refusals = picked.kernel, choices[node].refusals
        to.graph.nodes.append(new)
        return new.outputs

    rebuilder = Rebuilder(graph)
    rebuilder.run(visit)
    lowered = rebuilder.graph

    def plain(value: Value) -> Value:
        return _in_layout(rebuilder, labelling, value, PLAIN, repacked, slab)

    lowered.outputs = [plain(value) for value in graph.outputs]
    lowered.updates = {index: plain(value) for index, value in graph.updates.items()}
    return lowered


def _sizes_to_pack(graph: Graph, labelling: Labelling) -> list[int]:
    """Return the bytes of each constant in each layout that it has not been packed in yet."""
    wanted = {
        (value, layout)
        for node in graph.nodes
        for value, layout in zip(node.inputs, labelling.picked[node].inputs, strict=True)
        if value in graph.constants and layout not in (PLAIN, *graph.constants[value].packed)
    }
    return [layouts.physical_bytes(value.spec, layout) for value, layout in wanted]


def _in_layout(
    to: Rebuilder,
    labelling: Labelling,
    value: Value,
    layout: str,
    repacked: dict[tuple[Value, str], Value],
    slab: Slab,
) -> Value:
    """Return what stands for an old value in a layout, repacking it once where needed."""
    source = to.map[value]
    if source.layout == layout:
        return source
    key = (value, layout)
    if key not in repacked:
        constant = to.graph.constants.get(source)
        if constant is not None:
            new = Value(source.spec, source.name, layout)
            to.graph.constants[new] = packed(constant, layout, labelling, slab)
        else:
            new = _relayout(to.graph, source, layout, labelling)
        repacked[key] = new
    return repacked[key]


def packed(constant: Constant, layout: str, labelling: Labelling, slab: Slab) -> Constant:
    """Return a plain constant in a layout, made once for all programs that share it."""
    if layout not in constant.packed:
        constant.packed[layout] = Constant(_pack(constant, layout, labelling, slab), constant.name)
        constant.spare()
    return constant.packed[layout]


def settle(graph: Graph) -> None:
    """Copy the small constants that a program reads as they are out of their file, side by side.

    Each would hold pages of the mapped file, and what the kernel maps around them.
    """
    small = [c for c in graph.constants.values() if c.is_lazy and c.spec.nbytes <= SMALL]
    sizes = [arena.aligned(constant.spec.nbytes) for constant in small]
    block = dispatch.empty((sum(sizes),), np.dtype(np.uint8))
    start = 0
    for constant, size in zip(small, sizes, strict=True):
        source = constant.array
        copy = block[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        copy[...] = source
        copy.flags.writeable = False
        constant.spare()
        constant.settle(copy)
        start += size


def _pack(constant: Constant, layout: str, labelling: Labelling, slab: Slab) -> np.ndarray:
    """Pack by a native kernel that errs no more than the layout's own ``pack``, or by that."""
    spec, found = constant.spec, registry.get_layout(layout)
    options, device = labelling.options, labelling.device
    kernel = selection.relayout_kernel(spec, PLAIN, layout, device, options, constant=True)
    if kernel is None or not kernel.is_native:
        if found.write is None:
            return slab.place(found.pack(constant.array))
        made = slab.empty(layouts.extents(spec.shape, layout), spec.dtype)
        found.write(constant.array, made)
        return made
    call = selection.relayout_call(spec, PLAIN, layout, options.threads)
    made = slab.empty(layouts.extents(spec.shape, layout), spec.dtype)
    scratch = dispatch.empty((kernel.workspace(call),), np.dtype(np.uint8))
    run = dispatch.bind_kernel(kernel, call)
    run([constant.array], [dispatch.logical(made, spec.shape)], scratch)
    return made


def _relayout(graph: Graph, value: Value, layout: str, labelling: Labelling) -> Value:
    """Append a repacking step."""
    options, device = labelling.options, labelling.device
    kernel = selection.relayout_kernel(value.spec, value.layout, layout, device, options)
    assert kernel is not None  # the labelling counts repacking that nobody serves as infinite
    call = selection.relayout_call(value.spec, value.layout, layout, options.threads)
    new = Node(call.op, call.attrs, (value,), (Value(value.spec, value.name, layout),))
    new.kernel = kernel
    graph.nodes.append(new)
    return new.outputs[0]
