"""Format the native sources with clang-format, or check that they are formatted (--check)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.cpp", "*.hpp", "*.h", "*.c")
LIMIT = 700  # lines of a native source file


def sources() -> list[Path]:
    """Return all native sources that people write."""
    found = []
    for top in (ROOT / "packages", ROOT / "integration_tests"):
        for pattern in PATTERNS:
            for path in top.rglob(pattern):
                parts = set(path.relative_to(ROOT).parts)
                if (
                    path.name != "attrs.h"
                    and not {"build", ".tox"} & parts
                    and not path.is_symlink()
                ):
                    found.append(path)
    return sorted(set(found))


def main(arguments: list[str]) -> int:
    """Return 0 where all is in order."""
    files = sources()
    flags = ["--dry-run", "--Werror"] if "--check" in arguments else ["-i"]
    status = subprocess.run(["clang-format", *flags, *map(str, files)], check=False).returncode
    for path in files:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LIMIT:
            print(f"{path.relative_to(ROOT)}: {lines} lines, expected at most {LIMIT}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
