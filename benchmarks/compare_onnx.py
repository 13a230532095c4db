"""Compare Tianyuan with ONNX Runtime on every ONNX model of a folder.

    python benchmarks/compare_onnx.py FOLDER_OR_FILE ... [--backends numpy x86] [--size batch=4]

For each model and backend: seconds to load, the largest difference as a share of the largest value,
whether the best class is the same, steps of the program, and the kernels that are references or, on
a native backend, numpy's. Quantised models are compared with ONNX Runtime as it is used, in
integers, and without its rewriting, in floats between the quantising nodes; how far these two are
apart is shown beside. Ends with status 1 where a float model differs by more than 1e-4, or a
reference runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tianyuan
from tianyuan import registry

TOLERANCE = 1e-4
_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul",
              "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}  # fmt: skip


def models(places: Iterable[Path]) -> list[Path]:
    """Return the ONNX files that are named or lie in named folders."""
    found: list[Path] = []
    for place in places:
        found += sorted(place.glob("*.onnx")) if place.is_dir() else [place]
    return found


def is_quantised(path: Path) -> bool:
    """Tell whether a model has quantised operators."""
    graph = onnx.load(path, load_external_data=False).graph
    return any(node.op_type in _QUANTISED for node in graph.node)


Arrays = Sequence[np.ndarray]


def their_answers(
    path: Path, inputs: Mapping[str, np.ndarray], threads: int, rewritten: bool = True
) -> Arrays:
    """Return ONNX Runtime's answers, with or without its rewriting of the graph."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if rewritten else levels.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    answers: Arrays = session.run(None, dict(inputs))
    return answers


def error(got: Arrays, want: Arrays) -> float:
    """Return the largest difference, as a share of the output's largest value."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / max(float(np.abs(b).max()), 1e-30))
        for a, b in zip(got, want, strict=True)
    )


def kernels_of(model: Any, inputs: Mapping[str, np.ndarray]) -> list[str] | None:
    """Return the kernel of every step, or None where the model runs eagerly."""
    try:
        program = model.program(*inputs.values())
    except tianyuan.errors.TraceError:
        return None
    return [step.kernel.name for step in program.steps]


def compare(path: Path, backend: str, given: argparse.Namespace) -> bool:
    """Print one line about a model on a backend; return whether it is as it should be."""
    start = time.perf_counter()
    model = tianyuan.jit.load(path, backend=backend, threads=given.threads)
    seconds = time.perf_counter() - start
    inputs = dict(zip(model.input_specs, model.example_inputs(given.sizes), strict=True))
    got = model(**inputs)
    got = got if isinstance(got, tuple) else (got,)
    quantised = is_quantised(path)
    want = their_answers(path, inputs, given.threads)
    apart = error(got, want)
    beside = ""
    if quantised:
        plain = their_answers(path, inputs, given.threads, rewritten=False)
        beside = f" ({error(got, plain):.1e} without rewriting; these two {error(want, plain):.1e})"
    same = float((got[0].argmax(-1) == want[0].argmax(-1)).mean())
    kernels = kernels_of(model, inputs)
    references = sorted({name for name in kernels or [] if name.endswith("__reference")})
    callouts = {n for n in kernels or [] if backend != "numpy" and "__numpy" in n}
    steps = "eager" if kernels is None else f"{len(kernels)} steps"
    print(
        f"{path.name:28s} {backend:6s} load {seconds:6.2f} s  error {apart:.1e}{beside}  "
        f"top-1 {same:.0%}  {steps}  references: {', '.join(references) or 'none'}"
        + (f"  numpy's: {', '.join(sorted(callouts))}" if callouts else ""),
        flush=True,
    )
    return not references and (quantised or apart <= TOLERANCE)


def main() -> None:
    """Compare every model on every backend."""
    registry.get_device_spec("cpu")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--backends", nargs="+", default=list(registry.backends()))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", action="append", default=[], help="of an open dimension: batch=4")
    given = parser.parse_args()
    given.sizes = {n: int(size) for n, _, size in (item.partition("=") for item in given.size)}
    fine = [compare(path, b, given) for path in models(given.places) for b in given.backends]
    sys.exit(0 if fine and all(fine) else 1)


if __name__ == "__main__":
    main()
