"""Convert models between files of Tianyuan and of ONNX, by the suffixes of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from .. import onnx
from ..errors import TraceError
from ..graph import passes
from ..jit.model import write_model
from ..onnx.model import symbolic_graph, trace_graph


def convert_model(source: Path, target: Path, opset: int | None, sizes: Mapping[str, int]) -> None:
    """Read a model in one format and write it in the other.

    Raises:
        click.UsageError: where the suffixes are not .onnx and .tym.
        TraceError: where an ONNX model's graph differs by size and a size is missing.
    """
    kinds = source.suffix.lower(), target.suffix.lower()
    if kinds == (".tym", ".onnx"):
        if sizes:
            raise click.UsageError("--size is for reading ONNX files")
        onnx.export(source, target, opset=onnx.OPSET if opset is None else opset)
    elif kinds == (".onnx", ".tym"):
        if opset is not None:
            raise click.UsageError("--opset is for writing ONNX files")
        _import(source, target, sizes)
    else:
        raise click.UsageError(
            f"cannot convert {source.name} to {target.name}, "
            "expected .tym to .onnx or .onnx to .tym"
        )
    click.echo(f"{target}: {target.stat().st_size} bytes")


def read_sizes(given: Sequence[str]) -> dict[str, int]:
    """Read NAME=N texts.

    Raises:
        click.BadParameter: where a text has another form.
    """
    sizes = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise click.BadParameter(f"got {text!r}, expected like batch=64", param_hint="--size")
        sizes[name] = int(number)
    return sizes


def _import(source: Path, target: Path, sizes: Mapping[str, int]) -> None:
    module = onnx.load(source)
    symbols = {
        f"{info.name}_{axis}" if n is None else n
        for info in module.inputs
        for axis, n in enumerate(info.shape or ())
        if not isinstance(n, int)
    }
    unknown, missing = sorted(sizes.keys() - symbols), sorted(symbols - sizes.keys())
    if unknown or (sizes and missing):
        raise click.UsageError(
            f"sizes do not fit, got {', '.join(sizes)}, expected {', '.join(sorted(symbols))}"
        )
    if sizes or not symbols:
        graph = trace_graph(module, sizes, symbols=False)
    else:
        found = symbolic_graph(module)
        if found is None:
            raise TraceError(
                "convert: the model's graph differs by size, got no sizes, expected --size NAME=N "
                f"for {', '.join(missing)}"
            )
        graph = found
    graph = passes.in_integers(graph)
    write_model(target, graph, [i.name for i in module.inputs], [o.name for o in module.outputs])
