"""What a real model goes through: compared, trained beside PyTorch, dumped, reloaded, exported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.onnx
from tianyuan import Tensor, jit, registry
from tianyuan.autodiff import GradManager
from tianyuan.optimizer import SGD

Arrays = Sequence[np.ndarray]
Loss = Callable[[Any], Any]  # of a network's answers


def folder(package: str) -> Path:
    """Return where a package lies, without importing it, or skip."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.origin).parent


def backends() -> tuple[str, ...]:
    """Return whose kernels serve the host here."""
    registry.get_device_spec("cpu")
    return registry.backends()


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference, as a share of the largest value."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def compare(torch: Any, network: Any, peer: Any, inputs: Arrays) -> dict[str, Any]:
    """Compare the answers of a network with those of its peer, on every backend."""
    with torch.no_grad():
        want = peer.eval()(*map(torch.from_numpy, inputs)).numpy()
    row: dict[str, Any] = {}
    for backend in backends():
        with registry.use_backend(backend):
            got = network.eval()(*map(Tensor, inputs)).numpy()
        row[f"difference on {backend}"] = error(got, want)
        row[f"top-1 agreement on {backend}"] = float((got.argmax(-1) == want.argmax(-1)).mean())
        assert row[f"difference on {backend}"] < 1e-4
    return row


def fine_tune(network: Any, loss: Loss, inputs: Arrays, lr: float, steps: int) -> list[float]:
    """Train a network by plain gradient descent and return the losses."""
    optimizer = SGD(network.parameters(), lr=lr)
    manager = GradManager().attach(network.parameters())

    @jit.trace
    def step(*given: Tensor) -> Tensor:
        with manager:
            found = loss(network(*given))
            manager.backward(found)
        optimizer.step().clear_grad()
        return found

    given = [Tensor(value) for value in inputs]
    return [step(*given).item() for _ in range(steps)]


def fine_tune_peer(
    torch: Any, peer: Any, loss: Loss, inputs: Arrays, lr: float, steps: int
) -> list[float]:
    """Train a torch module in the same way."""
    optimizer = torch.optim.SGD(peer.parameters(), lr=lr)
    given = [torch.from_numpy(value) for value in inputs]
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(peer(*given))
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def leave(network: Any, inputs: Arrays, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Dump, reload and export a network, and compare what comes back with its own answers."""
    network.eval()
    want = network(*map(Tensor, inputs)).numpy()
    inputs = [Tensor(value).numpy() for value in inputs]  # int64 data arrives as int32
    row: dict[str, Any] = {}
    compute = jit.trace(lambda *given: network(*given), capture_as_const=True)
    compute(*map(Tensor, inputs))
    compute.dump(folder / "model.tym", arg_names=list(names))
    for backend in backends():
        got = jit.load(folder / "model.tym", backend=backend)(*inputs)
        row[f"reloaded on {backend}"] = error(got, want)
        assert row[f"reloaded on {backend}"] < 1e-5
    row["exported"] = exported(folder / "model.tym", inputs, names, want)
    return row


def exported(source: Path, inputs: Arrays, names: Sequence[str], want: np.ndarray) -> float:
    """Write a model file as ONNX and return how far ONNX Runtime's answer is."""
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    path = source.with_suffix(".onnx")
    tianyuan.onnx.export(source, path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = error(session.run(None, dict(zip(names, inputs, strict=True)))[0], want)
    assert found < 1e-4
    return found


def losses_agree(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Check that losses fall, and are those of the peer."""
    assert mine[-1] < mine[0]
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    apart = max(abs(m / t - 1) for m, t in zip(mine, theirs, strict=True))
    return {"losses": f"{mine[0]:.4f} to {mine[-1]:.4f}", "losses' difference": apart}
