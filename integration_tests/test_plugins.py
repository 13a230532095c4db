"""Real distributions as plugins: the sound ones serve, the others are named and taken back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLUGINS = Path(__file__).parent / "plugins"
NAMES = (
    "good", "broken_import", "broken_hook", "too_new", "too_new_major", "duplicate_a",
    "duplicate_b", "duplicate_name",
)  # fmt: skip
HOOKS = (
    "tianyuan_ops", "tianyuan_devices", "tianyuan_layouts", "tianyuan_kernels", "tianyuan_passes",
    "tianyuan_compile", "tianyuan_communicators", "tianyuan_namespaces", "tianyuan_report",
)  # fmt: skip

Install = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build all fixtures with pip and install each into a folder of its own."""
    base = tmp_path_factory.mktemp("plugins")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(base)]
    for name in NAMES:  # built from a copy: the checkout stays as it is
        build.append(str(shutil.copytree(PLUGINS / name, base / "sources" / name)))
    subprocess.run(build, check=True)
    targets = {}
    for name in NAMES:
        (wheel,) = base.glob(f"tianyuan_fixture_{name}-*.whl")
        targets[name] = base / name
        install = [*pip, "install", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run([*install, "--target", str(targets[name]), str(wheel)], check=True)
    return targets


@pytest.fixture
def install(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return the environment of a process that has some of the fixtures installed."""

    def make(*names: str, **variables: str) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("TIANYUAN_")}
        path = [str(folders[name]) for name in names]
        env["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [env.get("PYTHONPATH")])])
        return {**env, **variables}

    return make


REPORT = """
print(json.dumps({
    key: [r.name, r.distribution, r.version, r.state, r.reason, r.error]
    for key, r in zip(plugins._records, plugins.records())
}))
"""


def _run(env: dict[str, str], body: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        "import json\nimport numpy as np\nimport tianyuan as ty\n"
        "from tianyuan import plugins, registry\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "always::UserWarning", "-c", code + textwrap.dedent(body) + REPORT],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _records(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _reports(done: subprocess.CompletedProcess[str], name: str) -> list[str]:
    return [
        line
        for line in done.stderr.splitlines()
        if f"plugin {name} (" in line and "is quarantined" in line
    ]


# A sound plugin


def test_good_plugin_serves_in_both_runtimes(install: Install, tmp_path: Path) -> None:
    done = _run(
        install("good", TIANYUAN_PLUGINS="fixture_good", MODEL=str(tmp_path / "model.tym")),
        """
        import os
        from tianyuan.jit import load, trace

        op = registry.get_op("fixture_scale_shift")
        x = ty.Tensor([1.0, -2.0, 3.0])
        assert op(x, scale=2.0, shift=1.0).numpy().tolist() == [3, -3, 7]
        call = registry.candidates("square")
        assert "square_f32__fixture_flat" in [kernel.name for kernel in call]
        with ty.use_backend("fixture_good"):
            assert (op(x, scale=1.0, shift=0.0)).numpy().tolist() == [1, -2, 3]

        with ty.autodiff.GradManager() as manager:
            manager.attach(x)
            manager.backward(op(x, scale=4.0, shift=1.0).sum())
        assert x.grad.numpy().tolist() == [4, 4, 4]

        @trace(capture_as_const=True)
        def model(image):
            return op(ty.functional.square(image), scale=2.0, shift=1.0)

        image = np.arange(3 * 5 * 2 * 2, dtype=np.float32).reshape(3, 5, 2, 2) - 7
        wanted = image * image * 2 + 1
        assert (model(ty.Tensor(image)).numpy() == wanted).all()
        model.dump(os.environ["MODEL"], arg_names=["image"])
        loaded = load(os.environ["MODEL"])
        answer = loaded(image)
        answer = list(answer.values())[0] if isinstance(answer, dict) else answer
        assert (np.asarray(answer) == wanted).all()
        kernels = [step.kernel for step in loaded.explain().steps]
        assert "square_f32__fixture_nchw2c" in kernels, kernels
        layouts = [text for step in loaded.explain().steps for text in step.inputs]
        assert any("fixture_nchw2c" in text for text in layouts), layouts

        assert ty.fixture_good.NCHW2C is registry.get_layout("fixture_nchw2c")
        assert "fixture" in plugins.communicators()
        assert "fixture_good" in dir(ty)
        record = {r.name: r for r in plugins.records()}["fixture_good"]
        assert plugins.report(record) == {"mood": "good"}
        """,
    )
    record = _records(done)["fixture_good"]
    assert record == ["fixture_good", "tianyuan-fixture-good", "1.2.3", "loaded", "", ""]
    assert "quarantined" not in done.stderr

    # Without the plugin, the file names what is missing.
    bare = _run(
        install(MODEL=str(tmp_path / "model.tym")),
        """
        import os
        from tianyuan.errors import ModelFormatError
        from tianyuan.jit import load
        try:
            load(os.environ["MODEL"])
        except ModelFormatError as error:
            assert "fixture_scale_shift" in str(error), error
        else:
            raise AssertionError("a model with an unknown op was loaded")
        """,
    )
    assert "fixture_good" not in _records(bare)


def test_command_line_names_every_plugin(install: Install) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tianyuan.cli.main import main; main(['info'])"],
        env=install(
            "good", "broken_import",
            TIANYUAN_PLUGINS="fixture_good,fixture_broken_import", COLUMNS="200",
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text in ("tianyuan-fixture-good 1.2.3", "fixture_good: mood: good", "quarantined"):
        assert text in done.stdout
    assert "cannot open shared object file" in done.stdout


# Unsound plugins

USE = """
from tianyuan.jit import trace
x = ty.Tensor([1.0, 2.0, 3.0])
for _ in range(2):
    assert ty.functional.square(x).numpy().tolist() == [1, 4, 9]
    assert trace(lambda t: ty.functional.square(t) + 1)(x).numpy().tolist() == [2, 5, 10]
    plugins.communicators()
    plugins.namespaces()
    for record in plugins.records():
        if record.state == "loaded":
            plugins.report(record)
left = [name for (name, _) in registry.all_backends() if name.startswith("fixture_broken")]
assert not left, left
"""

UNSOUND = {
    "broken_import": ("0.1", ["raised at import", "OSError", "libfixture.so"]),
    "too_new": ("9.0", ["1.99", "1.0"]),
    "too_new_major": ("9.0", ["2.0", "1.0"]),
}


def _check_quarantined(
    done: subprocess.CompletedProcess[str], name: str, version: str, reasons: list[str]
) -> None:
    dist = f"tianyuan-{name.replace('_', '-')}"
    record = _records(done)[name]
    assert record[:4] == [name, dist, version, "quarantined"]
    for text in reasons:
        assert text in record[4]
    (line,) = _reports(done, name)  # reported once, however often it is met
    assert f"({dist} {version})" in line
    assert record[4] in line


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_plugin_is_named_once_and_the_rest_works(install: Install, name: str) -> None:
    version, reasons = UNSOUND[name]
    done = _run(install(name), USE)
    _check_quarantined(done, f"fixture_{name}", version, reasons)


@pytest.mark.parametrize("hook", HOOKS)
def test_raising_hook_takes_everything_back(install: Install, hook: str) -> None:
    gone = """
    for look_up, name in ((registry.get_op, "fixture_half"), (registry.get_layout, "fixture_same")):
        try:
            look_up(name)
        except KeyError:
            continue
        raise AssertionError(f"{name} is still there")
    assert "fixture" not in registry._devices
    """
    env = install("broken_hook", TIANYUAN_TEST_RAISE=hook)
    done = _run(env, USE + textwrap.dedent(gone))
    _check_quarantined(done, "fixture_broken_hook", "0.2", ["ZeroDivisionError", hook])
    assert "on purpose" in _records(done)["fixture_broken_hook"][5]  # the whole traceback


def test_hook_that_does_not_raise_serves(install: Install) -> None:
    """The fixture above is sound but for what it is told to do."""
    done = _run(
        install("broken_hook"),
        """
        assert registry.get_op("fixture_half").name == "fixture_half"
        kernels = [kernel.name for kernel in registry.candidates("square")]
        assert "square_any__fixture_half" in kernels
        """,
    )
    assert _records(done)["fixture_broken_hook"][3] == "loaded"
    assert not _reports(done, "fixture_broken_hook")


def test_two_plugins_with_one_op(install: Install) -> None:
    done = _run(
        install("duplicate_a", "duplicate_b"),
        """
        assert registry.get_op("fixture_twin") and registry.get_op("fixture_only_a")
        plugins.ensure_kernels("cpu")  # layouts come with the first use of a device
        registry.get_layout("fixture_only_a")
        names = [op.name for op in registry.all_ops()]
        assert names.count("fixture_twin") == 1 and "fixture_only_b" not in names
        """,
    )
    assert _records(done)["fixture_duplicate_a"][3] == "loaded"
    reasons = ["fixture_twin", "fixture_duplicate_a (tianyuan-fixture-duplicate-a 1.0)"]
    _check_quarantined(done, "fixture_duplicate_b", "1.1", reasons)


def test_two_distributions_under_one_name(install: Install) -> None:
    done = _run(install("good", "duplicate_name"))
    found = [record for record in _records(done).values() if record[0] == "fixture_good"]
    assert sorted(record[3] for record in found) == ["loaded", "quarantined"]
    (loser,) = (record for record in found if record[3] == "quarantined")
    (winner,) = (record for record in found if record[3] == "loaded")
    assert f"{winner[1]} {winner[2]}" in loser[4]
    (line,) = _reports(done, "fixture_good")
    assert f"({loser[1]} {loser[2]})" in line


# Switches


def _strict(install: Install, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = install(
        name, TIANYUAN_STRICT_PLUGINS="1", TIANYUAN_PLUGINS=f"fixture_{name}", **variables
    )
    return _run(env, USE)


@pytest.mark.parametrize("name", UNSOUND)
def test_strict_makes_an_unsound_plugin_fatal(install: Install, name: str) -> None:
    done = _strict(install, name)
    assert done.returncode != 0
    assert f"PluginError: plugin fixture_{name} (tianyuan-fixture" in done.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_strict_makes_a_raising_hook_fatal(install: Install, hook: str) -> None:
    done = _strict(install, "broken_hook", TIANYUAN_TEST_RAISE=hook)
    assert done.returncode != 0
    assert "PluginError: plugin fixture_broken_hook (tianyuan-fixture" in done.stderr
    assert "ZeroDivisionError: on purpose in" in done.stderr  # chained, with its traceback


def test_strict_lets_a_sound_plugin_pass(install: Install) -> None:
    assert _records(_strict(install, "good"))["fixture_good"][3] == "loaded"


@pytest.mark.parametrize(
    ("listed", "states"),
    [
        ("fixture_good", ["loaded", "skipped"]),
        (" fixture_good , fixture_none", ["loaded", "skipped"]),
        ("fixture_broken_import", ["skipped", "quarantined"]),
        ("", ["skipped", "skipped"]),
        (None, ["loaded", "quarantined"]),
    ],
)
def test_the_list_of_plugins_narrows(install: Install, listed: Any, states: list[str]) -> None:
    variables = {} if listed is None else {"TIANYUAN_PLUGINS": listed}
    done = _run(install("good", "broken_import", **variables))
    records = _records(done)
    assert [records[f"fixture_{name}"][3] for name in ("good", "broken_import")] == states
    assert len(_reports(done, "fixture_broken_import")) == states.count("quarantined")
    if "skipped" in states:
        skipped = records["fixture_good" if states[0] == "skipped" else "fixture_broken_import"]
        assert "TIANYUAN_PLUGINS" in skipped[4]


def test_a_plugin_that_is_left_out_is_not_imported(install: Install) -> None:
    done = _run(
        install("broken_import", TIANYUAN_PLUGINS="", TIANYUAN_STRICT_PLUGINS="1"),
        "import sys; assert 'tianyuan_fixture_broken_import' not in sys.modules",
    )
    assert _records(done)["fixture_broken_import"][3] == "skipped"


def test_asking_for_a_quarantined_backend_gives_its_reason(install: Install) -> None:
    done = _run(
        install("broken_import", TIANYUAN_BACKEND="fixture_broken_import"),
        """
        from tianyuan.errors import BackendError
        try:
            ty.Tensor([1.0]) + 1
        except BackendError as error:
            assert "fixture_broken_import" in str(error), error
            assert "libfixture.so" in str(error), error
        else:
            raise AssertionError("a backend that is not there was accepted")
        """,
    )
    assert _records(done)["fixture_broken_import"][3] == "quarantined"
