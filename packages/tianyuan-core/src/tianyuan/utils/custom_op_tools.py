"""Build a user's C++ kernels against the C ABI, and register them as a backend of their own.

A source exports ``extern "C" const ty_kernel_table *tianyuan_kernel_table(void)``; see
``docs/writing-a-plugin.md`` for what a kernel is. A kernel's name ``op_types__isa_variant`` says
which op it runs, on which dtypes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import registry
from ..abi import ABI_VERSION, get_include
from ..errors import PluginError
from ..graph.profiling import cache_file
from ..kernel import Kernel
from ..native import functions_of_table
from ..op import Op
from ..structs import KERNEL_TABLE_CAPSULE

_SYMBOL = "tianyuan_kernel_table"
_COMPILERS = ("c++", "g++", "clang++")
_TYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b8": "bool",
    **{f"s{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip
_TYPE = re.compile("bf16|f16|f32|f64|b8|[su](?:8|16|32|64)")


def update_hash(seed: int, value: Any) -> int:
    """Combine a hash with a value; equal in every process.

    >>> update_hash(0, "a") == update_hash(0, "a") != update_hash(1, "a")
    True
    """
    text = f"{seed}:{value!r}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def hash_source_files(hash_value: int, source_files: Iterable[str]) -> int:
    """Combine a hash with what files hold.

    >>> hash_source_files(7, [])
    7
    """
    for name in source_files:
        hash_value = update_hash(hash_value, Path(name).read_bytes())
    return hash_value


def hash_build_args(hash_value: int, build_args: Iterable[Iterable[str]]) -> int:
    """Combine a hash with groups of a compiler's arguments.

    >>> hash_build_args(0, [["-O2"], []]) != hash_build_args(0, [["-O3"], []])
    True
    """
    for group in build_args:
        for argument in group:
            hash_value = update_hash(hash_value, argument)
    return hash_value


class Versioner:
    """Count for every library how often what it is built from has changed.

    >>> versioner = Versioner()
    >>> [versioner.bump("lib", 11), versioner.bump("lib", 11), versioner.bump("lib", 12)]
    [0, 0, 1]
    """

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, int]] = {}

    def get_version(self, name: str) -> int | None:
        """Return a library's version, or None before its first build."""
        return self.entries[name][0] if name in self.entries else None

    def bump(self, name: str, hash_value: int) -> int:
        """Note a library's hash; return its version, which is raised where the hash is new."""
        version, known = self.entries.get(name, (-1, None))
        if known != hash_value:
            self.entries[name] = (version + 1, hash_value)
        return self.entries[name][0]


_versioner = Versioner()
_loaded: dict[str, Any] = {}  # by backend: what must stay alive


def version_check(
    name: str,
    sources: Sequence[str],
    build_args: Sequence[Sequence[str]],
    build_dir: str,
    with_cuda: bool,
    with_cudnn: bool,
    abi_tag: int | None,
) -> tuple[int, int]:
    """Return a library's version, and the hash of all that it is built from.

    >>> version_check("example", [], [["-O2"]], "", False, False, None)[0]
    0
    """
    value = hash_source_files(0, sources)
    value = hash_build_args(value, build_args)
    for part in (str(build_dir), with_cuda, with_cudnn, abi_tag, ABI_VERSION):
        value = update_hash(value, part)
    return _versioner.bump(name, value), value


