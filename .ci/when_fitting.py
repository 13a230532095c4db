"""Run a command if a package can be built on this machine, else say why it is skipped.

Usage: python .ci/when_fitting.py x86 COMMAND …
"""

from __future__ import annotations

import subprocess
import sys

from install import machine_fits


def main(package: str, *command: str) -> int:
    """Return the command's exit status, or 0 where it is skipped."""
    reason = machine_fits(package)
    if reason is not None:
        print(f"SKIPPED tests of tianyuan-{package}: {reason}", flush=True)
        return 0
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
