"""Decide what MegEngine's arguments of ``dump`` mean for a model file, or why they are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import TraceError
from ..graph.graph import Graph
from ..records import record

# Layouts and fusions that the loader chooses by cost for the machine that it runs on.
ENABLE_OPTIONS = frozenset(
    {
        "enable_io16xc32", "enable_ioc16", "enable_f16_io_f32_comp", "enable_f16_io_comp",
        "enable_hwcd4", "enable_nhwcd4", "enable_nchw4", "enable_nchw88", "enable_nchw44",
        "enable_nchw44_dot", "enable_nchw32", "enable_nchw64", "enable_chwn4", "enable_nhwc",
        "enable_fuse_conv_bias_nonlinearity", "enable_fuse_conv_bias_with_z",
        "enable_fuse_preprocess", "enable_fuse_grain", "enable_fuse_conv_bias",
        "enable_layout_transform", "enable_weight_preprocess",
    }
)  # fmt: skip

# What a model file has no place for, with the reason; refused unless it is the default.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "append": ((False,), "a file holds one model"),
    "input_data": ((None,), "a file holds no test data; keep it in a file of arrays"),
    "repeat": ((1,), "a file holds no test data"),
    "resize_input": ((False,), "a file holds no test data"),
    "input_transform": ((None,), "a file holds no test data"),
    "dump_format": ((None, "tym"), "files have one format"),
    "model_version": ((2,), "files have a version of their own"),
    "compat_older_version": ((None,), "files have a version of their own"),
}

NOTES = "tianyuan.network"  # the metadata of a file in which notes on its network stand


@record()
class DumpResult:
    """What a dump has written.

    Attributes:
        nr_opr: count of operators.
        tot_bytes: size of the file.
        tensor_value_bytes: size of the weights in it.
        inputs, outputs, params: their names.

    Example:
        >>> from tianyuan.jit import DumpResult
        >>> DumpResult(1, 100, 40, ["x"], ["y"], ["w"]).tensor_value_bytes
        40
    """

    nr_opr: int
    tot_bytes: int
    tensor_value_bytes: int
    inputs: list[str]
    outputs: list[str]
    params: list[str]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise where an option cannot be had.

    Raises:
        TraceError: where it is unknown, or refused; the message names it and says why.
    """
    for name, value in options.items():
        if name in REFUSED:
            accepted, why = REFUSED[name]
            if not any(value is item or value == item for item in accepted):
                expected = " or ".join(map(repr, accepted))
                raise TraceError(
                    f"trace.dump: {name} cannot be had ({why}), got {value!r}, expected {expected}"
                )
        elif name not in ENABLE_OPTIONS:
            raise TraceError(
                f"trace.dump: unknown options, got {name}, expected some of its signature"
            )


def notes_of(user_info: Any) -> dict[str, str]:
    """Return the metadata that keeps ``user_info``; none where there is none.

    Raises:
        TraceError: where it is no JSON value.
    """
    if user_info is None:
        return {}
    kept = {"metadata": {"is_valid": True, "graph_modified": False, "user_info": user_info}}
    try:
        return {NOTES: json.dumps(kept, sort_keys=True)}
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"trace.dump: user_info must be a JSON value, got {type(user_info).__name__} "
            f"({error}), expected text, numbers, lists and dicts"
        ) from None


def write_needs(file: Any, ops: Iterable[str], dtypes: Iterable[str], append: bool) -> None:
    """Write which ops and dtypes a model needs, one line of JSON per model.

    Args:
        file: a path, or a stream of text.
        append: whether to add to what a path holds already.
    """
    needs = {"opr_types": sorted(set(ops)), "dtypes": sorted(set(dtypes))}
    text = json.dumps(needs) + "\n"
    if hasattr(file, "write"):
        file.write(text)
        return
    path = Path(os.fspath(file))
    before = path.read_text() if append and path.exists() else ""
    path.write_text(before + text)


def write_graph_needs(file: Any, graph: Graph, append: bool) -> None:
    """Write which ops and dtypes a graph needs."""
    values = [value for node in graph.nodes for value in (*node.inputs, *node.outputs)]
    dtypes = [value.spec.dtype.name for value in values]
    write_needs(file, (node.op.name for node in graph.nodes), dtypes, append)
