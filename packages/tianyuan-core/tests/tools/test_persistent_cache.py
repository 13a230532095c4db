"""persistent_cache: what is put is found by everybody who has the folder, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tianyuan.graph.profiling import cache_file
from tianyuan.utils import persistent_cache as P


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("TIANYUAN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(monkeypatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["persistent_cache", *arguments])
    with pytest.raises(SystemExit) as left:
        P.main()
    return left.value.code


def test_another_process_finds_what_was_put(folder: Path) -> None:
    cache = P.PersistentCacheOnServer()
    assert cache.get("a", b"k") is None
    cache.put("a", b"k", b"one")
    cache.put("a", b"k", b"two\0")
    cache.put("b", b"k", b"other")
    assert (cache.get("a", b"k"), cache.get("b", b"k"), len(cache)) == (b"two\0", b"other", 2)
    code = (
        "from tianyuan.utils.persistent_cache import PersistentCacheOnServer as P;"
        "print(P().get('a', b'k'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert found.stdout.strip() == repr(b"two\0")
    assert cache.clear() == 2
    assert cache.get("a", b"k") is None


def test_kernel_times_are_shown_merged_and_cleared(folder, tmp_path, monkeypatch, capsys) -> None:
    folder.mkdir()
    cache_file().write_text(json.dumps({"x": 1.0, "y": 2.0}))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"y": 9.0, "z": 3.0}))
    assert call(monkeypatch, "merge", str(other)) == 0
    assert "1 kernel times added" in capsys.readouterr().out
    assert json.loads(cache_file().read_text()) == {"x": 1.0, "y": 2.0, "z": 3.0}
    P.PersistentCacheOnServer().put("a", b"k", b"v")
    assert call(monkeypatch, "show") == 0
    shown = capsys.readouterr().out
    assert f"{cache_file().name}: 3 kernel times, this machine's" in shown
    assert "other entries: 1" in shown
    assert call(monkeypatch, "clear") == 0
    assert "1 files of kernel times and 1 other entries" in capsys.readouterr().out
    assert not cache_file().exists()


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    assert call(monkeypatch, "merge", str(bad)) == 1
    assert "bad.json: not a file of kernel times" in capsys.readouterr().err
