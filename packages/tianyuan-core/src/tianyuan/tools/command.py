"""Say how a tool's command line starts, and how its errors are shown."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np

from ..errors import TianyuanError
from ..jit.model import Model
from ..op import TensorSpec

MODEL = click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
INPUTS = click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]FILE.npy",
    help="An input, by position or by name; random where none is given.",
)  # fmt: skip


def run(command: click.Command) -> None:
    """Run a command on ``sys.argv`` and leave the process; errors of ours fit one line."""
    try:
        command(prog_name=f"tianyuan.tools.{command.name}")
    except (TianyuanError, OSError) as error:
        sys.exit(f"Error: {error}")


def read_array(file: str) -> np.ndarray:
    """Read a ``.npy`` file; raise click.BadParameter where it is none."""
    try:
        array: np.ndarray = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise click.BadParameter(f"{file} is no .npy file: {error}") from None
    return array


def read_inputs(specs: dict[str, TensorSpec], given: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return arrays by input name, from texts ``FILE`` and ``NAME=FILE``.

    Raises:
        click.BadParameter: where a name is unknown, given twice or missing.
    """
    found: dict[str, np.ndarray] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or Path(text).exists():
            name, file = next((n for n in specs if n not in found), ""), text
        if name not in specs or name in found:
            raise click.BadParameter(
                f"no such input, or given twice, got {text!r}, expected {', '.join(specs)}"
            )
        found[name] = read_array(file)
    missing = [name for name in specs if name not in found]
    if given and missing:
        raise click.BadParameter(f"inputs are missing, expected {', '.join(missing)}")
    return found


def inputs_or_random(model: Model, given: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the inputs that a command line gives, or random ones at size 1 of what is dynamic."""
    if given:
        return read_inputs(model.input_specs, given)
    return dict(zip(model.input_specs, model.example_inputs(), strict=True))
