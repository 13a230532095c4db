"""Decide which files are checkpoints, and read their tensors without executing anything."""

from __future__ import annotations

import io
import mmap
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from .pickled import Global, read_pickle
from .rebuild import Block, Resolver, Storage, allowed
from .safetensors import looks_like_safetensors, read_safetensors

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_SLACK = 64 << 20
_ZIP = b"PK\x03\x04"
# What zipfile raises on damage: its own error, and whatever a wrong number leads to.
_ZIP_DAMAGE = (
    zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, OverflowError,
    struct.error, OSError,
)  # fmt: skip


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Read everything that a checkpoint holds, with tensors as numpy arrays.

    The file may be what ``torch.save`` writes (zip format, or the format before torch 1.6), what
    ``megengine.save`` writes of a state dict, any other pickle of numpy arrays, or a safetensors
    file. It may hold dict, OrderedDict, list, tuple, text, numbers, bools and None around them.
    Neither torch nor MegEngine is needed. Tensors that share memory in the file share it here.

    Raises:
        FileNotFoundError, IsADirectoryError: where there is no such file.
        ModelFormatError: where the file is damaged, claims absurd sizes, or its pickle names
            anything but tensors and arrays; nothing that it names is ever imported or called.

    >>> from safetensors.numpy import save_file
    >>> save_file({"weight": np.array([1.0, 2.0])}, "net.safetensors")
    >>> read_checkpoint("net.safetensors")
    {'weight': array([1., 2.])}
    """
    title = f"checkpoint {os.fspath(path)}"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 4:
            raise ModelFormatError(f"{title}: the file is too short, got {size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            if looks_like_safetensors(buffer):
                return read_safetensors(buffer, title)
            resolver = Resolver(title, 4 * size + _SLACK)
            if buffer[:4] == _ZIP:
                return resolver.resolve(_read_zip(Path(path), title))
            return resolver.resolve(_read_pickles(buffer, title))


def load_checkpoint(path: str | os.PathLike[str], key: str | None = None) -> dict[str, np.ndarray]:
    """Read a state dict from a checkpoint, without executing anything that the file names.

    Args:
        path: a file of any kind that ``read_checkpoint`` takes.
        key: which entry is the state dict, where the file holds more around it, such as
            ``"state_dict"``; dots go deeper. By default the file itself, or the only entry of it
            that is a state dict.

    Returns:
        Arrays by name, in the file's order; numbers in a state dict are arrays of no dimension.

    Raises:
        FileNotFoundError, IsADirectoryError: where there is no such file.
        ModelFormatError: where the file cannot be read, or holds no state dict there.

    >>> import pickle
    >>> with open("net.pkl", "wb") as file:
    ...     pickle.dump({"epoch": 3, "model": {"weight": np.array([1.0, 2.0])}}, file)
    >>> load_checkpoint("net.pkl", key="model")
    {'weight': array([1., 2.])}
    """
    title = f"checkpoint {os.fspath(path)}"
    value = read_checkpoint(path)
    if key is not None:
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                known = ", ".join(map(str, value)) if isinstance(value, Mapping) else "no entries"
                raise ModelFormatError(f"{title}: has no entry {key!r}, got {known[:200]}")
            value = value[part]
    elif not _is_state_dict(value):
        value = _only_state_dict(value, title)
    if not _is_state_dict(value):
        raise ModelFormatError(
            f"{title}: entry {key!r} is no state dict, got {type(value).__name__}, expected "
            f"tensors by name{_first_stranger(value)}"
        )
    return {name: np.asarray(item) for name, item in value.items()}


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and any(isinstance(item, np.ndarray) for item in value.values())
        and all(
            isinstance(name, str) and isinstance(item, (np.ndarray, int, float))
            for name, item in value.items()
        )
    )


def _first_stranger(value: Any) -> str:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, (np.ndarray, int, float)):
                return f"; {name!r} is {type(item).__name__}"
    return ""


def _only_state_dict(value: Any, title: str) -> Any:
    found = {}
    if isinstance(value, Mapping):
        found = {name: item for name, item in value.items() if _is_state_dict(item)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ModelFormatError(
            f"{title}: holds several state dicts, got {', '.join(map(repr, found))}; "
            "expected one to be chosen by key="
        )
    raise ModelFormatError(
        f"{title}: holds no state dict, got {type(value).__name__}, expected tensors by name"
        f"{_first_stranger(value)}"
    )


def _storage_reader(
    storages: dict[str, Storage], fill: Callable[[Storage], None] | None
) -> Callable[[Any], Storage]:
    """Return what stands for persistent ids; ``fill`` reads a storage where it is first named."""

    def persistent(pid: Any) -> Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise ValueError(f"a persistent id {str(pid)[:60]!r}")
        _, kind, key, _, count = pid[:5]
        if not isinstance(kind, Global) or not isinstance(kind.value, np.dtype):
            raise ValueError("a storage without type")
        if not isinstance(key, str) or not _is_size(count):
            raise ValueError("a storage without name or size")
        if key not in storages:
            storages[key] = Storage(kind.value, key, count, Block())
            if fill is not None:
                fill(storages[key])
        root = storages[key]
        if len(pid) == 6 and pid[5] is not None:
            _, start, length = pid[5]
            if not _is_size(start) or not _is_size(length):
                raise ValueError("a view of a storage without place")
            return Storage(kind.value, key, length, root.block, start)
        return Storage(kind.value, key, count, root.block)

    return persistent


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _read_zip(path: Path, title: str) -> Any:
    """Read the format of torch 1.6 and later: a zip file without compression."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {info.filename: info for info in archive.infolist()}
            pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise ModelFormatError(
                    f"{title}: no checkpoint of torch, got a zip file with {len(pickles)} entries "
                    "called data.pkl, expected 1"
                )
            folder = pickles[0][: -len("data.pkl")]
            if f"{folder}constants.pkl" in names:
                raise ModelFormatError(
                    f"{title}: a TorchScript archive, which holds code; expected a state dict "
                    "written by torch.save"
                )
            storages = _ZippedStorages(archive, folder, title)
            stream = io.BytesIO(bytes(_entry(archive, pickles[0], title)))
            return read_pickle(stream, title, allowed, _storage_reader({}, storages.fill))
    except ModelFormatError:
        raise
    except _ZIP_DAMAGE as error:
        raise ModelFormatError(f"{title}: the zip file is damaged, got {error}") from None


