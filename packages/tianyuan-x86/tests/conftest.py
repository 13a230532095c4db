"""Build the tests' own C kernels and make programs from slots and steps."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
from tianyuan import registry
from tianyuan.graph.program import ALIAS, ARENA, CONSTANT, INPUT, OUTPUT, STATE, Program, Slot, Step
from tianyuan.kernel import CFunction, Kernel
from tianyuan.op import NoAttrs, QuantParams, TensorSpec
from tianyuan_x86 import native

if native.unavailable() is not None:
    pytest.skip(f"tianyuan-x86: {native.unavailable()}", allow_module_level=True)


@pytest.fixture(scope="session")
def c_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build kernels.c and return the library's path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the tests' kernels")
    target = tmp_path_factory.mktemp("kernels") / "kernels.so"
    source = Path(__file__).with_name("kernels.c")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", f"-I{tianyuan.get_include()}", source, "-o", target],
        check=True,
    )
    return target


@pytest.fixture(scope="session")
def c_kernels(c_library: Path) -> Callable[[str], CFunction]:
    """Return the functions of kernels.c by name."""
    library = ctypes.CDLL(str(c_library))

    def function(name: str) -> CFunction:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address
        return CFunction(address, library)

    return function


class Builder:
    """Collects slots and steps by hand and makes a Program of them."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.steps: list[Step] = []
        self.constants: list[np.ndarray] = []
        self.arena_size = 0
        self.threads = 2

    def slot(
        self,
        kind: str,
        shape: tuple[int, ...],
        dtype: str = "float32",
        index: int | None = None,
        quant: QuantParams | None = None,
    ) -> int:
        """Add a slot, numbered after those of its kind or laid behind what the arena holds."""
        spec = TensorSpec(shape, np.dtype(dtype), quant=quant)
        if index is None:
            index = sum(slot.kind == kind for slot in self.slots)
            if kind == ARENA:
                index = self.arena_size
        slot = Slot(kind, index, spec, "plain", shape)
        if kind == ARENA:
            self.arena_size += -(-slot.nbytes // 64) * 64
        self.slots.append(slot)
        return len(self.slots) - 1

    def constant(self, array: np.ndarray) -> int:
        self.constants.append(array)
        return self.slot(CONSTANT, array.shape, array.dtype.name)

    def alias(self, slot: int, shape: tuple[int, ...]) -> int:
        return self.slot(ALIAS, shape, index=slot)

    def step(
        self,
        run: Any,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        name: str = "test_f32__any_plain",
        op: str = "copy",
        workspace: int = 0,
    ) -> None:
        kernel = Kernel(name, op, run)
        offset = self.arena_size
        self.arena_size += -(-workspace // 64) * 64
        self.steps.append(
            Step(
                kernel, registry.get_op(op), NoAttrs(), inputs, outputs, offset, workspace,
                origin="model.py:7",
            )
        )  # fmt: skip

    def program(self) -> Program:
        def of(kind: str) -> tuple[int, ...]:
            return tuple(i for i, slot in enumerate(self.slots) if slot.kind == kind)

        return Program(
            tuple(self.slots),
            tuple(self.steps),
            of(INPUT),
            of(OUTPUT),
            of(STATE),
            tuple(self.constants),
            self.arena_size,
            self.arena_size,
            self.threads,
        )


@pytest.fixture
def builder() -> Builder:
    """Return an empty program builder."""
    return Builder()
