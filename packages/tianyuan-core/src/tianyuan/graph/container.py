"""Decide how weights and a graph lie in one ``.tym`` file, and what a reader believes of it.

The file is a safetensors container: a little-endian u64 with the header's length, a JSON header,
then data without holes. The header is filled with spaces and the data with ``uint8`` entries
``__pad_N`` so that every tensor starts at a multiple of 64 bytes. ``__metadata__`` begins with the
format version and a BLAKE2b digest of all other header bytes, so that the header is believed
before it is parsed; it also holds the graph as JSON text and a CRC-32 for each tensor. CRC-32
serves the weights because it guards against damage rather than forgery, and runs at memory speed.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .. import native
from ..dtypes import as_dtype
from ..errors import DTypeError, ModelFormatError
from ..records import record

FORMAT_VERSION = 1
ALIGNMENT = 64
HEADER_LIMIT = 100_000_000  # what the safetensors package accepts

# How files of other kinds begin, what they are called, and how such a file is read.
_OTHERS = (
    (b"PK", "a zip archive", "tianyuan.torch.load_checkpoint reads those of PyTorch"),
    (b"\x80", "a pickle", "tianyuan.torch.load_checkpoint reads state dicts"),
    (b"\x93NUMPY", "a numpy array", "numpy.load reads it"),
    (b"\x08", "what may be an ONNX model", "jit.load takes one whose name ends in .onnx"),
)

_PAD = "__pad_"
_MAX_RANK = 32
_MAX_BYTES = 2**62  # keeps numpy's and C's arithmetic on sizes from overflowing
_SAFE_NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_NAMES = {safe: name for name, safe in _SAFE_NAMES.items()}
_VERSION, _DIGEST, _CHECKSUMS, _GRAPH = (
    "tianyuan.format_version", "tianyuan.header_digest", "tianyuan.crc32", "tianyuan.graph",
)  # fmt: skip
_RESERVED = (_VERSION, _DIGEST, _CHECKSUMS, _GRAPH)
_DIGEST_SIZE = 16
_HEAD = re.compile(
    rb'\{"__metadata__":\{"tianyuan\.format_version":"([0-9]{1,9})",'
    rb'"tianyuan\.header_digest":"([0-9a-f]{32})"'
)


@record()
class Entry:
    """What the header says of one tensor; offsets count from the start of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    crc32: int


class Container:
    """Give access to an open model file; arrays share its mapped memory and keep it alive.

    Attributes:
        path: what the file is called in messages.
        graph: the graph's JSON value.
        extra: metadata that the writer added.
    """

    def __init__(
        self,
        path: str,
        buffer: mmap.mmap | bytes,
        entries: dict[str, Entry],
        graph: dict[str, Any],
        extra: dict[str, str],
        start: int,
    ) -> None:
        self.path = path
        self.graph = graph
        self.extra = extra
        self._buffer = buffer
        self._entries = entries
        self._start = start
        self._verified: set[str] = set()

    def take_graph(self) -> dict[str, Any]:
        """Return the graph's JSON value and let go of it: it may be as large as small weights."""
        graph, self.graph = self.graph, {}
        return graph

    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors, sorted."""
        return tuple(self._entries)

    def entry(self, name: str) -> Entry:
        """Return dtype, shape and place of a tensor without reading it; KeyError if absent."""
        return self._entries[name]

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor as a read-only view of the file, verified when first asked for.

        Raises:
            KeyError: where the file has no tensor of the name.
            ModelFormatError: where the bytes do not match their checksum.
        """
        entry = self._entries[name]
        if entry.start == entry.stop:
            empty: np.ndarray = np.empty(entry.shape, entry.dtype)
            empty.flags.writeable = False
            return empty
        self._check(name, entry)
        count = (entry.stop - entry.start) // entry.dtype.itemsize
        flat = np.frombuffer(self._buffer, entry.dtype, count, entry.start)
        return flat.reshape(entry.shape)

    def _check(self, name: str, entry: Entry) -> None:
        if name in self._verified:
            return
        found = (native.crc32 or zlib.crc32)(memoryview(self._buffer)[entry.start : entry.stop])
        if found != entry.crc32:
            _fail(
                self.path,
                f"tensor {name!r} is damaged",
                f"CRC-32 {found:08x}",
                f"{entry.crc32:08x}",
            )
        self._verified.add(name)

    def verify(self) -> None:
        """Check all that is not checked yet: every tensor against its checksum, padding for zeros.

        The memory that reading takes is given back tensor by tensor.

        Raises:
            ModelFormatError: where a byte of the file is not what was written; names the tensor.
        """
        position = self._start
        for name, entry in sorted(self._entries.items(), key=lambda item: item[1].start):
            if np.asarray(memoryview(self._buffer)[position : entry.start]).any():
                _fail(self.path, f"padding before tensor {name!r} is damaged", "bits", "zeros")
            self._check(name, entry)
            self.spare()
            position = entry.stop

    def spare(self) -> None:
        """Give back the memory of the mapped file; reading a tensor brings its pages again.

        All of it, as the kernel maps pages around those that are read.
        """
        _give_back(self._buffer)


