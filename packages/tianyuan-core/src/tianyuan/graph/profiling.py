"""Measure how long a kernel takes for a call, and remember the answers in memory and in a file."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from .. import registry
from ..errors import KernelError
from ..imperative import dispatch
from ..kernel import Call, Kernel
from ..op import TensorSpec
from . import layouts
from .interpreter import StepInterpreter
from .program import INPUT, OUTPUT, Program, Slot, Step

MOST_RUNS = 5
ENOUGH_SECONDS = 0.05  # a kernel that has run for so long is measured well enough

_known: dict[str, float] = {}
_loaded: set[Path] = set()


def seconds(kernel: Kernel, call: Call, inputs: Sequence[str], outputs: Sequence[str]) -> float:
    """Return the least time that a kernel took for a call, its values lying in these layouts.

    Data is random for floats and zero otherwise. A kernel that fails on such data is taken at its
    own estimate.
    """
    path = cache_file()
    if path not in _loaded:
        _known.update(_read(path))
        _loaded.add(path)
    key = _key(kernel, call, inputs, outputs)
    if key not in _known:
        _known[key] = measure(kernel, call, inputs, outputs)
        _write(path)
    return _known[key]


def measure(kernel: Kernel, call: Call, inputs: Sequence[str], outputs: Sequence[str]) -> float:
    """Run a kernel a few times and return the least seconds of one run."""
    given = list(zip(call.inputs, inputs, strict=True))
    made = list(zip(call.outputs, outputs, strict=True))
    interpreter = StepInterpreter(_program(kernel, call, given, made))
    arrays = [_data(spec, layout) for spec, layout in given]
    results = [dispatch.empty(layouts.extents(s.shape, name), s.dtype) for s, name in made]
    try:
        interpreter.run(arrays, (), results)
        taken: list[float] = []
        while len(taken) < MOST_RUNS and sum(taken) < ENOUGH_SECONDS:
            taken += interpreter.profile(arrays, (), results)
    except KernelError:
        return kernel.cost(call)
    return min(taken)


def _program(
    kernel: Kernel,
    call: Call,
    given: Sequence[tuple[TensorSpec, str]],
    made: Sequence[tuple[TensorSpec, str]],
) -> Program:
    """Return a program whose only step is the call."""
    slots = [
        Slot(kind, index, spec, layout, layouts.extents(spec.shape, layout))
        for kind, values in ((INPUT, given), (OUTPUT, made))
        for index, (spec, layout) in enumerate(values)
    ]
    split = len(given)
    size = kernel.workspace(call)
    ins, outs = tuple(range(split)), tuple(range(split, len(slots)))
    step = Step(kernel, call.op, call.attrs, ins, outs, 0, size)
    return Program(tuple(slots), (step,), ins, outs, (), (), size, size, call.threads)


def _data(spec: TensorSpec, layout: str) -> np.ndarray:
    array = dispatch.empty(layouts.extents(spec.shape, layout), spec.dtype)
    if spec.dtype.kind == "f":
        array[...] = np.random.default_rng(0).random(array.shape, np.float32)
    else:
        array[...] = np.zeros((), spec.dtype)
    return array


def _key(kernel: Kernel, call: Call, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Name everything that an answer depends on beside the CPU: kernels known, kernel and call."""
    rivals = sorted(rival.name for rival in registry.candidates(call.op.name))
    text = repr((kernel.backend, kernel.name, call.key, tuple(inputs), tuple(outputs), rivals))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# The file: one JSON object per model of CPU.


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cache_file() -> Path:
    """Return where measured times are kept: under TIANYUAN_CACHE_DIR, or the user's cache."""
    chosen = os.environ.get("TIANYUAN_CACHE_DIR")
    base = Path(chosen) if chosen else Path.home() / ".cache" / "tianyuan"
    model = hashlib.sha256(cpu_model().encode()).hexdigest()[:12]
    return base / f"kernel-times-{model}.json"


def _read(path: Path) -> dict[str, float]:
    """Return the times in a file; one that is absent or damaged holds none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: float(v) for k, v in found.items() if isinstance(v, (int, float)) and v > 0}


def _write(path: Path) -> None:
    """Replace the file as a whole; where the folder cannot be written, nothing is kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump(_known, file)
        os.replace(name, path)
    except OSError:
        return
