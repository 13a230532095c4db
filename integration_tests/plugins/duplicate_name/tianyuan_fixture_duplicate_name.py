"""A plugin under the name that the distribution tianyuan-fixture-good uses."""

from __future__ import annotations

from tianyuan.plugin import Op, hookimpl

TIANYUAN_API = (1, 0)


@hookimpl
def tianyuan_ops() -> tuple[Op, ...]:
    return (Op("fixture_by_the_other", infer=lambda specs, attrs: specs),)
