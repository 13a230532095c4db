"""Make a page that shows a large SVG picture, with the mouse to move and zoom it."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import click

from ..errors import AttrError
from .command import run

_SCRIPT = """
const box = document.getElementById("box"), svg = box.querySelector("svg");
let x = 0, y = 0, scale = 1, from = null;
svg.style.transformOrigin = "0 0";
const show = () => svg.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
box.onwheel = e => {
  e.preventDefault();
  const by = Math.exp(-e.deltaY / 500);
  x = e.clientX - (e.clientX - x) * by; y = e.clientY - (e.clientY - y) * by; scale *= by; show();
};
box.onpointerdown = e => { from = [e.clientX - x, e.clientY - y]; };
box.onpointermove = e => {
  if (from) { x = e.clientX - from[0]; y = e.clientY - from[1]; show(); }
};
box.onpointerup = box.onpointerleave = () => { from = null; };
"""


def to_page(svg: str, title: str = "") -> str:
    """Return an HTML page around a picture; scripts inside the picture are left out.

    >>> "<svg" in to_page("<svg></svg>", "a picture")
    True

    Raises:
        AttrError: where it is no SVG.
    """
    found = re.search(r"<svg\b.*</svg>", svg, re.DOTALL)
    if found is None:
        raise AttrError("svg_viewer: not an SVG picture, expected <svg> … </svg>")
    picture = re.sub(r"<script\b.*?</script>", "", found[0], flags=re.DOTALL | re.IGNORECASE)
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>html, body, #box { margin: 0; height: 100%; overflow: hidden; cursor: move }"
        f'</style></head>\n<body><div id="box">{picture}</div>\n'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


@click.command("svg_viewer")
@click.argument("picture", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Page to write; PICTURE with .html in place of .svg without it.")  # fmt: skip
def _command(picture: Path, output: Path | None) -> None:
    """Make a page to open in a browser that shows PICTURE, an SVG file."""
    target = output or picture.with_suffix(".html")
    target.write_text(to_page(picture.read_text(), picture.name))
    click.echo(str(target))


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.svg_viewer PICTURE``."""
    run(_command)


if __name__ == "__main__":
    main()
