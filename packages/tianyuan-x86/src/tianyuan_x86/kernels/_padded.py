"""Decide when an elementwise kernel may run over the padding lanes of blocked images."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import Call


def padded_images(lanes: int) -> Callable[[Call], str | None]:
    """Return a ``supports`` that takes images of one shape whose last block is padded.

    Where no block is padded, a kernel that walks memory flat serves the layout already.
    """

    def supports(call: Call) -> str | None:
        shape = call.outputs[0].shape
        if any(spec.shape != shape for spec in (*call.inputs, *call.outputs)):
            return "serves values of one shape"
        if len(shape) != 4 or int(shape[1]) % lanes == 0:
            return f"serves images whose channels do not fill blocks of {lanes}"
        return None

    return supports
