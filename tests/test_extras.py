"""The hint after a missing optional package: a command that works where this package came from."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from sla import extras
from sla.errors import MissingExtraError

REPOSITORY = Path(__file__).resolve().parents[1]
DECLARED = ["torch<3,>=2.6", "onnx>=1.16; extra == 'all'", "onnx>=1.16; extra == 'export'"]
DECLARED += ["onnxruntime>=1.18; (python_version > '3') and extra == \"export\""]


class Installed:
    """What pip recorded of a package."""

    def __init__(self, url):
        self.url = url

    def read_text(self, name):
        return None if self.url is None else json.dumps({"url": self.url})


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """As if the package lay among others', installed from an address or from nowhere known."""

    def use(url=None):
        site = tmp_path / "site-packages" / "sla" / "extras.py"
        monkeypatch.setattr(extras, "HERE", site)
        monkeypatch.setattr(extras.metadata, "distribution", lambda name: Installed(url))
        monkeypatch.setattr(extras.metadata, "requires", lambda name: DECLARED)
        monkeypatch.setattr(extras, "_pip", lambda: "pip")

    return use


def test_in_a_checkout_it_is_the_checkout_with_its_constraints(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "_pip", lambda: "pip")
    monkeypatch.chdir(REPOSITORY)
    assert extras.install_command("pretrained") == "pip install -c constraints.txt -e '.[pretrained]'"
    monkeypatch.chdir(tmp_path)
    words = shlex.split(extras.install_command("timm"))
    assert words == ["pip", "install", "-c", f"{REPOSITORY}/constraints.txt", "-e", f"{REPOSITORY}[timm]"]
    assert str(MissingExtraError("a thing", "timm")).startswith("a thing needs an optional package: pip inst")


def test_a_copy_installed_from_a_checkout_names_that_folder(installed, monkeypatch, tmp_path):
    tree = tmp_path / "my code"
    tree.mkdir()
    (tree / "pyproject.toml").write_text('[project]\nname = "sla-torch"\n')
    (tree / "constraints.txt").write_text("")
    installed(tree.as_uri())
    words = shlex.split(extras.install_command("export"))
    assert words == ["pip", "install", "-c", str(tree / "constraints.txt"), f"{tree}[export]"]
    monkeypatch.chdir(tree)
    assert extras.install_command("export") == "pip install -c constraints.txt '.[export]'"


@pytest.mark.parametrize("url", [None, "https://example.org/sla.whl", "file:///gone/for/good"])
def test_from_elsewhere_it_names_the_packages_themselves(installed, url):
    installed(url)
    words = shlex.split(extras.install_command("export"))
    assert words == ["pip", "install", "onnx>=1.16", "onnxruntime>=1.18"]
    assert extras.install_command("unheard") == "pip install 'sla-torch[unheard]'"


def test_pip_is_that_of_this_python(monkeypatch, tmp_path):
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(tmp_path / "pip"))
    assert extras._pip() == f"{sys.executable} -m pip"
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(Path(sys.executable).parent / "pip"))
    assert extras._pip() == "pip"
