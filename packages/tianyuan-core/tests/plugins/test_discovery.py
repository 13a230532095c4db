"""Entry points are read as importlib.metadata reads them."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest
from tianyuan.discovery import entry_points

TEXT = """# a comment
[console_scripts]
tool = somewhere:main

[tianyuan.backends]
first = os.path
second=json.decoder : JSONDecoder.decode  # behind it
[other.group]
third = nowhere
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "some_thing-1.5.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(TEXT)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.5\n\nName: no"
    )
    (tmp_path / "empty-1.dist-info").mkdir()
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), str(tmp_path / "absent"), str(info / "METADATA")]
    )
    return tmp_path


def test_a_group_is_read_with_its_distribution(site: Path) -> None:
    found = list(entry_points("tianyuan.backends"))
    assert [(e.name, e.distribution, e.version) for e in found] == [
        ("first", "some-thing", "1.5"),
        ("second", "some-thing", "1.5"),
    ]
    import json.decoder
    import os.path

    assert found[0].load() is os.path
    assert found[1].load() is json.decoder.JSONDecoder.decode
    assert not list(entry_points("no.such.group"))


@pytest.mark.parametrize("group", ["console_scripts", "pytest11", "tianyuan.backends"])
def test_this_environment_reads_as_importlib_metadata_does(group: str) -> None:
    expected = {(e.name, e.value, e.dist.name, e.dist.version)
                for e in metadata.entry_points(group=group)}  # fmt: skip
    found = {(e.name, e.value, e.distribution, e.version) for e in entry_points(group)}
    assert found == expected
