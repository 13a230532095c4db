"""The C header of attributes is what the ops' attrs classes say."""

from __future__ import annotations

import struct
from pathlib import Path

from tianyuan import abi, registry
from tianyuan.ops import attrs as a


def test_header_is_up_to_date():
    path = Path(abi.get_include()) / "tianyuan" / "attrs.h"
    assert path.read_text() == abi.generate_header(registry.all_ops())


def test_fused_program_is_laid_out_as_the_struct_says():
    op = registry.get_op("fused_elementwise")
    data = abi.encode_attrs(op, a.FusedElementwise((39, 0, 1, 0), (0.5,), (2,)), 2, 1)
    version, size, _, inputs, outputs = struct.unpack_from("<IIIHH", data)
    assert (version, size, inputs, outputs) == (abi.ABI_VERSION, 16 + 3 * 16, 2, 1)
    lists = [struct.unpack_from("<qq", data, 16 + 16 * i) for i in range(3)]
    assert [count for count, _ in lists] == [4, 1, 1]
    assert struct.unpack_from("<4q", data, lists[0][1]) == (39, 0, 1, 0)
    assert struct.unpack_from("<d", data, lists[1][1]) == (0.5,)
    assert struct.unpack_from("<q", data, lists[2][1]) == (2,)
