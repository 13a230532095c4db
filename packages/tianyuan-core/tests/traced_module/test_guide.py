"""The page on traced modules does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "traced-module.md"


def test_the_page_runs_and_shows_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    code = re.findall(r"<!-- traced-test -->\n```python\n(.*?)```", text, re.DOTALL)
    assert len(code) == 4
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n".join(code), str(PAGE), "exec"), {"__name__": "page"})
    [shown] = re.findall(r"\n```\n(Net\.Graph.*?)```", text, re.DOTALL)
    assert printed.getvalue().startswith(shown)
    assert printed.getvalue()[len(shown) :].splitlines() == [
        "Net.block.[relu_out] 1",
        "(2, 3) (2, 4, 6, 6)",
        "0",
        "True",
        "True",
    ]
