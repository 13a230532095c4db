"""One of two plugins that bring the same op."""

from __future__ import annotations

from tianyuan.plugin import Layout, Op, hookimpl

TIANYUAN_API = (1, 0)


@hookimpl
def tianyuan_ops() -> tuple[Op, ...]:
    return (
        Op("fixture_only_a", infer=lambda specs, attrs: specs),
        Op("fixture_twin", infer=lambda specs, attrs: specs),
    )


@hookimpl
def tianyuan_layouts() -> tuple[Layout, ...]:
    return (Layout("fixture_only_a", 1, lambda s: s, lambda a: a, lambda a, shape: a),)
