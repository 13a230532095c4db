"""Read the symbol tables of the kernels' objects and of the library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
CACHE = os.environ.get("TIANYUAN_NATIVE_CACHE")
BUILD = Path(CACHE) / "build" if CACHE else PROJECT / "build" / "native"
TIERS = ("avx2", "avx512", "vnni", "bf16", "amx")

# What kernels may call outside of their tier: C's memory, formatting and mathematics, and the
# compiler's own support for stack protection.
LIBC = re.compile(
    r"(mem(cpy|set|move|cmp|chr)|str\w+|v?snprintf|qsort|abort|malloc|calloc|free|aligned_alloc"
    r"|posix_memalign|(f?(abs|mod|max|min|dim)|l?l?r(ound|int)|exp(2|m1)?|log(2|10|1p)?|pow|sqrt"
    r"|cbrt|a?(sin|cos|tan)h?|sincos|atan2|erfc?|tgamma|lgamma|floor|ceil|trunc|round(even)?"
    r"|nearbyint|rint|fma|hypot|copysign|ldexp|frexp|scalbn|remainder)[fl]?"
    r"|__\w+_chk|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_)"
)


def symbols(path: Path, *options: str) -> list[tuple[str, str]]:
    """Return (kind, demangled name) of every symbol of an object file."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    text = subprocess.run([nm, "-C", *options, path], capture_output=True, text=True, check=True)
    found = []
    for line in text.stdout.splitlines():
        match = re.match(r"^[0-9a-f]* *([A-Za-z]) (.*)$", line)
        assert match, line
        found.append((match[1], match[2]))
    return found


def objects(tier: str) -> list[Path]:
    """Return the object files of a tier that belong to sources that exist."""
    folder = BUILD / "CMakeFiles" / f"kernels_{tier}.dir"
    if not folder.is_dir():
        pytest.skip("the native build folder is not here")
    sources = {path.name for path in (PROJECT / "native" / "kernels").glob("*.cpp")} | {"table.cpp"}
    found = [path for path in folder.rglob("*.o") if path.name.removesuffix(".o") in sources]
    assert len(found) >= 2
    return found


@pytest.mark.parametrize("tier", TIERS)
def test_objects_define_nothing_outside_of_their_tier(tier: str) -> None:
    exported = []
    for path in objects(tier):
        for kind, name in symbols(path):
            where = f"{path.name}: {kind} {name}"
            assert kind not in "WwVvuC", f"weak or unique symbol, {where}"
            assert not name.startswith(("_GLOBAL__sub_I", "__cxx_global", "guard variable")), where
            assert "std::" not in name, f"STL, {where}"
            if kind in "TDRBGS":
                if name.startswith("ty_x86_tier_"):
                    exported.append(name)
                else:
                    assert name.startswith(f"{tier}::"), f"outside of the tier, {where}"
    assert exported == [f"ty_x86_tier_{tier}"]


@pytest.mark.parametrize("tier", TIERS)
def test_objects_call_only_their_tier_and_c(tier: str) -> None:
    for path in objects(tier):
        for kind, name in symbols(path):
            if kind == "U":
                inside = name.startswith(f"{tier}::")
                assert inside or LIBC.fullmatch(name), f"{path.name} calls {name}"


@pytest.mark.parametrize("tier", TIERS)
def test_objects_run_nothing_at_load(tier: str) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    for path in objects(tier):
        text = subprocess.run([readelf, "-SW", path], capture_output=True, text=True, check=True)
        assert ".init_array" not in text.stdout, path.name
        assert ".ctors" not in text.stdout, path.name


@pytest.mark.parametrize(
    ("file", "kinds"),
    [("int8_tiles_impl", 8), ("bf16_conv_tiles_impl", 4), ("bf16_product_tiles_impl", 4)],
)
def test_tiles_are_multiplied_by_their_instructions(file: str, kinds: int) -> None:
    """Each shape of a block is a loop of as many products as it has pairs of tiles, and no more."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not installed")
    path = next(path for path in objects("amx") if path.name.startswith(file))
    text = subprocess.run(
        [objdump, "-dC", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    shapes = 0
    for body in text.split("\n\n"):
        name = re.search(r"::multiply(?:_\w+)?<(?:(true|false), )?([12]), ([12])>", body)
        if name is None:
            continue
        pairs = int(name[2]) * int(name[3])
        product = {"true": "tdpbssd", "false": "tdpbusd", None: "tdpbf16ps"}[name[1]]
        words = re.findall(r"\t(tdp\w+|tile(?:load|store|zero)\w*)\b", body)
        loads = pairs + int(name[2]) + int(name[3])
        assert Counter(words) == {product: pairs, "tileloadd": loads, "tilestored": pairs}
        shapes += 1
    assert shapes == kinds
    assert "tilerelease" in text


def test_library_exports_one_function() -> None:
    import importlib.util

    spec = importlib.util.find_spec("tianyuan_x86._native")
    assert spec is not None
    assert spec.origin
    library = Path(spec.origin).parent / "libtianyuan_x86.so"
    own = [
        name
        for kind, name in symbols(library, "-D", "--defined-only")
        if kind not in "WwVvu"  # instantiated from the C++ library's headers, in the runtime only
    ]
    assert own == ["tianyuan_x86_api"]
