"""Time functions of ``functional`` on one or several backends, and PyTorch's beside them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from .. import functional as F
from .. import registry
from ..errors import AttrError
from ..imperative.tensor import Tensor
from .command import run


@dataclass(frozen=True)
class Case:
    """One function on inputs of given shapes.

    Attributes:
        ours: takes tensors.
        torch: takes PyTorch's module and its tensors.
        shapes: of the float32 inputs.
    """

    ours: Callable[..., Any]
    torch: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def _nn(torch: Any) -> Any:
    return torch.nn.functional


_IMAGE = (1, 64, 56, 56)

#: What can be timed, by name.
CASES: dict[str, Case] = {
    "add": Case(F.add, lambda t, a, b: t.add(a, b), ((1000, 1000), (1000, 1000))),
    "mul": Case(F.mul, lambda t, a, b: t.mul(a, b), ((1000, 1000), (1000, 1000))),
    "exp": Case(F.exp, lambda t, a: t.exp(a), ((1000, 1000),)),
    "relu": Case(F.relu, lambda t, a: t.relu(a), ((1000, 1000),)),
    "gelu": Case(F.gelu, lambda t, a: _nn(t).gelu(a), ((1000, 1000),)),
    "sum": Case(lambda x: F.sum(x, 1), lambda t, a: a.sum(1), ((1000, 1000),)),
    "softmax": Case(lambda x: F.softmax(x, 1), lambda t, a: t.softmax(a, 1), ((1000, 1000),)),
    "matmul": Case(F.matmul, lambda t, a, b: t.matmul(a, b), ((512, 512), (512, 512))),
    "linear": Case(F.linear, lambda t, a, w: _nn(t).linear(a, w), ((64, 1024), (1000, 1024))),
    "conv2d": Case(
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda t, a, w: _nn(t).conv2d(a, w, padding=1),
        (_IMAGE, (64, 64, 3, 3)),
    ),
    "conv2d_1x1": Case(
        F.conv2d, lambda t, a, w: _nn(t).conv2d(a, w), (_IMAGE, (64, 64, 1, 1))
    ),
    "conv2d_depthwise": Case(
        lambda x, w: F.conv2d(x, w, padding=1, groups=64),
        lambda t, a, w: _nn(t).conv2d(a, w, padding=1, groups=64),
        (_IMAGE, (64, 1, 3, 3)),
    ),
    "max_pool2d": Case(
        lambda x: F.max_pool2d(x, 2), lambda t, a: _nn(t).max_pool2d(a, 2), (_IMAGE,)
    ),
    "avg_pool2d": Case(
        lambda x: F.avg_pool2d(x, 2), lambda t, a: _nn(t).avg_pool2d(a, 2), (_IMAGE,)
    ),
    "transpose": Case(
        lambda x: F.transpose(x, (1, 0)), lambda t, a: a.t().contiguous(), ((1000, 1000),)
    ),
    "concat": Case(
        lambda a, b: F.concat([a, b], 1), lambda t, a, b: t.cat([a, b], 1), ((512, 512), (512, 512))
    ),
    "sort": Case(F.sort, lambda t, a: t.sort(a), ((100, 1000),)),
    "layer_norm": Case(
        lambda x, w, b: F.layer_norm(x, (1024,), True, w, b),
        lambda t, x, w, b: _nn(t).layer_norm(x, (1024,), w, b),
        ((256, 1024), (1024,), (1024,)),
    ),
}  # fmt: skip


def benchmark(
    names: Sequence[str], backends: Sequence[str | None] = (None,), rounds: int = 20,
    with_torch: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return median seconds of each function by runner, all runners taking turns.

    Args:
        names: some of ``CASES``.
        backends: whose kernels to time; None is the cheapest of all.
        rounds: how often each is run.
        with_torch: whether PyTorch, where installed, is timed too.

    >>> [row] = benchmark(["add"], ["numpy"], rounds=1, with_torch=False)
    >>> row["name"], list(row["seconds"])
    ('add', ['numpy'])

    Raises:
        AttrError: for an unknown name.
    """
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise AttrError(
            f"benchmark_op: no such function, got {', '.join(unknown)}, "
            f"expected some of {', '.join(CASES)}"
        )
    torch = _torch() if with_torch else None
    return [{"name": name, "seconds": _timed(CASES[name], backends, rounds, torch)}
            for name in names]  # fmt: skip


def _torch() -> Any:
    try:
        return import_module("torch")
    except ModuleNotFoundError:
        return None


def _timed(case: Case, backends: Sequence[str | None], rounds: int, torch: Any) -> dict[str, float]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    runners: dict[str, Callable[[], Any]] = {}
    tensors = [Tensor(array) for array in arrays]
    for backend in backends:
        runners[backend or "all"] = _on(backend, case.ours, tensors)
    if torch is not None:
        given = [torch.from_numpy(array) for array in arrays]
        runners["torch"] = lambda: case.torch(torch, *given)
    for runner in runners.values():
        runner()
    taken: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            start = perf_counter()
            runner()
            taken[name].append(perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def _on(
    backend: str | None, function: Callable[..., Any], tensors: Sequence[Tensor]
) -> Callable[[], Any]:
    def call() -> Any:
        with registry.use_backend(backend) if backend else nullcontext():
            return function(*tensors)

    return call


@click.command("benchmark_op")
@click.argument("names", nargs=-1)
@click.option("--backend", "backends", multiple=True, help="Backends to time, in turns.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--torch/--no-torch", "with_torch", default=True, help="Time PyTorch too.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the times to this file.")  # fmt: skip
def _command(
    names: tuple[str, ...], backends: tuple[str, ...], rounds: int, with_torch: bool,
    file: Path | None,
) -> None:  # fmt: skip
    """Time functions by NAMES, all of them without any."""
    rows = benchmark(names or tuple(CASES), backends or (None,), rounds, with_torch)
    for row in rows:
        times = "  ".join(f"{name} {time * 1e6:.1f} us" for name, time in row["seconds"].items())
        click.echo(f"{row['name']:18} {times}")
    if file is not None:
        file.write_text(json.dumps(rows, indent=1))


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.benchmark_op [NAMES]``."""
    run(_command)


if __name__ == "__main__":
    main()