def _give_back(buffer: mmap.mmap | bytes) -> None:
    """Give back the memory of a mapped file."""
    if isinstance(buffer, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        buffer.madvise(mmap.MADV_DONTNEED)


def _fail(path: str, what: str, got: object, expected: object) -> NoReturn:
    shown = str(got)
    shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
    raise ModelFormatError(f"{path}: {what}, got {shown}, expected {expected}")


# Writing


def write_container(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    graph: dict[str, Any],
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write a model file so that a reader sees either the old file or the whole new one.

    The same state gives the same bytes: tensors are sorted by name, the graph keeps its order.

    Args:
        tensors: arrays of supported dtypes by name, 0-d and zero-size included.
        graph: a JSON value.
        extra: further metadata; keys ``tianyuan.crc32``, ``.graph`` and so on are taken.

    Raises:
        ValueError: where a name is reserved or not text, or the header grows too large.
        DTypeError: where an array has an unsupported dtype.
        OSError: where the file cannot be written; what was there before stays.
    """
    replace_file(path, container_bytes(tensors, graph, extra))


def container_bytes(
    tensors: Mapping[str, np.ndarray],
    graph: dict[str, Any],
    extra: Mapping[str, str] | None = None,
) -> list[bytes | memoryview]:
    """Return the content of a model file as pieces to write one after the other.

    Everything that can be refused is refused here, before a file is touched.
    """
    arrays = {name: _plain(name, tensors[name]) for name in sorted(tensors)}
    pieces: list[bytes | memoryview] = []
    table: dict[str, dict[str, Any]] = {}
    checksums: dict[str, int] = {}
    position = 0

    def place(name: str, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        nonlocal position
        offsets = [position, position + len(data)]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position += len(data)
        pieces.append(data)

    for name, array in arrays.items():
        gap = -position % ALIGNMENT
        if gap and array.nbytes:
            place(f"{_PAD}{len(table)}", "U8", (gap,), bytes(gap))
        data = array.reshape(-1).view(np.uint8).data if array.nbytes else b""
        place(name, _SAFE_NAMES[array.dtype.name], array.shape, data)
        checksums[name] = zlib.crc32(data)
    return [_header(table, checksums, graph, extra or {}), *pieces]


def _plain(name: str, value: np.ndarray) -> np.ndarray:
    if not isinstance(name, str) or not _is_text(name):
        raise ValueError(f"model file: tensor name is not text, got {name!r}, expected a str")
    if name.startswith(_PAD) or name == "__metadata__":
        raise ValueError(f"model file: tensor name is reserved, got {name!r}, expected another")
    array = np.asarray(value)
    if array.ndim > _MAX_RANK:
        raise ValueError(f"model file: rank of {name!r}, got {array.ndim}, expected <= {_MAX_RANK}")
    if as_dtype(array.dtype).name not in _SAFE_NAMES:
        raise DTypeError(
            f"model file: tensor {name!r} has a dtype that files do not hold, got "
            f"{array.dtype.name}, expected one of {', '.join(_SAFE_NAMES)}"
        )
    # np.ascontiguousarray would turn 0-d into 1-d.
    return np.asarray(array, order="C")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _header(
    table: dict[str, dict[str, Any]],
    checksums: dict[str, int],
    graph: dict[str, Any],
    extra: Mapping[str, str],
) -> bytes:
    for key, value in extra.items():
        if key in _RESERVED:
            raise ValueError(f"model file: metadata key is reserved, got {key!r}, expected another")
        if not (isinstance(key, str) and isinstance(value, str) and _is_text(key + value)):
            raise ValueError(
                f"model file: metadata is no text, got {key!r}: {value!r}, expected str"
            )
    metadata = {
        _VERSION: str(FORMAT_VERSION),
        _DIGEST: "0" * (2 * _DIGEST_SIZE),
        _CHECKSUMS: _compact(checksums),
        _GRAPH: _compact(graph),
        **{key: extra[key] for key in sorted(extra)},
    }
    text = _compact({"__metadata__": metadata, **table}).encode("ascii")
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > HEADER_LIMIT:
        raise ValueError(
            f"model file: header is too large, got {len(text)} bytes, expected {HEADER_LIMIT}"
        )
    head = _HEAD.match(text)
    assert head is not None
    start, stop = head.span(2)
    return len(text).to_bytes(8, "little") + text[:start] + _digest(text, head) + text[stop:]


def _digest(header: bytes, head: re.Match[bytes]) -> bytes:
    start, stop = head.span(2)
    view = memoryview(header)  # of which slices are no copies
    state = hashlib.blake2b(view[:start], digest_size=_DIGEST_SIZE)
    state.update(view[stop:])
    return state.hexdigest().encode()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def replace_file(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file aside, flush it to disk and move it into place in one step.

    Raises:
        OSError: where that fails; the file aside is removed and the old file stays whole.
    """
    target = os.path.realpath(os.fsdecode(path))
    mode = _mode_of(target)
    aside = f"{target}.{secrets.token_hex(6)}.part"
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:  # which names the file aside, of which nobody knows
        raise OSError(error.errno, error.strerror, target) from None
    try:
        with open(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.writelines(pieces)
            file.flush()
            os.fsync(handle)
        os.replace(aside, target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    folder = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power cut
    finally:
        os.close(folder)


def _mode_of(target: str) -> int | None:
    """Return the permissions of a file to be replaced; None where there is none."""
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(
            f"model file: cannot replace a directory, got {target}, expected a file"
        )
    if not stat.S_ISREG(found.st_mode):
        raise OSError(
            f"model file: cannot replace what is not a regular file, got {target}, expected one"
        )
    return stat.S_IMODE(found.st_mode)


# Reading


def read_container(path: str | os.PathLike[str]) -> Container:
    """Open a model file and check its header and graph; weights are checked when first read.

    The file stays mapped while the container or one of its arrays lives: replace it with
    ``write_container``, never shorten it in place.

    Raises:
        FileNotFoundError, IsADirectoryError: where there is no file of that name.
        ModelFormatError: where the file is damaged, hostile or of another version.
    """
    name = os.fsdecode(path)
    if os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name):
        _fail(name, "not a regular file", "a device, pipe or socket", "a model file")
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            _fail(name, "file is too short", f"{size} bytes", "a header of 8 bytes and more")
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return parse_container(name, buffer)


def parse_container(name: str, buffer: mmap.mmap | bytes) -> Container:
    """Check header and graph of a model file's content; ``name`` stands in messages.

    Raises:
        ModelFormatError: where the content is damaged, hostile or of another version.
    """
    size = len(buffer)
    if size < 8:
        _fail(name, "file is too short", f"{size} bytes", "a header of 8 bytes and more")
    length = int.from_bytes(buffer[:8], "little")
    if length > min(size - 8, HEADER_LIMIT):
        _check_kind(name, buffer[:8])
        _fail(name, "header's length is wrong", length, f"at most {min(size - 8, HEADER_LIMIT)}")
    if (8 + length) % ALIGNMENT:
        _fail(name, "data is not aligned", 8 + length, f"a multiple of {ALIGNMENT}")
    header = _believe(name, buffer[8 : 8 + length])
    _give_back(buffer)
    metadata = header.pop("__metadata__")
    if not all(isinstance(value, str) for value in metadata.values()):
        _fail(name, "metadata is wrong", "values of other types", "text")
    graph, checksums = (
        _parse(name, _require(name, metadata, key), key) for key in (_GRAPH, _CHECKSUMS)
    )
    entries = dict(sorted(_entries(name, header, checksums, 8 + length, size)))
    extra = {key: value for key, value in metadata.items() if key not in _RESERVED}
    return Container(name, buffer, entries, graph, extra, 8 + length)


def _check_kind(name: str, start: bytes) -> None:
    """Raise ModelFormatError where a file begins as those of another kind do."""
    for magic, kind, way in _OTHERS:
        if start.startswith(magic):
            _fail(name, "not a file that Tianyuan wrote", kind, f"a .tym file or checkpoint; {way}")


def _believe(name: str, text: bytes) -> dict[str, Any]:
    """Return the parsed header, after its version and digest have been checked."""
    head = _HEAD.match(text)
    if head is None:
        _fail(name, "not a Tianyuan model file", repr(text[:32]), "a header that says so")
    version = int(head[1])
    if version != FORMAT_VERSION:
        _fail(name, "unknown format version", version, FORMAT_VERSION)
    found = _digest(text, head)
    if found != head[2]:
        _fail(name, "header is damaged", f"digest {found.decode()}", head[2].decode())
    return _parse(name, text, "header")


def _parse(name: str, text: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(
            f"{name}: {what} is not valid JSON, got {error}, expected an object"
        ) from None
    if not isinstance(value, dict):
        _fail(name, f"{what} is wrong", f"JSON {type(value).__name__}", "an object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("got a key that stands twice, expected it once")
    return result


def _require(name: str, metadata: dict[str, str], key: str) -> str:
    """Take an entry out, so that its text lives no longer than it is read."""
    if key not in metadata:
        _fail(name, "metadata is incomplete", f"no {key!r}", "one")
    return metadata.pop(key)


def _entries(
    path: str, header: dict[str, Any], checksums: dict[str, Any], base: int, size: int
) -> Iterator[tuple[str, Entry]]:
    """Yield the tensors, after checking that all of them together fill the data exactly."""
    read = {name: _entry(path, name, value, checksums, base) for name, value in header.items()}
    position = base
    for name, entry in sorted(read.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != position:
            _fail(path, f"tensor {name!r} overlaps or leaves a hole", entry.start, position)
        position = entry.stop
        if not name.startswith(_PAD):
            if entry.start % ALIGNMENT and entry.start != entry.stop:
                _fail(path, f"tensor {name!r} is not aligned", entry.start, f"{ALIGNMENT} n")
            yield name, entry
    if position != size:
        _fail(path, "file has the wrong size", f"{size} bytes", position)
    unknown = checksums.keys() - read.keys()
    if unknown:
        _fail(path, "a checksum has no tensor", repr(min(unknown)), "one")


def _entry(path: str, name: str, value: Any, checksums: dict[str, Any], base: int) -> Entry:
    what = f"tensor {name!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        _fail(path, f"{what} is described wrongly", value, "dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _NAMES:
        _fail(path, f"{what} has an unknown dtype", dtype, f"one of {', '.join(_NAMES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        _fail(path, f"{what} has a wrong shape", shape, f"at most {_MAX_RANK} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        _fail(path, f"{what} has wrong offsets", offsets, "two sizes")
    found, nbytes = as_dtype(_NAMES[dtype]), offsets[1] - offsets[0]
    expected = math.prod(shape, start=found.itemsize)
    if math.prod((extent for extent in shape if extent), start=found.itemsize) >= _MAX_BYTES:
        _fail(path, f"{what} has a wrong shape", shape, f"fewer than {_MAX_BYTES} bytes")
    if nbytes != expected:
        _fail(path, f"{what} has the wrong size", f"{nbytes} bytes", expected)
    crc = 0 if name.startswith(_PAD) else checksums.get(name)
    if type(crc) is not int:
        _fail(path, f"{what} has no checksum", crc, "a CRC-32")
    return Entry(found, tuple(shape), base + offsets[0], base + offsets[1], crc)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < _MAX_BYTES for v in value)
