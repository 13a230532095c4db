"""The few operators of the classical machine-learning domain that work on plain numbers."""

from __future__ import annotations

from ..node import Node
from ..table import operator
from .common import Tensor, binary

_DOMAIN = "ai.onnx.ml"


@operator("Binarizer", domain=_DOMAIN)
def binarizer(node: Node, x: Tensor) -> Tensor:
    """Return 1 where an element exceeds the threshold and 0 elsewhere."""
    return binary("greater", x, node.float("threshold", 0.0)).astype(x.dtype)
