"""Steps of optimisers, as the preview domain for training has them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..node import Node
from ..table import operator
from .common import Tensor, binary, run

_DOMAIN = "ai.onnx.preview.training"


def _grouped(values: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """Return (weight, gradient, state …) of each tensor, which the file lists by kind."""
    if not values or len(values) % count:
        raise ShapeError(f"inputs do not fit, got {len(values)}, expected a multiple of {count}")
    size = len(values) // count
    return [tuple(values[i + k * size] for k in range(count)) for i in range(size)]


def _listed(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(value for column in zip(*rows, strict=True) for value in column)


def _decayed(node: Node, x: Tensor, g: Tensor) -> Tensor:
    return run("add", g, binary("mul", x, node.float("norm_coefficient", 0.0)))


@operator("Adagrad", domain=_DOMAIN)
def adagrad(node: Node, rate: Tensor, turn: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    slowing = binary(
        "add", binary("mul", turn.astype(rate.dtype), node.float("decay_factor", 0.0)), 1
    )
    step = run("div", rate, slowing)
    rows = []
    for x, g, h in _grouped(values, 3):
        g = _decayed(node, x, g)
        h = run("add", h, run("square", g))
        size = binary("add", run("sqrt", h), node.float("epsilon", 0.0))
        rows.append((run("sub", x, run("div", run("mul", step, g), size)), h))
    return _listed(rows)


@operator("Momentum", domain=_DOMAIN)
def momentum(node: Node, rate: Tensor, turn: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    alpha, beta = node.float("alpha"), node.float("beta")
    nesterov = node.text("mode", allowed=("standard", "nesterov")) == "nesterov"
    first = binary("greater", turn, 0)
    share = run("where", first, rate.full((), beta), rate.full((), 1.0))
    rows = []
    for x, g, v in _grouped(values, 3):
        g = _decayed(node, x, g)
        v = run("add", binary("mul", v, alpha), run("mul", share, g))
        way = run("add", g, binary("mul", v, alpha)) if nesterov else v
        rows.append((run("sub", x, run("mul", rate, way)), v))
    return _listed(rows)


@operator("Adam", domain=_DOMAIN)
def adam(node: Node, rate: Tensor, turn: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    alpha, beta = node.float("alpha", 0.9), node.float("beta", 0.999)
    later = binary("greater", turn, 0)
    time = turn.astype(rate.dtype)
    ratio = run(
        "div",
        run("sqrt", run("sub", rate.full((), 1.0), run("pow", rate.full((), beta), time))),
        run("sub", rate.full((), 1.0), run("pow", rate.full((), alpha), time)),
    )
    step = run("where", later, run("mul", rate, ratio), rate)
    rows = []
    for x, g, m, v in _grouped(values, 4):
        g = _decayed(node, x, g)
        m = run("add", binary("mul", m, alpha), binary("mul", g, 1 - alpha))
        v = run("add", binary("mul", v, beta), binary("mul", run("square", g), 1 - beta))
        size = binary("add", run("sqrt", v), node.float("epsilon", 0.0))
        moved = run("sub", x, run("mul", step, run("div", m, size)))
        shrink = 1 - node.float("norm_coefficient_post", 0.0)
        rows.append((binary("mul", moved, shrink), m, v))
    return _listed(rows)
