"""Draw the operators of a model file, as text for Graphviz or as a picture."""

from __future__ import annotations

from html import escape
from pathlib import Path

import click

from ..utils.network import Network
from ..utils.network_node import ConstOpBase, OpNode
from .command import MODEL, run

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 180, 40, 24, 44


def _shown(network: Network, params: bool) -> list[OpNode]:
    return [opr for opr in network.all_oprs if params or not isinstance(opr, ConstOpBase)]


def _labels(opr: OpNode) -> tuple[str, str]:
    return opr.type if opr.op is not None else opr.name, str(opr.outputs[0]._spec)


def to_dot(network: Network, params: bool = False) -> str:
    """Return a network as a Graphviz program; ``params`` also draws weights.

    >>> net = Network()
    >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
    >>> print(to_dot(net))
    digraph network {
      rankdir=TB; node [shape=box, fontname=Helvetica];
      n0 [label="x\\nfloat32(2,)"];
      n1 [label="neg\\nfloat32(2,)"];
      n0 -> n1;
    }
    """
    oprs = _shown(network, params)
    numbers = {opr: index for index, opr in enumerate(oprs)}
    lines = ["digraph network {", "  rankdir=TB; node [shape=box, fontname=Helvetica];"]
    for opr, index in numbers.items():
        label = "\\n".join(text.replace('"', '\\"') for text in _labels(opr))
        lines.append(f'  n{index} [label="{label}"];')
    for opr, index in numbers.items():
        for var in opr.inputs:
            if var.owner in numbers:
                lines.append(f"  n{numbers[var.owner]} -> n{index};")
    return "\n".join([*lines, "}"])


def _places(oprs: list[OpNode]) -> dict[OpNode, tuple[int, int]]:
    """Place every operator one row below the lowest that it reads."""
    rows: dict[OpNode, int] = {}
    filled: dict[int, int] = {}
    found = {}
    for opr in oprs:
        row = max((rows[v.owner] + 1 for v in opr.inputs if v.owner in rows), default=0)
        rows[opr] = row
        column = filled.get(row, 0)
        filled[row] = column + 1
        found[opr] = (column * (_WIDTH + _GAP_X) + _GAP_X, row * (_HEIGHT + _GAP_Y) + _GAP_Y)
    return found


def to_svg(network: Network, params: bool = False) -> str:
    """Return a network as a picture in SVG, inputs above; ``params`` also draws weights.

    >>> net = Network()
    >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
    >>> to_svg(net).count("<rect"), to_svg(net).count("<line")
    (2, 1)
    """
    places = _places(_shown(network, params))
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _GAP_X
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _GAP_Y
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica" font-size="11">'
    ]
    for opr, (x, y) in places.items():
        for var in opr.inputs:
            if var.owner in places:
                left, top = places[var.owner]
                lines.append(
                    f'<line x1="{left + _WIDTH // 2}" y1="{top + _HEIGHT}" '
                    f'x2="{x + _WIDTH // 2}" y2="{y}" stroke="#888"/>'
                )
    for opr, (x, y) in places.items():
        kind, spec = map(escape, _labels(opr))
        fill = "#fff" if opr.op is not None else "#e8f0e8"
        lines += [
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" fill="{fill}" '
            f'stroke="#333"><title>{escape(opr.name)}</title></rect>',
            f'<text x="{x + 8}" y="{y + 16}">{kind}</text>',
            f'<text x="{x + 8}" y="{y + 32}" fill="#666">{spec}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


@click.command("draw_graph")
@MODEL
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path),
              help="A .dot or .svg file to write; without, Graphviz text is shown.")  # fmt: skip
@click.option("--params", is_flag=True, help="Draw weights too.")
def _command(model: Path, output: Path | None, params: bool) -> None:
    """Draw the operators of MODEL."""
    network = Network.load(model)
    if output is None:
        click.echo(to_dot(network, params))
    elif output.suffix in (".svg", ".dot"):
        draw = to_svg if output.suffix == ".svg" else to_dot
        output.write_text(draw(network, params))
    else:
        raise click.BadParameter(f"got {output.name!r}, expected .dot or .svg")


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.draw_graph MODEL``."""
    run(_command)


if __name__ == "__main__":
    main()
