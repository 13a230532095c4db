"""Hand a model to the plugin that quantises, and show what that loses."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from .. import plugins

_PLUGIN = "quantization"


def quantisation() -> Any | None:
    """Return the package that a plugin brings as ``tianyuan.quantization``, or None."""
    found = plugins.namespaces().get(_PLUGIN)
    return None if found is None else import_module(found)


def quantize_model(
    model: Path,
    calibration: Path | None,
    output: Path,
    report: bool,
    page: Path | None,
    **options: Any,
) -> None:
    """Quantise a model, and print or write the report.

    Raises:
        click.UsageError: where no plugin brings ``tianyuan.quantization``.
    """
    package = quantisation()
    if package is None:
        raise click.UsageError(
            "quantisation is not installed, expected the package tianyuan-quant: "
            "`pip install ./packages/tianyuan-quant` at the root of the repository"
        )
    command = import_module(f"{package.__name__}.command")
    found = command.quantize_model(model, calibration, output, **options)
    if report:
        click.echo(str(found.report))
    elif found.report.output_snr is not None:
        click.echo(f"signal to noise of the output: {found.report.output_snr:.1f} dB")
    if page is not None:
        page.write_text(found.report.to_html(), encoding="utf-8")
    click.echo(f"{output}: {output.stat().st_size} bytes")
