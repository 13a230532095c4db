"""What checkpoints are read, what they give, and what is refused without being executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tianyuan.errors import ModelFormatError
from tianyuan.torch import load_checkpoint, read_checkpoint

FORMATS = ({}, {"_use_new_zipfile_serialization": False})
IDS = ("zip", "legacy")


def tensors(torch: Any) -> OrderedDict[str, Any]:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6) * 0.5 - 3
    return OrderedDict(
        whole=base,
        transposed=base.t(),
        part=base[1:3, 2:5],
        steps=base[::2, 1::3],
        parameter=torch.nn.Parameter(base),
        spread=torch.tensor([7.0]).expand(3),
        half=base.half(),
        brain=base.bfloat16(),
        double=base.double(),
        long=torch.arange(-3, 3),
        short=torch.arange(5, dtype=torch.int16),
        byte=torch.arange(250, 256, dtype=torch.uint8),
        truth=torch.tensor([True, False, True]),
        wide=torch.arange(4, dtype=torch.int32).to(torch.uint16),
        empty=torch.zeros(0, 3),
        scalar=torch.tensor(2.5),
    )


def as_numpy(torch: Any, value: Any) -> np.ndarray:
    value = value.detach()
    return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()


@pytest.mark.parametrize("options", FORMATS, ids=IDS)
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_tensors_equal_those_that_torch_saved(
    torch: Any, tmp_path: Path, options: dict[str, Any], protocol: int
) -> None:
    saved = tensors(torch)
    torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol, **options)
    found = load_checkpoint(tmp_path / "x.pt")
    assert list(found) == list(saved)
    for name, value in saved.items():
        expected = as_numpy(torch, value)
        assert found[name].dtype == (ml_dtypes.bfloat16 if name == "brain" else expected.dtype)
        assert found[name].shape == expected.shape
        np.testing.assert_array_equal(found[name].astype(expected.dtype), expected)
        assert found[name].flags.c_contiguous
        assert found[name].flags.writeable
    assert np.shares_memory(found["whole"], found["parameter"])


@pytest.mark.parametrize("options", FORMATS, ids=IDS)
def test_a_training_checkpoint_is_read_whole(
    torch: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.ones(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    saved = {
        "epoch": 3,
        "best": 0.25,
        "done": False,
        "note": "a 天元",
        "nothing": None,
        "size": torch.Size([2, 3]),
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(saved, tmp_path / "x.pt", **options)
    found = read_checkpoint(tmp_path / "x.pt")
    assert {k: found[k] for k in ("epoch", "best", "done", "note", "nothing", "size")} == {
        "epoch": 3, "best": 0.25, "done": False, "note": "a 天元", "nothing": None, "size": (2, 3),
    }  # fmt: skip
    momentum = found["optimizer"]["state"][0]["momentum_buffer"]
    expected = optimizer.state_dict()["state"][0]["momentum_buffer"].numpy()
    np.testing.assert_array_equal(momentum, expected)
    state = load_checkpoint(tmp_path / "x.pt", key="network")
    assert list(state) == list(network.state_dict())
    assert state["1.num_batches_tracked"].shape == ()
    assert list(load_checkpoint(tmp_path / "x.pt")) == list(state)  # the only state dict in it


ARRAYS = OrderedDict(
    c=np.arange(6, dtype=np.float32).reshape(2, 3),
    fortran=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    big_endian=np.arange(3, dtype=">i4"),
    scalar=np.float32(2.5),
    brain=np.array([1.5, -2], ml_dtypes.bfloat16),
    empty=np.zeros((0, 4), np.uint8),
    number=7,
)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_numpy_arrays_as_megengine_saves_them(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(ARRAYS, protocol))
    found = load_checkpoint(tmp_path / "x.pkl")
    assert list(found) == list(ARRAYS)
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype.isnative


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "h": np.arange(3, dtype=np.float16),
        "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
        "s": np.array(3, np.int64),
        "e": np.zeros((0, 2), np.float32),
        "t": np.array([True, False]),
    }
    safetensors.save_file(arrays, tmp_path / "x.safetensors", {"by": "a test"})
    found = load_checkpoint(tmp_path / "x.safetensors")
    assert found.keys() == arrays.keys()
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
        assert found[name].flags.writeable


class Evil:
    """Creates a file when it is unpickled by Python."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_is_refused_by_name_and_never_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "executed"
    data = pickle.dumps({"a": np.zeros(3), "b": Evil(mark)}, protocol)
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"(posix|nt)\.mkdir"):
        load_checkpoint(tmp_path / "x.pkl")
    assert not mark.exists()
    pickle.loads(data)  # what Python itself would have done
    assert mark.exists()


