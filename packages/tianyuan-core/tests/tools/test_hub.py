"""The hub: repositories in folders and in the cache, their entries and their weights."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import hub
from tianyuan import module as M
from tianyuan.errors import HubError

HUBCONF = '''
"""What this repository offers."""
import numpy
from parts import WIDTH
from tianyuan import hub, module as M

dependencies = ["numpy"]

def linear(outputs=2, *, bias=True):
    """Make a linear map of WIDTH inputs."""
    return M.Linear(WIDTH, outputs, bias=bias)

@hub.pretrained("file://{weights}")
def trained():
    return M.Linear(WIDTH, 1)

def _hidden():
    pass

number = 3
'''


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    weights = folder / "weights.tym"
    state = {"weight": np.full((1, 5), 2, np.float32), "bias": np.ones(1, np.float32)}
    ty.save(state, weights)
    (folder / "hubconf.py").write_text(HUBCONF.replace("{weights}", str(weights)))
    (folder / "parts.py").write_text("WIDTH = 5\n")
    return folder


def test_repositories_with_modules_of_one_name(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "first.py").write_text(f"NUMBER = {number}\n")
        (folder / "later.py").write_text(f"NUMBER = {10 * number}\n")
        (folder / "hubconf.py").write_text(
            "from first import NUMBER\ndef total(): import later; return NUMBER + later.NUMBER\n"
        )
    found = [hub.load(str(tmp_path / n), "total") for n in ("1", "2", "1")]
    assert found == [11, 22, 11]
    assert not {"first", "later"} & set(sys.modules)


def test_entries_of_a_folder(repository: Path) -> None:
    where = str(repository)
    assert hub.list(where) == ["linear", "trained"]
    assert hub.help(where, "linear") == "Make a linear map of WIDTH inputs."
    net = hub.load(where, "linear", 3, bias=False)
    assert isinstance(net, M.Linear)
    assert (net.in_features, net.out_features, net.bias) == (5, 3, None)
    assert hub.import_module(where).number == 3
    assert where not in sys.path


def test_weights_on_demand(repository: Path) -> None:
    x = ty.Tensor(np.ones((1, 5), np.float32))
    net = hub.load(str(repository), "trained", pretrained=True)
    assert net(x).numpy().tolist() == [[11.0]]
    assert hub.load(str(repository), "trained")(x).numpy().tolist() != [[11.0]]


@pytest.mark.parametrize("entry", ["_hidden", "number", "nothing"])
def test_what_is_not_offered(repository: Path, entry: str) -> None:
    with pytest.raises(HubError, match=f"offers no function '{entry}'"):
        hub.load(str(repository), entry)


def test_cached_repositories(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIANYUAN_HOME", str(tmp_path / "home"))
    with pytest.raises(HubError) as caught:
        hub.list("some/models")
    cached = tmp_path / "home" / "hub" / "some_models_master"
    assert "nothing is downloaded" in str(caught.value)
    assert f"https://github.com/some/models.git {cached}" in str(caught.value)
    with pytest.raises(HubError, match="git@host:some/models.git"):
        hub.list("some/models:dev", git_host="host", protocol="SSH")
    cached.parent.mkdir(parents=True)
    repository.rename(cached)
    assert hub.list("some/models") == ["linear", "trained"]
    assert hub.list("some/models:master") == ["linear", "trained"]
    with pytest.raises(HubError, match="--branch abc"):
        hub.list("some/models", commit="abc")
    with pytest.raises(HubError, match="not on this machine"):
        hub.list("some/models", use_cache=False)


def test_bad_repositories(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="expected a folder"):
        hub.list("no repository")
    with pytest.raises(HubError, match="protocol is wrong, got 'FTP'"):
        hub.list(str(repository), protocol="FTP")
    with pytest.raises(HubError, match="no commit to choose"):
        hub.list(str(repository), commit="abc")
    with pytest.raises(HubError, match="no hubconf.py"):
        hub.list(str(tmp_path))
    (tmp_path / "hubconf.py").write_text("dependencies = ['os', 'never_there_1']\n")
    with pytest.raises(HubError, match="got never_there_1"):
        hub.list(str(tmp_path))


def test_weights_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANYUAN_HOME", str(tmp_path))
    url = "https://models.example/net/first.tym?x=1"
    with pytest.raises(HubError, match="weights are not on this machine"):
        hub.load_serialized_obj_from_url(url)
    folder = tmp_path / "hub" / "serialized"
    folder.mkdir(parents=True)
    ty.save([1, "a"], folder / "first.tym")
    assert hub.load_serialized_obj_from_url(url) == [1, "a"]
    with pytest.raises(HubError):
        hub.load_serialized_obj_from_url(url, tmp_path / "elsewhere")
    digest = hashlib.sha256((folder / "first.tym").read_bytes()).hexdigest()[:8]
    (folder / f"net-{digest}.tym").write_bytes((folder / "first.tym").read_bytes())
    assert hub.load_serialized_obj_from_url(f"https://m.example/net-{digest}.tym") == [1, "a"]
    ty.save([2], folder / f"net-{digest}.tym")
    with pytest.raises(HubError, match="is damaged"):
        hub.load_serialized_obj_from_url(f"https://m.example/net-{digest}.tym")


@pytest.mark.parametrize("stated", ["'numpy'", "5", "[None]"])
def test_dependencies_that_are_no_list_of_names_are_refused(tmp_path: Path, stated: str) -> None:
    (tmp_path / "hubconf.py").write_text(f"dependencies = {stated}\n")
    with pytest.raises(HubError, match="states its dependencies wrongly"):
        hub.list(str(tmp_path))


def test_a_dotted_dependency_of_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text("dependencies = ['no_such_package_here.part']\n")
    with pytest.raises(HubError, match="no_such_package_here.part"):
        hub.list(str(tmp_path))


def test_a_repository_may_change_the_search_path(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text("import sys\nsys.path.pop(0)\ndef net():\n    return 3\n")
    before = sys.path[:]
    assert hub.load(str(tmp_path), "net") == 3
    assert sys.path == before


def test_arguments_of_wrong_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text("def net():\n    return 3\n")
    with pytest.raises(HubError, match="repository is wrong, got NoneType"):
        hub.list(None)  # type: ignore[arg-type]
    with pytest.raises(HubError, match="offers no function None"):
        hub.load(str(tmp_path), None)  # type: ignore[arg-type]
    for address in (5, "http://[wrong"):
        with pytest.raises(HubError, match="address of weights is wrong"):
            hub.load_serialized_obj_from_url(address)  # type: ignore[arg-type]
