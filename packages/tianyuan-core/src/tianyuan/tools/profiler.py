"""Run a script, or a module, and record what kernels run and when."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from ..utils.profiler import Profiler, merge_trace_events
from .command import run


def profile_script(
    target: str, arguments: list[str], folder: str, formats: list[str], module: bool = False
) -> None:
    """Run a script or module as ``__main__`` and write its profile to a folder.

    The profile is written however the script ends; all timelines of the folder are merged.

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> _ = (home / "script.py").write_text("import tianyuan as ty; ty.Tensor([1.0]) + 1.0")
    >>> profile_script(str(home / "script.py"), [], str(home), ["chrome_timeline.json"])
    >>> (home / "merge.chrome_timeline.json").exists()
    True

    Raises:
        AttrError: for an unknown format.
        SystemExit: as the script does.
    """
    profiler = Profiler(folder, formats=formats, with_scopes=True)
    saved, path = sys.argv, list(sys.path)
    sys.argv = [target, *arguments]
    sys.path[0:1] = [""] if module else [str(Path(target).resolve().parent)]
    try:
        with profiler:
            if module:
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(target, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = saved, path
        if Profiler.CHROME_TIMELINE in formats:
            merge_trace_events(folder)


@click.command("profiler", context_settings={"allow_interspersed_args": False})
@click.option("--output", "-o", default="profile", show_default=True, help="Folder for the files.")
@click.option("--format", "-f", "formats", multiple=True, default=[Profiler.CHROME_TIMELINE],
              type=click.Choice(Profiler.valid_formats), show_default=True)  # fmt: skip
@click.option("--module", "-m", is_flag=True, help="TARGET is a module rather than a script.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _command(
    output: str, formats: tuple[str, ...], module: bool, target: str, arguments: tuple[str, ...]
) -> None:
    """Run TARGET with ARGUMENTS and record what kernels run and when.

    The timeline is for chrome://tracing and Perfetto.
    """
    profile_script(target, list(arguments), output, list(formats), module)


def main() -> None:
    """Run the command line: ``python -m tianyuan.tools.profiler SCRIPT [ARGUMENTS]``."""
    run(_command)


if __name__ == "__main__":
    main()
