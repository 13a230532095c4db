"""Say what quantisation loses, layer by layer, as text and as a page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Decibels at which a bar of the page is full, and below which its colour warns.
_FULL, _POOR = 60.0, 15.0
_ROW, _LEFT, _BAR = 20, 300, 400


@dataclass(frozen=True)
class LayerReport:
    """What one layer loses; ratios of signal to noise in dB.

    Attributes:
        name: of the module, or of the call whose result is quantised.
        kind: its class, or its op.
        snr: of its result with everything before it quantised too; of the weight where only
            weights are quantised.
        alone: of the network's output where only this layer is quantised; None where it was not
            measured.
        win: by how much the network's output gets better where this layer alone stays in floats;
            None where it was not measured.

    >>> LayerReport("fc", "Linear", 31.5).snr
    31.5
    """

    name: str
    kind: str
    snr: float
    alone: float | None = None
    win: float | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """What quantisation loses, layer by layer; ratios of signal to noise in dB.

    ``output_snr`` is None where the output was not measured; ``floats`` are modules with a weight
    that stay in floats, as they have no integer form or were kept.

    >>> layers = (LayerReport("a", "Linear", 20.0), LayerReport("b", "Linear", 9.0))
    >>> print(Report(layers, 8.0, ("rnn (LSTM)",)))
    layer    SNR dB    alone      win  kind
    a          20.0                    Linear
    b           9.0                    Linear
    output      8.0
    worst: b, a
    in floats: rnn (LSTM)
    """

    layers: tuple[LayerReport, ...]
    output_snr: float | None
    floats: tuple[str, ...] = ()

    def worst(self, count: int = 5) -> tuple[LayerReport, ...]:
        """Return the layers that lose most: by what they cost alone where that was measured.

        Only layers that can be kept in floats count where that was tried; values between layers,
        the rows of kind ``Site``, cannot.

        >>> layers = (LayerReport("a", "Linear", 20.0), LayerReport("b", "Linear", 9.0))
        >>> Report(layers, None).worst(1)[0].name
        'b'
        """

        def loss(layer: LayerReport) -> float:
            return layer.snr if layer.alone is None else layer.alone

        layers = [layer for layer in self.layers if layer.kind != "Site"]
        tried = [layer for layer in layers if layer.alone is not None]
        tried = tried or [layer for layer in layers if layer.win is not None]
        return tuple(sorted(tried or self.layers, key=loss)[:count])

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=0)
        width = max(width, len("output"))
        lines = [f"{'layer':<{width}}  {'SNR dB':>7}  {'alone':>7}  {'win':>7}  kind"]
        for layer in self.layers:
            numbers = f"{_text(layer.snr):>7}  {_text(layer.alone):>7}  {_text(layer.win):>7}"
            lines.append(f"{layer.name:<{width}}  {numbers}  {layer.kind}")
        if self.output_snr is not None:
            lines.append(f"{'output':<{width}}  {_text(self.output_snr):>7}")
        lines.append("worst: " + ", ".join(map(_with_win, self.worst())))
        if self.floats:
            lines.append("in floats: " + ", ".join(self.floats))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def to_html(self) -> str:
        """Return the report as a page of its own: a drawing of one bar per layer, and a table.

        >>> "<svg" in Report((LayerReport("a", "Linear", 20.0),), 8.0).to_html()
        True
        """
        rows = "".join(map(_table_row, self.layers))
        output = "" if self.output_snr is None else f"<p>Output: {_text(self.output_snr)} dB.</p>"
        worst = html.escape(", ".join(map(_with_win, self.worst())))
        floats = html.escape(", ".join(self.floats))
        return (
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Quantisation</title>"
            "<style>body{font:14px sans-serif;margin:2em}td,th{padding:0 1em;text-align:left}"
            "td.n{text-align:right}</style><h1>What quantisation loses</h1>"
            f"{output}<p>Worst: {worst}.</p>{floats and f'<p>In floats: {floats}.</p>'}"
            f"{self._drawing()}"
            "<table><tr><th>layer</th><th>kind</th><th>SNR dB</th><th>alone dB</th>"
            f"<th>win dB</th></tr>{rows}</table></html>"
        )

    def _drawing(self) -> str:
        height = _ROW * (len(self.layers) + 1)
        parts = [
            f"<line x1='{x:.0f}' x2='{x:.0f}' y1='0' y2='{height - _ROW}' stroke='#ddd'/>"
            f"<text x='{x:.0f}' y='{height - 5}' fill='#888' text-anchor='middle'>{mark} dB</text>"
            for mark in (15, 30, 45, 60)
            for x in (_LEFT + _BAR * mark / _FULL,)
        ]
        for index, layer in enumerate(self.layers):
            y, share = index * _ROW, _share(layer.snr)
            colour = "#c54" if layer.snr < _POOR else "#48a"
            parts.append(
                f"<text x='{_LEFT - 8}' y='{y + 14}' text-anchor='end'>{html.escape(layer.name)}"
                f"</text><rect x='{_LEFT}' y='{y + 3}' height='{_ROW - 6}' fill='{colour}' "
                f"width='{share * _BAR:.1f}'><title>{_text(layer.snr)} dB</title></rect>"
            )
        size = f"width='{_LEFT + _BAR + 40}' height='{height}'"
        return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{''.join(parts)}</svg>"


def _share(snr: float) -> float:
    return 1.0 if math.isinf(snr) and snr > 0 else max(0.0, min(snr, _FULL)) / _FULL


def _text(value: float | None) -> str:
    return "" if value is None else f"{_rounded(value):.1f}"


def _rounded(value: float) -> float:
    return round(value, 1) + 0.0  # no sign in front of what rounds to zero


def _with_win(layer: LayerReport) -> str:
    return (
        layer.name
        if layer.win is None
        else f"{layer.name} (in floats {_rounded(layer.win):+.1f} dB)"
    )


def _table_row(layer: LayerReport) -> str:
    cells = "".join(
        f"<td class='n'>{_text(value)}</td>" for value in (layer.snr, layer.alone, layer.win)
    )
    return f"<tr><td>{html.escape(layer.name)}</td><td>{html.escape(layer.kind)}</td>{cells}</tr>"


class StaticResult(NamedTuple):
    """What was quantised, and what that loses.

    ``module`` is the network, or the model loaded from the file that was written.

    >>> StaticResult(None, Report((), 30.0)).report.output_snr
    30.0
    """

    module: Any
    report: Report

    def __repr__(self) -> str:
        return f"{type(self).__name__}(module={type(self.module).__name__}, report=\n{self.report})"


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


def ratio(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return signal to noise in dB over pairs of what is wanted and what was got."""
    noise = Noise()
    for want, got in pairs:
        noise.add(want, got)
    return noise.decibel
