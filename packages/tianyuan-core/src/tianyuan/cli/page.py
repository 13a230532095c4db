"""Draw a bench as one HTML page without scripts: times, steps, and steps under the roofline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape

from ..graph.roofline import Roofline, RooflineStep

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 70em; color: #222; }
table { border-collapse: collapse; width: 100%; } td, th { padding: 2px 8px; text-align: left; }
tr:nth-child(even) { background: #f4f4f4; } .n { text-align: right; } svg { width: 100%; }
.bar { fill: #c33; } .floor { fill: #393; } .roof { stroke: #333; fill: none; }
.dot { fill: #36c; fill-opacity: 0.6; } text { font-size: 12px; }
"""
_WIDTH, _HEIGHT, _MARGIN = 900, 360, 50
_ROW = 16


def roofline_page(
    name: str, drawn: Mapping[str, Roofline], seconds: Mapping[str, Sequence[float]]
) -> str:
    """Return a page on one model: for each backend its times, its steps and its roofline."""
    parts = [
        f"<!doctype html><html><head><meta charset='utf-8'><title>{escape(name)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{escape(name)}</h1>",
    ]
    for title, found in drawn.items():
        median = statistics.median(seconds[title]) * 1e3
        least = min(seconds[title]) * 1e3
        parts += [
            f"<h2>{escape(title)}</h2>",
            f"<p>median {median:.3f} ms, least {least:.3f} ms; steps take "
            f"{found.seconds * 1e3:.3f} ms, {found.floor * 1e3:.3f} ms at the peaks: "
            f"{found.peaks.in_words(found.arithmetic)}.</p>",
            _bars(found),
            _roof(found),
            _rows(found),
        ]
    return "\n".join([*parts, "</body></html>\n"])


def _bars(found: Roofline) -> str:
    """Draw each step's time, its floor in green and what is above it in red."""
    longest = max((step.seconds for step in found.steps), default=0.0) or 1.0
    height = _ROW * len(found.steps) + _ROW
    lines = [f"<svg viewBox='0 0 {_WIDTH} {height}' role='img'>"]
    for index, step in enumerate(found.steps):
        y = index * _ROW
        width = (_WIDTH - 420) * step.seconds / longest
        green = min(width, (_WIDTH - 420) * step.floor / longest)
        lines += [
            f"<text x='0' y='{y + 12}'>{step.report.index} {escape(step.report.kernel)}</text>",
            f"<rect class='bar' x='330' y='{y + 2}' width='{width:.1f}' height='12'/>",
            f"<rect class='floor' x='330' y='{y + 2}' width='{green:.1f}' height='12'/>",
            f"<text x='{335 + width:.1f}' y='{y + 12}'>{step.seconds * 1e6:.1f} us</text>",
        ]
    return "\n".join([*lines, "</svg>"])


def _roof(found: Roofline) -> str:
    """Draw operations per second over operations per byte, both by their logarithm."""
    points = [(step, _place(step)) for step in found.steps]
    placed = [(step, place) for step, place in points if place is not None]
    slope = math.log10(found.peaks.nbytes)
    tops = {name: math.log10(found.peaks.rate(name)) for name in found.arithmetic}
    ridges = [peak - slope for peak in tops.values()]
    xs = [min(ridges) - 1, max(ridges) + 1, *(x for _, (x, _) in placed)]
    ys = [*tops.values(), *(y for _, (_, y) in placed)]
    left, right, bottom, top = min(xs), max(xs), min(ys) - 0.2, max(ys) + 0.2

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left) * (_WIDTH - 2 * _MARGIN)
        up = (y - bottom) / (top - bottom) * (_HEIGHT - 2 * _MARGIN)
        return _MARGIN + across, _HEIGHT - _MARGIN - up

    lines = [f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>"]
    for name, peak in tops.items():
        roof = [(x, min(peak, x + slope)) for x in (left, peak - slope, right)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*corner) for corner in roof))
        end = at(right, peak)
        lines += [
            f"<polyline class='roof' points='{corners}'/>",
            f"<text x='{end[0]:.1f}' y='{end[1] - 4:.1f}' text-anchor='end'>{name}</text>",
        ]
    lines.append(
        f"<text x='{_MARGIN}' y='{_HEIGHT - 10}'>operations per byte, 10^{left:.1f} to "
        f"10^{right:.1f}; height: operations per second, 10^{bottom:.1f} to 10^{top:.1f}; "
        "area: time</text>"
    )
    longest = max((step.seconds for step, _ in placed), default=1.0)
    for step, (x, y) in placed:
        cx, cy = at(x, y)
        radius = 3 + 12 * math.sqrt(step.seconds / longest)
        label = f"{step.report.index} {escape(step.report.kernel)} {step.share:.0%}"
        lines.append(
            f"<circle class='dot' cx='{cx:.1f}' cy='{cy:.1f}' r='{radius:.1f}'>"
            f"<title>{label}</title></circle>"
        )
    return "\n".join([*lines, "</svg>"])


def _place(step: RooflineStep) -> tuple[float, float] | None:
    """Return where a step stands, or None where it computes or moves nothing."""
    report = step.report
    if not (report.flops and report.nbytes and step.seconds > 0):
        return None
    return math.log10(report.flops / report.nbytes), math.log10(report.flops / step.seconds)


def _rows(found: Roofline) -> str:
    lines = [
        "<table><tr><th>#<th>kernel<th>output<th class='n'>us<th class='n'>above its floor"
        "<th>bound<th class='n'>reached<th>refused before</tr>"
    ]
    for step in found.steps:
        report = step.report
        refused = "; ".join(f"{who}: {why}" for who, why in report.refusals)
        output = report.outputs[0] if report.outputs else ""
        lines.append(
            f"<tr><td>{report.index}<td>{escape(report.kernel)}<td>{escape(output)}"
            f"<td class='n'>{step.seconds * 1e6:.1f}<td class='n'>{step.lost * 1e6:.1f}"
            f"<td>{step.bound}<td class='n'>{step.share:.0%}<td>{escape(refused)}</tr>"
        )
    return "\n".join([*lines, "</table>"])
