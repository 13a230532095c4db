"""Encode the few protocol-buffer messages, and the record format, that TensorBoard reads.

Field numbers are those of TensorFlow's ``event.proto``, ``graph.proto`` and ``summary.proto``.
"""

from __future__ import annotations

import struct
from functools import cache

_CRC32C = 0x82F63B78  # Castagnoli's polynomial, reflected


def varint(value: int) -> bytes:
    """Encode an integer in as few groups of seven bits as it needs; negatives as 64-bit."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def integer(number: int, value: int) -> bytes:
    """Encode a field of an integer, an enumeration or a truth value."""
    return varint(number << 3) + varint(int(value))


def double(number: int, value: float) -> bytes:
    """Encode a field of a double."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """Encode a field of a float."""
    return varint(number << 3 | 5) + struct.pack("<f", value)


def block(number: int, value: bytes | str) -> bytes:
    """Encode a field of text, bytes or another message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


@cache
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CRC32C if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Return a record of a TensorBoard file: length, data, and a checksum of each."""
    head = struct.pack("<Q", len(data))
    return head + _masked(head) + data + _masked(data)
