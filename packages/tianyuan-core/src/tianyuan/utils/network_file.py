"""Decide how a changed network is written, and what is kept of it beside the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import AttrError, GraphError, ModelFormatError
from ..graph.container import Container, container_bytes, replace_file
from ..graph.serial import graph_to_json
from ..jit.dumping import NOTES, DumpResult, write_needs
from .network_graph import to_graph
from .network_node import OpNode, VarNode

_FUSING = frozenset({"enable_fuse_conv_bias_nonlinearity", "enable_fuse_conv_bias_with_z"})
# The loader weighs layouts by cost for the CPU at hand.
_LAYOUTS = frozenset({"enable_nchw44", "enable_nchw44_dot", "enable_nchw88"})


class Keep(NamedTuple):
    """Which names and priorities a file keeps; see ``Network.dump``."""

    var_name: int = 1
    opr_name: bool = False
    param_name: bool = False
    opr_priority: bool = False


def level_of(options: Mapping[str, Any]) -> int:
    """Return the optimisation level that options of ``optimize_for_inference`` ask for.

    Raises:
        AttrError: where one is not offered.
    """
    refused = sorted(name for name in options if name not in _FUSING | _LAYOUTS)
    if refused:
        known = ", ".join(sorted(_FUSING | _LAYOUTS))
        raise AttrError(
            f"optimize_for_inference: not offered, got {', '.join(refused)}, "
            f"expected some of {known}"
        )
    return 2 if any(options[name] for name in _FUSING if name in options) else 1


def check_options(append: bool, dump_format: str | None, compat_older_version: str | None) -> None:
    """Raise AttrError for what the one file format does not offer."""
    if append:
        raise AttrError("dump: append is not offered, a file holds one model")
    if dump_format not in (None, "tym"):
        raise AttrError(f"dump: dump_format is not offered, got {dump_format!r}, expected 'tym'")
    if compat_older_version is not None:
        raise AttrError(f"dump: compat_older_version is not offered, got {compat_older_version!r}")


def write(
    file: Any,
    outputs: Sequence[VarNode],
    inputs: Sequence[OpNode],
    keep: Keep,
    notes: dict[str, Any] | None,
    strip_info_file: Any,
    append_json: bool,
) -> DumpResult:
    """Write a network to a path or a binary stream; see ``Network.dump``."""
    names = [var.name for var in outputs]
    if not keep.var_name:
        names = [f"output_{index}" for index in range(len(outputs))]
    graph, _, oprs = to_graph(outputs, inputs, keep.param_name)
    input_names = [value.name for value in graph.inputs]
    for what, given in (("outputs", names), ("inputs", input_names)):
        doubles = sorted({name for name in given if given.count(name) > 1})
        if doubles:
            raise GraphError(f"dump: two {what} have one name, got {', '.join(doubles)}")
    data, tensors = graph_to_json(graph, input_names, names)
    pieces = container_bytes(tensors, data, _extra(oprs, keep, notes))
    if hasattr(file, "write"):
        file.writelines(pieces)
    else:
        replace_file(file, pieces)
    if strip_info_file is not None:
        dtypes = [var.dtype.name for opr in oprs for var in (*opr.inputs, *opr.outputs)]
        write_needs(strip_info_file, (opr.type for opr in oprs), dtypes, append_json)
    sizes = [memoryview(piece).nbytes for piece in pieces]
    return DumpResult(
        len(oprs), sum(sizes), sum(array.nbytes for array in tensors.values()),
        input_names, names, list(tensors),
    )  # fmt: skip


def _extra(oprs: Sequence[OpNode], keep: Keep, notes: dict[str, Any] | None) -> dict[str, str]:
    kept: dict[str, Any] = {}
    if notes is not None:
        kept["metadata"] = {"is_valid": True, "graph_modified": True, **notes}
    if keep.opr_name:
        kept["oprs"] = [opr.name for opr in oprs]
    if keep.var_name > 1:
        kept["vars"] = [[var.name for var in opr.outputs] for opr in oprs]
    if keep.opr_priority:
        kept["priorities"] = [opr.priority for opr in oprs]
    try:
        return {NOTES: json.dumps(kept)} if kept else {}
    except (TypeError, ValueError) as error:
        raise AttrError(f"dump: user_info must be what JSON can hold, got {error}") from None


def read_extra(container: Container, oprs: Sequence[OpNode]) -> dict[str, Any]:
    """Give operators and variables the names that a file keeps; return its metadata.

    Raises:
        ModelFormatError: where what the file says does not fit its graph.
    """
    if NOTES not in container.extra:
        return {"is_valid": False, "graph_modified": False}
    try:
        kept = json.loads(container.extra[NOTES])
        named = _strings(kept.get("oprs", [opr.name for opr in oprs]), len(oprs))
        made = kept.get("vars", [[var._given for var in opr.outputs] for opr in oprs])
        made = [_strings(row, len(opr.outputs)) for opr, row in zip(oprs, made, strict=True)]
        ranks = kept.get("priorities", [0] * len(oprs))
        if len(ranks) != len(oprs) or not all(type(rank) is int for rank in ranks):
            raise ValueError("priorities")
        found: dict[str, Any] = dict(kept.get("metadata", {"is_valid": False}))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFormatError(
            f"model file {container.path}: notes of its network are malformed, got {error}"
        ) from None
    for opr, name, row, rank in zip(oprs, named, made, ranks, strict=True):
        opr.name, opr.priority = name, rank
        for var, title in zip(opr.outputs, row, strict=True):
            var.name = title
    return found


def _strings(value: Any, count: int) -> list[str]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{count} names expected")
    if not all(isinstance(item, str) for item in value):
        raise ValueError("names must be text")
    return value
