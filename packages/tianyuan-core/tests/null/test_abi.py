"""The C header and the bytes that Python writes for it agree."""

from __future__ import annotations

import struct
from pathlib import Path

from tianyuan import abi, registry
from tianyuan.ops.codes import ELEMENTWISE


def test_header_is_the_one_that_the_ops_generate() -> None:
    header = Path(abi.get_include()) / "tianyuan" / "attrs.h"
    plain = [op for op in registry.all_ops() if op.attrs.__module__.startswith("tianyuan.")]
    assert header.read_text() == abi.generate_header(plain)


def test_every_opcode_names_an_elementwise_op() -> None:
    for name in ELEMENTWISE:
        assert registry.get_op(name).family == "elementwise"


def test_attrs_follow_the_c_layout() -> None:
    op = registry.get_op("pad")
    attrs = op.attrs((1, 2), (3, 4), "edge", 0.5)
    data = abi.encode_attrs(op, attrs, 1, 1)
    version, size, op_version, n_in, n_out = struct.unpack_from("<IIIHH", data)
    assert (version, op_version, n_in, n_out) == (1, op.version, 1, 1)
    assert size == 16 + 3 * 16 + 8
    count, offset = struct.unpack_from("<qq", data, 16)
    assert struct.unpack_from(f"<{count}q", data, offset) == (1, 2)
    count, offset = struct.unpack_from("<qq", data, 32)
    assert struct.unpack_from(f"<{count}q", data, offset) == (3, 4)
    count, offset = struct.unpack_from("<qq", data, 48)
    assert data[offset : offset + count] == b"edge"
    assert data[offset + count] == 0
    assert struct.unpack_from("<d", data, 64) == (0.5,)
