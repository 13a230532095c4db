"""Install distributions of this checkout as wheels, building each at most once per interpreter.

Usage: python .ci/install.py core x86 …       (or `fitting`: core and the backends for this machine)

A wheel is built again only where a file of its package (or of core, whose headers native packages
use) has changed. Dependencies come from the environment's package index, ours never do.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / "dist"
NATIVE = {"x86"}
_SKIPPED = {"build", "__pycache__", ".pytest_cache", "dist", "tests"}


def machine_fits(package: str) -> str | None:
    """Return why a package cannot be built here, or None."""
    if package in NATIVE:
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return f"this machine is {platform.machine()}, not x86-64"
        compiler = os.environ.get("CXX") or next(
            filter(shutil.which, ("c++", "g++", "clang++")), None
        )
        if compiler is None:
            return "there is no C++ compiler"
    return None


def files_of(package: str) -> Iterator[Path]:
    """Yield what a package's wheel depends on."""
    folders = [ROOT / "packages" / f"tianyuan-{package}"]
    if package in NATIVE:
        folders.append(ROOT / "packages" / "tianyuan-core" / "src" / "tianyuan" / "include")
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not _SKIPPED & set(path.relative_to(ROOT).parts):
                yield path


def wheel_of(package: str) -> Path:
    """Return the wheel of a package for this interpreter, building it where there is none."""
    digest = hashlib.sha256()
    for path in files_of(package):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}" if package in NATIVE else "py3"
    folder = WHEELS / f"{package}-{tag}-{digest.hexdigest()[:16]}"
    if not list(folder.glob("*.whl")):
        source = ROOT / "packages" / f"tianyuan-{package}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "-w",
            str(folder),
            str(source),
        ]
        print("building", package, "for", tag, flush=True)
        subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def main(packages: list[str]) -> None:
    """Install the packages named, or those that fit this machine."""
    if packages == ["fitting"]:
        reasons = {package: machine_fits(package) for package in ("core", "x86", "quant")}
        for package, reason in reasons.items():
            if reason:
                print(f"SKIPPED tianyuan-{package}: {reason}", flush=True)
        packages = [package for package, reason in reasons.items() if reason is None]
    wheels = [str(wheel_of(package)) for package in packages]
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *wheels], check=True)
    # The same version may be installed from an older state of the checkout.
    subprocess.run([*pip, "--force-reinstall", "--no-deps", "--no-index", *wheels], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
