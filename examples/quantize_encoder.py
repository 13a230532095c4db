"""Store the weights of a transformer in 8 and 4 bits, and print size and loss of each way.

Usage: python examples/quantize_encoder.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tianyuan as ty
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan.jit import load, trace


def dumped(net: M.Module, example: np.ndarray, path: Path) -> Path:
    """Write a network to a model file for any batch."""
    run = trace(
        lambda x: net(x), symbolic=True, capture_as_const=True, dynamic_shapes={"x": {0: "n"}}
    )  # fmt: skip
    run(ty.Tensor(example))
    run.dump(path, arg_names=["x"])
    return path


def main() -> None:
    """Print a row per way: size of the file, and signal to noise of what it gives."""
    ty.random.seed(0)
    layer = M.TransformerEncoderLayer(128, 4, 512, activation="gelu")
    net = M.TransformerEncoder(layer, 2).eval()
    x = np.random.default_rng(0).standard_normal((4, 32, 128)).astype(np.float32)
    want = net(ty.Tensor(x)).numpy()
    ways = {
        "float": lambda: net,
        "static int8": lambda: Q.quantize_static(net, [x[:2], x[2:]]).module,
        "dynamic int8": lambda: Q.quantize_dynamic(net).module,
        "int4, groups of 128": lambda: Q.quantize_weights(net, 4, 128).module,
        "int4, groups of 32": lambda: Q.quantize_weights(net, 4, 32).module,
        "int4, groups of 8": lambda: Q.quantize_weights(net, 4, 8).module,
    }
    print(f"{'weights':20} {'KiB':>6} {'SNR dB':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in ways.items():
            path = dumped(make(), x[:2], Path(folder) / "model.tym")
            noise = np.square(np.asarray(load(path)(x)) - want).sum()
            ratio = 10 * np.log10(np.square(want).sum() / noise) if noise else float("inf")
            print(f"{name:20} {path.stat().st_size / 1024:6.0f} {ratio:7.1f}")


if __name__ == "__main__":
    main()