class FileBaton:
    """A lock file, so that processes that build the same library take turns.

    Args:
        lock_file_path: the file; who creates it holds the baton.
        wait_seconds: how often to look whether it is gone.

    >>> import tempfile
    >>> baton = FileBaton(os.path.join(tempfile.mkdtemp(), "lock"))
    >>> baton.try_acquire(), FileBaton(baton.lock_file_path).try_acquire()
    (True, False)
    >>> baton.release()
    """

    def __init__(self, lock_file_path: str, wait_seconds: float = 0.1) -> None:
        self.lock_file_path = lock_file_path
        self.wait_seconds = wait_seconds
        self._held = False

    def try_acquire(self) -> bool:
        """Take the baton where nobody holds it; one left by a process that died is free."""
        for _ in range(2):
            try:
                handle = os.open(self.lock_file_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if not self._abandoned():
                    return False
                Path(self.lock_file_path).unlink(missing_ok=True)
                continue
            with os.fdopen(handle, "w") as file:
                file.write(str(os.getpid()))
            self._held = True
            return True
        return False

    def _abandoned(self) -> bool:
        try:
            text = Path(self.lock_file_path).read_text()
            if not text.isdecimal():
                return False  # its holder is about to write its number
            os.kill(int(text), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def wait(self) -> None:
        """Return when nobody holds the baton."""
        while os.path.exists(self.lock_file_path) and not self._abandoned():
            time.sleep(self.wait_seconds)

    def release(self) -> None:
        """Give the baton back where this object holds it."""
        if self._held:
            Path(self.lock_file_path).unlink(missing_ok=True)
            self._held = False


def _list(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, (str, os.PathLike)) else [os.fspath(v) for v in value]


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise PluginError(
        f"build: no C++ compiler was found, got {chosen or 'none'}, "
        f"expected CXX to name one, or one of {', '.join(_COMPILERS)} on the path"
    )


def build(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: str | Sequence[str] = [],
    extra_cuda_cflags: str | Sequence[str] = [],
    extra_ldflags: str | Sequence[str] = [],
    extra_include_paths: str | Sequence[str] = [],
    with_cuda: bool | None = None,
    build_dir: Any = None,
    verbose: bool = False,
    abi_tag: int | None = None,
) -> str:
    """Compile C++ sources to a library of kernels and return its path.

    What has been built from the same sources and arguments is not built again.

    Args:
        name: what the library, and its backend, is called.
        sources: one file or several.
        extra_cflags, extra_ldflags, extra_include_paths: for compiler and linker.
        extra_cuda_cflags, with_cuda: CUDA sources are not built here; ``tianyuan-cuda`` compiles
            its own.
        build_dir: where the library goes, a folder of the user's cache if None.
        verbose: whether the compiler's command and messages are shown.
        abi_tag: any number; another one builds anew.

    >>> build("example", "missing.cpp")
    Traceback (most recent call last):
        ...
    tianyuan.errors.PluginError: build: no such source, got missing.cpp

    Raises:
        PluginError: where there is no compiler or no such source, or the compiler refuses it.
    """
    files = [os.path.abspath(source) for source in _list(sources)]
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise PluginError(f"build: name must be an identifier, got {name!r}")
    if with_cuda or any(source.endswith(".cu") for source in files):
        raise PluginError(f"build: CUDA sources are not built here, got {', '.join(files)}")
    for given, source in zip(_list(sources), files, strict=True):
        if not os.path.isfile(source):
            raise PluginError(f"build: no such source, got {given}")
    includes = [f"-I{path}" for path in (get_include(), *_list(extra_include_paths))]
    flags = ["-O3", "-std=c++17", "-fPIC", *_list(extra_cflags)]
    groups = [[_compiler()], flags, includes, _list(extra_ldflags)]
    base = Path(build_dir) if build_dir else cache_file().parent / "custom_ops" / name
    _, value = version_check(name, files, groups, str(base), False, False, abi_tag)
    target = base / f"{name}_{value:016x}.so"
    base.mkdir(parents=True, exist_ok=True)
    baton = FileBaton(str(base / f"{target.name}.lock"))
    while not target.exists():
        if not baton.try_acquire():
            baton.wait()
            continue
        try:
            aside = target.with_suffix(f".{os.getpid()}.part")
            _compile([*groups[0], *flags, *includes, "-shared", "-o", str(aside), *files,
                      *groups[3]], verbose)  # fmt: skip
            os.replace(aside, target)
        finally:
            baton.release()
    return str(target)


def _compile(command: Sequence[str], verbose: bool) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if verbose:
        print(" ".join(command), done.stderr, sep="\n", file=sys.stderr)
    if done.returncode != 0:
        raise PluginError(f"build: the compiler refuses the source:\n{done.stderr.strip()}")


def load(lib_path: str, name: str | None = None, *, ops: Sequence[Op] = ()) -> list[str]:
    """Register the kernels of a library as a backend; return their names.

    Args:
        lib_path: what ``build`` returned.
        name: of the backend; the library's file name without its hash if None.
        ops: ops that core does not have and kernels of the library run.

    Kernels of other backends keep competing by cost: ``use_backend(name)`` asks for these.

    Raises:
        PluginError: where the library exports no table, or a kernel's name names no op.
    """
    backend = name or re.sub(r"_[0-9a-f]{16}$", "", Path(lib_path).stem)
    library = ctypes.CDLL(str(lib_path))
    try:
        table = library[_SYMBOL]
    except AttributeError:
        raise PluginError(f"load: {lib_path} exports no {_SYMBOL}") from None
    table.restype = ctypes.c_void_p
    wrap = ctypes.pythonapi.PyCapsule_New
    wrap.restype = ctypes.py_object
    wrap.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    functions = functions_of_table(wrap(table(), KERNEL_TABLE_CAPSULE, None))
    known = {op.name: op for op in (*registry.all_ops(), *ops)}
    kernels = [_kernel(title, function, known) for title, function in functions.items()]
    if backend in _loaded:
        unload(backend)
    elif backend in registry.backends():
        raise PluginError(f"load: a backend has the name already, got {backend!r}")
    for op in ops:
        registry.register_op(op)
    registry.register_kernels(backend, "cpu", kernels)
    _loaded[backend] = (library, [op.name for op in ops])
    return list(functions)


def unload(name: str) -> None:
    """Take back the kernels and ops of a backend that ``load`` made.

    >>> unload("example")
    Traceback (most recent call last):
        ...
    tianyuan.errors.PluginError: unload: not loaded, got 'example', expected one of none

    Raises:
        PluginError: where there is none of the name.
    """
    if name not in _loaded:
        known = ", ".join(_loaded) or "none"
        raise PluginError(f"unload: not loaded, got {name!r}, expected one of {known}")
    registry.unregister(name, _loaded.pop(name)[1])


def _kernel(title: str, function: Any, known: dict[str, Op]) -> Kernel:
    """Make a kernel of a function, by its name ``op_types__isa_variant``."""
    head, _, tail = title.partition("__")
    op, _, types = head.rpartition("_")
    found = _TYPE.findall(types)
    if op not in known or "".join(found) != types or not found:
        raise PluginError(
            f"load: a kernel's name must be like relu_f32__any_mine, got {title!r}, "
            "expected the name of a known op, its dtypes, two underscores, instruction set"
        )
    dtypes = tuple(_TYPES[name] for name in (found[:-1] or found))
    isa = tail.partition("_")[0] or "any"
    return Kernel(title, op, function, dtypes=dtypes, isa=isa)


def build_and_load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: str | Sequence[str] = [],
    extra_cuda_cflags: str | Sequence[str] = [],
    extra_ldflags: str | Sequence[str] = [],
    extra_include_paths: str | Sequence[str] = [],
    with_cuda: bool | None = None,
    build_dir: Any = None,
    verbose: bool = False,
    abi_tag: int | None = None,
    *,
    ops: Sequence[Op] = (),
) -> str:
    """Compile C++ sources, register their kernels as the backend ``name``, return the path.

    See ``build`` for the arguments and ``load`` for ``ops``.

    >>> build_and_load("example", "missing.cpp")
    Traceback (most recent call last):
        ...
    tianyuan.errors.PluginError: build: no such source, got missing.cpp

    Raises:
        PluginError: where it cannot be built or loaded.
    """
    path = build(
        name, sources, extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths,
        with_cuda, build_dir, verbose, abi_tag,
    )  # fmt: skip
    load(path, name, ops=ops)
    return path
