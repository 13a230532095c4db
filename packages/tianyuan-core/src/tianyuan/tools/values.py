"""Compute every variable of a model file, one by one, on a backend of one's choice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import GraphError
from ..jit.model import Model
from ..utils.network import Network
from ..utils.network_graph import to_graph
from ..utils.network_node import VarNode


def computed_vars(network: Network) -> list[VarNode]:
    """Return the variables that outputs depend on and operators compute."""
    return [var for opr in network.all_oprs if opr.op is not None for var in opr.outputs]


def model_of(network: Network, variables: list[VarNode], backend: str | None = None) -> Model:
    """Return what computes variables of a network, named by their ids.

    Raises:
        GraphError: where there is none.
    """
    if not variables:
        raise GraphError("tools: the network computes nothing")
    graph, _, _ = to_graph(variables, list(network.data_providers_filter))
    return Model(graph, [str(var.id) for var in variables], backend, None)


def values(
    network: Network, arrays: Mapping[str, np.ndarray], backend: str | None = None
) -> dict[VarNode, np.ndarray]:
    """Return the value of every variable for inputs by name.

    Since every variable is asked for, none disappears inside a fused kernel.
    """
    variables = computed_vars(network)
    model = model_of(network, variables, backend)
    found = model(*(arrays[name] for name in model.input_specs))
    results = found if isinstance(found, tuple) else (found,)
    return dict(zip(variables, results, strict=True))
