"""What the README and the plugin guide show works as they show it."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pytest
import tianyuan
from tianyuan.cli.main import main as cli

ROOT = Path(__file__).parents[1]
# A logger, and the entry points of plugins.
NO_MODULES = ("tianyuan.runtime", "tianyuan.backends")
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("benchmarks/*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(ROOT.glob("packages/*/native/README.md")),
]


def blocks(document: str, marker: str) -> dict[str, str]:
    """Return the code blocks of a document that a comment marks, by what it says of them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    pattern = rf"<!-- {marker}: (\S+) -->\n```\w+\n(.*?)```"
    return dict(re.findall(pattern, text, flags=re.DOTALL))


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_readme_trains_and_deploys_in_the_lines_it_promises(tmp_path: Path) -> None:
    code = blocks("README.md", "readme-test")
    deploy = [line for line in code["deploy"].splitlines() if line.strip()]
    train = [line for line in code["train"].splitlines() if line.strip()]
    assert len(train) <= 15
    assert len(deploy) <= 5
    check = (
        "\nfull = ty.data.dataset.Digits(train=True)"
        "\npredicted = model(full.images.reshape(-1, 64).astype('float32') / 16).argmax(1)"
        "\nprint('accuracy', (predicted == full.labels).mean())"
    )
    (tmp_path / "readme.py").write_text(code["train"] + code["deploy"] + check)
    out = run([sys.executable, "readme.py"], tmp_path)
    # One pass over the data at most: far above chance, 10 %.
    assert float(out.split("accuracy")[1]) > 0.6
    assert (tmp_path / "net.tym").exists()


def test_the_training_page_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    code = blocks("docs/training.md", "training-test")["resume"]
    seeds = "import random, numpy, tianyuan\nfor r in (random, numpy.random, tianyuan.random): "
    seeds += "r.seed({})\n"
    show = "\nprint('loss', loss.item(), float(abs(model[4].weight.numpy()).sum()))\n"
    stop = code.replace("epoch=epoch)\n", "epoch=epoch)\n            raise SystemExit\n", 1)
    assert "SystemExit" in stop
    outputs = []
    for folder, programs in (("whole", [code]), ("parts", [stop, code])):
        (tmp_path / folder).mkdir()
        for number, program in enumerate(programs):
            name = f"part{number}.py"
            # After the stop it has another seed: the order must come from the file.
            fixed = program.replace("batch_size=64", f"batch_size=64, seed={number}")
            (tmp_path / folder / name).write_text(seeds.format(number) + fixed + show)
            out = run([sys.executable, name], tmp_path / folder)
        outputs.append(out)
    assert outputs[0] == outputs[1]
    assert "loss" in outputs[0]


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f"]({page})" not in text] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_files_that_the_pages_name_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    core = ROOT / "packages" / "tianyuan-core" / "src" / "tianyuan"
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        if not path.startswith(("myplugin", "test_myplugin", "setup")):
            there = (core / path).exists() or (ROOT / path).exists()
            assert there, f"{page.name} names {path}, which is not there"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if not target.startswith(("http://", "https://", "mailto:")):
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} leads to {link}"
            assert not anchor or anchor in headings(found), f"{page.name} leads to {link}"


def spans(page: Path) -> list[str]:
    """Return what a page prints as code within its sentences."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


QUANT = ("tianyuan.quantization", "tianyuan.module.qat", "tianyuan.module.quantized")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_that_pages_tell_of_exist(page: Path) -> None:
    shorter = {"F": "tianyuan.functional", "M": "tianyuan.module", "Q": "tianyuan.quantization"}
    for span in spans(page):
        found = re.match(r"(F|M|Q|ty|tianyuan)((?:\.[A-Za-z]\w*)+)", span)
        if found is None or found[0] in NO_MODULES or "experimental" in span:
            continue
        name = shorter.get(found[1], "tianyuan") + found[2]
        if name.startswith(QUANT) and find_spec("tianyuan_quant") is None:
            continue
        assert pkgutil.resolve_name(name) is not None, f"{page.name}: {span}"


def test_variables_of_the_environment_that_pages_tell_of_are_read() -> None:
    files = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("packages/*/**/CMakeLists.txt")]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    for page in PAGES:
        for name in set(re.findall(r"TIANYUAN_[A-Z_]*[A-Z]", page.read_text(encoding="utf-8"))):
            assert name in sources, f"{page.name} tells of {name}"


def test_commands_that_pages_tell_of_exist() -> None:
    shown = re.compile(r"(?:^|`)tianyuan ([a-z]\w* ?[^`\n#]*)", re.MULTILINE)
    for page in PAGES:
        for line in shown.findall(page.read_text(encoding="utf-8")):
            name, *words = line.split()
            command = cli.commands.get(name)
            assert command is not None, f"{page.name}: tianyuan {line}"
            known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            options = {word for word in words if word.startswith("-")}
            assert options <= known, f"{page.name}: tianyuan {line}"


def test_the_page_on_commands_tells_of_every_command_and_option() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        assert f"`tianyuan {name}" in text
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"`{option}\b", text), f"tianyuan {name} {option}"


@pytest.mark.skipif(find_spec("tianyuan_quant") is None, reason="one of the commands quantises")
def test_the_page_on_commands_runs(tmp_path: Path) -> None:
    net = tianyuan.module.Sequential(tianyuan.module.Linear(64, 10))
    predict = tianyuan.jit.trace(lambda x: net(x), capture_as_const=True)
    images = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    want = predict(tianyuan.Tensor(images)).numpy()
    predict.dump(tmp_path / "net.tym", arg_names=["x"], dynamic_shapes={"x": {0: "batch"}})
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    [block] = re.findall(r"<!-- command-test -->\n```sh\n(.*?)```", text, re.DOTALL)
    for line in block.splitlines():
        program, *words = line.split()
        assert program == "tianyuan"
        run([sys.executable, "-m", "tianyuan.cli.main", *words], tmp_path)
    [got] = np.load(tmp_path / "results.npz").values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    integers = tianyuan.jit.load(tmp_path / "net-int8.tym")(images)
    assert abs(integers - want).max() < 0.1 * np.ptp(want)


def test_every_page_is_on_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"^ +- ([\w-]+\.md)$", site, flags=re.MULTILINE))
    made = {"index.md", "benchmarks.md"}
    assert listed - made == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_the_guides_plugin_builds_and_passes_the_kit(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name, text in blocks("docs/writing-a-plugin.md", "guide-test").items():
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    run([*pip, str(source)], tmp_path)
    info = run([sys.executable, "-m", "tianyuan.cli.main", "info"], tmp_path, PYTHONPATH=str(site))
    assert "myplugin" in info
    out = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_myplugin.py"],
        source,
        PYTHONPATH=str(site),
    )
    assert " passed" in out
