"""Run the passes of a stage in order, plugins' after ours, and check the graph after each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import GraphError
from .. import spec
from ..graph import Graph
from ..options import Options

STAGES = ("canonical", "fuse", "layout", "late")


@dataclass(frozen=True)
class Pass:
    """One rewriting of a graph that keeps its results.

    Attributes:
        stage: ``canonical`` and ``fuse`` see a graph with symbols, ``layout`` one of concrete
            sizes before kernels are chosen, ``late`` one with kernels and layouts.
        name: shown where a validity rule breaks after it.
        run: takes the graph and the options, and returns a new graph or the same one.
        level: the least optimisation level at which it runs.
    """

    stage: str
    name: str
    run: Callable[[Graph, Options], Graph]
    level: int = 1


def own_passes() -> tuple[Pass, ...]:
    """Return core's passes in the order in which they run."""
    from . import (
        algebra,
        attention,
        channels,
        convolution,
        dead,
        duplicates,
        elementwise,
        fold,
        gelu,
        product,
        quantized,
        sink,
    )

    return (
        Pass("canonical", "dead_code", dead.run, 0),
        # Before constants fold: a weight that is dequantised must stay in integers.
        Pass("canonical", "sink_dequantize", quantized.sink, 2),
        Pass("canonical", "dead_code", dead.run, 2),
        Pass("canonical", "quantized_ops", quantized.run, 2),
        Pass("canonical", "dead_code", dead.run, 2),
        Pass("canonical", "fold_constants", fold.run),
        Pass("canonical", "simplify", algebra.run),
        Pass("canonical", "merge_duplicates", duplicates.run),
        Pass("canonical", "fold_constants", fold.run),
        Pass("canonical", "dead_code", dead.run),
        Pass("fuse", "take_channels", channels.run, 2),
        Pass("fuse", "recognise_gelu", gelu.run, 2),
        # Before products take a mask in as a bias.
        Pass("fuse", "recognise_attention", attention.run, 2),
        Pass("fuse", "fuse_convolutions", convolution.run, 2),
        Pass("fuse", "dead_code", dead.run, 2),  # what is dead must not count as a reader
        Pass("fuse", "fuse_products", product.run, 2),
        Pass("fuse", "sink_reshapes", sink.run, 2),
        Pass("fuse", "dead_code", dead.run, 2),
        Pass("fuse", "fuse_products", product.run, 2),
        Pass("fuse", "fold_constants", fold.run, 2),
        Pass("fuse", "simplify", algebra.run, 2),
        Pass("fuse", "dead_code", dead.run, 2),
        Pass("fuse", "fuse_elementwise", elementwise.run, 2),
        Pass("fuse", "dead_code", dead.run, 2),
        Pass("late", "merge_duplicates", duplicates.run),
        Pass("late", "dead_code", dead.run, 0),
    )


def plugin_passes(device: str) -> tuple[Pass, ...]:
    """Return the passes that plugins bring for a device."""
    from ... import plugins

    return tuple(plugins.passes(device))


def checking() -> bool:
    """Tell whether TIANYUAN_CHECK_GRAPH leaves the checks on, as it does unless it is 0."""
    return os.environ.get("TIANYUAN_CHECK_GRAPH", "1") != "0"


def verify(graph: Graph, stage: str, before: Graph | None = None) -> None:
    """Check a graph where checks are on; with ``before``, also that effects kept their order."""
    if checking():
        spec.check(graph, stage)
        if before is not None:
            spec.check_effects(before, graph)


def run_stage(stage: str, graph: Graph, options: Options, device: str = "cpu") -> Graph:
    """Run all passes of a stage.

    Raises:
        GraphError: where a pass leaves a graph that breaks a validity rule.
    """
    if stage not in STAGES:
        raise ValueError(f"passes: unknown stage, got {stage!r}, expected one of {STAGES}")
    for item in (*own_passes(), *plugin_passes(device)):
        if item.stage != stage or options.level < item.level:
            continue
        after = item.run(graph, options)
        if after is graph:
            continue
        try:
            verify(after, stage, graph)
        except GraphError as error:
            raise GraphError(f"pass {item.name}: {error}") from error
        graph = after
    return graph


def optimise(graph: Graph, options: Options | None = None, device: str = "cpu") -> Graph:
    """Run the stages ``canonical`` and ``fuse`` on a graph that may have symbols."""
    options = options or Options()
    verify(graph, "canonical")
    graph = run_stage("canonical", graph, options, device)
    return run_stage("fuse", graph, options, device)
