"""Bring ONNX models in, as a trainable module or a model that runs compiled, and write them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .build import build
from .model import load_model
from .module import OnnxModule
from .reader import opened
from .table import supported

if TYPE_CHECKING:
    from .export_model import OPSET, export

LIMIT = 4 << 30  # most bytes of one value, unless asked for otherwise


def load(source: Any, *, max_bytes: int = LIMIT) -> OnnxModule:
    """Load an ONNX model as a module whose weights can be trained.

    Args:
        source: path of a file, its bytes, or an ``onnx.ModelProto``.
        max_bytes: most bytes that one value may have, weights included.

    Raises:
        ImportError: where the package ``onnx`` is not installed.
        FileNotFoundError: where there is no such file.
        ModelFormatError: where it is damaged or uses what cannot be imported; all operators that
            are not known are named at once, with their nodes.

    >>> import tianyuan as ty
    >>> ty.onnx.export(lambda x: x * 2, "double.onnx", ty.Tensor([1.0]))
    >>> load("double.onnx")(ty.Tensor([3.0])).item()
    6.0
    """
    with opened(source) as (model, tensors):
        return OnnxModule(build(model, tensors), max_bytes)


def __getattr__(name: str) -> Any:
    if name in ("OPSET", "export"):  # a model is read more often than it is written
        from . import export_model

        return getattr(export_model, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


__all__ = ["LIMIT", "OPSET", "OnnxModule", "export", "load", "load_model", "supported"]
