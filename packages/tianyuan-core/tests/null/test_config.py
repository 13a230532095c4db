"""Process-wide switches: what they accept, where they start, whom they reach."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import tianyuan
from tianyuan import config
from tianyuan.errors import AttrError
from tianyuan.graph.options import Options


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = config.winograd
    yield
    config.winograd = before


def test_options_follow_the_switch_unless_told() -> None:
    for value in (False, True):
        tianyuan.config.winograd = value
        assert config.winograd is value
        assert Options().winograd is value
        assert Options(winograd=not value).winograd is not value


def test_a_switch_takes_truths_only() -> None:
    config.winograd = False
    with pytest.raises(AttrError, match="config: winograd is wrong, got 1, expected"):
        config.winograd = 1  # type: ignore[assignment]
    assert config.winograd is False


@pytest.mark.parametrize(("text", "expected"), [("0", "False"), ("1", "True"), ("", "True")])
def test_the_environment_says_how_it_starts(text: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tianyuan import config; print(config.winograd)"],
        env={**os.environ, "TIANYUAN_WINOGRAD": text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_a_switch_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        AttrError, match=r"got 'benchmark_kernal' \(did you mean 'benchmark_kernel'\?\)"
    ):
        config.benchmark_kernal = True
    with pytest.raises(AttrError, match="got 'zzz', expected one of"):
        config.zzz = 1
    assert not hasattr(config, "benchmark_kernal")
