"""Tell what a model file holds and costs, operator by operator, and draw it for TensorBoard."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..errors import GraphError
from ..imperative.tensor import Tensor
from ..utils import module_stats as stats
from ..utils.network import Network
from ..utils.network_node import Host2DeviceCopy, OpNode, VarNode
from ..utils.tensorboard import SummaryWriterExtend
from .command import INPUTS, MODEL, read_inputs, run
from .values import computed_vars, values

Entry = dict[str, Any]


def _size(var: VarNode) -> int:
    return math.prod(map(int, var.shape))


def operations(opr: OpNode) -> int:
    """Return the operations of an operator; a product with its sum counts as one.

    >>> net = Network()
    >>> x = net.make_input_node((2, 3), "float32", name="x")
    >>> operations((x @ net.make_const(np.ones((3, 5), "float32"))).owner)
    30
    """
    if opr.op is None:
        return 0
    inputs, outputs = (tuple(var._spec for var in row) for row in (opr.inputs, opr.outputs))
    work = opr.op.work_of(inputs, outputs, opr.params)
    return int(work.products + work.others)


def _inputs(network: Network) -> list[VarNode]:
    return [opr.outputs[0] for opr in network.data_providers_filter]


def _entries(
    network: Network, known: dict[VarNode, np.ndarray], cal: tuple[bool, bool, bool]
) -> stats.StatsDetails:
    details = stats.StatsDetails([], [], [])
    if cal[0]:
        for opr in network.params_filter:
            details.params.append(
                {
                    "name": opr.name,
                    **stats.get_param_stats(Tensor(opr.constant.array, dtype=opr.outputs[0].dtype)),
                }
            )
    if cal[1]:
        for opr in network.all_oprs:
            if opr.op is not None and operations(opr):
                details.flops.append(
                    {
                        "name": opr.name,
                        "class_name": opr.type,
                        "input_shapes": [tuple(map(int, v.shape)) for v in opr.inputs],
                        "output_shapes": [tuple(map(int, v.shape)) for v in opr.outputs],
                        "flops_num": operations(opr),
                    }
                )
    if cal[2]:
        details.activations.extend(_activation(var, known) for var in computed_vars(network))
    return details


def _activation(var: VarNode, known: dict[VarNode, np.ndarray]) -> Entry:
    labels = {"name": var.name, "class_name": var.owner.type}
    labels["inputs"] = str([tuple(map(int, v.shape)) for v in var.owner.inputs])
    if var in known:
        return {**labels, **stats.get_activation_stats(Tensor(known[var], dtype=var.dtype))}
    return {
        **labels, "dtype": var.dtype, "shape": tuple(map(int, var.shape)), "act_dim": _size(var),
        "nbits": var.dtype.itemsize * 8, "size": _size(var) * var.dtype.itemsize,
    }  # fmt: skip


def write_graph(network: Network, log_path: str | os.PathLike[str]) -> None:
    """Write a network's operators to a folder that TensorBoard watches.

    >>> import tempfile
    >>> net = Network()
    >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
    >>> write_graph(net, tempfile.mkdtemp())
    """
    with SummaryWriterExtend(log_path) as writer:
        for opr in network.all_oprs:
            writer.add_node_raw(
                opr.name,
                "input" if isinstance(opr, Host2DeviceCopy) else opr.type,
                [var.owner.name for var in opr.inputs],
                tuple(map(int, opr.outputs[0].shape)),
                opr.outputs[0].dtype.name,
                {"operations": operations(opr)},
            )
        writer.add_graph_by_node_raw_list()


def visualize(
    model_path: str,
    log_path: str,
    input: np.ndarray | None = None,
    inp_dict: dict[str, np.ndarray] | None = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[stats.TotalStats, stats.StatsDetails]:
    """Tell what a model file holds and costs, dynamic dimensions at the sizes that it was made at.

    Args:
        model_path: a ``.tym`` file.
        log_path: folder to write the graph to for TensorBoard; empty for none.
        input, inp_dict: the only input, or all by name: mean and deviation of every activation
            are told where one is given.
        cal_params, cal_flops, cal_activations: what to tell.
        logging_to_stdout: whether to print tables.
        bar_length_max: longest bar of a table.

    Returns:
        Totals, and one entry per weight, operator and activation.

    >>> import tempfile
    >>> net = Network()
    >>> x = net.make_input_node((2, 3), "float32", name="x")
    >>> net.add_output(x @ net.make_const(np.ones((3, 5), "float32")))
    >>> path = tempfile.mkdtemp() + "/m.tym"
    >>> _ = net.dump(path)
    >>> visualize(path, "", logging_to_stdout=False)[0].flops
    30

    Raises:
        ModelFormatError: where the file is damaged.
        GraphError: where an input is missing or unknown.
    """
    network = Network.load(model_path)
    names = [var.name for var in _inputs(network)]
    given = dict(inp_dict or {})
    if input is not None:
        given[names[0] if names else ""] = input
    if given and sorted(given) != sorted(names):
        raise GraphError(
            f"visualize: inputs do not fit, got {', '.join(given)}, expected {', '.join(names)}"
        )
    known = values(network, given) if given and cal_activations else {}
    details = _entries(network, known, (cal_params, cal_flops, cal_activations))
    param_dims, param_size, _ = stats.sum_param_stats(details.params, bar_length_max)
    flops, _ = stats.sum_op_stats(details.flops, bar_length_max)
    act_dims, act_size, _ = stats.sum_activations_stats(details.activations, bar_length_max)
    total = stats.TotalStats(param_dims, param_size, flops, act_dims, act_size)
    if log_path:
        write_graph(network, log_path)
    if logging_to_stdout:
        _show(network, total, details, (cal_params, cal_flops, cal_activations))
    return total, details


def _show(
    network: Network, total: stats.TotalStats, details: stats.StatsDetails,
    cal: tuple[bool, bool, bool],
) -> None:  # fmt: skip
    summary: Entry = {"#operators": sum(opr.op is not None for opr in network.all_oprs)}
    if cal[0]:
        stats.print_param_stats(details.params)
        summary["total_param_dims"] = stats.sizeof_fmt(total.param_dims, suffix="")
        summary["total_param_size"] = stats.sizeof_fmt(total.param_size)
    if cal[1]:
        stats.print_op_stats(details.flops)
        summary["total_flops"] = stats.sizeof_fmt(total.flops, suffix="OPs")
    if cal[2]:
        stats.print_activations_stats(details.activations, has_input=True)
        summary["total_act_dims"] = stats.sizeof_fmt(total.act_dims, suffix="")
        summary["total_act_size"] = stats.sizeof_fmt(total.act_size)
    stats.print_summary(**summary)


@click.command("network_visualize")
@MODEL
@INPUTS
@click.option("--log-path", default="", help="Folder for TensorBoard.")
@click.option("--params/--no-params", default=True, help="Tell of the weights.")
@click.option("--flops/--no-flops", default=True, help="Tell of the operations.")
@click.option("--activations/--no-activations", default=True, help="Tell of the activations.")
def _command(
    model: Path, inputs: tuple[str, ...], log_path: str, params: bool, flops: bool,
    activations: bool,
) -> None:  # fmt: skip
    """Tell what MODEL holds and costs."""
    given: dict[str, np.ndarray] | None = None
    if inputs:
        network = Network.load(model)
        specs = {var.name: var._spec for var in _inputs(network)}
        given = read_inputs(specs, inputs)
    visualize(str(model), log_path, None, given, params, flops, activations)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.network_visualize MODEL``.

    >>> import sys
    >>> before, sys.argv = sys.argv, ["network_visualize", "--help"]
    >>> main()
    Traceback (most recent call last):
    SystemExit: 0
    >>> sys.argv = before
    """
    run(_command)


if __name__ == "__main__":
    main()
