"""Find the weights in a model's bytes before protobuf reads these, so that they are held once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LEAST = 1 << 12  # bytes of a weight; smaller ones stay where they are

# Numbers of fields in onnx.proto, and protobuf's ways to store one.
_GRAPH, _INITIALIZER = 7, 5
_NAME, _RAW_DATA, _SEGMENT, _EXTERNAL_DATA, _LOCATION = 8, 9, 3, 13, 14
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_EMPTY_RAW_DATA = bytes([_RAW_DATA << 3 | _SIZED, 0])


@dataclass(frozen=True)
class Span:
    """Bytes of a file."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Return how many bytes they are."""
        return self.end - self.start


@dataclass(frozen=True)
class _Field:
    """One field of a message: what it is, where it begins, and where its content lies."""

    number: int
    kind: int
    start: int
    content: Span


class _UnusualError(Exception):
    """Raise where bytes are not what is looked for; protobuf then reads all of them."""


def without_weights(file: BinaryIO) -> tuple[bytes, dict[str, Span]]:
    """Return a model's bytes without its large weights, and where these lie, by their names.

    A weight is an initialiser of the model's own graph with its data in ``raw_data``, which is
    empty in what is returned. Nothing is judged here: bytes that are not understood come back
    whole.
    """
    size = file.seek(0, 2)
    found: dict[str, Span] = {}
    try:
        parts = _Parts(file, 0)
        for field in _fields(file, Span(0, size)):
            if (field.number, field.kind) == (_GRAPH, _SIZED):
                parts.replace(field, _graph(file, field.content, found))
        data = parts.finish(size)
    except _UnusualError:
        found.clear()
        data = _bytes(file, Span(0, size))
    return data, found


class _Parts:
    """What is copied from a file, with some fields replaced."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._copied = start
        self._parts: list[bytes] = []

    def replace(self, field: _Field, content: bytes) -> None:
        """Copy what stands before a field, and put other content in its place."""
        if len(content) == field.content.size:
            return  # nothing was taken out of it
        self._parts.append(_bytes(self._file, Span(self._copied, field.start)))
        self._parts.append(_varint_bytes(field.number << 3 | _SIZED) + _varint_bytes(len(content)))
        self._parts.append(content)
        self._copied = field.content.end

    def finish(self, end: int) -> bytes:
        """Copy the rest and return everything."""
        self._parts.append(_bytes(self._file, Span(self._copied, end)))
        return b"".join(self._parts)


def _graph(file: BinaryIO, content: Span, found: dict[str, Span]) -> bytes:
    parts = _Parts(file, content.start)
    for field in _fields(file, content):
        if (field.number, field.kind) != (_INITIALIZER, _SIZED) or field.content.size < LEAST:
            continue
        weight = _weight(file, field.content)
        if weight is not None and weight[0] not in found:
            name, raw = weight
            found[name] = raw.content
            before = _bytes(file, Span(field.content.start, raw.start))
            after = _bytes(file, Span(raw.content.end, field.content.end))
            parts.replace(field, before + _EMPTY_RAW_DATA + after)
    return parts.finish(content.end)


def _weight(file: BinaryIO, content: Span) -> tuple[str, _Field] | None:
    """Return a tensor's name and data, or None where it is stored in another way."""
    names, datas = [], []
    for field in _fields(file, content):
        if field.number in (_SEGMENT, _EXTERNAL_DATA, _LOCATION):
            return None
        if field.number == _NAME and field.kind == _SIZED:
            names.append(field)
        elif field.number == _RAW_DATA and field.kind == _SIZED:
            datas.append(field)
    if len(names) != 1 or len(datas) != 1 or datas[0].content.size < LEAST:
        return None
    try:
        return _bytes(file, names[0].content).decode(), datas[0]
    except UnicodeDecodeError:
        return None


def _fields(file: BinaryIO, within: Span) -> Iterator[_Field]:
    """Walk the fields of a message.

    Raises:
        _UnusualError: where they do not fill it exactly, or are groups.
    """
    place = within.start
    while place < within.end:
        file.seek(place)
        tag = _varint(file)
        kind = tag & 7
        if kind == _VARINT:
            start = file.tell()
            _varint(file)
            content = Span(start, file.tell())
        else:
            if kind not in (_SIZED, _FIXED32, _FIXED64):
                raise _UnusualError
            size = _varint(file) if kind == _SIZED else 8 if kind == _FIXED64 else 4
            start = file.tell()
            content = Span(start, start + size)
        if content.end > within.end:
            raise _UnusualError
        yield _Field(tag >> 3, kind, place, content)
        place = content.end


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise _UnusualError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _UnusualError


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _bytes(file: BinaryIO, span: Span) -> bytes:
    file.seek(span.start)
    return file.read(span.size)
