"""Run, explain and time model files from the command line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from .. import jit, registry
from ..errors import ModelFormatError
from ..graph.container import read_container
from ..graph.explain import format_program
from ..jit.model import Model
from ..kernel import FULL
from ..utils.table import format_table


def _sizes(model: Model, given: Sequence[str]) -> dict[str, int]:
    known = set().union(*(_symbols(spec.shape) for spec in model.input_specs.values()))
    sizes = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise click.BadParameter(f"got {text!r}, expected like batch=64", param_hint="--size")
        if name not in known:
            raise click.BadParameter(
                f"no such dynamic dimension, got {name!r}, "
                f"expected one of {', '.join(sorted(known)) or 'none'}",
                param_hint="--size",
            )
        sizes[name] = int(number)
    return sizes


def check_files(files: Sequence[Path]) -> int:
    """Check every byte of model files and checkpoints; return how the command ends, 1 or 0."""
    damaged = False
    for path in files:
        try:
            container = read_container(path)
            container.verify()
        except (ModelFormatError, OSError) as error:
            damaged = True
            click.echo(f"Error: {error}", err=True)
        else:
            size = path.stat().st_size / 1e6
            click.echo(f"{path}: sound, {len(container.names())} tensors, {size:.1f} MB")
    return int(damaged)


def _symbols(shape: Any) -> set[str]:
    from ..shapes import symbols_of

    return symbols_of(shape)


def run_model(
    path: Path, inputs: Sequence[str], output: Path | None, backend: str | None,
    threads: int | None, precision: str = FULL,
) -> None:  # fmt: skip
    """Run a model file on ``.npy`` files and print or store the outputs."""
    model = jit.load(path, backend=backend, threads=threads, precision=precision)
    positional: list[np.ndarray] = []
    named: dict[str, Any] = {}
    for text in inputs:
        name, equals, file = text.partition("=")
        if equals and not Path(text).exists():
            if name not in model.input_specs:
                raise click.BadParameter(
                    f"no such input, got {name!r}, expected one of {', '.join(model.input_specs)}",
                    param_hint="--input",
                )
            named[name] = _read(file)
        else:
            positional.append(_read(text))
    try:
        results = model(*positional, **named)
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    outputs = dict(
        zip(
            model.output_specs,
            results if isinstance(results, tuple) else (results,),
            strict=True,
        )
    )
    if output is not None:
        with open(output, "wb") as stream:
            np.savez(stream, **outputs)
    for name, array in outputs.items():
        click.echo(f"{name}: {array.dtype.name}{array.shape}")
        if output is None:
            click.echo(np.array2string(array, threshold=200))


def _read(file: str) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise click.BadParameter(
            f"{file} is no .npy file: {error}", param_hint="--input"
        ) from error
    return array


def explain_model(
    path: Path, backend: str | None, threads: int | None, sizes: Sequence[str], whole: bool,
    roofline: bool, precision: str = FULL,
) -> None:  # fmt: skip
    """Print the explanation of a model file; its program and its roofline if asked for."""
    model = jit.load(path, backend=backend, threads=threads, precision=precision)
    chosen = _sizes(model, sizes)
    click.echo(str(model.explain(**chosen)))
    if whole:
        click.echo(format_program(model.program(**chosen)))
    if roofline:
        click.echo(str(model.roofline(*model.example_inputs(chosen))))


def bench_model(
    path: Path, backends: Sequence[str], threads: int | None, sizes: Sequence[str], rounds: int,
    steps: bool, page: Path | None = None, precision: str = FULL,
) -> None:  # fmt: skip
    """Time a model file on each backend in turns; print medians and minima, draw the steps."""
    names: list[str | None] = list(backends) or [None]
    models = {
        name: jit.load(path, backend=name, threads=threads, precision=precision) for name in names
    }
    first = next(iter(models.values()))
    inputs = first.example_inputs(_sizes(first, sizes))
    for model in models.values():
        for _ in range(3):
            model(*inputs)
    seconds: dict[str | None, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, model in models.items():
            start = perf_counter()
            model(*inputs)
            seconds[name].append(perf_counter() - start)
    rows = [
        [_title(name), f"{statistics.median(times) * 1e3:.3f}", f"{min(times) * 1e3:.3f}"]
        for name, times in seconds.items()
    ]
    title = f"{path.name}, {rounds} rounds"
    click.echo(format_table(["backend", "median ms", "min ms"], rows, title))
    if steps:
        for name, model in models.items():
            click.echo(_step_table(_title(name), model, inputs, min(rounds, 20)))
    if page is not None:
        from .page import roofline_page

        drawn = {_title(name): model.roofline(*inputs) for name, model in models.items()}
        page.write_text(roofline_page(path.name, drawn, _by_title(seconds)))


def _by_title(seconds: Mapping[str | None, list[float]]) -> dict[str, list[float]]:
    """Return times by the backend's title."""
    return {_title(name): times for name, times in seconds.items()}


def _title(backend: str | None) -> str:
    return backend or f"all ({', '.join(registry.backends())})"


def _step_table(title: str, model: Model, inputs: Sequence[np.ndarray], rounds: int) -> str:
    profiles = [model.profile(*inputs) for _ in range(rounds)]
    medians = [statistics.median(times) for times in zip(*profiles, strict=True)]
    total = sum(medians) or 1.0
    rows = []
    program = model.program(*inputs)
    for index, (step, median) in enumerate(zip(program.steps, medians, strict=True)):
        spec = program.slots[step.outputs[0]].spec if step.outputs else ""
        rows.append([index, step.kernel.name, spec, f"{median * 1e6:.1f}", f"{median / total:.1%}"])
    return format_table(["step", "kernel", "output", "us", "share"], rows, f"steps on {title}")