class _ZippedStorages:
    """Reads storages out of a zip file, and no more bytes of them than the file has."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, title: str) -> None:
        self._archive, self._folder, self._title = archive, folder, title
        self._left = _size_of(archive)
        self._swap = False
        if f"{folder}byteorder" in archive.NameToInfo:
            self._swap = _entry(archive, f"{folder}byteorder", title) == b"big"

    def fill(self, storage: Storage) -> None:
        """Read the bytes of a storage."""
        data = _entry(self._archive, f"{self._folder}data/{storage.key}", self._title)
        self._left -= len(data)
        if storage.nbytes > len(data) or self._left < 0:
            raise ModelFormatError(
                f"{self._title}: storage {storage.key!r} has {len(data)} bytes, expected "
                f"{storage.nbytes} that no other storage has"
            )
        if self._swap:
            data = bytearray(np.frombuffer(data, storage.dtype).byteswap().tobytes())
        storage.block.data = data


def _size_of(archive: zipfile.ZipFile) -> int:
    assert archive.fp is not None
    return os.fstat(archive.fp.fileno()).st_size


def _entry(archive: zipfile.ZipFile, name: str, title: str) -> bytearray:
    """Return the bytes of an entry, after a look at the size that it claims."""
    info = archive.NameToInfo.get(name)
    if info is None:
        raise ModelFormatError(f"{title}: entry {name!r} is missing")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ModelFormatError(
            f"{title}: entry {name!r} is compressed, expected it stored as torch.save does"
        )
    if info.file_size + info.header_offset > _size_of(archive):
        raise ModelFormatError(
            f"{title}: entry {name!r} claims {info.file_size} bytes, expected at most "
            f"{_size_of(archive)}"
        )
    with archive.open(info) as file:
        data = bytearray(file.read())  # compares the checksum at its end
    if len(data) != info.file_size:
        raise ModelFormatError(f"{title}: entry {name!r} is cut off")
    return data


def _read_pickles(buffer: mmap.mmap, title: str) -> Any:
    """Read torch's format before 1.6, or one pickle of arrays as MegEngine writes it."""
    if buffer[257:262] == b"ustar":
        raise ModelFormatError(
            f"{title}: a tar file as torch wrote before 0.2, expected it saved anew by torch"
        )
    if not _may_be_pickle(buffer):
        raise ModelFormatError(
            f"{title}: no checkpoint, got a file that starts with {buffer[:8]!r}, expected a "
            "zip file, a pickle or a safetensors file"
        )
    storages: dict[str, Storage] = {}
    persistent = _storage_reader(storages, None)
    value = read_pickle(buffer, title, allowed, persistent)
    if value != _LEGACY_MAGIC:
        if storages:
            raise ModelFormatError(f"{title}: names storages that are not in the file")
        return value
    version = read_pickle(buffer, title, allowed)
    if version != _LEGACY_VERSION:
        raise ModelFormatError(
            f"{title}: unknown version, got {str(version)[:40]!r}, expected {_LEGACY_VERSION}"
        )
    read_pickle(buffer, title, allowed)  # how the writing machine numbered bytes; always little
    value = read_pickle(buffer, title, allowed, persistent)
    keys = read_pickle(buffer, title, allowed)
    known = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not known or sorted(keys) != sorted(storages):
        raise ModelFormatError(f"{title}: names storages that are not in the file")
    for key in keys:
        _fill_legacy(buffer, storages[key], title)
    return value


def _may_be_pickle(buffer: mmap.mmap) -> bool:
    """Tell whether a file starts like a pickle: a protocol, or an opcode of protocol 0 or 1."""
    return (buffer[0] == 0x80 and buffer[1] <= 5) or buffer[:1] in (b"(", b"c", b"}", b"]", b"L")


def _fill_legacy(buffer: mmap.mmap, storage: Storage, title: str) -> None:
    head = buffer.read(8)
    count = int.from_bytes(head, "little")
    left = len(buffer) - buffer.tell()
    if len(head) < 8 or count * storage.dtype.itemsize > left or count < storage.count:
        raise ModelFormatError(
            f"{title}: storage {storage.key!r} is cut off, got {count} elements with {left} bytes "
            f"left in the file, expected {storage.count} of {storage.dtype.itemsize} bytes"
        )
    storage.block.data = bytearray(buffer.read(count * storage.dtype.itemsize))
