"""Quantise a model file: ``python -m tianyuan_quant model.onnx data.npz -o model-int8.tym``."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from .files import quantize_file


def main() -> None:
    """Read the arguments, quantise, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tianyuan_quant", description=__doc__)
    parser.add_argument("model", help=".tym or .onnx file of floats")
    parser.add_argument("data", help=".npy of samples, or .npz with one array per input, in order")
    parser.add_argument("-o", "--output", required=True, help=".tym file to write")
    parser.add_argument("--batch", type=int, default=32, help="samples per run (default 32)")
    parser.add_argument("--keep", action="append", default=[], help="pattern that stays in floats")
    parser.add_argument("--html", help="file to write the report to")
    given = parser.parse_args()
    loaded = np.load(given.data, allow_pickle=False)
    arrays = [loaded] if isinstance(loaded, np.ndarray) else [loaded[k] for k in loaded.files]
    count = range(0, len(arrays[0]), given.batch)
    batches = [tuple(a[i : i + given.batch] for a in arrays) for i in count]
    report = quantize_file(given.model, batches, given.output, keep=given.keep)
    print(report)
    if given.html:
        Path(given.html).write_text(report.to_html(), encoding="utf-8")


if __name__ == "__main__":
    main()
