"""The ``tianyuan`` command: what it offers, and how errors are shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..errors import TianyuanError
from ..kernel import FULL, PRECISIONS


class _Commands(click.Group):
    """Shows Tianyuan's own errors in one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (TianyuanError, OSError) as error:
            raise click.ClickException(str(error)) from error


class _Target(click.Path):
    """A file to be written: its folder must be there before anything is computed."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        folder = Path(value).parent
        if not folder.is_dir():
            self.fail(f"there is no folder {str(folder)!r} to write to", param, ctx)
        return super().convert(value, param, ctx)


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="tianyuan")
def main() -> None:
    """Train, inspect and run Tianyuan models."""


@main.command()
def info() -> None:
    """Show versions, CPU features, plugins with their state, and the thread count."""
    from .info import show_info

    show_info()


@main.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of MNIST-format IDX files (plain or gzipped) to train on instead of the digits.",
)
@click.option("--epochs", type=click.IntRange(1), help="Passes over the training data.")
@click.option(
    "--output",
    type=_Target(),
    default=Path("digits.tym"),
    show_default=True,
    help="Model file to write.",
)
@click.option("--seed", type=int, default=0, show_default=True)
def quickstart(data: Path | None, epochs: int | None, output: Path, seed: int) -> None:
    """Train a small CNN on real digits, dump it, and run the file on every backend."""
    from .quickstart import run_quickstart

    sys.exit(run_quickstart(data, epochs, output, seed))


_MODEL = click.argument("model", type=click.Path(dir_okay=False, path_type=Path))
_BACKEND = click.option("--backend", help="Backend whose kernels serve the model.")
_THREADS = click.option("--threads", type=click.IntRange(1), help="Threads per run.")
_PRECISION = click.option(
    "--precision", type=click.Choice(PRECISIONS), default=FULL, show_default=True,
    help="bf16 permits kernels that round float32 to bfloat16.",
)  # fmt: skip
_SIZES = click.option(
    "--size", "sizes", multiple=True, metavar="NAME=N", help="Size of a dynamic dimension."
)


@main.command()
@_MODEL
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE.npy",
    help="An input, by position or by name.",
)
@click.option("--output", type=_Target(), help="Write the outputs to this .npz.")
@_BACKEND
@_THREADS
@_PRECISION
def run(
    model: Path, inputs: tuple[str, ...], output: Path | None, backend: str | None,
    threads: int | None, precision: str,
) -> None:  # fmt: skip
    """Run MODEL on arrays from .npy files."""
    from .models import run_model

    run_model(model, inputs, output, backend, threads, precision)


@main.command()
@_MODEL
@_BACKEND
@_THREADS
@_PRECISION
@_SIZES
@click.option("--program", is_flag=True, help="Print the whole program as well.")
@click.option("--roofline", is_flag=True, help="Run it and hold each step against the machine.")
def explain(
    model: Path, backend: str | None, threads: int | None, precision: str, sizes: tuple[str, ...],
    program: bool, roofline: bool,
) -> None:  # fmt: skip
    """Show the kernel, layout and refusals of every step of MODEL."""
    from .models import explain_model

    explain_model(model, backend, threads, sizes, program, roofline, precision)


@main.command()
@_MODEL
@click.option("--backend", "backends", multiple=True, help="Backends to time, in turns.")
@_THREADS
@_PRECISION
@_SIZES
@click.option("--rounds", type=click.IntRange(1), default=50, show_default=True)
@click.option("--steps/--no-steps", default=True, help="Show the time of each step.")
@click.option(
    "--html",
    "page",
    type=_Target(),
    help="Draw the steps under the machine's roofline to this file.",
)
def bench(
    model: Path, backends: tuple[str, ...], threads: int | None, precision: str,
    sizes: tuple[str, ...], rounds: int, steps: bool, page: Path | None,
) -> None:  # fmt: skip
    """Time MODEL on random inputs: median, minimum, and a table per step."""
    from .models import bench_model

    bench_model(model, backends, threads, sizes, rounds, steps, page, precision)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
def check(files: tuple[Path, ...]) -> None:
    """Check every byte of FILES, model files (.tym) or checkpoints, against their checksums."""
    from .models import check_files

    sys.exit(check_files(files))


@main.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=_Target())
@click.option("--opset", type=int, help="ONNX operator set to write.")
@_SIZES
def convert(source: Path, target: Path, opset: int | None, sizes: tuple[str, ...]) -> None:
    """Convert SOURCE to TARGET: a .tym file to .onnx, or an .onnx file to .tym."""
    from .convert import convert_model, read_sizes

    convert_model(source, target, opset, read_sizes(sizes))


@main.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("calibration", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=_Target(),
    help="The .tym file to write.",
)
@click.option("--report", is_flag=True, help="Print what each layer loses.")
@click.option(
    "--html",
    "page",
    type=_Target(),
    help="Write the report as a page with a drawing.",
)
@click.option(
    "--per-channel/--per-tensor",
    "per_channel",
    default=True,
    show_default=True,
    help="Scales of weights.",
)
@click.option(
    "--range",
    "ranges",
    type=click.Choice(["l2", "kl", "percentile", "minmax"]),
    default="l2",
    show_default=True,
    help="How the ranges of activations are chosen.",
)
@click.option("--keep", multiple=True, metavar="PATTERN", help="Weights that stay in floats.")
@click.option(
    "--bias-correction/--no-bias-correction",
    default=True,
    show_default=True,
    help="Take the mean error of rounded weights out of the biases.",
)
@click.option("--equalize", is_flag=True, help="Even channels out over neighbouring layers first.")
@click.option(
    "--rounding-steps",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Learn roundings in N steps per layer.",
)
@click.option("--sensitivity", is_flag=True, help="Measure what each layer costs alone.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--dynamic", is_flag=True, help="Store weights as int8, scale activations at run time."
)
@click.option(
    "--int4",
    "int4_group",
    type=click.IntRange(1),
    metavar="GROUP",
    help="Store weights in four bits, with a scale for each GROUP of neighbours.",
)
def quantize(
    model: Path,
    calibration: Path | None,
    output: Path,
    report: bool,
    page: Path | None,
    **options: Any,
) -> None:
    """Quantise MODEL (.tym or .onnx) after looking at SAMPLES.

    SAMPLES are .npy, .npz with an array for each input, or a folder of such files; --dynamic
    and --int4 need none.
    """
    from .quantize import quantize_model

    quantize_model(model, calibration, output, report, page, **options)


if __name__ == "__main__":
    main()
