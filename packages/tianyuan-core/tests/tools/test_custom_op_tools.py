"""custom_op_tools: a user's C++ kernel is built, registered, run, and taken back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import registry
from tianyuan.errors import PluginError
from tianyuan.op import Op
from tianyuan.utils import custom_op_tools as C

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)

# `marked` adds 1000, so that a test sees which kernel has run.
SOURCE = """
#include "tianyuan/abi.h"
#include EXTRA

static int run(const ty_ctx *ctx, const ty_tensor *in, ty_tensor *out, const ty_attrs *,
               void *) {
  const float *x = static_cast<const float *>(in[0].data);
  float *y = static_cast<float *>(out[0].data);
  int64_t n = 1;
  for (int32_t axis = 0; axis < in[0].ndim; ++axis) n *= in[0].shape[axis];
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i] + MARK;
  return 0;
}

static const ty_kernel kernels[] = {
    {TY_ABI_VERSION, sizeof(ty_kernel), "KERNEL", run}};
static const ty_kernel_table table = {TY_ABI_VERSION, sizeof(ty_kernel_table), 1, kernels};
extern "C" const ty_kernel_table *tianyuan_kernel_table(void) { return &table; }
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write the source and the header that it includes."""
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "mark.h").write_text("#define MARK 1000\n")
    file = tmp_path / "square.cpp"
    file.write_text(SOURCE.replace("KERNEL", "square_f32__any_marked"))
    return file


@pytest.fixture
def arguments(source: Path, tmp_path: Path) -> dict[str, object]:
    return {
        "sources": [source],
        "extra_cflags": ['-DEXTRA="mark.h"', "-O1"],
        "extra_include_paths": str(tmp_path / "extra"),
        "build_dir": tmp_path / "built",
    }


X = np.array([[1.5, -2], [3, 0]], np.float32)


@needs_compiler
def test_a_kernel_is_built_registered_run_and_taken_back(arguments) -> None:
    path = C.build_and_load("mine", **arguments)
    try:
        assert Path(path).parent == arguments["build_dir"]
        assert "mine" in registry.backends()
        with ty.use_backend("mine"):
            np.testing.assert_array_equal(F.square(ty.Tensor(X)).numpy(), X * X + 1000)
            run = ty.jit.trace(lambda x: F.square(x) * 2, opt_level=1)
            np.testing.assert_array_equal(run(ty.Tensor(X)).numpy(), (X * X + 1000) * 2)
        kernels = registry.candidates("square", backend="mine")
        assert kernels[0].name == "square_f32__any_marked"
        assert kernels[0].dtypes == ("float32",)
    finally:
        C.unload("mine")
    assert "mine" not in registry.backends()
    np.testing.assert_array_equal(F.square(ty.Tensor(X)).numpy(), X * X)
    with pytest.raises(PluginError, match="not loaded, got 'mine'"):
        C.unload("mine")


@needs_compiler
def test_equal_sources_are_built_once_and_changed_ones_anew(arguments, source: Path) -> None:
    first = C.build("once", **arguments)
    stamp = os.stat(first).st_mtime_ns
    assert C.build("once", **arguments) == first
    assert os.stat(first).st_mtime_ns == stamp
    source.write_text(source.read_text() + "\n// changed\n")
    second = C.build("once", **arguments)
    assert second != first
    assert C.build("once", **arguments, abi_tag=3) not in (first, second)


@needs_compiler
def test_a_library_is_loaded_anew_in_place_of_the_old_one(arguments, tmp_path: Path) -> None:
    C.build_and_load("again", **arguments)
    try:
        (tmp_path / "extra" / "mark.h").write_text("#define MARK 5\n")
        C.build_and_load("again", **arguments, abi_tag=1)
        with ty.use_backend("again"):
            np.testing.assert_array_equal(F.square(ty.Tensor(X)).numpy(), X * X + 5)
    finally:
        C.unload("again")


@dataclass(frozen=True)
class NoFields:
    """Attributes of an op that has none."""


@needs_compiler
def test_a_kernel_may_bring_an_op_of_its_own(source: Path, arguments) -> None:
    op = Op(
        "plus_thousand",
        infer=lambda specs, attrs: specs,
        reference=lambda arrays, attrs: [arrays[0] ** 2 + 1000],
        attrs=NoFields,
    )
    source.write_text(source.read_text().replace("square_f32", "plus_thousand_f32"))
    with pytest.raises(PluginError, match="must be like relu_f32__any_mine, got 'plus_thousand"):
        C.build_and_load("own", **arguments)
    C.build_and_load("own", **arguments, ops=[op])
    try:
        with ty.use_backend("own"):
            np.testing.assert_array_equal(op(ty.Tensor(X)).numpy(), X * X + 1000)
    finally:
        C.unload("own")
    with pytest.raises(KeyError):
        registry.get_op("plus_thousand")


@needs_compiler
def test_what_the_compiler_says_is_shown(source: Path, arguments, capsys) -> None:
    source.write_text("int broken(")
    with pytest.raises(PluginError, match="(?s)compiler refuses the source.*square.cpp"):
        C.build("broken", **arguments, verbose=True)
    assert "-shared" in capsys.readouterr().err
    source.write_text("int fine() { return 1; }")
    with pytest.raises(PluginError, match="exports no tianyuan_kernel_table"):
        C.build_and_load("broken", **arguments)


@needs_compiler
def test_a_taken_name_is_refused(arguments) -> None:
    with pytest.raises(PluginError, match="has the name already, got 'numpy'"):
        C.load(C.build("other", **arguments), "numpy")


def test_what_cannot_be_built_is_refused(source: Path, monkeypatch, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no such source, got nowhere.cpp"):
        C.build("x", "nowhere.cpp")
    with pytest.raises(PluginError, match="CUDA"):
        C.build("x", str(source), with_cuda=True)
    with pytest.raises(PluginError, match="CUDA"):
        C.build("x", str(source.with_suffix(".cu")))
    with pytest.raises(PluginError, match="identifier"):
        C.build("../x", str(source))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PluginError, match=r"no C\+\+ compiler was found, got none, expected CXX"):
        C.build("x", str(source))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PluginError, match="got no-such-compiler"):
        C.build("x", str(source))


def test_hashes_depend_on_every_part_and_on_no_process(tmp_path: Path) -> None:
    file = tmp_path / "a.cpp"
    file.write_text("one")
    first = C.hash_source_files(0, [str(file)])
    file.write_text("two")
    assert C.hash_source_files(0, [str(file)]) != first
    assert C.hash_build_args(0, [["-O2"], ["-g"]]) != C.hash_build_args(0, [["-O2"], ["-h"]])
    code = "from tianyuan.utils.custom_op_tools import update_hash; print(update_hash(3, 'a'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == C.update_hash(3, "a")


def test_versions_rise_with_changes(tmp_path: Path) -> None:
    versioner = C.Versioner()
    assert versioner.get_version("a") is None
    assert [versioner.bump("a", h) for h in (5, 5, 6, 5)] == [0, 0, 1, 2]
    assert versioner.get_version("a") == 2
    file = tmp_path / "v.cpp"
    file.write_text("one")
    given = ("versions", [str(file)], [["-O2"]], str(tmp_path), False, False, None)
    assert C.version_check(*given)[0] == C.version_check(*given)[0] == 0
    file.write_text("two")
    assert C.version_check(*given)[0] == 1


def test_the_baton_has_one_holder_and_outlives_no_process(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    mine, other = C.FileBaton(lock), C.FileBaton(lock, wait_seconds=0.01)
    assert mine.try_acquire()
    assert not other.try_acquire()
    other.release()
    assert os.path.exists(lock)
    waiting = threading.Thread(target=other.wait)
    waiting.start()
    assert waiting.is_alive()
    mine.release()
    waiting.join(10)
    assert not waiting.is_alive()
    died = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    Path(lock).write_text(died.stdout.strip())
    assert other.try_acquire()
    other.release()
