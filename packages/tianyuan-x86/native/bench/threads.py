"""Show where the time of a network on several threads goes, step by step.

    python native/bench/threads.py FILE [--threads 2] [--rounds 60] [--most 20] [--precision bf16]

Of each step's quickest run it prints, in microseconds: `one`, the time on one thread; `all`, on
several; `lost`, what a perfect split of `one` would take less. What that consists of is told for
all threads together: `serial`, outside of parallel loops; `wake`, until workers' first pieces;
`more`, work beyond that of one thread; `idle`, all other waiting for each other, of it `join`,
behind the last piece.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tianyuan
import tianyuan_x86.executable as executable
from tianyuan import jit

_THREADS = 16  # most_threads of threads.cpp


class Record(ctypes.Structure):
    """``Record`` of threads.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("wall", "loops", "inside", "wake", "join")),
        ("busy", ctypes.c_int64 * _THREADS),
    ]


def _library() -> ctypes.CDLL:
    """Compile threads.cpp and load a copy of it, whose records are its own."""
    file = Path(tempfile.mkdtemp()) / "threads.so"
    include = Path(tianyuan.__file__).parent / "include"
    command = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*command, Path(__file__).with_name("threads.cpp"), "-o", file], check=True)
    library = ctypes.CDLL(str(file))
    library.threads_wrap.restype = ctypes.c_void_p
    library.threads_wrap.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.threads_record.restype = ctypes.POINTER(Record)
    library.threads_ticks.restype = ctypes.c_int64
    return library


class Measured:
    """A model on some threads, as it is and with kernels that are recorded."""

    def __init__(self, path: str, threads: int, precision: str) -> None:
        self.threads = threads
        self.library = _library()
        model = jit.load(path, threads=threads, precision=precision)
        self.inputs = [np.ascontiguousarray(array) for array in model.example_inputs()]
        model(*self.inputs)
        forms = model._compiled
        compiled = forms.compiled_for(forms.sizes_for([array.shape for array in self.inputs]))
        self.keep = model
        self.steps = compiled.program.steps
        self.outputs = forms.make_outputs(compiled)
        self.plain: Any = compiled.executable
        self.recorded = self._recorded(compiled.program)

    def _recorded(self, program: Any) -> Any:
        plain = executable._step
        count = 0

        def recorded(step: Any, threads: int, keep: list[Any]) -> tuple[Any, ...]:
            nonlocal count
            found = plain(step, threads, keep)
            count += 1
            address = self.library.threads_wrap(count - 1, found[0]) if found[0] else None
            return (address or found[0], *found[1:])

        executable._step = recorded
        try:
            return executable.NativeExecutable(program)
        finally:
            executable._step = plain

    def run(self, prepared: Any) -> float:
        """Run once and return the seconds that passed."""
        start = time.perf_counter()
        prepared.run(self.inputs, [], self.outputs)
        return time.perf_counter() - start

    def records(self) -> Sequence[Record]:
        """Return the record of each step's quickest run."""
        return [self.library.threads_record(index).contents for index in range(len(self.steps))]


def _ticks(library: ctypes.CDLL) -> float:
    """Return how many ticks of the counter pass in a microsecond."""
    start, before = time.perf_counter(), library.threads_ticks()
    time.sleep(0.2)
    return float(library.threads_ticks() - before) / (time.perf_counter() - start) / 1e6


def _row(one: Record | None, record: Record, threads: int, tick: float) -> dict[str, float]:
    busy = sum(record.busy)
    row = {
        "one": one.wall if one else 0,
        "all": record.wall,
        "lost": record.wall - one.wall / threads if one else 0,
        "serial": (record.wall - record.inside) * (threads - 1),
        "wake": record.wake,
        "more": busy + record.wall - record.inside - one.wall if one else 0,
        "idle": record.inside * threads - busy - record.wake,
        "join": record.join * threads,
    }
    return {name: value / tick for name, value in row.items()} | {"loops": record.loops}


def main() -> None:
    """Print the losses of one model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--precision", default="full")
    a = parser.parse_args()
    single, several = (Measured(a.file, n, a.precision) for n in (1, a.threads))
    models = (single, several)
    plain = [1e9, 1e9]
    for _ in range(a.rounds):
        for index, model in enumerate(models):
            for _ in range(4):
                plain[index] = min(plain[index], model.run(model.plain))
                model.run(model.recorded)
    tick = _ticks(single.library)
    same = [s.kernel.name for s in single.steps] == [s.kernel.name for s in several.steps]
    ones: Sequence[Record | None] = single.records() if same else [None] * len(several.steps)
    rows = [_row(o, r, a.threads, tick) for o, r in zip(ones, several.records(), strict=True)]
    print(
        f"whole runs: {plain[0] * 1e3:.3f} ms, {plain[1] * 1e3:.3f} ms on {a.threads} threads"
        f" ({plain[0] / plain[1]:.2f} times as fast){'' if same else '; the steps differ'}"
    )
    names = list(rows[0])
    print(" ".join(f"{name:>7}" for name in names))
    total = {name: sum(row[name] for row in rows) for name in names}
    order = sorted(range(len(rows)), key=lambda index: -rows[index]["lost" if same else "all"])
    for index in [-1, *order[: a.most]]:
        row = total if index < 0 else rows[index]
        text = " ".join(f"{row[name]:7.1f}" for name in names)
        if index >= 0:
            step = several.steps[index]
            shapes = [
                several.plain.program.slots[i].spec.shape
                for i in (*step.inputs[:2], step.outputs[0])
            ]
            text += f" {index} {step.kernel.name} {shapes}"
        print(text)


if __name__ == "__main__":
    main()
