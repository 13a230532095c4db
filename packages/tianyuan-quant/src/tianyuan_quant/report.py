"""Say what quantisation loses, layer by layer, as text and as a page."""

from __future__ import annotations

import html
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LayerReport:
    """What one layer loses.

    Attributes:
        name: of the module, or of the call whose result is quantised.
        kind: its class.
        snr: signal to noise of its result, in dB, with everything before it quantised too.
        alone: signal to noise of the network's output where only this layer is quantised; None
            where it was not measured.
    """

    name: str
    kind: str
    snr: float
    alone: float | None = None


@dataclass(frozen=True)
class Report:
    """What quantisation loses, layer by layer; signal to noise in dB."""

    layers: tuple[LayerReport, ...]
    output_snr: float

    def worst(self, count: int = 5) -> tuple[LayerReport, ...]:
        """Return the layers that lose most: by what they cost alone where that was measured."""

        def loss(layer: LayerReport) -> float:
            return layer.snr if layer.alone is None else layer.alone

        return tuple(sorted(self.layers, key=loss)[:count])

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [f"{'layer':<{width}}  {'SNR dB':>7}  {'alone':>7}  kind"]
        for layer in self.layers:
            alone = "" if layer.alone is None else f"{layer.alone:.1f}"
            lines.append(f"{layer.name:<{width}}  {layer.snr:>7.1f}  {alone:>7}  {layer.kind}")
        lines.append(f"{'output':<{width}}  {self.output_snr:>7.1f}")
        lines.append("worst: " + ", ".join(layer.name for layer in self.worst()))
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the report as a page with one bar per layer."""
        rows = []
        for layer in self.layers:
            share = max(0.0, min(layer.snr, 60.0)) / 60 * 100
            rows.append(
                f"<tr><td>{html.escape(layer.name)}</td><td>{html.escape(layer.kind)}</td>"
                f"<td>{layer.snr:.1f}</td><td><div style='background:#69c;height:1em;"
                f"width:{share:.0f}%'></div></td></tr>"
            )
        head = "<tr><th>layer</th><th>kind</th><th>SNR dB</th><th style='width:50%'></th></tr>"
        return (
            "<!doctype html><meta charset='utf-8'><title>Quantisation</title>"
            f"<p>Output: {self.output_snr:.1f} dB</p><table>{head}{''.join(rows)}</table>"
        )


class Noise:
    """Sums signal and noise over batches."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0

    def add(self, want: np.ndarray, got: np.ndarray) -> None:
        """Take one result into account."""
        self.signal += float(np.square(want, dtype=np.float64).sum())
        self.noise += float(np.square(got.astype(np.float64) - want).sum())

    @property
    def decibel(self) -> float:
        """The ratio in dB; infinite where nothing is lost."""
        if self.noise == 0:
            return float("inf")
        return float(10 * np.log10(max(self.signal, 1e-30) / self.noise))