@pytest.mark.parametrize("options", FORMATS, ids=IDS)
def test_code_in_torch_files_is_refused_and_never_run(
    torch: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    mark = tmp_path / "executed"
    torch.save({"a": torch.zeros(3), "b": Evil(mark)}, tmp_path / "x.pt", **options)
    with pytest.raises(ModelFormatError, match=r"(posix|nt)\.mkdir"):
        load_checkpoint(tmp_path / "x.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "y.pt", **options)
    with pytest.raises(ModelFormatError, match=r"torch\.nn\.modules\.linear\.Linear"):
        load_checkpoint(tmp_path / "y.pt")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "INST"),
        (b"(cos\nsystem\nS'true'\no.", "os.system"),
        (b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", "__builtin__.eval"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "NEWOBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x04\x8f.", "EMPTY_SET"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "numpy.ndarray"),
        (b"\x80\x02ccollections\nOrderedDict\n.", "collections.OrderedDict"),
        (b"\x80\x02ctorch\nFloatStorage\nX\x01\x00\x00\x00kQ.", "damaged"),
        (b"(lp0\ng0\na.", "nested too deeply"),
        (b"ccollections\nOrderedDict\n(((I1\n" + b"t(" * 100 + b"t" * 100 + b"I1\nttR.", "damaged"),
        (
            b"\x80\x02ccollections\nOrderedDict\n]](" + b")" + b"\x85" * 200_000 + b"K\x01ea\x85R.",
            "a key that is no text",
        ),
    ],
)
def test_hand_made_pickles_are_refused(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(ModelFormatError, match=what):
        load_checkpoint(tmp_path / "x.pkl")


def bomb(data: bytes) -> bytes:
    return b"\x80\x04" + data


@pytest.mark.parametrize(
    "data",
    [
        bomb(b"\x8e" + (2**40).to_bytes(8, "little") + b"x"),  # bytes
        bomb(b"\x8d" + (2**40).to_bytes(8, "little") + b"x"),  # text
        bomb(b"N" + b"r" + (2**32 - 1).to_bytes(4, "little")),  # a place in the memo
        bomb(b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"1"),  # a long
    ],
)
def test_claims_of_size_allocate_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.pkl").write_bytes(data)
    assert run_for_peak(tmp_path / "x.pkl") < 64 << 20


def test_many_arrays_of_the_same_bytes_stay_within_a_bound(tmp_path: Path) -> None:
    megabyte = 1 << 20
    head = pickle.dumps(np.dtype(np.uint8), 2)[2:-1]
    data = b"\x80\x03]B" + megabyte.to_bytes(4, "little") + bytes(megabyte) + b"q\xf00"
    call = b"cnumpy.core.numeric\n_frombuffer\n(h\xf0" + head
    call += b"J" + megabyte.to_bytes(4, "little") + b"\x85X\x01\x00\x00\x00CtRa"
    (tmp_path / "x.pkl").write_bytes(data + call * 3 + b".")
    assert [array.nbytes for array in read_checkpoint(tmp_path / "x.pkl")] == [megabyte] * 3
    (tmp_path / "x.pkl").write_bytes(data + call * 1000 + b".")
    assert run_for_peak(tmp_path / "x.pkl") < 160 * megabyte


def run_for_peak(path: Path) -> int:
    """Read a file that is refused, in a process of its own, and return how its memory grew."""
    script = (
        "import resource, sys\n"
        "from tianyuan.torch import read_checkpoint\n"
        "from tianyuan.errors import ModelFormatError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_checkpoint(sys.argv[1])\n"
        "except ModelFormatError:\n"
        "    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def storage_pickle(
    size: tuple[int, ...], stride: tuple[int, ...], count: int, offset: int
) -> bytes:
    """Write a pickle of {"w": tensor} by hand, with whatever sizes."""

    def number(value: int) -> bytes:
        data = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + number(count) + b"tQ" + number(offset) + numbers(size) + numbers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def zipped(path: Path, data: bytes, storage: bytes = bytes(16), compression: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x/data.pkl", data)
        archive.writestr("x/data/0", storage)
    return path


def test_a_hand_made_zip_file_is_read(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    data = storage_pickle((2, 2), (1, 2), 4, 0)
    found = load_checkpoint(zipped(tmp_path / "x.pt", data, values.tobytes()))
    np.testing.assert_array_equal(found["w"], values.reshape(2, 2).T)


@pytest.mark.parametrize(
    ("size", "stride", "count", "offset"),
    [
        ((5,), (1,), 4, 0),  # one element too many
        ((4,), (1,), 4, 1),  # shifted by one
        ((2, 2), (3, 1), 4, 0),  # strides that reach too far
        ((-1,), (1,), 4, 0),
        ((2,), (-1,), 4, 1),
        ((2,), (1, 1), 4, 0),
        ((1 << 40,), (0,), 4, 0),  # an absurd repetition of one element
        ((1 << 30, 1 << 30, 1 << 30), (0, 0, 0), 4, 0),
        ((4,), (1,), 5, 0),  # a storage that is not there
        ((4,), (1,), 1 << 60, 0),
        ((1,) * 40, (1,) * 40, 4, 0),
    ],
)
def test_tensors_that_do_not_fit_their_storage_are_refused(
    tmp_path: Path, size: tuple[int, ...], stride: tuple[int, ...], count: int, offset: int
) -> None:
    path = zipped(tmp_path / "x.pt", storage_pickle(size, stride, count, offset))
    with pytest.raises(ModelFormatError, match=r"x\.pt"):
        load_checkpoint(path)


def test_compressed_and_strange_zip_files_are_refused(tmp_path: Path) -> None:
    data = storage_pickle((4,), (1,), 4, 0)
    with pytest.raises(ModelFormatError, match="compressed"):
        load_checkpoint(zipped(tmp_path / "a.pt", data, compression=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ModelFormatError, match=r"data\.pkl"):
        load_checkpoint(tmp_path / "b.pt")
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
        archive.writestr("x/data.pkl", data)
    with pytest.raises(ModelFormatError, match=r"'x/data/0' is missing"):
        load_checkpoint(tmp_path / "c.pt")
    damaged = bytearray(zipped(tmp_path / "d.pt", data).read_bytes())
    damaged[damaged.index(bytes(16)) + 3] ^= 1
    (tmp_path / "d.pt").write_bytes(damaged)
    with pytest.raises(ModelFormatError, match="CRC"):
        load_checkpoint(tmp_path / "d.pt")


@pytest.mark.parametrize("options", FORMATS, ids=IDS)
def test_a_cut_file_gives_one_clear_error(
    torch: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    buffer = io.BytesIO()
    torch.save(tensors(torch), buffer, **options)
    whole = buffer.getvalue()
    path = tmp_path / "x.pt"
    for length in {*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError, match=r"x\.pt"):
            load_checkpoint(path)


@pytest.mark.parametrize("options", FORMATS, ids=IDS)
def test_flipped_bits_give_a_clear_error_or_arrays(
    torch: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    buffer = io.BytesIO()
    torch.save(tensors(torch), buffer, **options)
    whole = buffer.getvalue()
    rng = np.random.default_rng(0)
    path = tmp_path / "x.pt"
    messages = []
    for _ in range(300):
        changed = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = load_checkpoint(path)
        except ModelFormatError as error:
            messages.append(str(error))
        else:
            assert all(isinstance(value, np.ndarray) for value in found.values())
    assert messages
    assert all("x.pt" in message for message in messages)


def safetensors_bytes(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    "data",
    [
        safetensors_bytes(entry(), bytes(7)),
        safetensors_bytes(entry(), bytes(9)),
        safetensors_bytes(entry(shape=[3])),
        safetensors_bytes(entry(shape=[-2])),
        safetensors_bytes(entry(shape=[0, 2**47, 2**47], data_offsets=[0, 0]), b""),
        safetensors_bytes(entry(shape="2")),
        safetensors_bytes(entry(dtype="F8_E4M3", shape=[8])),
        safetensors_bytes(entry(data_offsets=[0, 2**45], shape=[2**43])),
        safetensors_bytes({**entry(), "v": entry()["w"]}),
        safetensors_bytes({"w": 3}),
        safetensors_bytes(b"{" * 100),
        safetensors_bytes(b'{"w":'),
        (1000).to_bytes(8, "little") + b"{}",
    ],
)
def test_damaged_safetensors_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"x\.safetensors"):
        load_checkpoint(tmp_path / "x.safetensors")


def test_what_holds_no_state_dict_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"epoch": 3, "note": "hello"}))
    with pytest.raises(ModelFormatError, match="holds no state dict"):
        load_checkpoint(path)
    two = {"a": {"w": np.zeros(2)}, "b": {"w": np.zeros(2)}, "epoch": 1}
    path.write_bytes(pickle.dumps(two))
    with pytest.raises(ModelFormatError, match="'a', 'b'"):
        load_checkpoint(path)
    assert list(load_checkpoint(path, key="b")) == ["w"]
    with pytest.raises(ModelFormatError, match="has no entry 'c'"):
        load_checkpoint(path, key="c")
    path.write_text("hello, world")
    with pytest.raises(ModelFormatError, match="no checkpoint"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt")


def test_reading_needs_no_torch(torch: Any, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "x.pt")
    script = (
        "import sys\nsys.modules['torch'] = None\n"
        "from tianyuan.torch import load_checkpoint, to_torch\n"
        "from tianyuan.errors import BackendError\n"
        "print(load_checkpoint(sys.argv[1])['w'].sum())\n"
        "try:\n    to_torch({})['x']\nexcept KeyError:\n    pass\n"
        "try:\n    to_torch(load_checkpoint(sys.argv[1]))\n"
        "except BackendError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.pt")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("3.0\n")
    assert 'pip install "torch>=2.6"' in done.stdout
