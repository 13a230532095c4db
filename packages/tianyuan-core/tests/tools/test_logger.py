"""Logging: levels, files, formats, and what the top of the package hands out."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tianyuan as ty
from tianyuan import logger as ty_logger


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    level = ty_logger._level
    yield
    ty.set_log_level(level)


def test_messages_go_to_standard_error_with_level_and_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = ty.get_logger("test.place")
    log.warning("valve %d", 3)
    log.debug("unheard")
    out, err = capsys.readouterr()
    assert out == ""
    line = err.strip()
    assert line.endswith("]: valve 3")
    assert " WRN[" in line
    assert "test_logger.py:" in line
    assert "test_messages_go" in line
    assert log.propagate is False


def test_levels_of_old_and_new_loggers() -> None:
    old = ty.get_logger("test.old")
    before = ty.set_log_level(logging.ERROR, update_existing=False)
    assert old.level == before
    assert ty.get_logger("test.new").level == logging.ERROR
    assert ty.set_log_level("WARNING") == logging.ERROR
    assert old.level == ty.get_logger("test.new").level == logging.WARNING
    ty.enable_debug_log()
    assert old.level == logging.DEBUG
    with pytest.raises(ValueError, match="LOUD"):
        ty.set_log_level("LOUD")
    assert old.level == logging.DEBUG


def test_log_file_by_path_and_by_object(tmp_path: Path) -> None:
    log = ty.get_logger("test.file")
    path = tmp_path / "log.txt"
    path.write_text("first\n")
    ty.set_log_file(str(path))
    log.info("second")
    ty.get_logger("test.file.late").info("third")
    text = io.StringIO()
    ty.set_log_file(text)
    log.info("fourth")
    lines = path.read_text().splitlines()
    assert lines[0] == "first"
    assert [line.rpartition(": ")[2] for line in lines[1:]] == ["second", "third"]
    assert text.getvalue().rpartition(": ")[2] == "fourth\n"
    ty.set_log_file(path, mode="w")
    assert path.read_text() == ""
    with pytest.raises(OSError):
        ty.set_log_file(tmp_path / "no" / "log.txt")
    log.info("fifth")
    assert path.read_text().endswith("fifth\n")


def test_formatter() -> None:
    record = logging.LogRecord("n", logging.ERROR, "/a/net.py", 7, "x = %s", (1,), None, "main")
    plain = ty_logger.MegEngineLogFormatter(datefmt="T").format(record)
    assert plain == f"T ERR[{record.process}@net.py:7-main]: x = 1"
    colored = ty_logger.MegEngineLogFormatter(datefmt="T", color=True).format(record)
    assert "\x1b[1;4;31mERR\x1b[0m" in colored


def test_own_formatter() -> None:
    class Bare(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return "bare " + record.getMessage()

    log = ty.get_logger("test.bare", Bare)
    record = logging.LogRecord("n", logging.INFO, "f", 1, "m", (), None)
    assert log.handlers[0].format(record) == "bare m"


def test_level_of_the_runtime_is_put_back() -> None:
    log = ty.get_logger(ty_logger.RUNTIME)
    before, seen = log.level, list[int]()
    with pytest.raises(KeyError), ty_logger.replace_mgb_log_level(logging.ERROR):
        raise KeyError(seen.append(log.level))
    assert seen == [logging.ERROR]
    assert log.level == before


def test_first_calls_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    add = ty_logger.call_countlog_func(lambda a, b=1: a + b, count=2, msg="adding")
    assert [add(1), add(2, b=5), add(3)] == [2, 7, 4]
    assert capsys.readouterr().err.count("adding") == 2


def test_level_from_the_environment() -> None:
    code = "import tianyuan as ty; print(ty.get_logger('a').level)"
    for name, want in (("DEBUG", 10), ("nonsense", 20)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TIANYUAN_LOGGING_LEVEL": name},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{want}\n"


def test_a_file_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(TypeError, match="set_log_file: fout is wrong, got int"):
        ty_logger.set_log_file(5)  # type: ignore[arg-type]
