"""Name an ISA tier's kernels and tie them to the C functions of the native library."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tianyuan.errors import PluginError
from tianyuan.kernel import CFunction, Kernel
from tianyuan.records import record

LANES = {"avx2": 8, "avx512": 16}  # float32 lanes of a vector; worst tier first
ORDER = (*LANES, "vnni", "bf16", "amx")  # all tiers; from vnni on, for types of their own
INT8_TIERS = ("avx2", "vnni")
PRODUCT_TIERS = (*INT8_TIERS, "amx")  # those with products of 8-bit integers
BF16_TIERS = ("bf16",)
PAIR_TIERS = (*BF16_TIERS, "amx")  # those with products of pairs in bfloat16


@record()
class Tier:
    """An instruction set for which the library has objects, and its functions by kernel name.

    ``features`` says of CPU features whether the machine has them.
    """

    name: str
    functions: Mapping[str, CFunction]
    features: Mapping[str, bool] = MappingProxyType({})

    @property
    def lanes(self) -> int:
        """Return how many float32 values a vector register holds."""
        return LANES.get(self.name, 16)

    def kernel(self, family: str, variant: str, op: str, **described: Any) -> Kernel:
        """Make the Kernel ``family__tier_variant`` of an op.

        ``described`` are further fields of Kernel: dtypes, layouts, supports, cost and so on.

        Raises:
            PluginError: where the native library has no function of that name.
        """
        name = f"{family}__{self.name}_{variant}"
        function = self.functions.get(name)
        if function is None:
            raise PluginError(f"tianyuan-x86: the native library lacks a kernel, expected {name!r}")
        return Kernel(name=name, op=op, run=function, isa=self.name, backend="x86", **described)
