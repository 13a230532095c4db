"""Run the passes of a stage in order, plugins' after ours, and check the graph after each."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module

from ...errors import GraphError
from ...ops.codes import ELEMENTWISE
from ...records import record
from .. import spec
from ..graph import Graph
from ..options import Options

STAGES = ("canonical", "fuse", "layout", "late")


@record()
class Pass:
    """One rewriting of a graph that keeps its results.

    Attributes:
        stage: ``canonical`` and ``fuse`` see a graph with symbols, ``layout`` one of concrete
            sizes before kernels are chosen, ``late`` one with kernels and layouts.
        name: shown where a validity rule breaks after it.
        run: takes the graph and the options, and returns a new graph or the same one.
        level: the least optimisation level at which it runs.
        needs: names of ops of which the graph must hold one for the pass to find anything; empty
            where any will do.
    """

    stage: str
    name: str
    run: Callable[[Graph, Options], Graph]
    level: int = 1
    needs: Collection[str] = ()


def _own(stage: str, name: str, place: str, level: int = 1, needs: Collection[str] = ()) -> Pass:
    """Return the pass at ``module.function`` of this folder, imported when it first runs."""
    module, _, function = place.partition(".")

    def run(graph: Graph, options: Options) -> Graph:
        found = import_module(f".{module}", __name__)
        changed: Graph = getattr(found, function or "run")(graph, options)
        return changed

    return Pass(stage, name, run, level, needs)


_INTEGERS = (
    _own("canonical", "dead_code", "dead", 0),
    # Before constants fold: a weight that is dequantised must stay in integers.
    _own("canonical", "sink_dequantize", "quantized.sink", 2, ("quantize", "dequantize")),
    _own("canonical", "dead_code", "dead", 2),
    _own("canonical", "quantized_ops", "quantized", 2, ("quantize", "requantize")),
    _own("canonical", "dead_code", "dead", 2),
)
_OWN = (
    *_INTEGERS,
    _own("canonical", "fold_constants", "fold"),
    _own("canonical", "simplify", "algebra"),
    _own("canonical", "merge_duplicates", "duplicates"),
    _own("canonical", "fold_constants", "fold"),
    _own("canonical", "dead_code", "dead"),
    _own("fuse", "take_channels", "channels", 2, ("transpose", "take")),
    _own("fuse", "recognise_gelu", "gelu", 2, ("erf",)),
    # Before products take a mask in as a bias.
    _own("fuse", "recognise_attention", "attention", 2, ("softmax",)),
    _own("fuse", "sink_reshapes_of_signals", "sink.convolutions", 2, ("conv2d",)),
    _own("fuse", "dead_code", "dead", 2),
    _own("fuse", "fuse_convolutions", "convolution", 2, ("conv2d", "conv2d_fused")),
    _own("fuse", "dead_code", "dead", 2),  # what is dead must not count as a reader
    _own("fuse", "fuse_products", "product", 2, ("matmul", "matmul_fused")),
    _own("fuse", "sink_reshapes", "sink", 2, ("matmul", "matmul_fused")),
    _own("fuse", "dead_code", "dead", 2),
    _own("fuse", "fuse_products", "product", 2, ("matmul", "matmul_fused")),
    _own("fuse", "read_rows", "rows", 2, ("slice", "take")),
    _own("fuse", "fold_constants", "fold", 2),
    _own("fuse", "simplify", "algebra", 2),
    _own("fuse", "dead_code", "dead", 2),
    _own("fuse", "fuse_elementwise", "elementwise", 2, frozenset(ELEMENTWISE)),
    _own("fuse", "dead_code", "dead", 2),
    _own("late", "merge_duplicates", "duplicates"),
    _own("late", "dead_code", "dead", 0),
)


def own_passes() -> tuple[Pass, ...]:
    """Return core's passes in the order in which they run."""
    return _OWN


def plugin_passes(device: str) -> tuple[Pass, ...]:
    """Return the passes that plugins bring for a device."""
    from ... import plugins

    return tuple(plugins.passes(device))


def checking() -> bool:
    """Tell whether TIANYUAN_CHECK_GRAPH leaves the checks on, as it does unless it is 0."""
    return os.environ.get("TIANYUAN_CHECK_GRAPH", "1") != "0"


def verify(graph: Graph, stage: str, before: Graph | None = None) -> None:
    """Check a graph where checks are on.

    With ``before``, a valid graph, nodes that it holds as they are need no second inference, and
    effects must have kept their order.
    """
    if checking():
        spec.check(graph, stage, before)
        if before is not None:
            spec.check_effects(before, graph)


def run_stage(stage: str, graph: Graph, options: Options, device: str = "cpu") -> Graph:
    """Run all passes of a stage; graphs between the given one and the result are let go.

    The result is checked. Where it breaks a rule, or a pass fails, the stage runs once more with a
    check after each pass, so that the one to blame is named.

    Raises:
        GraphError: where a pass leaves a graph that breaks a validity rule.
    """
    if stage not in STAGES:
        raise ValueError(f"passes: unknown stage, got {stage!r}, expected one of {STAGES}")
    items = [item for item in (*own_passes(), *plugin_passes(device)) if item.stage == stage]
    return _run_checked(items, stage, graph, options)


def in_integers(graph: Graph) -> Graph:
    """Replace dequantize, op and quantize by ops on integers, as optimising a graph begins.

    A file that is written so is read in a fraction of the time.
    """
    return _run_checked(_INTEGERS, "canonical", graph, Options())


def _run_checked(items: Sequence[Pass], stage: str, graph: Graph, options: Options) -> Graph:
    try:
        after = _run(items, graph, options)
        if after is not graph:
            verify(after, stage, graph)
    except Exception:
        if checking():
            _run(items, graph, options, every=True)
        raise
    return after


def _run(items: Sequence[Pass], graph: Graph, options: Options, every: bool = False) -> Graph:
    """Run passes one after the other; with ``every``, check what each leaves."""
    given = graph
    for item in items:
        if options.level < item.level:
            continue
        if item.needs and not any(node.op.name in item.needs for node in graph.nodes):
            continue
        after = item.run(graph, options)
        if after is graph:
            continue
        if every:
            try:
                verify(after, item.stage, graph)
            except GraphError as error:
                raise GraphError(f"pass {item.name}: {error}") from error
        if graph is not given:
            graph.dissolve()
        graph = after
    return graph


def optimise(graph: Graph, options: Options | None = None, device: str = "cpu") -> Graph:
    """Run the stages ``canonical`` and ``fuse`` on a graph that may have symbols."""
    options = options or Options()
    verify(graph, "canonical", graph)  # its nodes were inferred when they were added
    canonical = run_stage("canonical", graph, options, device)
    fused = run_stage("fuse", canonical, options, device)
    if canonical is not graph and canonical is not fused:
        canonical.dissolve()
    return fused
