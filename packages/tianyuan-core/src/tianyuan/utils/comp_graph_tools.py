"""Walk over a network's operators, replace some of them, and run a model file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import GraphError
from ..jit.model import Model
from . import network_file as files
from .network import Network, as_varnode
from .network_change import paired, replaced
from .network_graph import to_graph
from .network_node import ImmutableTensor, OpNode, VarNode, is_kind, kind_of, oprs_of


def _vars(value: VarNode | Iterable[VarNode]) -> list[VarNode]:
    return [value] if isinstance(value, VarNode) else [as_varnode(var) for var in value]


def get_dep_vars(
    var: VarNode | list[VarNode], var_type: str | list[str] | None = None
) -> list[VarNode]:
    """Return the variables that some depend on, only those made by operators of given kinds.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> [v.name for v in get_dep_vars(x * 2 + 1, "Host2DeviceCopy")]
    ['x']

    Raises:
        GraphError: where a kind is unknown.
    """
    kinds = OpNode if var_type is None else kind_of(var_type)
    return [out for opr in oprs_of(_vars(var)) if is_kind(opr, kinds) for out in opr.outputs]


def get_owner_opr_inputs(var: VarNode) -> list[VarNode]:
    """Return what the operator that makes a variable reads.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> [v.name for v in get_owner_opr_inputs(-x)]
    ['x']
    """
    return list(as_varnode(var).owner.inputs)


def get_owner_opr_type(var: VarNode) -> str:
    """Return the op's name of the operator that makes a variable.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> get_owner_opr_type(-x)
    'neg'
    """
    return as_varnode(var).owner.type


def get_opr_type(opr: OpNode) -> str:
    """Return the name of an operator's op.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> get_opr_type(x.owner)
    'Host2DeviceCopy'

    Raises:
        GraphError: where it is no operator.
    """
    if not isinstance(opr, OpNode):
        raise GraphError(f"get_opr_type: expected an operator, got {opr!r}")
    return opr.type


def graph_traversal(outputs: VarNode | list[VarNode]) -> tuple[Any, ...]:
    """Return tables of all operators and variables that some variables depend on.

    Returns ``(map_oprs, map_vars, var2oprs, opr2receivers, indegree2opr, opr2indegree)``:
    operators and variables by id; for a variable's id the pairs (operator's id, index) that read
    it; for an operator's id those that read its outputs; operators' ids by how many inputs made by
    other operators they have; and that number by operator's id.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> map_oprs, *_ = graph_traversal(-x)
    >>> [opr.type for opr in map_oprs.values()]
    ['Host2DeviceCopy', 'neg']
    """
    map_oprs: dict[int, OpNode] = {}
    map_vars: dict[int, VarNode] = {}
    var2oprs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    opr2receivers: dict[int, list[int]] = defaultdict(list)
    indegree2opr: dict[int, set[int]] = defaultdict(set)
    opr2indegree: dict[int, int] = {}
    for opr in oprs_of(_vars(outputs)):
        map_oprs[opr.id] = opr
        map_vars.update({var.id: var for var in opr.outputs})
        for index, var in enumerate(opr.inputs):
            var2oprs[var.id].append((opr.id, index))
            opr2receivers[var.owner.id].append(opr.id)
        opr2indegree[opr.id] = len(opr.inputs)
        indegree2opr[len(opr.inputs)].add(opr.id)
    return map_oprs, map_vars, var2oprs, opr2receivers, indegree2opr, opr2indegree


def get_oprs_seq(
    outputs: VarNode | list[VarNode], prune_reshape: bool = False, prune_immtensor: bool = True
) -> list[OpNode]:
    """Return the operators that variables depend on, in an order in which they can run.

    Args:
        outputs: the variables.
        prune_reshape: accepted; a reshape's target is an attribute here, so nothing computes it.
        prune_immtensor: whether constants made in surgery are left out.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> [opr.type for opr in get_oprs_seq(-x)]
    ['Host2DeviceCopy', 'neg']
    """
    found = oprs_of(_vars(outputs))
    return [opr for opr in found if not (prune_immtensor and isinstance(opr, ImmutableTensor))]


def replace_vars(dst: list[VarNode], varmap: Mapping[VarNode, VarNode]) -> list[VarNode]:
    """Return variables as they would be with some replaced; the network stays as it is.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> y = -x
    >>> [new] = replace_vars([y + 1], {y: x * 2})
    >>> [opr.type for opr in get_oprs_seq(new)]
    ['Host2DeviceCopy', 'full', 'mul', 'full', 'add']
    """
    return replaced(dst, varmap)


def replace_oprs(dst: list[VarNode], oprmap: Mapping[OpNode, OpNode]) -> list[VarNode]:
    """Return variables as they would be with some operators replaced.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> y = -x
    >>> [new] = replace_oprs([y], {y.owner: abs(x).owner})
    >>> new.owner.type
    'abs'

    Raises:
        GraphError: where two have not the same number of outputs.
    """
    table: dict[VarNode, VarNode] = {}
    for old, new in oprmap.items():
        table.update(paired("replace_oprs", old, new))
    return replaced(dst, table)


def set_priority_to_id(dest_vars: VarNode | list[VarNode]) -> None:
    """Give every operator that has no priority its id as one, so that older ones run first.

    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> set_priority_to_id([x])
    >>> x.owner.priority == x.owner.id
    True
    """
    for opr in oprs_of(_vars(dest_vars)):
        opr.priority = opr.priority or opr.id


class GraphInference:
    """Run a model file on arrays.

    Args:
        file: path or binary stream of a ``.tym`` file.
        outputs: names of variables to compute, in place of the file's outputs.
        profiling: whether ``run`` measures every step; see ``get_profile``.
        optimize_for_inference: whether to apply the options of ``kwargs``; see
            ``Network.optimize_for_inference``.

    >>> import io
    >>> net, stream = Network(), io.BytesIO()
    >>> y = net.make_input_node((2,), "float32", name="x") * 2
    >>> y.name = "y"
    >>> net.add_output(y)
    >>> _ = net.dump(stream)
    >>> GraphInference(io.BytesIO(stream.getvalue())).run(np.array([1, 2], "float32"))
    {'y': array([2., 4.], dtype=float32)}

    Raises:
        GraphError: where ``outputs`` names no variable.
        AttrError: where an option is not offered.
    """

    def __init__(
        self,
        file: Any,
        outputs: list[str] | None = None,
        profiling: bool = False,
        optimize_for_inference: bool = False,
        **kwargs: Any,
    ) -> None:
        network = Network.load(file, outputs)
        found: Sequence[VarNode] = network.dest_vars
        names = [var.name for var in found]
        if kwargs:
            files.level_of(kwargs)
        if optimize_for_inference:
            found = network.optimize_for_inference(found, **kwargs)
        graph, _, _ = to_graph(found, list(network.data_providers_filter))
        self._model = Model(graph, names, None, None)
        self._profiling = profiling
        self._profile: list[tuple[str, float]] = []

    def run(
        self, *inp_args: np.ndarray, inp_dict: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Run on inputs by position, by name, or both; return the outputs by name.

        Raises:
            TypeError: where an input is missing, unknown or given twice.
            ShapeError, DTypeError: where one does not fit.
        """
        arrays = [np.asarray(value) for value in inp_args]
        named: dict[str, Any] = {
            name: np.asarray(value) for name, value in (inp_dict or {}).items()
        }
        results = self._model(*arrays, **named)
        if self._profiling:
            given = dict(zip(self._model.input_specs, arrays, strict=False)) | named
            ordered = [given[name] for name in self._model.input_specs]
            steps = self._model.program(*ordered).steps
            times = self._model.profile(*ordered)
            self._profile = [(s.kernel.name, t) for s, t in zip(steps, times, strict=True)]
        results = results if isinstance(results, tuple) else (results,)
        return dict(zip(self._model.output_specs, results, strict=True))

    def get_profile(self) -> list[tuple[str, float]]:
        """Return kernel and seconds of every step of the last run.

        Raises:
            GraphError: where ``profiling`` was not asked for, or nothing has run.
        """
        if not self._profile:
            raise GraphError("get_profile: nothing was measured, expected profiling=True and run")
        return self._profile
