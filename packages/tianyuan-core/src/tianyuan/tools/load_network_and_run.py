"""Load a model file, run it, and time it: the ``tianyuan`` command's ``run`` and ``bench`` in one.

Options have the names of MegEngine's load-and-run where both have them.
"""

from __future__ import annotations

from pathlib import Path

import click

from .command import INPUTS, MODEL, run


@click.command("load_network_and_run")
@MODEL
@INPUTS
@click.option("--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz.")
@click.option("--backend", help="Backend whose kernels serve the model.")
@click.option("--threads", type=click.IntRange(1), help="Threads per run.")
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME=N", help="Size of a dynamic dimension."
)
@click.option("--iter", "rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--profile", is_flag=True, help="Show the time of each step.")
def _command(
    model: Path, inputs: tuple[str, ...], output: Path | None, backend: str | None,
    threads: int | None, sizes: tuple[str, ...], rounds: int, profile: bool,
) -> None:  # fmt: skip
    """Run MODEL on inputs where any are given, then time it on random ones."""
    from ..cli.models import bench_model, run_model

    if inputs:
        run_model(model, inputs, output, backend, threads)
    bench_model(model, [backend] if backend else [], threads, sizes, rounds, profile)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.load_network_and_run MODEL``."""
    run(_command)


if __name__ == "__main__":
    main()
