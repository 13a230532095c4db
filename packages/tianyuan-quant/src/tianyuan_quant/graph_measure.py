"""Measure what each layer of a quantised graph loses, and what keeping it in floats would win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from glob import escape

import numpy as np
from tianyuan.graph.graph import Graph, Node, Value

from .calibrate import evaluate
from .graphs import MOVES, Quantiser, label
from .report import LayerReport, Noise, Report

Batches = Sequence[Sequence[np.ndarray]]
_ASKED = 5  # how many of the worst products are tried in floats


def measured(
    quantiser: Quantiser,
    new: Graph,
    products: Sequence[Node],
    batches: Batches,
    sensitivity: bool,
) -> Report:
    """Return what each stored value loses; with ``sensitivity`` what products cost alone."""
    graph, total = quantiser.graph, Noise()
    noise = {
        value: Noise()
        for node in graph.nodes
        for value in node.outputs
        if value in quantiser.places and value.spec.dtype == np.float32
        if not _only_moved(value, quantiser.places[value][0])
    }
    floats: list[list[np.ndarray]] = []
    for batch in batches:
        want, got = evaluate(graph, batch), evaluate(new, batch)
        floats.append([want[value] for value in graph.outputs])
        for value, found in noise.items():
            stored, params = quantiser.places[value]
            found.add(want[value], params.real(got[stored]))
        for old, value in zip(graph.outputs, new.outputs, strict=True):
            total.add(want[old], got[value])
    alone: dict[Value, float] = {}
    if sensitivity:
        every = {label(node) for node in products}
        others: Callable[[Node], set[str]] = lambda node: every - {label(node)}  # noqa: E731
        alone = {n.outputs[0]: _with(quantiser, others(n), batches, floats) for n in products}
    losses = {n.outputs[0]: noise[n.outputs[0]].decibel for n in products} | alone
    worst = sorted(losses, key=lambda value: losses[value])[:_ASKED] if total.noise else []
    wins = {
        node.outputs[0]: _with(quantiser, {label(node)}, batches, floats) - total.decibel
        for node in products
        if node.outputs[0] in worst
    }
    layers = (
        LayerReport(
            label(value.node),
            value.node.op.name,
            found.decibel,
            alone.get(value),
            wins.get(value),
        )
        for value, found in noise.items()
        if value.node is not None
    )
    return Report(tuple(layers), total.decibel)


def _only_moved(value: Value, stored: Value) -> bool:
    """Tell whether a value is another one's integers in another place: it loses nothing anew."""
    made, origin = stored.node, value.node
    return bool(made and origin and made.op is origin.op and made.op.name in MOVES)


def _with(quantiser: Quantiser, kept: set[str], batches: Batches, floats: Batches) -> float:
    """Return the output's ratio with more products in floats."""
    patterns = [*quantiser.kept, *map(escape, kept)]
    noise, other = Noise(), replace(quantiser, kept=patterns, places={}).run()
    for batch, want in zip(batches, floats, strict=True):
        got = evaluate(other, batch)
        for old, value in zip(want, other.outputs, strict=True):
            noise.add(old, got[value])
    return noise.decibel
