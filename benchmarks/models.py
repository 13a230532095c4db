"""Time Tianyuan beside ONNX Runtime and PyTorch on networks that this file builds itself.

Each network is written once, over a small set of operations, and computed by every framework with
the same weights. Frameworks take turns, so that a busy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Forward = Callable[["Operations", Any], Any]
Run = Callable[[Array], Array]
TOLERANCE = 1e-3  # of the largest value: Winograd convolutions are allowed


class Operations:
    """What a network may use; a subclass says how a framework does it.

    Weights are drawn in the order of use, so that every framework gets the same ones.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def _draw(self, *shape: int) -> tuple[Any, Any]:
        scale = math.sqrt(2.0 / math.prod(shape[1:]))
        weight = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        bias = (self._rng.standard_normal(shape[0]) * 0.1).astype(np.float32)
        return self.constant(weight), self.constant(bias)

    def conv(
        self, x: Any, outputs: int, kernel: int, stride: int = 1, pad: int = 0, groups: int = 1
    ) -> Any:
        weight, bias = self._draw(outputs, x.shape[1] // groups, kernel, kernel)
        return self.conv2d(x, weight, bias, stride, pad, groups)

    def dense(self, x: Any, outputs: int) -> Any:
        return self.linear(x, *self._draw(outputs, x.shape[1]))

    def constant(self, array: Array) -> Any:
        raise NotImplementedError

    def conv2d(self, x: Any, weight: Any, bias: Any, stride: int, pad: int, groups: int) -> Any:
        raise NotImplementedError

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        raise NotImplementedError

    def relu(self, x: Any) -> Any:
        raise NotImplementedError

    def relu6(self, x: Any) -> Any:
        raise NotImplementedError

    def max_pool(self, x: Any, kernel: int, stride: int, pad: int = 0) -> Any:
        raise NotImplementedError

    def mean(self, x: Any) -> Any:
        raise NotImplementedError

    def flatten(self, x: Any) -> Any:
        raise NotImplementedError


def lenet(f: Operations, x: Any) -> Any:
    """LeNet-5 with rectifiers, on 32 x 32 grey images."""
    x = f.max_pool(f.relu(f.conv(x, 6, 5)), 2, 2)
    x = f.max_pool(f.relu(f.conv(x, 16, 5)), 2, 2)
    x = f.relu(f.dense(f.flatten(x), 120))
    return f.dense(f.relu(f.dense(x, 84)), 10)


def resnet18(f: Operations, x: Any) -> Any:
    """ResNet-18; batch norms count as folded into the convolutions."""
    x = f.max_pool(f.relu(f.conv(x, 64, 7, 2, 3)), 3, 2, 1)
    for stage in range(4):
        for block in range(2):
            width, stride = 64 << stage, 2 if stage and not block else 1
            y = f.conv(f.relu(f.conv(x, width, 3, stride, 1)), width, 3, 1, 1)
            skip = f.conv(x, width, 1, stride) if stride == 2 else x
            x = f.relu(y * 0.5 + skip * 0.5)  # halves keep untrained activations small
    return f.dense(f.mean(x), 1000)


_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
           (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def mobilenetv2(f: Operations, x: Any) -> Any:
    """MobileNetV2; batch norms count as folded into the convolutions."""
    x = f.relu6(f.conv(x, 32, 3, 2, 1))
    for expand, width, repeats, first in _STAGES:
        for index in range(repeats):
            stride, inside = (1 if index else first), x.shape[1] * expand
            y = f.relu6(f.conv(x, inside, 1)) if expand > 1 else x
            y = f.relu6(f.conv(y, inside, 3, stride, 1, groups=inside))
            y = f.conv(y, width, 1)
            x = x + y if stride == 1 and x.shape[1] == width else y
    return f.dense(f.mean(f.relu6(f.conv(x, 1280, 1))), 1000)


NETWORKS: dict[str, tuple[Forward, tuple[int, ...]]] = {
    "lenet": (lenet, (1, 1, 32, 32)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
    "mobilenetv2": (mobilenetv2, (1, 3, 224, 224)),
}


def write_onnx(forward: Forward, example: Array, path: Path) -> None:
    """Write a network as an ONNX file, which Tianyuan and ONNX Runtime read."""
    import tianyuan
    import tianyuan.functional as F

    class Traced(Operations):
        constant = staticmethod(tianyuan.tensor)
        relu, relu6 = staticmethod(F.relu), staticmethod(F.relu6)

        def conv2d(self, x: Any, weight: Any, bias: Any, stride: int, pad: int, groups: int) -> Any:
            bias = bias.reshape(1, -1, 1, 1)
            return F.conv2d(x, weight, bias, stride=stride, padding=pad, groups=groups)

        def linear(self, x: Any, weight: Any, bias: Any) -> Any:
            return F.linear(x, weight, bias)

        def max_pool(self, x: Any, kernel: int, stride: int, pad: int = 0) -> Any:
            return F.max_pool2d(x, kernel, stride, pad)

        def mean(self, x: Any) -> Any:
            return F.flatten(F.adaptive_avg_pool2d(x, 1), 1)

        def flatten(self, x: Any) -> Any:
            return F.flatten(x, 1)

    def network(x: Any) -> Any:
        return forward(Traced(), x)

    tianyuan.onnx.export(network, path, example)


def with_tianyuan(path: Path, forward: Forward, threads: int) -> Run:
    import tianyuan

    model = tianyuan.jit.load(path, threads=threads)

    def run(x: Array) -> Array:
        return np.asarray(_only(model(x)))

    return run


def _only(outputs: Any) -> Any:
    """Return the one output of a model."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    outputs = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return outputs.numpy() if hasattr(outputs, "numpy") else outputs


def with_onnxruntime(path: Path, forward: Forward, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin between runs would slow down whoever has the next turn.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Array) -> Array:
        return np.asarray(session.run(None, {name: x})[0])

    return run


def with_torch(path: Path, forward: Forward, threads: int) -> Run:
    import torch
    import torch.nn.functional as T

    torch.set_num_threads(threads)

    class Eager(Operations):
        relu, relu6 = staticmethod(torch.relu), staticmethod(T.relu6)

        def __init__(self) -> None:
            super().__init__()
            self._kept: list[tuple[Any, Any]] = []
            self._next: Iterator[tuple[Any, Any]] | None = None

        def begin(self) -> Any:
            """Use the weights of the first pass again."""
            self._next = iter(self._kept) if self._kept else None
            return self

        def _draw(self, *shape: int) -> tuple[Any, Any]:
            if self._next is not None:
                return next(self._next)
            self._kept.append(super()._draw(*shape))
            return self._kept[-1]

        def constant(self, array: Array) -> Any:
            value = torch.from_numpy(array)
            image = value.dim() == 4
            return value.contiguous(memory_format=torch.channels_last) if image else value

        def conv2d(self, x: Any, weight: Any, bias: Any, stride: int, pad: int, groups: int) -> Any:
            return T.conv2d(x, weight, bias, stride, pad, groups=groups)

        def linear(self, x: Any, weight: Any, bias: Any) -> Any:
            return T.linear(x, weight, bias)

        def max_pool(self, x: Any, kernel: int, stride: int, pad: int = 0) -> Any:
            return T.max_pool2d(x, kernel, stride, pad)

        def mean(self, x: Any) -> Any:
            return x.mean((2, 3))

        def flatten(self, x: Any) -> Any:
            return x.flatten(1)

    f = Eager()

    def run(x: Array) -> Array:
        with torch.inference_mode():
            image = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)
            result: Array = forward(f.begin(), image).numpy()
            return result

    return run


FRAMEWORKS: dict[str, Callable[[Path, Forward, int], Run]] = {
    "tianyuan": with_tianyuan,
    "onnxruntime": with_onnxruntime,
    "torch": with_torch,
}


def check(results: dict[str, Array], name: str) -> None:
    """Raise where a framework's answer differs from Tianyuan's."""
    want = results["tianyuan"]
    for framework, got in results.items():
        error = float(np.abs(got - want).max() / np.abs(want).max())
        if not error < TOLERANCE:
            raise SystemExit(f"{name}: {framework} differs from tianyuan by {error:.1e}")


def measure(
    runs: dict[str, Run], x: Array, rounds: int, seconds: float, cpu: bool
) -> dict[str, float]:
    """Return the median seconds of a call by framework; they take turns."""
    clock = time.process_time if cpu else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for turn in range(rounds):
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            run = runs[name]
            run(x)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = clock()
                run(x)
                times[name].append(clock() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each framework")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    names = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    if "tianyuan" not in names:
        sys.exit("models.py: tianyuan is not installed, see benchmarks/README.md")
    # One thread's CPU time does not count what other programs take from it.
    cpu = given.threads == 1
    print(f"{processor()}, {os.cpu_count()} logical cores, {given.threads} thread(s)")
    print(f"median {'CPU' if cpu else 'wall'} time of a call, in ms; ratios are Tianyuan / peer")
    for network in given.networks:
        forward, shape = NETWORKS[network]
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{network}.onnx"
            write_onnx(forward, x, path)
            runs = {name: FRAMEWORKS[name](path, forward, given.threads) for name in names}
            check({name: run(x) for name, run in runs.items()}, network)
            found = measure(runs, x, given.rounds, given.seconds, cpu)
        own = found["tianyuan"]
        cells = [f"tianyuan {own * 1e3:.3f}"]
        for name in names[1:]:
            cells.append(f"{name} {found[name] * 1e3:.3f} (ratio {own / found[name]:.2f})")
        print(f"{network:12s} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
