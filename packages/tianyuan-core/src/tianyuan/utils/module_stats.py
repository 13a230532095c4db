"""Tell what a network holds and costs: parameters, operations and activations by module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import module as M
from ..errors import AttrError
from ..imperative.tensor import Tensor
from . import module_flops
from .module_flops import (
    disable_receptive_field,
    enable_receptive_field,
    flops_adaptivePool,
    flops_batchmatmul,
    flops_convNd,
    flops_convNdTranspose,
    flops_linear,
    flops_norm,
    flops_pool,
    preprocess_receptive_field,
    register_flops,
    register_hook_module,
    register_receptive_field,
)
from .module_utils import set_module_mode_safe
from .table import format_table

__all__ = [
    "dict2table", "disable_receptive_field", "enable_receptive_field", "flops_adaptivePool",
    "flops_batchmatmul", "flops_convNd", "flops_convNdTranspose", "flops_linear", "flops_norm",
    "flops_pool", "get_activation_stats", "get_op_stats", "get_param_stats", "module_stats",
    "preprocess_receptive_field", "print_activations_stats", "print_op_stats",
    "print_param_stats", "print_summary", "register_flops", "register_hook_module",
    "register_receptive_field", "sizeof_fmt", "sum_activations_stats", "sum_op_stats",
    "sum_param_stats",
]  # fmt: skip

Stats = dict[str, Any]


class TotalStats(NamedTuple):
    """Totals of a network: counts of elements, sizes in bytes, operations."""

    param_dims: int
    param_size: int
    flops: int
    act_dims: int
    act_size: int


class StatsDetails(NamedTuple):
    """One entry per parameter, per module with operations, and per activation."""

    params: list[Stats]
    flops: list[Stats]
    activations: list[Stats]


def get_param_stats(param: Tensor) -> Stats:
    """Return dtype, shape, mean, std, elements, bits of an element and bytes of a parameter.

    >>> import tianyuan as ty
    >>> stats = get_param_stats(ty.Tensor([[1.0, 3.0]]))
    >>> stats["shape"], stats["mean"], stats["param_dim"], stats["size"]
    ((1, 2), '2', 2, 8)
    """
    stats = _of_array(param)
    return {**stats, "param_dim": stats.pop("dims")}


def get_activation_stats(output: Tensor, has_input: bool = False) -> Stats:
    """Return the same of an activation; with ``has_input`` there is room for its inputs'.

    >>> import tianyuan as ty
    >>> get_activation_stats(ty.Tensor([1.0, 3.0]))["act_dim"]
    2
    """
    stats = _of_array(output)
    found = {**stats, "act_dim": stats.pop("dims")}
    return {**found, "inputs": []} if has_input else found


def _of_array(tensor: Any) -> Stats:
    array = tensor.numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
    wide = array.astype(np.float64) if array.size else np.zeros(1)
    return {
        "dtype": array.dtype,
        "shape": array.shape,
        "mean": f"{wide.mean():.3g}",
        "std": f"{wide.std():.3g}",
        "dims": int(array.size),
        "nbits": array.dtype.itemsize * 8,
        "size": int(array.nbytes),
    }


def get_op_stats(module: Any, inputs: Any, outputs: Any) -> Stats | None:
    """Return shapes and operations of one call of a module, None where nothing is known of it.

    With ``enable_receptive_field`` also the receptive field and stride.

    >>> import tianyuan as ty, tianyuan.module as M
    >>> linear, x = M.Linear(2, 3), ty.Tensor([[1.0, 2.0]])
    >>> get_op_stats(linear, (x,), (linear(x),))["flops_num"]
    9
    """
    given, made = _tensors(inputs), _tensors(outputs)
    rule = module_flops.rule_of(module)
    field = module_flops.field_of(module, given, made)
    if rule is None and field is None:
        return None
    stats: Stats = {
        "input_shapes": [tuple(t.shape) for t in given],
        "output_shapes": [tuple(t.shape) for t in made],
    }
    if rule is not None:
        stats["flops_num"] = int(rule(module, given, made))
    if field is not None:
        stats["receptive_field"], stats["stride"] = field
    return stats


def _tensors(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = list(values.values())
    return list(values) if isinstance(values, (list, tuple)) else [values]


# Sums and tables


def sizeof_fmt(num: float, suffix: str = "B") -> str:
    """Write a number with a unit: binary prefixes for bytes, decimal ones for others.

    >>> sizeof_fmt(1536), sizeof_fmt(1500, suffix="OPs")
    ('1.500 KiB', '1.500 KOPs')
    """
    binary = suffix == "B"
    scale = 1024.0 if binary else 1000.0
    units = [p + ("i" if binary and p else "") for p in ("", "K", "M", "G", "T", "P", "E", "Z")]
    value = float(num)
    for unit in units:
        if abs(value) < scale or unit == units[-1]:
            break
        value /= scale
    return f"{value:.3f} {unit}{suffix}"


def dict2table(list_of_dict: Iterable[Stats], header: Sequence[str]) -> list[list[Any]]:
    """Return rows with the values under each heading, the headings first; empty where missing.

    >>> dict2table([{"a": 1}, {"b": 2}], ["a", "b"])
    [['a', 'b'], [1, ''], ['', 2]]
    """
    return [list(header), *([entry.get(name, "") for name in header] for entry in list_of_dict)]


def _share(entries: list[Stats], key: str, bar_length_max: int) -> int:
    """Give each entry its share of a sum, the share so far, and a bar; return the sum."""
    total = sum(int(entry.get(key, 0)) for entry in entries)
    so_far = 0
    for entry in entries:
        so_far += int(entry.get(key, 0))
        ratio = int(entry.get(key, 0)) / total if total else 0.0
        entry["ratio"] = ratio
        entry["percentage"] = f"{ratio:.2%}"
        entry["cum"] = so_far
        entry["bar"] = "#" * int(ratio * bar_length_max)
    return total


def sum_op_stats(flops: list[Stats], bar_length_max: int = 20) -> tuple[int, list[Stats]]:
    """Return the operations of all entries, and the entries with their shares.

    >>> sum_op_stats([{"flops_num": 1}, {"flops_num": 3}])[1][1]["percentage"]
    '75.00%'
    """
    total = _share(flops, "flops_num", bar_length_max)
    for entry in flops:
        entry["flops"] = sizeof_fmt(entry.get("flops_num", 0), suffix="OPs")
        entry["flops_cum"] = sizeof_fmt(entry["cum"], suffix="OPs")
    return total, flops


def sum_param_stats(params: list[Stats], bar_length_max: int = 20) -> tuple[int, int, list[Stats]]:
    """Return elements and bytes of all entries, and the entries with their shares of the bytes.

    >>> import tianyuan as ty
    >>> sum_param_stats([get_param_stats(ty.Tensor([1.0, 2.0]))])[:2]
    (2, 8)
    """
    total = _share(params, "size", bar_length_max)
    for entry in params:
        entry["size_cum"] = sizeof_fmt(entry["cum"])
    return sum(entry["param_dim"] for entry in params), total, params


def sum_activations_stats(
    activations: list[Stats], bar_length_max: int = 20
) -> tuple[int, int, list[Stats]]:
    """Return elements and bytes of all entries, and the entries with their shares of the bytes.

    >>> import tianyuan as ty
    >>> sum_activations_stats([get_activation_stats(ty.Tensor([1.0, 2.0]))])[:2]
    (2, 8)
    """
    total = _share(activations, "size", bar_length_max)
    for entry in activations:
        entry["size_cum"] = sizeof_fmt(entry["cum"])
    return sum(entry["act_dim"] for entry in activations), total, activations


def print_op_stats(flops: list[Stats]) -> None:
    """Print a table of operations by module.

    >>> print_op_stats([{"name": "fc", "flops": "3 OPs"}])  # doctest: +ELLIPSIS
    operations
    ...
    │ fc ... │ 3 OPs ...
    """
    header = ["name", "class_name", "input_shapes", "output_shapes", "flops", "flops_cum",
              "percentage", "bar"]  # fmt: skip
    if any("receptive_field" in entry for entry in flops):
        header[4:4] = ["receptive_field", "stride"]
    _print_table("operations", flops, header)


def print_param_stats(params: list[Stats]) -> None:
    """Print a table of parameters.

    >>> import tianyuan as ty
    >>> print_param_stats([get_param_stats(ty.Tensor([1.0, 2.0]))])  # doctest: +ELLIPSIS
    parameters
    ...
    │ ... │ float32 │ (2,)    │ 1.5    │ 0.5   │ 8.000 B ...
    """
    header = ["name", "dtype", "shape", "mean", "std", "size", "size_cum", "percentage", "bar"]
    _print_table("parameters", _with_units(params), header)


def print_activations_stats(activations: list[Stats], has_input: bool = False) -> None:
    """Print a table of activations, with their inputs' shapes if asked.

    >>> import tianyuan as ty
    >>> print_activations_stats([get_activation_stats(ty.Tensor([1.0, 2.0]))])  # doctest: +ELLIPSIS
    activations
    ...
    │ ... │ float32 │ (2,)    │ 1.5    │ 0.5   │ 8.000 B ...
    """
    header = ["name", "class_name", "dtype", "shape", "mean", "std", "size", "size_cum",
              "percentage", "bar"]  # fmt: skip
    if has_input:
        header.insert(2, "inputs")
    _print_table("activations", _with_units(activations), header)


def print_summary(**kwargs: Any) -> None:
    """Print names and values as a table.

    >>> print_summary(total_flops="9.000 OPs")
    summary
    ╭─────────────┬───────────╮
    │ item        │ value     │
    ├─────────────┼───────────┤
    │ total_flops │ 9.000 OPs │
    ╰─────────────┴───────────╯
    """
    rows = [{"item": name, "value": value} for name, value in kwargs.items()]
    _print_table("summary", rows, ["item", "value"])


def _with_units(entries: list[Stats]) -> list[Stats]:
    return [{**entry, "size": sizeof_fmt(entry["size"])} for entry in entries]


def _print_table(title: str, entries: list[Stats], header: Sequence[str]) -> None:
    head, *rows = dict2table(entries, header)
    print(format_table(head, rows, title))


# A whole network


def module_stats(
    model: M.Module,
    inputs: Any = None,
    input_shapes: Any = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[TotalStats, StatsDetails]:
    """Run a network once in evaluation mode and tell what it holds and costs.

    Operations are counted by module, as ``register_flops`` says; those of functions between
    modules are not.

    Args:
        model: the network; each module's mode is put back afterwards.
        inputs: arrays or tensors: one, a sequence of them, or a dict by argument name.
        input_shapes: shapes of zeros to run on, where no inputs are given: one or several.
        cal_params, cal_flops, cal_activations: what to tell.
        logging_to_stdout: whether to print tables.
        bar_length_max: longest bar of a table.

    Returns:
        Totals, and one entry per parameter, operation and activation.

    Raises:
        AttrError: where neither inputs nor shapes are given.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.Linear(4, 3), M.ReLU(), M.Linear(3, 2))
    >>> total, _ = module_stats(net, input_shapes=(1, 4), logging_to_stdout=False)
    >>> total.param_dims, total.flops
    (23, 23)
    """
    arguments, keywords = _arguments(inputs, input_shapes)
    details = StatsDetails([], [], [])
    hooks = [
        module.register_forward_hook(partial(_note_call, name, details, cal_flops, cal_activations))
        for name, module in model.named_modules()
    ]
    following = module_flops.is_receptive_field_enabled()
    try:
        with (
            set_module_mode_safe(model),
            module_flops.follow_fields() if following else nullcontext(),
        ):
            model(*arguments, **keywords)
    finally:
        for hook in hooks:
            hook.remove()
    if cal_params:
        details.params.extend(
            {"name": _short(name), **get_param_stats(parameter)}
            for name, parameter in _weights(model)
        )
    total = _totals(details, bar_length_max)
    if logging_to_stdout:
        _print_all(total, details, (cal_params, cal_flops, cal_activations))
    return total, details


def _weights(model: M.Module) -> Iterator[tuple[str, Tensor]]:
    """Walk parameters, and weights and biases that do not train, such as integers."""
    yield from model.named_parameters()
    for name, value in model.named_buffers():
        if name.rpartition(".")[2] in ("weight", "bias"):
            yield name, value


def _arguments(inputs: Any, input_shapes: Any) -> tuple[list[Any], dict[str, Any]]:
    if inputs is None and input_shapes is None:
        raise AttrError("module_stats: nothing to run on, expected inputs or input_shapes")
    if inputs is None:
        several = all(isinstance(shape, (list, tuple)) for shape in input_shapes)
        inputs = [np.zeros(s, np.float32) for s in (input_shapes if several else [input_shapes])]
    if isinstance(inputs, dict):
        return [], {name: _tensor(value) for name, value in inputs.items()}
    if isinstance(inputs, (np.ndarray, Tensor)):
        inputs = [inputs]
    return [_tensor(value) for value in inputs], {}


def _tensor(value: Any) -> Any:
    return Tensor(value) if isinstance(value, np.ndarray) else value


def _short(name: str) -> str:
    """Write ``fc.weight`` as MegEngine does: ``fc-w``."""
    owner, _, leaf = name.rpartition(".")
    return f"{owner}-{ {'weight': 'w', 'bias': 'b'}.get(leaf, leaf) }".lstrip("-")


def _note_call(
    name: str,
    details: StatsDetails,
    cal_flops: bool,
    cal_activations: bool,
    module: Any,
    inputs: Any,
    outputs: Any,
) -> None:
    labels = {"name": name, "class_name": type(module).__name__}
    stats = get_op_stats(module, inputs, outputs)
    if cal_flops and stats is not None:
        details.flops.append({**labels, **stats})
    if cal_activations and module_flops.is_hooked(module):
        shapes = [tuple(t.shape) for t in _tensors(inputs) if isinstance(t, Tensor)]
        details.activations.extend(
            {**labels, **get_activation_stats(output, has_input=True), "inputs": shapes}
            for output in _tensors(outputs)
        )


def _totals(details: StatsDetails, bar_length_max: int) -> TotalStats:
    param_dims, param_size, _ = sum_param_stats(details.params, bar_length_max)
    flops, _ = sum_op_stats(details.flops, bar_length_max)
    act_dims, act_size, _ = sum_activations_stats(details.activations, bar_length_max)
    return TotalStats(param_dims, param_size, flops, act_dims, act_size)


def _print_all(total: TotalStats, details: StatsDetails, asked: tuple[bool, bool, bool]) -> None:
    summary: Stats = {"#modules": len({entry["name"] for entry in details.activations})}
    if asked[0]:
        print_param_stats(details.params)
        summary["total_param_dims"] = sizeof_fmt(total.param_dims, suffix="")
        summary["total_param_size"] = sizeof_fmt(total.param_size)
    if asked[1]:
        print_op_stats(details.flops)
        summary["total_flops"] = sizeof_fmt(total.flops, suffix="OPs")
    if asked[2]:
        print_activations_stats(details.activations)
        summary["total_act_dims"] = sizeof_fmt(total.act_dims, suffix="")
        summary["total_act_size"] = sizeof_fmt(total.act_size)
    if asked[0] and asked[1] and total.param_size:
        summary["flops/param_size"] = f"{total.flops / total.param_size:.3f}"
    print_summary(**summary)
