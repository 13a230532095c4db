"""Compute every variable of a model file, one by one, on a backend of one's choice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np

from .. import registry
from ..errors import GraphError
from ..jit.compiled import CompiledGraph
from ..jit.model import as_input
from ..utils.network import Network
from ..utils.network_graph import to_graph
from ..utils.network_node import VarNode


def computed_vars(network: Network) -> list[VarNode]:
    """Return the variables that operators compute."""
    return [var for opr in network.all_oprs if opr.op is not None for var in opr.outputs]


def values(
    network: Network, arrays: Mapping[str, np.ndarray], backend: str | None = None, level: int = 0
) -> dict[VarNode, np.ndarray]:
    """Return the value of every computed variable for inputs by name.

    At level 0 every operator runs by itself, at 2 as in a loaded model: fused, and on blocked
    layouts.

    Raises:
        GraphError: where an input is missing.
        BackendError: where there is no such backend.
    """
    variables = computed_vars(network)
    graph, _, _ = to_graph(variables, list(network.data_providers_filter))
    missing = [value.name for value in graph.inputs if value.name not in arrays]
    if missing:
        raise GraphError(f"values: inputs are missing, expected {', '.join(missing)}")
    given = [as_input(value.name, arrays[value.name], value.spec) for value in graph.inputs]
    compiled = CompiledGraph(graph, level=level)
    with registry.use_backend(backend) if backend else nullcontext():
        return dict(zip(variables, compiled.run(given), strict=True))
