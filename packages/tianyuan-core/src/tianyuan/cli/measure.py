"""Run one model file on one backend in this process: outputs to a file, times to stdout."""

from __future__ import annotations

import json
import statistics
import sys
from time import perf_counter

import numpy as np

from .. import jit

BATCHES = (1, 64)
_ROUNDS, _SECONDS = 20, 0.1  # at least; the first calls of a busy machine are no measure


def main(model_file: str, images_file: str, output_file: str, backend: str) -> None:
    """Write the outputs for all images, and print the median milliseconds per batch size."""
    model = jit.load(model_file, backend=backend)
    images = np.load(images_file)
    parts = [model(images[start : start + 64]) for start in range(0, len(images), 64)]
    np.save(output_file, np.concatenate(parts))
    milliseconds = {}
    for size in BATCHES:
        batch = images[:size]
        times: list[float] = []
        while len(times) < _ROUNDS or sum(times) < _SECONDS:
            start = perf_counter()
            model(batch)
            times.append(perf_counter() - start)
        milliseconds[str(size)] = statistics.median(times) * 1e3
    print(json.dumps(milliseconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
