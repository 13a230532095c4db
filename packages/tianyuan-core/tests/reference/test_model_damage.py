"""A damaged model file gives one clear error or the right answer, never anything else."""

from __future__ import annotations

import copy
import io
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from click.testing import CliRunner
from tianyuan.cli.main import main
from tianyuan.errors import AttrError, ModelFormatError
from tianyuan.graph.container import read_container, write_container
from tianyuan.jit import load, trace

IMAGES = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ty.random.seed(0)
    conv, fc = M.Conv2d(1, 4, 3, padding=1), M.Linear(64, 5)

    @trace(symbolic=True, capture_as_const=True, dynamic_shapes={"x": {0: "batch"}})
    def predict(x: ty.Tensor) -> ty.Tensor:
        return fc(F.flatten(F.max_pool2d(F.relu(conv(x)), 2), 1))

    predict(ty.Tensor(IMAGES))
    path = tmp_path_factory.mktemp("model") / "model.tym"
    predict.dump(path)
    return path


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the file with one random fault of the kinds that disks and networks make."""
    kind, at = rng.integers(6), int(rng.integers(len(data)))
    length = int(rng.integers(1, 200))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + bytes(length) + data[at + length :]
    if kind == 3:
        return data[:at] + rng.bytes(length) + data[at:]
    if kind == 4:
        return data[:at] + data[at + length :]
    other = int(rng.integers(len(data)))
    return data[:at] + data[other : other + length] + data[at + length :]


def check(path: Path, expected: np.ndarray) -> bool:
    """Return whether the file still gave the right answer, or else one clear error."""
    try:
        answer = load(path, backend="numpy")(IMAGES)
    except ModelFormatError as error:
        message = str(error)
    else:
        np.testing.assert_array_equal(answer, expected)
        return True
    assert path.name in message
    return False


@pytest.mark.parametrize("block", range(8))
def test_two_thousand_random_damages(model_file: Path, tmp_path: Path, block: int) -> None:
    whole = model_file.read_bytes()
    expected = load(model_file, backend="numpy")(IMAGES)
    rng = np.random.default_rng(block)
    path = tmp_path / "damaged.tym"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(250):
        path.write_bytes(damage(whole, rng))
        refused += not check(path, expected)
    # Nearly every byte is checked; padding is not.
    assert refused > 200
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"peak memory grew by {grown} KiB"


def test_a_damaged_weight_is_named_when_the_file_is_verified(
    model_file: Path, tmp_path: Path
) -> None:
    whole = model_file.read_bytes()
    expected = load(model_file, backend="numpy")(IMAGES)
    np.testing.assert_array_equal(load(model_file, "cpu", "numpy", verify=True)(IMAGES), expected)
    opened = read_container(model_file)
    assert len(opened.names()) >= 4
    for name in opened.names():
        entry = opened.entry(name)
        for at in (entry.start, entry.stop - 1):
            raw = bytearray(whole)
            raw[at] ^= 1
            for source in (tmp_path / "damaged.tym", io.BytesIO(raw)):
                if isinstance(source, Path):
                    source.write_bytes(raw)
                with pytest.raises(ModelFormatError, match=f"tensor '{name}' is damaged"):
                    load(source, verify=True)


def test_the_command_names_what_is_damaged(model_file: Path, tmp_path: Path) -> None:
    ty.save({"w": ty.Tensor(IMAGES)}, tmp_path / "state.ty")
    raw = bytearray(model_file.read_bytes())
    name = read_container(model_file).names()[-1]
    raw[read_container(model_file).entry(name).start] ^= 64
    (tmp_path / "bad.tym").write_bytes(raw)
    bad, absent, good = tmp_path / "bad.tym", tmp_path / "absent.tym", tmp_path / "state.ty"
    answer = CliRunner().invoke(main, ["check", str(good), str(model_file)])
    assert answer.exit_code == 0, answer.output
    count = len(read_container(model_file).names())
    assert f"{good}: sound, 1 tensors" in answer.output
    assert f"{model_file}: sound, {count} tensors" in answer.output
    answer = CliRunner().invoke(main, ["check", str(bad), str(absent), str(good)])
    assert answer.exit_code == 1
    assert f"Error: {bad}: tensor '{name}' is damaged" in answer.output
    assert "No such file" in answer.output
    assert f"{good}: sound" in answer.output


def test_a_file_without_checksums_cannot_be_verified() -> None:
    with pytest.raises(AttrError, match="no checksums to verify, got net.onnx"):
        load("net.onnx", verify=True)


FAULTS = [
    lambda g: g["nodes"][0].update(op="no_such_op"),
    lambda g: g["nodes"][0].update(version=99),
    lambda g: g["nodes"][0].update(inputs=[9999]),
    lambda g: g["nodes"][0].update(inputs=[]),
    lambda g: g["nodes"][0].update(outputs=[]),
    lambda g: g["nodes"][0].update(attrs={}),
    lambda g: g["nodes"][0]["attrs"].update(groups="1"),
    lambda g: g["nodes"][0]["attrs"].update(groups=0),
    lambda g: g["nodes"][0]["attrs"].update(stride=[0, 0]),
    lambda g: g["nodes"][0]["attrs"].update(padding=[2**70] * 4),
    lambda g: g["nodes"].reverse(),
    lambda g: g["nodes"].append(g["nodes"][0]),
    lambda g: g["inputs"][0].update(shape=[-1, 1, 8, 8]),
    lambda g: g["inputs"][0].update(shape=[["/", "a", "b"]]),
    lambda g: g["inputs"][0].update(dtype="float31"),
    lambda g: g["inputs"][0].update(shape=[2**62, 2**62, 8, 8]),
    lambda g: g["constants"][0].update(tensor="absent"),
    lambda g: g["outputs"][0].update(value="0"),
    lambda g: g.pop("nodes"),
    lambda g: g.update(symbols={"batch": -3}),
    lambda g: g.update(symbols={}),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_that_lies_under_a_right_digest_is_refused(
    model_file: Path, tmp_path: Path, fault: Callable[[dict], object]
) -> None:
    container = read_container(model_file)
    tensors = {name: container.tensor(name) for name in container.names()}
    path = tmp_path / "hostile.tym"
    graph = copy.deepcopy(container.graph)
    assert graph["nodes"][0]["op"] == "conv2d"
    fault(graph)
    write_container(path, tensors, graph, {})
    with pytest.raises(ModelFormatError, match=r"hostile\.tym"):
        load(path, backend="numpy")
