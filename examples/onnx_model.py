"""Take an ONNX model to Tianyuan: run on every backend, compare, fine-tune, dump, export back.

    pip install "./packages/tianyuan-core[onnx]"
    python examples/onnx_model.py [model.onnx] [--size batch=4] [--lr 1e-6]

Without a path a small convolutional network is written first, as ONNX, and then used. Where ONNX
Runtime is installed, every answer is compared with its.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.onnx
from tianyuan import registry
from tianyuan.autodiff import GradManager
from tianyuan.optimizer import Adam


class Network(M.Module):
    """Two convolutions and a linear layer, for any number of pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 16, 3, padding=1)
        self.last = M.Linear(16, 10)

    def forward(self, image: ty.Tensor) -> Any:
        """Return scores of ten classes."""
        x = F.max_pool2d(F.relu(self.first(image)), 2)
        return self.last(F.mean(F.relu(self.second(x)), (2, 3)))


def write_network(path: Path) -> None:
    """Write a small network as ONNX."""
    example = np.zeros((2, 3, 16, 16), np.float32)
    tianyuan.onnx.export(Network(), path, example, dynamic_shapes={"image": {0: "batch"}})


def first(outputs: Any) -> Any:
    """Return the first output of a model."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def difference(got: np.ndarray, want: np.ndarray) -> str:
    """Describe how far two answers are apart."""
    return f"largest difference {np.abs(got - want).max():.2e} of {np.abs(want).max():.3g}"


def onnx_runtime(path: Path, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return ONNX Runtime's first output, or None where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    answer: np.ndarray = session.run(None, dict(inputs))[0]
    return answer


def run_on_backends(path: Path, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Run the model compiled on every backend, and return inputs that fit it, by name."""
    registry.get_device_spec("cpu")
    inputs: dict[str, np.ndarray] = {}
    for backend in registry.backends():
        model = ty.jit.load(path, backend=backend)
        if not inputs:
            inputs = dict(zip(model.input_specs, model.example_inputs(sizes), strict=True))
            shapes = ", ".join(f"{name} {value.shape}" for name, value in inputs.items())
            print(f"inputs: {shapes}")
            theirs = onnx_runtime(path, inputs)
        answer = np.asarray(first(model(**inputs)))
        beside = "ONNX Runtime is not installed" if theirs is None else difference(answer, theirs)
        print(f"{backend}: answers {answer.dtype} {answer.shape}; {beside}")
    return inputs


def fine_tune(
    module: Any, inputs: Sequence[np.ndarray], rate: float, steps: int = 5
) -> list[float]:
    """Train the module towards 0.9 of its own answers and return the losses."""
    given = [ty.Tensor(value, dtype=value.dtype) for value in inputs]
    target = first(module(*given)).detach() * 0.9
    optimizer = Adam(module.parameters(), lr=rate)
    manager = GradManager().attach(module.parameters())

    @ty.jit.trace
    def step(*tensors: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = F.mean((first(module(*tensors)) - target) ** 2)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return [step(*given).item() for _ in range(steps)]


def leave(module: Any, inputs: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the trained module as a model file and as ONNX, and read both again."""
    given = [ty.Tensor(value, dtype=value.dtype) for value in inputs.values()]
    want = first(module(*given)).numpy()
    classify = ty.jit.trace(lambda *tensors: module(*tensors), capture_as_const=True)
    classify(*given)
    classify.dump(folder / "tuned.tym", arg_names=list(inputs))
    again = np.asarray(first(ty.jit.load(folder / "tuned.tym")(**inputs)))
    print(f"reloaded from tuned.tym: {difference(again, want)}")
    tianyuan.onnx.export(module, folder / "tuned.onnx")
    theirs = onnx_runtime(folder / "tuned.onnx", inputs)
    if theirs is not None:
        print(f"exported to tuned.onnx, in ONNX Runtime: {difference(theirs, want)}")


def main() -> None:
    """Run all of it and print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=Path, help="the model, written anew if left out")
    parser.add_argument("--size", action="append", default=[], help="of an open dimension: batch=4")
    parser.add_argument("--max-bytes", type=int, default=tianyuan.onnx.LIMIT, help="of one value")
    parser.add_argument("--lr", type=float, default=1e-6, help="learning rate of fine-tuning")
    given = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (item.partition("=") for item in given.size)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = given.path or folder / "network.onnx"
        if given.path is None:
            write_network(path)
        inputs = run_on_backends(path, sizes)
        module = tianyuan.onnx.load(path, max_bytes=given.max_bytes)
        sizes_of = [int(parameter.size) for parameter in module.parameters()]
        print(f"as a module: {sum(sizes_of)} weights in {len(sizes_of)} parameters")
        if sizes_of:  # a quantised model has integers, which are constants
            losses = fine_tune(module, list(inputs.values()), given.lr)
            print("losses of fine-tuning:", ", ".join(f"{loss:.6f}" for loss in losses))
        leave(module, inputs, folder)


if __name__ == "__main__":
    main()
