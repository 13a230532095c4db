"""What save keeps and load gives back, and what both refuse."""

from __future__ import annotations

import io
import json
import math
import os
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
from tianyuan import Parameter, Tensor, dtypes
from tianyuan.errors import DeviceError, ModelFormatError
from tianyuan.graph.container import write_container
from tianyuan.serialization import load, save


def _same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        assert [type(key) for key in a] == [type(key) for key in b]
        for key in a:
            _same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, two in zip(a, b, strict=True):
            _same(one, two)
    elif isinstance(a, Tensor):
        assert (a.device, a.name) == (b.device, b.name)
        np.testing.assert_array_equal(a.numpy(), b.numpy(), strict=True)
    elif isinstance(a, (np.ndarray, np.generic)):
        np.testing.assert_array_equal(a, b, strict=True)
    elif isinstance(a, float) and math.isnan(a):
        assert math.isnan(b)
    else:
        assert a == b


def _value() -> Any:
    rng = np.random.default_rng(1)
    return {
        "state": OrderedDict(weight=rng.standard_normal((3, 4)).astype(np.float32), bias=None),
        "tuple": (1, (), [], {}, ("x",)),
        1: True,
        None: False,
        2.5: "天元 \ud800 \0",
        "ints": [0, -1, 2**63, -(2**200)],
        "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan],
        "tags": {"tuple": [1], "float": "nan", "array": "0"},
        "tensor": Tensor([[1.5, 2.5]], name="w"),
        "double": Tensor([1, 2], dtype="int64"),
        "parameter": Parameter([3.0]),
        "scalar": np.float32(0.5),
        "number": np.int64(7),
        "flag": np.bool_(True),
        "arrays": {
            name: rng.integers(0, 2, (2, 3)).astype(dtypes.as_dtype(name)) for name in dtypes.NAMES
        },
        "odd": [np.array(3.0), np.zeros((0, 2), np.int8), np.arange(12).reshape(3, 4).T],
    }


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "value.ty"
    save(_value(), path)
    _same(load(path), _value())
    _same(load(str(path), map_location="cpu0"), _value())
    assert os.listdir(tmp_path) == ["value.ty"]


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", [], (), {}, np.arange(3)])
def test_a_value_alone(tmp_path: Path, value: Any) -> None:
    save(value, tmp_path / "x")
    _same(load(tmp_path / "x"), value)


def test_negative_zero_keeps_its_sign(tmp_path: Path) -> None:
    save(-0.0, tmp_path / "x")
    assert math.copysign(1, load(tmp_path / "x")) == -1


def test_open_files() -> None:
    file = io.BytesIO()
    save(_value(), file)
    file.seek(0)
    _same(load(file), _value())


def test_it_is_reached_from_the_package(tmp_path: Path) -> None:
    tianyuan.save({"x": 1}, tmp_path / "x")
    assert tianyuan.load(tmp_path / "x") == {"x": 1}


def test_what_is_loaded_belongs_to_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save({"a": np.arange(3), "t": Tensor([1.0, 2.0])}, path)
    first = load(path)
    first["a"][0] = 9
    first["t"][0] = 9
    second = load(path)
    assert second["a"].tolist() == [0, 1, 2]
    assert second["t"].numpy().tolist() == [1, 2]


def test_one_object_stays_one(tmp_path: Path) -> None:
    array, tensor = np.arange(1000), Tensor(np.ones(1000))
    save([array, {"again": array}, tensor, (tensor,)], tmp_path / "x")
    one, two, three, four = load(tmp_path / "x")
    assert one is two["again"]
    assert three is four[0]
    assert (tmp_path / "x").stat().st_size < 8000 + 4000 + 2000


