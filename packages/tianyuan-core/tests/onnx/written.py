"""Models written as text, and ONNX Runtime's answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime


def model(
    graph: str, opset: int = 18, weights: Mapping[str, np.ndarray] | None = None, more: str = ""
) -> Any:
    """Parse a graph in ONNX's text syntax; weights become initialisers."""
    head = f'<ir_version: 9, opset_import: ["" : {opset}{more}]>'
    made = onnx.parser.parse_model(f"{head}\n{graph}")
    for name, array in (weights or {}).items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def runtime(made: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(inputs))


def rng(seed: int = 0) -> np.random.Generator:
    """Return a generator of test data."""
    return np.random.default_rng(seed)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return standard normal float32 numbers."""
    return rng(seed).standard_normal(shape).astype(np.float32)
