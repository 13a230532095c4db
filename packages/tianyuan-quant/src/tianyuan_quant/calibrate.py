"""Run a graph on data and keep the distribution of every float value in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tianyuan import Tensor
from tianyuan.graph.graph import Graph, Node, Value
from tianyuan.imperative import dispatch
from tianyuan.jit.compiled import sizes_of

from .config import QConfig
from .params import HostParams


def evaluate(graph: Graph, batch: Sequence[np.ndarray]) -> dict[Value, np.ndarray]:
    """Return every value of a graph on one batch, computed by the best kernels, op by op."""
    sizes = sizes_of(graph, [array.shape for array in batch])
    known: dict[Value, np.ndarray] = {v: c.array for v, c in graph.constants.items()}
    for value, array in zip(graph.inputs, batch, strict=True):
        known[value] = array
    # Specialising keeps the order of nodes, and with it which is which.
    fixed = graph.specialise(sizes) if graph.symbols() else graph
    for node, concrete in zip(graph.nodes, fixed.nodes, strict=True):
        results = _run(concrete, [known[v] for v in node.inputs])
        known.update(zip(node.outputs, results, strict=True))
    return known


def _run(node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    inputs = [Tensor(array, str(array.dtype)) for array in arrays]
    results = dispatch.apply(node.op, inputs, node.attrs)
    found = results if isinstance(results, tuple) else (results,)
    return [tensor.numpy() for tensor in found]


class Ranges:
    """How each float value of a graph is to be quantised."""

    def __init__(self, config: QConfig) -> None:
        self._config = config
        self._observers: dict[Value, object] = {}
        self._params: dict[Value, HostParams] = {}

    def watch(self, values: Mapping[Value, np.ndarray]) -> None:
        """Take one batch's values into account."""
        for value, array in values.items():
            if array.dtype != np.float32 or not array.size:
                continue
            if value not in self._observers:
                assert self._config.act_observer is not None
                self._observers[value] = self._config.act_observer()
            self._observers[value](Tensor(array))  # type: ignore[operator]

    def params(self, value: Value, owner: str) -> HostParams:
        """Return a value's parameters.

        Raises:
            AttrError: naming the owner, where it was never seen or is not finite.
        """
        if value not in self._params:
            observer = self._observers[value]
            observer.check_ready(owner)  # type: ignore[attr-defined]
            self._params[value] = observer.get_qparams().host(owner)  # type: ignore[attr-defined]
        return self._params[value]