def test_same_value_gives_same_bytes(tmp_path: Path) -> None:
    save(_value(), tmp_path / "a")
    save(_value(), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_safetensors_reads_the_arrays(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save([np.arange(5), np.ones((2, 2), np.float32)], tmp_path / "x")
    found = load_file(tmp_path / "x")
    np.testing.assert_array_equal(found["0"], np.arange(5))
    np.testing.assert_array_equal(found["1"], np.ones((2, 2)))


# Refusals


class _Level(IntEnum):
    LOW = 1


class _Text(str):
    __slots__ = ()


class _Special(Tensor):
    pass


REFUSED = {
    "object": (object(), "builtins.object"),
    "set": ({1}, "builtins.set"),
    "bytes": (b"x", "builtins.bytes"),
    "function": (len, "builtin_function_or_method"),
    "enum": (_Level.LOW, "_Level"),
    "text of another type": (_Text("x"), "_Text"),
    "tensor of another type": (_Special([1.0]), "_Special"),
    "complex": (1j, "builtins.complex"),
    "complex array": (np.zeros(2, complex), "dtype complex128"),
    "object array": (np.array([None]), "dtype object"),
    "text array": (np.array(["a"]), "dtype <U1"),
    "records": (np.zeros(2, [("a", "i4")]), "dtype"),
    "time": (np.datetime64("2020-01-01"), "dtype datetime64"),
    "masked array": (np.ma.zeros(2), "MaskedArray"),
    "key": ({(1, 2): 3}, "a key of type tuple"),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "-"))
def test_unknown_types_are_refused_by_name(tmp_path: Path, case: str) -> None:
    value, message = REFUSED[case]
    path = tmp_path / "x"
    save(1, path)
    with pytest.raises(TypeError, match=message) as caught:
        save({"a": [np.zeros(3), (value,)]}, path)
    assert "at obj['a'][1][0]" in str(caught.value)
    assert load(path) == 1
    assert os.listdir(tmp_path) == ["x"]


def test_foreign_byte_order_is_brought_home(tmp_path: Path) -> None:
    save(np.arange(4, dtype=">i4"), tmp_path / "x")
    _same(load(tmp_path / "x"), np.arange(4, dtype=np.int32))


def test_cycles_and_depth(tmp_path: Path) -> None:
    cycle: list[Any] = []
    cycle.append({"x": cycle})
    with pytest.raises(ValueError, match="holds itself, at obj"):
        save(cycle, tmp_path / "x")
    deep: Any = 1
    for _ in range(200):
        deep = (deep,)
    save(deep, tmp_path / "x")
    _same(load(tmp_path / "x"), deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        save([deep], tmp_path / "x")
    shared: list[int] = [1]
    save([shared, shared], tmp_path / "x")
    assert load(tmp_path / "x") == [[1], [1]]


def _graph(root: Any) -> dict[str, Any]:
    return {"kind": "tianyuan.object", "version": 1, "root": root}


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"nodes": []}, "jit.load"),
        ({**_graph(1), "version": 2}, "unknown version"),
        (_graph({"set": [1]}), "unknown value"),
        (_graph({"tuple": 3}), "unknown value"),
        (_graph({"tuple": [], "list": []}), "unknown value"),
        (_graph({}), "unknown value"),
        (_graph({"float": "1"}), "unknown value"),
        (_graph({"float": []}), "unknown value"),
        (_graph({"dict": [[1]]}), "wrong pair"),
        (_graph({"dict": [3]}), "wrong pair"),
        (_graph({"dict": [[[1], 2]]}), "wrong pair"),
        (_graph({"dict": [[{"tuple": [1]}, 2]]}), "key of a wrong type"),
        (_graph({"dict": [[{"array": "a"}, 2]]}), "key of a wrong type"),
        (_graph({"array": "b"}), "reference to tensor 'b'"),
        (_graph({"array": []}), "reference to tensor"),
        (_graph({"scalar": "a"}), r"scalar of shape \(2,\)"),
        (_graph({"tensor": "a", "device": 3, "name": ""}), "device 3"),
        (_graph({"tensor": "a"}), "device None"),
        (_graph(_deep(250)), "nested too deeply"),
        (_graph(_deep(400)), "nested too deeply"),
    ],
    ids=range(20),
)
def test_hostile_structure(tmp_path: Path, graph: Any, message: str) -> None:
    path = tmp_path / "x"
    write_container(path, {"a": np.zeros(2)}, graph)
    with pytest.raises(ModelFormatError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    json.dumps(graph)  # the case is one that a file can hold


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        load(path)
    path.write_bytes(b"\x80\x04K\x01." * 10)
    with pytest.raises(ModelFormatError, match="x: "):
        load(path)
    save(np.arange(100), path)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    with pytest.raises(ModelFormatError, match="<file>: tensor '0' is damaged"):
        load(io.BytesIO(bytes(raw)))


# Devices


def _on(device: str, tmp_path: Path) -> Path:
    path = tmp_path / "x"
    node = {"tensor": "a", "device": device, "name": "w"}
    write_container(path, {"a": np.arange(3.0)}, _graph(node))
    return path


@pytest.mark.parametrize(
    "where", ["cpu", "xpux", {"gpu7": "cpu0"}, {"cuda:7": "cpu"}, lambda device: "cpu"]
)
def test_map_location(tmp_path: Path, where: Any) -> None:
    found = load(_on("cuda:7", tmp_path), map_location=where)
    assert found.device == "cpu"
    assert found.dtype == np.float64
    assert found.numpy().tolist() == [0, 1, 2]


def test_map_location_is_given_the_old_device(tmp_path: Path) -> None:
    seen = []

    def move(device: str) -> str:
        seen.append(device)
        return "cpu"

    load(_on("cuda:7", tmp_path), move)
    assert seen == ["cuda:7"]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    path = _on("vulkan:0", tmp_path)
    with pytest.raises(DeviceError, match="map_location='cpu'"):
        load(path)
    with pytest.raises(DeviceError, match="vulkan:0"):
        load(path, map_location={"cuda:0": "cpu"})
    with pytest.raises(TypeError, match="map_location is wrong, got int"):
        load(path, map_location=3)  # type: ignore[arg-type]
