"""The main job: train on real pictures, dump files, run them on every backend, compare."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from .. import functional as F
from .. import module as M
from .. import random, registry
from ..autodiff import GradManager
from ..data.dataset import MNIST, Digits
from ..imperative.tensor import Tensor
from ..jit import trace
from ..optimizer import Adam
from ..utils.table import format_table
from .quantize import quantisation

AGREEMENT = 1e-4  # largest difference from numpy, relative to the largest output
_INT8_DROP = 0.01


@dataclass(frozen=True)
class Task:
    """What is trained on: pictures in NCHW scaled to about unit size, labels, and the target."""

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    net: M.Module
    epochs: int
    batch: int
    rate: float
    least_accuracy: float


def run_quickstart(data: Path | None, epochs: int | None, output: Path, seed: int) -> int:
    """Run the main job; return 0 if accuracy and agreement are as they should be, else 1."""
    random.seed(seed)
    task = _digits() if data is None else _pictures(data)
    click.echo(
        f"Training on {task.name}: {len(task.train[0])} pictures, testing on {len(task.test[0])}"
    )
    _train(task, epochs or task.epochs, seed)
    # Fewer epochs than the task's promise nothing.
    least = task.least_accuracy if epochs is None or epochs >= task.epochs else 0.0
    files = {"": output}
    _dump(task.net, task, output)
    package = quantisation()
    if package is not None:
        files[" int8"] = output.with_name(f"{output.stem}-int8{output.suffix}")
        samples = [task.train[0][start : start + 128] for start in range(0, 512, 128)]
        _dump(package.quantize_static(task.net, samples).module, task, files[" int8"])
    for path in files.values():
        click.echo(f"Wrote {path} ({path.stat().st_size / 1024:.0f} KiB)")
    return _compare(task, files, least)


def _digits() -> Task:
    def load(train: bool) -> tuple[np.ndarray, np.ndarray]:
        found = Digits(train=train)
        images = found.images.transpose(0, 3, 1, 2).astype(np.float32) / 8 - 1
        return np.ascontiguousarray(images), found.labels.astype(np.int32)

    return Task(
        "the UCI digits", load(True), load(False), _net(1, 16, 32, 8), 20, 64, 2e-3, 0.975
    )  # fmt: skip


def _pictures(folder: Path) -> Task:
    def load(train: bool) -> tuple[np.ndarray, np.ndarray]:
        found = MNIST(str(folder), train=train)
        images = found.images.transpose(0, 3, 1, 2).astype(np.float32) / 128 - 1
        return np.ascontiguousarray(images), found.labels.astype(np.int32)

    train, test = load(True), load(False)
    side = train[0].shape[2]
    return Task(str(folder), train, test, _net(1, 32, 64, side), 5, 128, 1.5e-3, 0.90)


def _net(channels: int, first: int, second: int, side: int) -> M.Module:
    """Return two convolutions with batch norm and pooling, and two dense layers."""
    flat = second * (side // 4) ** 2
    return M.Sequential(
        M.Conv2d(channels, first, 3, padding=1, bias=False), M.BatchNorm2d(first), M.ReLU(),
        M.MaxPool2d(2, 2),
        M.Conv2d(first, second, 3, padding=1, bias=False), M.BatchNorm2d(second), M.ReLU(),
        M.MaxPool2d(2, 2),
        _Flatten(),
        M.Linear(flat, 2 * second), M.ReLU(), M.Dropout(0.25), M.Linear(2 * second, 10),
    )  # fmt: skip


class _Flatten(M.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.flatten(x, 1)


def _batches(
    data: tuple[np.ndarray, np.ndarray], size: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = rng.permutation(len(data[0]))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield data[0][chosen], data[1][chosen]


def _train(task: Task, epochs: int, seed: int) -> None:
    net = task.net
    net.train()
    manager = GradManager().attach(net.parameters())
    optimizer = Adam(net.parameters(), lr=task.rate)

    @trace(symbolic=True)
    def step(images: Tensor, labels: Tensor) -> Tensor:
        with manager:
            loss = F.nn.cross_entropy(net(images), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng = np.random.default_rng(seed)
    steps = epochs * (len(task.train[0]) // task.batch)
    with click.progressbar(length=steps, label="training") as bar:
        for epoch in range(epochs):
            _set_rate(optimizer, task.rate * 0.5 * (1 + np.cos(np.pi * epoch / epochs)))
            for images, labels in _batches(task.train, task.batch, rng):
                loss = step(Tensor(images), Tensor(labels))
                bar.update(1)
            bar.label = f"epoch {epoch + 1}/{epochs}, loss {loss.item():.4f}"
    click.echo(f"Loss of the last batch after {epochs} epochs: {loss.item():.4f}")
    net.eval()


def _set_rate(optimizer: Adam, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = float(rate)


def _dump(net: M.Module, task: Task, output: Path) -> None:
    @trace(symbolic=True, capture_as_const=True, dynamic_shapes={"images": {0: "batch"}})
    def predict(images: Tensor) -> Tensor:
        return net(images)  # type: ignore[no-any-return]

    predict(Tensor(task.test[0][:1]))
    predict.dump(output, arg_names=["images"], output_names=["logits"])


def _compare(task: Task, files: dict[str, Path], least: float) -> int:
    """Run each file in a new process per backend and print the table."""
    header = ["backend", "test accuracy", "ms, batch 1", "ms, batch 64", "difference from numpy"]
    rows: list[list[str]] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "images.npy", task.test[0])
        for kind, path in files.items():
            # The price of int8 is shown; what is too much is a matter of the task.
            wanted = least - _INT8_DROP if kind else least
            failures += _add_rows(rows, kind, path, Path(folder), task.test[1], wanted)
    click.echo(format_table(header, rows))
    for failure in failures:
        click.secho(failure, fg="red")
    return 1 if failures else 0


def _add_rows(
    rows: list[list[str]], kind: str, model: Path, folder: Path, labels: np.ndarray, least: float
) -> list[str]:
    """Add a row per backend for one file; return what is not as it should be."""
    failures = []
    expected: np.ndarray | None = None
    for backend in sorted(registry.backends(), key=lambda name: name != "numpy"):
        name, found = f"{backend}{kind}", folder / f"{backend}.npy"
        result = _measure(model, folder / "images.npy", found, backend)
        if isinstance(result, str):
            failures.append(f"{name}: the process failed:\n{result}")
            continue
        logits = np.load(found)
        expected = logits if expected is None else expected
        accuracy = float((logits.argmax(1) == labels).mean())
        difference = float(np.abs(logits - expected).max() / np.abs(expected).max())
        times = [f"{result[batch]:.3f}" for batch in ("1", "64")]
        rows.append([name, f"{accuracy:.2%}", *times, f"{difference:.1e}"])
        if not accuracy >= least:
            failures.append(
                f"{name}: test accuracy is too low, got {accuracy:.2%}, expected {least:.1%}"
            )
        if not difference <= AGREEMENT:
            failures.append(
                f"{name}: outputs differ from numpy's, got {difference:.1e}, "
                f"expected at most {AGREEMENT:.0e}"
            )
    return failures


def _measure(model: Path, images: Path, logits: Path, backend: str) -> dict[str, float] | str:
    """Return the milliseconds by batch size, or what the process said as it failed."""
    command = [sys.executable, "-m", "tianyuan.cli.measure", model, images, logits, backend]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
