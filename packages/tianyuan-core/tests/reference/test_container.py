"""The model container: what safetensors reads of it, and what damage does to it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianyuan import dtypes
from tianyuan.errors import DTypeError, ModelFormatError
from tianyuan.graph.container import parse_container, read_container, write_container

GRAPH = {"ops": [{"name": "matmul", "inputs": ["x", "权重"]}], "limits": [0.5, -1, None, True]}


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    made: dict[str, np.ndarray] = {}
    for name in dtypes.NAMES:
        raw = rng.integers(0, 2 if name == "bool" else 100, (3, 5, 2))
        made[f"of.{name}"] = raw.astype(dtypes.as_dtype(name))
    made["scalar"] = np.array(2.5, np.float32)
    made["empty"] = np.zeros((3, 0, 2), np.float64)
    made["权重"] = rng.standard_normal((17, 3)).astype(np.float32)
    made["transposed"] = np.arange(12, dtype=np.int32).reshape(3, 4).T
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tym"
    write_container(path, _tensors(), GRAPH, {"author": "someone"})
    return path


def test_round_trip(model: Path) -> None:
    found = read_container(model)
    wanted = _tensors()
    assert found.graph == GRAPH
    assert found.extra == {"author": "someone"}
    assert found.names() == tuple(sorted(wanted))
    for name, array in wanted.items():
        read = found.tensor(name)
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert (found.entry(name).dtype, found.entry(name).shape) == (array.dtype, array.shape)
    with pytest.raises(KeyError):
        found.tensor("absent")


def test_arrays_are_read_only_aligned_views(model: Path) -> None:
    found = read_container(model)
    for name in found.names():
        array = found.tensor(name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        if array.size:
            assert array.ctypes.data % 64 == 0
            assert np.shares_memory(array, found.tensor(name))


def test_arrays_outlive_container_and_file(model: Path) -> None:
    array = read_container(model).tensor("权重")
    model.unlink()
    assert array.tobytes() == _tensors()["权重"].tobytes()


def test_safetensors_reads_it(model: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(str(model), framework="numpy") as file:
        names = {name for name in file.keys() if not name.startswith("__pad_")}  # noqa: SIM118
        assert names == set(_tensors())
        assert json.loads(file.metadata()["tianyuan.graph"]) == GRAPH
        assert file.metadata()["tianyuan.format_version"] == "1"
        for name, array in _tensors().items():
            if name != "of.bfloat16":
                np.testing.assert_array_equal(file.get_tensor(name), array, strict=True)


def test_safetensors_reads_bfloat16(model: Path) -> None:
    torch = pytest.importorskip("torch")
    load = pytest.importorskip("safetensors.torch").load_file
    found = load(str(model))["of.bfloat16"]
    assert found.dtype == torch.bfloat16
    np.testing.assert_array_equal(
        found.float().numpy(), _tensors()["of.bfloat16"].astype(np.float32)
    )


def test_same_state_gives_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.tym", tmp_path / "two.tym"
    tensors = _tensors()
    write_container(one, tensors, GRAPH, {"a": "1", "b": "2"})
    write_container(two, dict(reversed(tensors.items())), GRAPH, {"b": "2", "a": "1"})
    assert one.read_bytes() == two.read_bytes()


def test_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "none.tym"
    write_container(path, {}, {})
    assert read_container(path).names() == ()


@pytest.mark.parametrize("name", ["__pad_0", "__metadata__", "\udc80"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="tensor name"):
        write_container(tmp_path / "x.tym", {name: np.zeros(1, np.float32)}, {})
    assert not any(tmp_path.iterdir())


def test_refused_before_anything_is_written(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(DTypeError):
        write_container(model, {"c": np.zeros(2, np.complex64)}, {})
    with pytest.raises(ValueError, match="reserved"):
        write_container(model, {}, {}, {"tianyuan.graph": "{}"})
    with pytest.raises(TypeError):
        write_container(model, {}, {"x": object()})
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == ["model.tym"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_keeps_the_old_file(
    model: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_container(model, {"x": np.ones(3, np.float32)}, {})
    assert caught.value.errno == 28
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == ["model.tym"]


def test_replacing_keeps_mode_and_follows_links(model: Path) -> None:
    model.chmod(0o640)
    link = model.parent / "link.tym"
    link.symlink_to(model)
    held = read_container(link).tensor("scalar")
    write_container(link, {"x": np.ones(3, np.float32)}, {})
    assert link.is_symlink()
    assert not model.is_symlink()
    assert stat.S_IMODE(model.stat().st_mode) == 0o640
    assert read_container(model).names() == ("x",)
    assert held == np.float32(2.5)


def test_places_that_cannot_hold_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_container(tmp_path / "absent.tym")
    with pytest.raises(IsADirectoryError):
        read_container(tmp_path)
    with pytest.raises(IsADirectoryError):
        write_container(tmp_path, {}, {})
    with pytest.raises(FileNotFoundError):
        write_container(tmp_path / "absent" / "x.tym", {}, {})
    with pytest.raises(OSError, match="not a regular file"):
        write_container("/dev/null", {}, {})
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_container("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_container(tmp_path / "pipe")


# Hostile files: the header carries a right digest, so that each further check must hold.


def _forge(tmp_path: Path, header: str | bytes, data: bytes = b"") -> Path:
    """Write a file whose header has the right digest and alignment, whatever it says."""
    raw = header.encode() if isinstance(header, str) else header
    raw += b" " * (-(8 + len(raw)) % 64)
    hole = b"0" * 32
    if raw.count(hole):
        digest = hashlib.blake2b(raw.replace(hole, b"", 1), digest_size=16).hexdigest()
        raw = raw.replace(hole, digest.encode(), 1)
    path = tmp_path / "forged.tym"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def _header(entries: str, graph: str = "{}", crc: str = '{"w":0}') -> str:
    return (
        '{"__metadata__":{"tianyuan.format_version":"1","tianyuan.header_digest":"'
        + "0" * 32
        + f'","tianyuan.crc32":{json.dumps(crc)},"tianyuan.graph":{json.dumps(graph)}}}'
        + entries
        + "}"
    )


def _w(dtype: str = "F32", shape: str = "[4]", offsets: str = "[0,16]") -> str:
    return f',"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


ZEROS16 = 0xECBB4B55  # CRC-32 of 16 zero bytes, as the `crc32` tool prints it


def test_a_forged_file_that_is_right_is_read(tmp_path: Path) -> None:
    path = _forge(tmp_path, _header(_w(), crc=f'{{"w":{ZEROS16}}}'), bytes(16))
    np.testing.assert_array_equal(read_container(path).tensor("w"), np.zeros(4, np.float32))


HOSTILE = {
    "shape and size disagree": (_w(shape="[5]"), "wrong size"),
    "offsets out of range": (_w(shape="[400]", offsets="[0,1600]"), "wrong size"),
    "offsets reversed": (_w(offsets="[16,0]"), "wrong size"),
    "hole": (_w(shape="[2]", offsets="[8,16]"), "hole"),
    "overlap": (_w() + _w("U8", "[16]").replace('"w"', '"__pad_1"'), "overlaps"),
    "too little": (_w(shape="[2]", offsets="[0,8]"), "wrong size"),
    "unaligned": (
        ',"__pad_0":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
        + _w(shape="[2]", offsets="[8,16]"),
        "not aligned",
    ),
    "negative": (_w(shape="[-4]"), "wrong shape"),
    "negative twice": (_w(shape="[-2,-2]"), "wrong shape"),
    "bool extent": (_w(shape="[true,4]"), "wrong shape"),
    "float extent": (_w(shape="[4.0]"), "wrong shape"),
    "huge extent": (_w(shape="[99999999999999999999999]"), "wrong shape"),
    "overflow": (_w(shape=f"[{2**33},{2**33}]", offsets="[0,0]"), "wrong shape"),
    "overflow beside zero": (_w(shape=f"[0,{2**40},{2**40}]", offsets="[0,0]"), "wrong shape"),
    "many digits": (_w(shape=f"[{'9' * 5000}]"), "not valid JSON"),
    "rank": (_w(shape=f"[{','.join('1' * 33)},4]"), "wrong shape"),
    "dtype": (_w("F8"), "unknown dtype"),
    "dtype of a wrong kind": (_w().replace('"F32"', "[]"), "unknown dtype"),
    "three offsets": (_w(offsets="[0,8,16]"), "wrong offsets"),
    "further key": (_w().replace('"shape"', '"x":0,"shape"'), "described wrongly"),
    "not an entry": (',"w":3', "described wrongly"),
    "twice": (_w() + _w(), "twice"),
    "metadata twice": (_w() + ',"__metadata__":{}', "twice"),
    "deep": (_w() + ',"d":' + "[" * 200_000 + "]" * 200_000, "not valid JSON"),
    "checksum without tensor": (_w().replace('"w"', '"__pad_0"'), "no tensor"),
    "tensor without checksum": (_w().replace('"w"', '"v"'), "no checksum"),
}


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.replace(" ", "-"))
def test_hostile_headers(tmp_path: Path, case: str) -> None:
    entries, message = HOSTILE[case]
    path = _forge(tmp_path, _header(entries), bytes(16))
    with pytest.raises(ModelFormatError, match=message) as caught:
        read_container(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (_header(_w(), graph="[" * 200_000), "graph is not valid JSON"),
        (_header(_w(), graph="[]"), "graph is wrong"),
        (_header(_w(), graph='{"a":1,"a":2}'), "twice"),
        (_header(_w(), crc='{"w":"0"}'), "no checksum"),
        (_header(_w(), crc='{"w":true}'), "no checksum"),
        (_header(_w(), crc="{}").replace('"tianyuan.crc32"', '"other"'), "incomplete"),
        (_header(_w()).replace('"tianyuan.graph":"{}"', '"tianyuan.graph":3'), "metadata"),
        (_header(_w()).encode().replace(b'"w"', b'"\xff"'), "not valid JSON"),
        (_header(_w()).replace('version":"1"', 'version":"2"'), "version, got 2"),
        (_header(_w())[:-1], "not valid JSON"),
        ('{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "not a Tianyuan model"),
        ("PK\x03\x04", "not a Tianyuan model"),
    ],
    ids=range(12),
)
def test_hostile_metadata(tmp_path: Path, header: str | bytes, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_container(_forge(tmp_path, header, bytes(16)))


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**62, 2**64 - 1])
def test_absurd_header_length(model: Path, length: int) -> None:
    raw = model.read_bytes()
    model.write_bytes(length.to_bytes(8, "little") + raw[8:])
    with pytest.raises(ModelFormatError):
        read_container(model)


def test_damaged_weight_is_found_when_it_is_read(model: Path) -> None:
    entry = read_container(model).entry("权重")
    raw = bytearray(model.read_bytes())
    raw[entry.start + 5] ^= 16
    model.write_bytes(raw)
    found = read_container(model)
    assert found.tensor("scalar") == np.float32(2.5)
    for _ in range(2):
        with pytest.raises(ModelFormatError, match="权重.*damaged"):
            found.tensor("权重")


def test_verifying_finds_damage_of_any_byte(model: Path) -> None:
    raw = bytearray(model.read_bytes())
    parse_container("m", bytes(raw)).verify()
    opened = read_container(model)
    places = {
        at: name
        for name in opened.names()
        for at in range(opened.entry(name).start, opened.entry(name).stop)
    }
    padding = 0
    for at in range(len(raw)):
        raw[at] ^= 1 << at % 8
        with pytest.raises(ModelFormatError) as caught:
            parse_container("m", bytes(raw)).verify()
        raw[at] ^= 1 << at % 8
        if at in places:
            assert f"tensor {places[at]!r} is damaged" in str(caught.value)
        padding += "padding" in str(caught.value)
    assert padding > 0
    opened.verify()


# Random damage


def _flip(raw: bytearray, rng: np.random.Generator) -> None:
    raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))


def _truncate(raw: bytearray, rng: np.random.Generator) -> None:
    del raw[int(rng.integers(len(raw))) :]


def _zero(raw: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(len(raw)))
    stop = min(len(raw), start + int(rng.integers(1, 200)))
    raw[start:stop] = bytes(stop - start)


def _insert(raw: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers(len(raw) + 1))
    raw[start:start] = rng.bytes(int(rng.integers(1, 130)))


def _duplicate(raw: bytearray, rng: np.random.Generator) -> None:
    start, to = (int(v) for v in rng.integers(len(raw), size=2))
    block = raw[start : start + int(rng.integers(1, 300))]
    if rng.integers(2):
        raw[to : to + len(block)] = block
    else:
        raw[to:to] = block


def _edit_digits(raw: bytearray, rng: np.random.Generator) -> None:
    at = [i for i in range(8, len(raw)) if 48 <= raw[i] <= 57]
    raw[at[int(rng.integers(len(at)))]] = int(rng.integers(48, 58))


DAMAGES: list[Callable[[bytearray, np.random.Generator], None]] = [
    _flip, _truncate, _zero, _insert, _duplicate, _edit_digits,
]  # fmt: skip


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def _outcome(path: Path) -> str:
    wanted = _tensors()
    try:
        found = read_container(path)
        assert found.graph == GRAPH
        assert found.names() == tuple(sorted(wanted))
        for name, array in wanted.items():
            read = found.tensor(name)
            assert read.dtype == array.dtype
            assert read.shape == array.shape
            assert read.tobytes() == array.tobytes()
    except ModelFormatError as error:
        return str(error)
    return "right"


def test_random_damage(model: Path, peak: Callable[[], int]) -> None:
    rng = np.random.default_rng(2026)
    whole = model.read_bytes()
    refused = 0
    for number in range(2000):
        raw = bytearray(whole)
        DAMAGES[number % len(DAMAGES)](raw, rng)
        model.write_bytes(raw)
        outcome = _outcome(model)
        refused += outcome != "right"
        if outcome == "right":
            assert len(raw) == len(whole)
        else:
            assert str(model) in outcome
    assert refused > 1000
    assert peak() < 4_000_000


def test_damage_behind_the_digest(tmp_path: Path, peak: Callable[[], int]) -> None:
    """Damage the header and give it a right digest again, so that the inner checks are met."""
    rng = np.random.default_rng(5)
    path = tmp_path / "small.tym"
    write_container(path, {"a": np.arange(6.0), "b": np.ones((2, 3), np.int16)}, {"x": [1, 2]})
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    digest = whole[8:].index(b'digest":"') + 9
    outcomes = set()
    for number in range(1500):
        header = bytearray(whole[8 : 8 + length])
        header[digest : digest + 32] = b"0" * 32
        DAMAGES[number % len(DAMAGES)](header, rng)
        forged = _forge(tmp_path, bytes(header), whole[8 + length :])
        try:
            found = read_container(forged)
            for name in found.names():
                assert found.tensor(name).nbytes <= len(whole)
            outcomes.add("read")
        except ModelFormatError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
    assert peak() < 4_000_000


def test_spared_memory_is_read_again(tmp_path: Path) -> None:
    arrays = {
        "large": np.arange(50_000, dtype=np.float32),
        "small": np.arange(3, dtype=np.int8),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "net.tym"
    write_container(path, arrays, {})
    opened = read_container(path)
    views = {name: opened.tensor(name) for name in arrays}
    opened.spare()
    for name, array in arrays.items():
        np.testing.assert_array_equal(views[name], array)
        np.testing.assert_array_equal(opened.tensor(name), array)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PK\x03\x04" + bytes(60), "got a zip archive, .* tianyuan.torch.load_checkpoint"),
        (b"\x80\x02}q\x00." + bytes(60), "got a pickle, .* tianyuan.torch.load_checkpoint"),
        (b"\x93NUMPY\x01\x00" + bytes(60), "got a numpy array, .* numpy.load"),
        (b"\x08\x08\x12\x07pytorch" + bytes(60), "got what may be an ONNX model, .* in .onnx"),
    ],
)
def test_files_of_other_kinds_are_called_by_their_kind(
    start: bytes, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.tym"
    path.write_bytes(start)
    with pytest.raises(
        ModelFormatError, match=f"other.tym: not a file that Tianyuan wrote, {kind}"
    ):
        read_container(path)
